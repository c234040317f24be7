//! Two small locks that live in the arena.
//!
//! [`Latch`] sleeps: it guards what may take long (moving EOF, changing a directory). [`Spin`] spins: the short critical sections of
//! the papers' variants; after a while it yields the core, because its holder may have been preempted.
//!
//! State       latch: 0 free, else HELD | the holder's lane | WAITERS if somebody may sleep
//! Invariants  I1  a lane says in its record which latch it is going to take before it takes it, and forgets that after it has let go:
//!                 if its holder dies, whoever settles the lane finds the latch, and the word tells whether it was held.
//!             I2  who waits looks now and then whether the holder is dead.

use crate::core::Core;
use crate::lease;
use crate::settle;
use heddle_arena::Shared;
use heddle_arena::park::{futex_wait, futex_wake};
use heddle_arena::sync::atomic::{AtomicU32, AtomicU64};
use heddle_arena::sync::{spin_hint, spins, yield_now};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

const SPINS: u32 = spins(200);

const HELD: u32 = 1 << 30;
const WAITERS: u32 = 1 << 31;
const LANE: u32 = (1 << 14) - 1;

/// How long one waits that is in no call, and cannot look whether the holder is dead.
const ALONE_MAX: Duration = Duration::from_secs(10);

/// See the module.
#[repr(transparent)]
#[derive(Debug)]
pub struct Latch(AtomicU32);

/// One thread's wait for whoever holds a latch.
struct Wait {
    held_since: u32,
    began: Instant,
}

impl Wait {
    /// Sleeps while the latch is as it was seen, not for long; since when this holder is waited for, if it is time to look after it.
    fn for_holder(&mut self, latch: &Latch, seen: u32) -> Option<Duration> {
        // ORDERING: Relaxed, it only asks to be woken.
        if seen & WAITERS == 0 && latch.0.compare_exchange(seen, seen | WAITERS, Relaxed, Relaxed).is_err() {
            return None;
        }
        if seen & LANE != self.held_since {
            *self = Wait { held_since: seen & LANE, began: Instant::now() };
        }
        futex_wait(&latch.0, seen | WAITERS, settle::look());
        let since = self.began.elapsed();
        settle::look().filter(|look| since >= *look).map(|_| since)
    }
}

// SAFETY: an atomic word.
unsafe impl Shared for Latch {}

/// Holds a [`Latch`] until it is dropped.
#[derive(Debug)]
pub struct Latched<'a> {
    latch: &'a Latch,
    /// Where the lane says so (I1).
    said: Option<&'a AtomicU64>,
}

impl Latch {
    /// A free latch.
    pub fn new() -> Latch {
        Latch(AtomicU32::new(0))
    }

    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<Latched<'_>> {
        let (me, said) = self.announce();
        // ORDERING: Acquire, pairs with the Release in `drop`; Relaxed on failure.
        match self.0.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => Some(Latched { latch: self, said }),
            Err(_) => {
                take_back(said);
                None
            }
        }
    }

    /// Waits until it is free and takes it.
    pub fn lock(&self) -> Latched<'_> {
        let (me, said) = self.announce();
        for _ in 0..SPINS {
            // ORDERING: Acquire, pairs with the Release in `drop`; Relaxed on failure.
            if self.0.compare_exchange(0, me, Acquire, Relaxed).is_ok() {
                return Latched { latch: self, said };
            }
            spin_hint();
        }
        self.sleep_until_free(me);
        Latched { latch: self, said }
    }

    #[cold]
    fn sleep_until_free(&self, me: u32) {
        let asked = Instant::now();
        self.sleep(me, asked);
        lease::with_current(|core, lane| core.lane(lane).counts.waited(1, asked.elapsed()));
    }

    fn sleep(&self, me: u32, began: Instant) {
        let mut wait = Wait { held_since: 0, began };
        loop {
            // ORDERING: Relaxed, a guess that the exchanges below check.
            let seen = self.0.load(Relaxed);
            if seen == 0 {
                // ORDERING: Acquire, pairs with the Release in `drop`. With WAITERS: others may sleep too.
                if self.0.compare_exchange(0, me | WAITERS, Acquire, Relaxed).is_ok() {
                    return;
                }
                continue;
            }
            if let Some(since) = wait.for_holder(self, seen) {
                let looked =
                    lease::with_current(|core, _| settle::held_up(core, (seen & LANE) as u16, since));
                assert!(
                    looked.is_some() || since < ALONE_MAX,
                    "waited {since:?} for a latch, outside of any call"
                );
            }
        }
    }

    /// Waits until nobody holds it, and does not take it: for who is in no call, and could not be found as its holder.
    ///
    /// # Panics
    /// As `settle::held_up`, if nobody will ever let it go.
    #[cold]
    pub fn wait_until_free(&self, core: &Core) {
        let mut wait = Wait { held_since: 0, began: Instant::now() };
        loop {
            // ORDERING: Acquire, pairs with the Release in `drop`.
            let seen = self.0.load(Acquire);
            if seen == 0 {
                // Who was woken for it may have been this thread, which does not take it.
                futex_wake(&self.0, 1);
                return;
            }
            if let Some(since) = wait.for_holder(self, seen) {
                settle::held_up(core, (seen & LANE) as u16, since);
            }
        }
    }

    /// What to put into the word; says it before (I1).
    fn announce(&self) -> (u32, Option<&AtomicU64>) {
        let said = lease::with_current(|core, lane| {
            let at = core.arena.offset_of(&self.0).raw();
            let place = core.lane(lane).intent.note_latch(at).map(|place| place as *const AtomicU64);
            (u32::from(lane), place)
        });
        match said {
            // SAFETY: the place lies in the arena that this latch lies in, and lives as long.
            Some((lane, place)) => (HELD | lane, place.map(|place| unsafe { &*place })),
            None => (HELD, None),
        }
    }

    /// As whoever may attach can do it.
    #[cfg(test)]
    pub fn scribble(&self, word: u32) {
        self.0.store(word, Relaxed);
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

fn take_back(said: Option<&AtomicU64>) {
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
