//! The segment information table: which blocks of a segment are live.

use zerocopy::little_endian::{U16, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Entries of a block.
pub const SIT_ENTRIES: usize = 55;

/// A segment.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct SitEntry {
    /// Live blocks in the low ten bits, the segment's type above.
    pub blocks: U16,
    /// A bit a block, the highest of a byte first.
    pub valid: [u8; 64],
    /// When it was last changed, in seconds.
    pub mtime: U64,
}

/// Bits of [`SitEntry::blocks`] that count.
pub const SIT_COUNT_BITS: u32 = 10;

/// A block of the table. Two copies, in the two halves of its area; a bitmap of the checkpoint says which counts.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct SitBlock {
    /// Of segments `55 * block` and the next.
    pub entries: [SitEntry; SIT_ENTRIES],
    /// Nothing.
    pub rest: [u8; 26],
}

const _: () = {
    assert!(size_of::<SitEntry>() == 74);
    assert!(size_of::<SitBlock>() == super::BLOCK_BYTES);
};
