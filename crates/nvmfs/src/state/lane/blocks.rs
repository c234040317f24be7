//! Free and freed blocks of a lane. Settlers read them: they are consistent after each store (I3 of `lane`).

use super::MAGAZINE_BLOCKS;
use crate::ids::{BlockNo, Extent};
use heddle_arena::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Blocks that may be handed out, last in first out. The settler of a dead lane finds only blocks in it that
/// were put there and not taken (I3).
#[repr(C)]
#[derive(Debug)]
pub struct Magazine {
    len: AtomicU64,
    blocks: [AtomicU64; MAGAZINE_BLOCKS],
}

impl Magazine {
    /// An empty magazine.
    pub fn new() -> Magazine {
        Magazine { len: AtomicU64::new(0), blocks: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    /// Takes one.
    pub fn pop(&mut self) -> Option<BlockNo> {
        let at = self.len().checked_sub(1)?;
        // ORDERING: Release, I3: removed here before it is anywhere else.
        self.len.store(at as u64, Release);
        // ORDERING: Relaxed, I2.
        Some(BlockNo(self.blocks[at].load(Relaxed)))
    }

    /// Adds a block. Returns false if full.
    pub fn push(&mut self, block: BlockNo) -> bool {
        let len = self.len();
        if len < MAGAZINE_BLOCKS {
            // ORDERING: Relaxed, I2.
            self.blocks[len].store(block.0, Relaxed);
            // ORDERING: Release, I3: an entry is stored before it is counted.
            self.len.store(len as u64 + 1, Release);
        }
        len < MAGAZINE_BLOCKS
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        // ORDERING: Relaxed, I2. The result never exceeds the capacity, whatever the memory contains.
        (self.len.load(Relaxed) as usize).min(MAGAZINE_BLOCKS)
    }
}

/// A few extents, with the same guarantee as a [`Magazine`]. Used for freed extents until the next fence,
/// because readers or an unfenced record may use them until then (D15). Also used for the extents of an
/// operation under way.
#[repr(C)]
#[derive(Debug)]
pub struct Extents<const N: usize> {
    len: AtomicU64,
    extents: [[AtomicU64; 2]; N],
}

impl<const N: usize> Extents<N> {
    /// An empty list.
    pub fn new() -> Self {
        Extents {
            len: AtomicU64::new(0),
            extents: std::array::from_fn(|_| [AtomicU64::new(0), AtomicU64::new(0)]),
        }
    }

    fn len(&self) -> usize {
        // ORDERING: Relaxed, I2. The result never exceeds the capacity, whatever the memory contains.
        (self.len.load(Relaxed) as usize).min(N)
    }

    fn get(&self, at: usize) -> Extent {
        // ORDERING: Relaxed, I2.
        let [block, count] = [0, 1].map(|i| self.extents[at][i].load(Relaxed));
        Extent { block: BlockNo(block), count }
    }

    /// Adds an extent. Returns false if full.
    pub fn push(&self, extent: Extent) -> bool {
        let len = self.len();
        if len < N {
            // ORDERING: Relaxed, I2.
            self.extents[len][0].store(extent.block.0, Relaxed);
            // ORDERING: Relaxed, I2.
            self.extents[len][1].store(extent.count, Relaxed);
            // ORDERING: Release, I3: an entry is stored before it is counted.
            self.len.store(len as u64 + 1, Release);
        }
        len < N
    }

    /// Takes one out.
    pub fn pop(&self) -> Option<Extent> {
        let at = self.len().checked_sub(1)?;
        let extent = self.get(at);
        // ORDERING: Release, I3: removed here before it is anywhere else.
        self.len.store(at as u64, Release);
        Some(extent)
    }

    /// Removes all extents.
    #[inline]
    pub fn clear(&self) {
        // ORDERING: Relaxed load, I2; Release, I3.
        if self.len.load(Relaxed) != 0 {
            self.len.store(0, Release);
        }
    }

    /// Number of blocks in it.
    pub fn blocks(&self) -> u64 {
        (0..self.len()).map(|at| self.get(at).count).sum()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_magazine_gives_back_what_it_was_given_up_to_its_size() {
        let mut magazine = Magazine::new();
        assert_eq!((magazine.pop(), magazine.len()), (None, 0));
        let all = MAGAZINE_BLOCKS as u64;
        assert!((0..all).all(|n| magazine.push(BlockNo(n + 5))));
        assert!(!magazine.push(BlockNo(1)), "it is full");
        assert_eq!((magazine.len(), magazine.pop()), (MAGAZINE_BLOCKS, Some(BlockNo(all + 4))));
        assert!(magazine.push(BlockNo(2)));
        assert_eq!((magazine.pop(), magazine.pop()), (Some(BlockNo(2)), Some(BlockNo(all + 3))));
        magazine.len.store(u64::MAX, Relaxed);
        assert_eq!(
            (magazine.len(), magazine.push(BlockNo(1))),
            (MAGAZINE_BLOCKS, false),
            "somebody scribbled"
        );
    }

    #[test]
    fn extents_are_counted_in_blocks_and_forgotten_at_once() {
        let extents = Extents::<2>::new();
        assert_eq!((extents.pop(), extents.blocks()), (None, 0));
        let of = |block, count| Extent { block: BlockNo(block), count };
        assert!(extents.push(of(7, 3)) && extents.push(of(20, 4)) && !extents.push(of(1, 1)));
        assert_eq!((extents.blocks(), extents.pop(), extents.blocks()), (7, Some(of(20, 4)), 3));
        extents.clear();
        assert_eq!((extents.blocks(), extents.pop()), (0, None));
        extents.len.store(9, Relaxed);
        assert_eq!((extents.len(), extents.push(of(1, 1))), (2, false), "somebody scribbled");
    }
}
