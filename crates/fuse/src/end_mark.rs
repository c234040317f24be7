//! The end mark: memory in which a mount's process notes that it has closed its image in order.
//!
//! Why         An image may look after a kill as it looked before the mount: an F2FS image shows its last checkpoint. So `heddle umount`
//!             needs a sign that only a finished close leaves.
//! State       a memfd of that process. It is empty until everything is on the media, and then has one byte.
//! Order       `heddle umount` opens it before it unmounts, and reads it when the process has ended. No name is needed, so it works in any
//!             mount namespace, and for an image that this user cannot read.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;

use rustix::fs::{MemfdFlags, Mode, OFlags, memfd_create};

const NAME: &str = "heddle-end";
/// How the kernel shows it in `/proc/PID/fd`.
const SHOWN: &str = "/memfd:heddle-end (deleted)";

/// The mark of a process that serves a mount.
#[derive(Debug)]
pub struct EndMark(File);

impl EndMark {
    /// Makes the mark, before the mount is there.
    ///
    /// # Errors
    /// Those of memfd_create(2).
    pub fn new() -> io::Result<EndMark> {
        Ok(EndMark(memfd_create(NAME, MemfdFlags::CLOEXEC)?.into()))
    }

    /// Notes that the image is closed in order.
    ///
    /// # Errors
    /// Those of write(2).
    pub fn set(&self) -> io::Result<()> {
        (&self.0).write_all(b"1")
    }
}

/// The mark of another process. It can be read after that process has ended.
#[derive(Debug)]
pub(crate) struct SeenMark(OwnedFd);

impl SeenMark {
    /// The mark behind a link of `/proc/PID/fd` that leads to `shown`; `None`: that is another file.
    pub(crate) fn at(link: &Path, shown: &Path) -> Option<SeenMark> {
        if shown != Path::new(SHOWN) {
            return None;
        }
        // O_PATH triggers nothing, should a file have that name.
        rustix::fs::open(link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok().map(SeenMark)
    }

    /// Returns true if the process has set it.
    pub(crate) fn is_set(&self) -> bool {
        let file = fs::File::open(format!("/proc/self/fd/{}", self.0.as_raw_fd()));
        file.is_ok_and(|mut file| file.read(&mut [0]).is_ok_and(|bytes| bytes > 0))
    }
}
