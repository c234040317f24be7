//! Chooses between the page cache and direct I/O for each write.
//!
//! A write of whole pages to a file that was opened for direct I/O is on the device when the call returns,
//! and no copy stays in memory. Other writes change pages in memory, which are written to the device later.
//! In both cases the dirty pages were counted before (`call_gate`, K3).

use crate::format::BLOCK_BYTES;
use heddle_vfs::{Error, Result};

/// The path of a write's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WritePath {
    /// Into pages in memory.
    PageCache,
    /// To the device at once, in whole pages.
    Direct,
}

impl WritePath {
    /// The path for a write. `direct`: the file was opened for direct I/O.
    pub(crate) fn of(direct: bool, offset: u64, len_bytes: usize) -> WritePath {
        if direct && aligned(offset, len_bytes as u64).is_ok() {
            WritePath::Direct
        } else {
            WritePath::PageCache
        }
    }
}

/// Refuses a range that does not consist of whole pages.
///
/// # Errors
/// [`Error::InvalidArgument`].
pub(crate) fn aligned(offset: u64, len_bytes: u64) -> Result<()> {
    let page = BLOCK_BYTES as u64;
    let whole = offset.is_multiple_of(page) && len_bytes.is_multiple_of(page);
    if whole { Ok(()) } else { Err(Error::InvalidArgument("the range is not of whole pages")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_pages_of_a_direct_write_pass_the_memory() {
        assert_eq!(WritePath::of(true, 4096, 8192), WritePath::Direct);
        for (direct, offset, len) in [(false, 4096, 8192), (true, 1, 4096), (true, 0, 4095)] {
            assert_eq!(WritePath::of(direct, offset, len), WritePath::PageCache, "{len} bytes at {offset}");
        }
    }
}
