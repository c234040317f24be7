//! Types for numbers that must not be mixed up.

use heddle_pmem::{BLOCK_BYTES, Pos};
use heddle_vfs::Ino;

/// Number of lanes of a mount, which limits the threads inside at once.
pub(crate) const LANES: u16 = if cfg!(loom) {
    3
} else if cfg!(shuttle) {
    8
} else {
    1000
};

/// A 4 KiB block of the region; 0 is the superblock and so stands for "none" in maps and pointers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockNo(pub u64);

impl BlockNo {
    /// Bits of a block number on media: 4 PiB of region.
    pub const BITS: u32 = 40;

    /// First byte of the block.
    pub fn pos(self) -> Pos {
        Pos(self.0 * BLOCK_BYTES as u64)
    }

    /// The block `n` blocks further on.
    pub fn plus(self, n: u64) -> BlockNo {
        BlockNo(self.0 + n)
    }
}

/// A 4 KiB page of a file, counted from its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PageNo(pub u64);

impl PageNo {
    /// Bits of a page number: 48-bit file offsets.
    pub const BITS: u32 = 36;
    /// One beyond the last page a file can have.
    pub const END: PageNo = PageNo(1 << PageNo::BITS);

    /// The page that holds byte `offset`.
    pub fn of(offset: u64) -> PageNo {
        PageNo(offset / BLOCK_BYTES as u64)
    }

    /// The first page that begins at or after byte `offset`.
    pub fn after(offset: u64) -> PageNo {
        PageNo(offset.div_ceil(BLOCK_BYTES as u64))
    }

    /// Offset of the page's first byte.
    pub fn offset(self) -> u64 {
        self.0 * BLOCK_BYTES as u64
    }
}

/// Orders the records that touch one page: of two records, the one with the larger version happened later.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Version(pub u64);

impl Version {
    /// A version at or beyond this on media is damage: no file lives long enough to reach it (docs/protocol.md D7).
    pub const LIMIT: u64 = 1 << 47;

    /// The next one.
    pub fn next(self) -> Version {
        Version(self.0 + 1)
    }
}

/// Blocks `[block, block + count)`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Extent {
    /// First block.
    pub block: BlockNo,
    /// Number of blocks.
    pub count: u64,
}

/// Adds a block to a list of extents.
pub(crate) fn add_extent(extents: &mut Vec<Extent>, block: BlockNo) {
    match extents.last_mut() {
        Some(last) if last.block.0 + last.count == block.0 => last.count += 1,
        _ => extents.push(Extent { block, count: 1 }),
    }
}

/// The `n`th block of a list of extents.
pub(crate) fn block_at(extents: &[Extent], n: u64) -> BlockNo {
    let mut left = n;
    for e in extents {
        if left < e.count {
            return e.block.plus(left);
        }
        left -= e.count;
    }
    unreachable!("the list has as many blocks as were asked for")
}

/// Identifies an inode in a chain, a record or a pointer: the number alone may have been reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InodeId {
    /// Inode number.
    pub ino: Ino,
    /// Distinguishes this inode from earlier ones with its number.
    pub generation: u64,
}

impl InodeId {
    /// The mount epoch in which it was made.
    pub fn made_in(self) -> u64 {
        self.generation >> 40
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_and_pages_are_of_4_kib() {
        assert_eq!((BlockNo(3).pos(), BlockNo(3).plus(4)), (Pos(12_288), BlockNo(7)));
        assert_eq!([0, 4095, 4096, 8191].map(|at| PageNo::of(at).0), [0, 0, 1, 1]);
        assert_eq!([0, 1, 4096, 4097].map(|at| PageNo::after(at).0), [0, 1, 1, 2]);
        assert_eq!((PageNo(5).offset(), PageNo::END.offset()), (20_480, 1 << 48));
        assert_eq!(Version::LIMIT, 0x8000_0000_0000);
        assert_eq!(
            (Version(7).next(), InodeId { ino: Ino(1), generation: 5 << 40 | 9 }.made_in()),
            (Version(8), 5)
        );
    }

    #[test]
    fn blocks_that_follow_each_other_are_one_extent() {
        let mut extents = Vec::new();
        [5, 6, 8, 9, 10, 4].iter().for_each(|block| add_extent(&mut extents, BlockNo(*block)));
        let counts: Vec<_> = extents.iter().map(|e| (e.block.0, e.count)).collect();
        assert_eq!(counts, [(5, 2), (8, 3), (4, 1)]);
        assert_eq!([0, 1, 2, 4, 5].map(|n| block_at(&extents, n).0), [5, 6, 8, 10, 4]);
    }
}
