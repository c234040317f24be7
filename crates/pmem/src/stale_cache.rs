//! Pages of a file that the kernel has in its cache and the disk lacks, because their write-back failed.
//!
//! Why         The kernel takes such pages for written. The next mount would read them, and rely on bytes that a power cut takes away.

use crate::dirty::Failure;
use rustix::fs::{Advice, fadvise};
use std::os::fd::{BorrowedFd, OwnedFd};

/// Asks the kernel to forget the file's pages when dropped, if a write-back failed. It keeps those that a process still maps.
#[derive(Debug)]
pub(crate) struct StaleCache {
    file: OwnedFd,
    failure: Failure,
}

impl StaleCache {
    /// `None`: there is no descriptor left for it.
    pub(crate) fn of(file: BorrowedFd<'_>, failure: &Failure) -> Option<StaleCache> {
        let file = rustix::io::fcntl_dupfd_cloexec(file, 0).ok()?;
        Some(StaleCache { file, failure: failure.clone() })
    }
}

impl Drop for StaleCache {
    fn drop(&mut self) {
        if self.failure.get().is_some() {
            // If the kernel refuses, its cache stays as it is.
            let _ = fadvise(&self.file, 0, None, Advice::DontNeed);
        }
    }
}
