//! Files: reading, writing, changing size, allocating and freeing ranges.

pub mod blocks;
pub mod cells;
pub mod deferred;
pub mod new_blocks;
pub mod page_by_page;
mod papers;
pub mod range;
pub mod read;
pub mod resize;
pub mod shift;
pub mod write_heddle;
pub mod zero;

use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::papers::locks_ranges;
use heddle_vfs::Result;
use write_heddle::At;

/// Writes all of `data`; returns its offset.
#[inline]
pub fn write_at(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    at: At,
    data: &[u8],
) -> Result<u64> {
    if locks_ranges(core) {
        papers::write(core, guard, inode, at, data)
    } else {
        write_heddle::write(core, guard, inode, at, data)
    }
}

/// Reads up to `into.len()` bytes at `offset`. Returns their number.
#[inline]
pub fn read_at(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    offset: u64,
    into: &mut [u8],
) -> Result<usize> {
    if locks_ranges(core) {
        papers::read(core, guard, inode, offset, into)
    } else {
        read::read(core, guard, inode, offset, into)
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
