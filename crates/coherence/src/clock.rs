//! The time that the program sees in a turn.
//!
//! Under QEMU, and in turns, an operation takes hundreds of times as long as on a processor of its own. What happens once a clock tick
//! (a file's mtime is stored once a tick) would happen hundreds of times as often an operation, and its lines would be
//! counted as often. So time stands still in turns but for what a round takes where all workers run at once.
//!
//! State  the clock that was asked and where its answer lies, the rounds so far, and for each clock the time it showed first.

use std::collections::HashMap;

/// What an operation is taken to last, in ns: the fastest (reads) take 0.07 us, the slowest (renames) some 2 us.
const ROUND_NS: i64 = 1000;
/// A tick of the coarse clocks, in ns: that of a kernel with 250 ticks a second.
const TICK_NS: i64 = 4_000_000;

/// See the module.
#[derive(Default)]
pub struct Clock {
    /// Number of the clock, and address of the answer that the program waits for; 0: none.
    pub asked: (u64, u64),
    rounds: i64,
    starts: HashMap<u64, i64>,
}

impl Clock {
    /// A round begins.
    pub fn round(&mut self) {
        self.rounds += 1;
    }

    /// What clock `number`, which really shows `real_ns`, shows in a turn.
    pub fn now_ns(&mut self, number: u64, real_ns: i64) -> i64 {
        let coarse = [libc::CLOCK_REALTIME_COARSE, libc::CLOCK_MONOTONIC_COARSE].contains(&(number as i32));
        let passed = self.rounds * ROUND_NS;
        let passed = if coarse { passed / TICK_NS * TICK_NS } else { passed };
        *self.starts.entry(number).or_insert(real_ns - passed) + passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_turns_time_passes_by_rounds_whatever_the_real_clock_does() {
        let (mut clock, exact) = (Clock::default(), libc::CLOCK_REALTIME as u64);
        clock.round();
        let start = clock.now_ns(exact, 1_700_000_000_000_000_000);
        assert_eq!(start, 1_700_000_000_000_000_000);
        assert_eq!(clock.now_ns(exact, start + 55_000_000), start);
        clock.round();
        assert_eq!(clock.now_ns(exact, start + 99_000_000), start + 1000);
        assert_eq!(clock.now_ns(libc::CLOCK_MONOTONIC as u64, 5_000_000), 5_000_000);
    }

    #[test]
    fn a_coarse_clock_ticks_every_four_thousand_rounds() {
        let (mut clock, coarse) = (Clock::default(), libc::CLOCK_REALTIME_COARSE as u64);
        let start = clock.now_ns(coarse, 1_000_000_000);
        (0..3999).for_each(|_| clock.round());
        assert_eq!(clock.now_ns(coarse, 2_000_000_000), start);
        clock.round();
        assert_eq!(clock.now_ns(coarse, 2_000_000_000), start + TICK_NS);
    }
}
