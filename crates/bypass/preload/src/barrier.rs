//! A barrier in every thread of the process, executed by one of them: so calls need no barrier of their own.
//!
//! State       whether the kernel does that (membarrier(2), Linux 4.14). If it does not, or may not be asked, every call executes a
//!             barrier.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

static EACH_CALL: AtomicBool = AtomicBool::new(true);

/// Called when the library is loaded, and in a forked child. Unless `may_ask`, the kernel is not asked: a filter of system calls may end
/// the program for that.
pub fn start(may_ask: bool) {
    let can = may_ask && membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
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
