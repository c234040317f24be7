//! Reads all records of an inode that count, chain by chain.

use crate::format::inode::{HEAD_BLOCK_WORD, HEADS_IN_BLOCK, HEADS_INLINE, TAIL_WORD};
use crate::format::page::{SLOTS, slot_pos};
use crate::format::pointer::{self, PointerLocation, Target};
use crate::format::record::Record;
use crate::ids::{BlockNo, Extent, InodeId};
use crate::log::chain::{self, Chain, Tail};
use crate::log::scan::{Damage, PageScan};
use crate::planted::{Bug, planted};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lane::LaneLocal;
use crate::upkeep::recovery::deferred_zeros::DeferredZeros;
use crate::upkeep::recovery::{pointer_line, scan};
use crate::variant::LogKind;
use heddle_pmem::LINE_BYTES;
use heddle_vfs::{Error, Result};

/// The result of reading one chain.
struct Found {
    head: BlockNo,
    tail: Tail,
    pages: u64,
    era: u64,
}

fn corrupt(damage: Damage) -> Error {
    Error::Corrupt(damage.0)
}

/// Reads every chain of an inode: calls `each` with its records, claims the blocks of its log, and makes the
/// volatile chains. Slots that do not count are added to `later`.
pub fn read(
    core: &Core,
    own: &mut LaneLocal,
    inode: InodeRef<'_>,
    later: &DeferredZeros,
    each: &mut dyn FnMut(&Record) -> Result<()>,
) -> Result<()> {
    let id = inode.id();
    let line = pointer_line(core, inode.ino);
    let head_block =
        match pointer::decode(core.seed, id, PointerLocation::HeadBlock, line[HEAD_BLOCK_WORD as usize]) {
            Target::None => None,
            Target::At(block) => Some(claim(core, id, block)?),
            Target::Bad => return Err(bad(id, "the pointer to the block of heads")),
        };
    if let Some(block) = head_block {
        chain::adopt_head_block(core, own, inode, block)?;
    }
    let further = head_block.filter(|_| !planted(Bug::OnlyInlineChainsRead)).map_or(0, |_| HEADS_IN_BLOCK);
    let mut blank = true;
    for number in 0..HEADS_INLINE + further {
        let raw = match (number.checked_sub(HEADS_INLINE), head_block) {
            (Some(n), Some(block)) => core.region.load_u64(block.pos().plus(u64::from(n) * 8)),
            _ => line[number as usize],
        };
        let head = match pointer::decode(core.seed, id, PointerLocation::Head(number), raw) {
            Target::None => continue,
            Target::At(head) => head,
            Target::Bad => return Err(bad(id, &format!("the pointer to chain {number}"))),
        };
        let found = read_one(core, id, (number, head), line[TAIL_WORD as usize], later, each)?;
        chain::adopt(
            core,
            own,
            inode,
            Chain::recovered(number, found.head, found.tail),
            (found.pages, found.era),
        )?;
        blank = false;
    }
    // A head is durable before the tail that points into its chain.
    if blank && scan(core).kind == LogKind::Tail && line[TAIL_WORD as usize] != 0 {
        return Err(bad(id, "the tail pointer (its log has no head)"));
    }
    Ok(())
}

fn bad(id: InodeId, what: &str) -> Error {
    Error::Corrupt(format!("inode {}: {what} is wrong", id.ino.0))
}

fn claim(core: &Core, id: InodeId, block: BlockNo) -> Result<BlockNo> {
    if !core.layout.holds(block, 1) {
        return Err(bad(id, &format!("block {} of its log lies outside the data area: a pointer", block.0)));
    }
    if !core.free_map().claim(Extent { block, count: 1 }) {
        return Err(bad(
            id,
            &format!("block {} of its log belongs to another structure too: a pointer", block.0),
        ));
    }
    Ok(block)
}

fn read_one(
    core: &Core,
    id: InodeId,
    (number, head): (u32, BlockNo),
    tail_word: u64,
    later: &DeferredZeros,
    each: &mut dyn FnMut(&Record) -> Result<()>,
) -> Result<Found> {
    let scan = scan(core);
    let mut tail = match (scan.kind, pointer::decode_tail(core.seed, id, tail_word)) {
        (LogKind::Tail, Target::At(tail)) => Some(tail),
        (LogKind::Tail, Target::Bad) => return Err(bad(id, "the tail pointer")),
        _ => None,
    };
    // A tail log without a tail holds no record that counts; other logs have no tail.
    let mut ends = scan.kind != LogKind::Tail || tail.is_some();
    let mut found = Found { head, tail: Tail::NONE, pages: 0, era: 0 };
    let mut next = Some(head);
    while let Some(page) = next {
        claim(core, id, page)?;
        let header = scan.header(id, number, page).map_err(corrupt)?;
        let (end, tail_here) = match tail {
            _ if !ends => (1, false),
            Some((block, slot)) if block == page => {
                (tail, ends) = (None, false);
                (slot, true)
            }
            _ => (SLOTS + 1, false),
        };
        let records = scan.page(id, &header, page, end).map_err(corrupt)?;
        // A tail is stored behind a record. If that slot is blank, the record was lost.
        if tail_here && records.next_slot(id) != end {
            return Err(bad(id, "the record before the tail (it is not there)"));
        }
        for (_, record) in &records.records {
            each(record)?;
        }
        drop_slots(core, page, end, &records, later);
        found.tail = Tail { page, slot: records.next_slot(id), seed: header.record_seed(core.seed) };
        (found.pages, found.era) = (found.pages + 1, found.era.max(header.era));
        next = scan.next(id, page).map_err(corrupt)?.filter(|_| !planted(Bug::OnlyFirstPageRead));
    }
    if tail.is_some() {
        return Err(bad(id, "the tail pointer (it leads out of the log)"));
    }
    Ok(found)
}

/// Schedules slots that do not count for zeroing, so that they can never count again (docs/protocol.md D4b).
fn drop_slots(core: &Core, page: BlockNo, end: u32, scan: &PageScan, later: &DeferredZeros) {
    let used = |slot: &u32| core.region.line(slot_pos(page, *slot)).iter().any(|w| *w != 0);
    let behind = (end..=SLOTS).filter(|_| !planted(Bug::BeyondTailStays));
    for slot in scan.dropped.iter().copied().chain(behind.filter(used)) {
        later.zero(slot_pos(page, slot), LINE_BYTES as u64);
    }
}
