//! The node address table: where each node is.

use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Entries of a block.
pub const NAT_ENTRIES: usize = 455;

/// Where a node is, and whose it is. Address 0: the number is free.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct NatEntry {
    /// Counts the lives of the number: summaries of its blocks carry it.
    pub version: u8,
    /// The inode that it belongs to; its own number if it is one.
    pub ino: U32,
    /// Its block.
    pub addr: U32,
}

/// A block of the table. Two copies, in adjacent segments; a bitmap of the checkpoint says which counts.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct NatBlock {
    /// Of nodes `455 * block` and the next.
    pub entries: [NatEntry; NAT_ENTRIES],
    /// Nothing.
    pub rest: [u8; 1],
}

const _: () = {
    assert!(size_of::<NatEntry>() == 9);
    assert!(size_of::<NatBlock>() == super::BLOCK_BYTES);
};
