//! How a lease begins and ends, and what its lane gives back then.

use super::{LEASES, Lease, Scratch, WORDS, change, of_the_dead};
use crate::alloc::return_all;
use crate::core::{Core, LANES};
use crate::lane::Own;
use crate::{opens, process, settle};
use heddle_arena::{LaneId, Seat};
use heddle_vfs::{Error, Result};
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// Leases a lane for the calling thread, and settles it if its holder died.
pub fn lease_lane(core: &Arc<Core>, process: u32) -> Result<Lease> {
    // Without a seat nobody could tell that this process has died.
    let seat = core.seat().ok().filter(|seat| seat.is_the_callers()).ok_or(Error::NoMemory)?;
    let leased = lease(core, seat)?;
    // ORDERING: Relaxed, an estimate.
    core.root().lanes_leased.fetch_add(1, Relaxed);
    let lane = core.lane(leased.lane.0);
    let share = |n: u64| n * u64::from(leased.lane.0 - 1) / u64::from(LANES);
    // SAFETY: this thread holds the lease, and nobody has a reference to what is the lane's own yet.
    let own = unsafe { lane.own() };
    own.place(share(core.layout.blocks_total.div_ceil(64)), share(core.layout.chunks_max));
    lane.mark(own);
    lane.counts.comes();
    if lane.home.load(SeqCst) != seat.tag().word() {
        // Nothing (see `give_up`), unless somebody has scribbled.
        opens::forget(core, leased.lane.0);
        lane.home.store(seat.tag().word(), SeqCst);
    }
    // ORDERING: Release, others only look at it.
    lane.intent.holder.store(process::for_people(), Release);
    let lease = Lease {
        mount: core.id,
        process,
        lane: leased.lane,
        leased,
        busy: Cell::new(false),
        scratch: UnsafeCell::default(),
        core: Arc::downgrade(core),
    };
    // If that fails the lane is given back.
    opens::equip(core, lease.lane.0)?;
    Ok(lease)
}

/// One that this process has parked, a free one, or a dead one that is settled.
fn lease(core: &Core, seat: &Seat) -> Result<heddle_arena::Lease> {
    if let Some(parked) = unpark(core, seat) {
        return Ok(parked);
    }
    let table = core.lane_table();
    // Each of them once: what is parked for a process that never was is dead again at once.
    for _ in 0..=table.len() {
        let leased = table.lease(&core.arena, seat).map_err(|_| Error::NoMemory)?;
        if !leased.died {
            return Ok(leased);
        }
        // What a living process has open stays its own, and so does the lane.
        if let Some(leased) = settle::settle(core, leased) {
            return Ok(leased);
        }
    }
    Err(Error::NoMemory)
}

/// A lane that ended threads of this process have left with handles.
fn unpark(core: &Core, seat: &Seat) -> Option<heddle_arena::Lease> {
    // ORDERING: Relaxed, a hint.
    if core.parked.load(Relaxed) == 0 {
        return None;
    }
    core.parked.store(0, Relaxed); // ORDERING: Relaxed, a hint: raised below if there are more.
    let mut parked = super::lanes(core).filter(|lane| {
        let holder = core.lane_table().holder(&core.arena, LaneId(*lane));
        holder.is_some_and(|holder| holder.process() == seat.tag() && holder.thread() == 0)
    });
    let found = parked.find_map(|lane| core.lane_table().unpark(&core.arena, LaneId(lane), seat));
    if parked.next().is_some() {
        core.parked.store(1, Relaxed); // ORDERING: Relaxed, a hint.
    }
    found
}

/// Gives the calling thread's lanes of mounts that are gone back, and forgets those of a parent.
#[allow(clippy::vec_box)]
pub fn prune(leases: &mut Vec<Box<Lease>>) {
    leases.retain(|l| l.busy.get() || (l.core.strong_count() > 0 && l.process == process::generation()));
}

/// Gives the calling thread's lanes of this mount back: before it is unmounted.
pub fn leave(core: &Core) {
    // The thread may be ending: then its leases are given back anyway.
    let _ = LEASES.try_with(|leases| {
        change(&mut leases.borrow_mut(), |leases| leases.retain(|l| l.busy.get() || l.mount != core.id));
    });
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The thread ends (I5); under shuttle its words may have gone first.
        let _ = WORDS.try_with(|words| {
            if std::ptr::eq(words.only.get(), self) {
                words.only.set(std::ptr::null());
            }
        });
        // I3; or the thread ends in the middle of a call: whoever finds that it is gone settles the lane.
        if self.process != process::generation() || self.busy.get() {
            return;
        }
        // I2.
        let Some(core) = self.core.upgrade() else { return };
        // What somebody has scribbled over may make no sense; a thread that ends must not take its process with it.
        let given = catch_unwind(AssertUnwindSafe(|| {
            let lane = core.lane(self.lane.0);
            super::keep_thieves_off(&core, lane);
            // SAFETY: I1: the lease is not busy and belongs to this thread.
            give_back(&core, unsafe { lane.own() }, self.lane.0);
            lane.intent.inside.store(0, Release); // ORDERING: Release, after all of it.
            // ORDERING: Release, others only look at it.
            lane.intent.holder.store(0, Release);
            // ORDERING: Relaxed, an estimate.
            core.root().lanes_leased.fetch_sub(1, Relaxed);
            give_up(&core, self.leased);
        }));
        if given.is_err() {
            let _noted = core.damage(format!("what lane {} has makes no sense", self.lane.0));
        }
    }
}

/// Lets go of a lane that holds nothing but handles. Those are the process's: they move to a lane that it has parked, or park this one.
fn give_up(core: &Core, leased: heddle_arena::Lease) {
    let table = core.lane_table();
    let Ok(seat) = core.seat() else { return };
    let lane = leased.lane.0;
    let mut lease = leased;
    if opens::has_any(core, lane) {
        if let Some(parked) = unpark(core, seat) {
            let mut scratch = Scratch::default();
            // The lane is this thread's, and at rest.
            let mut guard = of_the_dead(core, lane, &mut scratch);
            opens::hand_over(core, &mut guard, parked.lane.0);
            drop(guard);
            let emptied = !opens::has_any(core, lane);
            park(core, parked, seat);
            if !emptied {
                return park(core, lease, seat);
            }
        } else {
            return park(core, lease, seat);
        }
    }
    lease.died = false;
    // A failure means that it was taken from this process: it is settled, then.
    let _released = table.release(&core.arena, lease);
}

fn park(core: &Core, lease: heddle_arena::Lease, seat: &Seat) {
    let _parked = core.lane_table().park(&core.arena, lease, seat.tag());
    core.parked.store(1, Relaxed); // ORDERING: Relaxed, a hint.
}

/// Gives what a lane has to the others. The caller holds its lease.
pub fn give_back(core: &Core, own: &mut Own, lane: u16) {
    crate::log::chain::let_go_all(core, own, lane);
    // PERSIST: D15, this lane's stores into the blocks it gives back come before another lane's.
    core.region.fence();
    return_all(core.free_map(), own);
    crate::itable::return_all(core, own);
    core.lane(lane).note_held(own);
}

/// Free blocks in lanes' hands, about: of other threads' lanes the counts may be a moment old.
pub fn held_blocks(core: &Core) -> u64 {
    super::lanes(core).map(|lane| core.lane(lane).held()).sum()
}
