//! The lock of a file's offset.

use crate::fork_gate::Waiter;
use crate::patience::{Patience, Patient};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// A lock that a forked child can reset: its holder does not exist there.
pub struct Lock(AtomicU32);

const FREE: u32 = 0;
const HELD: u32 = 1;
const WAITED_FOR: u32 = 2;

impl Lock {
    /// An unlocked lock.
    pub const fn new() -> Lock {
        Lock(AtomicU32::new(FREE))
    }

    /// Takes the lock. Dropping the guard releases it. While another thread is about to fork, waits for that.
    pub fn hold(&self) -> Held<'_> {
        let mut waiter = Waiter::default();
        loop {
            let held = self.take();
            if waiter.may_pass() {
                return held;
            }
            drop(held);
            waiter.pause();
        }
    }

    /// As [`Lock::hold`], at any time: the holder allocates nothing, and may hold the lock of the table of descriptors, for which a forking
    /// thread waits.
    pub fn take(&self) -> Held<'_> {
        if self.0.compare_exchange(FREE, HELD, SeqCst, SeqCst).is_err() {
            while self.0.swap(WAITED_FOR, SeqCst) != FREE {
                let flags = rustix::thread::futex::Flags::PRIVATE;
                // Whatever the wait returns, the word is checked again.
                let _ = rustix::thread::futex::wait(&self.0, flags, WAITED_FOR, None);
            }
        }
        Held(self)
    }

    /// As [`Lock::take`], in a signal handler. Returns `None` if it takes too long.
    pub fn take_in_time(&self) -> Option<Held<'_>> {
        let is_taken = || self.0.compare_exchange(FREE, HELD, SeqCst, SeqCst).is_err();
        let patience = is_taken().then(Patience::new);
        let has_it = patience.is_none() || patience.wait_while(is_taken);
        has_it.then_some(Held(self))
    }

    /// Unlocks it in a forked child: the holder does not exist there.
    pub fn reset(&self) {
        self.0.store(FREE, SeqCst);
    }
}

/// The guard of [`Lock::hold`].
pub struct Held<'l>(&'l Lock);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        if self.0.0.swap(FREE, SeqCst) == WAITED_FOR {
            let _ = rustix::thread::futex::wake(&self.0.0, rustix::thread::futex::Flags::PRIVATE, 1);
        }
    }
}
