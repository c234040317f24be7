//! Reading a chain back: which records count, by the kind of log.
//!
//! A scan ends on any bytes, and reports damage. A power cut leaves only one thing torn: the last transaction
//! of a page. Anything else that is incomplete is damage. Damage is reported, never skipped
//! (docs/protocol.md D3).

use crate::format::layout::Layout;
use crate::format::page::{PageHeader, SLOTS, next_pos, slot_pos};
use crate::format::pointer::{self, PointerLocation, Target};
use crate::format::record::{FoundRecord, Record, Txn, commit_mark, is_later_line, parse};
use crate::format::word::Line;
use crate::ids::{BlockNo, InodeId};
use crate::planted::{Bug, planted};
use crate::region::Region;
use crate::variant::LogKind;

/// The inputs of a scan.
#[derive(Clone, Copy)]
pub struct Scan<'a> {
    /// The media.
    pub region: &'a Region,
    /// Places on it.
    pub layout: &'a Layout,
    /// Seed of its checksums.
    pub seed: u32,
    /// Kind of log.
    pub kind: LogKind,
}

/// The result of scanning a page.
#[derive(Debug, Default)]
pub struct PageScan {
    /// Records that count, with the slot each starts in.
    pub records: Vec<(u32, Record)>,
    /// Slots that a power cut left torn, or whole but without the rest of their transaction.
    pub dropped: Vec<u32>,
}

impl PageScan {
    /// The slot behind all records that count. Later slots are blank or have been dropped. `home`: the inode
    /// whose log this is.
    pub fn next_slot(&self, home: InodeId) -> u32 {
        self.records.iter().map(|(slot, record)| slot + record.slots_in(home)).max().unwrap_or(1)
    }
}

/// A description of the damage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Damage(pub String);

impl Scan<'_> {
    /// The header of a log page of this inode and chain.
    pub fn header(&self, owner: InodeId, chain: u32, page: BlockNo) -> Result<PageHeader, Damage> {
        match PageHeader::decode(self.seed, &self.region.line(page.pos())) {
            Some(h) if h.owner == owner && h.chain == chain => Ok(h),
            Some(h) => Err(Damage(format!(
                "log page {} says it belongs to chain {} of inode {}, but chain {chain} of inode {} leads to it",
                page.0, h.chain, h.owner.ino.0, owner.ino.0
            ))),
            None => Err(Damage(format!(
                "log page {} of inode {}: the header's checksum is wrong",
                page.0, owner.ino.0
            ))),
        }
    }

    /// The page that a page's next pointer leads to.
    pub fn next(&self, owner: InodeId, page: BlockNo) -> Result<Option<BlockNo>, Damage> {
        let raw = self.region.load_u64(next_pos(page));
        match pointer::decode(self.seed, owner, PointerLocation::Next(page), raw) {
            Target::None => Ok(None),
            Target::At(next) if self.layout.holds(next, 1) => Ok(Some(next)),
            _ => Err(Damage(format!(
                "log page {} of inode {}: the pointer to the next page is wrong",
                page.0, owner.ino.0
            ))),
        }
    }

    /// All records of a page that count. `end` is the first slot beyond them: in tail logs the tail, else 64.
    pub fn page(
        &self,
        owner: InodeId,
        header: &PageHeader,
        page: BlockNo,
        end: u32,
    ) -> Result<PageScan, Damage> {
        let slots = Slots { scan: self, owner, page, seed: header.record_seed(self.seed) };
        let mut scan = PageScan::default();
        match self.kind {
            LogKind::CommitMark => by_marks(&slots, &mut scan),
            LogKind::Tail => by_order(&slots, end, true, &mut scan),
            LogKind::SelfCertifying => by_order(&slots, SLOTS + 1, false, &mut scan),
        }
        .map_err(|slot| {
            Damage(format!(
                "log page {} of inode {}: the record in slot {slot} is damaged",
                page.0, owner.ino.0
            ))
        })?;
        Ok(scan)
    }
}

/// The slots of a page that is being scanned.
struct Slots<'a> {
    scan: &'a Scan<'a>,
    owner: InodeId,
    page: BlockNo,
    seed: u32,
}

impl Slots<'_> {
    fn line(&self, slot: u32) -> Line {
        self.scan.region.line(slot_pos(self.page, slot))
    }

    /// Classifies the contents of a slot.
    fn found(&self, slot: u32) -> FoundRecord {
        parse(self.seed, self.owner, slot, |s| self.line(s))
    }

    /// Returns true if the slot holds whole later lines of a record whose first line did not arrive.
    fn is_later_line(&self, slot: u32) -> bool {
        is_later_line(self.seed, slot, &self.line(slot))
    }
}

/// Accepts records in order from slot 1. The first missing record ends them. With a tail, all records before
/// it must be present, but for the unused end of a page. Without a tail, the last transaction may be torn,
/// and no record of another transaction may follow it.
fn by_order(slots: &Slots<'_>, end: u32, tail: bool, scan: &mut PageScan) -> Result<(), u32> {
    let (mut slot, mut last) = (1, None);
    while slot < end {
        match slots.found(slot) {
            FoundRecord::Whole { record, slots: n, txn, mark: Some(true) } if txn_holds(txn, slot, n) => {
                if !follows(last, txn, slot) {
                    return Err(slot);
                }
                last = Some(txn);
                scan.records.push((slot, record));
                slot += n;
            }
            FoundRecord::Blank => break,
            FoundRecord::Torn | FoundRecord::Whole { mark: None, .. } if !tail => break,
            // Later lines of a record whose first line did not arrive.
            _ if !tail && slots.is_later_line(slot) => break,
            _ => return Err(slot),
        }
    }
    let torn_from = slot;
    // Slots behind a gap belong to the torn transaction. Anything else there is damage.
    for later in slot..end.min(SLOTS + 1) {
        match slots.found(later) {
            FoundRecord::Blank => {}
            _ if tail => return Err(later),
            FoundRecord::Whole { txn, mark: Some(true), .. } if !follows(last, txn, torn_from) => {
                return Err(later);
            }
            FoundRecord::Damaged if !slots.is_later_line(later) => return Err(later),
            _ => scan.dropped.push(later),
        }
    }
    // The transaction before the gap counts as a whole or not at all.
    drop_partial(slots, torn_from, scan);
    Ok(())
}

/// Returns true if the record at this slot continues the transaction before it, or begins one where that
/// ended. If not, one of the two is forged or damaged: a slot is handed out once, and slots of a torn
/// transaction are zeroed before reuse.
fn follows(last: Option<Txn>, txn: Txn, slot: u32) -> bool {
    match last {
        Some(last) if slot < last.first + last.slots => txn == last,
        _ => txn.first == slot,
    }
}

fn txn_holds(txn: Txn, slot: u32, slots: u32) -> bool {
    txn.first >= 1
        && txn.first <= slot
        && slot + slots <= txn.first + txn.slots
        && txn.first + txn.slots <= SLOTS + 1
}

fn drop_partial(slots: &Slots<'_>, torn_from: u32, scan: &mut PageScan) {
    let Some((last, _)) = scan.records.last() else { return };
    if planted(Bug::HalfTransactionCounts) {
        return;
    }
    let FoundRecord::Whole { txn, .. } = slots.found(*last) else { return };
    if txn.first + txn.slots > torn_from {
        if !planted(Bug::TornPartStays) {
            scan.dropped.extend(txn.first..torn_from);
        }
        scan.records.retain(|(slot, _)| *slot < txn.first);
    }
}

/// Accepts records of a log with commit marks, whose slots may be filled in any order. A transaction counts
/// if its last record is marked; all of it must be whole then.
fn by_marks(slots: &Slots<'_>, scan: &mut PageScan) -> Result<(), u32> {
    let mut slot = 1;
    while slot <= SLOTS {
        match slots.found(slot) {
            FoundRecord::Blank => slot += 1,
            FoundRecord::Whole { txn, slots: n, .. } if txn.first == slot && txn_holds(txn, slot, n) => {
                slot = one_group(slots, txn, scan)?;
            }
            // A mark is stored when all of its transaction is durable, and then each line is whole. A marked
            // record without its transaction is damage.
            FoundRecord::Whole { mark: Some(_), .. } => return Err(slot),
            FoundRecord::Damaged if !slots.is_later_line(slot) => return Err(slot),
            // A transaction that was torn before its mark.
            FoundRecord::Torn if slots.line(slot)[7] == commit_mark(slots.seed, slot) => return Err(slot),
            FoundRecord::Torn | FoundRecord::Whole { .. } | FoundRecord::Damaged => {
                scan.dropped.push(slot);
                slot += 1;
            }
        }
    }
    Ok(())
}

fn one_group(slots: &Slots<'_>, txn: Txn, scan: &mut PageScan) -> Result<u32, u32> {
    let end = txn.first + txn.slots;
    let mut records = Vec::new();
    let (mut slot, mut whole, mut marked) = (txn.first, true, None);
    while slot < end {
        let step = match slots.found(slot) {
            FoundRecord::Whole { record, slots: n, txn: t, mark } if t == txn => {
                records.push((slot, record));
                marked = mark;
                n
            }
            // Another transaction begins. Slots are handed out once, so this transaction's length is forged
            // or damaged.
            FoundRecord::Whole { .. } => {
                whole = false;
                break;
            }
            FoundRecord::Damaged if !slots.is_later_line(slot) => return Err(slot),
            // As in `by_marks`: it was marked, so all of it was durable.
            FoundRecord::Torn if slots.line(slot)[7] == commit_mark(slots.seed, slot) => return Err(slot),
            _ => {
                whole = false;
                1
            }
        };
        slot += step;
    }
    match marked {
        Some(true) if whole => scan.records.extend(records),
        Some(_) => return Err(txn.first),
        None if planted(Bug::UnmarkedEntryCounts) => scan.records.extend(records),
        None if planted(Bug::StopsAtFirstGap) => return Ok(SLOTS + 1),
        None => scan.dropped.extend(txn.first..slot),
    }
    Ok(slot)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
