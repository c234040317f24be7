//! How a lease begins and ends. A higher module returns the lane's resources at the end
//! ([`Hooks`](crate::state::core::Hooks)).

use super::{CURRENT_CALL, LEASES, Lease, change};
use crate::ids::LANES;
use crate::process;
use crate::state::core::Core;
use crate::state::opens;
use heddle_arena::{LaneId, ProcessSlot};
use heddle_vfs::{Error, Result};
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// Leases a lane for the calling thread, and settles it if its holder died.
pub fn lease_lane(core: &Arc<Core>, process: u32) -> Result<Lease> {
    // Without a process slot, no other process could tell that this process has died.
    let process_slot = core
        .process_slot()
        .ok()
        .filter(|process_slot| process_slot.is_the_callers())
        .ok_or(Error::NoMemory)?;
    let leased = lease(core, process_slot)?;
    // ORDERING: Relaxed, an estimate.
    core.root().lanes_leased.fetch_add(1, Relaxed);
    let lane = core.lane(leased.lane.0);
    // SAFETY: this thread holds the lease, and no reference to the lane's own part exists yet.
    let own = unsafe { lane.own() };
    let start = |n: u64| start_of(leased.lane.0, n);
    own.place(start(core.layout.blocks_total.div_ceil(64)), start(core.layout.chunks_max));
    lane.mark(own);
    lane.counts.comes();
    if lane.home.load(SeqCst) != process_slot.tag().word() {
        // It counts none (see `give_up`), unless a client has scribbled over it.
        opens::forget(core, leased.lane.0);
        lane.home.store(process_slot.tag().word(), SeqCst);
    }
    // ORDERING: Release, others only read it.
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
    // If this fails, dropping the lease returns the lane.
    opens::equip(core, lease.lane.0)?;
    Ok(lease)
}

/// Where a lane starts its searches of `n` places, so that lanes start apart.
pub fn start_of(lane: u16, n: u64) -> u64 {
    n * u64::from(lane - 1) / u64::from(LANES)
}

/// Leases a lane that this process has parked, a free one, or a dead one after settling it.
fn lease(core: &Core, process_slot: &ProcessSlot) -> Result<heddle_arena::Lease> {
    if let Some(parked) = unpark(core, process_slot) {
        return Ok(parked);
    }
    let table = core.lane_table();
    // Each lane once: a lane parked for a process that never existed is dead again at once.
    for _ in 0..=table.len() {
        let leased = table.lease(&core.arena, process_slot).map_err(|_| Error::NoMemory)?;
        if !leased.died {
            return Ok(leased);
        }
        // A living process keeps its open files, and so the lane.
        if let Some(leased) = (core.hooks.settle)(core, leased) {
            return Ok(leased);
        }
    }
    Err(Error::NoMemory)
}

/// Leases a lane with handles that ended threads of this process have left.
pub fn unpark(core: &Core, process_slot: &ProcessSlot) -> Option<heddle_arena::Lease> {
    // ORDERING: Relaxed, a hint.
    if core.parked.load(Relaxed) == 0 {
        return None;
    }
    core.parked.store(0, Relaxed); // ORDERING: Relaxed, a hint: raised below if there are more.
    let mut parked = super::lanes(core).filter(|lane| {
        let holder = core.lane_table().holder(&core.arena, LaneId(*lane));
        holder.is_some_and(|holder| holder.process() == process_slot.tag() && holder.thread() == 0)
    });
    let found = parked.find_map(|lane| core.lane_table().unpark(&core.arena, LaneId(lane), process_slot));
    if parked.next().is_some() {
        core.parked.store(1, Relaxed); // ORDERING: Relaxed, a hint.
    }
    found
}

/// Returns the calling thread's lanes of mounts that are gone, and forgets those of a parent process.
#[allow(clippy::vec_box)]
pub fn prune(leases: &mut Vec<Box<Lease>>) {
    leases.retain(|l| l.busy.get() || (l.core.strong_count() > 0 && l.process == process::generation()));
}

/// Returns the calling thread's lanes of this mount, before an unmount.
pub fn leave(core: &Core) {
    // If the thread is ending, its leases are returned anyway.
    let _ = LEASES.try_with(|leases| {
        change(&mut leases.borrow_mut(), |leases| leases.retain(|l| l.busy.get() || l.mount != core.id));
    });
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The thread is ending (I5); under shuttle its words may be gone first.
        let _ = CURRENT_CALL.try_with(|current_call| {
            if std::ptr::eq(current_call.only.get(), self) {
                current_call.only.set(std::ptr::null());
            }
        });
        // I3; or the thread ends in the middle of a call: a thread that finds it dead settles the lane.
        if self.process != process::generation() || self.busy.get() {
            return;
        }
        // I2.
        let Some(core) = self.core.upgrade() else { return };
        // A client may have scribbled over the lane. An ending thread must not end its process because of
        // that.
        let given = catch_unwind(AssertUnwindSafe(|| (core.hooks.give_up)(&core, self.leased)));
        if given.is_err() {
            let _noted = core.damage(format!("lane {} has invalid contents", self.lane.0));
        }
    }
}

/// Parks a lane with handles for its process.
pub fn park(core: &Core, lease: heddle_arena::Lease, process_slot: &ProcessSlot) {
    let _parked = core.lane_table().park(&core.arena, lease, process_slot.tag());
    core.parked.store(1, Relaxed); // ORDERING: Relaxed, a hint.
}

/// Free blocks that lanes hold, approximately: counts of other threads' lanes may be stale.
pub fn held_blocks(core: &Core) -> u64 {
    super::lanes(core).map(|lane| core.lane(lane).held()).sum()
}
