//! What can go wrong with a mount, and what to do about it.

use std::fmt;
use std::io;
use std::path::PathBuf;

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
    #[error("cannot mount at {}: {source}. Without root this needs fusermount3 (package fuse3), \
        and user_allow_other in /etc/fuse.conf for allow_other", .dir.display())]
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
        /// Who uses it, as far as this user may see.
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
    /// The threads that serve the kernel ended with an error.
    #[error("the mount at {} broke: {source}", .dir.display())]
    Session {
        /// The mount.
        dir: PathBuf,
        /// What happened.
        source: io::Error,
    },
}

/// A process that uses a mount.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Holder {
    /// Its number.
    pub pid: u32,
    /// Its name.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.pid, self.name)
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
