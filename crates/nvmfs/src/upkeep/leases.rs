//! The end of a thread's lease: what its lane holds goes to the others, what it has open stays its process's.

use crate::alloc::{itable, return_all};
use crate::log::chain;
use crate::names::life;
use crate::state::core::Core;
use crate::state::lane::Own;
use crate::state::lease::{keep_thieves_off, of_the_dead, park, unpark};
use crate::state::opens;
use crate::state::scratch::Scratch;
use heddle_arena::Lease;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Gives back what the lane of an ending thread holds, then the lane. The caller has the lease, and no call is under way.
pub fn give_up(core: &Core, lease: Lease) {
    let (lane, number) = (core.lane(lease.lane.0), lease.lane.0);
    keep_thieves_off(core, lane);
    // SAFETY: I1 of `lease`: the lease is the caller's, and not busy.
    give_back(core, unsafe { lane.own() }, number);
    lane.intent.inside.store(0, Release); // ORDERING: Release, after all of it.
    // ORDERING: Release, others only look at it.
    lane.intent.holder.store(0, Release);
    // ORDERING: Relaxed, an estimate.
    core.root().lanes_leased.fetch_sub(1, Relaxed);
    let_go(core, lease);
}

/// Lets go of a lane that holds nothing but handles. Those are the process's: they move to a lane that it has parked, or park this one.
fn let_go(core: &Core, leased: Lease) {
    let table = core.lane_table();
    let Ok(seat) = core.seat() else { return };
    let lane = leased.lane.0;
    let mut lease = leased;
    if opens::has_any(core, lane) {
        if let Some(parked) = unpark(core, seat) {
            let mut scratch = Scratch::default();
            // The lane is this thread's, and at rest.
            let mut guard = of_the_dead(core, lane, &mut scratch);
            for inode in opens::hand_over(core, lane, parked.lane.0) {
                life::end_once(core, &mut guard, inode);
            }
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

/// Gives what a lane has to the others. The caller holds its lease.
pub fn give_back(core: &Core, own: &mut Own, lane: u16) {
    chain::let_go_all(core, own, lane);
    // PERSIST: D15, this lane's stores into the blocks it gives back come before another lane's. No check sees it: simulated memory orders
    // two stores to one word, whoever makes them.
    core.region.fence();
    return_all(core.free_map(), own);
    itable::return_all(core, own);
    core.lane(lane).note_held(own);
}
