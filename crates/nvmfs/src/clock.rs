//! The clocks: a coarse one (6 ns, a tick of some milliseconds) for writers, an exact one (30 ns) where somebody looks.

use heddle_vfs::Time;

fn read(clock: libc::clockid_t) -> Time {
    if cfg!(any(loom, shuttle)) {
        // In a model nothing but the schedule may differ between runs.
        return Time(1);
    }
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `now` is a valid timespec; both clocks exist on every Linux, so the call cannot fail.
    unsafe { libc::clock_gettime(clock, &mut now) };
    Time::from_parts(now.tv_sec, now.tv_nsec as u32)
}

/// The time of the last clock tick.
pub fn coarse() -> Time {
    read(libc::CLOCK_REALTIME_COARSE)
}

/// The time.
pub fn exact() -> Time {
    read(libc::CLOCK_REALTIME)
}
