//! Nodes: inodes, blocks of pointers, blocks of attributes. All end in the same footer.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Pointers of a direct node, or node numbers of an indirect one.
pub const NODE_POINTERS: usize = 1018;
/// Bytes of a node before its footer.
pub const NODE_BODY_BYTES: usize = 4072;

/// The low bits of [`NodeFooter::flag`]; from bit 3 on it holds the node's place in its file.
pub mod node_flag {
    /// Not a node of a directory.
    pub const COLD: u32 = 0x1;
    /// The last node of a file that an fsync wrote.
    pub const FSYNC: u32 = 0x2;
    /// The inode's name must be recovered too.
    pub const DENTRY: u32 = 0x4;
    /// Number of bits below the place.
    pub const BITS: u32 = 3;
    /// Place of the attribute node.
    pub const XATTR_PLACE: u32 = u32::MAX >> BITS;
}

/// The end of every node.
///
/// | offset | field | guards against |
/// |--------|-------|----------------|
/// | 4072   | nid   | a table that names the wrong block |
/// | 4076   | ino   | a node of another file |
/// | 4084   | checkpoint_version | following a chain of nodes beyond those written since the last checkpoint |
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct NodeFooter {
    /// Its number.
    pub nid: U32,
    /// Its inode.
    pub ino: U32,
    /// Flags and place.
    pub flag: U32,
    /// The checkpoint after which it was written: version, and in the high word its checksum
    /// (`CRC_RECOVERY`). In a node that a checkpoint of this engine wrote, the highest bit of each word is
    /// inverted.
    pub checkpoint_version: U64,
    /// The block of the next node in the same log.
    pub next: U32,
}

impl NodeFooter {
    /// Its place in its file.
    pub fn place(&self) -> u32 {
        self.flag.get() >> node_flag::BITS
    }
}

/// Any node.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct NodeBlock {
    /// Its meaning follows from how the node was reached.
    pub body: [u8; NODE_BODY_BYTES],
    /// The footer.
    pub footer: NodeFooter,
}

/// A node of pointers: block addresses (direct) or node numbers (indirect).
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct PointerNode {
    /// The pointers.
    pub pointers: [U32; NODE_POINTERS],
    /// The footer.
    pub footer: NodeFooter,
}

const _: () = {
    assert!(size_of::<NodeBlock>() == super::BLOCK_BYTES);
    assert!(size_of::<PointerNode>() == super::BLOCK_BYTES);
};
