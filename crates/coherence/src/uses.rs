//! Which addresses are what, as the program says while it runs.
//!
//! State       two layers of ranges that do not overlap inside their layer: `blocks` (things that come and go) over `backgrounds` (a
//!             region, a stack), where whatever no block covers falls.
//! Invariants  I1  what was said last of an address holds: a range takes away all that overlaps it in its layer.

use std::collections::BTreeMap;

/// A kind of thing, by what the program says of it.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Kind {
    /// Its type, or what it is in words.
    pub what: String,
    /// Source file of the code that made it.
    pub file: String,
    /// Line there.
    pub line: u32,
    /// Bytes of one.
    pub element_bytes: u64,
}

/// An address, told.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LineName {
    /// Which of the kinds.
    pub kind: u32,
    /// Which line of the thing; 0 if it has only one, or is not made of whole lines.
    pub line: u32,
}

#[derive(Clone, Copy)]
struct Range {
    end: u64,
    kind: u32,
}

/// See the module.
#[derive(Default)]
pub struct Uses {
    kinds: Vec<Kind>,
    blocks: BTreeMap<u64, Range>,
    backgrounds: BTreeMap<u64, Range>,
}

impl Uses {
    /// Memory is put to a use; an empty `what`: to none.
    pub fn say(&mut self, start: u64, bytes: u64, kind: Kind, background: bool) {
        let end = start + bytes;
        let number = self.number(kind);
        let layer = if background { &mut self.backgrounds } else { &mut self.blocks };
        let mut over: Vec<u64> = layer.range(start..end).map(|(at, _)| *at).collect();
        over.extend(
            layer.range(..start).next_back().filter(|(_, range)| range.end > start).map(|(at, _)| *at),
        );
        for at in over {
            layer.remove(&at);
        }
        if let Some(kind) = number {
            layer.insert(start, Range { end, kind });
        }
    }

    /// Any two threads' things of one kind are one kind.
    fn number(&mut self, kind: Kind) -> Option<u32> {
        if kind.what.is_empty() {
            return None;
        }
        let known = self.kinds.iter().position(|k| *k == kind);
        Some(known.unwrap_or_else(|| {
            self.kinds.push(kind);
            self.kinds.len() - 1
        }) as u32)
    }

    /// What lies at this address.
    pub fn at(&self, address: u64) -> Option<LineName> {
        let find = |layer: &BTreeMap<u64, Range>| {
            let (start, range) = layer.range(..=address).next_back().map(|(at, range)| (*at, *range))?;
            (address < range.end).then_some((start, range.kind))
        };
        let (start, kind) = find(&self.blocks).or_else(|| find(&self.backgrounds))?;
        let bytes = self.kinds[kind as usize].element_bytes;
        // Offsets in things that are not made of whole lines differ from one to the next.
        let whole = bytes > crate::LINE_BYTES && bytes.is_multiple_of(crate::LINE_BYTES);
        let line = if whole { (address - start) % bytes / crate::LINE_BYTES } else { 0 };
        Some(LineName { kind, line: line as u32 })
    }

    /// A kind by its number.
    pub fn kind(&self, number: u32) -> &Kind {
        &self.kinds[number as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind(what: &str, element_bytes: u64) -> Kind {
        Kind { what: what.into(), file: "a.rs".into(), line: 1, element_bytes }
    }

    fn told(uses: &Uses, address: u64) -> Option<(&str, u32)> {
        uses.at(address).map(|place| (uses.kind(place.kind).what.as_str(), place.line))
    }

    #[test]
    fn a_line_is_told_by_its_thing_and_its_number_in_it() {
        let mut uses = Uses::default();
        uses.say(0x1000, 1024, kind("inode", 256), false);
        assert_eq!(told(&uses, 0x1000), Some(("inode", 0)));
        assert_eq!(told(&uses, 0x1000 + 256 + 192), Some(("inode", 3)));
        assert_eq!(told(&uses, 0x1400), None);
        assert_eq!(told(&uses, 0xfff), None);
    }

    #[test]
    fn what_was_said_last_holds() {
        let mut uses = Uses::default();
        uses.say(0x1000, 0x100, kind("old", 64), false);
        uses.say(0x1080, 0x100, kind("new", 64), false);
        assert_eq!(told(&uses, 0x1000), None);
        assert_eq!(told(&uses, 0x1080), Some(("new", 0)));
        uses.say(0x1000, 0x1000, kind("", 64), false);
        assert_eq!(told(&uses, 0x1080), None);
    }

    #[test]
    fn where_no_block_is_the_background_shows() {
        let mut uses = Uses::default();
        uses.say(0x10000, 0x10000, kind("region", 0x10000), true);
        uses.say(0x11000, 0x1000, kind("log page", 0x1000), false);
        assert_eq!(told(&uses, 0x11040), Some(("log page", 1)));
        assert_eq!(told(&uses, 0x12000).map(|t| t.0), Some("region"));
    }
}
