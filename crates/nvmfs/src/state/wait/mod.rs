//! Waiting for what a lane holds: its holder may be dead, or stopped, and a lock may name a lane that does not hold it.
//!
//! A thread that has waited for a while looks after the holder ([`held_up`]). A dead one's lane is settled there and then: how is known
//! to a module above, and stands in [`Hooks`](crate::state::core::Hooks).

pub mod forged;
mod freezer;
pub mod holders;
mod retries;
mod still;
pub mod stopped;

use crate::ids::LANES;
use crate::state::core::Core;
use heddle_arena::{LaneId, Lease};
use std::time::Duration;

pub use retries::Retries;
use stopped::Found;
pub use stopped::patience;

/// How long a thread waits for a lock before it looks whether the holder is dead, and how often it looks then.
pub const LOOK: Duration = Duration::from_millis(10);

/// The same, for who waits; in a model time does not pass, and nobody dies.
pub fn look() -> Option<Duration> {
    (!cfg!(any(loom, shuttle))).then_some(LOOK)
}

/// Others wait for this lane since `waited`: if its holder is dead, it is settled here and now; if it is at rest for too long, it is
/// killed first.
#[cold]
pub fn held_up(core: &Core, lane: u16, waited: Duration) {
    if core.locks.is_some() {
        return;
    }
    if !(1..=LANES).contains(&lane) {
        return forged::give_up_waiting(core, lane, waited, waited);
    }
    let settled = settle_if_dead(core, lane);
    let found =
        if settled { Found::MayHaveRun(Duration::ZERO) } else { stopped::look_after(core, lane, waited) };
    match found {
        // The kernel needs a moment; the next look finds the lane marked.
        Found::Killed => std::thread::yield_now(),
        Found::MayHaveRun(ran) => forged::give_up_waiting(core, lane, waited, ran),
    }
}

/// Settles a lane whose holder is dead; false if it lives.
pub fn settle_if_dead(core: &Core, lane: u16) -> bool {
    let Ok(seat) = core.seat() else { return false };
    // A lane that is free, and yet in somebody's way, was left behind by a process that let go of its mapping.
    let Some(lease) = core.lane_table().lease_lane(&core.arena, LaneId(lane), seat) else { return false };
    settle_and_release(core, lease);
    true
}

/// Settles a lane, and lets go of it unless it is left to its process.
pub fn settle_and_release(core: &Core, lease: Lease) {
    if let Some(lease) = (core.hooks.settle)(core, lease) {
        let _ours = core.lane_table().release(&core.arena, lease);
    }
}
