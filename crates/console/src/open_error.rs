//! Remedies for an image that cannot be opened.

use anyhow::anyhow;
use heddle_pmem::{BLOCK_BYTES, Error};
use rustix::io::Errno;
use std::path::Path;

/// Adds the remedy: the mount to unmount, the missing right, the command that makes an image.
pub fn explain(image: &Path, error: Error) -> anyhow::Error {
    if let Error::TooSmall { len_bytes, .. } = &error
        && *len_bytes < BLOCK_BYTES as u64
    {
        let image = image.display();
        let remedy =
            if *len_bytes == 0 { format!(". Make one with: heddle mkfs {image}") } else { String::new() };
        return anyhow!("{image} is not an image, or only the rest of one: it has {len_bytes} bytes{remedy}");
    }
    if let Error::System { errno, .. } = &error {
        let remedy = match *errno {
            Errno::ACCESS | Errno::PERM => "Choose a place where you may write, or ask its owner",
            Errno::ROFS => {
                "That place is read-only: choose another (an image there can be mounted with -o ro)"
            }
            Errno::ISDIR => "An image is a file or a device",
            Errno::NXIO => "That is a socket or a device without a driver: an image is a file or a device",
            Errno::LOOP | Errno::NOTDIR | Errno::NAMETOOLONG => "Check the path, and the links in it",
            Errno::NOENT => "Check the path; an image is made with: heddle mkfs IMAGE",
            _ => return error.into(),
        };
        return anyhow!("{error}. {remedy}");
    }
    let Error::InUse { pid, .. } = &error else { return error.into() };
    let Some(dir) = crate::mounted::mounted_at(image) else { return error.into() };
    let by = pid.map_or(String::new(), |pid| format!(" by process {pid}"));
    let dir = dir.display();
    anyhow!(
        "cannot open {}: it is mounted at {dir}{by}. Unmount it with: heddle umount {dir}",
        image.display()
    )
}
