//! Signal handlers wait while their thread is inside the engine.
//!
//! State       the program's own action for every signal. The kernel calls `arrive`, which calls the program's handler, or
//!             puts the signal aside if the thread is busy: it is blocked until the thread leaves, then sent again.
//! Invariants  S1  a handler that a program set with sigaction(3) or signal(3) never runs inside the engine (P3).
//!             S2  a fault at a buffer, in a check or copy of ours, becomes a result and does not reach the program (`fault`).
//!             S3  if a child has its parent's memory but actions of its own (vfork(2)), the table remains the parent's: the child's
//!                 changes of actions go to the kernel only.
//!
//! Faults of the program itself are never put aside. Actions set by the program's own system calls are not
//! seen here.

use crate::handlers::Frame;
use crate::thread::this_thread;
use crate::{fault, real, waiting_signals};
use libc::{c_int, c_void, siginfo_t, sigset_t, ucontext_t};
use std::mem::transmute;
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering::SeqCst};

const SIGNALS: usize = 65;
/// As in the kernel's signal.h.
const SA_RESTORER: c_int = 0x0400_0000;

static HANDLER: [AtomicUsize; SIGNALS] = [const { AtomicUsize::new(libc::SIG_DFL) }; SIGNALS];
static FLAGS: [AtomicI32; SIGNALS] = [const { AtomicI32::new(0) }; SIGNALS];

/// Catches faults from the start, so that a bad buffer becomes an error. The program's own handlers are
/// called after ours.
pub fn start() {
    for signal in FAULTS {
        // SAFETY: plain numbers and sets, for which zero is valid.
        let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: the pointers are null or a live local.
        if unsafe { real::sigaction(signal, null(), &mut old) } == 0 && !is_handler(old.sa_sigaction) {
            install(signal, &old);
        }
    }
}

/// Makes the kernel call `arrive`, with the program's other settings.
fn install(signal: c_int, wanted: &libc::sigaction) -> c_int {
    let at = signal as usize;
    let before = (HANDLER[at].swap(wanted.sa_sigaction, SeqCst), FLAGS[at].swap(wanted.sa_flags, SeqCst));
    let mut ours = *wanted;
    ours.sa_sigaction = arrive as *const () as usize;
    // If a signal were put aside and sent again, its action would be gone by then. So `arrive` resets the
    // action itself.
    ours.sa_flags = (wanted.sa_flags | libc::SA_SIGINFO) & !libc::SA_RESETHAND;
    // SAFETY: a live local.
    let done = unsafe { real::sigaction(signal, &ours, null_mut()) };
    if done != 0 {
        HANDLER[at].store(before.0, SeqCst);
        FLAGS[at].store(before.1, SeqCst);
    }
    done
}

/// As sigaction(3).
///
/// # Safety
/// As sigaction(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    let at = signal as usize;
    if !(1..SIGNALS as c_int).contains(&signal) || signal == libc::SIGKILL || signal == libc::SIGSTOP {
        // SAFETY: the caller's promise.
        return unsafe { real::sigaction(signal, new, old) };
    }
    let (handler, flags) = (HANDLER[at].load(SeqCst), FLAGS[at].load(SeqCst));
    // SAFETY: plain numbers and sets, for which zero is valid.
    let mut kernels: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a live local.
    if unsafe { real::sigaction(signal, null(), &mut kernels) } != 0 {
        return -1;
    }
    // SAFETY: the caller's promise: null or readable.
    let done = match unsafe { new.as_ref() } {
        None => 0,
        // S3. The child's calls are not served, so its handlers need not wait. SAFETY: the caller's promise.
        Some(new) if this_thread().has_actions_of_its_own() => unsafe {
            real::sigaction(signal, new, null_mut())
        },
        Some(new) if is_handler(new.sa_sigaction) || catches_buffers(signal) => install(signal, new),
        Some(new) => {
            HANDLER[at].store(new.sa_sigaction, SeqCst);
            // SAFETY: the caller's promise.
            unsafe { real::sigaction(signal, new, null_mut()) }
        }
    };
    if done == 0 && !old.is_null() {
        if kernels.sa_sigaction == arrive as *const () as usize {
            kernels.sa_sigaction = handler;
            // The C library's flag, with which it gives a restorer.
            kernels.sa_flags = flags | kernels.sa_flags & SA_RESTORER;
        }
        // SAFETY: the caller's promise: writable.
        unsafe { *old = kernels };
    }
    done
}

/// Signals whose handlers interrupt system calls (siginterrupt(3)), for later calls of signal(3).
static INTERRUPTS: [AtomicBool; SIGNALS] = [const { AtomicBool::new(false) }; SIGNALS];

macro_rules! setting {
    ($($name:ident: $flags:expr;)*) => {$(
        /// As the C library's.
        ///
        /// # Safety
        /// As signal(3).
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(number: c_int, handler: usize) -> usize {
            // SAFETY: the caller's promise.
            unsafe { set(number, handler, $flags) }
        }
    )*};
}
// As signal(3), with the semantics of BSD and of System V.
setting! {
    signal: libc::SA_RESTART;
    bsd_signal: libc::SA_RESTART;
    ssignal: libc::SA_RESTART;
    sysv_signal: libc::SA_RESETHAND | libc::SA_NODEFER;
    __sysv_signal: libc::SA_RESETHAND | libc::SA_NODEFER;
}

/// As sigaction(3), under another name.
///
/// # Safety
/// As sigaction(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sigaction(
    signal: c_int,
    new: *const libc::sigaction,
    old: *mut libc::sigaction,
) -> c_int {
    // SAFETY: the caller's promise.
    unsafe { sigaction(signal, new, old) }
}

/// As sigset(3).
///
/// # Safety
/// As sigset(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigset(number: c_int, handler: usize) -> usize {
    // As in glibc's header.
    const SIG_HOLD: usize = 2;
    // SAFETY: plain numbers and sets, for which zero is valid.
    let mut old: libc::sigaction = unsafe { std::mem::zeroed() };
    let was = match handler {
        // SAFETY: a live local.
        SIG_HOLD if unsafe { sigaction(number, null(), &mut old) } != 0 => libc::SIG_ERR,
        SIG_HOLD => old.sa_sigaction,
        // SAFETY: the caller's promise.
        handler => unsafe { set(number, handler, 0) },
    };
    if was == libc::SIG_ERR {
        return was;
    }
    let how = if handler == SIG_HOLD { libc::SIG_BLOCK } else { libc::SIG_UNBLOCK };
    // SAFETY: plain numbers and sets, for which zero is valid.
    let (mut one, mut before): (sigset_t, sigset_t) = unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: live locals; the number was checked.
    let was_held = unsafe {
        libc::sigaddset(&mut one, number);
        libc::pthread_sigmask(how, &one, &mut before);
        libc::sigismember(&before, number) == 1
    };
    if was_held { SIG_HOLD } else { was }
}

/// As siginterrupt(3).
///
/// # Safety
/// As siginterrupt(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn siginterrupt(number: c_int, interrupts: c_int) -> c_int {
    // SAFETY: plain numbers and sets, for which zero is valid.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a live local.
    if unsafe { sigaction(number, null(), &mut action) } != 0 {
        return -1;
    }
    if let Some(known) = INTERRUPTS.get(number as usize) {
        known.store(interrupts != 0, SeqCst);
    }
    match interrupts {
        0 => action.sa_flags |= libc::SA_RESTART,
        _ => action.sa_flags &= !libc::SA_RESTART,
    }
    // SAFETY: a live local, with the handler that is set already.
    unsafe { sigaction(number, &action, null_mut()) }
}

/// As sigignore(3).
///
/// # Safety
/// As sigignore(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sigignore(number: c_int) -> c_int {
    // SAFETY: SIG_IGN is no function.
    if unsafe { set(number, libc::SIG_IGN, 0) } == libc::SIG_ERR { -1 } else { 0 }
}

unsafe fn set(number: c_int, handler: usize, flags: c_int) -> usize {
    // SAFETY: plain numbers and sets, for which zero is valid.
    let (mut new, mut old): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    new.sa_sigaction = handler;
    new.sa_flags = flags;
    let interrupts = |signal| INTERRUPTS.get(signal as usize).is_some_and(|known| known.load(SeqCst));
    if interrupts(number) {
        new.sa_flags &= !libc::SA_RESTART;
    }
    // SAFETY: live locals.
    match unsafe { sigaction(number, &new, &mut old) } {
        0 => old.sa_sigaction,
        _ => libc::SIG_ERR,
    }
}

/// Runs a call that may execute another program in this process or in a child: signals that the program
/// ignores stay ignored there.
pub fn handing_on<T>(call: impl FnOnce() -> T) -> T {
    let given = FAULTS.map(|signal| ignores_alone(signal).then(|| ignore(signal)).flatten());
    let done = call();
    let errno = real::errno();
    for (signal, ours) in FAULTS.into_iter().zip(given) {
        if let Some(ours) = ours {
            // SAFETY: a live local.
            unsafe { real::sigaction(signal, &ours, null_mut()) };
        }
    }
    real::set_errno(errno);
    done
}

/// Returns true if the program ignores the signal but the kernel does not.
fn ignores_alone(signal: c_int) -> bool {
    HANDLER[signal as usize].load(SeqCst) == libc::SIG_IGN
}

/// Makes the kernel ignore the signal. Returns the kernel's action, if that was `arrive`.
fn ignore(signal: c_int) -> Option<libc::sigaction> {
    // SAFETY: plain numbers and sets, for which zero is valid.
    let (mut ours, mut ignored): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    ignored.sa_sigaction = libc::SIG_IGN;
    // SAFETY: live locals.
    let known = unsafe { real::sigaction(signal, null(), &mut ours) } == 0;
    let arrives = known && ours.sa_sigaction == arrive as *const () as usize;
    // SAFETY: a live local.
    (arrives && unsafe { real::sigaction(signal, &ignored, null_mut()) } == 0).then_some(ours)
}

/// Signals of faults at a buffer.
const FAULTS: [c_int; 2] = [libc::SIGSEGV, libc::SIGBUS];

/// Returns true if it is a signal of faults at a buffer.
fn catches_buffers(signal: c_int) -> bool {
    FAULTS.contains(&signal)
}

fn is_handler(action: usize) -> bool {
    action != libc::SIG_DFL && action != libc::SIG_IGN
}

/// Returns true if the signal was caused by this thread's last instruction.
fn is_fault(signal: c_int, info: &siginfo_t) -> bool {
    let kinds = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    kinds.contains(&signal) && info.si_code > 0
}

/// The handler that the kernel calls.
unsafe extern "C-unwind" fn arrive(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let errno = real::errno();
    // SAFETY: the kernel passes both to a handler with SA_SIGINFO.
    let (known, ucontext) = unsafe { (&*info, &mut *context.cast::<ucontext_t>()) };
    let fault = is_fault(signal, known);
    // SAFETY: a fault has an address.
    if fault && let Some(next) = fault::after_fault(instruction(ucontext), unsafe { known.si_addr() }.addr())
    {
        waiting_signals::fault_behind(blocked_in(ucontext), &this_thread().waiting, is_handled);
        go_on_at(ucontext, next);
        real::set_errno(errno);
        return;
    }
    // W5 of `waiting_signals`.
    let must_wait = this_thread().is_busy() || this_thread().waiting.get();
    if !fault && must_wait && !this_thread().is_vfork_child() {
        waiting_signals::put_aside(known, blocked_in(ucontext), &this_thread().waiting, is_handled);
        real::set_errno(errno);
        return;
    }
    // SAFETY: the kernel's arguments.
    unsafe { call(signal, info, context) };
    real::set_errno(errno);
}

unsafe fn call(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let at = signal as usize;
    let (handler, flags) = (HANDLER[at].load(SeqCst), FLAGS[at].load(SeqCst));
    // SAFETY: the kernel's arguments.
    let fault = is_fault(signal, unsafe { &*info });
    if handler == libc::SIG_IGN && !fault {
        return;
    }
    // The kernel kills a program that ignores its own faults.
    let ends = !is_handler(handler);
    let (resets, own) = (ends || flags & libc::SA_RESETHAND != 0, this_thread().has_actions_of_its_own());
    if resets && !own {
        HANDLER[at].store(libc::SIG_DFL, SeqCst);
    }
    // S2: the kernel keeps calling `arrive` for faults.
    if ends || (resets && (own || !catches_buffers(signal))) {
        set_default(signal);
    }
    if ends {
        // A fault happens again, now with the default action; another signal is sent again.
        if !fault {
            // SAFETY: no pointer is involved.
            unsafe { libc::raise(signal) };
        }
        return;
    }
    // SAFETY: the kernel's arguments; the program passed the handler with these flags.
    let run = || unsafe { run(handler, flags, (signal, info, context)) };
    if this_thread().is_vfork_child() {
        // The words are its parent's, and it may end in the handler.
        return run();
    }
    let frame = 0_u8;
    let h = this_thread();
    let at = (&raw const frame).addr();
    // SAFETY: the kernel's arguments.
    let interrupted = unsafe { &*context.cast::<ucontext_t>() };
    let (stack, inside) = (&interrupted.uc_stack, stack_pointer(interrupted));
    let own = stack.ss_sp.addr();
    let on_own = stack.ss_flags & libc::SS_DISABLE == 0 && (own..own + stack.ss_size).contains(&at);
    h.as_handler(Frame { stack: if on_own { own } else { 0 }, at }, inside, run);
}

/// Not inlined into `arrive`, which has little room on a stack of the program's own (sigaltstack(2)).
#[inline(never)]
fn set_default(signal: c_int) {
    // SAFETY: plain numbers and sets, for which zero is valid: the default action.
    let default: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a live local.
    unsafe { real::sigaction(signal, &default, null_mut()) };
}

/// Calls a handler of the program.
unsafe fn run(handler: usize, flags: c_int, (signal, info, context): (c_int, *mut siginfo_t, *mut c_void)) {
    if flags & libc::SA_SIGINFO != 0 {
        // SAFETY: the program passed it as a handler of this form.
        let handler: unsafe extern "C-unwind" fn(c_int, *mut siginfo_t, *mut c_void) =
            unsafe { transmute(handler) };
        // SAFETY: the kernel's arguments.
        unsafe { handler(signal, info, context) };
    } else {
        // SAFETY: the program passed it as a handler of this form.
        let handler: unsafe extern "C-unwind" fn(c_int) = unsafe { transmute(handler) };
        // SAFETY: as above.
        unsafe { handler(signal) };
    }
}

/// The signals that the interrupted code has blocked.
fn blocked_in(context: &mut ucontext_t) -> &mut waiting_signals::Set {
    // SAFETY: part of the context; the kernel's set is the first word of the C library's.
    unsafe { &mut *(&raw mut context.uc_sigmask).cast::<waiting_signals::Set>() }
}

fn is_handled(signal: c_int) -> bool {
    is_handler(HANDLER[signal as usize].load(SeqCst))
}

#[cfg(target_arch = "x86_64")]
fn instruction(context: &ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] as usize
}

#[cfg(target_arch = "x86_64")]
fn stack_pointer(context: &ucontext_t) -> usize {
    context.uc_mcontext.gregs[libc::REG_RSP as usize] as usize
}

#[cfg(target_arch = "x86_64")]
fn go_on_at(context: &mut ucontext_t, at: usize) {
    context.uc_mcontext.gregs[libc::REG_RIP as usize] = at as i64;
}

#[cfg(target_arch = "aarch64")]
fn instruction(context: &ucontext_t) -> usize {
    context.uc_mcontext.pc as usize
}

#[cfg(target_arch = "aarch64")]
fn stack_pointer(context: &ucontext_t) -> usize {
    context.uc_mcontext.sp as usize
}

#[cfg(target_arch = "aarch64")]
fn go_on_at(context: &mut ucontext_t, at: usize) {
    context.uc_mcontext.pc = at as u64;
}
