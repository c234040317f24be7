//! Locks of the pages that a call reads or writes, for files with several writers at a time (`f2fs-rl`).
//!
//! State       a range lock for each stripe of inodes (`call_gate`). Two inodes of one stripe share a range lock, and conflict if their
//!             offsets do.
//! Invariants  R1  the holder of a range holds its inode's stripe for reading. So a call that locks the inode exclusively (a truncation,
//!                 or a page being written to the device) runs beside no reader or writer of a part.
//!             R2  under a range lock for writing only the bytes of its pages, which have their pointers, the targets of these
//!                 pointers, and the inode's times change. Size, attributes and nodes stay. A pointer and the times change under the
//!                 lock of their node. The bits of segments, each for another block, change under the table's lock (section 3.2 does so
//!                 for inode, NAT and SIT).
//! Lock order  the stripe, then one range of one file; pages, nodes and tables after it.
//! Source      F2FS range-lock paper (SYSTOR '19) section 3.2. The lock is the interval tree of `heddle-range-lock`.

use crate::format::BLOCK_BYTES;
use crate::mounted::guards::STRIPES;
use heddle_arena::{Arena, Ptr};
use heddle_range_lock::{Access, Geometry, Held, IntervalTree, LockHead, RangeLock};
use heddle_vfs::{Error, Result};
use std::ops::Range;

/// Address space for holders and waiters, 128 bytes each; untouched pages cost nothing.
const ARENA_BYTES: usize = 256 << 20;

/// The range locks of a mount.
pub(crate) struct Ranges {
    arena: Arena,
    heads: Ptr<LockHead>,
    lock: IntervalTree,
}

/// A locked range. Dropping it unlocks.
pub(crate) struct HeldRange<'r> {
    ranges: &'r Ranges,
    stripe: usize,
    held: Option<Held>,
}

impl Ranges {
    /// Creates the range locks.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn new() -> Result<Ranges> {
        let arena = Arena::private(ARENA_BYTES).map_err(|_| Error::NoMemory)?;
        let heads = arena.alloc_zeroed::<LockHead>(STRIPES).map_err(|_| Error::NoMemory)?;
        let geometry = Geometry { segment_bytes: BLOCK_BYTES as u64, ..Geometry::default() };
        let lock = IntervalTree::new(&geometry).map_err(|_| Error::NoMemory)?;
        Ok(Ranges { arena, heads, lock })
    }

    fn head(&self, stripe: usize) -> &LockHead {
        &self.arena.slice(self.heads, STRIPES)[stripe]
    }

    /// Locks the range, shared with other readers or exclusively.
    ///
    /// # Errors
    /// [`Error::NoMemory`].
    pub(crate) fn hold(&self, stripe: usize, bytes: Range<u64>, access: Access) -> Result<HeldRange<'_>> {
        let held = self.lock.acquire(&self.arena, self.head(stripe), bytes, access);
        match held {
            Ok(held) => Ok(HeldRange { ranges: self, stripe, held: Some(held) }),
            Err(heddle_range_lock::Error::TooBig { .. }) => Err(Error::FileTooBig),
            Err(heddle_range_lock::Error::Empty) => Err(Error::InvalidArgument("an empty range")),
            Err(heddle_range_lock::Error::NoMemory(_)) => Err(Error::NoMemory),
        }
    }
}

impl Drop for HeldRange<'_> {
    fn drop(&mut self) {
        if let Some(held) = self.held.take() {
            let ranges = self.ranges;
            ranges.lock.release(&ranges.arena, ranges.head(self.stripe), held);
        }
    }
}
