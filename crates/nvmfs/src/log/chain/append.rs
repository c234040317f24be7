//! Operations of a chain's owner: make room, append, unlink. Invariants and crash order are those of
//! [`super`].

use super::{Chain, chains_of, head_pos, pointer_word_pos, use_held, ways_of};
use crate::alloc::{Purpose, take_block};
use crate::format::inode::TAIL_WORD;
use crate::format::page::{PageHeader, SLOTS, next_pos, slot_pos};
use crate::format::pointer::{self, PointerLocation};
use crate::format::record::{Blocks, PlainWrite, Record, Txn, commit_mark, encode_plain_write};
use crate::format::word::Line;
use crate::ids::{BlockNo, InodeId};
use crate::planted::{Bug, Met, flushed_unless, met, planted};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lane::{Lane, LaneLocal};
use heddle_arena::{Ptr, watch};
use heddle_pmem::BLOCK_BYTES;
use heddle_vfs::{Error, Result};
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

/// Returns the next slot of the chain that the lane keeps for this inode, if one more line fits. The chain
/// becomes busy.
pub fn next_slot<'c>(
    core: &'c Core,
    own: &mut LaneLocal,
    lane: u16,
    inode: InodeRef<'_>,
) -> Option<NextSlot<'c>> {
    let generation = inode.volatile.generation();
    let is_its =
        |way: &usize| own.chains[*way].ino == inode.ino.0 && own.chains[*way].generation == generation;
    let way = ways_of(inode.ino).into_iter().find(is_its)?;
    let chain: &Chain = core.arena.get(Ptr::from_raw(own.chains[way].chain));
    if !use_held(own, lane, way, chain) {
        return None;
    }
    let (page, slot) = chain.tail();
    let (seed, spare) = (chain.seed.get(), chain.spare.get());
    let last = SLOTS + u32::from(planted(Bug::PastLastSlot));
    (page.0 != 0 && slot <= last && spare == 0).then_some(NextSlot { chain, page, slot, seed })
}

/// The slot that [`next_slot`] reserved.
pub struct NextSlot<'c> {
    chain: &'c Chain,
    page: BlockNo,
    /// The slot.
    pub slot: u32,
    /// Seed of the page's records.
    pub seed: u32,
}

impl NextSlot<'_> {
    /// Writes a transaction of one line. Durable after the caller's next fence.
    pub fn append_unfenced(self, core: &Core, lane: &Lane, inode: InodeRef<'_>, line: &Line) {
        lane.intent.logs(inode.ino.0, self.page, self.slot);
        core.region.nt_line(slot_pos(self.page, self.slot), line);
        met(Met::Write);
        self.chain.slot.set(self.slot + 1);
    }
}

/// Ensures that `slots` records fit, by preparing the next page if they do not. Returns true if the caller
/// must fence before it appends (C1).
pub fn make_room(
    core: &Core,
    own: &mut LaneLocal,
    lane: u16,
    inode: InodeRef<'_>,
    chain: &Chain,
    slots: u32,
    purpose: Purpose,
) -> Result<bool> {
    let (page, slot, spare) = (chain.page.get(), chain.slot.get(), chain.spare.get());
    if (page != 0 && slot + slots <= SLOTS + 1) || spare != 0 {
        return Ok(false);
    }
    let block = take_block(core.free_map(), &core.region, own, purpose).ok_or(Error::NoSpace)?;
    own.page_serial += 1;
    // I4: all records of the earlier page are durable and published, so this page gets a later era.
    let era = chains_of(core, own, inode)?.counts.era.fetch_add(1, SeqCst) + 1;
    let header = PageHeader {
        owner: inode.id(),
        epoch: core.epoch,
        lane,
        serial: own.page_serial,
        chain: chain.number(),
        era,
    };
    watch::report_use(core.region.base_address() + block.pos().0 as usize, BLOCK_BYTES, "log page");
    if planted(Bug::PageNotZeroed) || planted(Bug::StaleMark) {
        // All of the page but its next pointer is left uncleared: with a stale pointer every chain would fail
        // at once. PERSIST: part of a planted bug.
        core.region.store_u64(next_pos(block), 0);
    } else {
        core.region.nt_zero(block.pos(), BLOCK_BYTES as u64);
    }
    core.region.nt_line(block.pos(), &header.encode(core.seed));
    chain.spare_seed.set(header.record_seed(core.seed));
    chain.spare.set(block.0);
    Ok(!planted(Bug::PageLinkedBeforeHeader))
}

/// The position of a transaction that was appended.
#[derive(Clone, Copy, Debug)]
pub struct Appended {
    /// Log page.
    pub page: BlockNo,
    /// Slot of its last record.
    pub last: u32,
    /// Seed of the page's records.
    pub seed: u32,
    /// True if this transaction began a page, so that cleaning may have work.
    pub began_page: bool,
}

/// Writes a transaction. The caller has made room and fenced. The records are durable after the caller's next
/// fence. `with_commit_mark`: the commit marks are written too.
pub fn append_unfenced(
    core: &Core,
    lane: u16,
    inode: InodeRef<'_>,
    chain: &Chain,
    records: &[Record],
    with_commit_mark: bool,
) -> Appended {
    let slots: u32 = records.iter().map(|r| r.slots_in(inode.id())).sum();
    let place = reserve(core, inode, chain, slots);
    let last = fill_unfenced(core, lane, inode, &place, records, with_commit_mark);
    advance(chain, &place);
    Appended { page: place.page, last, seed: place.seed, began_page: place.began_page }
}

/// Slots of a page that were given to one transaction.
pub struct Reserved {
    page: BlockNo,
    first: u32,
    slots: u32,
    seed: u32,
    began_page: bool,
}

/// Moves the append position past these slots.
pub fn advance(chain: &Chain, place: &Reserved) {
    chain.slot.set(place.first + place.slots);
}

/// Returns the next free slots, but does not take them: [`advance`] does. The caller has made room and
/// fenced.
pub fn reserve(core: &Core, inode: InodeRef<'_>, chain: &Chain, slots: u32) -> Reserved {
    let full = chain.page.get() == 0 || chain.slot.get() + slots > SLOTS + 1;
    // A page that has a successor is closed (I4), though this transaction might fit.
    let began_page = full || chain.spare.get() != 0;
    if began_page {
        link_spare(core, inode, chain);
    }
    let (page, first, seed) = (BlockNo(chain.page.get()), chain.slot.get(), chain.seed.get());
    Reserved { page, first, slots, seed, began_page }
}

/// Writes a transaction to its slots. Returns the slot of its last record.
pub fn fill_unfenced(
    core: &Core,
    lane: u16,
    inode: InodeRef<'_>,
    place: &Reserved,
    records: &[Record],
    with_commit_mark: bool,
) -> u32 {
    assert!(!records.is_empty(), "an empty transaction would get a commit mark all the same");
    let home = inode.id();
    if cfg!(feature = "planted") {
        met_records(home, records);
    }
    if place.began_page {
        met(Met::PageClosed);
    }
    let &Reserved { page, first, slots, seed, .. } = place;
    core.lane(lane).intent.logs(inode.ino.0, page, first);
    let (mut slot, mut last) = (first, first);
    let mut put = |line: &Line| {
        // A line whose mark follows later stays in the CPU cache until then.
        match with_commit_mark {
            true => core.region.nt_line(slot_pos(page, slot), line),
            false => {
                flushed_unless(Bug::RecordNotFlushed, || core.region.store_line(slot_pos(page, slot), line))
            }
        }
        slot += 1;
    };
    if let [
        Record::Write {
            page,
            pages,
            blocks: Blocks::At(block),
            end_in_last_page,
            version,
            mtime,
            change_count,
        },
    ] = *records
    {
        let write = PlainWrite { page, pages, end_in_last_page, version, change_count };
        let mut line = encode_plain_write(seed, first, lane, &write, block, mtime);
        line[7] = if with_commit_mark { line[7] } else { 0 };
        put(&line);
    } else {
        let mut at = first;
        for record in records {
            last = at;
            let mut draft = record.draft(home, lane);
            let lines = draft.seal(seed, at, Txn { first, slots }, with_commit_mark);
            lines.iter().for_each(&mut put);
            at += lines.len() as u32;
        }
    }
    debug_assert_eq!(slot, first + slots);
    last
}

/// Stores the mark of a transaction's last record.
pub fn set_mark_unfenced(core: &Core, at: &Appended) {
    let place = slot_pos(at.page, at.last).plus(56);
    flushed_unless(Bug::MarkNotFlushed, || core.region.store_u64(place, commit_mark(at.seed, at.last)));
}

/// Stores the tail pointer behind a transaction.
pub fn set_tail_unfenced(core: &Core, inode: InodeRef<'_>, chain: &Chain) {
    let (page, slot) = chain.tail();
    let tail = pointer::encode_tail(core.seed, inode.id(), page, slot);
    let place = pointer_word_pos(core, inode, TAIL_WORD);
    flushed_unless(Bug::TailNotFlushed, || core.region.store_u64(place, tail));
}

fn link_spare(core: &Core, inode: InodeRef<'_>, chain: &Chain) {
    let (page, spare) = (BlockNo(chain.page.get()), BlockNo(chain.spare.get()));
    assert_ne!(spare.0, 0, "a record was appended without room");
    if page.0 == 0 {
        // ORDERING: Acquire. The table exists, since the chain is in it.
        let chains = core.arena.get(inode.volatile.chains.load(Acquire));
        let place = PointerLocation::Head(chain.number());
        let at = head_pos(core, inode, chains, chain.number());
        let head = pointer::encode(core.seed, inode.id(), place, spare);
        flushed_unless(Bug::HeadNotFlushed, || core.region.store_u64(at, head));
        chain.head.set(spare.0);
        chain.advance_oldest();
    } else {
        let next = pointer::encode(core.seed, inode.id(), PointerLocation::Next(page), spare);
        core.region.store_u64(next_pos(page), next);
    }
    chain.page.set(spare.0);
    chain.seed.set(chain.spare_seed.get());
    chain.slot.set(1);
    chain.spare.set(0);
    // The chain may have had this block before, and have ended in the same slot. ORDERING: Relaxed, I1.
    chain.quiet_at.set(0);
    count_pages(core, inode, 1);
}

fn count_pages(core: &Core, inode: InodeRef<'_>, change: i64) {
    if let Some(counts) = super::counts(core, inode) {
        counts.pages.fetch_add(change as u64, Relaxed); // ORDERING: Relaxed, other lanes read it as an estimate.
    }
}

/// The page after this one.
pub fn next_page(core: &Core, inode: InodeRef<'_>, page: BlockNo) -> Result<Option<BlockNo>> {
    let raw = core.region.load_u64(next_pos(page));
    match pointer::decode(core.seed, inode.id(), PointerLocation::Next(page), raw) {
        pointer::Target::None => Ok(None),
        pointer::Target::At(next) if core.layout.holds(next, 1) => Ok(Some(next)),
        _ => Err(core
            .damage(format!("log page {} of inode {}: the pointer to the next page", page.0, inode.ino.0))),
    }
}

/// The pages of a chain. Each pointer is read only when the next page is asked for. A chain with more pages
/// than the image has blocks is circular, hence damaged.
pub fn pages_of<'c>(
    core: &'c Core,
    inode: InodeRef<'c>,
    chain: &Chain,
) -> impl Iterator<Item = Result<BlockNo>> + use<'c> {
    let (mut page, mut left, mut begun) = (chain.head(), core.layout.blocks_total, false);
    let mut step = move || -> Result<Option<BlockNo>> {
        if std::mem::replace(&mut begun, true)
            && let Some(before) = page
        {
            page = next_page(core, inode, before)?;
        }
        left = left
            .checked_sub(1)
            .ok_or_else(|| core.damage(format!("the log of inode {} leads in a circle", inode.ino.0)))?;
        Ok(page)
    };
    std::iter::from_fn(move || step().transpose())
}

/// Unlinks page `page` from its chain; `before` is the page that links to it, `None` means the head. The
/// block is free only after the caller's fence (C2) and `advance_oldest`. The same holds for tombstones whose
/// last older record was in the page. The page that takes records is unlinked only if it is the last one
/// left. The chain is empty then.
pub fn unlink_page_unfenced(
    core: &Core,
    inode: InodeRef<'_>,
    chain: &Chain,
    before: Option<BlockNo>,
    page: BlockNo,
) -> Result<()> {
    let next = next_page(core, inode, page)?;
    if next.is_none() && (before.is_some() || chain.tail().0 != page) {
        return Err(
            core.damage(format!("log page {} of inode {} ends its chain too early", page.0, inode.ino.0))
        );
    }
    match before {
        Some(before) => {
            let link = next.map_or(0, |next| {
                pointer::encode(core.seed, inode.id(), PointerLocation::Next(before), next)
            });
            core.region.store_u64(next_pos(before), link);
        }
        None => {
            // ORDERING: Acquire. The table exists, since the chain is in it.
            let chains = core.arena.get(inode.volatile.chains.load(Acquire));
            let place = PointerLocation::Head(chain.number());
            let link = next.map_or(0, |next| pointer::encode(core.seed, inode.id(), place, next));
            core.region.store_u64(head_pos(core, inode, chains, chain.number()), link);
            chain.head.set(next.map_or(0, |n| n.0));
        }
    }
    if next.is_none() {
        chain.page.set(0);
        chain.slot.set(SLOTS + 1);
    }
    count_pages(core, inode, -1);
    Ok(())
}

/// Counts the records of a transaction in the log of `home`.
fn met_records(home: InodeId, records: &[Record]) {
    for record in records {
        met(match record {
            Record::Write { blocks: Blocks::At(_), .. } => Met::Write,
            Record::Write { blocks: Blocks::List(_), .. } => Met::WriteByList,
            Record::Write { blocks: Blocks::Unwritten(_), .. } => Met::Unwritten,
            Record::Punch { .. } => Met::Punch,
            Record::Remap { .. } => Met::Remap,
            Record::Attributes(_) => Met::Attributes,
            Record::Xattrs { .. } => Met::Xattrs,
            Record::Name { dir, .. } if *dir != home => Met::Foreign,
            Record::Name { removed: true, .. } => Met::Removal,
            Record::Name { .. } => Met::Name,
        });
    }
}
