//! Which way the bytes of a write take: into pages in memory, for the device later, or past them to the device at once.
//!
//! Who opened a file for direct I/O and writes whole pages has them on the device when the call returns, and no copy of them in memory.
//! Either way what it makes dirty was counted before (`guard`, K3).

use crate::content::aligned;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Into pages.
    Memory,
    /// Past them: whole pages.
    Through,
}

impl Way {
    /// Of a write into a file that was opened so.
    pub(crate) fn of(direct: bool, offset: u64, len_bytes: usize) -> Way {
        if direct && aligned(offset, len_bytes as u64).is_ok() { Way::Through } else { Way::Memory }
    }
}
