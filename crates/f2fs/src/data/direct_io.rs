//! Chooses between the page cache and direct I/O for each write.
//!
//! A write of whole pages to a file that was opened for direct I/O is on the device when the call returns, and no copy stays in memory.
//! Other writes change pages in memory, which reach the device later. Either way the dirty pages were counted before (`call_gate`, K3).

use crate::data::write::aligned;

/// The path of a write's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WritePath {
    /// Into pages in memory.
    PageCache,
    /// To the device at once, in whole pages.
    Direct,
}

impl WritePath {
    /// Of a write into a file that was opened so.
    pub(crate) fn of(direct: bool, offset: u64, len_bytes: usize) -> WritePath {
        if direct && aligned(offset, len_bytes as u64).is_ok() {
            WritePath::Direct
        } else {
            WritePath::PageCache
        }
    }
}
