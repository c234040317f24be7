//! The lock of the table of descriptors.
//!
//! State       one word: free, held, lent by its holder, or borrowed.
//! Invariants  L1  a signal handler waits for the lock, but not without a limit. Most holders make a few stores. One that gives offsets
//!                 away waits for locks of files, whose holders may need the heap. One that unmaps engines needs the heap itself. One that
//!                 forks waits for locks of the C library. A handler's thread may have the heap's lock, or such a lock. So these lend the
//!                 lock to handlers that have waited for long.
//!             L2  a handler frees no file and makes none (D3 of `table`). So who has lent the lock may go on with the files that it knows.
//!                 It changes neither the table nor a list meanwhile.
//!                 A handler unmaps no engine while it borrows: who has lent the lock may read one (`Changes::is_borrowed`).
//!             L3  a child that is forked while a handler has borrowed the lock finds the table in the middle of a change. Then it keeps a
//!                 file in memory for ever, and no worse: a number is removed or set by one store, and a list is never linked twice.

use crate::thread::this_thread;
use heddle_bypass::fork_gate::Waiter;
use heddle_bypass::{Patience, pause};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// Held by a thread that changes nothing now, and may wait for long.
const LENT: u32 = 2;
/// As [`LENT`], and a signal handler has it.
const BORROWED: u32 = 3;

/// Lock of the table. The forking thread holds it during the fork; the forked child releases it.
pub static CHANGES: Changes = Changes(AtomicU32::new(FREE));

/// A lock whose waiters spin and yield, and sleep after some time. Most holders make a few stores; a fork, and a descriptor that other
/// programs get, take system calls.
pub struct Changes(AtomicU32);

impl Changes {
    /// Locks.
    pub fn take(&self) {
        self.lock(this_thread().is_in_handler());
    }

    /// Locks, for a fork. Its functions are under the rules of handlers, but two forks at once wait for each other.
    pub fn take_for_fork(&self) {
        self.lock(false);
    }

    fn lock(&self, borrows: bool) {
        let (mut looks, mut waiter, mut patience) = (0, Waiter::default(), None);
        loop {
            while self.0.compare_exchange(FREE, HELD, SeqCst, SeqCst).is_err() {
                let mut is_over = || patience.get_or_insert_with(Patience::new).is_over();
                if borrows && is_over() && self.0.compare_exchange(LENT, BORROWED, SeqCst, SeqCst).is_ok() {
                    return;
                }
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
        // Only the thread that has it changes the word now.
        let before = if self.0.load(SeqCst) == BORROWED { LENT } else { FREE };
        self.0.store(before, SeqCst);
    }

    /// Returns true if a handler that has it has borrowed it. The caller has it.
    pub fn is_borrowed(&self) -> bool {
        self.0.load(SeqCst) == BORROWED
    }

    /// Lends it (L2). The caller holds it.
    pub fn lend(&self) {
        self.0.store(LENT, SeqCst);
    }

    /// Ends that; the caller holds it again.
    pub fn end_lending(&self) {
        let mut looks = 0;
        while self.0.compare_exchange(LENT, HELD, SeqCst, SeqCst).is_err() {
            looks += 1;
            pause(looks);
        }
    }

    /// Lends it while `work` runs. The caller holds it. A handler lends nothing: it may have borrowed it, and does not wait for long.
    pub fn lending<T>(&self, work: impl FnOnce() -> T) -> T {
        if this_thread().is_in_handler() {
            return work();
        }
        self.lend();
        let done = work();
        self.end_lending();
        done
    }

    /// Unlocks in a forked child: a thread that has borrowed it does not exist there.
    pub fn reset_in_child(&self) {
        self.0.store(FREE, SeqCst);
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
