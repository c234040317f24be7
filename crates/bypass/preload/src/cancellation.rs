//! Cancellation type and state of the calling thread (pthread_setcanceltype(3), pthread_setcancelstate(3)); `calls::cancel` has the rules.

use crate::real;
use libc::c_int;
use std::ptr::null_mut;

/// PTHREAD_CANCEL_DEFERRED: the thread is cancelled only at cancellation points.
pub const DEFERRED: c_int = 0;
/// PTHREAD_CANCEL_ASYNCHRONOUS: the thread may be cancelled at any instruction.
pub const ASYNCHRONOUS: c_int = 1;
/// PTHREAD_CANCEL_DISABLE.
const DISABLE: c_int = 1;

/// Sets the thread's cancellation type to deferred. Called when a thread of the asynchronous type enters the
/// engine or the descriptor table (C2 of `calls::cancel`).
#[cold]
pub fn defer() {
    // SAFETY: the only pointer is null.
    unsafe { real::pthread_setcanceltype(DEFERRED, null_mut()) };
}

/// Restores the asynchronous type. Called when the thread has left the engine and the table. If it was
/// cancelled meanwhile, it ends here.
#[cold]
pub fn restore_asynchronous() {
    // SAFETY: the only pointer is null. The call may unwind the thread, and the thread holds nothing.
    unsafe { real::pthread_setcanceltype(ASYNCHRONOUS, null_mut()) };
}

/// While this lives, the thread is not cancelled, not even at cancellation points of the functions it calls.
pub struct CancellationDisabled(c_int);

impl CancellationDisabled {
    /// Disables cancellation.
    pub fn new() -> CancellationDisabled {
        let mut before = 0;
        // SAFETY: a live local.
        unsafe { real::pthread_setcancelstate(DISABLE, &mut before) };
        CancellationDisabled(before)
    }
}

impl Drop for CancellationDisabled {
    fn drop(&mut self) {
        // SAFETY: the only pointer is null.
        unsafe { real::pthread_setcancelstate(self.0, null_mut()) };
    }
}
