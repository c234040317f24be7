//! The times of files: coarse for writers, exact after a `stat`.
//!
//! Writers of one file share its node. So a write changes the node's times only once a tick of the coarse
//! clock (some milliseconds). But a write after a `stat` must be distinguishable from one before it: for more
//! than a tick after a `stat`, writes take the exact time. Other changes of the node always take the exact
//! time.

use crate::ids::Nid;
use crate::planted::{Breach, breaks};
use heddle_vfs::Time;
use rustix::time::{ClockId, clock_gettime};
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

/// Inodes share these words by number: a `stat` of one makes writers of others exact for a tick, which does
/// no harm.
const WORDS: usize = 512;
/// Longer than any tick of the coarse clock, in nanoseconds.
const TICK_MAX_NS: i64 = 11_000_000;

fn read(clock: ClockId) -> Time {
    let now = clock_gettime(clock);
    Time::from_parts(now.tv_sec, now.tv_nsec as u32)
}

/// The present time.
pub(crate) fn now() -> Time {
    read(ClockId::Realtime)
}

/// The time of the system's last tick.
pub(crate) fn tick() -> Time {
    read(ClockId::RealtimeCoarse)
}

/// The tick of the last `stat`.
pub(crate) struct StatTicks(Box<[AtomicI64; WORDS]>);

impl StatTicks {
    pub(crate) fn new() -> StatTicks {
        StatTicks(Box::new([const { AtomicI64::new(i64::MIN) }; WORDS]))
    }

    /// Notes that the times of this inode are about to be read.
    #[inline]
    pub(crate) fn note(&self, nid: Nid) {
        let (word, tick) = (&self.0[nid.0 as usize % WORDS], tick().0);
        // ORDERING: Relaxed; a write that begins after the `stat` has returned is ordered after it by the
        // callers' own communication.
        if word.load(Relaxed) != tick {
            word.store(tick, Relaxed);
        }
    }

    /// The new times of a file with these times after a write; `None`: they stay.
    pub(crate) fn of_write(&self, nid: Nid, mtime: Time, ctime: Time) -> Option<Time> {
        let tick = tick();
        // ORDERING: Relaxed, as in `note`. A new tick counts from the last whole one, so an exact time of the
        // tick before may be later.
        let seen = self.0[nid.0 as usize % WORDS].load(Relaxed).saturating_add(TICK_MAX_NS) >= tick.0;
        let seen = seen && !breaks(Breach::StatForgotten);
        if breaks(Breach::TimesGoBack) {
            static WRITES: AtomicI64 = AtomicI64::new(0);
            // ORDERING: Relaxed, a count.
            return Some(Time(tick.0 - WRITES.fetch_add(1, Relaxed) % 64 * 1_000_000));
        }
        let is_of_this_tick = mtime == ctime && (0..TICK_MAX_NS).contains(&ctime.0.saturating_sub(tick.0));
        match (seen, ctime < tick) {
            (false, false) if is_of_this_tick => None,
            (false, true) => Some(tick),
            // The coarse clock lags behind the exact one: it must not move a time back that a `stat` may have
            // seen.
            _ => Some(now()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_in_the_tick_of_another_changes_nothing() {
        let (stat_ticks, nid) = (StatTicks::new(), Nid(5));
        let unseen = (0..100).any(|_| {
            let tick = tick();
            stat_ticks.of_write(nid, tick, tick).is_none()
        });
        assert!(unseen);
    }

    #[test]
    fn a_write_that_nobody_looks_for_takes_the_tick() {
        for (mtime, ctime) in [(0, 0), (7, 0), (i64::MIN, i64::MIN)] {
            let stat_ticks = StatTicks::new();
            let all_ticks = (0..1000).all(|_| {
                let before = tick();
                let time = stat_ticks.of_write(Nid(5), Time(mtime), Time(ctime)).unwrap();
                // The exact time is later than that of the last tick.
                (before..=tick()).contains(&time)
            });
            assert!(all_ticks, "{mtime} {ctime}");
        }
    }

    #[test]
    fn a_write_after_a_look_is_later_than_what_was_seen() {
        let (stat_ticks, nid) = (StatTicks::new(), Nid(5));
        let mut times = stat_ticks.of_write(nid, Time(0), Time(0)).unwrap();
        for _ in 0..1000 {
            stat_ticks.note(nid);
            let later = stat_ticks.of_write(nid, times, times).unwrap();
            assert!(later > times);
            times = later;
        }
    }

    #[test]
    fn a_write_sets_the_present_whatever_time_an_image_has() {
        let stat_ticks = StatTicks::new();
        for time in [i64::MIN, i64::MIN + 1, -1, 0, i64::MAX].map(Time) {
            assert!(
                stat_ticks.of_write(Nid(5), time, time).is_some_and(|now| now.secs() > 1_600_000_000),
                "{time:?}"
            );
        }
    }

    #[test]
    fn a_write_after_a_change_of_attributes_takes_no_time_back() {
        for _ in 0..1000 {
            let (stat_ticks, changed) = (StatTicks::new(), now());
            let time = stat_ticks.of_write(Nid(5), Time(0), changed);
            assert!(time.is_some_and(|time| time >= changed));
        }
    }
}
