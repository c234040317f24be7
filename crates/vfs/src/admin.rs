//! The rights of an administrator: by capability, not by user number. User 0 of a container has few, and other users may have some.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;

const CAP_FSETID: u64 = 1 << 4;
const CAP_SYS_ADMIN: u64 = 1 << 21;

/// Returns true if this thread, as this process numbers it, has `CAP_SYS_ADMIN` over mounts of this process.
/// Returns false if it has ended, is in another PID namespace (0), or has the capability only in a user
/// namespace of its own.
pub fn is_administrator(thread: u32) -> bool {
    has(thread, CAP_SYS_ADMIN)
}

/// Returns true if files keep their set-id bits when this thread of this user changes them. If the thread
/// cannot be examined, its user decides.
pub fn may_keep_set_ids(thread: u32, user: u32) -> bool {
    if thread == 0 { user == 0 } else { has(thread, CAP_FSETID) }
}

fn has(thread: u32, capability: u64) -> bool {
    let name = thread.to_string();
    if thread == 0 || !shares_our_users(&name) {
        return false;
    }
    // Bytes, because the file also has the thread's name, which may be any.
    let status = fs::read(format!("/proc/{name}/status")).unwrap_or_default();
    effective(&status).is_some_and(|capabilities| capabilities & capability != 0)
}

/// Returns true if the thread is in this process' user namespace. An ordinary user's daemon may not read that
/// of a root process. Then all users must be mapped alike: a user who makes a namespace without privileges
/// can map no other user.
fn shares_our_users(thread: &str) -> bool {
    let namespace =
        |of: &str| fs::metadata(format!("/proc/{of}/ns/user")).map(|meta| (meta.dev(), meta.ino()));
    let users = |of: &str| fs::read(format!("/proc/{of}/uid_map"));
    let same = |a: Option<Vec<u8>>, b: Option<Vec<u8>>| a.is_some() && a == b;
    match (namespace(thread), namespace("self")) {
        (Ok(its), Ok(ours)) => its == ours,
        (Err(error), _) if error.kind() == ErrorKind::PermissionDenied => {
            same(users(thread).ok(), users("self").ok())
        }
        _ => false,
    }
}

/// A thread's name cannot forge this line: its line ends are written as `\n`.
fn effective(status: &[u8]) -> Option<u64> {
    let line = status.split(|byte| *byte == b'\n').find_map(|line| line.strip_prefix(b"CapEff:"))?;
    u64::from_str_radix(std::str::from_utf8(line).ok()?.trim(), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_set_that_counts_is_found_whatever_the_thread_is_called() {
        let status = b"Name:\t\xff\\nCapEff:\t0\nCapPrm:\t0000000000000000\nCapEff:\t0000000000200001\n";
        assert_eq!(effective(status), Some(0x0020_0001));
        assert_eq!(effective(b"Name:\tx\n"), None);
        assert_eq!(effective(b"CapEff:\tzz\n"), None);
    }

    #[test]
    fn nobody_is_no_administrator() {
        assert!(!is_administrator(0));
        assert!(!is_administrator(u32::MAX));
    }
}
