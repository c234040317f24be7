//! A lane whose idle owner is being robbed of free blocks and slots: its owner waits for the thief. The invariants are those of
//! [`take_back`](crate::alloc::take_back).

use crate::ids::LANES;
use crate::state::core::Core;
use crate::state::lane::Lane;
use crate::state::wait;
use heddle_arena::sync::{fence_of_barrier, yield_now};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Instant;

/// Of a thief's word those that name its lane.
pub const LANE_BITS: u32 = 16;

/// The lane of the thief that this word names; `None`: none, or somebody has scribbled.
pub fn thief_lane(thief: u64) -> Option<u16> {
    Some((thief & ((1 << LANE_BITS) - 1)) as u16).filter(|lane| (1..=LANES).contains(lane))
}

/// I2: is the thief of this word dead, or done?
pub fn is_void(core: &Core, thief: u64) -> bool {
    thief_lane(thief).is_none_or(|lane| core.lane(lane).intent.inside.load(SeqCst) == 0)
}

/// The lane is about to be used by the caller, which may: no thief is at it, and none comes, until `inside` is zero again.
#[cold]
pub fn keep_thieves_off(core: &Core, lane: &Lane) {
    let began = Instant::now();
    lane.intent.inside.store(1, SeqCst);
    fence_of_barrier();
    while let Some(thief) = Some(lane.intent.robbed.load(SeqCst)).filter(|thief| *thief != 0) {
        // Let it have what there is.
        lane.intent.inside.store(0, SeqCst);
        yield_now();
        // In a model nobody dies, and time stands still.
        if wait::look().is_some() {
            wait::held_up(core, thief_lane(thief).unwrap_or(0), began.elapsed());
        }
        if is_void(core, thief) {
            // ORDERING: SeqCst, as where it was announced; Relaxed: it is void already.
            // I2; or it has just finished, and the word is another's or none.
            let _void = lane.intent.robbed.compare_exchange(thief, 0, SeqCst, Relaxed);
        }
        lane.intent.inside.store(1, SeqCst);
        fence_of_barrier();
    }
}
