//! The time for which a signal handler waits for other threads: they may wait for the heap, which the
//! interrupted thread may have locked.

use heddle_nvmfs::clock::monotonic_ns;
use std::sync::OnceLock;

/// In seconds.
const LONGEST_SECS: u64 = 2;

/// A handler's patience.
#[derive(Clone, Copy)]
pub struct Patience {
    until_secs: u64,
}

impl Patience {
    /// Starts now.
    pub fn new() -> Patience {
        Patience { until_secs: now_secs() + LONGEST_SECS }
    }

    /// Returns true if it has ended.
    pub fn is_over(&self) -> bool {
        now_secs() > self.until_secs
    }
}

impl Default for Patience {
    fn default() -> Patience {
        Patience::new()
    }
}

static HANDLERS: OnceLock<fn() -> bool> = OnceLock::new();

/// From now on `know` tells whether the calling thread is in a signal handler.
pub fn handlers_are_known_by(know: fn() -> bool) {
    let _is_known = HANDLERS.set(know);
}

/// Returns true if the calling thread is known to be in a signal handler.
pub fn is_in_handler() -> bool {
    HANDLERS.get().is_some_and(|know| know())
}

/// Lets other threads run, for longer with more attempts.
pub fn pause(looks: u32) {
    if looks < 100 {
        rustix::thread::sched_yield();
    } else {
        // A system call is under way.
        let _ = rustix::thread::nanosleep(&rustix::thread::Timespec { tv_sec: 0, tv_nsec: 50_000 });
    }
}

fn now_secs() -> u64 {
    monotonic_ns() / 1_000_000_000
}

/// The patience of a handler, or that of a caller that waits without a limit.
pub trait Patient {
    /// Waits while `holds` returns true. Returns false if that takes too long for a handler.
    fn wait_while(&self, holds: impl FnMut() -> bool) -> bool;
}

impl Patient for Option<&Patience> {
    fn wait_while(&self, mut holds: impl FnMut() -> bool) -> bool {
        let mut looks = 0;
        while holds() {
            if self.is_some_and(Patience::is_over) {
                return false;
            }
            // A thread of a real-time class must sleep: a yield lets no thread of another class run.
            looks += 1;
            pause(looks);
        }
        true
    }
}

impl Patient for Option<Patience> {
    fn wait_while(&self, holds: impl FnMut() -> bool) -> bool {
        self.as_ref().wait_while(holds)
    }
}
