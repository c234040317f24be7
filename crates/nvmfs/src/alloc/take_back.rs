//! What idle lanes hold of free blocks and inode slots, taken back by whoever is about to fail for want of space.
//!
//! A lane's owner touches what is its own without a locked operation. So a thief says first that it is coming (`Intent::robbed`), has the
//! kernel put a barrier into every running thread, and then looks whether the owner is inside a call: the owner stores `inside` before it
//! loads `robbed`. One of the two sees the other (O1 of `lease`). An owner that finds a thief waits for it; a lane whose owner is inside
//! is left alone.
//!
//! Invariants  I1  who settles a lane or gives it back says so in `inside` too (`lease::keep_thieves_off`).
//!             I2  a thief is inside a call of its own; one that is not has died, and its word is void.
//!             I3  the word names the thief's lane and which of its robberies it is: one that was found to be over, and begins another
//!                 meanwhile, is not taken for what it was (`models::inside`).

use crate::alloc::{itable, return_all};
use crate::ids::LANES;
use crate::state::core::Core;
use crate::state::lane::{Lane, Own};
use crate::state::lease::{LANE_BITS, LaneGuard, is_void, thief_lane};
use heddle_arena::sync::barrier_everywhere;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// What a look for what other lanes hold has brought.
pub enum Found {
    /// Some is in the map, or free, now.
    Some,
    /// There was some, in lanes that are inside a call, or that another thief is at: these lanes are to be waited for.
    Busy(Vec<u16>),
    /// There was none.
    Nothing,
}

/// Gives what idle lanes hold to the others: their blocks to the free map, their slots to the chunks.
pub fn take_back(core: &Core, guard: &mut LaneGuard<'_>) -> Found {
    // Models that are not about it keep what they have.
    if cfg!(any(loom, shuttle)) { Found::Nothing } else { rob(core, guard) }
}

/// See [`take_back`].
pub fn rob(core: &Core, guard: &mut LaneGuard<'_>) -> Found {
    guard.own.thefts = guard.own.thefts.wrapping_add(1);
    let me = guard.own.thefts << LANE_BITS | u64::from(guard.id);
    let used = (core.root().lanes_used.load(SeqCst) as u16).min(LANES);
    let may_hold = |lane: &u16| *lane != guard.id && core.lane(*lane).holds_any();
    let (robbed, others): (Vec<u16>, Vec<u16>) =
        (1..=used).filter(may_hold).partition(|lane| announce(core, core.lane(*lane), me));
    // Another thief is at those: what it gives to the map is anybody's.
    let mut busy: Vec<u16> =
        others.iter().map(|lane| to_wait_for(*lane, core.lane(*lane).intent.robbed.load(SeqCst))).collect();
    if robbed.is_empty() {
        return if busy.is_empty() { Found::Nothing } else { Found::Busy(busy) };
    }
    barrier_everywhere();
    // PERSIST: D15: what the owners freed was published, and slots of what they ended zeroed, before the barrier above. No check sees it:
    // simulated memory orders two stores to one word, whoever makes them.
    core.region.fence();
    let mut any = false;
    for number in robbed {
        let lane = core.lane(number);
        if lane.intent.inside.load(SeqCst) == 0 {
            // SAFETY: the owner is not inside, and waits for this thief before it is (see the module).
            any |= empty(core, lane, unsafe { lane.own() });
        } else if lane.held() > 0 {
            busy.push(number);
        }
        // ORDERING: Release, pairs with the Acquire in `begin`.
        lane.intent.robbed.store(0, Release);
    }
    match any {
        true => Found::Some,
        false if busy.is_empty() => Found::Nothing,
        false => Found::Busy(busy),
    }
}

/// Says that this thief comes. False: another is at it.
fn announce(core: &Core, lane: &Lane, me: u64) -> bool {
    let thief = lane.intent.robbed.load(SeqCst);
    // I2.
    let void = thief == 0 || is_void(core, thief);
    // ORDERING: SeqCst, before the barrier that the owner's `inside` is looked at behind; Relaxed: another is at it.
    void && lane.intent.robbed.compare_exchange(thief, me, SeqCst, Relaxed).is_ok()
}

/// Whom to wait for at a lane that another thief was at: the thief, or, if it is done meanwhile, the lane's owner, who may be inside.
fn to_wait_for(lane: u16, thief: u64) -> u16 {
    thief_lane(thief).unwrap_or(lane)
}

/// Gives what a lane that is the caller's holds to the others; was there any?
fn empty(core: &Core, lane: &Lane, own: &mut Own) -> bool {
    let any = own.magazine.len() > 0 || own.limbo.blocks() > 0 || own.slots.any();
    return_all(core.free_map(), own);
    itable::return_all(core, own);
    lane.note_held(own);
    any
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_thief_that_is_done_meanwhile_is_no_lane_to_wait_for() {
        assert_eq!(to_wait_for(7, 5 << LANE_BITS | 3), 3);
        assert_eq!(to_wait_for(7, 0), 7, "it gave what the lane held, or found the owner inside");
        assert_eq!(to_wait_for(7, u64::from(LANES) + 1), 7, "a number that somebody has scribbled");
    }
}
