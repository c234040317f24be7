//! The processes that use a file's region: each keeps a shared lock, beside the exclusive lock of the first
//! process.
//!
//! The exclusive `flock` belongs to the descriptor that was opened first, and lives as long as any process
//! maps through it. A process that takes over from a dead one opens the file again and cannot have that lock.
//! Processes that map through its descriptor would hold none when the last of the old ones has gone, and
//! another program could open the region meanwhile. So each process that opens a region for writing also
//! keeps a shared lock of its first byte, which belongs to the descriptor too (`F_OFD_SETLK`). The first
//! opener must have been able to lock that byte exclusively.
//!
//! Where the file system has no such locks (they fail with other errors than "taken") there is only the
//! `flock`.

use std::os::fd::{AsFd, AsRawFd};

fn byte(kind: libc::c_int) -> libc::flock {
    // SAFETY: all zeros is a lock description: of the first byte, once its length is set.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    (lock.l_type, lock.l_whence, lock.l_len) = (kind as libc::c_short, libc::SEEK_SET as libc::c_short, 1);
    lock
}

/// Sets the lock. Returns false if another process has it.
fn set(file: impl AsFd, kind: libc::c_int) -> bool {
    let lock = byte(kind);
    // SAFETY: an open descriptor, and a lock description that the kernel only reads.
    let done = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_SETLK, &lock) };
    done == 0 || !matches!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EAGAIN | libc::EACCES))
}

/// Joins the processes that use the region, if there is none yet.
pub(crate) fn claim(file: impl AsFd) -> bool {
    set(&file, libc::F_WRLCK) && set(&file, libc::F_RDLCK)
}

/// Joins the processes that use the region in this file, before the caller takes over from a dead one.
/// Returns false if another process is about to use it exclusively. The lock lasts as long as the descriptor,
/// and all mappings through it.
pub fn join_holders(file: impl AsFd) -> bool {
    set(file, libc::F_RDLCK)
}

/// Drops the lock, for all sharers of the descriptor.
pub(crate) fn leave(file: impl AsFd) {
    set(file, libc::F_UNLCK);
}

/// Returns true if a process uses the region in this file through another descriptor.
pub fn has_holders(file: impl AsFd) -> bool {
    let mut lock = byte(libc::F_WRLCK);
    // SAFETY: as in `set`; the kernel writes the conflicting lock into it.
    let asked = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_OFD_GETLK, &mut lock) };
    asked == 0 && lock.l_type != libc::F_UNLCK as libc::c_short
}
