//! Sleeping until a word changes, on any word of the arena, without a waiter bit in that word.
//!
//! State       A table of buckets, chosen by hash of the key. One word a bucket: `turn:31 | waiters:1`.
//!             A waiter sets the bit before it looks at its word for the last time; a waker that finds the bit set clears it
//!             and counts the turn up, both by one CAS (odd + 1), then wakes all sleepers of the bucket, which look again.
//! Contract    P1  The store that ends a wait is SeqCst, and precedes `wake` in the waker's program.
//!             P2  `still_blocked` reads what that store writes, with SeqCst.
//! No lost     W  waiter: word.fetch_or(1) -> s      (W1, SeqCst)      K  waker: the store of P1     (K0, SeqCst)
//! wake-up        waiter: still_blocked()            (W2, SeqCst)         waker: word.load           (K1, SeqCst)
//!                waiter: futex_wait(word, s)        (W3)                 waker: CAS odd -> even, wake (K2)
//!             All of W1, W2, K0, K1, K2 are in the one total order S of SeqCst operations, so either
//!             - K1 < W1: then K0 < K1 < W1 < W2, W2 sees K0: the waiter does not sleep; or
//!             - W1 < K1: K1 sees the bit, or some other waker's K2' cleared it between W1 and K1. If K1 sees the bit, K2 changes
//!               the word; if K2 fails, then because of another K2'. Either way the word is no longer s when K2 or K2' wakes:
//!               a waiter not yet asleep is refused by the kernel's comparison (W3), one asleep is woken. It looks again.
//!             A waiter whose W1 comes between K1 and K2 has K1 < W1: it sees K0, whether or not K2 succeeds.
//!             The word repeats after 2^31 turns: a waiter would have to stand between W1 and W3 for that many wakes of waiters.
//! Cost        `wake` without waiters: one load of a line that is not written. No fence: K0 was SeqCst, which on x86 costs
//!             nothing over any other locked instruction.
//! Death       A dead waiter leaves at most the bit: the next waker makes one unnecessary system call. Nothing is counted.
//! Collisions  Two keys in one bucket: waiters of one are woken unnecessarily and check again.
//! Loom        Loom gives SeqCst accesses the strength of AcqRel only, so under loom fences stand where the argument above uses
//!             S; the futex is that of `sync`, so that a lost wake-up is a deadlock, which loom reports.

use std::time::{Duration, Instant};

use crate::shared::{Shared, Zeroed};
use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::SeqCst;
#[cfg(loom)]
use crate::sync::atomic::fence;

/// How a wait ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waited {
    /// `still_blocked` returned false.
    Unblocked,
    /// It still returned true when the time was over.
    TimedOut,
}

/// Buckets into which sleepers hash. Every arena has one table: [`Arena::parking`](crate::Arena::parking).
#[repr(C, align(64))]
pub struct ParkingTable {
    buckets: [Bucket; BUCKETS],
}

/// Collisions cost unnecessary wakes, so there are many more buckets than threads that usually sleep at once.
const BUCKETS: usize = if cfg!(loom) { 8 } else { 256 };

// SAFETY: atomics only (under loom, objects that are made in place and never dropped).
unsafe impl Shared for ParkingTable {}
// SAFETY: a turn of 0 without waiters is the initial state.
unsafe impl Zeroed for ParkingTable {
    fn zeroed() -> Self {
        ParkingTable { buckets: std::array::from_fn(|_| Bucket::new()) }
    }
}

impl ParkingTable {
    /// Sleeps until `still_blocked` returns false, or `timeout` has passed. `key`: any number that the waker
    /// knows too, usually the raw offset of the word. Callers should spin a little first, because this costs
    /// system calls.
    ///
    /// `still_blocked` must read with SeqCst what the waker writes with SeqCst (P1, P2).
    pub fn wait(&self, key: u64, still_blocked: impl Fn() -> bool, timeout: Option<Duration>) -> Waited {
        let bucket = self.bucket(key);
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let seen = bucket.word.fetch_or(1, SeqCst) | 1;
            #[cfg(loom)]
            fence(SeqCst);
            if !still_blocked() {
                return Waited::Unblocked;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                return Waited::TimedOut;
            }
            bucket.sleep(seen, left);
        }
    }

    /// Wakes the threads that wait for `key`. Called after the SeqCst store that ends the wait (P1).
    #[inline]
    pub fn wake(&self, key: u64) {
        #[cfg(loom)]
        fence(SeqCst);
        let bucket = self.bucket(key);
        let seen = bucket.word.load(SeqCst);
        if seen & 1 != 0 {
            bucket.wake(seen);
        }
    }

    #[inline]
    fn bucket(&self, key: u64) -> &Bucket {
        let hash = key.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 32;
        &self.buckets[hash as usize % BUCKETS]
    }
}

#[repr(C, align(64))]
struct Bucket {
    word: AtomicU32,
}

impl Bucket {
    fn new() -> Self {
        Bucket { word: AtomicU32::new(0) }
    }

    fn sleep(&self, seen: u32, left: Option<Duration>) {
        futex_wait(&self.word, seen, left);
    }

    #[cold]
    fn wake(&self, seen: u32) {
        if self.word.compare_exchange(seen, seen.wrapping_add(1), SeqCst, SeqCst).is_ok() {
            futex_wake(&self.word, u32::MAX);
        }
    }
}

#[cfg(any(loom, shuttle))]
pub use crate::sync::{futex_wait, futex_wake};

/// Sleeps while `word` is `expected`, at most for `timeout`; may wake for no reason. Works across processes.
#[cfg(not(any(loom, shuttle)))]
pub fn futex_wait(word: &AtomicU32, expected: u32, timeout: Option<Duration>) {
    use rustix::thread::futex;
    let timeout = timeout.and_then(|timeout| rustix::fs::Timespec::try_from(timeout).ok());
    // Woken, changed before, timed out, or a signal: the caller checks the word in each case.
    let _ = futex::wait(word, futex::Flags::empty(), expected, timeout.as_ref());
}

/// Wakes at most `n` threads that sleep on `word`, in any process; returns their number.
#[cfg(not(any(loom, shuttle)))]
pub fn futex_wake(word: &AtomicU32, n: u32) -> usize {
    use rustix::thread::futex;
    futex::wake(word, futex::Flags::empty(), n.min(i32::MAX as u32)).unwrap_or(0)
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::collections::HashSet;

    #[test]
    fn keys_are_spread_over_the_buckets() {
        let table = ParkingTable::zeroed();
        let buckets = |step: u64| {
            let keys = (0..256).map(move |n| 28672 + n * step);
            keys.map(|key| std::ptr::from_ref(table.bucket(key)).addr()).collect::<HashSet<_>>().len()
        };
        for step in [4, 64, 4096] {
            assert!(buckets(step) > 100, "{} buckets for 256 keys, {step} apart", buckets(step));
        }
    }

    #[test]
    fn a_wake_without_waiters_writes_nothing() {
        let table = ParkingTable::zeroed();
        for turn in [0, 6] {
            table.bucket(9).word.store(turn, SeqCst);
            table.wake(9);
            assert_eq!(table.bucket(9).word.load(SeqCst), turn);
        }
        table.bucket(9).word.store(7, SeqCst);
        table.wake(9);
        assert_eq!(table.bucket(9).word.load(SeqCst), 8, "the turn after a waiter's");
    }

    #[test]
    fn a_waiter_looks_only_when_it_was_woken() {
        let table = ParkingTable::zeroed();
        // Buckets as earlier waiters and wakes leave them.
        for word in [0, 1, 2, 3, 1 << 31] {
            table.bucket(9).word.store(word, SeqCst);
            let looks = Cell::new(0);
            let is_blocked = || {
                looks.set(looks.get() + 1);
                true
            };
            assert_eq!(table.wait(9, is_blocked, Some(Duration::from_millis(5))), Waited::TimedOut);
            assert!((2..10).contains(&looks.get()), "{} looks from {word}", looks.get());
        }
    }
}
