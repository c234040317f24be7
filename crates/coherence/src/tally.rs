//! Transfers, by the structure whose line it was and by the code that touched it.

use crate::lines::Lines;
use crate::uses::{LineName, Uses};
use std::collections::{BTreeMap, HashSet};
use std::fmt::Write;

/// First line of a report; changes with its form.
pub const HEADER: &str = "heddle-coherence 1";

/// Places of code: the writer's, then the toucher's.
type Sites = (u64, u64);

#[derive(Default)]
struct Count {
    transfers: u64,
    sites: BTreeMap<Sites, u64>,
    lines: HashSet<u64>,
}

/// All of a run.
#[derive(Default)]
pub struct Tally {
    /// The copies of lines.
    lines: Lines,
    /// What lies where.
    pub uses: Uses,
    /// Turns that counted.
    ops: u64,
    counts: BTreeMap<(Option<LineName>, u64), Count>,
    /// Where the program lies in memory: addresses of code count from here.
    pub base: u64,
}

impl Tally {
    /// A turn that counts has ended.
    pub fn operation(&mut self) {
        self.ops += 1;
    }

    /// Worker `me` touches `bytes` at `address`; `counted`: the warm-up is over.
    pub fn touch(&mut self, (address, bytes): (u64, u64), me: u32, writes: bool, site: u64, counted: bool) {
        let (first, last) = (address / crate::LINE_BYTES, (address + bytes - 1) / crate::LINE_BYTES);
        for line in first..=last {
            let Some(writer) = self.lines.touch(line, me, writes, site) else { continue };
            if !counted {
                continue;
            }
            let at = line * crate::LINE_BYTES;
            let place = self.uses.at(address.max(at));
            // What has no name is told by its address.
            let key = (place, if place.is_none() { at } else { 0 });
            let count = self.counts.entry(key).or_default();
            count.transfers += 1;
            *count.sites.entry((writer, site)).or_default() += 1;
            count.lines.insert(line);
        }
    }

    /// The report: a header, then a line for each structure and each pair of places of code, fields separated by tabs.
    pub fn report(&self) -> String {
        let mut text = format!("{HEADER}\nops\t{}\n", self.ops);
        for ((place, address), count) in &self.counts {
            // Writing to a string cannot fail.
            let _ = match place {
                Some(place) => {
                    let kind = self.uses.kind(place.kind);
                    writeln!(
                        text,
                        "thing\t{}\t{}\t{}\t{}\t{}\t{}\t{}",
                        count.transfers,
                        count.lines.len(),
                        kind.what,
                        kind.file,
                        kind.line,
                        kind.element_bytes,
                        place.line
                    )
                }
                None => writeln!(text, "address\t{}\t{}", count.transfers, address.wrapping_sub(self.base)),
            };
            for ((writer, toucher), transfers) in &count.sites {
                let (writer, toucher) = (writer.wrapping_sub(self.base), toucher.wrapping_sub(self.base));
                let _ = writeln!(text, "by\t{transfers}\t{writer}\t{toucher}");
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::uses::Kind;

    #[test]
    fn planted_false_sharing_is_named_and_a_private_counter_is_not() {
        let mut tally = Tally { base: 0x100, ..Tally::default() };
        let kind = Kind { what: "counters".into(), file: "a.rs".into(), line: 5, element_bytes: 128 };
        tally.uses.say(0x4000, 128, kind, false);
        for turn in 0..20 {
            let me = turn % 2;
            let counted = turn >= 2;
            // Two workers' counters on one line, and one of its own each.
            tally.touch((0x4040 + 8 * u64::from(me), 8), me, true, 0x150, counted);
            tally.touch((0x9000 + 64 * u64::from(me), 8), me, true, 0x160, counted);
            if counted {
                tally.operation();
            }
        }
        let want = "heddle-coherence 1\nops\t18\nthing\t18\t1\tcounters\ta.rs\t5\t128\t1\nby\t18\t80\t80\n";
        assert_eq!(tally.report(), want);
    }

    #[test]
    fn the_warm_up_does_not_count_but_is_remembered() {
        let mut tally = Tally::default();
        tally.touch((0x80, 8), 0, true, 1, false);
        tally.touch((0x80, 8), 1, false, 2, false);
        tally.touch((0x80, 8), 1, false, 2, true);
        assert_eq!(tally.report(), "heddle-coherence 1\nops\t0\n");
        tally.touch((0x80, 8), 0, true, 1, true);
        tally.touch((0x80, 8), 1, false, 2, true);
        assert_eq!(tally.report(), "heddle-coherence 1\nops\t0\naddress\t1\t128\nby\t1\t1\t2\n");
    }

    #[test]
    fn a_touch_across_two_lines_is_two() {
        let mut tally = Tally::default();
        tally.touch((0x7c, 8), 0, true, 1, true);
        tally.touch((0x7c, 8), 1, false, 1, true);
        assert_eq!(tally.report().matches("address").count(), 2);
    }
}
