//! Changing an existing mount: mount(8)'s `-o remount`.
//!
//! The kernel enforces a read-only mount for all users: no program opens a file for writing there. While a file is open for writing, a
//! mount does not become read-only. The kernel does not know descriptors of a mount that was killed and taken over, so those are looked for
//! here.

use std::path::Path;

use rustix::fs::{Mode, OFlags, StatVfsMountFlags};
use rustix::mount::MountFlags;

use crate::Error;
use crate::error::shown;
use crate::mappers::earlier_writers;
use crate::mounts::{mount_at, mount_point_path};
use crate::umount::{holders, server_of};

/// The changes; `None` leaves an option as it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Remount {
    /// The mount allows no changes.
    pub read_only: Option<bool>,
    /// Programs may be executed.
    pub exec: Option<bool>,
    /// Set-id bits have effect.
    pub suid: Option<bool>,
    /// Device files can be opened.
    pub dev: Option<bool>,
}

/// Changes the mount at `dir`. If it makes the mount read-only, it then syncs: on success all earlier changes are durable.
///
/// # Errors
/// [`Error::NotMounted`], [`Error::NotOurs`], [`Error::ImageReadOnly`], [`Error::Busy`], [`Error::Remount`].
pub fn remount(dir: &Path, change: Remount) -> Result<(), Error> {
    let dir = mount_point_path(dir);
    let mount = match mount_at(&dir) {
        None => return Err(Error::NotMounted { dir }),
        Some(mount) if mount.is_heddle() => mount,
        Some(mount) => {
            return Err(Error::NotOurs { dir, kind: mount.kind, source_name: shown(&mount.source) });
        }
    };
    let failed = |source: rustix::io::Errno| Error::Remount { dir: dir.clone(), source: source.into() };
    let now = rustix::fs::statvfs(&dir).map_err(failed)?.f_flag;
    if change.read_only == Some(false)
        && now.contains(StatVfsMountFlags::RDONLY)
        && server_of(&mount).is_some_and(|server| !server.writes())
    {
        return Err(Error::ImageReadOnly { dir });
    }
    if change.read_only == Some(true) && !now.contains(StatVfsMountFlags::RDONLY) {
        let writers = server_of(&mount).map(|server| earlier_writers(server.pid())).unwrap_or_default();
        if !writers.is_empty() {
            return Err(Error::Busy { dir, holders: writers });
        }
    }
    let flags = [
        (change.read_only, StatVfsMountFlags::RDONLY, MountFlags::RDONLY),
        (change.exec.map(|may| !may), StatVfsMountFlags::NOEXEC, MountFlags::NOEXEC),
        (change.suid.map(|may| !may), StatVfsMountFlags::NOSUID, MountFlags::NOSUID),
        (change.dev.map(|may| !may), StatVfsMountFlags::NODEV, MountFlags::NODEV),
        (None, StatVfsMountFlags::SYNCHRONOUS, MountFlags::SYNCHRONOUS),
    ];
    let kept = |(wanted, is, flag): (Option<bool>, StatVfsMountFlags, MountFlags)| {
        wanted.unwrap_or(now.contains(is)).then_some(flag)
    };
    let flags: MountFlags = flags.into_iter().filter_map(kept).collect();
    rustix::mount::mount_remount(&dir, flags, c"").map_err(|errno| match errno {
        rustix::io::Errno::BUSY => Error::Busy { dir: dir.clone(), holders: holders(&dir) },
        errno => failed(errno),
    })?;
    if change.read_only == Some(true) {
        // The kernel sends a FUSE server no sync here. An fsync of the root makes every earlier change
        // durable.
        let root =
            rustix::fs::open(&dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        root.and_then(rustix::fs::fsync).map_err(failed)?;
    }
    Ok(())
}
