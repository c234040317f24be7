//! Signals of the calling thread that wait until it is not busy.

use crate::real;
use libc::{siginfo_t, sigset_t};
use std::cell::UnsafeCell;
use std::mem::MaybeUninit;
use std::ptr::null_mut;

const WAITING_MAX: usize = 16;

struct Waiting(UnsafeCell<[MaybeUninit<siginfo_t>; WAITING_MAX]>);

thread_local! {
    static WAITING: Waiting = const { Waiting(UnsafeCell::new([const { MaybeUninit::uninit() }; WAITING_MAX])) };
}

/// Keeps what came with a signal as number `at`; false if there is no room.
pub fn keep(at: usize, info: &siginfo_t) -> bool {
    let room = at < WAITING_MAX;
    if room {
        // SAFETY: the thread's own; `deliver` runs when it is not busy, so not inside this.
        WAITING.with(|waiting| unsafe {
            (*waiting.0.get())[at].write(*info);
        });
    }
    room
}

/// The thread is not busy any more: the first `count` that it kept are sent again, and not blocked any more.
#[cold]
pub fn deliver(count: usize) {
    let errno = real::errno();
    let mut blocked = MaybeUninit::<sigset_t>::uninit();
    // SAFETY: a live local.
    unsafe { libc::sigemptyset(blocked.as_mut_ptr()) };
    for at in 0..count.min(WAITING_MAX) {
        // SAFETY: written by `keep`, and the thread's own.
        let info = WAITING.with(|waiting| unsafe { (*waiting.0.get())[at].assume_init() });
        let (process, thread) = (rustix::process::getpid(), rustix::thread::gettid());
        // SAFETY: a live local; the signal is still blocked, so it only waits.
        unsafe {
            libc::sigaddset(blocked.as_mut_ptr(), info.si_signo);
            real::syscall(
                libc::SYS_rt_tgsigqueueinfo,
                process.as_raw_nonzero().get().into(),
                thread.as_raw_nonzero().get().into(),
                info.si_signo.into(),
                (&raw const info).addr() as i64,
                0,
                0,
            );
        }
    }
    // SAFETY: a live local that was filled above.
    unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, blocked.as_ptr(), null_mut()) };
    real::set_errno(errno);
}
