//! Errors of mounting and unmounting, each with its remedy.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// One variant per cause.
#[derive(thiserror::Error, Debug)]
pub enum Error {
    /// This kernel, or this container, has no FUSE.
    #[error("cannot mount at {}: there is no /dev/fuse. Load the module (modprobe fuse) \
        or give the container the device", .dir.display())]
    NoDevice {
        /// The directory to mount at.
        dir: PathBuf,
    },
    /// The mount point cannot be used.
    #[error("cannot mount at {}: {source}. It must be an existing directory that you may read", .dir.display())]
    MountPoint {
        /// The directory to mount at.
        dir: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A heddle file system is mounted there already.
    #[error("cannot mount at {}: {source_name} is mounted there. Unmount it with: heddle umount {}", .dir.display(), .dir.display())]
    AlreadyMounted {
        /// The directory to mount at.
        dir: PathBuf,
        /// The source of the mount that is there.
        source_name: String,
    },
    /// The kernel or `fusermount3` refused.
    #[error("cannot mount at {}: {source}. {}", .dir.display(), remedy(.source))]
    Refused {
        /// The directory to mount at.
        dir: PathBuf,
        /// Their error.
        source: io::Error,
    },
    /// No file system is mounted there.
    #[error("{} is not a mount point; see what is mounted with: findmnt -t fuse.heddle", .dir.display())]
    NotMounted {
        /// The directory to unmount.
        dir: PathBuf,
    },
    /// Another file system is mounted there.
    #[error("{} is not a heddle mount but {kind} of {source_name}; unmount it with: umount {}", .dir.display(), .dir.display())]
    NotOurs {
        /// The directory to unmount.
        dir: PathBuf,
        /// Its file system type.
        kind: String,
        /// Its source.
        source_name: String,
    },
    /// Files are open, or a process has its working directory there.
    #[error("{} is busy: {}. Close the files, leave the directory, then try again", .dir.display(), used_by(.holders))]
    Busy {
        /// The directory to unmount.
        dir: PathBuf,
        /// The processes that use the mount, as far as this user may see.
        holders: Vec<Holder>,
    },
    /// The kernel or `fusermount3` refused.
    #[error("cannot unmount {}: {source}", .dir.display())]
    Unmount {
        /// The directory to unmount.
        dir: PathBuf,
        /// Their error.
        source: io::Error,
    },
    /// The options of the mount could not be changed.
    #[error("cannot remount {}: {source}", .dir.display())]
    Remount {
        /// The mount to change.
        dir: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// A mount of an image that was opened for reading cannot become writable.
    #[error("cannot remount {} for writing: its image was opened only for reading. Unmount it, and mount it without ro", .dir.display())]
    ImageReadOnly {
        /// The mount to change.
        dir: PathBuf,
    },
    /// The file system is still mounted somewhere.
    #[error("{} is unmounted, but the file system is not: {by}. The image is clean when that process has ended", .dir.display())]
    StillHeld {
        /// The directory that was unmounted.
        dir: PathBuf,
        /// The process that holds it.
        by: String,
    },
    /// A dead mount of another image is there: its process has died.
    #[error("cannot mount at {}: a dead mount of {source_name} is there: its process has died. Remove it with: heddle umount {}", .dir.display(), .dir.display())]
    DeadMount {
        /// The directory to mount at.
        dir: PathBuf,
        /// The source of the dead mount.
        source_name: String,
    },
    /// The threads that serve the kernel ended with an error.
    #[error("the mount at {} broke: {source}", .dir.display())]
    Session {
        /// The mount point.
        dir: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// The remedy where mounting was refused.
fn remedy(refused: &io::Error) -> &'static str {
    match refused.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "Allow this process more open files (ulimit -n)",
        Some(libc::EAGAIN) => "Allow this user more processes and threads (ulimit -u)",
        _ => {
            "Without root this needs fusermount3 (package fuse3), and user_allow_other in /etc/fuse.conf for allow_other"
        }
    }
}

/// A path or name that another user may have chosen, as one line without terminal escapes.
pub fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    text.chars().map(|c| if is_plain(c) { c.to_string() } else { c.escape_debug().to_string() }).collect()
}

/// Returns true if the character is visible as itself: no terminal escape, no invisible space, no change of
/// the writing direction.
pub fn is_plain(c: char) -> bool {
    // Behind another character: an accent alone would be escaped, too.
    matches!(c, '"' | '\'' | '\\') || format!("a{c}").escape_debug().skip(1).eq([c])
}

/// A process that uses a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its process number.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

impl Holder {
    /// The process with this number.
    pub(crate) fn of(pid: u32) -> Holder {
        let name = std::fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
        Holder { pid, name: String::from_utf8_lossy(&name).trim_end().to_owned() }
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pid, self.name.escape_debug())
    }
}

fn used_by(holders: &[Holder]) -> String {
    const SHOWN_MAX: usize = 8;
    if holders.is_empty() {
        return "used by processes this user cannot see, or by another mount below it".into();
    }
    let shown: Vec<String> = holders.iter().take(SHOWN_MAX).map(Holder::to_string).collect();
    let more = holders.len().saturating_sub(SHOWN_MAX);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("used by {}{rest}", shown.join(", "))
}
