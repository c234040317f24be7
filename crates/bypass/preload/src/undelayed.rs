//! Signal handlers that the program has installed without the C library: nothing delays them.
//!
//! Such a handler may interrupt a call inside the engine. If it then uses the same file, the mount's process would wait for what
//! the interrupted call holds, and the kernel would use an offset that is not the program's. So its call is refused: with EDEADLK,
//! as calls of the C API inside a call are. Calls on other files go to the kernel.

use crate::thread::this_thread;
use heddle_bypass::{Errno, KernelStat, this_thread_is_inside};
use rustix::fd::BorrowedFd;
use std::sync::atomic::Ordering::SeqCst;

/// Returns true if this call comes from such a handler, and its thread is inside a call on the same file.
#[cold]
pub fn has_interrupted_a_call_on(fd: i32) -> bool {
    let thread = this_thread();
    // In this order: a thread inside the engine has noted a file, and found that the table still has it (O1 of `thread`).
    if !thread.is_busy() || thread.is_vfork_child() || !this_thread_is_inside() {
        return false;
    }
    let noted = thread.record().map_or(std::ptr::null_mut(), |record| record.uses.load(SeqCst));
    // SAFETY: T1: null, or the file that the interrupted call uses.
    let Some(used) = (unsafe { noted.as_ref() }) else { return false };
    // SAFETY: open, if the program's own calls are in order; otherwise the kernel returns EBADF.
    let now = KernelStat::of(unsafe { BorrowedFd::borrow_raw(fd) });
    let of_use = used.file.kernel_stat();
    now.is_ok_and(|now| (now.dev, now.ino) == (of_use.dev, of_use.ino))
}

/// The result of such a call, with errno set; `None`: it is no such call.
pub fn refused<T: From<i8>>(fd: i32) -> Option<T> {
    if !this_thread().is_busy() || !has_interrupted_a_call_on(fd) {
        return None;
    }
    Some(failing(Errno::DEADLK))
}

/// The result of a call that fails.
pub fn failing<T: From<i8>>(errno: Errno) -> T {
    crate::real::set_errno(errno.raw_os_error());
    T::from(-1)
}
