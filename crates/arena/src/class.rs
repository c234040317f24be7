//! Size classes: powers of two and one and a half times them up to 64 KiB, four steps a doubling beyond.
//!
//! A block of 64 bytes or more starts on a cache line, so its class is a multiple of 64 (96 rounds to 128); a large block starts
//! on a page. A large block's unused tail is never touched: it costs address space, not memory.

/// Index of a size class.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Class(u8);

/// Classes that a [`Heap`](crate::Heap) caches: up to 64 KiB.
pub(crate) const SMALL: usize = SMALL_SIZES.len();
/// All classes. The largest holds 2^42 bytes; under loom fewer, since each costs an object to loom.
pub(crate) const COUNT: usize = if cfg!(loom) { SMALL } else { SMALL + 4 * 26 };

const SMALL_SIZES: [u32; 22] = [
    32, 48, 64, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576,
    32768, 49152, 65536,
];

/// Most blocks in a batch, the unit that moves between a heap and the shared lists in one step.
const BATCH_BLOCKS: u64 = if cfg!(loom) { 2 } else { 128 };
/// Most bytes in a batch, which always has at least one block.
const BATCH_BYTES: u64 = 16 << 10;

impl Class {
    /// The smallest class that holds `bytes`; `None` if no class does.
    #[inline]
    pub(crate) fn of(bytes: u64) -> Option<Class> {
        let index = match bytes {
            0..=32 => 0,
            33..=48 => 1,
            49..=64 => 2,
            65..=128 => 3,
            _ => {
                let octave = (bytes - 1).ilog2() as u64;
                let over = bytes - (1 << octave);
                if bytes <= 65536 {
                    4 + 2 * (octave - 7) + (over > 1 << (octave - 1)) as u64
                } else {
                    SMALL as u64 + 4 * (octave - 16) + over.div_ceil(1 << (octave - 2)) - 1
                }
            }
        };
        (index < COUNT as u64).then_some(Class(index as u8))
    }

    /// Size of a block, in bytes.
    #[inline]
    pub(crate) fn bytes(self) -> u64 {
        let index = self.0 as usize;
        if index < SMALL {
            return SMALL_SIZES[index] as u64;
        }
        let large = (index - SMALL) as u64;
        let floor = 65536u64 << (large / 4);
        floor + (large % 4 + 1) * (floor / 4)
    }

    /// Alignment of a block, in bytes.
    #[inline]
    pub(crate) fn align(self) -> u64 {
        match self.0 as usize {
            0 => 32,
            1 => 16,
            small if small < SMALL => 64,
            _ => 4096,
        }
    }

    /// The class at `index` of a heap's table.
    pub(crate) fn small(index: usize) -> Class {
        debug_assert!(index < SMALL);
        Class(index as u8)
    }

    /// Returns true if heaps cache the class.
    #[inline]
    pub(crate) fn is_small(self) -> bool {
        (self.0 as usize) < SMALL
    }

    /// Number of blocks in a batch.
    #[inline]
    pub(crate) fn batch(self) -> u64 {
        (BATCH_BYTES / self.bytes()).clamp(1, BATCH_BLOCKS)
    }

    /// Position in a table of [`COUNT`] classes.
    #[inline]
    pub(crate) fn index(self) -> usize {
        self.0 as usize
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_is_the_smallest_that_holds_its_bytes() {
        let sizes: Vec<u64> = (0..COUNT).map(|i| Class(i as u8).bytes()).collect();
        assert!(sizes.is_sorted());
        let edges = sizes.iter().flat_map(|s| [s - 1, *s, s + 1]);
        for bytes in (1..140_000).chain(edges) {
            let want = sizes.iter().position(|s| *s >= bytes);
            assert_eq!(Class::of(bytes).map(|c| c.index()), want, "{bytes} bytes");
        }
    }

    #[test]
    fn blocks_of_a_batch_keep_their_alignment() {
        for i in 0..COUNT {
            let class = Class(i as u8);
            assert_eq!(class.bytes() % class.align(), 0, "{class:?}");
        }
    }
}
