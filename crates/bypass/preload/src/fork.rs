//! Children, and other programs in this process: offsets are given to the kernel first (P4).

use crate::table::{CHANGES, each};
use crate::thread::{Busy, forget_others, here};
use crate::{barrier, numbers, real, report, signals, table};
use heddle_bypass::Words;
use libc::{c_int, c_void};
use rustix::fd::BorrowedFd;
use std::mem::forget;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// When the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// When the program ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn start() {
    #[cfg(feature = "planted")]
    heddle_bypass::planted::plant_from_environment();
    barrier::start();
    report::start();
    signals::start();
    be_first();
}

type AtFork = Option<extern "C" fn()>;

/// Our handlers are set before all others: so they are the last before a fork and the first behind it, and no other runs while all stands
/// still. Libraries that the program is linked with may set theirs before this one is started.
fn be_first() {
    static SET: AtomicBool = AtomicBool::new(false);
    if !SET.swap(true, SeqCst) {
        // SAFETY: these functions take no arguments, may be called at a fork, and are never unloaded.
        unsafe {
            real::__register_atfork(Some(before), Some(after_in_parent), Some(after_in_child), null_mut())
        };
    }
}

/// What pthread_atfork(3) calls.
///
/// # Safety
/// As pthread_atfork(3); the last argument says whose handlers they are.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __register_atfork(
    before: AtFork,
    in_parent: AtFork,
    in_child: AtFork,
    of: *mut c_void,
) -> c_int {
    be_first();
    // SAFETY: the caller's promise.
    unsafe { real::__register_atfork(before, in_parent, in_child, of) }
}

extern "C" fn end() {
    report::write();
}

/// fork(2): all of the table stands still, and no offset is ours alone any more.
pub extern "C" fn before() {
    if let Some(busy) = Busy::enter() {
        forget(busy);
    }
    here().forks_for_another.set(here().is_vfork_child());
    CHANGES.take();
    heddle_bypass::a_fork_begins();
    let mut words = Words::default();
    each(|fd, descriptor| {
        // SAFETY: open as far as the program's own calls are in order.
        descriptor.file.share_with_child(unsafe { BorrowedFd::borrow_raw(fd) }, &mut words);
    });
}

/// fork(2), in the parent.
pub extern "C" fn after_in_parent() {
    heddle_bypass::a_fork_ended();
    CHANGES.give();
    here().leave();
}

/// fork(2), in the child.
pub extern "C" fn after_in_child() {
    heddle_bypass::this_is_a_child();
    if !here().forks_for_another.get() {
        // Nobody shares this memory.
        here().vfork_in.set(0);
    }
    barrier::start();
    table::nobody_else_is_here();
    numbers::nobody_else_is_here();
    each(|_, descriptor| {
        // SAFETY: a forked child has one thread.
        unsafe { descriptor.file.forked() };
    });
    forget_others();
    CHANGES.give();
    here().leave();
}

/// A program that knows nothing of this library's is about to get all descriptors, or those that survive exec(3).
pub fn offsets_to_kernel(all: bool) {
    if here().is_vfork_child() {
        return;
    }
    let Some(_busy) = Busy::enter() else { return };
    CHANGES.take();
    each(|fd, descriptor| {
        // SAFETY: open as far as the program's own calls are in order.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        let survives = rustix::io::fcntl_getfd(borrowed)
            .is_ok_and(|flags| !flags.contains(rustix::io::FdFlags::CLOEXEC));
        if all || survives {
            descriptor.file.share_with_stranger(borrowed);
        }
    });
    CHANGES.give();
}

/// Before vfork(2): the child shares this memory, and may use every descriptor.
pub extern "C" fn before_vfork() {
    before_sharing_child(libc::CLONE_VFORK as u64);
}

/// Before a child is made with these flags of clone(2), that shares this memory. If it goes on beside this thread, what it calls is the
/// kernel's for ever.
pub fn before_sharing_child(flags: u64) {
    offsets_to_kernel(true);
    let h = here();
    if h.is_vfork_child() {
        // Its own child is one too.
        return;
    }
    let beside = h.vfork_in.get() < 0 || flags & libc::CLONE_VFORK as u64 == 0;
    let process = rustix::process::getpid().as_raw_nonzero().get();
    h.shares_actions.set(flags & libc::CLONE_SIGHAND as u64 != 0);
    h.vfork_in.set(if beside { -process } else { process });
}

/// Before exec(3): this program may end here.
pub fn before_exec() {
    if here().is_vfork_child() {
        return;
    }
    offsets_to_kernel(false);
    report::write();
}

/// Before a function that writes to a descriptor by ways of its own (`dprintf`).
pub extern "C" fn before_inner_write(fd: c_int) {
    if let Some(used) = crate::table::holding(fd) {
        used.file().give_offset_away(&used);
    }
}
