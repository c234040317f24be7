#![doc = include_str!("../README.md")]

mod any;
mod array;
mod geometry;
mod head;
mod inode;
mod interval;
pub mod memory;
mod tree;
mod wait;
mod word;

use std::ops::Range;

use heddle_arena::{Arena, Full};

pub use any::{AnyLock, LockKind, make};
pub use array::SrlArray;
pub use geometry::{BadGeometry, Geometry};
pub use head::{Access, Held, LockHead};
pub use inode::InodeLock;
pub use interval::IntervalTree;
pub use tree::SrlTree;
pub use wait::{AGE_AFTER, HOLD_BACK_MAX, Mode};

#[cfg(all(test, not(loom)))]
mod tests;

/// Why a range cannot be locked.
#[derive(thiserror::Error, Debug, Clone, Copy, PartialEq, Eq)]
pub enum Error {
    /// Nothing to lock.
    #[error("an empty range cannot be locked: skip the lock when there is nothing to do")]
    Empty,
    /// The range ends beyond the largest file of this lock.
    #[error(
        "the range ends at byte {end_bytes}, beyond this lock's {max_bytes}: make it with a larger file_bytes_max"
    )]
    TooBig {
        /// Where the range ends, in bytes.
        end_bytes: u64,
        /// Where it may end, in bytes.
        max_bytes: u64,
    },
    /// The arena is full.
    #[error(transparent)]
    NoMemory(#[from] Full),
}

/// A readers-writer lock over the byte ranges of many files. One value serves all files; a file's own state is its [`LockHead`].
///
/// Ranges are rounded out to segments. Locks of overlapping ranges exclude each other unless both are [`Access::Shared`]. A range
/// that ends at `u64::MAX` reaches to the end of the largest possible file. A thread that holds a range and acquires another one
/// of the same file must do so in ascending order, and may not upgrade.
pub trait RangeLock: Send + Sync {
    /// Prepares the zeroed `head` of a new file.
    fn init(&self, arena: &Arena, head: &LockHead) -> Result<(), Full>;

    /// Waits until the caller holds `bytes`. After an error the caller holds nothing.
    fn acquire(
        &self,
        arena: &Arena,
        head: &LockHead,
        bytes: Range<u64>,
        access: Access,
    ) -> Result<Held, Error>;

    /// Releases a range that `acquire` returned, on the same `head`. Any order, any thread.
    fn release(&self, arena: &Arena, head: &LockHead, held: Held);

    /// Frees all memory but that of `init`, when the last opener has closed the file.
    ///
    /// # Safety
    /// No thread holds or acquires a range of this file, nor will before this returns.
    unsafe fn last_close(&self, arena: &Arena, head: &LockHead);

    /// Frees all memory when the file is gone, and leaves `head` zeroed.
    ///
    /// # Safety
    /// As [`last_close`](Self::last_close).
    unsafe fn destroy(&self, arena: &Arena, head: &LockHead);

    /// The end of the largest file that this lock can lock.
    fn file_bytes_max(&self) -> u64 {
        u64::MAX
    }

    /// Memory in bytes that this file's lock takes now beside its head.
    fn memory_bytes(&self, arena: &Arena, head: &LockHead) -> u64;

    /// Its name in tables.
    fn name(&self) -> &'static str;
}
