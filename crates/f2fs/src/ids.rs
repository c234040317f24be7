//! Types for numbers on the media: nodes, blocks, segments.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};

/// Number of a node: an inode, or a block of pointers. 0 is no node.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Nid(pub u32);

impl Nid {
    /// No node.
    pub const NONE: Nid = Nid(0);
}

/// A map by node number.
pub(crate) type ByNid<V> = HashMap<Nid, V, BuildHasherDefault<NidHasher>>;
/// Numbers of nodes.
pub(crate) type Nids = HashSet<Nid, BuildHasherDefault<NidHasher>>;

/// Hashes node numbers, which are mostly consecutive. An image can choose colliding numbers; only its own
/// calls are slow then.
#[derive(Default)]
pub(crate) struct NidHasher(u64);

impl Hasher for NidHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u32(u32::from(*byte)));
    }

    fn write_u32(&mut self, number: u32) {
        // An odd number near 2^64 divided by the golden ratio (Knuth, volume 3, section 6.4): tables use the
        // highest and the lowest bits.
        self.0 = (self.0 ^ u64::from(number)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A block of 4 KiB, counted from the start of the device. Three values in pointers of files are no blocks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockAddr(pub u32);

impl BlockAddr {
    /// A hole.
    pub const NULL: BlockAddr = BlockAddr(0);
    /// Reserved and not yet written: reads as zeros, counts as space.
    pub const NEW: BlockAddr = BlockAddr(u32::MAX);
    /// Marks the beginning of a compressed cluster.
    pub const COMPRESSED: BlockAddr = BlockAddr(u32::MAX - 1);

    /// Returns true if the pointer leads to a block of the device.
    pub fn is_block(self) -> bool {
        !matches!(self, BlockAddr::NULL | BlockAddr::NEW | BlockAddr::COMPRESSED)
    }

    /// The block `count` blocks further on; saturates at a value that is no block.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_pointers_are_no_blocks() {
        let pointers = [0, 1, u32::MAX - 2, u32::MAX - 1, u32::MAX].map(BlockAddr);
        assert_eq!(pointers.map(BlockAddr::is_block), [false, true, true, false, false]);
        assert_eq!((BlockAddr(5).plus(3), BlockAddr(5).plus(u32::MAX)), (BlockAddr(8), BlockAddr::NEW));
    }

    #[test]
    fn numbers_that_follow_each_other_are_spread() {
        let hashes = |shift: u32| {
            let of = |n: u32| {
                let mut hasher = NidHasher::default();
                std::hash::Hash::hash(&Nid(n), &mut hasher);
                hasher.finish() >> shift & 0xff
            };
            (0..256).map(of).collect::<HashSet<_>>().len()
        };
        assert!(hashes(0) > 128 && hashes(56) > 128, "{} and {} of 256", hashes(0), hashes(56));
    }
}
