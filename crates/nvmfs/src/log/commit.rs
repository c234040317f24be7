//! How a transaction becomes valid, by the kind of log.
//!
//! | log | steps | what decides at recovery |
//! |-----|-------|--------------------------|
//! | tail pointer (`nova`) | records, fence, tail, fence | what lies before the tail |
//! | commit marks (`nova-*`) | reserve and fill slots under the log lock; fence; mark under the tail lock; fence | the mark of the last record |
//! | self-certifying (`heddle`) | records with their marks, fence | checksums and marks |
//!
//! The papers' variants spend one fence more: their place in the log is not known to be valid without it.
//!
//! With commit marks the locks are let go before the fences: a writer waits for its own lines alone. Recovery passes over slots that
//! never arrived, and nobody leans on a record before its writer has fenced the mark and told the index. Only the fences of a new
//! page stay under the log lock, before its link and behind it: the next writer's records, in that page, are reached through it.

use crate::alloc::Purpose;
use crate::format::record::Record;
use crate::log::chain::{self, Appended, Chain};
use crate::planted::{Breach, Bug, breaks_at_times, fence_unless, planted};
use crate::state::core::Core;
use crate::state::inode::{InodeRef, PaperLocks};
use crate::state::lease::LaneGuard;
use crate::steps::{Step, step};
use crate::variant::LogKind;
use heddle_vfs::{Error, FileKind, Result};

/// Slots of a transaction at most: it lies in one page.
pub const TXN_SLOTS_MAX: u32 = crate::format::page::SLOTS;

/// Makes room for `slots` and leaves the caller ready to [`commit`]. True: a fence is due before that; most callers fence for
/// their data anyway. For files of the papers' variants room is made under the log lock, later. `purpose` is the operation's.
pub fn prepare(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    slots: u32,
    purpose: Purpose,
) -> Result<bool> {
    let directory = matches!(inode.vi.kind_perm(), Some((FileKind::Directory, _)));
    match core.variant.log() {
        LogKind::Tail | LogKind::CommitMark if !directory => Ok(false),
        _ => {
            let chain = chain_of(core, guard, inode)?;
            make_room(core, guard, inode, chain, slots, purpose)
        }
    }
}

/// As [`chain::make_room`]; where there is no space for a page, a chain that somebody else keeps may have room.
fn make_room(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    chain: &Chain,
    slots: u32,
    purpose: Purpose,
) -> Result<bool> {
    match chain::make_room(core, guard.own, guard.id, inode, chain, slots, purpose) {
        Err(Error::NoSpace) if !one_chain(core) && chain::has_room_elsewhere(core, guard, inode, slots) => {
            // A page that was prepared there may be as its last user left it, before a fence.
            Ok(true)
        }
        made => made,
    }
}

/// The chain that this lane appends to: one of its own, or in the papers' variants the only one.
pub fn chain_of<'c>(core: &'c Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'c>) -> Result<&'c Chain> {
    if one_chain(core) { chain::only(core, guard.own, inode) } else { chain::lease(core, guard, inode) }
}

/// Has every inode one chain, as the papers' variants have it? Of a directory it is used under the directory's latch.
pub fn one_chain(core: &Core) -> bool {
    core.variant.log() != LogKind::SelfCertifying
}

/// Appends a transaction and makes it durable. [`prepare`] came before, and a fence if it asked for one.
///
/// # Errors
/// In the papers' variants, whose room is made here: no space. Nothing has happened then.
pub fn commit(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, records: &[Record]) -> Result<()> {
    commit_for(core, guard, inode, records, purpose_of(records))
}

/// As [`commit`], where the caller knows what a log page is for that is still missing.
pub fn commit_for(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
    purpose: Purpose,
) -> Result<()> {
    if breaks_at_times(Breach::RecordLeftOut) {
        return Ok(());
    }
    match core.variant.log() {
        LogKind::SelfCertifying => {
            let mut chain = chain_of(core, guard, inode)?;
            let slots = records.iter().map(|r| r.slots_in(inode.id())).sum();
            // `prepare` made room, unless this lane has lost the chain since, to another inode's in the same place.
            if make_room(core, guard, inode, chain, slots, purpose)? {
                // PERSIST: a fresh log page is empty before it is linked.
                core.region.fence();
                chain = chain_of(core, guard, inode)?;
            }
            let at = chain::append_unfenced(core, guard.id, inode, chain, records, true);
            step(Step::Stored);
            // PERSIST: the operation is durable from here on.
            fence_unless(Bug::CommitFenceMissing, &core.region);
            note_closed(guard, inode, &at);
            Ok(())
        }
        LogKind::Tail => commit_by_tail(core, guard, inode, records, purpose),
        LogKind::CommitMark => commit_by_mark(core, guard, inode, records, purpose),
    }
}

/// What a log page is for that [`prepare`] has not made.
fn purpose_of(records: &[Record]) -> Purpose {
    let frees = |record: &Record| {
        matches!(record, Record::Punch { .. } | Record::Remap { .. } | Record::Name { removed: true, .. })
    };
    if records.iter().any(frees) { Purpose::Free } else { Purpose::Replace }
}

/// Who cleans does so when the call holds nothing.
fn note_closed(guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, at: &Appended) {
    if at.closed_page {
        guard.scratch.closed.push(inode.id());
    }
}

/// NOVA: the caller holds the inode's lock over all of it.
fn commit_by_tail(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
    purpose: Purpose,
) -> Result<()> {
    step(Step::Logging);
    let (chain, at) = log(core, guard, inode, records, purpose, true)?;
    // PERSIST: records before the tail that makes them count.
    fence_unless(Bug::TailBeforeEntryFence, &core.region);
    step(Step::Tail);
    chain::set_tail_unfenced(core, inode, chain);
    // PERSIST: the tail decides: the operation is durable from here on.
    fence_unless(Bug::TailFenceMissing, &core.region);
    note_closed(guard, inode, &at);
    Ok(())
}

/// The SRL paper's section IV-D: places are given out under the log lock, each record is marked on its own.
fn commit_by_mark(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
    purpose: Purpose,
) -> Result<()> {
    #[cfg(feature = "planted")]
    if planted(Bug::TailOverAHole) {
        return commit_over_a_hole(core, guard, inode, records);
    }
    let locks = paper_locks(core, inode);
    let at = {
        let _log = locks.map(|l| l.log.lock());
        step(Step::Logging);
        let at = log(core, guard, inode, records, purpose, false)?.1;
        if at.closed_page {
            // PERSIST: the link before any record behind it, of any writer.
            fence_unless(Bug::LinkFencedLate, &core.region);
        }
        at
    };
    #[cfg(feature = "planted")]
    step(Step::Unfenced);
    if !at.closed_page || planted(Bug::LinkFencedLate) {
        if let Some(l) = locks {
            l.tail.ask_for();
        }
        // PERSIST: records before the mark that makes them count.
        fence_unless(Bug::MarkBeforeEntryFence, &core.region);
    }
    #[cfg(feature = "planted")]
    step(Step::Logged);
    {
        let _tail = locks.map(|l| l.tail.lock());
        step(Step::Tail);
        chain::set_mark_unfenced(core, &at);
    }
    #[cfg(feature = "planted")]
    step(Step::Marked);
    if let Some(l) = locks {
        l.index.ask_for();
        l.time.ask_for();
    }
    // PERSIST: the mark decides: the operation is durable from here on, before the index tells of it.
    fence_unless(Bug::MarkFenceMissing, &core.region);
    note_closed(guard, inode, &at);
    Ok(())
}

/// The bug that commit marks are the answer to (pNOVA, Fig. 3): slots are given out under the log lock and filled outside it, and the
/// tail moves over all that was given out.
#[cfg(feature = "planted")]
fn commit_over_a_hole(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
) -> Result<()> {
    let locks = paper_locks(core, inode);
    let (chain, place) = {
        let _log = locks.map(|l| l.log.lock());
        let chain = chain::only(core, guard.own, inode)?;
        if chain::make_room(
            core,
            guard.own,
            guard.id,
            inode,
            chain,
            records.iter().map(Record::slots_max).sum(),
            purpose_of(records),
        )? {
            // PERSIST: a page is empty and has its header before it is linked: part of a planted bug.
            core.region.fence();
        }
        let slots = records.iter().map(|r| r.slots_in(inode.id())).sum();
        let place = chain::reserve(core, inode, chain, slots);
        chain::advance(chain, &place);
        (chain, place)
    };
    step(Step::Logging);
    chain::fill_unfenced(core, guard.id, inode, &place, records, true);
    // PERSIST: this writer's records, and nobody else's: part of a planted bug.
    core.region.fence();
    let _tail = locks.map(|l| l.tail.lock());
    step(Step::Tail);
    chain::set_tail_unfenced(core, inode, chain);
    // PERSIST: the tail decides: part of a planted bug.
    core.region.fence();
    Ok(())
}

/// Reserves slots and fills them; not fenced.
fn log<'c>(
    core: &'c Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'c>,
    records: &[Record],
    purpose: Purpose,
    marked: bool,
) -> Result<(&'c Chain, Appended)> {
    let chain = chain::only(core, guard.own, inode)?;
    let slots = records.iter().map(Record::slots_max).sum();
    if chain::make_room(core, guard.own, guard.id, inode, chain, slots, purpose)? {
        // PERSIST: a page is empty and has its header before it is linked (log expansion, as NOVA).
        core.region.fence();
    }
    Ok((chain, chain::append_unfenced(core, guard.id, inode, chain, records, marked)))
}

/// The spinlocks of a file's write steps; directories, which one caller changes at a time, have none.
pub fn paper_locks<'c>(core: &'c Core, inode: InodeRef<'c>) -> Option<&'c PaperLocks> {
    let file = matches!(inode.vi.kind_perm(), Some((kind, _)) if kind != FileKind::Directory);
    // ORDERING: Acquire, pairs with the Release where they are made.
    let at = inode.vi.aux.load(std::sync::atomic::Ordering::Acquire);
    (file && at != 0).then(|| core.arena.get(heddle_arena::Ptr::from_raw(at)))
}

/// A transaction that does not fit is the caller's mistake, not the user's; it is refused before anything is written.
pub fn fits(records: &[Record]) -> Result<()> {
    let slots: u32 = records.iter().map(Record::slots_max).sum();
    if slots <= TXN_SLOTS_MAX {
        Ok(())
    } else {
        Err(Error::InvalidArgument("too many records in one transaction"))
    }
}
