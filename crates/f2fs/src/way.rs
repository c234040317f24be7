//! Which way the bytes of a write take: into pages in memory, for the device later, or past them to the device at once.
//!
//! Who opened a file for direct I/O and writes whole pages has them on the device when the call returns, and no copy of them in memory.
//!
//! Invariants  W1  pages on their way to the device, those that wait in memory, and the nodes of both fit into the free segments, with what
//!                 `guard` keeps: a page that finds no block when its pointer is there already would be half a call.
//!             W2  what does not fit beside the others waits in memory, and counts there: who is refused lacks space, not luck.

use crate::content::aligned;
use crate::format::{BLOCK_BYTES, SEGMENT_BLOCKS};
use crate::guard::needed;
use crate::media::Media;
use heddle_vfs::Result;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Fewer are not counted: they are little beside what `guard` keeps, also if many do it, and counting would be one line for all writers.
const COUNTED_PAGES: usize = 17;

/// See the module.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Way {
    /// Into pages.
    Memory,
    /// Past them: whole pages.
    Through,
}

/// Many pages on their way to the device; they count until it is dropped.
pub(crate) struct UnderWay<'m> {
    all: &'m AtomicUsize,
    pages: usize,
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.all.fetch_sub(self.pages, SeqCst);
    }
}

impl Media {
    /// The way of a write into a file that was opened so, and what is to be held until it is done.
    ///
    /// # Errors
    /// [`heddle_vfs::Error::ReadOnly`].
    pub(crate) fn way(
        &self,
        direct: bool,
        offset: u64,
        len_bytes: usize,
    ) -> Result<(Way, Option<UnderWay<'_>>)> {
        if !direct || aligned(offset, len_bytes as u64).is_err() {
            return Ok((Way::Memory, None));
        }
        let pages = len_bytes / BLOCK_BYTES;
        if pages < COUNTED_PAGES {
            return Ok((Way::Through, None));
        }
        let space = self.space()?;
        // Counted before it is looked: of two that do not fit together, one at least sees both.
        let before = space.under_way.fetch_add(pages, SeqCst);
        let under_way = UnderWay { all: &space.under_way, pages };
        let room = space.segments.free().saturating_sub(needed(self)) * SEGMENT_BLOCKS as usize;
        // A page that gets its block changes a node.
        let fits = 2 * (before + pages) <= room;
        Ok(if fits { (Way::Through, Some(under_way)) } else { (Way::Memory, None) })
    }
}
