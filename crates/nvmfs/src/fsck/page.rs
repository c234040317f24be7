//! The records of one log page: which are whole, and which of those count by the rules of the image's log.
//!
//! A mount stops at the first damage. This module continues after it, and keeps every whole record.

use super::catalogue::Code;
use super::log::{Entry, Log};
use super::mend;
use super::pass::{Location, Pass};
use crate::format::page::{PageHeader, SLOTS, slot_pos};
use crate::format::record::{FoundRecord, Record, Txn, commit_mark, is_later_line, parse};
use crate::format::word::{Line, WRITTEN};
use crate::ids::{BlockNo, InodeId, Version};
use crate::variant::LogKind;

/// The contents of a run of slots.
enum What {
    /// A record, with its mark: none, right or wrong.
    Whole { record: Record, txn: Txn, mark: Option<bool> },
    /// Words are missing.
    Torn,
    /// Words are wrong.
    Damaged,
}

struct Piece {
    slot: u32,
    slots: u32,
    what: What,
}

/// Records of one transaction, with their positions.
struct Group {
    txn: Txn,
    records: Vec<(u32, Record, Option<bool>)>,
    end: u32,
}

impl Group {
    fn complete(&self) -> bool {
        let starts = self.records.first().is_some_and(|(slot, ..)| *slot == self.txn.first);
        starts && self.end == self.txn.first + self.txn.slots
    }

    fn last_mark(&self) -> Option<bool> {
        self.records.last().and_then(|(.., mark)| *mark)
    }
}

/// A page after reading.
pub struct PageAt {
    /// Its block.
    pub block: BlockNo,
    id: InodeId,
    seed: u32,
    groups: Vec<Group>,
    /// Slots that are torn or damaged.
    torn: Vec<u32>,
    damaged: Vec<u32>,
}

impl PageAt {
    /// Reads and mends the lines of a page.
    pub fn read(pass: &mut Pass<'_>, id: InodeId, block: BlockNo, header: &PageHeader) -> PageAt {
        let seed = header.record_seed(pass.image.seed);
        let mut page = PageAt { block, id, seed, groups: Vec::new(), torn: Vec::new(), damaged: Vec::new() };
        let mut lines: Vec<Line> = (0..=SLOTS).map(|slot| pass.media.line(slot_pos(block, slot))).collect();
        let mut slot = 1;
        while slot <= SLOTS {
            let Some(piece) = page.piece(pass, &mut lines, slot) else {
                slot += 1;
                continue;
            };
            slot += piece.slots;
            page.take(piece);
        }
        page.mend_marks(pass);
        page
    }

    /// Returns true if the page has no record.
    pub fn blank(&self) -> bool {
        self.groups.is_empty() && self.torn.is_empty() && self.damaged.is_empty()
    }

    /// The slot behind the last whole transaction.
    pub fn end(&self) -> u32 {
        self.groups.iter().filter(|g| g.complete()).map(|g| g.end).max().unwrap_or(1)
    }

    /// Returns true if a transaction ends before this slot. Slot 1 always counts as such a boundary.
    pub fn ends_at(&self, slot: u32) -> bool {
        slot == 1 || self.groups.iter().any(|g| g.end == slot)
    }

    /// The first slot that is not behind an unbroken sequence of whole and marked records from slot 1 on.
    fn gap(&self) -> u32 {
        let mut at = 1;
        for group in &self.groups {
            for (i, (slot, _, mark)) in group.records.iter().enumerate() {
                if *slot != at || *mark != Some(true) {
                    return at;
                }
                at = group.records.get(i + 1).map_or(group.end, |next| next.0);
            }
        }
        at
    }

    /// A transaction that overlaps an earlier one. Slots are handed out once, so it is forged.
    fn overlapping(&self) -> Option<&Group> {
        // A transaction's records lie within it (`holds`), so one with a later record ends behind the first slot of an earlier one.
        let clash =
            |later: Txn, earlier: Txn| later != earlier && later.first < earlier.first + earlier.slots;
        let mut later = self.groups.iter().enumerate();
        later.find(|(i, g)| self.groups[..*i].iter().any(|h| clash(g.txn, h.txn))).map(|(_, g)| g)
    }

    fn location(&self, slot: u32) -> Location {
        Location::of(self.id.ino, self.block).slot(slot)
    }

    /// The record that starts in a slot; `None` if the line is blank.
    fn piece(&self, pass: &mut Pass<'_>, lines: &mut [Line], slot: u32) -> Option<Piece> {
        let line = lines[slot as usize];
        if line == [0; 8] {
            return None;
        }
        if mend::was_blank(&line) {
            pass.issue(Code::RECORD_BIT, self.location(slot), "one bit in an unused line");
            pass.exact(slot_pos(self.block, slot), vec![0; 8]);
            lines[slot as usize] = [0; 8];
            return None;
        }
        let at = |s: u32| lines.get(s as usize).copied().unwrap_or([0; 8]);
        let found = parse(self.seed, self.id, slot, at);
        if let FoundRecord::Whole { record, slots, txn, mark } = found {
            let what =
                if holds(txn, slot, slots) { What::Whole { record, txn, mark } } else { What::Damaged };
            return Some(Piece { slot, slots, what });
        }
        if is_later_line(self.seed, slot, &line) {
            return Some(Piece { slot, slots: 1, what: What::Torn });
        }
        // A flipped bit never makes a word zero. Only the mark may be zero legitimately, when it is missing.
        if line[..7].iter().all(|w| *w != 0)
            && let Some((target, mended)) = mend::record(pass, self.seed, self.id, slot, lines)
        {
            pass.issue(Code::RECORD_BIT, self.location(target), "one bit of the record");
            pass.exact(slot_pos(self.block, target), mended.to_vec());
            lines[target as usize] = mended;
            return self.piece(pass, lines, slot);
        }
        // Whole words that are inconsistent are not left by a power cut, with or without marks.
        let torn = matches!(found, FoundRecord::Torn);
        let all_written = line.iter().all(|w| *w == 0 || *w & WRITTEN == WRITTEN);
        // A mark is stored when all of its transaction is durable.
        let marked = pass.image.kind == LogKind::CommitMark && line[7] == commit_mark(self.seed, slot);
        let torn = torn && all_written && !marked;
        let what = if torn { What::Torn } else { What::Damaged };
        Some(Piece { slot, slots: 1, what })
    }

    fn take(&mut self, piece: Piece) {
        match piece.what {
            What::Torn => self.torn.push(piece.slot),
            What::Damaged => self.damaged.push(piece.slot),
            What::Whole { record, txn, mark } => {
                let end = piece.slot + piece.slots;
                match self.groups.last_mut().filter(|g| g.txn == txn && g.end == piece.slot) {
                    Some(group) => {
                        group.records.push((piece.slot, record, mark));
                        group.end = end;
                    }
                    None => self.groups.push(Group { txn, records: vec![(piece.slot, record, mark)], end }),
                }
            }
        }
    }

    /// Marks follow from their positions: a wrong one is stored again. Where a mark commits its transaction,
    /// only the transaction's last record has one.
    fn mend_marks(&mut self, pass: &mut Pass<'_>) {
        let by_mark = pass.image.kind == LogKind::CommitMark;
        let clean = pass.clean();
        for group in &mut self.groups {
            let last = group.records.len() - 1;
            let complete = group.complete();
            for (i, (slot, _, found)) in group.records.iter_mut().enumerate() {
                let wanted = if by_mark && i != last { None } else { Some(true) };
                // A torn transaction has no mark. After a clean unmount there are no torn transactions.
                let cut = found.is_none() && !(clean && complete);
                if *found == wanted || cut {
                    continue;
                }
                let location = Location::of(self.id.ino, self.block).slot(*slot);
                pass.issue(Code::MARK, location, "the record is whole, its mark is not right");
                let word = if wanted.is_some() { commit_mark(self.seed, *slot) } else { 0 };
                pass.exact(slot_pos(self.block, *slot).plus(56), vec![word]);
                *found = wanted;
            }
        }
    }
}

fn holds(txn: Txn, slot: u32, slots: u32) -> bool {
    let end = txn.first + txn.slots;
    (1..=slot).contains(&txn.first) && slot + slots <= end && end <= SLOTS + 1
}

/// No file lives long enough to reach it: after a record of this version, later changes would run out of
/// versions.
const VERSION_MAX: Version = Version(Version::LIMIT / 2);

/// The version that orders a record among those of its pages or name.
fn version_of(record: &Record) -> Version {
    match *record {
        Record::Write { version, .. }
        | Record::Punch { version, .. }
        | Record::Remap { version, .. }
        | Record::Name { version, .. } => version,
        Record::Attributes(_) | Record::Xattrs { .. } => Version(0),
    }
}

/// Decides which transactions count: they go to the log, the others are reported. `end`: from this slot on
/// nothing counts.
pub fn judge(pass: &mut Pass<'_>, page: PageAt, end: u32, log: &mut Log) {
    let by_mark = pass.image.kind == LogKind::CommitMark;
    let mut lost = false;
    for slot in &page.damaged {
        pass.issue(Code::RECORD, page.location(*slot), "checksum or sense of the record is wrong");
        lost = true;
    }
    let counts = |g: &Group| {
        let marked =
            if by_mark { g.last_mark() == Some(true) } else { g.records.iter().all(|r| r.2 == Some(true)) };
        g.complete() && marked && g.end <= end
    };
    let counted_end = page.groups.iter().filter(|g| counts(g)).map(|g| g.end).max().unwrap_or(1);
    // Slots of torn transactions: behind all that counts, or anywhere if slots are filled in any order.
    let mut rests: Vec<u32> = page.torn.clone();
    rests.extend(page.groups.iter().filter(|g| !counts(g)).map(|g| g.txn.first));
    rests.sort_unstable();
    if by_mark {
        for group in page.groups.iter().filter(|g| !g.complete() && g.last_mark().is_some()) {
            pass.issue(Code::RECORD, page.location(group.txn.first), "a marked change is not whole");
            lost = true;
        }
    } else {
        rests.retain(|slot| *slot >= counted_end);
        lost |= misordered(pass, &page, &counts, end, rests.iter().any(|slot| *slot < end));
    }
    if let Some(slot) = rests.first().filter(|_| !lost) {
        let code = if pass.clean() { Code::RECORD_TORN_CLEAN } else { Code::RECORD_TORN };
        pass.issue(code, page.location(*slot), "part of a change");
        lost = pass.clean();
    }
    log.damaged |= lost;
    let (block, id) = (page.block, page.id);
    for (slot, record, _) in page.groups.into_iter().filter(counts).flat_map(|group| group.records) {
        if version_of(&record) < VERSION_MAX {
            log.records.push(Entry { block, slot, record });
        } else {
            let location = Location::of(id.ino, block).slot(slot);
            pass.issue(Code::VERSION_RANGE, location, format!("version {}", version_of(&record).0));
            log.damaged = true;
        }
    }
}

/// Issues with the order of transactions in a page whose slots are filled in order. `rest`: a partial
/// transaction stands before `end`.
fn misordered(
    pass: &mut Pass<'_>,
    page: &PageAt,
    counts: &impl Fn(&Group) -> bool,
    end: u32,
    rest: bool,
) -> bool {
    let mut lost = false;
    let mut at = 1;
    for group in page.groups.iter().filter(|g| counts(g)) {
        let known = page.damaged.iter().any(|slot| (at..group.txn.first).contains(slot));
        if group.txn.first != at && !known {
            let what = format!("slots {at} to {} hold no whole record", group.txn.first - 1);
            pass.issue(Code::RECORD_GONE, page.location(at), what);
            lost = true;
        }
        at = group.end;
    }
    let gap = page.gap();
    let of_later = |g: &&Group| g.txn.first > gap && g.records.iter().any(|r| r.2 == Some(true));
    if let Some(group) = page.groups.iter().filter(|g| !counts(g)).find(of_later) {
        let what = format!("a later change follows slot {gap}, which holds no whole record");
        pass.issue(Code::RECORD_GONE, page.location(group.txn.first), what);
        lost = true;
    }
    // Records behind a tail never counted, and are overwritten.
    let overlapping = if pass.image.kind == LogKind::Tail { None } else { page.overlapping() };
    if let Some(group) = overlapping {
        pass.issue(Code::RECORD, page.location(group.txn.first), "two changes claim the same slots");
        lost = true;
    }
    // All records before the tail are whole. Only the end of a page may be unused, but not in the last page.
    let short = pass.image.kind == LogKind::Tail && at < end && (end <= SLOTS || rest);
    if short && !page.damaged.iter().any(|slot| *slot >= at) {
        let what = format!("slots {at} to {} lie before the tail and hold no whole record", end - 1);
        pass.issue(Code::RECORD_GONE, page.location(at), what);
        lost = true;
    }
    lost
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
