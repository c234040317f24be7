//! The address at which a client attaches, and the daemons that it trusts.
//!
//! The client goes to the mount: it asks a descriptor of any file in it for the attach socket (`attach_ioctl`), and the daemon
//! that answers there must know the question. The attach socket itself has no name in any directory (it is an abstract
//! socket). So it cannot be planted, be left behind, or be out of a group's reach. An attach socket at a path is for
//! programs that have no mount, and for tests.
//!
//! **Trust.** A client maps memory that the daemon sends, and a malicious daemon could corrupt the client's
//! memory through it. So a client takes memory only from a daemon of root, of its own user, or of a user in
//! `HEDDLE_TRUST` (names or numbers, separated by commas). The kernel tells the daemon's user (SO_PEERCRED). A number that may stand for
//! several users is nobody's ([`heddle_vfs::unmapped`]).
//! A program that runs with more rights than its caller (set-user-id) ignores `HEDDLE_TRUST`. A reading of
//! counters needs no trust: it is a copy, in sealed memory.

use heddle_vfs::unmapped::{is_one_user, is_own_user};
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The address at which to attach.
#[derive(Clone, Copy, Debug)]
pub enum AttachAddress<'a> {
    /// The mount of this descriptor. A descriptor with `O_PATH` does not work.
    Mount(BorrowedFd<'a>),
    /// A socket that a [`super::server::Server`] was told to make.
    Socket(&'a Path),
}

impl<'a> From<BorrowedFd<'a>> for AttachAddress<'a> {
    fn from(file: BorrowedFd<'a>) -> AttachAddress<'a> {
        AttachAddress::Mount(file)
    }
}

impl<'a> From<&'a Path> for AttachAddress<'a> {
    fn from(socket: &'a Path) -> AttachAddress<'a> {
        AttachAddress::Socket(socket)
    }
}

impl<'a> From<&'a PathBuf> for AttachAddress<'a> {
    fn from(socket: &'a PathBuf) -> AttachAddress<'a> {
        AttachAddress::Socket(socket)
    }
}

impl std::fmt::Display for AttachAddress<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            AttachAddress::Mount(_) => write!(f, "the attach socket of this mount"),
            AttachAddress::Socket(path) => write!(f, "{}", path.display()),
        }
    }
}

/// Returns true if a daemon of this user may hand memory to this process.
pub(crate) fn trusts(uid: u32) -> bool {
    // SAFETY: takes no pointers.
    let raised = unsafe { libc::getauxval(libc::AT_SECURE) } != 0;
    let named = || is_one_user(uid) && std::env::var_os("HEDDLE_TRUST").is_some_and(|list| names(&list, uid));
    uid == 0 || is_own_user(uid) || (!raised && named())
}

/// Returns true if this list names the user.
fn names(list: &OsStr, uid: u32) -> bool {
    let mut users =
        list.as_bytes().split(|byte| *byte == b',').filter_map(|user| std::str::from_utf8(user).ok());
    users.any(|user| match user.parse::<u32>() {
        Ok(number) => number == uid,
        Err(_) => number_of(user) == Some(uid),
    })
}

fn number_of(user: &str) -> Option<u32> {
    let rows = std::fs::read_to_string("/etc/passwd").ok()?;
    let mut rows = rows.lines().map(|row| row.split(':'));
    rows.find_map(|mut row| (row.next() == Some(user)).then(|| row.nth(1)?.parse().ok()).flatten())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn memory_is_taken_from_root_from_oneself_and_from_who_is_named() {
        let own = rustix::process::geteuid().as_raw();
        assert!(trusts(0) && trusts(own) && !trusts(own + 4242));
        let list = OsStr::new("nobody-of-that-name,4242,root");
        assert!(names(list, 4242) && names(list, 0) && !names(list, 4243));
        assert!(!names(OsStr::new(""), 0) && !names(OsStr::new("+1x,,"), 1));
    }

    #[test]
    fn an_address_is_shown_as_its_path_or_as_the_mount() {
        let null = std::fs::File::open("/dev/null").unwrap();
        assert_eq!(AttachAddress::from(Path::new("/run/a b")).to_string(), "/run/a b");
        assert_eq!(AttachAddress::from(null.as_fd()).to_string(), "the attach socket of this mount");
    }
}
