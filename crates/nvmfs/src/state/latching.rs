//! Locking a [`Latch`]: a thread notes it in its lane's intent, spins, sleeps, and checks for a dead holder.

use crate::state::core::Core;
use crate::state::latch::{HELD, LANE, Latch, Latched, WAITERS, clear_note};
use crate::state::{lease, wait};
use heddle_arena::park::{futex_wait, futex_wake};
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::sync::{spin_hint, spins};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

const SPINS: u32 = spins(200);

/// Most time that a thread outside of any call waits: it cannot check whether the holder is dead.
const ALONE_MAX: Duration = Duration::from_secs(10);

/// One thread's wait for the holder of a latch.
struct Wait {
    held_since: u32,
    began: Instant,
}

impl Wait {
    /// Sleeps briefly while the latch has the word `seen`. Returns the time waited for this holder, when the
    /// holder is due for a check.
    fn for_holder(&mut self, latch: &Latch, seen: u32) -> Option<Duration> {
        // ORDERING: Relaxed, it only requests a wake-up.
        if seen & WAITERS == 0 && latch.0.compare_exchange(seen, seen | WAITERS, Relaxed, Relaxed).is_err() {
            return None;
        }
        if seen & LANE != self.held_since {
            *self = Wait { held_since: seen & LANE, began: Instant::now() };
        }
        futex_wait(&latch.0, seen | WAITERS, wait::check_every());
        let since = self.began.elapsed();
        wait::check_every().filter(|look| since >= *look).map(|_| since)
    }
}

impl Latch {
    /// Takes it if it is free.
    pub fn try_lock(&self) -> Option<Latched<'_>> {
        let (me, note) = self.announce();
        // ORDERING: Acquire, pairs with the Release in `drop`; Relaxed on failure.
        match self.0.compare_exchange(0, me, Acquire, Relaxed) {
            Ok(_) => Some(Latched { latch: self, note }),
            Err(_) => {
                clear_note(note);
                None
            }
        }
    }

    /// Waits until it is free and takes it.
    pub fn lock(&self) -> Latched<'_> {
        let (me, note) = self.announce();
        for _ in 0..SPINS {
            // ORDERING: Acquire, pairs with the Release in `drop`; Relaxed on failure.
            if self.0.compare_exchange(0, me, Acquire, Relaxed).is_ok() {
                return Latched { latch: self, note };
            }
            spin_hint();
        }
        self.sleep_until_free(me);
        Latched { latch: self, note }
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
                let looked = lease::with_current(|core, _| wait::held_up(core, (seen & LANE) as u16, since));
                assert!(
                    looked.is_some() || since < ALONE_MAX,
                    "waited {since:?} for a latch, outside of any call"
                );
            }
        }
    }

    /// Waits until the latch is free, and does not take it: for a caller outside of any call, which no
    /// settler could identify as the holder.
    ///
    /// # Panics
    /// As `wait::held_up`, if the latch will never be released.
    #[cold]
    pub fn wait_until_free(&self, core: &Core) {
        let mut wait = Wait { held_since: 0, began: Instant::now() };
        loop {
            // ORDERING: Acquire, pairs with the Release in `drop`.
            let seen = self.0.load(Acquire);
            if seen == 0 {
                // The wake-up may have gone to this thread, which does not take the latch. So it is passed
                // on.
                futex_wake(&self.0, 1);
                return;
            }
            if let Some(since) = wait.for_holder(self, seen) {
                wait::held_up(core, (seen & LANE) as u16, since);
            }
        }
    }

    /// Returns the lane bits for the word, after noting the latch (I1 of `latch`).
    fn announce(&self) -> (u32, Option<&AtomicU64>) {
        let note = lease::with_current(|core, lane| {
            let at = core.arena.offset_of(&self.0).raw();
            let place = core.lane(lane).intent.note_latch(at).map(|place| place as *const AtomicU64);
            (u32::from(lane), place)
        });
        match note {
            // SAFETY: the place is in the same arena as this latch, and lives as long.
            Some((lane, place)) => (HELD | lane, place.map(|place| unsafe { &*place })),
            None => (HELD, None),
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
