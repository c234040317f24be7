//! What can go wrong with a mount, and what to do about it.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

/// A cause a variant.
#[derive(thiserror::Error, Debug)]
pub enum Error {
    /// There is no FUSE in this kernel, or not in this container.
    #[error("cannot mount at {}: there is no /dev/fuse. Load the module (modprobe fuse) \
        or give the container the device", .dir.display())]
    NoDevice {
        /// Where it was to be mounted.
        dir: PathBuf,
    },
    /// The mount point cannot be used.
    #[error("cannot mount at {}: {source}. It must be an existing directory that you may read", .dir.display())]
    MountPoint {
        /// Where it was to be mounted.
        dir: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// Something of ours is there already.
    #[error("cannot mount at {}: {source_name} is mounted there. Unmount it with: heddle umount {}", .dir.display(), .dir.display())]
    AlreadyMounted {
        /// Where it was to be mounted.
        dir: PathBuf,
        /// What is mounted there.
        source_name: String,
    },
    /// The kernel or `fusermount3` refused.
    #[error("cannot mount at {}: {source}. {}", .dir.display(), remedy(.source))]
    Refused {
        /// Where it was to be mounted.
        dir: PathBuf,
        /// What they said.
        source: io::Error,
    },
    /// Nothing is mounted there.
    #[error("{} is not a mount point; see what is mounted with: findmnt -t fuse.heddle", .dir.display())]
    NotMounted {
        /// What was to be unmounted.
        dir: PathBuf,
    },
    /// Something else is mounted there.
    #[error("{} is not a heddle mount but {kind} of {source_name}; unmount it with: umount {}", .dir.display(), .dir.display())]
    NotOurs {
        /// What was to be unmounted.
        dir: PathBuf,
        /// Its file system type.
        kind: String,
        /// Its source.
        source_name: String,
    },
    /// Files are open, or someone is in a directory of it.
    #[error("{} is busy: {}. Close the files, leave the directory, then try again", .dir.display(), used_by(.holders))]
    Busy {
        /// What was to be unmounted.
        dir: PathBuf,
        /// The processes that use it, as far as this user may see.
        holders: Vec<Holder>,
    },
    /// The kernel or `fusermount3` refused.
    #[error("cannot unmount {}: {source}", .dir.display())]
    Unmount {
        /// What was to be unmounted.
        dir: PathBuf,
        /// What they said.
        source: io::Error,
    },
    /// It is unmounted at one place, and its process goes on.
    #[error("cannot remount {}: {source}", .dir.display())]
    Remount {
        /// What was to be changed.
        dir: PathBuf,
        /// Why not.
        source: io::Error,
    },
    /// What is mounted for reading cannot be written to.
    #[error("cannot remount {} for writing: its image was opened for reading alone. Unmount it, and mount it without ro", .dir.display())]
    ImageReadOnly {
        /// What was to be changed.
        dir: PathBuf,
    },
    /// It goes on somewhere.
    #[error("{} is unmounted, but the file system is not: {by}. The image is clean when that process has ended", .dir.display())]
    StillHeld {
        /// What was unmounted.
        dir: PathBuf,
        /// Its holder.
        by: String,
    },
    /// The process behind what is mounted there has died, and it was another image's.
    #[error("cannot mount at {}: the mount of {source_name} is there, whose process has died. Take it away with: heddle umount {}", .dir.display(), .dir.display())]
    DeadMount {
        /// Where it was to be mounted.
        dir: PathBuf,
        /// What was mounted there.
        source_name: String,
    },
    /// The threads that serve the kernel ended with an error.
    #[error("the mount at {} broke: {source}", .dir.display())]
    Session {
        /// The mount.
        dir: PathBuf,
        /// What happened.
        source: io::Error,
    },
}

/// What helps where mounting was refused.
fn remedy(refused: &io::Error) -> &'static str {
    match refused.raw_os_error() {
        Some(libc::EMFILE | libc::ENFILE) => "Allow this process more open files (ulimit -n)",
        Some(libc::EAGAIN) => "Allow this user more processes and threads (ulimit -u)",
        _ => {
            "Without root this needs fusermount3 (package fuse3), and user_allow_other in /etc/fuse.conf for allow_other"
        }
    }
}

/// A path, or a name, of somebody else's: one line that a terminal does not obey.
pub fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    text.chars().map(|c| if is_plain(c) { c.to_string() } else { c.escape_debug().to_string() }).collect()
}

/// Has a character a shape of its own, and changes nothing of what follows? No order to a terminal, no space that is none, nothing that
/// turns the direction of writing.
pub fn is_plain(c: char) -> bool {
    // Behind another character: alone, an accent would be escaped too.
    matches!(c, '"' | '\'' | '\\') || format!("a{c}").escape_debug().skip(1).eq([c])
}

/// A process that uses a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

impl Holder {
    /// The process of this number.
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
