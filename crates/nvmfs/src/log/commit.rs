//! How a transaction becomes valid, by the kind of log.
//!
//! | log | steps | what decides at recovery |
//! |-----|-------|--------------------------|
//! | tail pointer (`nova`) | records, fence, tail, fence | the tail: records before it count |
//! | commit marks (`nova-*`) | reserve and fill slots under the log lock; fence; mark under the tail lock; fence | the mark of the last record |
//! | self-certifying (`heddle`) | records with their marks, fence | checksums and marks |
//!
//! The papers' variants need one more fence: a record's position in the log is not known to be valid without
//! it.
//!
//! With commit marks a writer releases the locks before the fences, so it waits for its own lines alone.
//! Recovery skips slots whose lines never arrived. No other caller relies on a record before its writer has
//! fenced the mark and updated the index. Only the two fences of a new page, before and after its link, stay
//! under the log lock: the next writer's records lie in that page and are reached through the link.

use crate::alloc::Purpose;
use crate::format::record::Record;
use crate::log::chain::{self, Appended, Chain};
use crate::planted::{Breach, Bug, breaks_at_times, fence_unless, planted};
use crate::state::core::Core;
use crate::state::inode::{InodeRef, PaperLocks};
use crate::state::lease::LaneGuard;
use crate::state::operation::Durable;
use crate::steps::{Step, step};
use crate::variant::LogKind;
use heddle_vfs::{Error, FileKind, Result};

/// Most slots of one transaction, since a transaction lies in one page.
pub const TXN_SLOTS_MAX: u32 = crate::format::page::SLOTS;

/// Makes room for `slots` records, so that the caller can [`commit`] next. Returns true if a fence must come
/// before that; most callers fence anyway for their data. Files of the papers' variants make room later,
/// under the log lock. `purpose` is the purpose of the operation.
pub fn prepare(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    slots: u32,
    purpose: Purpose,
) -> Result<bool> {
    let directory = matches!(inode.volatile.kind_perm(), Some((FileKind::Directory, _)));
    match core.variant.log() {
        LogKind::Tail | LogKind::CommitMark if !directory => Ok(false),
        _ => {
            let chain = chain_of(core, guard, inode)?;
            make_room(core, guard, inode, chain, slots, purpose)
        }
    }
}

/// As [`chain::make_room`]. If there is no space for a page, tries a chain with room that another lane keeps.
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
            // The last user of that chain may have prepared a page there and not yet fenced it.
            Ok(true)
        }
        made => made,
    }
}

/// The chain that this lane appends to: one of its own, or in the papers' variants the only one.
pub fn chain_of<'c>(core: &'c Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'c>) -> Result<&'c Chain> {
    if one_chain(core) { chain::only(core, guard.own, inode) } else { chain::lease(core, guard, inode) }
}

/// Returns true if every inode has one chain, as in the papers' variants. A directory's chain is used under
/// the directory's EOF latch.
pub fn one_chain(core: &Core) -> bool {
    core.variant.log() != LogKind::SelfCertifying
}

/// Appends a transaction and makes it durable. The caller has called [`prepare`], and has fenced if that
/// asked for it.
///
/// # Errors
/// No space, in the papers' variants, which make room here. Nothing has changed then. Or those of [`Durable::fenced`].
pub fn commit(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
) -> Result<Durable> {
    commit_for(core, guard, inode, records, purpose_of(records))
}

/// As [`commit`]; `purpose` is for a log page that is still to be taken.
pub fn commit_for(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
    purpose: Purpose,
) -> Result<Durable> {
    if breaks_at_times(Breach::RecordLeftOut) {
        return Durable::fenced(&core.region, || ());
    }
    match core.variant.log() {
        LogKind::SelfCertifying => {
            let mut chain = chain_of(core, guard, inode)?;
            let slots = records.iter().map(|r| r.slots_in(inode.id())).sum();
            // `prepare` made room, unless this lane has lost the chain since: a chain of another inode took
            // its place.
            if make_room(core, guard, inode, chain, slots, purpose)? {
                // PERSIST: a fresh log page is empty before it is linked.
                core.region.fence();
                chain = chain_of(core, guard, inode)?;
            }
            let at = chain::append_unfenced(core, guard.id, inode, chain, records, true);
            step(Step::Stored);
            // PERSIST: the operation is durable from here on.
            let durable =
                Durable::fenced(&core.region, || fence_unless(Bug::CommitFenceMissing, &core.region))?;
            note_began_page(guard, inode, &at);
            Ok(durable)
        }
        LogKind::Tail => commit_by_tail(core, guard, inode, records, purpose),
        LogKind::CommitMark => commit_by_mark(core, guard, inode, records, purpose),
    }
}

/// Purpose of a log page that [`prepare`] has not taken.
fn purpose_of(records: &[Record]) -> Purpose {
    let frees = |record: &Record| {
        matches!(record, Record::Punch { .. } | Record::Remap { .. } | Record::Name { removed: true, .. })
    };
    if records.iter().any(frees) { Purpose::Free } else { Purpose::Replace }
}

/// Notes that a page was begun. The cleaning runs when the call holds nothing more.
fn note_began_page(guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, at: &Appended) {
    if at.began_page {
        guard.scratch.to_clean.push(inode.id());
    }
}

/// NOVA's commit. The caller holds the inode's lock throughout.
fn commit_by_tail(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
    purpose: Purpose,
) -> Result<Durable> {
    step(Step::Logging);
    let (chain, at) = log(core, guard, inode, records, purpose, true)?;
    // PERSIST: records before the tail that makes them count.
    fence_unless(Bug::TailBeforeEntryFence, &core.region);
    step(Step::Tail);
    chain::set_tail_unfenced(core, inode, chain);
    // PERSIST: the tail decides: the operation is durable from here on.
    let durable = Durable::fenced(&core.region, || fence_unless(Bug::TailFenceMissing, &core.region))?;
    note_began_page(guard, inode, &at);
    Ok(durable)
}

/// The SRL paper's section IV-D: slots are handed out under the log lock, each record is marked by itself.
fn commit_by_mark(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
    purpose: Purpose,
) -> Result<Durable> {
    #[cfg(feature = "planted")]
    if planted(Bug::TailOverAHole) {
        return commit_over_a_hole(core, guard, inode, records);
    }
    let locks = paper_locks(core, inode);
    let at = {
        let _log = locks.map(|l| l.log.lock());
        step(Step::Logging);
        let at = log(core, guard, inode, records, purpose, false)?.1;
        if at.began_page {
            // PERSIST: the link before any record after it, of any writer.
            fence_unless(Bug::LinkFencedLate, &core.region);
        }
        at
    };
    #[cfg(feature = "planted")]
    step(Step::Unfenced);
    if !at.began_page || planted(Bug::LinkFencedLate) {
        if let Some(l) = locks {
            l.tail.prefetch();
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
        l.index.prefetch();
        l.time.prefetch();
    }
    // PERSIST: the mark decides: the operation is durable from here on, before the index tells of it.
    let durable = Durable::fenced(&core.region, || fence_unless(Bug::MarkFenceMissing, &core.region))?;
    note_began_page(guard, inode, &at);
    Ok(durable)
}

/// The bug that commit marks prevent (pNOVA, Fig. 3). Slots are handed out under the log lock and filled
/// outside it, and the tail moves past all slots that were handed out.
#[cfg(feature = "planted")]
fn commit_over_a_hole(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
) -> Result<Durable> {
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
    // PERSIST: this writer's records, and not those of other writers: part of a planted bug.
    core.region.fence();
    let _tail = locks.map(|l| l.tail.lock());
    step(Step::Tail);
    chain::set_tail_unfenced(core, inode, chain);
    // PERSIST: the tail decides: part of a planted bug.
    Durable::fenced(&core.region, || core.region.fence())
}

/// Reserves slots and fills them, without a fence.
fn log<'c>(
    core: &'c Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'c>,
    records: &[Record],
    purpose: Purpose,
    with_commit_mark: bool,
) -> Result<(&'c Chain, Appended)> {
    let chain = chain::only(core, guard.own, inode)?;
    let slots = records.iter().map(Record::slots_max).sum();
    if chain::make_room(core, guard.own, guard.id, inode, chain, slots, purpose)? {
        // PERSIST: a page is empty and has its header before it is linked (log expansion, as NOVA).
        core.region.fence();
    }
    Ok((chain, chain::append_unfenced(core, guard.id, inode, chain, records, with_commit_mark)))
}

/// The spinlocks of a file's write steps. A directory has none: one caller at a time changes it.
pub fn paper_locks<'c>(core: &'c Core, inode: InodeRef<'c>) -> Option<&'c PaperLocks> {
    let file = matches!(inode.volatile.kind_perm(), Some((kind, _)) if kind != FileKind::Directory);
    // ORDERING: Acquire, pairs with the Release where they are made.
    let at = inode.volatile.aux.load(std::sync::atomic::Ordering::Acquire);
    (file && at != 0).then(|| core.arena.get(heddle_arena::Ptr::from_raw(at)))
}

/// As [`paper_locks`]; `None` where the file's lock covers all steps.
pub fn step_locks<'c>(core: &'c Core, inode: InodeRef<'c>) -> Option<&'c PaperLocks> {
    if core.variant.locks_whole_file() { None } else { paper_locks(core, inode) }
}

/// Refuses a transaction that does not fit, before anything is written. That is a mistake of the calling
/// code, not of the user.
pub fn fits(records: &[Record]) -> Result<()> {
    let slots: u32 = records.iter().map(Record::slots_max).sum();
    if slots <= TXN_SLOTS_MAX {
        Ok(())
    } else {
        Err(Error::InvalidArgument("too many records in one transaction"))
    }
}
