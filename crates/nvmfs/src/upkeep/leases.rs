//! The end of a thread's lease: other lanes get the resources of its lane, its process keeps the open files.

use crate::alloc::{itable, return_all};
use crate::log::chain;
use crate::names::life;
use crate::state::core::Core;
use crate::state::lane::LaneLocal;
use crate::state::lease::{exclude_reclaimers, of_the_dead, park, unpark};
use crate::state::living::lives_on;
use crate::state::opens;
use crate::state::scratch::Scratch;
use heddle_arena::Lease;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Returns the resources of an ending thread's lane, then the lane. The caller has the lease, and no call is
/// under way.
pub fn give_up(core: &Core, lease: Lease) {
    let (lane, number) = (core.lane(lease.lane.0), lease.lane.0);
    // Until `inside` is 0 again: both parts below use what is the lane's own.
    exclude_reclaimers(core, lane);
    let keeps_handles = hand_over(core, number);
    // SAFETY: I1 of `lease`: the lease is the caller's, and not busy.
    give_back(core, unsafe { lane.own() }, number);
    lane.intent.inside.store(0, Release); // ORDERING: Release, after all of it.
    // ORDERING: Release, others only read it as a hint.
    lane.intent.holder.store(0, Release);
    // ORDERING: Relaxed, an estimate.
    core.root().lanes_leased.fetch_sub(1, Relaxed);
    let_go(core, lease, keeps_handles);
}

/// Moves handles to a lane that the process has parked: they belong to the process. Returns true if some stay.
fn hand_over(core: &Core, lane: u16) -> bool {
    let Ok(process_slot) = core.process_slot() else { return false };
    if !opens::has_any(core, lane) {
        return false;
    }
    let Some(parked) = unpark(core, process_slot) else { return true };
    let mut scratch = Scratch::default();
    // The lane is this thread's, and idle.
    let mut guard = of_the_dead(core, lane, &mut scratch);
    let lives_on = |inode, generation| lives_on(core, inode, generation);
    for inode in opens::hand_over(core, lane, parked.lane.0, lives_on) {
        life::end_once(core, &mut guard, inode);
    }
    drop(guard);
    park(core, parked, process_slot);
    opens::has_any(core, lane)
}

/// Releases a lane that holds nothing but handles. With handles it is parked.
fn let_go(core: &Core, mut lease: Lease, keeps_handles: bool) {
    let Ok(process_slot) = core.process_slot() else { return };
    if keeps_handles {
        return park(core, lease, process_slot);
    }
    lease.died = false;
    // If this fails, the lane was taken from this process, and is being settled.
    let _released = core.lane_table().release(&core.arena, lease);
}

/// Returns a lane's resources to the shared pools. The caller holds the lane's lease.
pub fn give_back(core: &Core, own: &mut LaneLocal, lane: u16) {
    chain::let_go_all(core, own, lane);
    // PERSIST: D15: this lane's stores into the returned blocks come before another lane's stores. No check
    // sees it: simulated memory orders two stores to one word, whichever lanes make them.
    core.region.fence();
    return_all(core.free_map(), own);
    itable::return_all(core, own);
    core.lane(lane).note_held(own);
}
