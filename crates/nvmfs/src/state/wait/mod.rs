//! Waiting for another lane: its holder may be dead or stopped, and a lock may name a lane that does not hold
//! it.
//!
//! A thread that has waited for a while checks the holder ([`held_up`]). It settles the lane of a dead holder
//! at once, by a function of a higher module in [`Hooks`](crate::state::core::Hooks).

pub mod forged;
mod freezer;
pub mod holders;
mod retries;
mod still;
pub mod stopped;

use crate::ids::LANES;
use crate::state::core::Core;
use crate::state::papers::one_process;
use heddle_arena::{LaneId, Lease};
use std::time::Duration;

pub use retries::Retries;
use stopped::HolderCheck;
pub use stopped::{first_check, patience};

/// How long a thread waits for a lock before it checks whether the holder is dead, and the interval of later
/// checks.
pub const CHECK_EVERY: Duration = Duration::from_millis(10);

/// [`CHECK_EVERY`]; `None` in a model, where time does not pass and no thread dies.
pub fn check_every() -> Option<Duration> {
    (!cfg!(any(loom, shuttle))).then_some(CHECK_EVERY)
}

/// Called by a thread that has waited for this lane since `waited`. A dead holder is settled here. One that
/// is stopped for too long is killed first.
#[cold]
pub fn held_up(core: &Core, lane: u16, waited: Duration) {
    if one_process(core) {
        return;
    }
    if !(1..=LANES).contains(&lane) {
        return forged::give_up_waiting(core, lane, waited, waited);
    }
    let settled = settle_if_dead(core, lane);
    let found = if settled {
        HolderCheck::MayHaveRun(Duration::ZERO)
    } else {
        stopped::check_and_kill_if_stopped(core, lane, waited)
    };
    match found {
        // The kernel needs a moment; the next check finds the lane marked.
        HolderCheck::Killed => std::thread::yield_now(),
        HolderCheck::MayHaveRun(ran) => forged::give_up_waiting(core, lane, waited, ran),
    }
}

/// Settles a lane whose holder is dead. Returns false if it is alive.
pub fn settle_if_dead(core: &Core, lane: u16) -> bool {
    let Ok(process_slot) = core.process_slot() else { return false };
    // A lane that is free and still named by a lock was left behind by a process that unmapped the arena.
    let Some(lease) = core.lane_table().lease_lane(&core.arena, LaneId(lane), process_slot) else {
        return false;
    };
    settle_and_release(core, lease);
    true
}

/// Settles a lane, and releases it unless its process keeps it.
pub fn settle_and_release(core: &Core, lease: Lease) {
    if let Some(lease) = (core.hooks.settle)(core, lease) {
        let _ours = core.lane_table().release(&core.arena, lease);
    }
}
