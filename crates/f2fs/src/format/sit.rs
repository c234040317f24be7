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

const _: () = assert!(size_of::<SitEntry>() == 74);
