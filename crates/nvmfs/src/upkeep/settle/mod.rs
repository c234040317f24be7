//! Settling: a thread that finds a dead lane completes or undoes its work.
//!
//! The media decides: a whole transaction counts, a torn one never happened. The argument, and the reason for
//! the order of the steps, are in docs/processes.md.
//!
//! Invariants  I1  the caller holds the lane's lease, so its last holder is dead or has released it.
//!             I2  nothing that the dead thread has written is trusted: numbers are checked before they are used, and a lock is
//!                 released only if its own word names the lane.
//!             I3  the settler waits for no lock, only for a reclaimer of the lane (`exclude_reclaimers`), and for a lane that decides if
//!                 an inode ends (`keep`). It settles these lanes inside its own wait if they are dead. Every step may be repeated.
//!             I4  nobody waits for a lane that is being settled, but for locks that it lets go of at the end. Before its first wait the
//!                 settler withdraws what I3 waits for: the lane's words as a reclaimer, and its claim. From then on it does not wait
//!                 while it has a claim. Otherwise settlers would wait for each other, or one for itself. Of two dead lanes one may have
//!                 claimed an inode that the other one was working on, and the other one may have announced itself in it.
//! Crash order C1  durable (chains flushed, fence) before visible; visible before unlocked; blocks are freed last, after the fence.

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
use crate::ids::{Extent, InodeId};
use crate::state::core::{Core, Hooks};
use crate::state::inode::InodeRef;
use crate::state::lane::{Lane, LaneLocal, Pinning};
use crate::state::latch::Latch;
use crate::state::lease::{LaneGuard, exclude_reclaimers, lanes, of_the_dead, withdraw_reclaims};
use crate::state::opens;
use crate::state::papers::one_process;
use crate::state::scratch::Scratch;
use crate::state::wait::{check_every, holders, settle_if_dead, stopped};
use crate::steps::{Step, step};
use crate::upkeep::leases::{give_back, give_up};
use heddle_arena::sync::{barrier_everywhere, yield_now};
use heddle_arena::{Holder, LaneId, Lease, ProcessTag, Ptr};
use heddle_vfs::Ino;
use keep::Kept;
use names::Changed;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

pub use round::Rounds;
/// Hooks by which threads that wait for a lane, or end, reach the modules on this layer.
pub const HOOKS: Hooks = Hooks { settle, sweep, give_up };

/// Serial numbers that a client scribbled over must still fit their fields.
const SERIAL_MASK: u64 = (1 << 60) - 1;

/// Most time that calls of attached processes may take to end when the file system is unmounted.
const END_MAX: Duration = Duration::from_secs(10);

/// Calls that have not ended in time.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StillInside {
    /// The processes that make them, as far as this process can name them.
    processes: Vec<u32>,
}

impl std::fmt::Display for StillInside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let seconds = END_MAX.as_secs();
        let names: Vec<String> = self.processes.iter().map(u32::to_string).collect();
        match names.len() {
            0 => write!(f, "a process whose number is not known"),
            1 => write!(f, "process {}", names[0]),
            _ => write!(f, "each of the processes {}", names.join(", ")),
        }?;
        write!(
            f,
            " was still in a call after {seconds} seconds. The image is in use until all attached programs end"
        )
    }
}

/// Ends the file system for all attached processes: refuses new calls, waits for those under way, settles
/// dead lanes. `own`: the lane of the caller's call, which goes on.
///
/// # Errors
/// The processes whose calls have not ended in time.
pub fn end(core: &Core, own: Option<u16>) -> Result<(), StillInside> {
    core.root().ended.store(1, SeqCst);
    if cfg!(shuttle) {
        // Threads of a model have ended by then, and a model has no time to wait.
        return Ok(());
    }
    // A call that began before has stored `inside`, and the loads below see it (O1 of `lease`).
    barrier_everywhere();
    let began = Instant::now();
    loop {
        sweep(core);
        let inside = |lane: &u16| Some(*lane) != own && core.lane(*lane).intent.inside.load(SeqCst) != 0;
        match lanes(core).find(inside) {
            None => return Ok(()),
            Some(_) if began.elapsed() > END_MAX => {
                // Each process once: to find its number takes a look at all processes.
                let holder = |lane| core.lane_table().holder(&core.arena, LaneId(lane));
                let tags: HashSet<ProcessTag> =
                    lanes(core).filter(inside).filter_map(holder).map(|holder| holder.process()).collect();
                let mut processes: Vec<u32> = tags
                    .into_iter()
                    .filter_map(|tag| holders::of(core, tag))
                    .flatten()
                    .map(|process| process.pid)
                    .collect();
                processes.sort_unstable();
                processes.dedup();
                return Err(StillInside { processes });
            }
            Some(lane) => {
                stopped::check_and_kill_if_stopped(core, lane, began.elapsed());
                match check_every() {
                    Some(every) => std::thread::sleep(every / 10),
                    None => yield_now(),
                }
            }
        }
    }
}

/// Settles every lane whose holder is dead: once a round of the daemon, and for a call that finds no space. Returns their number; another
/// thread may have settled some of them.
pub fn sweep(core: &Core) -> u64 {
    let Ok(process_slot) = core.process_slot() else { return 0 };
    let table = core.lane_table();
    // Asks the kernel once for each process, not for each lane.
    let mut known: HashMap<ProcessTag, bool> = HashMap::new();
    let mut is_dead = |holder: Holder| match holder.process() {
        mine if mine == process_slot.tag() => table.is_dead(&core.arena, holder, process_slot),
        other => *known.entry(other).or_insert_with(|| table.is_gone(&core.arena, other)),
    };
    let held: Vec<(u16, Holder)> =
        lanes(core).filter_map(|lane| Some((lane, table.holder(&core.arena, LaneId(lane))?))).collect();
    // ORDERING: Relaxed, an estimate. Every call loads its line, and many that find no space may be here.
    if core.root().lanes_leased.load(Relaxed) != held.len() as u64 {
        core.root().lanes_leased.store(held.len() as u64, Relaxed);
    }
    let dead: Vec<u16> =
        held.into_iter().filter(|(_, holder)| is_dead(*holder)).map(|(lane, _)| lane).collect();
    dead.iter().for_each(|lane| {
        let _mine = settle_if_dead(core, *lane);
    });
    dead.len() as u64
}

/// Settles a lane (I1). Returns it empty, or `None` if its thread has died while its process lives and has
/// files open: the lane is parked for that process then.
pub fn settle(core: &Core, lease: Lease) -> Option<Lease> {
    let lane = lease.lane.0;
    if one_process(core) {
        return Some(lease);
    }
    core.root().settled.fetch_add(1, Relaxed); // ORDERING: Relaxed, a count.
    core.root().lanes_leased.fetch_sub(1, Relaxed); // ORDERING: Relaxed, an estimate.
    // The dead thread may have left arbitrary bytes. This process must survive them.
    let settled = catch_unwind(AssertUnwindSafe(|| settle_lane(core, lane)));
    if settled.is_err() {
        let _noted = core.damage(format!("the dead client's lane {lane} has invalid contents"));
        // A second attempt would fail in the same way.
        opens::forget(core, lane);
        // SAFETY: I1: the lease is the caller's, and no guard of it exists.
        unsafe { core.lane(lane).reset() };
    }
    let home = ProcessTag::from_word(core.lane(lane).home.load(SeqCst));
    if !opens::has_any(core, lane) {
        return Some(lease);
    }
    if core.process_slot().is_ok_and(|process_slot| process_slot.tag() == home) {
        core.parked.store(1, Relaxed); // ORDERING: Relaxed, a hint.
    }
    let _parked = core.lane_table().park(&core.arena, lease, home);
    None
}

fn settle_lane(core: &Core, number: u16) {
    let lane = core.lane(number);
    // I4.
    withdraw_reclaims(core, number);
    names::withdraw_claim(core, lane, number);
    exclude_reclaimers(core, lane);
    // SAFETY: I1: the lease is the caller's, and no guard of it exists.
    if !lane.is_sound(unsafe { lane.own() }) {
        let _noted =
            core.damage(format!("a client has scribbled over lane {number}; no more changes are made"));
        opens::forget(core, number);
        // SAFETY: as above.
        return unsafe { lane.reset() };
    }
    let mut scratch = Scratch::default();
    let mut guard = of_the_dead(core, number, &mut scratch);
    // SAFETY: the lane is the caller's (I1).
    unsafe { guard.own.heap.drop_implausible_lists(&core.arena) };
    let mut garbage = Vec::new();
    let kept = repair_chains(core, &mut guard, &mut garbage);
    flush_born(core, lane);
    step(Step::Settling);
    // PERSIST: C1: whole transactions are durable from here on, and torn ones are gone. The dead thread may
    // not have reached its fence, and others act on what they see. No check sees it: only one process has a
    // simulated region, and no test cuts power after a death.
    core.region.fence();
    // Pages that were prepared and never linked. They are freed now: in a full image, paying what is still
    // owed to a log may need one.
    for spare in garbage.drain(..) {
        core.free_map().give_if_used(spare);
    }
    let (counts, mut changed) = transactions(core, &mut guard, &kept, &mut garbage);
    names::prepare_names(core, &guard, &mut changed);
    // While nobody can clean the log: a settler that follows this one would take the inode for one without a name.
    names::forget_born_with_name(core, &guard, &changed);
    // Not before this point: an idle chain may be cleaned, and an unlinked page soon belongs to another
    // inode.
    kept.iter().for_each(|owner| chains::let_go(core, number, owner.inode));
    // Not before either: the settler that follows this one finds the chains by it.
    guard.own.chains = Default::default();
    step(Step::Settling);
    unlock_cells(core, lane, number, &kept);
    step(Step::Settling);
    lane.end_dead(counts);
    names::settle(core, &mut guard, &changed);
    lane.intent.logged();
    lane.intent.forget_dirs();
    release_latches(core, lane, number);
    step(Step::Settling);
    if let Pinning::Done(ino, phase) = lane.intent.pin()
        && let Some(inode) = core.slot(Ino(ino))
    {
        // Noted before: if this settler dies after the unpin, the next one leaves the pins alone. A second
        // unpin would remove a living reader's pin.
        lane.intent.pinning(ino);
        inode.volatile.pins.unpin(phase);
        step(Step::Settling);
        lane.intent.unpinned();
        // Frees the blocks that waited for that pin alone.
        deferred::come_for(core, &mut guard, inode);
    }
    lane.intent.unpinned();
    names::end_half_ended(core, &mut guard);
    keep::let_go(core, &mut guard, kept);
    names::end_inodes(core, &mut guard);
    step(Step::Settling);
    give_blocks(core, guard.own, lane, garbage, number);
    step(Step::Settling);
    // The dead thread may have used the last numbers without counting them.
    guard.own.page_serial = (guard.own.page_serial.wrapping_add(1)) & SERIAL_MASK;
    guard.own.inode_serial = (guard.own.inode_serial.wrapping_add(1)) & SERIAL_MASK;
    drop(guard);
    // ORDERING: Release, after all of it.
    lane.intent.inside.store(0, Release);
    lane.intent.holder.store(0, Release);
}

/// Flushes the slot of an inode that the lane was making. It becomes durable with its name, at one fence,
/// which the dead thread may not have reached. Its own list of lines to flush died with it.
fn flush_born(core: &Core, lane: &Lane) {
    let Some((InodeId { ino, .. }, _)) = lane.intent.creating() else { return };
    if living(core, ino.0).is_some() {
        // PERSIST: with the fence of the settler. No check sees it: only one process has a simulated region,
        // and no test cuts power after a death.
        core.region.flush_unfenced(inode_pos(core.chunk_block(ino), chunk_of(ino).1), INODE_BYTES);
    }
}

/// Repairs the chains that the lane was using. Returns their inodes, which are kept alive until all is
/// settled.
fn repair_chains<'c>(core: &'c Core, guard: &mut LaneGuard<'_>, garbage: &mut Vec<Extent>) -> Vec<Kept<'c>> {
    let intent = &guard.lane.intent;
    let logs = [intent.log_before(), intent.log()];
    // A removal in place borrows the chains of a directory, whether the lane has one of them or not.
    let owners = guard.own.chains.iter().map(|held| held.ino).chain([intent.cells().0]).chain(intent.dirs());
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
    guard.own.chains_busy = 0;
    owners
}

/// Names the lane and process that left the damage a settler found.
fn left_by(lane: &Lane, number: u16, what: &str) -> String {
    // ORDERING: Relaxed, only for the message.
    let process = lane.intent.holder.load(Relaxed) >> 32;
    format!("{what} (found while settling lane {number}, which process {process} left)")
}

/// The inode of this number, if it is alive.
fn living(core: &Core, ino: u64) -> Option<InodeRef<'_>> {
    core.slot(Ino(ino)).filter(|inode| ino != 0 && inode.volatile.generation() != 0)
}

/// Applies the whole transactions among those that the lane was writing. Returns true if there was one, and
/// their name records. Those of an inode that another lane ends are left out. Then the blocks of the call are free, unless it was
/// committed: its cells may name them, and that lane may free them.
fn transactions(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    kept: &[Kept<'_>],
    garbage: &mut Vec<Extent>,
) -> (bool, Vec<Changed>) {
    let (lane, number) = (guard.lane, guard.id);
    let (mut counts, mut changed) = (lane.state().committed(), Vec::new());
    for (ino, page, slot) in [lane.intent.log_before(), lane.intent.log()].into_iter().flatten() {
        let Some(inode) = keep::find(kept, ino) else { continue };
        let records = records::written(core, number, inode, page, slot);
        counts |= !records.is_empty();
        if !records.is_empty() && lane.state().active() {
            lane.commit();
        }
        records::apply(core, guard.own, number, inode, &records, garbage);
        let names = records.into_iter().filter(|record| matches!(record, Record::Name { .. }));
        changed.extend(names.map(|record| Changed { home: ino, record, is_pending: false }));
    }
    (counts, changed)
}

/// Unlocks the cells that the lane meant to take and still holds. Their contents have not changed.
fn unlock_cells(core: &Core, lane: &Lane, number: u16, kept: &[Kept<'_>]) {
    let (ino, first, end) = lane.intent.cells();
    let Some(inode) = keep::find(kept, ino) else { return };
    for cell in inode.volatile.index().runs(&core.arena, first, end).flat_map(|run| run.cells) {
        let lock_version = cell.lock_version();
        if lock_version.locked() && lock_version.lane() == number && cell.unlock(lock_version.version()) {
            wake(core, cell);
        }
    }
}

/// The latches that the lane holds; with the inode, if it is an inode's EOF latch.
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

/// The inode whose EOF latch lies at this offset.
fn inode_of_latch(core: &Core, at: u64) -> Option<InodeRef<'_>> {
    let in_chunk = |n: usize| -> Option<InodeRef<'_>> {
        let first = core.slot(Ino(n as u64 * crate::format::inode::CHUNK_INODES))?;
        let start = core.arena.offset_of(first.volatile).raw();
        let index = at.checked_sub(start)? / size_of::<crate::state::inode::VolatileInode>() as u64;
        let inode = core.slot(Ino(first.ino.0 + index))?;
        (core.arena.offset_of(&inode.volatile.eof).raw() == at).then_some(inode)
    };
    (0..core.chunks().len()).find_map(in_chunk)
}

fn release_latches(core: &Core, lane: &Lane, number: u16) {
    for (latch, inode) in latched(core, lane, number) {
        if let Some(inode) = inode {
            // The gate is raised only under this latch.
            inode.volatile.lower_gate();
        }
        latch.release_dead(number);
    }
    lane.intent.forget_latches();
}

/// Frees the blocks that only this lane knows of, each once.
fn give_blocks(core: &Core, own: &mut LaneLocal, lane: &Lane, garbage: Vec<Extent>, number: u16) {
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
    // PERSIST: D15: the publications that replaced these blocks come before the blocks' next use. No check
    // sees it: only one process has a simulated region, and no test cuts power after a death.
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
