//! Waiting for words, and the ageing that lets writers in under endless readers.
//!
//! Modes       Paper: spin. Incoming readers outrank waiting writers (SRL IV-B, "current implementation"). Every so often a spinner
//!             offers its core, since here a holder can be preempted, which the papers' kernel code hardly is.
//!             Fair: spin a little, then sleep in the arena's parking table; writers age (SRL IV-B, proposed there).
//! Ageing      A writer that readers have kept out for [`AGE_AFTER`] counts itself in `aged` and in the buckets of its range.
//!             A reader that holds nothing yet and whose range meets such a bucket holds back until the count is gone, at most for
//!             [`HOLD_BACK_MAX`]. The writer takes itself out once it holds its whole range; from then on the words protect it.
//! Bound       After it has aged, only readers that were already past the check stand before the writer: each thread at most once.
//!             So it is in after AGE_AFTER + the longest of their holds (and the scheduler's delays).
//! No deadlock Only readers that hold nothing hold back, and only for a bounded time: neither a bucket that two segments share nor a
//!             thread that holds another range of the file can close a cycle.
//! Cost        A reader that meets no aged writer reads one word of the head's first line, which it reads anyway; nothing
//!             shared is written.
//! Orderings   O1  `aged` and the buckets decide fairness, never exclusion: Relaxed, but SeqCst where a sleeper waits for them.

use std::time::{Duration, Instant};

use heddle_arena::Arena;
use heddle_arena::sync::atomic::Ordering::{Relaxed, SeqCst};
use heddle_arena::sync::spin_hint;

use crate::head::{AGED_BUCKETS, Access, LockHead};

/// How waiters wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Mode {
    /// The papers' algorithm to the letter: spinning, readers first.
    Paper,
    /// The same words; waiters sleep, and a waiting writer ages.
    #[default]
    Fair,
}

/// A writer kept out by readers for this long ages. A tenth of the 10 ms in which it is to be in. (Under loom, where time does
/// not pass, at once.)
pub const AGE_AFTER: Duration = if cfg!(loom) { Duration::ZERO } else { Duration::from_millis(1) };

/// A reader holds back for aged writers at most this long: readers are blocked for a time, never for good.
pub const HOLD_BACK_MAX: Duration = Duration::from_millis(10);

/// Turns before a waiter sleeps: about what a sleep and a wake cost.
const SPINS: u32 = if cfg!(loom) { 0 } else { 100 };
/// Turns between offers of the core, in paper mode.
const SPINS_PER_YIELD: u32 = 1000;

/// The holder that keeps a waiter out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Holder {
    Readers,
    Writer,
}

/// Returns true if a caller that holds nothing may try at once. A reader may not while there are aged
/// writers.
#[inline]
pub(crate) fn may_pass(mode: Mode, head: &LockHead, access: Access) -> bool {
    // ORDERING: Relaxed, O1.
    mode == Mode::Paper || access == Access::Exclusive || head.aged.load(Relaxed) == 0
}

/// One acquire's state of waiting. It is made only once there is a holder to wait for: its fields are stores
/// that a locked instruction would have to drain.
pub(crate) struct Waiter<'a> {
    arena: &'a Arena,
    head: &'a LockHead,
    mode: Mode,
    access: Access,
    range: (u64, u64),
    turns: u32,
    since: Option<Instant>,
    aged: bool,
}

impl<'a> Waiter<'a> {
    /// For an acquire of the segments `range`, first and last.
    pub(crate) fn new(
        arena: &'a Arena,
        head: &'a LockHead,
        mode: Mode,
        access: Access,
        range: (u64, u64),
    ) -> Waiter<'a> {
        Waiter { arena, head, mode, access, range, turns: 0, since: None, aged: false }
    }

    /// Holds a reader back for aged writers. Only while it holds nothing (No deadlock).
    pub(crate) fn hold_back(&self) {
        if may_pass(self.mode, self.head, self.access) {
            return;
        }
        let aged = || self.buckets().any(|bucket| self.head.aged_in[bucket].load(SeqCst) != 0);
        let timeout = (!cfg!(loom)).then_some(HOLD_BACK_MAX);
        self.arena.parking().wait(self.held_back_key(), aged, timeout);
    }

    /// Waits a while, at most until `holder` finds no holder. The caller then tries again. `key` is the word
    /// that releasers wake.
    pub(crate) fn pause(&mut self, key: u64, holder: impl Fn() -> Option<Holder>) {
        self.turns += 1;
        if self.mode == Mode::Paper {
            if self.turns.is_multiple_of(SPINS_PER_YIELD) {
                std::thread::yield_now();
            }
            return spin_hint();
        }
        if self.turns <= SPINS {
            return spin_hint();
        }
        let parking = self.arena.parking();
        match holder() {
            Some(Holder::Readers) if self.access == Access::Exclusive && !self.aged => {
                let since = *self.since.get_or_insert_with(Instant::now);
                let left = AGE_AFTER.saturating_sub(since.elapsed());
                parking.wait(key, || holder().is_some(), Some(left));
                // After a writer it would hold readers back in vain.
                if since.elapsed() >= AGE_AFTER && holder() == Some(Holder::Readers) {
                    self.age();
                }
            }
            seen => {
                parking.wait(key, || seen.is_some() && holder() == seen, None);
            }
        }
    }

    /// Ends the waiting: the caller holds its whole range.
    pub(crate) fn done(self) {
        if self.aged {
            self.rejuvenate();
        }
    }

    fn age(&mut self) {
        self.aged = true;
        for bucket in self.buckets() {
            // ORDERING: Relaxed, O1.
            self.head.aged_in[bucket].fetch_add(1, Relaxed);
        }
        // ORDERING: Relaxed, O1.
        self.head.aged.fetch_add(1, Relaxed);
    }

    fn rejuvenate(self) {
        // ORDERING: Relaxed, O1.
        self.head.aged.fetch_sub(1, Relaxed);
        for bucket in self.buckets() {
            self.head.aged_in[bucket].fetch_sub(1, SeqCst);
        }
        self.arena.parking().wake(self.held_back_key());
    }

    fn held_back_key(&self) -> u64 {
        self.arena.offset_of(&self.head.aged).raw()
    }

    fn buckets(&self) -> impl Iterator<Item = usize> + use<> {
        let (first, last) = self.range;
        let count = (last - first).saturating_add(1).min(AGED_BUCKETS as u64);
        (0..count).map(move |i| ((first + i) % AGED_BUCKETS as u64) as usize)
    }
}

/// Wakes the threads that wait for `key`, after the SeqCst store that lets them in.
#[inline]
pub(crate) fn wake(mode: Mode, arena: &Arena, key: u64) {
    if mode == Mode::Fair {
        arena.parking().wake(key);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_segments_is_counted_in_a_bucket_for_each() {
        let arena = Arena::private(1 << 20).unwrap();
        let head = arena.get(arena.alloc_zeroed::<LockHead>(1).unwrap());
        let of = |first, last| {
            let waiter = Waiter::new(&arena, head, Mode::Fair, Access::Exclusive, (first, last));
            waiter.buckets().collect::<Vec<_>>()
        };
        assert_eq!(of(3, 3), [3]);
        assert_eq!(of(14, 17), [14, 15, 0, 1]);
        assert_eq!(of(33, 33 + 14), (1..16).collect::<Vec<_>>());
        for last in [33 + 15, 33 + 16, u64::MAX] {
            assert_eq!(of(33, last), (1..16).chain([0]).collect::<Vec<_>>(), "each once");
        }
        assert_eq!(of(0, u64::MAX).len(), AGED_BUCKETS);
    }

    #[test]
    fn only_readers_look_for_aged_writers() {
        let arena = Arena::private(1 << 20).unwrap();
        let head = arena.get(arena.alloc_zeroed::<LockHead>(1).unwrap());
        let passes = || {
            [Mode::Paper, Mode::Fair]
                .map(|mode| [Access::Shared, Access::Exclusive].map(|access| may_pass(mode, head, access)))
        };
        assert_eq!(passes(), [[true; 2]; 2]);
        head.aged.store(1, SeqCst);
        assert_eq!(passes(), [[true, true], [false, true]]);
    }
}
