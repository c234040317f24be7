//! The words of a directory's buckets, and how many there can be. What they mean and how they change: `names::bucket` and `names::table`,
//! whose invariants are cited here.

use heddle_arena::Shared;
use heddle_arena::sync::atomic::AtomicU64;

/// Entries in the line itself.
pub const SLOTS: usize = 6;
/// In a bucket's word: the directory is dead, or has another table.
pub const DEAD: u64 = 4;
/// Size classes of arrays.
pub const CLASSES: usize = 33;
const BITS_MAX: u32 = CLASSES as u32 - 1;
/// How much larger it gets: seldom, because all of its lines change hands then.
pub const GROWTH_BITS: u32 = 2;
/// Names a bucket: in a table that is made for a known number, and at least, on average, before one grows.
pub const NAMES_A_BUCKET: usize = 3;

/// The largest table of an image: a name takes a line of a log, and a table of [`NAMES_A_BUCKET`] names a bucket grows by [`GROWTH_BITS`].
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

    /// All zeros: memory of a bucket that no directory ever had, so that nobody knows of it.
    pub fn unborn() -> Bucket {
        let zero = || AtomicU64::new(0);
        Bucket { word: zero(), slots: std::array::from_fn(|_| zero()), chain: zero() }
    }
}
