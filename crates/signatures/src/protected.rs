//! Write-protected media, although their permissions allow writing.

use rustix::fs::{CWD, FileType, Mode, OFlags, major, minor, openat, stat};
use rustix::io::Errno;
use std::path::Path;

/// Returns true for a write-protected block device, and for a file on a file system that is mounted
/// read-only. The kernel opens such a device for writing and refuses each write.
pub fn is_write_protected(path: &Path) -> bool {
    let Ok(stat) = stat(path) else { return false };
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::BlockDevice => {
            let (major, minor) = (major(stat.st_rdev), minor(stat.st_rdev));
            std::fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/ro"))
                .is_ok_and(|ro| ro.trim() == "1")
        }
        FileType::RegularFile => {
            let how = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
            openat(CWD, path, how, Mode::empty()).is_err_and(|error| error == Errno::ROFS)
        }
        _ => false,
    }
}
