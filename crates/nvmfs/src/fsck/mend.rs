//! Mending one flipped bit, which the checksum identifies.
//!
//! A CRC-32C over one line tells any single flipped bit from all others and from none. So flipping each bit
//! in turn until the checksum is correct finds it. A line that is damaged otherwise passes with a probability
//! of one in eight million. Pointers have only 18 or 24 bits of check, so their targets must fit as well.

use super::pass::Pass;
use crate::format::inode::{FoundInode, InodeBase};
use crate::format::page::PageHeader;
use crate::format::pointer::Target;
use crate::format::record::{FoundRecord, RECORD_SLOTS_MAX, is_later_line, parse};
use crate::format::word::Line;
use crate::ids::InodeId;
use heddle_vfs::Ino;

/// A line with one bit flipped.
fn turned(line: &Line, bit: usize) -> Line {
    let mut tried = *line;
    tried[bit / 64] ^= 1 << (bit % 64);
    tried
}

/// Returns true if exactly one bit is set in words that should be blank.
pub fn was_blank(words: &[u64]) -> bool {
    words.iter().map(|w| w.count_ones()).sum::<u32>() == 1
}

/// Mends a pointer with one flipped bit. `fits` returns true if a target is plausible.
pub fn pointer<T: Copy>(
    raw: u64,
    decode: impl Fn(u64) -> Target<T>,
    fits: impl Fn(T) -> bool,
) -> Option<u64> {
    let fitting = (0..64).map(|bit| raw ^ 1 << bit).find(|tried| match decode(*tried) {
        Target::At(target) => fits(target),
        _ => false,
    });
    fitting.or(was_blank(&[raw]).then_some(0))
}

/// Mends line 0 of a slot.
pub fn slot(seed: u32, ino: Ino, line: &Line) -> Option<(Line, InodeBase)> {
    (0..512).find_map(|bit| match InodeBase::decode(seed, ino, &turned(line, bit)) {
        FoundInode::Whole(base) => Some((turned(line, bit), base)),
        _ => None,
    })
}

/// Mends the header of a log page, without its next pointer.
pub fn header(seed: u32, line: &Line, owner: InodeId, chain: u32) -> Option<(Line, PageHeader)> {
    (0..448).find_map(|bit| {
        let tried = turned(line, bit);
        let header = PageHeader::decode(seed, &tried)?;
        (header.owner == owner && header.chain == chain).then_some((tried, header))
    })
}

/// Mends a line of the record that starts in `slot`. Returns the line's slot and its original content.
pub fn record(
    pass: &mut Pass<'_>,
    seed: u32,
    home: InodeId,
    slot: u32,
    lines: &[Line],
) -> Option<(u32, Line)> {
    if !pass.may_mend() {
        return None;
    }
    let at = |s: u32| lines.get(s as usize).copied().unwrap_or([0; 8]);
    let whole = |target: u32, tried: Line| {
        let found = parse(seed, home, slot, |s| if s == target { tried } else { at(s) });
        matches!(found, FoundRecord::Whole { .. })
    };
    let first = at(slot);
    let in_first = (0..448).map(|bit| turned(&first, bit)).find(|tried| whole(slot, *tried));
    if let Some(line) = in_first {
        return Some((slot, line));
    }
    let later = (1..RECORD_SLOTS_MAX as u32).map(|n| slot + n).filter(|s| at(*s)[7] != 0);
    later.filter(|s| !is_later_line(seed, *s, &at(*s))).find_map(|target| {
        let line = at(target);
        (0..512).map(|bit| turned(&line, bit)).find(|tried| whole(target, *tried)).map(|line| (target, line))
    })
}

/// Decodes the words of a block, if its checksum is correct.
pub type Decode<'d, T> = &'d dyn Fn(&dyn Fn(usize) -> u64) -> Option<T>;

/// Mends a block under one checksum. Returns the damaged word, its original value, and the decoded block.
pub fn block<T>(pass: &mut Pass<'_>, words: &[u64], decode: Decode<'_, T>) -> Option<(usize, u64, T)> {
    if !pass.may_mend() {
        return None;
    }
    (0..words.len() * 64).find_map(|bit| {
        let (index, word) = (bit / 64, words[bit / 64] ^ 1 << (bit % 64));
        let said = decode(&|i| if i == index { word } else { words[i] })?;
        Some((index, word, said))
    })
}
