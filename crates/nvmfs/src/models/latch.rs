//! The two small locks: one holder at a time, each sees the last holder's stores, and no thread sleeps for
//! ever (loom reports the deadlock).

use super::fixture::model;
use crate::state::latch::{Latch, Spin};
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

/// A word that a lock guards.
struct Guarded<L> {
    lock: L,
    count: UnsafeCell<u32>,
}

// SAFETY: `count` is touched under the lock; the test checks that.
unsafe impl<L> Sync for Guarded<L> {}
// SAFETY: as above.
unsafe impl<L> Send for Guarded<L> {}

fn counts<L: 'static>(threads: usize, lock: fn() -> L, with: fn(&L, &dyn Fn())) {
    model(3, move || {
        let guarded = Arc::new(Guarded { lock: lock(), count: UnsafeCell::new(0) });
        let once = move |guarded: &Guarded<L>| {
            // SAFETY: loom checks it.
            with(&guarded.lock, &|| guarded.count.with_mut(|count| unsafe { *count += 1 }));
        };
        let others: Vec<_> = (1..threads)
            .map(|_| {
                let guarded = guarded.clone();
                thread::spawn(move || once(&guarded))
            })
            .collect();
        once(&guarded);
        others.into_iter().for_each(|thread| thread.join().unwrap());
        // SAFETY: the other threads have ended.
        guarded.count.with(|count| assert_eq!(unsafe { *count }, threads as u32));
    });
}

#[test]
fn a_latch_has_one_holder_and_wakes_who_sleeps() {
    counts(2, Latch::new, |latch, f| {
        let _latched = latch.lock();
        f();
    });
}

#[test]
fn a_latch_wakes_two_sleepers_one_after_the_other() {
    counts(3, Latch::new, |latch, f| {
        let _latched = latch.lock();
        f();
    });
}

#[test]
fn who_only_tries_a_latch_never_passes_its_holder() {
    model(3, || {
        let guarded = Arc::new(Guarded { lock: Latch::new(), count: UnsafeCell::new(0) });
        let other = {
            let guarded = guarded.clone();
            thread::spawn(move || {
                if let Some(_latched) = guarded.lock.try_lock() {
                    // SAFETY: loom checks it.
                    guarded.count.with_mut(|count| unsafe { *count += 1 });
                }
            })
        };
        {
            let _latched = guarded.lock.lock();
            // SAFETY: loom checks it.
            guarded.count.with_mut(|count| unsafe { *count += 1 });
        }
        other.join().unwrap();
    });
}

#[test]
fn a_spin_lock_has_one_holder() {
    counts(2, Spin::new, |spin, f| {
        let _spun = spin.lock();
        f();
    });
}
