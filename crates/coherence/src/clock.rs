//! The time that the program sees in a turn.
//!
//! Under QEMU, and in turns, an operation takes hundreds of times as long as on a processor of its own. What happens once a clock tick
//! (a file's mtime is stored once a tick) would happen hundreds of times as often an operation, and its lines would be
//! counted as often. So time stands still in turns but for what a round takes where all workers run at once.
//!
//! State  the time of the first question, the rounds since, and where the answer to the last question lies.

/// What an operation is taken to last, in ns: the fastest (reads) take 0.07 us, the slowest (renames) some 2 us.
const ROUND_NS: i64 = 1000;

/// See the module. It serves all clocks alike: each runs from the time that it shows first, in steps of a round.
#[derive(Default)]
pub struct Clock {
    /// Address of the answer that the program waits for; 0: none.
    pub asked: u64,
    rounds: i64,
    /// Clocks told apart by what they show: where each stood at round 0.
    starts: Vec<i64>,
}

/// Clocks that show times closer than this are one clock (an hour): real time and time since boot are years apart.
const ONE_CLOCK_NS: i64 = 3_600_000_000_000;

impl Clock {
    /// A round begins.
    pub fn round(&mut self) {
        self.rounds += 1;
    }

    /// What a clock that really shows `real_ns` shows in a turn.
    pub fn now_ns(&mut self, real_ns: i64) -> i64 {
        let passed = self.rounds * ROUND_NS;
        let known = self.starts.iter().find(|start| real_ns.abs_diff(**start) < ONE_CLOCK_NS as u64);
        let start = known.copied().unwrap_or_else(|| {
            self.starts.push(real_ns - passed);
            real_ns - passed
        });
        start + passed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn in_turns_time_passes_by_rounds_whatever_the_real_clock_does() {
        let mut clock = Clock::default();
        clock.round();
        let start = clock.now_ns(1_700_000_000_000_000_000);
        assert_eq!(start, 1_700_000_000_000_000_000);
        assert_eq!(clock.now_ns(start + 55_000_000), start);
        clock.round();
        assert_eq!(clock.now_ns(start + 99_000_000), start + 1000);
    }

    #[test]
    fn the_clock_since_boot_is_another_one() {
        let mut clock = Clock::default();
        clock.now_ns(1_700_000_000_000_000_000);
        assert_eq!(clock.now_ns(5_000_000), 5_000_000);
        clock.round();
        assert_eq!(clock.now_ns(77_000_000), 5_001_000);
    }
}
