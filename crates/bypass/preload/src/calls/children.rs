//! Children that are made without fork(3)'s handlers, descriptors that are sent to other processes, and the
//! end of the process.

use crate::table::stop_serving_for_ever;
use crate::thread::note_child_in_this_memory;
use crate::{fault, fork, real, report};
use heddle_bypass::planted::{Bug, planted};
use libc::{c_int, c_void, cmsghdr, mmsghdr, msghdr, pid_t};

/// As _Fork(3).
///
/// # Safety
/// As _Fork(3).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Fork() -> pid_t {
    // SAFETY: the caller's promise.
    let call = || unsafe { real::_Fork() };
    if planted(Bug::ForkUnseen) {
        return call();
    }
    forking(0, || call().into()) as pid_t
}

/// Runs a call that makes a child with memory of its own, with these flags of clone(2); the child returns from it too.
pub fn forking(flags: u64, call: impl FnOnce() -> i64) -> i64 {
    let copy = fork::Copied::begin(flags);
    let child = call();
    let errno = real::errno();
    copy.end(child == 0);
    real::set_errno(errno);
    child
}

/// Returns true if this process has the ID 1 in its PID namespace. A child that is the first process of a new namespace has the same ID.
pub fn is_process_1() -> bool {
    rustix::process::getpid().as_raw_nonzero().get() == 1
}

/// Called before clone(2) makes a child with these flags, whose memory is a copy.
pub fn before_copy(flags: u64) {
    if flags & libc::CLONE_FILES as u64 != 0 {
        stop_serving_for_ever();
    }
}

/// Called before clone(2) makes a child with these flags that shares this memory. A thread shares the descriptors too; another child has
/// its own. One table serves both cases. A thread must have thread-local storage of its own (`thread::ThisThread`). Another child must not:
/// the library recognises it by its process ID.
pub fn before_clone(flags: u64) {
    let has = |flag: c_int| flags & flag as u64 != 0;
    let is_thread = has(libc::CLONE_THREAD);
    let has_own_tls = has(libc::CLONE_VM) && has(libc::CLONE_SETTLS);
    if is_thread != has(libc::CLONE_FILES)
        || is_thread != has_own_tls
        || has(libc::CLONE_NEWPID) && is_process_1()
    {
        stop_serving_for_ever();
    }
    if !is_thread {
        if has_own_tls {
            note_child_in_this_memory(has(libc::CLONE_SIGHAND));
        }
        fork::before_sharing_child(flags);
    }
}

type Entry = unsafe extern "C-unwind" fn(*mut c_void) -> c_int;

/// Entry of a child with memory of its own.
unsafe extern "C-unwind" fn begin(what: *mut c_void) -> c_int {
    // SAFETY: `clone` passed it; it lies in this child's copy of its parent's stack.
    let (entry, arg, copy) = unsafe { *what.cast::<(Entry, *mut c_void, fork::Copied)>() };
    copy.end(true);
    // SAFETY: the program passed both.
    unsafe { entry(arg) }
}

/// As clone(2). The flags decide which of the last three arguments are used.
///
/// # Safety
/// As clone(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn clone(
    entry: Option<Entry>,
    stack: *mut c_void,
    flags: c_int,
    arg: *mut c_void,
    parents_id: *mut c_void,
    tls: *mut c_void,
    childs_id: *mut c_void,
) -> c_int {
    match entry {
        Some(program) if flags & libc::CLONE_VM == 0 && !stack.is_null() => {
            before_copy(flags as u64);
            let copy = fork::Copied::begin(flags as u64);
            let mut what = (program, arg, copy);
            let what = (&raw mut what).cast();
            // SAFETY: the caller's promise; the child has a copy of `what`.
            let child = unsafe { real::clone(Some(begin), stack, flags, what, parents_id, tls, childs_id) };
            let errno = real::errno();
            copy.end(false);
            real::set_errno(errno);
            child
        }
        _ => {
            before_clone(flags as u64);
            // SAFETY: the caller's promise.
            unsafe { real::clone(entry, stack, flags, arg, parents_id, tls, childs_id) }
        }
    }
}

/// As sendmsg(2): it may send descriptors to another process.
///
/// # Safety
/// As sendmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(fd: c_int, message: *const msghdr, flags: c_int) -> isize {
    before_sending(message);
    // SAFETY: the caller's promise.
    unsafe { real::sendmsg(fd, message, flags) }
}

/// As sendmmsg(2): it may send descriptors to another process.
///
/// # Safety
/// As sendmmsg(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(fd: c_int, messages: *mut mmsghdr, n: u32, flags: c_int) -> c_int {
    before_sending_all(messages, n);
    // SAFETY: the caller's promise.
    unsafe { real::sendmmsg(fd, messages, n, flags) }
}

/// Returns true if a message carries descriptors (SCM_RIGHTS). The kernel refuses control data that cannot be read.
fn carries_descriptors(message: &msghdr) -> bool {
    let (mut at, end) =
        (message.msg_control.addr(), message.msg_control.addr().saturating_add(message.msg_controllen));
    while at.saturating_add(size_of::<cmsghdr>()) <= end {
        // SAFETY: the type consists of numbers.
        let Some(head) = (unsafe { fault::load(message.msg_control.with_addr(at).cast::<cmsghdr>()) }) else {
            return false;
        };
        if (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
            return true;
        }
        if head.cmsg_len < size_of::<cmsghdr>() {
            return false;
        }
        at = at.saturating_add(head.cmsg_len.next_multiple_of(size_of::<usize>()));
    }
    false
}

/// Called before a message that may carry descriptors is sent.
pub fn before_sending(message: *const msghdr) {
    // SAFETY: the type consists of numbers and pointers.
    if unsafe { fault::load(message) }.is_some_and(|message| carries_descriptors(&message)) {
        fork::before_sending();
    }
}

/// As [`before_sending`], for several messages. The kernel takes at most 1,024.
pub fn before_sending_all(messages: *const mmsghdr, n: u32) {
    // SAFETY: the type consists of numbers and pointers.
    let message = |at: usize| unsafe { fault::load(messages.wrapping_add(at)) };
    let mut there = (0..n.min(1024) as usize).map_while(message);
    if there.any(|message| carries_descriptors(&message.msg_hdr)) {
        fork::before_sending();
    }
}

/// As _exit(2): destructors do not run, so the report is written here.
///
/// # Safety
/// As _exit(2).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _exit(code: c_int) -> ! {
    report::write();
    // SAFETY: no pointer is involved.
    unsafe { real::syscall(libc::SYS_exit_group, code.into(), 0, 0, 0, 0, 0) };
    loop {
        rustix::thread::sched_yield();
    }
}

/// As _Exit(3).
///
/// # Safety
/// As _Exit(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn _Exit(code: c_int) -> ! {
    // SAFETY: as above.
    unsafe { _exit(code) }
}
