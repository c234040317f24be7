//! Looking on: what a mounted file system has done since it was mounted, or is doing now.
//!
//! `stat` takes one reading, `top` one after the other and shows what came between two, `metrics` (of the mount) is asked by others.
//! Readings come from the mount's process, whose door the mount itself names; where they are counted: `heddle_nvmfs::counters`.

pub mod counted;
mod figures;
pub mod prometheus;
pub mod stat;
pub mod top;

use crate::image::{mounted_image, mounts_of};
use anyhow::{Context, Result, bail};
use heddle_nvmfs::client::{self, AttachError};
use heddle_nvmfs::counters::Counters;
use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

/// A reading of the file system that is mounted at (or above) a directory, or made from an image.
fn reading(path: &Path) -> Result<Counters> {
    through(path, |file| client::counters_and_image(file.as_fd()))
}

/// Asks the mount at (or above) a directory, or that of an image, for something that comes with the identity of the image: a mount of
/// another image that only shows the same name is passed over.
pub fn through<T>(path: &Path, ask: impl Fn(&OwnedFd) -> Result<(T, [u64; 2]), AttachError>) -> Result<T> {
    let shown = path.display();
    let looked = open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty());
    let looked = looked.with_context(|| format!("cannot look at {shown}"))?;
    match FileType::from_raw_mode(fstat(&looked)?.st_mode) {
        FileType::Directory => {
            let file = directory(path).with_context(|| format!("cannot look at {shown}"))?;
            return ask(&file).map(|(found, _)| found).with_context(|| shown.to_string());
        }
        FileType::RegularFile | FileType::BlockDevice | FileType::CharacterDevice => {}
        _ => bail!("{shown} is neither a directory nor an image"),
    }
    let wanted = client::identity_of(&looked)?;
    let mut failed = None;
    for dir in mounts_of(path) {
        match directory(&dir).map_err(anyhow::Error::from).and_then(|file| Ok(ask(&file)?)) {
            Ok((found, image)) if image == wanted => return Ok(found),
            Ok(_) => {}
            Err(error) => failed = Some(error.context(dir.display().to_string())),
        }
    }
    Err(failed.unwrap_or_else(|| {
        anyhow::anyhow!(
            "{shown} is not mounted, as far as this process can see. Mount it with: heddle mount {shown} DIR"
        )
    }))
}

/// A descriptor that a mount can be asked through.
fn directory(dir: &Path) -> rustix::io::Result<OwnedFd> {
    open(dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}

/// What the mount is made from, for a headline.
fn name_of(path: &Path) -> String {
    match mounted_image(path) {
        Some(image) => format!("{} at {}", image.display(), path.display()),
        None => path.display().to_string(),
    }
}

/// Name of a process, as the kernel tells it.
fn program(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    let name: String = name.trim_end().chars().filter(|c| heddle_fuse::is_plain(*c)).collect();
    if name.is_empty() { "-".to_owned() } else { name }
}
