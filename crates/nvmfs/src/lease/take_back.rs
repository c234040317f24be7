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
use crate::lane::Lane;
use crate::lease::LaneGuard;
use crate::settle;
use heddle_arena::sync::yield_now;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::time::{Duration, Instant};

/// A thief that lives needs less.
const THIEF_MAX: Duration = Duration::from_millis(500);

/// Gives the blocks that idle lanes hold to the free map, and their slots to the chunks; false: there were none.
pub fn take_back(core: &Core, guard: &LaneGuard<'_>) -> bool {
    if cfg!(any(loom, shuttle)) {
        return false;
    }
    let me = u64::from(guard.id);
    let used = (core.root().lanes_used.load(SeqCst) as u16).min(LANES);
    let others = (1..=used).filter(|lane| *lane != guard.id).map(|lane| core.lane(lane));
    // ORDERING: SeqCst, before the barrier that the owner's `inside` is looked at behind; Relaxed: another is at it.
    let announced = |lane: &&Lane| lane.intent.robbed.compare_exchange(0, me, SeqCst, Relaxed).is_ok();
    let (robbed, of_others): (Vec<&Lane>, Vec<&Lane>) =
        others.filter(|lane| lane.holds_any()).partition(announced);
    if robbed.is_empty() {
        // Another thief is at it: what it gives to the map is anybody's.
        let began = Instant::now();
        let busy = |lane: &&Lane| lane.intent.robbed.load(SeqCst) != 0;
        while of_others.iter().any(busy) && began.elapsed() < THIEF_MAX {
            yield_now();
        }
        return !of_others.is_empty() && began.elapsed() < THIEF_MAX;
    }
    barrier_everywhere();
    // PERSIST: D15: what the owners freed was published, and slots of what they ended zeroed, before the barrier above.
    core.region.fence();
    let mut any = false;
    for lane in robbed {
        if lane.intent.inside.load(SeqCst) == 0 {
            // SAFETY: the owner is not inside, and waits for this thief before it is (see the module).
            let own = unsafe { lane.own() };
            any |= own.magazine.len() > 0 || own.limbo.blocks() > 0 || own.slots.any();
            return_all(core.free_map(), own);
            itable::return_all(core, own);
            lane.note_held(own);
        }
        // ORDERING: Release, pairs with the Acquire in `begin`.
        lane.intent.robbed.store(0, Release);
    }
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
        let gone = !(1..=u64::from(LANES)).contains(&thief)
            || core.lane(thief as u16).intent.inside.load(SeqCst) == 0;
        if gone {
            // ORDERING: SeqCst, as where it was announced; Relaxed: it is void already.
            // I2; or it has just finished, and the word is another's or none.
            let _void = lane.intent.robbed.compare_exchange(thief, 0, SeqCst, Relaxed);
        }
        lane.intent.inside.store(1, SeqCst);
    }
}
