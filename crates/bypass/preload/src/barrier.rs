//! One thread makes the kernel execute a memory barrier in all threads (membarrier(2)). Then served calls need none of their own.
//!
//! State       `EACH_CALL`: true if the kernel cannot do that (before Linux 4.14), or may not be asked to. Then each served call executes
//!             a barrier.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

static EACH_CALL: AtomicBool = AtomicBool::new(true);

/// Called when the library is loaded, and in a forked child. Without `may_ask` it makes no such system call: a filter may kill the program
/// for that.
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
        // ORDERING: SeqCst, pairs with the closing thread's SeqCst removal from the table (thread.rs, O1).
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// Executes a barrier in every other thread, unless each call executes its own. Returns false if the kernel refuses (a filter of system
/// calls may have been installed since [`start`]).
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
