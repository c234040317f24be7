//! A barrier in every thread of the process, put there by one of them: what is done at each call needs none of its own then.
//!
//! State       whether the kernel can do that (membarrier(2), Linux 4.14). Where it cannot, every call has a barrier.

use std::sync::atomic::{AtomicBool, Ordering, compiler_fence, fence};

static EACH_CALL: AtomicBool = AtomicBool::new(true);

/// When the library is loaded. A forked child has what its parent had; another program in this process starts anew.
pub fn start() {
    let can = membarrier(libc::MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    // ORDERING: Relaxed, before there is a second thread.
    EACH_CALL.store(!can, Ordering::Relaxed);
}

/// Between a store and a load that [`everywhere`] is to order.
#[inline]
pub fn at_a_call() {
    // ORDERING: Relaxed, set once.
    if EACH_CALL.load(Ordering::Relaxed) {
        // ORDERING: SeqCst, pairs with the locked instructions of who closes (thread.rs, O1).
        fence(Ordering::SeqCst);
    } else {
        compiler_fence(Ordering::SeqCst);
    }
}

/// Every other thread has passed a barrier when this returns true. False: the kernel refuses by now (a filter of system calls).
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
