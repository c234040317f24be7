//! The atomics this crate and its users are written against: std's; loom's under `--cfg loom` (weak memory); under `--cfg shuttle`
//! std's again, with a switch of threads possible before each access (sequentially consistent).
//!
//! Why two     Loom explores what weak memory allows, but only in small models, and its atomics are objects with a state beside them:
//!             zeroed memory is no loom atomic, so where memory becomes a value there is a case for loom. Shuttle's part is the whole
//!             engine: its atomics keep size and bytes, so the engine runs as it is, on its own region and arena.
//! Sleeping    `futex_wait` and `futex_wake` are the kernel's, and what the kernel promises, built of a mutex and condition
//!             variables, under loom and shuttle: a lost wake-up is a deadlock there, which both report.

#[cfg(any(loom, shuttle))]
mod futex;
#[cfg(loom)]
mod loom;
#[cfg(any(loom, shuttle))]
pub mod plant;
#[cfg(shuttle)]
mod shuttle;

#[cfg(any(loom, shuttle))]
pub use futex::{futex_wait, futex_wake};
#[cfg(loom)]
pub use loom::atomic;
#[cfg(shuttle)]
pub use shuttle::{atomic, death};
#[cfg(not(any(loom, shuttle)))]
pub use std::sync::atomic;

/// One turn of a spin loop. Under loom and shuttle it hands the turn to another thread, without which a spin loop never ends.
#[inline]
pub fn spin_hint() {
    #[cfg(loom)]
    ::loom::thread::yield_now();
    #[cfg(shuttle)]
    ::shuttle::thread::yield_now();
    #[cfg(not(any(loom, shuttle)))]
    std::hint::spin_loop();
}

/// Are all threads those of a model, which the kernel knows nothing of?
pub(crate) fn in_model() -> bool {
    #[cfg(shuttle)]
    let in_model = !death::real();
    #[cfg(not(shuttle))]
    let in_model = cfg!(loom);
    in_model
}

/// Turns of a spin loop before a thread sleeps: `turns`, or in a model one.
pub const fn spins(turns: u32) -> u32 {
    if cfg!(any(loom, shuttle)) { 1 } else { turns }
}

/// Offers the core to others, because a holder of what is waited for may have been preempted.
pub fn yield_now() {
    #[cfg(any(loom, shuttle))]
    spin_hint();
    #[cfg(not(any(loom, shuttle)))]
    std::thread::yield_now();
}

/// Under shuttle another thread may run here; else nothing. For what other threads see and no atomic is: stores to a region.
#[inline]
pub fn step() {
    #[cfg(shuttle)]
    shuttle::step();
}

/// Makes a SeqCst read-modify-write of this thread, right before, and its loads behind it keep their order, also for loads that are
/// not SeqCst. On x86-64 a locked instruction does that already: nothing is executed.
#[inline]
#[track_caller]
pub fn fence_behind_locked() {
    #[cfg(any(loom, not(target_arch = "x86_64")))]
    // ORDERING: SeqCst, see above.
    atomic::fence(atomic::Ordering::SeqCst);
    #[cfg(all(not(loom), target_arch = "x86_64"))]
    // ORDERING: SeqCst for the compiler; the processor has done it.
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// The cheap side of [`barrier_everywhere`]: of this thread's stores before it and its loads behind it, a thread that has put a barrier
/// everywhere sees the stores, or the loads see what that one had stored. Nothing is executed; in a model both sides are fences.
#[inline(always)]
#[track_caller]
pub fn fence_of_barrier() {
    #[cfg(loom)]
    // ORDERING: SeqCst, pairs with the fence in `barrier_everywhere`.
    atomic::fence(atomic::Ordering::SeqCst);
    #[cfg(not(loom))]
    // ORDERING: SeqCst for the compiler; the processor does it when the kernel tells it to.
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// Puts a barrier into every running thread (membarrier): behind it every thread has done what it had begun, and sees what was stored
/// before it.
#[cold]
#[track_caller]
pub fn barrier_everywhere() {
    #[cfg(loom)]
    // ORDERING: SeqCst, see `fence_of_barrier`.
    atomic::fence(atomic::Ordering::SeqCst);
    #[cfg(not(loom))]
    // SAFETY: no memory is involved.
    if unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) } != 0 {
        // A kernel without it: stores are seen by all long before this is over.
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}
