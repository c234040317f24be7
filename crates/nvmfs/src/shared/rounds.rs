//! The thread of the daemon's rounds, which settle what the dead have left.
//!
//! State       the thread, and its rounds. It talks to nobody.
//! Invariants  R1  a round goes inside the gate: after the end of the server it touches the mount no more.
//!             R2  no other user delays a round: it reads what only those who may attach can lock ([`crate::state::wait::holders`]).

use crate::state::core::Core;
use crate::upkeep::settle;
use heddle_vfs::workers::Gate;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Interval at which the daemon looks for dead lanes by itself.
pub(super) const ROUND_EVERY: Duration = Duration::from_millis(500);

/// Goes on until it is told to stop, or the gate is closed.
pub(super) fn go(core: &Core, stop: &OwnedFd, gate: &Gate) {
    let mut rounds = settle::Rounds::default();
    let mut locked = false;
    let mut due = Instant::now() + ROUND_EVERY;
    while !is_told(stop, due) {
        if Instant::now() < due {
            continue;
        }
        let Some(_inside) = gate.enter() else { return };
        rounds.go(core);
        // A daemon that took over has no lock of its own until the last client of the dead daemon
        // has gone.
        locked = locked || core.region.lock_again();
        due = Instant::now() + ROUND_EVERY;
    }
}

/// Waits until then, or until a signal comes. Returns true if the thread is to stop.
fn is_told(stop: &OwnedFd, until: Instant) -> bool {
    let timeout = Timespec::try_from(until.saturating_duration_since(Instant::now())).ok();
    poll(&mut [PollFd::new(stop, PollFlags::IN)], timeout.as_ref()).is_ok_and(|told| told > 0)
}
