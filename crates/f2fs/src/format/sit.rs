//! The segment information table: the live blocks of each segment.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Entries of a block.
pub const SIT_ENTRIES: usize = 55;

/// The entry of a segment.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct SitEntry {
    /// Live blocks in the low ten bits, the segment's type above.
    pub blocks: U16,
    /// One bit for each block, the highest of a byte first.
    pub valid: [u8; 64],
    /// Time of the last change, in seconds.
    pub mtime: U64,
}

/// Bits of [`SitEntry::blocks`] for the count.
pub const SIT_COUNT_BITS: u32 = 10;

/// A block of the table. Two copies, in the two halves of its area; a bitmap of the checkpoint selects the
/// valid one.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct SitBlock {
    /// Entries of segments from `55 * block` on.
    pub entries: [SitEntry; SIT_ENTRIES],
    /// Unused.
    pub rest: [u8; 26],
}

const _: () = {
    assert!(size_of::<SitEntry>() == 74);
    assert!(size_of::<SitBlock>() == super::BLOCK_BYTES);
};
