//! Two small locks that live in the arena.
//!
//! [`Latch`] sleeps: it guards what may take long (moving EOF, changing a directory). State 0 free, 1 held, 2 held and somebody
//! may sleep. [`Spin`] spins: the short critical sections of the papers' variants; after a while it yields the core, because
//! its holder may have been preempted.

use heddle_arena::park::{futex_wait, futex_wake};
use heddle_arena::sync::atomic::AtomicU32;
use heddle_arena::sync::{spin_hint, spins, yield_now};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const SPINS: u32 = spins(200);

/// See the module.
#[repr(transparent)]
#[derive(Debug)]
pub struct Latch(AtomicU32);

/// Holds a [`Latch`] until it is dropped.
#[derive(Debug)]
pub struct Latched<'a>(&'a Latch);

impl Latch {
    /// A free latch.
    pub fn new() -> Latch {
        Latch(AtomicU32::new(0))
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<Latched<'_>> {
        // ORDERING: Acquire, pairs with the Release in `drop`; Relaxed on failure.
        self.0.compare_exchange(0, 1, Acquire, Relaxed).is_ok().then_some(Latched(self))
    }

    /// Waits until it is free and takes it.
    pub fn lock(&self) -> Latched<'_> {
        for _ in 0..SPINS {
            // ORDERING: Acquire, pairs with the Release in `drop`; Relaxed on failure.
            if self.0.compare_exchange(0, 1, Acquire, Relaxed).is_ok() {
                return Latched(self);
            }
            spin_hint();
        }
        // ORDERING: Acquire, pairs with the Release in `drop`.
        while self.0.swap(2, Acquire) != 0 {
            futex_wait(&self.0, 2, None);
        }
        Latched(self)
    }
}

impl Drop for Latched<'_> {
    fn drop(&mut self) {
        // ORDERING: Release, pairs with the Acquire in `lock`.
        if self.0.0.swap(0, Release) == 2 {
            futex_wake(&self.0.0, 1);
        }
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
