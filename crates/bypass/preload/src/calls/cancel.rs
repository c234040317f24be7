//! Cancellation of threads (pthread_cancel(3)).
//!
//! State       whether any thread was ever cancelled in this process: as long as none was, a call pays one look at a word that
//!             nobody writes. A thread that may be cancelled at any instruction says so in its own words (`thread::Here`).
//! Invariants  C1  served calls that are cancellation points in POSIX are such points, before anything is done or held.
//!             C2  no thread is cancelled inside the engine or the table, whatever type of cancellation it chose: while it is busy
//!                 it is of the deferred type (`cancellation`).

use crate::cancellation::{ASYNCHRONOUS, DEFERRED};
use crate::real;
use crate::thread::here;
use libc::{c_int, pthread_t};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static EVER: AtomicBool = AtomicBool::new(false);

/// A served call begins (C1).
#[inline]
pub fn point() {
    // ORDERING: Relaxed: who cancels has no order with who is cancelled; the thread sees it at one of its next calls.
    if EVER.load(Relaxed) && !here().is_busy() {
        // SAFETY: it may unwind, and nothing is held.
        unsafe { real::pthread_testcancel() };
    }
}

/// As pthread_cancel(3).
///
/// # Safety
/// As pthread_cancel(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_cancel(thread: pthread_t) -> c_int {
    // ORDERING: Relaxed, as in `point`.
    EVER.store(true, Relaxed);
    // SAFETY: the caller's promise.
    unsafe { real::pthread_cancel(thread) }
}

/// As pthread_setcanceltype(3).
///
/// # Safety
/// As pthread_setcanceltype(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn pthread_setcanceltype(kind: c_int, old: *mut c_int) -> c_int {
    if kind == DEFERRED || kind == ASYNCHRONOUS {
        here().set_asynchronous(kind == ASYNCHRONOUS);
    }
    // SAFETY: the caller's promise.
    unsafe { real::pthread_setcanceltype(kind, old) }
}
