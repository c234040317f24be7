//! What the media counts: nodes, blocks, segments.

/// Number of a node: an inode, or a block of pointers. 0 names none.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Nid(pub u32);

impl Nid {
    /// No node.
    pub const NONE: Nid = Nid(0);
}

/// A block of 4 KiB, counted from the start of the device. Pointers of files have three values that are no block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockAddr(pub u32);

impl BlockAddr {
    /// A hole.
    pub const NULL: BlockAddr = BlockAddr(0);
    /// Reserved and not yet written: reads as zeros, counts as space.
    pub const NEW: BlockAddr = BlockAddr(u32::MAX);
    /// Stands before the blocks of a compressed cluster.
    pub const COMPRESSED: BlockAddr = BlockAddr(u32::MAX - 1);

    /// Has the pointer bytes on the device?
    pub fn is_block(self) -> bool {
        !matches!(self, BlockAddr::NULL | BlockAddr::NEW | BlockAddr::COMPRESSED)
    }

    /// The block `count` behind this one; saturates at what is no block.
    pub fn plus(self, count: u32) -> BlockAddr {
        BlockAddr(self.0.saturating_add(count))
    }
}

/// A segment of the main area, counted from its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Segno(pub u32);

/// A page of a file: 4 KiB, counted from its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageNo(pub u64);
