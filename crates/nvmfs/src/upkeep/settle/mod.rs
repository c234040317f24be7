//! The dead: what a lane has left is brought to an end, by whoever finds it.
//!
//! The media decides: a transaction that is whole counts, one that is not never happened. The argument, the order of the steps and why
//! it is
//! this one: docs/processes.md.
//!
//! Invariants  I1  the caller holds the lane's lease, so that its last holder is dead, or has let go of it.
//!             I2  nothing is taken for granted that the dead one has written: numbers are checked before they lead anywhere, and a lock
//!                 is let
//!                 go only if its own word names the lane.
//!             I3  no lock is waited for; every step may be done twice.
//! Crash order C1  durable (chains flushed, fence) before visible; visible before unlocked; blocks free last, behind the fence.

mod chains;
mod keep;
mod names;
mod records;
mod round;
#[cfg(all(test, not(loom)))]
mod tests;

use crate::file::cells::wake;
use crate::file::deferred;
use crate::format::inode::INODE_BYTES;
use crate::format::layout::{chunk_of, inode_pos};
use crate::format::record::Record;
use crate::ids::Extent;
use crate::state::core::{Core, Hooks};
use crate::state::inode::InodeRef;
use crate::state::lane::{Lane, Own, Pinning};
use crate::state::latch::Latch;
use crate::state::lease::{LaneGuard, keep_thieves_off, lanes, of_the_dead};
use crate::state::opens;
use crate::state::scratch::Scratch;
use crate::state::wait::{look, settle_if_dead, stopped};
use crate::steps::{Step, step};
use crate::upkeep::leases::{give_back, give_up};
use heddle_arena::sync::{barrier_everywhere, yield_now};
use heddle_arena::{Holder, LaneId, Lease, Ptr, Tag};
use heddle_vfs::Ino;
use keep::Kept;
use names::Changed;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

pub use round::Rounds;
/// What threads that wait for a lane, or end, need of the modules up here.
pub const HOOKS: Hooks = Hooks { settle, give_up };

/// Serial numbers that were scribbled over must still fit their fields.
const SERIAL_MASK: u64 = (1 << 60) - 1;

/// How long calls of attached processes may take to end when the file system is unmounted.
const END_MAX: Duration = Duration::from_secs(10);

/// Ends the file system for all who have attached: calls that begin from now on are refused, those under way are waited for, the dead are
/// settled. False: somebody is still inside.
pub fn end(core: &Core) -> bool {
    core.root().ended.store(1, SeqCst);
    if cfg!(shuttle) {
        // Threads of a model have ended by then, and time is short.
        return true;
    }
    // Whoever began a call before has stored `inside` where it is seen below (O1 of `lease`).
    barrier_everywhere();
    let began = Instant::now();
    loop {
        sweep(core);
        let inside = |lane: &u16| core.lane(*lane).intent.inside.load(SeqCst) != 0;
        match lanes(core).find(inside) {
            None => return true,
            Some(_) if began.elapsed() > END_MAX => return false,
            Some(lane) => {
                stopped::look_after(core, lane, began.elapsed());
                match look() {
                    Some(look) => std::thread::sleep(look / 10),
                    None => yield_now(),
                }
            }
        }
    }
}

/// Settles every lane whose holder is dead: the daemon's round. How many there were.
pub fn sweep(core: &Core) -> u64 {
    let Ok(seat) = core.seat() else { return 0 };
    let table = core.lane_table();
    // One question to the kernel a process, not one a lane.
    let mut known: HashMap<Tag, bool> = HashMap::new();
    let mut is_dead = |holder: Holder| match holder.process() {
        mine if mine == seat.tag() => table.is_dead(&core.arena, holder, seat),
        other => *known.entry(other).or_insert_with(|| table.is_gone(&core.arena, other)),
    };
    let held: Vec<(u16, Holder)> =
        lanes(core).filter_map(|lane| Some((lane, table.holder(&core.arena, LaneId(lane))?))).collect();
    // ORDERING: Relaxed, an estimate.
    core.root().lanes_leased.store(held.len() as u64, Relaxed);
    let dead = held.into_iter().filter(|(_, holder)| is_dead(*holder));
    dead.filter(|(lane, _)| settle_if_dead(core, *lane)).count() as u64
}

/// Brings a lane to an end (I1). It comes back free of everything; not if its thread has died and its process has files open: then it is
/// left to that process.
pub fn settle(core: &Core, lease: Lease) -> Option<Lease> {
    let lane = lease.lane.0;
    if core.locks.is_some() {
        return Some(lease);
    }
    core.root().settled.fetch_add(1, Relaxed); // ORDERING: Relaxed, a count.
    core.root().lanes_leased.fetch_sub(1, Relaxed); // ORDERING: Relaxed, an estimate.
    // What the dead one has left may be anything; this process must live on.
    let settled = catch_unwind(AssertUnwindSafe(|| settle_lane(core, lane)));
    if settled.is_err() {
        let _noted = core.damage(format!("what the holder of lane {lane} has left makes no sense"));
        // It would make none the next time either.
        opens::forget(core, lane);
        // SAFETY: I1: the lease is the caller's, and no guard of it exists.
        unsafe { core.lane(lane).reset() };
    }
    let home = Tag::of(core.lane(lane).home.load(SeqCst));
    if !opens::has_any(core, lane) {
        return Some(lease);
    }
    if core.seat().is_ok_and(|seat| seat.tag() == home) {
        core.parked.store(1, Relaxed); // ORDERING: Relaxed, a hint.
    }
    let _parked = core.lane_table().park(&core.arena, lease, home);
    None
}

fn settle_lane(core: &Core, number: u16) {
    let lane = core.lane(number);
    keep_thieves_off(core, lane);
    // SAFETY: I1: the lease is the caller's, and no guard of it exists.
    if !lane.is_sound(unsafe { lane.own() }) {
        let _noted =
            core.damage(format!("somebody has scribbled over lane {number}; nothing is changed any more"));
        opens::forget(core, number);
        // SAFETY: as above.
        return unsafe { lane.reset() };
    }
    let mut scratch = Scratch::default();
    let mut guard = of_the_dead(core, number, &mut scratch);
    // SAFETY: the lane is the caller's (I1).
    unsafe { guard.own.heap.distrust(&core.arena) };
    let mut garbage = Vec::new();
    let kept = repair_chains(core, &mut guard, &mut garbage);
    flush_born(core, lane);
    step(Step::Settling);
    // PERSIST: C1: what is whole is durable from here on, and what was torn is gone. The dead one may not have reached its fence, and
    // others act on what is seen. No check sees it: a simulated region is of one process, and no power is cut behind a death.
    core.region.fence();
    // Pages that were prepared and never linked: what is still owed to a log may need one, in an image that is full but for them.
    for spare in garbage.drain(..) {
        core.free_map().give_if_used(spare);
    }
    let (counts, changed) = transactions(core, guard.own, lane, number, &mut garbage);
    // Not before: what nobody uses may be cleaned, and a page that went is soon another's.
    kept.iter().for_each(|owner| chains::let_go(core, number, owner.inode));
    step(Step::Settling);
    unlock_cells(core, lane, number);
    step(Step::Settling);
    lane.end_dead(counts);
    names::settle(core, &mut guard, &changed);
    // While the log can still be asked: a settler that follows this one would take it for an inode without a name.
    names::forget_born_with_name(&guard, &changed);
    lane.intent.logged();
    lane.intent.forget_dirs();
    release_latches(core, lane, number);
    step(Step::Settling);
    if let Pinning::Done(ino, phase) = lane.intent.pin()
        && let Some(inode) = core.slot(Ino(ino))
    {
        // Said before: a settler that dies behind the unpin is followed by one that leaves the pins alone. Taken back twice, it would be
        // a living reader's.
        lane.intent.pinning(ino);
        inode.vi.pins.unpin(phase);
        step(Step::Settling);
        lane.intent.unpinned();
        // What waited for that pin alone.
        deferred::come_for(core, &mut guard, inode);
    }
    lane.intent.unpinned();
    names::end_half_ended(core, &mut guard);
    keep::let_go(core, &mut guard, kept);
    names::end_inodes(core, &mut guard);
    step(Step::Settling);
    give_blocks(core, guard.own, lane, garbage, number);
    step(Step::Settling);
    // The last numbers may have been used and not yet counted.
    guard.own.page_serial = (guard.own.page_serial.wrapping_add(1)) & SERIAL_MASK;
    guard.own.inode_serial = (guard.own.inode_serial.wrapping_add(1)) & SERIAL_MASK;
    drop(guard);
    // ORDERING: Release, after all of it.
    lane.intent.inside.store(0, Release);
    lane.intent.holder.store(0, Release); // ORDERING: Release, as above.
}

/// The slot of an inode that the lane was making: it becomes durable with its name, at one fence, which the dead one may not have reached.
/// What it had noted to write back to a file went with it.
fn flush_born(core: &Core, lane: &Lane) {
    let ino = Ino(lane.intent.born.load(SeqCst));
    if living(core, ino.0).is_some() {
        // PERSIST: with the fence of the settler. No check sees it: a simulated region is of one process, and no power is cut behind a
        // death.
        core.region.flush_unfenced(inode_pos(core.chunk_block(ino), chunk_of(ino).1), INODE_BYTES);
    }
}

/// Brings the chains that the lane was using in order. Their inodes are kept until all is settled.
fn repair_chains<'c>(core: &'c Core, guard: &mut LaneGuard<'_>, garbage: &mut Vec<Extent>) -> Vec<Kept<'c>> {
    let intent = &guard.lane.intent;
    let logs = [intent.log_before(), intent.log()];
    let owners = guard.own.chains.iter().map(|held| held.ino).chain([intent.cells().0]);
    let mut owners: Vec<u64> = owners.chain(logs.into_iter().flatten().map(|(ino, ..)| ino)).collect();
    owners.sort_unstable();
    owners.dedup();
    let owners: Vec<Kept<'c>> =
        owners.into_iter().filter_map(|ino| keep::keep(core, guard.id, ino)).collect();
    for owner in &owners {
        if let Err(damage) = chains::repair(core, guard.id, owner.inode, garbage)
            && owner.lives()
        {
            let _noted = core.damage(left_by(guard.lane, guard.id, &damage.0));
        }
    }
    guard.own.chains = Default::default();
    guard.own.chains_busy = 0;
    owners
}

/// Says who has left the damage that a settler found.
fn left_by(lane: &Lane, number: u16, what: &str) -> String {
    // ORDERING: Relaxed, it is only said.
    let process = lane.intent.holder.load(Relaxed) >> 32;
    format!("{what} (found while settling lane {number}, which process {process} left)")
}

/// The inode of this number, if one lives there.
fn living(core: &Core, ino: u64) -> Option<InodeRef<'_>> {
    core.slot(Ino(ino)).filter(|inode| ino != 0 && inode.vi.generation() != 0)
}

/// Applies the transactions that the lane was writing, those that are whole; true if there was one. What they say of names comes back.
fn transactions(
    core: &Core,
    own: &mut Own,
    lane: &Lane,
    number: u16,
    garbage: &mut Vec<Extent>,
) -> (bool, Vec<Changed>) {
    let (mut counts, mut changed) = (lane.state().committed(), Vec::new());
    for (ino, page, slot) in [lane.intent.log_before(), lane.intent.log()].into_iter().flatten() {
        let Some(inode) = living(core, ino) else { continue };
        let records = records::written(core, number, inode, page, slot);
        counts |= !records.is_empty();
        if !records.is_empty() && lane.state().active() {
            lane.commit();
        }
        records::apply(core, own, number, inode, &records, garbage);
        let names = records.into_iter().filter(|record| matches!(record, Record::Name { .. }));
        changed.extend(names.map(|record| Changed { home: ino, record }));
    }
    (counts, changed)
}

/// Unlocks what the lane still holds of the cells that it meant to take: nothing has changed there.
fn unlock_cells(core: &Core, lane: &Lane, number: u16) {
    let (ino, first, end) = lane.intent.cells();
    let Some(inode) = core.slot(Ino(ino)) else { return };
    for cell in inode.vi.index().runs(&core.arena, first, end).flat_map(|run| run.cells) {
        let lv = cell.lv();
        if lv.locked() && lv.lane() == number && cell.unlock(lv.version()) {
            wake(core, cell);
        }
    }
}

/// Latches that the lane holds; with its inode, if it is an inode's EOF latch.
fn latched<'c>(
    core: &'c Core,
    lane: &'c Lane,
    number: u16,
) -> impl Iterator<Item = (&'c Latch, Option<InodeRef<'c>>)> {
    lane.intent.latches().filter_map(move |at| {
        let latch = core.arena.try_get(Ptr::<Latch>::from_raw(at)).filter(|latch| latch.held_by(number))?;
        Some((latch, inode_of_latch(core, at)))
    })
}

/// The inode whose EOF latch lies there.
fn inode_of_latch(core: &Core, at: u64) -> Option<InodeRef<'_>> {
    let in_chunk = |n: usize| -> Option<InodeRef<'_>> {
        let first = core.slot(Ino(n as u64 * crate::format::inode::CHUNK_INODES))?;
        let start = core.arena.offset_of(first.vi).raw();
        let index = at.checked_sub(start)? / size_of::<crate::state::inode::VInode>() as u64;
        let inode = core.slot(Ino(first.ino.0 + index))?;
        let in_here = index < crate::format::inode::CHUNK_INODES;
        (in_here && core.arena.offset_of(&inode.vi.eof).raw() == at).then_some(inode)
    };
    (0..core.chunks().len()).find_map(in_chunk)
}

fn release_latches(core: &Core, lane: &Lane, number: u16) {
    for (latch, inode) in latched(core, lane, number) {
        if let Some(inode) = inode {
            // Raised under this latch alone.
            inode.vi.lower_gate();
        }
        latch.release_dead(number);
    }
    lane.intent.forget_latches();
}

/// Gives back the blocks that nobody else knows of, each once.
fn give_blocks(core: &Core, own: &mut Own, lane: &Lane, garbage: Vec<Extent>, number: u16) {
    let mut extents = garbage;
    while let Some(extent) = lane.intent.taken.pop() {
        extents.push(extent);
    }
    while let Some(extent) = own.limbo.pop() {
        extents.push(extent);
    }
    while let Some(block) = own.magazine.pop() {
        extents.push(Extent { block, count: 1 });
    }
    // PERSIST: D15: the publications that freed these blocks come before their next use. No check sees it: a simulated region is of one
    // process, and no power is cut behind a death.
    core.region.fence();
    extents.retain(|extent| extent.count > 0 && core.layout.holds(extent.block, extent.count));
    extents.sort_by_key(|extent| extent.block);
    let mut given = 0;
    for extent in extents {
        let (from, to) = (extent.block.0.max(given), extent.block.0 + extent.count);
        if from < to {
            core.free_map().give_if_used(Extent { block: crate::ids::BlockNo(from), count: to - from });
            given = to;
        }
    }
    crate::alloc::itable::drop_impossible(core, own);
    give_back(core, own, number);
}
