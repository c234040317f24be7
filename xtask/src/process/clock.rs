//! Time as a child could use it: a machine that stands still for minutes (a paused guest) takes nothing of a limit.
//!
//! The end of the whole command counts on the wall: whoever waits for it does.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Between two looks at a child.
pub(super) const LOOK: Duration = Duration::from_millis(50);
/// The most that counts of the time between two looks: on a busy machine a look comes late, but not by this much.
const COUNTS: Duration = Duration::from_secs(2);

static END: OnceLock<Instant> = OnceLock::new();

/// From now on no child runs longer than that, whatever its own limit.
pub fn end_by(after: Duration) {
    let _set_before = END.set(Instant::now() + after);
}

/// Is it time to end the whole command?
pub fn is_over() -> bool {
    END.get().is_some_and(|end| Instant::now() >= *end)
}

/// How much of a limit is used up.
pub(super) struct Used {
    counted: Duration,
    looked: Instant,
}

impl Used {
    pub(super) fn new() -> Used {
        Used { counted: Duration::ZERO, looked: Instant::now() }
    }

    /// To be asked at each look.
    pub(super) fn up_to(&mut self, now: Instant) -> Duration {
        self.counted += now.saturating_duration_since(self.looked).min(COUNTS);
        self.looked = now;
        self.counted
    }
}
