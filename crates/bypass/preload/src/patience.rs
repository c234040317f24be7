//! How long a handler of a signal waits for other threads: they may wait for the heap, which the thread that it has interrupted may have
//! locked.

use rustix::time::{ClockId, clock_gettime};

/// In seconds.
const LONGEST_SECS: i64 = 2;

/// A handler's.
pub struct Patience {
    until_secs: i64,
}

impl Patience {
    /// From now on.
    pub fn new() -> Patience {
        Patience { until_secs: now_secs() + LONGEST_SECS }
    }
}

fn now_secs() -> i64 {
    clock_gettime(ClockId::Monotonic).tv_sec
}

/// A handler, or one that waits as long as it takes.
pub trait Patient {
    /// Waits; false: it is too long for a handler.
    fn wait_while(&self, holds: impl FnMut() -> bool) -> bool;
}

impl Patient for Option<&Patience> {
    fn wait_while(&self, mut holds: impl FnMut() -> bool) -> bool {
        while holds() {
            if self.is_some_and(|patience| now_secs() > patience.until_secs) {
                return false;
            }
            rustix::thread::sched_yield();
        }
        true
    }
}

impl Patient for Option<Patience> {
    fn wait_while(&self, holds: impl FnMut() -> bool) -> bool {
        self.as_ref().wait_while(holds)
    }
}
