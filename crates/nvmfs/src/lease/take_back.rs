//! What idle lanes hold of free blocks and inode slots, taken back by whoever is about to fail for want of space.
//!
//! A lane's owner touches what is its own without a locked operation. So a thief says first that it is coming (`Intent::robbed`), has the
//! kernel put a barrier into every running thread, and then looks whether the owner is inside a call: the owner stores `inside` before it
//! loads `robbed`. One of the two sees the other (O1 of [`super`]). An owner that finds a thief waits for it; a lane whose owner is inside
//! is left alone.
//!
//! Invariants  I1  who settles a lane or gives it back says so in `inside` too ([`keep_thieves_off`]).
//!             I2  a thief is inside a call of its own; one that is not has died, and its word is void.

use crate::alloc::return_all;
use crate::core::{Core, LANES};
use crate::itable;
use crate::lane::{Lane, Own};
use crate::lease::LaneGuard;
use crate::settle;
use heddle_arena::sync::yield_now;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

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
pub fn take_back(core: &Core, guard: &LaneGuard<'_>) -> Found {
    if cfg!(any(loom, shuttle)) {
        return Found::Nothing;
    }
    let used = (core.root().lanes_used.load(SeqCst) as u16).min(LANES);
    let may_hold = |lane: &u16| *lane != guard.id && core.lane(*lane).holds_any();
    let (robbed, others): (Vec<u16>, Vec<u16>) =
        (1..=used).filter(may_hold).partition(|lane| announce(core, core.lane(*lane), guard.id));
    // Another thief is at those: what it gives to the map is anybody's.
    let mut busy: Vec<u16> =
        others.iter().map(|lane| to_wait_for(*lane, core.lane(*lane).intent.robbed.load(SeqCst))).collect();
    if robbed.is_empty() {
        return if busy.is_empty() { Found::Nothing } else { Found::Busy(busy) };
    }
    barrier_everywhere();
    // PERSIST: D15: what the owners freed was published, and slots of what they ended zeroed, before the barrier above.
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
fn announce(core: &Core, lane: &Lane, me: u16) -> bool {
    let thief = lane.intent.robbed.load(SeqCst);
    // I2.
    let void = thief == 0 || is_void(core, thief);
    // ORDERING: SeqCst, before the barrier that the owner's `inside` is looked at behind; Relaxed: another is at it.
    void && lane.intent.robbed.compare_exchange(thief, u64::from(me), SeqCst, Relaxed).is_ok()
}

/// Whom to wait for at a lane that another thief was at: the thief, or, if it is done meanwhile, the lane's owner, who may be inside.
fn to_wait_for(lane: u16, thief: u64) -> u16 {
    if (1..=u64::from(LANES)).contains(&thief) { thief as u16 } else { lane }
}

/// I2: is a thief of this number dead, or done?
fn is_void(core: &Core, thief: u64) -> bool {
    !(1..=u64::from(LANES)).contains(&thief) || core.lane(thief as u16).intent.inside.load(SeqCst) == 0
}

/// Gives what a lane that is the caller's holds to the others; was there any?
fn empty(core: &Core, lane: &Lane, own: &mut Own) -> bool {
    let any = own.magazine.len() > 0 || own.limbo.blocks() > 0 || own.slots.any();
    return_all(core.free_map(), own);
    itable::return_all(core, own);
    lane.note_held(own);
    any
}

/// Behind it every thread has done what it had begun, and sees what was stored before it.
fn barrier_everywhere() {
    // SAFETY: no memory is involved.
    let barrier = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) };
    if barrier != 0 {
        // A kernel without it: stores are seen by all long before this is over.
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// The lane is about to be used by the caller, which may: no thief is at it, and none comes, until `inside` is zero again.
#[cold]
pub fn keep_thieves_off(core: &Core, lane: &Lane) {
    let began = Instant::now();
    lane.intent.inside.store(1, SeqCst);
    while let Some(thief) = Some(lane.intent.robbed.load(SeqCst)).filter(|thief| *thief != 0) {
        // Let it have what there is.
        lane.intent.inside.store(0, SeqCst);
        yield_now();
        settle::held_up(core, thief as u16, began.elapsed());
        if is_void(core, thief) {
            // ORDERING: SeqCst, as where it was announced; Relaxed: it is void already.
            // I2; or it has just finished, and the word is another's or none.
            let _void = lane.intent.robbed.compare_exchange(thief, 0, SeqCst, Relaxed);
        }
        lane.intent.inside.store(1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thief_that_is_done_meanwhile_is_no_lane_to_wait_for() {
        assert_eq!(to_wait_for(7, 3), 3);
        assert_eq!(to_wait_for(7, 0), 7, "it gave what the lane held, or found the owner inside");
        assert_eq!(to_wait_for(7, u64::from(LANES) + 1), 7, "a number that somebody has scribbled");
    }
}
