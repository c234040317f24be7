//! Two small locks that live in the arena.
//!
//! [`Latch`] sleeps: it guards what may take long (moving EOF, changing a directory). [`Spin`] spins: the short critical sections of
//! the papers' variants; after a while it yields the core, because its holder may have been preempted.
//!
//! State       latch: 0 free, else HELD | the holder's lane | WAITERS if somebody may sleep
//! Invariants  I1  a lane says in its record which latch it is going to take before it takes it, and forgets that after it has let go:
//!                 if its holder dies, whoever settles the lane finds the latch, and the word tells whether it was held.
//!             I2  who waits looks now and then whether the holder is dead.
//! Locking     `latching`: it needs to know the call that the thread is in.

use heddle_arena::Shared;
use heddle_arena::park::futex_wake;
use heddle_arena::sync::atomic::{AtomicU32, AtomicU64};
use heddle_arena::sync::{spin_hint, yield_now};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// Somebody holds it.
pub const HELD: u32 = 1 << 30;
/// Somebody may sleep until it is free.
pub const WAITERS: u32 = 1 << 31;
/// The holder's lane.
pub const LANE: u32 = (1 << 14) - 1;

/// See the module.
#[repr(transparent)]
#[derive(Debug)]
pub struct Latch(pub(crate) AtomicU32);

// SAFETY: an atomic word.
unsafe impl Shared for Latch {}

/// Holds a [`Latch`] until it is dropped.
#[derive(Debug)]
pub struct Latched<'a> {
    pub(crate) latch: &'a Latch,
    /// Where the lane says so (I1).
    pub(crate) said: Option<&'a AtomicU64>,
}

impl Latch {
    /// A free latch.
    pub fn new() -> Latch {
        Latch(AtomicU32::new(0))
    }

    /// As whoever may attach can do it.
    #[cfg(test)]
    pub fn scribble(&self, word: u32) {
        self.0.store(word, Relaxed);
    }

    /// Does anybody hold it?
    #[cfg(test)]
    pub fn is_held(&self) -> bool {
        // ORDERING: Relaxed, only to see how far another thread is.
        self.0.load(Relaxed) & HELD != 0
    }

    /// Lets go of it for a dead lane; false if that does not hold it.
    pub fn release_dead(&self, lane: u16) -> bool {
        if !self.held_by(lane) {
            return false;
        }
        self.release();
        true
    }

    /// Does this lane hold it?
    pub fn held_by(&self, lane: u16) -> bool {
        // ORDERING: Acquire, the dead holder's stores are seen through its lease; this only reads the word.
        let seen = self.0.load(Acquire);
        seen & HELD != 0 && seen & LANE == u32::from(lane)
    }

    fn release(&self) {
        // ORDERING: Release, pairs with the Acquire in `lock`.
        if self.0.swap(0, Release) & WAITERS != 0 {
            futex_wake(&self.0, 1);
        }
    }
}

/// The lane does not hold it any more (I1).
pub fn take_back(said: Option<&AtomicU64>) {
    if let Some(place) = said {
        // ORDERING: Release, after the latch was let go (I1).
        place.store(0, Release);
    }
}

impl Drop for Latched<'_> {
    fn drop(&mut self) {
        self.latch.release();
        take_back(self.said);
    }
}

/// See the module.
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

    /// Has its line fetched, to be taken behind a fence: the wait for another core's line goes on beside the wait for the media.
    pub fn ask_for(&self) {
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
