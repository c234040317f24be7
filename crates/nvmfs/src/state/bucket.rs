//! The words of a directory's buckets, and their largest number. Their meaning, their changes and the
//! invariants cited here are those of `names::bucket` and `names::table`.

use heddle_arena::Shared;
use heddle_arena::sync::atomic::AtomicU64;

/// Entries in the line itself.
pub const SLOTS: usize = 6;
/// In a bucket's word: the directory is dead, or has another table.
pub const DEAD: u64 = 4;
/// Size classes of arrays.
pub const CLASSES: usize = 33;
const BITS_MAX: u32 = CLASSES as u32 - 1;
/// Bits by which a table grows. It grows rarely, because all of its lines move to another CPU then.
pub const GROWTH_BITS: u32 = 2;
/// Names a bucket: in a table that is made for a known number of names, and the least average before a table
/// grows.
pub const NAMES_A_BUCKET: usize = 3;

/// The largest table of an image: a name takes at least one line of a log, and a table with
/// [`NAMES_A_BUCKET`] names a bucket grows by [`GROWTH_BITS`].
pub fn bits_max(image_bytes: u64) -> u32 {
    let names = image_bytes / 64;
    ((names / NAMES_A_BUCKET as u64) << GROWTH_BITS).max(64).ilog2().min(BITS_MAX)
}

/// One cache line.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Bucket {
    pub(crate) word: AtomicU64,
    pub(crate) slots: [AtomicU64; SLOTS],
    pub(crate) chain: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Bucket>() == 64);

// SAFETY: atomics only.
unsafe impl Shared for Bucket {}

impl Bucket {
    /// Memory of a bucket without a directory.
    pub fn dead() -> Bucket {
        Bucket { word: AtomicU64::new(DEAD), ..Bucket::unborn() }
    }

    /// All zeros: memory of a bucket that was never part of a directory, so no thread has its address.
    pub fn unborn() -> Bucket {
        let zero = || AtomicU64::new(0);
        Bucket { word: zero(), slots: std::array::from_fn(|_| zero()), chain: zero() }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    /// A name takes a line of 64 bytes. A table with three names a bucket grows by two bits.
    #[test]
    fn a_table_is_no_larger_than_its_image_can_fill() {
        for (image_bytes, bits) in
            [(0, 6), (64 * 3 * 16, 6), (64 * 3 * 32, 7), (4 << 20, 16), (1 << 30, 24), (3 << 40, 32)]
        {
            assert_eq!(bits_max(image_bytes), bits, "{image_bytes} bytes");
        }
        assert_eq!(bits_max(1 << 56), 32, "there is no class for a larger one");
    }
}
