//! A barrier in every thread of the process, executed by one of them: so calls need no barrier of their own.
//!
//! State       whether the kernel supports that (membarrier(2), Linux 4.14). If it does not, every call executes a barrier.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

static EACH_CALL: AtomicBool = AtomicBool::new(true);

/// Called when the library is loaded. A forked child inherits the result; another program in this process
/// starts again.
pub fn start() {
    let can = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    // ORDERING: Relaxed, before there is a second thread.
    EACH_CALL.store(!can, Ordering::Relaxed);
}

/// Orders an earlier store and a later load, together with [`everywhere`].
#[inline]
pub fn at_a_call() {
    // ORDERING: Relaxed, set once.
    if EACH_CALL.load(Ordering::Relaxed) {
        // ORDERING: SeqCst, pairs with the locked instructions of a closing thread (thread.rs, O1).
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// Returns true when every other thread has executed a barrier. Returns false if the kernel refuses it by now
/// (a filter of system calls).
pub fn everywhere() -> bool {
    // ORDERING: Relaxed, set once.
    EACH_CALL.load(Ordering::Relaxed) || membarrier(libc::MEMBARRIER_CMD_PRIVATE_EXPEDITED)
}

fn membarrier(command: libc::c_int) -> bool {
    let errno = crate::real::errno();
    // SAFETY: no memory is involved.
    let done = unsafe { crate::real::syscall(libc::SYS_membarrier, command.into(), 0, 0, 0, 0, 0) } == 0;
    crate::real::set_errno(errno);
    done
}
