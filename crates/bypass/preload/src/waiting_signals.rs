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

use crate::{real, words};
use libc::{c_int, siginfo_t};
use std::cell::Cell;

/// A set of signals as the kernel encodes it: the first signal is bit 0.
pub type Set = u64;

/// Signals of faults.
const FAULTS: [c_int; 5] = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];

/// The part of a signal's data that one sent by a process has.
type Data = [u64; 6];

#[repr(C)]
struct Waiting {
    /// The data of the signals of faults.
    kept: [Cell<Data>; FAULTS.len()],
    /// Those whose data is there.
    is_kept: Cell<Set>,
    /// The process to which they were sent.
    process: Cell<i32>,
    /// What some frame has not blocked: so the thread had not blocked it.
    open_before: Cell<Set>,
}

const _: () = assert!(
    size_of::<Waiting>() <= words::SIGNALS.1 && words::SIGNALS.0.is_multiple_of(align_of::<Waiting>())
);

/// The calling thread's.
fn waiting() -> &'static Waiting {
    // SAFETY: the thread's own memory, large enough and aligned, which lives as long as it; zeros are valid. Cells, so no other thread gets
    // a reference.
    unsafe { &*words::of_this_thread().add(words::SIGNALS.0).cast::<Waiting>() }
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
pub fn put_aside(info: &siginfo_t, blocked: &mut Set, waits: &Cell<bool>, handled: impl Fn(c_int) -> bool) {
    block_all(); // W3
    note_blocked(*blocked);
    match FAULTS.iter().position(|signal| *signal == info.si_signo) {
        Some(at) => keep(at, info),
        None => send_again(*info),
    }
    *blocked |= only(info.si_signo) & !of_faults() | all(handled);
    waits.set(true);
}

/// Called when a fault at a buffer arrives: signals may have come at once with it, in frames inside of its own.
pub fn fault_behind(blocked: &mut Set, waits: &Cell<bool>, handled: impl Fn(c_int) -> bool) {
    block_all(); // W3
    if waits.get() {
        note_blocked(*blocked);
        *blocked |= all(handled);
    }
}

/// Keeps the data of this signal of a fault.
fn keep(at: usize, info: &siginfo_t) {
    let here = waiting();
    if here.process.replace(this_process()) != this_process() {
        here.is_kept.set(0); // W2
    }
    let before = here.is_kept.replace(here.is_kept.get() | only(info.si_signo));
    if before & only(info.si_signo) == 0 {
        // SAFETY: the first words of this type, which is larger and aligned.
        here.kept[at].set(unsafe { *(&raw const *info).cast::<Data>() });
    }
}

/// The signals for which `is_in` is true, but those of faults (W1).
fn all(is_in: impl Fn(c_int) -> bool) -> Set {
    let set =
        (1..=Set::BITS as c_int).filter(|signal| is_in(*signal)).fold(0, |set, signal| set | only(signal));
    set & !of_faults()
}

/// Notes what a frame has blocked (W4). Signals of faults do not count: `deliver` leaves them as they are.
fn note_blocked(blocked: Set) {
    let open = &waiting().open_before;
    open.set(open.get() | !(blocked | of_faults()));
}

/// Called when the thread is not busy any more: lets the waiting signals come.
#[cold]
pub fn deliver(waits: &Cell<bool>) {
    let (errno, here) = (real::errno(), waiting());
    // W3. A handler may be left by longjmp, so each of them waits until all are sent and nothing is left to do.
    let now = block_all();
    waits.set(false);
    let (is_kept, open) = (here.is_kept.replace(0), here.open_before.replace(0));
    for (at, signal) in FAULTS.into_iter().enumerate() {
        if is_kept & only(signal) != 0 && here.process.get() == this_process() {
            // SAFETY: plain numbers and pointers, for which zero is valid.
            let mut info: siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: the first words of this type, which is larger and aligned.
            unsafe { *(&raw mut info).cast::<Data>() = here.kept[at].get() };
            send_again(info);
        }
    }
    real::set_errno(errno);
    change(libc::SIG_SETMASK, now & !open); // W6
    real::set_errno(errno);
}

/// Sends a signal to this thread, with the data that it had.
fn send_again(mut info: siginfo_t) {
    if queue(&info) {
        return;
    }
    // The program's limit on queued signals is reached. The kernel takes this kind without its data.
    info.si_code = libc::SI_USER;
    if !queue(&info) {
        // A filter of system calls refuses that one.
        let (process, thread) = (this_process().into(), this_thread());
        // SAFETY: no pointer is involved.
        unsafe { real::syscall(libc::SYS_tgkill, process, thread, info.si_signo.into(), 0, 0, 0) };
    }
}

fn queue(info: &siginfo_t) -> bool {
    let (signal, info, process) =
        (info.si_signo.into(), (&raw const *info).addr() as i64, this_process().into());
    // SAFETY: a live reference.
    unsafe { real::syscall(libc::SYS_rt_tgsigqueueinfo, process, this_thread(), signal, info, 0, 0) == 0 }
}

fn this_thread() -> i64 {
    rustix::thread::gettid().as_raw_nonzero().get().into()
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
