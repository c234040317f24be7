//! Two small locks that live in the arena.
//!
//! [`Latch`] sleeps: it guards operations that may take long (moving EOF, changing a directory). [`Spin`]
//! spins: it guards the short critical sections of the papers' variants. After a while it yields the CPU,
//! because its holder may have been preempted.
//!
//! State       latch: 0 free, else HELD | the holder's lane | WAITERS if a thread may sleep
//! Invariants  I1  a lane notes in its intent which latch it will take before it takes it, and clears the note after the release.
//!                 If its holder dies, the settler of the lane finds the latch, and the word tells whether it was held.
//!             I2  a waiter checks from time to time whether the holder is dead.
//! Locking     `Latch::lock` is in `latching`, because it uses the thread's lane.

use heddle_arena::Shared;
use heddle_arena::park::futex_wake;
use heddle_arena::sync::atomic::{AtomicU32, AtomicU64};
use heddle_arena::sync::{spin_hint, yield_now};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// A thread holds it.
pub const HELD: u32 = 1 << 30;
/// A thread may sleep until it is free.
pub const WAITERS: u32 = 1 << 31;
/// The holder's lane.
pub const LANE: u32 = (1 << 14) - 1;

/// A sleeping lock.
#[repr(transparent)]
#[derive(Debug)]
pub struct Latch(pub(crate) AtomicU32);

// SAFETY: an atomic word.
unsafe impl Shared for Latch {}

/// Holds a [`Latch`] until it is dropped.
#[derive(Debug)]
pub struct Latched<'a> {
    pub(crate) latch: &'a Latch,
    /// The place of the lane's note (I1).
    pub(crate) note: Option<&'a AtomicU64>,
}

impl Latch {
    /// A free latch.
    pub fn new() -> Latch {
        Latch(AtomicU32::new(0))
    }

    /// Overwrites the word, as an attached process could.
    #[cfg(test)]
    pub fn scribble(&self, word: u32) {
        self.0.store(word, Relaxed);
    }

    /// Returns true if a thread holds it.
    #[cfg(test)]
    pub fn is_held(&self) -> bool {
        // ORDERING: Relaxed, only to observe the progress of another thread.
        self.0.load(Relaxed) & HELD != 0
    }

    /// Releases it for a dead lane. Returns false if that lane does not hold it.
    pub fn release_dead(&self, lane: u16) -> bool {
        if !self.held_by(lane) {
            return false;
        }
        self.release();
        true
    }

    /// Returns true if this lane holds it.
    pub fn held_by(&self, lane: u16) -> bool {
        // ORDERING: Relaxed. Only the settler of the lane calls this, and its lease of the lane orders the dead holder's stores before
        // this load. Any later word names another lane.
        let seen = self.0.load(Relaxed);
        seen & HELD != 0 && seen & LANE == u32::from(lane)
    }

    fn release(&self) {
        // ORDERING: Release, pairs with the Acquire in `latching`.
        if self.0.swap(0, Release) & WAITERS != 0 {
            futex_wake(&self.0, 1);
        }
    }
}

/// Clears the note: the lane does not hold the latch any more (I1).
pub fn clear_note(note: Option<&AtomicU64>) {
    if let Some(place) = note {
        // ORDERING: Release, after the latch was released (I1).
        place.store(0, Release);
    }
}

impl Drop for Latched<'_> {
    fn drop(&mut self) {
        self.latch.release();
        clear_note(self.note);
    }
}

/// A spinlock.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Spin(AtomicU32);

/// Holds a [`Spin`] until it is dropped.
#[derive(Debug)]
pub struct Spun<'a>(&'a Spin);

impl Spin {
    /// A free lock.
    pub fn new() -> Spin {
        Spin(AtomicU32::new(0))
    }

    /// Prefetches its line for writing, before a fence after which the lock is taken: so the transfer from
    /// another core overlaps the wait for the media.
    pub fn prefetch(&self) {
        heddle_arena::prefetch_to_write(self);
    }

    /// Spins until it is free and takes it.
    pub fn lock(&self) -> Spun<'_> {
        let mut spins = 0u32;
        loop {
            // ORDERING: Acquire, pairs with the Release in `drop`; Relaxed on failure.
            if self.0.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
                return Spun(self);
            }
            // ORDERING: Relaxed, only to wait without writing the line.
            while self.0.load(Relaxed) != 0 {
                spins += 1;
                if spins.is_multiple_of(4096) {
                    yield_now();
                }
                spin_hint();
            }
        }
    }
}

impl Drop for Spun<'_> {
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the Acquire in `lock`.
        self.0.0.store(0, Release);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use heddle_arena::park::futex_wait;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    /// Bit 30: held; bit 31: a thread may sleep; below: the lane.
    const WORDS: [(u32, Option<u16>); 7] = [
        (0, None),
        (5, None),
        (1 << 31, None),
        (1 << 30 | 5, Some(5)),
        (1 << 31 | 1 << 30 | 5, Some(5)),
        (1 << 30 | 0x3fff, Some(0x3fff)),
        (1 << 30, Some(0)),
    ];

    #[test]
    fn a_latch_is_released_for_the_dead_lane_that_holds_it() {
        for (word, holder) in WORDS {
            for lane in [0, 1, 4, 5, 0x3ffe, 0x3fff] {
                let latch = Latch::new();
                latch.scribble(word);
                let its = holder == Some(lane);
                assert_eq!(latch.held_by(lane), its, "{word:#x}, lane {lane}");
                assert_eq!(latch.release_dead(lane), its, "{word:#x}, lane {lane}");
                // ORDERING: Relaxed, one thread.
                assert_eq!(latch.0.load(Relaxed), if its { 0 } else { word }, "{word:#x}, lane {lane}");
            }
        }
    }

    #[test]
    fn a_release_wakes_a_thread_that_sleeps() {
        let latch = Latch::new();
        latch.scribble(HELD | WAITERS | 5);
        let (woken, is_woken) = channel();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                futex_wait(&latch.0, HELD | WAITERS | 5, Some(Duration::from_secs(20)));
                woken.send(()).unwrap();
            });
            // If it does not sleep yet, it finds another word.
            std::thread::sleep(Duration::from_millis(20));
            drop(Latched { latch: &latch, note: None });
            is_woken.recv_timeout(Duration::from_secs(10)).expect("nobody has woken it");
        });
    }
}
