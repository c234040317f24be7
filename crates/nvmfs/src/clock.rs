//! The clocks: a coarse one (6 ns a call, a tick of some milliseconds) for writers, an exact one (30 ns)
//! after a `stat`, and one that nobody sets.
//!
//! They are read by the C library. rustix looks for the kernel's vDSO itself, and crashes under valgrind, which maps none.

use heddle_vfs::Time;

fn read(clock: libc::clockid_t) -> Time {
    if cfg!(any(loom, shuttle)) {
        // In a model only the schedule may differ between runs.
        return Time(1);
    }
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec; these clocks exist on every Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(clock, &mut now) };
    Time::from_parts(now.tv_sec, now.tv_nsec as u32)
}

/// The time of the last clock tick.
pub fn coarse() -> Time {
    read(libc::CLOCK_REALTIME_COARSE)
}

/// The exact time.
pub fn exact() -> Time {
    read(libc::CLOCK_REALTIME)
}

/// Nanoseconds since some moment in the past.
pub fn monotonic_ns() -> u64 {
    read(libc::CLOCK_MONOTONIC).0 as u64
}
