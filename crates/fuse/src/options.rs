//! How to mount.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Config, SessionACL};
use heddle_vfs::ioctl::Doorbell;

use crate::mounts::FS_SUBTYPE;

/// How to mount.
#[derive(Clone)]
pub struct MountOptions {
    /// What the mount table shows as the source, usually the image's path.
    pub source: PathBuf,
    /// Answers programs that ask where they can attach.
    pub door: Option<Arc<dyn Doorbell>>,
    /// Threads that serve requests; one a core, and at least two, if not given.
    pub threads: Option<NonZeroUsize>,
    /// How long the kernel may keep names and attributes.
    pub ttl: Duration,
    /// No changes through this mount.
    pub read_only: bool,
    /// Other users may enter, as far as modes allow. Without it only the user who mounts, not even root.
    pub allow_other: bool,
    /// All files show this owner; new ones get it, and nobody can give one away.
    pub uid: Option<u32>,
    /// The same for the group.
    pub gid: Option<u32>,
    /// Programs may be executed.
    pub exec: bool,
    /// Set-user-id programs have their effect. Root's to allow.
    pub suid: bool,
    /// Device files can be opened. Root's to allow.
    pub dev: bool,
}

impl Default for MountOptions {
    /// A second's cache, open to others if root mounts.
    fn default() -> Self {
        MountOptions {
            source: FS_SUBTYPE.into(),
            door: None,
            threads: None,
            ttl: Duration::from_secs(1),
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            uid: None,
            gid: None,
            exec: true,
            suid: false,
            dev: false,
        }
    }
}

impl MountOptions {
    pub(crate) fn threads(&self) -> usize {
        let cores = || std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
        self.threads.map_or_else(|| cores().max(2), NonZeroUsize::get)
    }

    pub(crate) fn config(&self) -> Config {
        let mut config = Config::default();
        config.acl = if self.allow_other { SessionACL::All } else { SessionACL::Owner };
        config.n_threads = Some(self.threads());
        config.clone_fd = true;
        config
    }
}

/// Owner and group that all files show; new files are stored with them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ShownOwner {
    pub(crate) uid: Option<u32>,
    pub(crate) gid: Option<u32>,
}

impl ShownOwner {
    pub(crate) fn is_set(self) -> bool {
        self != ShownOwner::default()
    }
}
