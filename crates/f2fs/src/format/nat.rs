//! The node address table: the position of each node.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Entries of a block.
pub const NAT_ENTRIES: usize = 455;

/// The position of a node, and its inode. Address 0: the number is free.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct NatEntry {
    /// Counts the reuses of the number: summaries of its blocks carry it.
    pub version: u8,
    /// The inode that it belongs to; an inode's own number.
    pub ino: U32,
    /// Its block.
    pub addr: U32,
}

/// A block of the table. Two copies, in adjacent segments; a bitmap of the checkpoint selects the valid one.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NatBlock {
    /// Entries of nodes from `455 * block` on.
    pub entries: [NatEntry; NAT_ENTRIES],
    /// Unused.
    pub rest: [u8; 1],
}

const _: () = {
    assert!(size_of::<NatEntry>() == 9);
    assert!(size_of::<NatBlock>() == super::BLOCK_BYTES);
};
