//! The lock of the table of descriptors.

use crate::thread::pause;
use heddle_bypass::fork_gate::Waiter;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

/// Lock of the table. The forking thread holds it during the fork; the forked child releases it.
pub static CHANGES: Changes = Changes(AtomicU32::new(0));

/// A lock whose waiters spin and yield, and sleep after some time. Most holders make a few stores; a fork, and a descriptor that other
/// programs get, take system calls.
pub struct Changes(AtomicU32);

impl Changes {
    /// Locks.
    pub fn take(&self) {
        let (mut looks, mut waiter) = (0, Waiter::default());
        loop {
            while self.0.compare_exchange(0, 1, SeqCst, SeqCst).is_err() {
                // A thread of a real-time class must sleep: a yield lets no thread of another class run.
                looks += 1;
                pause(looks);
            }
            if waiter.may_pass() {
                return;
            }
            self.give();
            waiter.pause();
        }
    }

    /// Unlocks.
    pub fn give(&self) {
        self.0.store(0, SeqCst);
    }

    /// Locks until the result is dropped.
    pub fn hold(&self) -> impl Drop {
        struct Held<'c>(&'c Changes);
        impl Drop for Held<'_> {
            fn drop(&mut self) {
                self.0.give();
            }
        }
        self.take();
        Held(self)
    }
}
