//! How a transaction of the papers' variants becomes valid, by the kind of log.
//!
//! | log | steps | what decides at recovery |
//! |-----|-------|--------------------------|
//! | tail pointer (`nova`) | records, fence, tail, fence | the tail: records before it count |
//! | commit marks (`nova-*`) | reserve and fill slots under the log lock; fence; mark under the tail lock; fence | the mark of the last record |
//!
//! With commit marks a writer releases the locks before the fences, so it waits for its own lines alone.
//! Recovery skips slots whose lines never arrived. No other caller relies on a record before its writer has
//! fenced the mark and updated the index. Only the two fences of a new page, before and after its link, stay
//! under the log lock: the next writer's records lie in that page and are reached through the link.

use crate::alloc::Purpose;
use crate::format::record::Record;
use crate::log::chain::{self, Appended, Chain};
use crate::planted::{Bug, fence_unless, planted};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::operation::Durable;
use crate::state::papers::paper_locks;
use crate::steps::{Step, step};
use crate::variant::LogKind;
use heddle_vfs::Result;

/// Makes room, appends a transaction and makes it durable. Returns also whether it began a page.
pub fn commit(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
    purpose: Purpose,
) -> Result<(Durable, bool)> {
    match core.variant.log() {
        LogKind::Tail => commit_by_tail(core, guard, inode, records, purpose),
        _ => commit_by_mark(core, guard, inode, records, purpose),
    }
}

/// NOVA's commit. The caller holds the inode's lock throughout.
fn commit_by_tail(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
    purpose: Purpose,
) -> Result<(Durable, bool)> {
    step(Step::Logging);
    let (chain, at) = log(core, guard, inode, records, purpose, true)?;
    // PERSIST: records before the tail that makes them count.
    fence_unless(Bug::TailBeforeEntryFence, &core.region);
    step(Step::Tail);
    chain::set_tail_unfenced(core, inode, chain);
    // PERSIST: the tail decides: the operation is durable from here on.
    let durable = Durable::fenced(&core.region, || fence_unless(Bug::TailFenceMissing, &core.region))?;
    Ok((durable, at.began_page))
}

/// The SRL paper's section IV-D: slots are handed out under the log lock, each record is marked by itself.
fn commit_by_mark(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
    purpose: Purpose,
) -> Result<(Durable, bool)> {
    #[cfg(feature = "planted")]
    if planted(Bug::TailOverAHole) {
        return commit_over_a_hole(core, guard, inode, records, purpose).map(|durable| (durable, false));
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
    Ok((durable, at.began_page))
}

/// The bug that commit marks prevent (pNOVA, Fig. 3). Slots are handed out under the log lock and filled
/// outside it, and the tail moves past all slots that were handed out.
#[cfg(feature = "planted")]
fn commit_over_a_hole(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
    purpose: Purpose,
) -> Result<Durable> {
    let locks = paper_locks(core, inode);
    let (chain, place) = {
        let _log = locks.map(|l| l.log.lock());
        let chain = chain::only(core, guard.own, inode)?;
        let slots = records.iter().map(Record::slots_max).sum();
        if chain::make_room(core, guard.own, guard.id, inode, chain, slots, purpose)? {
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
