//! A worker's counts, its clock and its latencies.
//!
//! Clock    `CLOCK_MONOTONIC` through the vDSO: about 25 ns, the same on every machine, no calibration. That is as
//!          long as a fast operation, so not every operation is timed: one in 61. Cost: two readings in 61 operations,
//!          under 1 ns each. 61 is prime: it falls in step with no window or directory that is a power of two long.
//!          What an empty measurement costs is taken off each sample (`clock_cost_ns`).
//! Pauses   making a set anew (`exclude`) counts neither as time nor in a sample.

use crate::ops::Result;
use hdrhistogram::Histogram;

/// One operation in this many is timed.
const SAMPLE_EVERY: u32 = 61;
/// Longest latency kept apart from longer ones: an hour, in ns.
const LATENCY_MAX_NS: u64 = 3_600_000_000_000;

/// Empty latencies, two digits: steps of at most 1 %.
pub(crate) fn latencies() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_MAX_NS, 2).expect("bounds are valid")
}

/// Monotonic time in ns.
#[inline]
pub(crate) fn now_ns() -> u64 {
    let mut at = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: room for the answer; this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut at) };
    at.tv_sec as u64 * 1_000_000_000 + at.tv_nsec as u64
}

/// The counts of one worker.
pub(crate) struct Recorder {
    pub reads: u64,
    pub writes: u64,
    pub excluded_ns: u64,
    pub latencies: Histogram<u64>,
    countdown: u32,
    clock_cost_ns: u64,
}

impl Recorder {
    pub fn new() -> Recorder {
        let clock_cost_ns = (0..200).map(|_| now_ns().abs_diff(now_ns())).min().unwrap_or(0);
        Recorder { reads: 0, writes: 0, excluded_ns: 0, latencies: latencies(), countdown: 1, clock_cost_ns }
    }

    /// Runs one operation, and times one of every [`SAMPLE_EVERY`].
    #[inline]
    pub fn operation<T>(&mut self, step: impl FnOnce(&mut Recorder) -> Result<T>) -> Result<T> {
        self.countdown -= 1;
        if self.countdown != 0 {
            return step(self);
        }
        self.countdown = SAMPLE_EVERY;
        let excluded_ns = self.excluded_ns;
        let start_ns = now_ns();
        let done = step(self);
        let spent_ns = now_ns() - start_ns - (self.excluded_ns - excluded_ns);
        self.latencies.saturating_record(spent_ns.saturating_sub(self.clock_cost_ns).max(1));
        done
    }

    /// Runs code that is not part of the workload, with the clock stopped.
    #[cold]
    pub fn exclude<T>(&mut self, pause: impl FnOnce() -> Result<T>) -> Result<T> {
        let start_ns = now_ns();
        let done = pause();
        self.excluded_ns += now_ns() - start_ns;
        done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_operation_in_61_is_timed_and_the_first_is() {
        let mut recorder = Recorder::new();
        for _ in 0..62 {
            recorder.operation(|_| Ok(())).unwrap();
        }
        assert_eq!(recorder.latencies.len(), 2);
    }

    #[test]
    fn a_pause_counts_neither_as_time_nor_as_latency() {
        let mut recorder = Recorder::new();
        let pause = || {
            std::thread::sleep(std::time::Duration::from_millis(20));
            Ok(())
        };
        recorder.operation(|m| m.exclude(pause)).unwrap();
        assert!(recorder.excluded_ns >= 20_000_000);
        assert!(recorder.latencies.max() < 10_000_000, "{}", recorder.latencies.max());
    }
}
