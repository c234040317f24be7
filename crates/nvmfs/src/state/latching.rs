//! How a thread takes a [`Latch`]: it says so in its lane's record, spins, sleeps, and looks after a holder that may be dead.

use crate::state::core::Core;
use crate::state::latch::{HELD, LANE, Latch, Latched, WAITERS, take_back};
use crate::state::{lease, wait};
use heddle_arena::park::{futex_wait, futex_wake};
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::sync::{spin_hint, spins};
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use std::time::{Duration, Instant};

const SPINS: u32 = spins(200);

/// How long one waits that is in no call, and cannot look whether the holder is dead.
const ALONE_MAX: Duration = Duration::from_secs(10);

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
        futex_wait(&latch.0, seen | WAITERS, wait::look());
        let since = self.began.elapsed();
        wait::look().filter(|look| since >= *look).map(|_| since)
    }
}

impl Latch {
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
                let looked = lease::with_current(|core, _| wait::held_up(core, (seen & LANE) as u16, since));
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
    /// As `wait::held_up`, if nobody will ever let it go.
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
                wait::held_up(core, (seen & LANE) as u16, since);
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
}
