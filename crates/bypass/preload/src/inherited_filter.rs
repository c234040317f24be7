//! Detects a seccomp filter that would kill this process for a system call of the library.
//!
//! The program may have inherited the filter, and may never make such calls itself. The kernel says that there is a filter, but not what it
//! does. So a forked child makes these calls first, and its exit status shows whether they are deadly. A filter may also let a call fail.
//! The caller handles that.
//!
//! The first caller of [`is_deadly`] makes the child: constructors of other libraries may open files before this library is started.

use crate::real;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// [`UNTRIED`], [`DEADLY`] or [`HARMLESS`].
static ANSWER: AtomicU8 = AtomicU8::new(UNTRIED);
const UNTRIED: u8 = 0;
const DEADLY: u8 = 1;
const HARMLESS: u8 = 2;

/// Returns true if a filter may kill this process for a call of the library. Children inherit the filter.
#[inline]
pub fn is_deadly() -> bool {
    // ORDERING: Relaxed: a thread that does not see the answer makes a child of its own.
    match ANSWER.load(Relaxed) {
        UNTRIED => find_out(),
        answer => answer == DEADLY,
    }
}

#[cold]
fn find_out() -> bool {
    let errno = real::errno();
    let is_deadly = may_be_filtered() && !(children_stay_in_this_namespace() && a_child_survives());
    real::set_errno(errno);
    // ORDERING: Relaxed, all threads find the same answer.
    ANSWER.store(if is_deadly { DEADLY } else { HARMLESS }, Relaxed);
    is_deadly
}

/// Returns true unless the kernel says, in /proc, that there is no filter. prctl(2) is not used: that call may be filtered.
fn may_be_filtered() -> bool {
    let mut text = [0; 4096];
    let Ok(status) = openat(CWD, "/proc/thread-self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
    else {
        return true;
    };
    let mut filled = 0;
    while let Ok(n @ 1..) = rustix::io::read(&status, &mut text[filled..]) {
        filled += n;
    }
    let mut lines = text[..filled].split(|byte| *byte == b'\n');
    let mode = lines.find_map(|line| line.strip_prefix(b"Seccomp:"));
    // A kernel without filters has no such line. If the list of groups is long, the line may be further on.
    mode.map_or(filled == text.len(), |mode| mode.trim_ascii() != b"0")
}

/// Returns true if a child would be in the PID namespace of this process. After unshare(CLONE_NEWPID) the first child would be process 1 of
/// the new namespace. After its end the program could make no child any more.
fn children_stay_in_this_namespace() -> bool {
    let read = |link: &CStr| {
        let mut text = [0_u8; 64];
        let (path, to) = (link.as_ptr().expose_provenance(), text.as_mut_ptr().expose_provenance());
        // SAFETY: a name, and a local of this size.
        let read = unsafe {
            real::syscall(libc::SYS_readlinkat, libc::AT_FDCWD.into(), path as i64, to as i64, 64, 0, 0)
        };
        (read > 0).then_some(text)
    };
    let own = read(c"/proc/thread-self/ns/pid");
    own.is_some() && own == read(c"/proc/thread-self/ns/pid_for_children")
}

/// Returns true if a child survives the calls of an attach that programs seldom make. If no child can be made or waited for, it returns
/// false: the filter is then taken for deadly.
fn a_child_survives() -> bool {
    // SAFETY: the child has its own copy of the memory, and makes system calls alone. It sends no signal at its end. Otherwise the
    // kernel would discard the child's status if this process ignores SIGCHLD.
    let child = unsafe { real::syscall(libc::SYS_clone, 0, 0, 0, 0, 0, 0) };
    if child == 0 {
        make_the_calls();
    }
    let mut status = 0;
    // SAFETY: a local for the status.
    let mut wait = || unsafe { libc::waitpid(child as i32, &raw mut status, libc::__WALL) };
    while child > 0 && wait() == -1 && real::errno() == libc::EINTR {}
    child > 0 && libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == SURVIVED
}

/// Exit status of a child that made all calls. It is not 0, the value of `status` if the wait failed.
const SURVIVED: i32 = 75;

/// Makes the calls with arguments by which they have no effect, and ends this process.
fn make_the_calls() -> ! {
    let seqpacket = i64::from(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC);
    let calls = [
        // A child that a filter kills leaves no core dump.
        (libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 0, 0]),
        (libc::SYS_membarrier, [libc::MEMBARRIER_CMD_QUERY.into(), 0, 0]),
        (libc::SYS_socket, [libc::AF_UNIX.into(), seqpacket, 0]),
        (libc::SYS_connect, [-1, 0, 0]),
        (libc::SYS_setsockopt, [-1, 0, 0]),
        (libc::SYS_getsockopt, [-1, 0, 0]),
        (libc::SYS_sendmsg, [-1, 0, 0]),
        (libc::SYS_recvmsg, [-1, 0, 0]),
        (libc::SYS_statx, [-1, 0, 0]),
        (libc::SYS_fstatfs, [-1, 0, 0]),
        (libc::SYS_ioctl, [-1, 0, 0]),
        (libc::SYS_exit_group, [SURVIVED.into(), 0, 0]),
    ];
    loop {
        for (number, [a, b, c]) in calls {
            // SAFETY: descriptors that do not exist, and no memory.
            let _ignored = unsafe { real::syscall(number, a, b, c, 0, 0, 0) };
        }
    }
}
