//! The atomics of this crate and its users: std's; loom's under `--cfg loom` (weak memory); under `--cfg
//! shuttle` std's again, with a possible switch of threads before each access (sequentially consistent).
//!
//! Why two     Loom explores weak memory, but only in small models. Its atomics are objects with a state beside them, so
//!             zeroed memory is no loom atomic, and code that turns memory into a value has a case for loom. Shuttle explores the whole
//!             engine: its atomics keep size and bytes, so the engine runs unchanged, on its own region and arena.
//! Sleeping    `futex_wait` and `futex_wake` are the kernel's. Under loom and shuttle they are built from a mutex and condition
//!             variables with the kernel's guarantees: a lost wake-up is a deadlock there, which both report.

#[cfg(any(loom, shuttle))]
mod futex;
#[cfg(loom)]
mod loom;
mod owned;
#[cfg(any(loom, shuttle))]
pub mod plant;
#[cfg(shuttle)]
mod shuttle;

#[cfg(any(loom, shuttle))]
pub use futex::{futex_wait, futex_wake};
#[cfg(loom)]
pub use loom::atomic;
pub use owned::{OwnedU32, OwnedU64};
#[cfg(shuttle)]
pub use shuttle::{atomic, death};
#[cfg(not(any(loom, shuttle)))]
pub use std::sync::atomic;

/// One turn of a spin loop. Under loom and shuttle it switches to another thread, because a spin loop would
/// never end there.
#[inline]
pub fn spin_hint() {
    #[cfg(loom)]
    ::loom::thread::yield_now();
    #[cfg(shuttle)]
    ::shuttle::thread::yield_now();
    #[cfg(not(any(loom, shuttle)))]
    std::hint::spin_loop();
}

/// Returns true if all threads are those of a model, which the kernel does not know.
pub(crate) fn in_model() -> bool {
    #[cfg(shuttle)]
    let in_model = !death::real();
    #[cfg(not(shuttle))]
    let in_model = cfg!(loom);
    in_model
}

/// Turns of a spin loop before a thread sleeps: `turns`, or one in a model.
pub const fn spins(turns: u32) -> u32 {
    if cfg!(any(loom, shuttle)) { 1 } else { turns }
}

/// Yields the CPU, because the holder of the lock may have been preempted.
pub fn yield_now() {
    #[cfg(any(loom, shuttle))]
    spin_hint();
    #[cfg(not(any(loom, shuttle)))]
    std::thread::yield_now();
}

/// Under shuttle another thread may run here; otherwise this does nothing. For effects that other threads see
/// and that are not atomics: stores to a region.
#[inline]
pub fn step() {
    #[cfg(shuttle)]
    shuttle::step();
}

/// Orders a SeqCst read-modify-write of this thread, immediately before this call, with its later loads, also
/// with loads that are not SeqCst. On x86-64 a locked instruction does that already, so no instruction is
/// executed.
#[inline]
#[track_caller]
pub fn fence_after_locked() {
    #[cfg(any(loom, not(target_arch = "x86_64")))]
    // ORDERING: SeqCst, see above.
    atomic::fence(atomic::Ordering::SeqCst);
    #[cfg(all(not(loom), target_arch = "x86_64"))]
    // ORDERING: SeqCst for the compiler; the processor has ordered it already.
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// The cheap side of [`barrier_everywhere`]. It orders this thread's earlier stores with its later loads:
/// either the thread that has called `barrier_everywhere` sees the stores, or the loads see that thread's
/// stores. No instruction is executed; in a model both sides are fences.
#[inline(always)]
#[track_caller]
pub fn fence_of_barrier() {
    #[cfg(loom)]
    // ORDERING: SeqCst, pairs with the fence in `barrier_everywhere`.
    atomic::fence(atomic::Ordering::SeqCst);
    #[cfg(not(loom))]
    // ORDERING: SeqCst for the compiler; the processor orders it when the kernel executes the barrier.
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
}

/// Executes a barrier in every running thread (membarrier). After it, every thread has completed its earlier
/// accesses and sees all stores before it.
#[cold]
#[track_caller]
pub fn barrier_everywhere() {
    #[cfg(loom)]
    // ORDERING: SeqCst, see `fence_of_barrier`.
    atomic::fence(atomic::Ordering::SeqCst);
    #[cfg(not(loom))]
    // SAFETY: no memory is involved.
    if unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) } != 0 {
        // The kernel has no such call: all stores are visible long before this sleep ends.
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_thread_spins_as_often_as_was_said() {
        assert_eq!([0, 1, 100].map(spins), [0, 1, 100]);
    }

    const ALLOWED: u32 = libc::SECCOMP_RET_ALLOW;
    const DEADLY: u32 = libc::SECCOMP_RET_KILL_PROCESS;
    const MISSING: u32 = libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32;

    /// Runs `barrier_everywhere` in a child to which the kernel has these answers to its call and to sleeping. Returns false if the child
    /// was killed, and `None` if there are no such filters here.
    fn survives(to_barrier: u32, to_sleep: u32) -> Option<bool> {
        let statement = |code: u32, jf, k| libc::sock_filter { code: code as u16, jt: 0, jf, k };
        let load = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
        let is = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
        let mut filter = [
            statement(load, 0, 0),
            statement(is, 1, libc::SYS_membarrier as u32),
            statement(libc::BPF_RET, 0, to_barrier),
            statement(is, 1, libc::SYS_clock_nanosleep as u32),
            statement(libc::BPF_RET, 0, to_sleep),
            statement(is, 1, libc::SYS_nanosleep as u32),
            statement(libc::BPF_RET, 0, to_sleep),
            statement(libc::BPF_RET, 0, ALLOWED),
        ];
        let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
        // SAFETY: the child makes system calls alone; the filter lives as long as the call that sets it.
        unsafe {
            let child = libc::fork();
            if child == 0 {
                let no_dump = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
                libc::setrlimit(libc::RLIMIT_CORE, &no_dump);
                let set = libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
                    && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &program) == 0;
                if set {
                    barrier_everywhere();
                }
                libc::_exit(if set { 0 } else { 1 });
            }
            let mut status = 0;
            assert_eq!(libc::waitpid(child, &mut status, 0), child);
            let is_known = !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) == 0;
            is_known.then_some(libc::WIFEXITED(status))
        }
    }

    #[test]
    fn a_barrier_is_the_kernels_or_a_long_sleep() {
        let Some(without) = survives(MISSING, DEADLY) else {
            eprintln!("SKIPPED, NOT TESTED: there are no filters of system calls here");
            return;
        };
        assert!(!without, "a kernel without the call: it sleeps");
        assert_eq!(survives(DEADLY, ALLOWED), Some(false), "it makes the call");
        // SAFETY: no memory is involved.
        let has_it = unsafe { libc::syscall(libc::SYS_membarrier, libc::MEMBARRIER_CMD_GLOBAL, 0, 0) } == 0;
        assert_eq!(survives(ALLOWED, DEADLY), Some(has_it), "it sleeps only without that call");
    }
}
