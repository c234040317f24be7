//! How the calling thread may be cancelled (pthread_cancel(3)); `calls::cancel` says when.

use crate::real;
use libc::c_int;
use std::ptr::null_mut;

/// Types of cancellation, as in pthread.h.
pub const DEFERRED: c_int = 0;
/// At any instruction.
pub const ASYNCHRONOUS: c_int = 1;
const DISABLE: c_int = 1;

/// A thread that may be cancelled at any instruction gets busy (C2 of `calls::cancel`).
#[cold]
pub fn put_off() {
    // SAFETY: no pointer but null.
    unsafe { real::pthread_setcanceltype(DEFERRED, null_mut()) };
}

/// It is not busy any more: if it was cancelled meanwhile, it ends here.
#[cold]
pub fn allow() {
    // SAFETY: no pointer but null; it may unwind, and nothing is held.
    unsafe { real::pthread_setcanceltype(ASYNCHRONOUS, null_mut()) };
}

/// While this lives the thread is not cancelled: it does what is no point for that.
pub struct NotNow(c_int);

impl NotNow {
    /// From now on.
    pub fn new() -> NotNow {
        let mut before = 0;
        // SAFETY: a live local.
        unsafe { real::pthread_setcancelstate(DISABLE, &mut before) };
        NotNow(before)
    }
}

impl Drop for NotNow {
    fn drop(&mut self) {
        // SAFETY: no pointer but null.
        unsafe { real::pthread_setcancelstate(self.0, null_mut()) };
    }
}
