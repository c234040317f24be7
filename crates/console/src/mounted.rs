//! The mount points of an image, from the kernel's table of mounts.

use heddle_fuse::{Mount, heddle_mounts, is_served, is_trusted_user};
use heddle_pmem::lock_holder;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The mount point of an image, as far as this process can see.
pub fn mounted_at(image: &Path) -> Option<PathBuf> {
    mounts_of(image).into_iter().next().map(|(dir, _)| dir)
}

/// How far the source that a mount shows is trusted, best first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Trust {
    /// Root or this user mounted it.
    Trusted,
    /// The owner of the image mounted it.
    Owners,
    /// Another user mounted it, and may show any source.
    Strangers,
}

/// All mounts that show this image's path as their source, trusted ones first.
pub fn mounts_of(image: &Path) -> Vec<(PathBuf, Trust)> {
    let Ok(image) = image.canonicalize() else { return Vec::new() };
    let owner = image.metadata().map(|meta| meta.uid()).ok();
    let trust = |user: Option<u32>| match user {
        Some(user) if is_trusted_user(user) => Trust::Trusted,
        user if user.is_some() && user == owner => Trust::Owners,
        _ => Trust::Strangers,
    };
    let all = heddle_mounts(None).into_iter();
    let mut shown: Vec<_> =
        all.filter(|mount| mount.source == image).map(|mount| (mount.dir, trust(mount.user))).collect();
    shown.sort_by_key(|(_, trust)| *trust);
    shown
}

/// Returns true if the image is mounted, here or in the mount namespace of the process that holds it, and its
/// process lives. A process that holds the image without a mount is about to mount it or to end.
pub fn is_mounted(image: &Path) -> bool {
    let Ok(whole) = image.canonicalize() else { return false };
    let here = heddle_mounts(None);
    let serves = |mount: &Mount| mount.has_trusted_user() && is_served(&mount.dir);
    if here.iter().any(|mount| mount.source == whole && serves(mount)) {
        return true;
    }
    let there = lock_holder(image).map(|pid| heddle_mounts(Some(pid))).unwrap_or_default();
    // A mount that this namespace shows, too, has been asked already.
    let asked =
        |mount: &Mount| here.iter().any(|seen| (seen.device, &seen.dir) == (mount.device, &mount.dir));
    there.iter().any(|mount| mount.source == whole && !asked(mount))
}

/// The image of a mount point.
pub fn mounted_image(dir: &Path) -> Option<PathBuf> {
    let dir = dir.canonicalize().ok()?;
    heddle_mounts(None).into_iter().rfind(|mount| mount.dir == dir).map(|mount| mount.source)
}
