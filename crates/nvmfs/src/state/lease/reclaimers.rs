//! The owner's side when another thread reclaims the free blocks and slots of its idle lane: the owner waits for the
//! reclaimer. The invariants are those of [`reclaim`](crate::alloc::reclaim).

use crate::ids::LANES;
use crate::state::core::Core;
use crate::state::lane::Lane;
use crate::state::wait;
use heddle_arena::sync::{fence_of_barrier, yield_now};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Instant;

/// The bits of a reclaimer's word that name its lane.
pub const LANE_BITS: u32 = 16;

/// The lane of the reclaimer that this word names; `None`: there is none, or a client has scribbled over the
/// word.
pub fn reclaimer_lane(reclaimer: u64) -> Option<u16> {
    Some((reclaimer & ((1 << LANE_BITS) - 1)) as u16).filter(|lane| (1..=LANES).contains(lane))
}

/// Returns true if the reclaimer of this word is dead or done (I2).
pub fn is_void(core: &Core, reclaimer: u64) -> bool {
    reclaimer_lane(reclaimer).is_none_or(|lane| core.lane(lane).intent.inside.load(SeqCst) == 0)
}

/// Clears the words with which the dead holder of this lane announced itself in other lanes. The caller has the lease, and settles the
/// lane. It is inside itself meanwhile, so the words would not be void (I4).
pub fn withdraw_reclaims(core: &Core, number: u16) {
    for lane in super::lanes(core) {
        let word = &core.lane(lane).intent.reclaimer;
        let reclaimer = word.load(SeqCst);
        if reclaimer_lane(reclaimer) == Some(number) {
            // ORDERING: SeqCst, as where it was announced: a thread that finds 0 sees the stores of the dead one. Relaxed: another thread
            // has cleared it.
            let _withdrawn = word.compare_exchange(reclaimer, 0, SeqCst, Relaxed);
        }
    }
}

/// Marks the lane as inside for the caller, which may use it: no reclaimer is active there, and none starts until
/// `inside` is zero again.
#[cold]
pub fn exclude_reclaimers(core: &Core, lane: &Lane) {
    let began = Instant::now();
    lane.intent.inside.store(1, SeqCst);
    fence_of_barrier();
    while let Some(reclaimer) = Some(lane.intent.reclaimer.load(SeqCst)).filter(|reclaimer| *reclaimer != 0) {
        // Lets the reclaimer take the resources.
        lane.intent.inside.store(0, SeqCst);
        yield_now();
        // In a model no thread dies, and time does not pass.
        if wait::check_every().is_some() {
            wait::held_up(core, reclaimer_lane(reclaimer).unwrap_or(0), began.elapsed());
        }
        if is_void(core, reclaimer) {
            // ORDERING: SeqCst, as where it was announced; Relaxed: it is void already. I2; or the reclaimer has
            // just finished, and the word is 0 or another reclaimer's.
            let _void = lane.intent.reclaimer.compare_exchange(reclaimer, 0, SeqCst, Relaxed);
        }
        lane.intent.inside.store(1, SeqCst);
        fence_of_barrier();
    }
}
