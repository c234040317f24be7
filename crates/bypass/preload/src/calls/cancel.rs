//! Cancellation of threads (pthread_cancel(3)).
//!
//! State       whether any thread was ever cancelled in this process. As long as none was, a call costs one load of a word that is
//!             not written. Whether a thread may be cancelled at any instruction is in its own words (`thread::ThisThread`).
//! Invariants  C1  served calls that are cancellation points in POSIX are cancellation points here too, before anything is done or held.
//!             C2  no thread is cancelled inside the engine or the table, whatever type of cancellation it chose: while it is busy
//!                 its type is deferred (`cancellation`).

use crate::cancellation::{ASYNCHRONOUS, DEFERRED};
use crate::real;
use crate::thread::this_thread;
use libc::{c_int, pthread_t};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static EVER: AtomicBool = AtomicBool::new(false);

/// A cancellation point at the start of a served call (C1).
#[inline]
pub fn point() {
    // ORDERING: Relaxed: the cancelling thread and the cancelled one are not ordered; the latter sees it at
    // one of its next calls.
    if EVER.load(Relaxed) && !this_thread().is_busy() {
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
        this_thread().set_asynchronous(kind == ASYNCHRONOUS);
    }
    // SAFETY: the caller's promise.
    unsafe { real::pthread_setcanceltype(kind, old) }
}
