//! Signals of the calling thread that wait until it is not busy.
//!
//! State       the data of the first ones, and the signals that the thread had blocked before. All signals with a handler are blocked
//!             after the first, and wait in the kernel: so only few are kept here.
//! Invariants  W1  signals of faults are never blocked, because a fault at a buffer must be answered. If another process sends one, it is
//!                 kept; the same signal again is merged with it, as in the kernel.
//!             W2  signals that a forked child finds here were sent to its parent, which handles them.
//!             W3  if several signals come at once, the kernel makes a frame for each before the first of them arrives. The first to arrive
//!                 is the innermost: its frame has the signals that are blocked inside the handlers around it. The outermost has those
//!                 that the thread had blocked, and arrives too. So what all frames have is what the thread had blocked.

use crate::real;
use libc::{c_int, siginfo_t};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;

/// Five are signals of faults, one is of another kind, and a few may get their handlers meanwhile.
const WAITING_MAX: usize = 8;

/// A set of signals as the kernel encodes it: the first signal is bit 0.
pub type Set = u64;

#[derive(Clone, Copy)]
struct Kept {
    info: siginfo_t,
    process: i32,
}

struct Waiting {
    kept: UnsafeCell<[MaybeUninit<Kept>; WAITING_MAX]>,
    blocked_before: Cell<Set>,
}

thread_local! {
    static WAITING: Waiting = const {
        let kept = UnsafeCell::new([const { MaybeUninit::uninit() }; WAITING_MAX]);
        Waiting { kept, blocked_before: Cell::new(0) }
    };
}

/// A set of one signal.
pub fn only(signal: c_int) -> Set {
    1 << (signal - 1)
}

fn is_of_faults(signal: c_int) -> bool {
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP].contains(&signal)
}

fn this_process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// The calling thread's waiting signal with index `at`.
fn kept(at: usize) -> Kept {
    // SAFETY: written by `keep`, and this thread's own.
    WAITING.with(|waiting| unsafe { (*waiting.kept.get())[at].assume_init() })
}

/// Keeps the data of a signal after `count` others, and blocks all signals with a handler. Returns the
/// number that are kept now; `None`: there is no room.
pub fn keep(
    count: usize,
    info: &siginfo_t,
    blocked: &mut Set,
    handled: impl Fn(c_int) -> bool,
) -> Option<usize> {
    let signal = info.si_signo;
    note_blocked(count, *blocked);
    if is_of_faults(signal) && (0..count).any(|at| kept(at).info.si_signo == signal) {
        return Some(count);
    }
    if count >= WAITING_MAX {
        return None;
    }
    WAITING.with(|waiting| {
        // SAFETY: this thread's own; `deliver` runs only when it is not busy, so not inside this.
        unsafe { (*waiting.kept.get())[count].write(Kept { info: *info, process: this_process() }) };
    });
    *blocked |= all(|other| other == signal || handled(other));
    Some(count + 1)
}

/// The signals for which `is_in` is true, but those of faults (W1).
fn all(is_in: impl Fn(c_int) -> bool) -> Set {
    let signals = (1..=Set::BITS as c_int).filter(|signal| !is_of_faults(*signal) && is_in(*signal));
    signals.fold(0, |set, signal| set | only(signal))
}

/// Notes what a frame has blocked, after `count` others (W3). Signals of faults at a buffer do not count: the frame may lie inside the
/// handler of one, and a bad buffer must be an error.
fn note_blocked(count: usize, blocked: Set) {
    let blocked = blocked & !(only(libc::SIGSEGV) | only(libc::SIGBUS));
    WAITING.with(|waiting| {
        let before = if count == 0 { blocked } else { waiting.blocked_before.get() & blocked };
        waiting.blocked_before.set(before);
    });
}

/// Called when a fault at a buffer arrives after `count` kept signals: they may have come at once with it, in frames inside of its own.
pub fn fault_behind(count: usize, blocked: &mut Set, handled: impl Fn(c_int) -> bool) {
    if count != 0 {
        note_blocked(count, *blocked);
        *blocked |= all(handled);
    }
}

/// Called when the thread is not busy any more: sends the first `count` waiting signals again, and restores
/// the blocked set.
#[cold]
pub fn deliver(count: usize) {
    let errno = real::errno();
    let all = (0..count.min(WAITING_MAX)).fold(0, |set, at| set | only(kept(at).info.si_signo));
    // A handler may be left by longjmp, so each of them waits until all are sent.
    change(libc::SIG_BLOCK, all);
    let (process, thread) = (this_process(), rustix::thread::gettid());
    for at in 0..count.min(WAITING_MAX) {
        let Kept { info, process: came_to } = kept(at);
        if came_to == process {
            let info_at = (&raw const info).addr() as i64;
            let thread = thread.as_raw_nonzero().get().into();
            // SAFETY: a live local.
            unsafe {
                let signal = info.si_signo.into();
                real::syscall(libc::SYS_rt_tgsigqueueinfo, process.into(), thread, signal, info_at, 0, 0)
            };
        }
    }
    real::set_errno(errno);
    change(libc::SIG_SETMASK, WAITING.with(|waiting| waiting.blocked_before.get()));
    real::set_errno(errno);
}

/// As sigprocmask(2).
fn change(how: c_int, set: Set) {
    // SAFETY: a live local of the given size.
    unsafe {
        let (at, bytes) = ((&raw const set).addr() as i64, size_of::<Set>() as i64);
        real::syscall(libc::SYS_rt_sigprocmask, how.into(), at, 0, bytes, 0, 0)
    };
}
