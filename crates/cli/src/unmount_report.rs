//! The unmount report: data that the daemon of a mount could not write to the media, or damage that it found, for `heddle umount`.
//!
//! The command is not the daemon's parent. So the report is a file in the runtime directory, named by the image's device and inode. It
//! stays until a command has shown it, or until the next mount.
//!
//! Order  the daemon writes the report before it releases the image; `heddle umount` waits for the release, then reads it.

use anyhow::{Context, Result};
use heddle_console::output::talk;
use heddle_nvmfs::runtime_directory;
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// Longer than any error text of heddle.
const NOTE_BYTES_MAX: u64 = 4096;

/// The name of an image's report.
fn name_of(image: &Path) -> Option<String> {
    let meta = image.metadata().ok()?;
    let is_device = meta.file_type().is_block_device() || meta.file_type().is_char_device();
    Some(match is_device {
        true => format!("device-{:x}.lost", meta.rdev()),
        false => format!("{:x}-{:x}.lost", meta.dev(), meta.ino()),
    })
}

/// The place of one mount's report. It is fixed at the mount: the image may be renamed later, and the process
/// change its directory.
#[derive(Clone)]
pub struct UnmountReport {
    name: Option<String>,
}

impl UnmountReport {
    /// Begins a mount: removes the last mount's report.
    pub fn of(image: &Path) -> UnmountReport {
        let words = UnmountReport { name: name_of(image) };
        words.forget();
        words
    }

    fn forget(&self) {
        if let (Some(name), Ok(dir)) = (&self.name, runtime_directory(false)) {
            let _ = unlinkat(dir, name.as_str(), AtFlags::empty());
        }
    }

    /// Reports that some writes are not on the media.
    pub fn lost(&self, error: &anyhow::Error) {
        let error = heddle_console::failure::text(error);
        self.leave(&format!("some writes have not reached the media: {error}"));
    }

    /// Leaves a report for `heddle umount`.
    pub fn leave(&self, text: &str) {
        self.forget();
        let left = || -> Result<()> {
            let name = self.name.as_deref().context("the image was not to be seen")?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = openat(runtime_directory(true)?, name, flags, Mode::RUSR | Mode::WUSR)?;
            Ok(File::from(file).write_all(text.as_bytes())?)
        };
        if let Err(error) = left() {
            talk(&format!("heddle: heddle umount will not report this: {error:#}"));
        }
    }
}

/// Takes the last mount's report about this image; it is shown once.
pub fn take(image: &Path) -> Option<String> {
    let (name, dir) = (name_of(image)?, runtime_directory(false).ok()?);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = openat(&dir, name.as_str(), flags, Mode::empty()).ok()?;
    let mut text = Vec::new();
    File::from(file).take(NOTE_BYTES_MAX).read_to_end(&mut text).ok()?;
    let _ = unlinkat(&dir, name.as_str(), AtFlags::empty());
    let text: String = String::from_utf8_lossy(&text).chars().filter(|c| heddle_fuse::is_plain(*c)).collect();
    (!text.is_empty()).then_some(text)
}
