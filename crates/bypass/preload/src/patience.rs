//! The time for which a signal handler waits for other threads: they may wait for the heap, which the
//! interrupted thread may have locked.

use crate::thread::pause;
use heddle_bypass::monotonic_ns;

/// In seconds.
const LONGEST_SECS: u64 = 2;

/// A handler's patience.
pub struct Patience {
    until_secs: u64,
}

impl Patience {
    /// Starts now.
    pub fn new() -> Patience {
        Patience { until_secs: now_secs() + LONGEST_SECS }
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
            if self.is_some_and(|patience| now_secs() > patience.until_secs) {
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
