//! Options of a mount.

use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fuser::{Config, SessionACL};
use heddle_vfs::ioctl::AttachIoctl;

use crate::mounts::FS_SUBTYPE;

/// Options of a mount.
#[derive(Clone)]
pub struct MountOptions {
    /// The source that the mount table shows, usually the image's path.
    pub source: PathBuf,
    /// Answers programs that ask where to attach.
    pub attach_ioctl: Option<Arc<dyn AttachIoctl>>,
    /// Threads that serve requests. Default: one per core, and at least two.
    pub threads: Option<NonZeroUsize>,
    /// How long the kernel may cache names and attributes.
    pub ttl: Duration,
    /// This mount allows no changes.
    pub read_only: bool,
    /// Other users may use the mount, as file modes allow. Without it only the mounting user may, not even
    /// root.
    pub allow_other: bool,
    /// All files show this owner; new files get it, and no file can be given to another.
    pub uid: Option<u32>,
    /// The same for the group.
    pub gid: Option<u32>,
    /// Programs may be executed.
    pub exec: bool,
    /// Set-user-id bits have effect. Only root may allow it.
    pub suid: bool,
    /// Device files can be opened. Only root may allow it.
    pub dev: bool,
}

impl Default for MountOptions {
    /// A cache of one second; other users may enter if root mounts.
    fn default() -> Self {
        MountOptions {
            source: FS_SUBTYPE.into(),
            attach_ioctl: None,
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
