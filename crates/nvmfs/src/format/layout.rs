//! The layout of a region.
//!
//! ```text
//! block 0            superblock
//! block 1 …          inode directory: one pointer an inode chunk, enough for a quarter of the region
//! data_block …       inode chunks, log pages, extent lists, file data: wherever the allocator put them
//! last block         superblock, second copy
//! ```

use super::inode::{CHUNK_INODES, INODE_BYTES};
use crate::ids::{BlockNo, InodeId};
use heddle_pmem::{BLOCK_BYTES, Pos};
use heddle_vfs::Ino;

/// Smallest region; a smaller one has no room for a useful file system.
pub const REGION_BYTES_MIN: u64 = 4 << 20;

/// The owner noted in the pointers of the inode directory.
pub const INODE_DIRECTORY: InodeId = InodeId { ino: Ino(0), generation: 0 };

/// Possible lengths, in bytes, of the target of a symbolic link.
pub const TARGET_BYTES: std::ops::Range<u64> = 1..4096;

/// Sizes and positions that follow from the number of blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Layout {
    /// Number of blocks.
    pub blocks_total: u64,
    /// First block of the inode directory.
    pub inode_dir: BlockNo,
    /// Number of pointers in it.
    pub chunks_max: u64,
    /// First block of the data area.
    pub data: BlockNo,
}

impl Layout {
    /// The layout of a region of `blocks_total` blocks.
    pub fn new(blocks_total: u64) -> Layout {
        let chunks_max = (blocks_total / 4).max(1);
        let dir_blocks = (chunks_max * 8).div_ceil(BLOCK_BYTES as u64);
        Layout { blocks_total, inode_dir: BlockNo(1), chunks_max, data: BlockNo(1 + dir_blocks) }
    }

    /// Size in bytes.
    pub fn bytes(&self) -> u64 {
        self.blocks_total * BLOCK_BYTES as u64
    }

    /// The block of the second superblock; also the end of the data area.
    pub fn last(&self) -> BlockNo {
        BlockNo(self.blocks_total - 1)
    }

    /// Returns true if all these blocks lie in the data area.
    pub fn holds(&self, block: BlockNo, count: u64) -> bool {
        // The arguments may be any numbers: if the sum overflows, the blocks are not in this image.
        block >= self.data && block.0.checked_add(count).is_some_and(|end| end <= self.last().0)
    }

    /// Position of the pointer to a chunk.
    pub fn chunk_pointer(&self, chunk: u64) -> Pos {
        self.inode_dir.pos().plus(chunk * 8)
    }

    /// Largest inode number plus one.
    pub fn ino_end(&self) -> Ino {
        Ino(self.chunks_max * CHUNK_INODES)
    }
}

/// Chunk of an inode, and its index in the chunk.
#[inline]
pub fn chunk_of(ino: Ino) -> (u64, u64) {
    (ino.0 / CHUNK_INODES, ino.0 % CHUNK_INODES)
}

/// Position of an inode's slot in its chunk.
pub fn inode_pos(chunk: BlockNo, index: u64) -> Pos {
    chunk.pos().plus(index * INODE_BYTES)
}
