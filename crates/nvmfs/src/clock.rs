//! The clocks: a coarse one (6 ns, a tick of some milliseconds) for writers, an exact one (30 ns) where somebody looks.

use heddle_vfs::Time;
use rustix::time::{ClockId, clock_gettime};

fn read(clock: ClockId) -> Time {
    let now = clock_gettime(clock);
    Time::from_parts(now.tv_sec, now.tv_nsec as u32)
}

/// The time of the last clock tick.
pub fn coarse() -> Time {
    read(ClockId::RealtimeCoarse)
}

/// The time.
pub fn exact() -> Time {
    read(ClockId::Realtime)
}
