//! The unmount report: what the daemon of a mount could not bring to the media, or found damaged, for the command that unmounts.
//!
//! The command is not the daemon's parent, so the report is a file in the runtime directory, named by the image's device and inode. It
//! stays until a command has shown it, or until the next mount.
//!
//! Order  the daemon leaves the note before it lets go of the image; the command that unmounts waits for that, and then looks.

use anyhow::{Context, Result};
use heddle_console::output::talk;
use heddle_nvmfs::runtime_directory;
use rustix::fs::{AtFlags, Mode, OFlags, openat, unlinkat};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

/// More than any error of ours has.
const NOTE_BYTES_MAX: u64 = 4096;

/// What the note of an image is called.
fn name_of(image: &Path) -> Option<String> {
    let meta = image.metadata().ok()?;
    let is_device = meta.file_type().is_block_device() || meta.file_type().is_char_device();
    Some(match is_device {
        true => format!("device-{:x}.lost", meta.rdev()),
        false => format!("{:x}-{:x}.lost", meta.dev(), meta.ino()),
    })
}

/// Where the words of one mount go: the image may have another name by then, and the process another directory.
#[derive(Clone)]
pub struct UnmountReport {
    name: Option<String>,
}

impl UnmountReport {
    /// A mount begins: what the last one said is history.
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

    /// Leaves word that not all that was written is on the media.
    pub fn lost(&self, error: &anyhow::Error) {
        let error = heddle_console::failure::text(error);
        self.leave(&format!("not all that was written has reached the media: {error}"));
    }

    /// Leaves a text for the command that unmounts.
    pub fn leave(&self, text: &str) {
        self.forget();
        let left = || -> Result<()> {
            let name = self.name.as_deref().context("the image was not to be seen")?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            let file = openat(runtime_directory(true)?, name, flags, Mode::RUSR | Mode::WUSR)?;
            Ok(File::from(file).write_all(text.as_bytes())?)
        };
        if let Err(error) = left() {
            talk(&format!("heddle: heddle umount will not tell this: {error:#}"));
        }
    }
}

/// What the last mount of this image had to say; it is told once.
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
