//! A call that finds no space takes free blocks and inode slots back from idle lanes.
//!
//! A lane's owner uses its own part without locked operations. So a reclaimer first announces itself
//! (`Intent::reclaimer`), and has the kernel execute a barrier in every running thread. Then it checks whether
//! the owner is inside a call. The owner stores `inside` before it loads `reclaimer`, so one of the two sees the
//! other (O1 of `lease`). An owner that finds a reclaimer waits for it. A reclaimer leaves a lane alone whose owner
//! is inside a call.
//!
//! Invariants  I1  a thread that settles or returns a lane announces that in `inside` too (`lease::exclude_reclaimers`).
//!             I2  a reclaimer is inside a call of its own; a reclaimer that is outside has died, and its word is void.
//!             I3  the word names the reclaimer's lane and the number of the reclaim. So a later reclaim by the same lane is not taken for
//!                 one that was found to be over (`models::inside`).
//!             I4  the settler of a dead reclaimer's lane clears its words before it waits for anything (`lease::withdraw_reclaims`). The
//!                 dead one stores nothing any more, and the settler is inside in its place, which I2 would take for the reclaimer.

use crate::alloc::{itable, return_all};
use crate::ids::LANES;
use crate::state::core::Core;
use crate::state::lane::{Lane, LaneLocal};
use crate::state::lease::{LANE_BITS, LaneGuard, is_void, reclaimer_lane};
use heddle_arena::sync::barrier_everywhere;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// What was reclaimed from other lanes.
pub enum Reclaimed {
    /// Some was found, and is in the shared maps now.
    Some,
    /// There is some, in lanes that are inside a call or that another reclaimer empties: the caller can wait for
    /// these lanes.
    Busy(Vec<u16>),
    /// There was none.
    Nothing,
}

/// Returns the resources of idle lanes to the shared pools: blocks to the free map, slots to the chunks.
pub fn reclaim(core: &Core, guard: &mut LaneGuard<'_>) -> Reclaimed {
    // Models of other parts do without it.
    if cfg!(any(loom, shuttle)) { Reclaimed::Nothing } else { reclaim_from_lanes(core, guard) }
}

/// Implements [`reclaim`].
pub fn reclaim_from_lanes(core: &Core, guard: &mut LaneGuard<'_>) -> Reclaimed {
    guard.own.reclaims = guard.own.reclaims.wrapping_add(1);
    let me = guard.own.reclaims << LANE_BITS | u64::from(guard.id);
    let used = (core.root().lanes_used.load(SeqCst) as u16).min(LANES);
    let may_hold = |lane: &u16| *lane != guard.id && core.lane(*lane).holds_any();
    let (announced, others): (Vec<u16>, Vec<u16>) =
        (1..=used).filter(may_hold).partition(|lane| announce(core, core.lane(*lane), me));
    // Another reclaimer empties those; the blocks that it returns to the map can be used by any lane.
    let mut busy: Vec<u16> = others
        .iter()
        .map(|lane| to_wait_for(*lane, core.lane(*lane).intent.reclaimer.load(SeqCst)))
        .collect();
    if announced.is_empty() {
        return if busy.is_empty() { Reclaimed::Nothing } else { Reclaimed::Busy(busy) };
    }
    barrier_everywhere();
    // PERSIST: D15: before the barrier above, the owners published the changes that freed these blocks, and
    // zeroed the slots of dead inodes. No check sees it: simulated memory orders two stores to one word,
    // whichever lanes make them.
    core.region.fence();
    let mut any = false;
    for number in announced {
        let lane = core.lane(number);
        if lane.intent.inside.load(SeqCst) == 0 {
            // SAFETY: the owner is outside, and waits for this reclaimer before it goes inside (see the module).
            any |= empty(core, lane, unsafe { lane.own() });
        } else if lane.held() > 0 {
            busy.push(number);
        }
        // ORDERING: Release, pairs with the Acquire in `begin`.
        lane.intent.reclaimer.store(0, Release);
    }
    match any {
        true => Reclaimed::Some,
        false if busy.is_empty() => Reclaimed::Nothing,
        false => Reclaimed::Busy(busy),
    }
}

/// Announces this reclaimer to a lane. Returns false if another reclaimer is active there.
fn announce(core: &Core, lane: &Lane, me: u64) -> bool {
    let reclaimer = lane.intent.reclaimer.load(SeqCst);
    // I2.
    let void = reclaimer == 0 || is_void(core, reclaimer);
    // ORDERING: SeqCst, before the barrier after which the owner's `inside` is loaded; Relaxed: another
    // reclaimer is active.
    void && lane.intent.reclaimer.compare_exchange(reclaimer, me, SeqCst, Relaxed).is_ok()
}

/// The lane to wait for when another reclaimer was active: the reclaimer's; or, if it is done by now, the lane that they reclaim from
/// itself, whose owner may be inside.
fn to_wait_for(lane: u16, reclaimer: u64) -> u16 {
    reclaimer_lane(reclaimer).unwrap_or(lane)
}

/// Returns the resources of a lane that the caller controls to the shared pools. Returns true if there were
/// any.
fn empty(core: &Core, lane: &Lane, own: &mut LaneLocal) -> bool {
    let any = own.magazine.len() > 0 || own.limbo.blocks() > 0 || own.slots.any();
    return_all(core.free_map(), own);
    itable::return_all(core, own);
    lane.note_held(own);
    any
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
