//! A file's lock state, and the token of a held range.

use heddle_arena::sync::atomic::{AtomicU16, AtomicU32, AtomicU64};

/// How a range is wanted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// With other readers.
    Shared,
    /// Alone.
    Exclusive,
}

/// A range that is held: to be given to `release`. Dropping it leaves the range locked for ever.
#[derive(Debug)]
#[must_use = "a range stays locked until its token is given to release"]
pub struct Held {
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// Saves release a search: what it is, each lock knows.
    pub(crate) place: u64,
    pub(crate) access: Access,
}

impl Held {
    /// How it is held.
    pub fn access(&self) -> Access {
        self.access
    }
}

/// Buckets that waiting writers are counted in, by segment modulo this.
pub(crate) const AGED_BUCKETS: usize = if cfg!(loom) { 2 } else { 16 };

heddle_arena::shared! {
    /// The state of one file's lock, whichever kind it is. Lies in the arena, zeroed before [`init`](crate::RangeLock::init).
    ///
    /// The first line is what every acquire reads, the second what only waiting and growing write: locks of different segments
    /// share nothing that is written.
    #[repr(align(64))]
    pub struct LockHead {
        /// Array: its first word. Tree: its root. Interval: the root of the tree.
        pub(crate) root: AtomicU64,
        /// Inode: the lock word. Interval: the mutex.
        pub(crate) word: AtomicU32,
        /// Writers that have aged.
        pub(crate) aged: AtomicU32,
        /// Interval: free nodes, chained. Beside the mutex: its holder has these.
        pub(crate) spare: AtomicU64,
        /// Interval: nodes ever inserted; where priorities come from.
        pub(crate) inserted: AtomicU64,
        padding: [AtomicU64; 4],
        /// Aged writers by bucket.
        pub(crate) aged_in: [AtomicU16; AGED_BUCKETS],
        /// Tree, interval: bytes allocated for this file.
        pub(crate) bytes: AtomicU64,
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<LockHead>() == 128);
#[cfg(not(loom))]
const _: () = assert!(std::mem::offset_of!(LockHead, aged_in) == 64);
