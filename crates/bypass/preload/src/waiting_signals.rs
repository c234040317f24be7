//! Signals of the calling thread that wait until it is not busy.
//!
//! State       the waiting signals are sent again at once, and wait in the kernel, blocked in the frame of the interrupted code. Kept
//!             here are only signals of faults, and the signals that the thread had blocked before.
//! Invariants  W1  signals of faults are never blocked in the interrupted code, because a fault at a buffer must be answered. If another
//!                 process sends one, its data is kept; the same signal again is merged with it, as in the kernel.
//!             W2  signals that a forked child finds here were sent to its parent, which handles them. Those that wait in the kernel are
//!                 the parent's anyway.
//!             W3  each function here blocks all signals first, then reads and changes the state. So a second signal comes before that,
//!                 and then finds the state as it was, or it comes after the whole. A handler returns in the order in which it was
//!                 entered, so whatever came before that is complete.
//!             W4  the frame of a signal that comes inside the handler of another one has what is blocked in that handler. The outermost
//!                 frame has what the thread had blocked, and its handler comes here too, last of all. So what all frames have is what
//!                 the thread had blocked. The same holds if the kernel makes several frames at one instant.
//!             W5  as long as signals wait, a signal is put aside, also between the last busy instruction and `deliver`.
//!             W6  a handler that is not ours may leave a frame around ours, which restores the thread's blocked set. So `deliver` blocks
//!                 nothing that is not blocked then.

use crate::real;
use libc::{c_int, siginfo_t};
use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;

/// A set of signals as the kernel encodes it: the first signal is bit 0.
pub type Set = u64;

/// Signals of faults.
const FAULTS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

#[derive(Clone, Copy)]
struct Kept {
    info: siginfo_t,
    process: i32,
}

struct Waiting {
    kept: UnsafeCell<[MaybeUninit<Kept>; FAULTS.len()]>,
    /// The signals of faults in `kept`.
    is_kept: Cell<Set>,
    blocked_before: Cell<Set>,
}

thread_local! {
    static WAITING: Waiting = const {
        let kept = UnsafeCell::new([const { MaybeUninit::uninit() }; FAULTS.len()]);
        Waiting { kept, is_kept: Cell::new(0), blocked_before: Cell::new(Set::MAX) }
    };
}

/// A set of one signal.
fn only(signal: c_int) -> Set {
    1 << (signal - 1)
}

fn of_faults() -> Set {
    FAULTS.into_iter().fold(0, |set, signal| set | only(signal))
}

fn this_process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Puts a signal aside, and blocks it and all others with a handler in the interrupted code, whose blocked set is given. The thread's
/// signals wait from now on.
pub fn put_aside(info: &siginfo_t, blocked: &mut Set, waiting: &Cell<bool>, handled: impl Fn(c_int) -> bool) {
    block_all(); // W3
    note_blocked(*blocked);
    match FAULTS.iter().position(|signal| *signal == info.si_signo) {
        Some(at) => keep(at, info),
        None => send_again(*info),
    }
    *blocked |= only(info.si_signo) & !of_faults() | all(handled);
    waiting.set(true);
}

/// Called when a fault at a buffer arrives: signals may have come at once with it, in frames inside of its own.
pub fn fault_behind(blocked: &mut Set, waiting: &Cell<bool>, handled: impl Fn(c_int) -> bool) {
    block_all(); // W3
    if waiting.get() {
        note_blocked(*blocked);
        *blocked |= all(handled);
    }
}

/// Keeps the data of this signal of a fault.
fn keep(at: usize, info: &siginfo_t) {
    WAITING.with(|waiting| {
        let before = waiting.is_kept.replace(waiting.is_kept.get() | only(info.si_signo));
        if before & only(info.si_signo) == 0 {
            // SAFETY: this thread's own, and no signal comes meanwhile (W3).
            unsafe { (*waiting.kept.get())[at].write(Kept { info: *info, process: this_process() }) };
        }
    });
}

/// The signals for which `is_in` is true, but those of faults (W1).
fn all(is_in: impl Fn(c_int) -> bool) -> Set {
    let set =
        (1..=Set::BITS as c_int).filter(|signal| is_in(*signal)).fold(0, |set, signal| set | only(signal));
    set & !of_faults()
}

/// Notes what a frame has blocked (W4). Signals of faults do not count: `deliver` leaves them as they are.
fn note_blocked(blocked: Set) {
    WAITING.with(|waiting| {
        waiting.blocked_before.set(waiting.blocked_before.get() & (blocked | of_faults()));
    });
}

/// Called when the thread is not busy any more: lets the waiting signals come.
#[cold]
pub fn deliver(waiting: &Cell<bool>) {
    let errno = real::errno();
    // W3. A handler may be left by longjmp, so each of them waits until all are sent and nothing is left to do.
    let now = block_all();
    waiting.set(false);
    let (is_kept, before) = WAITING.with(|w| (w.is_kept.replace(0), w.blocked_before.replace(Set::MAX)));
    for (at, signal) in FAULTS.into_iter().enumerate() {
        if is_kept & only(signal) == 0 {
            continue;
        }
        // SAFETY: written by `keep`, and this thread's own.
        let Kept { info, process } =
            WAITING.with(|waiting| unsafe { (*waiting.kept.get())[at].assume_init() });
        if process == this_process() {
            send_again(info);
        }
    }
    real::set_errno(errno);
    change(libc::SIG_SETMASK, now & before); // W6
    real::set_errno(errno);
}

/// Sends a signal to this thread, with the data that it had.
fn send_again(mut info: siginfo_t) {
    if !queue(&info) {
        // The program's limit on queued signals is reached. The kernel takes this kind without its data.
        info.si_code = libc::SI_USER;
        queue(&info);
    }
}

fn queue(info: &siginfo_t) -> bool {
    let thread = rustix::thread::gettid().as_raw_nonzero().get().into();
    let (signal, info) = (info.si_signo.into(), (&raw const *info).addr() as i64);
    // SAFETY: a live reference.
    unsafe {
        real::syscall(libc::SYS_rt_tgsigqueueinfo, this_process().into(), thread, signal, info, 0, 0) == 0
    }
}

/// Blocks all signals. Returns those that were blocked before.
fn block_all() -> Set {
    change(libc::SIG_BLOCK, Set::MAX)
}

/// As sigprocmask(2). Returns what was blocked before.
fn change(how: c_int, set: Set) -> Set {
    let mut before = 0;
    // SAFETY: live locals of the given size.
    unsafe {
        let (at, into) = ((&raw const set).addr() as i64, (&raw mut before).addr() as i64);
        real::syscall(libc::SYS_rt_sigprocmask, how.into(), at, into, size_of::<Set>() as i64, 0, 0)
    };
    before
}
