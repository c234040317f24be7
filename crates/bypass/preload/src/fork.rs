//! Children, and other programs in this process: offsets are given to the kernel first (P4).

use crate::table::{CHANGES, each};
use crate::thread::{Busy, forget_others, here};
use crate::{barrier, report, signals};
use rustix::fd::BorrowedFd;
use std::mem::forget;

/// When the library is loaded.
#[used]
#[unsafe(link_section = ".init_array")]
static START: extern "C" fn() = start;

/// When the program ends.
#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn start() {
    barrier::start();
    report::start();
    signals::start();
    // SAFETY: these functions take no arguments and may be called at a fork.
    unsafe { libc::pthread_atfork(Some(before), Some(after_in_parent), Some(after_in_child)) };
}

extern "C" fn end() {
    report::write();
}

/// fork(2): all of the table stands still, and no offset is ours alone any more.
extern "C" fn before() {
    if let Some(busy) = Busy::enter() {
        forget(busy);
    }
    CHANGES.take();
    each(|fd, descriptor| {
        // SAFETY: open as far as the program's own calls are in order.
        descriptor.file.give_offset_away(unsafe { BorrowedFd::borrow_raw(fd) });
    });
}

extern "C" fn after_in_parent() {
    CHANGES.give();
    leave();
}

extern "C" fn after_in_child() {
    heddle_bypass::this_is_a_child();
    barrier::start();
    each(|_, descriptor| {
        // SAFETY: a forked child has one thread.
        unsafe { descriptor.file.forked() };
    });
    forget_others();
    CHANGES.give();
    leave();
}

fn leave() {
    let was = here().busy.replace(false);
    if was && here().waiting.get() != 0 {
        signals::deliver_waiting();
    }
}

/// A child that is made without fork(2)'s handlers, or another program in this process, is about to get the descriptors that
/// survive exec(3).
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
            descriptor.file.give_offset_away(borrowed);
        }
    });
    CHANGES.give();
}

/// Before vfork(2): the child shares this memory, and may use every descriptor.
pub extern "C" fn before_vfork() {
    offsets_to_kernel(true);
    here().vfork_in.set(rustix::process::getpid().as_raw_nonzero().get());
}

/// Before exec(3): this program may end here.
pub extern "C" fn before_exec() {
    if here().is_vfork_child() {
        return;
    }
    offsets_to_kernel(false);
    report::write();
}

/// Before a function that writes to a descriptor by ways of its own (`dprintf`).
pub extern "C" fn before_inner_write(fd: libc::c_int) {
    if let Some(used) = crate::table::using(fd) {
        used.file().give_offset_away(used.fd());
    }
}
