//! The owner's side when another thread robs its idle lane of free blocks and slots: the owner waits for the
//! thief. The invariants are those of [`take_back`](crate::alloc::take_back).

use crate::ids::LANES;
use crate::state::core::Core;
use crate::state::lane::Lane;
use crate::state::wait;
use heddle_arena::sync::{fence_of_barrier, yield_now};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Instant;

/// The bits of a thief's word that name its lane.
pub const LANE_BITS: u32 = 16;

/// The lane of the thief that this word names; `None`: there is none, or a client has scribbled over the
/// word.
pub fn thief_lane(thief: u64) -> Option<u16> {
    Some((thief & ((1 << LANE_BITS) - 1)) as u16).filter(|lane| (1..=LANES).contains(lane))
}

/// Returns true if the thief of this word is dead or done (I2).
pub fn is_void(core: &Core, thief: u64) -> bool {
    thief_lane(thief).is_none_or(|lane| core.lane(lane).intent.inside.load(SeqCst) == 0)
}

/// Marks the lane as inside for the caller, which may use it: no thief is active there, and none starts until
/// `inside` is zero again.
#[cold]
pub fn keep_thieves_off(core: &Core, lane: &Lane) {
    let began = Instant::now();
    lane.intent.inside.store(1, SeqCst);
    fence_of_barrier();
    while let Some(thief) = Some(lane.intent.robbed.load(SeqCst)).filter(|thief| *thief != 0) {
        // Lets the thief take the resources.
        lane.intent.inside.store(0, SeqCst);
        yield_now();
        // In a model no thread dies, and time does not pass.
        if wait::look().is_some() {
            wait::held_up(core, thief_lane(thief).unwrap_or(0), began.elapsed());
        }
        if is_void(core, thief) {
            // ORDERING: SeqCst, as where it was announced; Relaxed: it is void already. I2; or the thief has
            // just finished, and the word is 0 or another thief's.
            let _void = lane.intent.robbed.compare_exchange(thief, 0, SeqCst, Relaxed);
        }
        lane.intent.inside.store(1, SeqCst);
        fence_of_barrier();
    }
}
