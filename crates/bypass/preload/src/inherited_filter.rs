//! A filter of system calls that was there before this library: what it does to calls that a program may never make itself.
//!
//! The kernel tells that there is a filter, but not what it does. A filter may end the process for a call. So a child with a copy of this
//! memory makes the calls first, and its end tells. Other filters let a call fail, which its caller handles.

use crate::real;
use rustix::fs::{CWD, Mode, OFlags, openat};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

static IS_DEADLY: AtomicBool = AtomicBool::new(false);

/// Called when the library is loaded, before it makes any of these calls.
pub fn start() {
    // ORDERING: Relaxed, before there is a second thread.
    IS_DEADLY.store(may_be_filtered() && !a_child_survives(), Relaxed);
}

/// Returns true if such a call may end this process. Its children inherit the filter.
pub fn is_deadly() -> bool {
    IS_DEADLY.load(Relaxed) // ORDERING: Relaxed, set once.
}

/// Returns true unless the kernel says that there is no filter. prctl(2) is not asked: that call may be filtered.
fn may_be_filtered() -> bool {
    let mut text = [0; 4096];
    let Ok(status) = openat(CWD, "/proc/self/status", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else {
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

/// Returns true if a child lives through the calls that attaching takes, and that a program seldom makes. If no child can be made, or none
/// can be waited for, nothing is known.
fn a_child_survives() -> bool {
    // SAFETY: the child has its own copy of the memory, and makes system calls alone. It sends no signal at its end: a program may have
    // asked its parent to ignore such signals, and with them the child's status would go.
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

/// No status of a child that was not waited for.
const SURVIVED: i32 = 75;

/// Makes the calls with arguments by which they have no effect, and ends this process.
fn make_the_calls() -> ! {
    let seqpacket = i64::from(libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC);
    let calls = [
        // An end by a filter leaves no core.
        (libc::SYS_prctl, [libc::PR_SET_DUMPABLE.into(), 0, 0]),
        (libc::SYS_membarrier, [libc::MEMBARRIER_CMD_QUERY.into(), 0, 0]),
        (libc::SYS_socket, [libc::AF_UNIX.into(), seqpacket, 0]),
        (libc::SYS_statx, [-1, 0, 0]),
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
