//! Which pages of a file a call reads or writes, where one file may have many writers at a time (`f2fs-rl`).
//!
//! State       a lock of ranges for each stripe of inodes (`call_gate`): two inodes of one stripe have their ranges in one lock, and
//!                 meet where
//!             their offsets do.
//! Invariants  R1  the holder of a range holds its inode's stripe for reading: whatever takes an inode to itself, a truncation or a page
//!                 that goes to the device, has no reader or writer of a part beside it.
//!             R2  under a range for writing nothing changes but bytes of its pages, which have their pointers, where these lead, and
//!                 the inode's times: size, attributes and nodes stay. A pointer and the times change under the lock of their node, and
//!                 the bits of segments, each of another block, under that of the table (section 3.2 has it so of inode, NAT and SIT).
//! Lock order  the stripe, then one range of one file; pages, nodes and tables behind it.
//! Source      F2FS range-lock paper (SYSTOR '19) section 3.2. Its lock is Linux' interval tree.

use crate::format::BLOCK_BYTES;
use crate::mounted::guards::STRIPES;
use heddle_arena::{Arena, Ptr};
use heddle_range_lock::{Access, Geometry, Held, IntervalTree, LockHead, RangeLock};
use heddle_vfs::{Error, Result};
use std::ops::Range;

/// Address space for holders and waiters, 128 bytes each; what is not used costs nothing.
const ARENA_BYTES: usize = 256 << 20;

/// See the module.
pub(crate) struct Ranges {
    arena: Arena,
    heads: Ptr<LockHead>,
    lock: IntervalTree,
}

/// A range that is held; given back when dropped.
pub(crate) struct HeldRange<'r> {
    ranges: &'r Ranges,
    stripe: usize,
    held: Option<Held>,
}

impl Ranges {
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

    /// Waits until the range is the caller's, with other readers or alone.
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
