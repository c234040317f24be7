//! The cell: lock, owner, version and block of one 4 KiB page, in 16 bytes that its writer must own anyway.
//!
//! State       `map`           flags and block number, 0 = hole
//!             `lock_version`  version:48 | lane:14 | waiter:1 | locked:1
//! Invariants  I1  `map` changes only while `lock_version` is locked, by the lane that locked it, and only while that lane's
//!                 operation is COMMITTED. In the papers' variants, under their own locks (`set`).
//!             I2  versions of a page only grow, and one becomes visible only with a durable record that carries it (D1).
//!             I3  a block named by an unlocked `map` is not handed out again before a higher version is durable.
//! Lock order  an inode's EOF lock before its cells; cells in ascending page order.
//! Orderings   O1  `publish` (Release) pairs with the first load of a reader or the CAS of the next writer (Acquire):
//!                 a thread that sees a version also sees its `map` and the size raised before it.
//!             O2  a reader's fence (Acquire) before its second load pairs with the Release of a writer that reused a
//!                 block it read from: if new bytes were seen, the new `lock_version` is seen too. The allocator hands a freed
//!                 block out only after a later store fence (D15), so a block's new bytes come after its old `lock_version` changed.
//! Source      SRL paper IV-A/B for the lock word; versions and readers without locks are ours (docs/protocol.md).

use crate::ids::{BlockNo, Version};
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::{Shared, Zeroed};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

const LOCKED: u64 = 1;
const WAITER: u64 = 2;
const LANE_SHIFT: u32 = 2;
const VERSION_SHIFT: u32 = 16;
const UNWRITTEN: u64 = 1 << 40;

/// The mapping of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Map(u64);

impl Map {
    /// A hole: reads as zeros.
    pub const HOLE: Map = Map(0);

    /// Data in this block.
    pub fn data(block: BlockNo) -> Map {
        Map(block.0)
    }

    /// Allocated, never written: reads as zeros.
    pub fn unwritten(block: BlockNo) -> Map {
        Map(block.0 | UNWRITTEN)
    }

    /// The block, if one is allocated.
    pub fn block(self) -> Option<BlockNo> {
        let block = self.0 & (UNWRITTEN - 1);
        (block != 0).then_some(BlockNo(block))
    }

    /// The block that holds the page's bytes; `None`: they are zeros.
    pub fn content(self) -> Option<BlockNo> {
        if self.0 & UNWRITTEN != 0 { None } else { self.block() }
    }
}

/// A value of `lock_version`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockVersion(u64);

impl LockVersion {
    /// Returns true if the cell is locked.
    pub fn locked(self) -> bool {
        self.0 & LOCKED != 0
    }

    /// The lane that holds it (0: none).
    pub fn lane(self) -> u16 {
        (self.0 >> LANE_SHIFT & 0x3fff) as u16
    }

    /// The version that was published last.
    pub fn version(self) -> Version {
        Version(self.0 >> VERSION_SHIFT)
    }

    /// The same value without the waiter bit, for comparison by a reader.
    fn settled(self) -> LockVersion {
        LockVersion(self.0 & !WAITER)
    }
}

/// The cell of one page.
#[repr(C, align(16))]
#[derive(Debug)]
pub struct Cell {
    map: AtomicU64,
    lock_version: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Cell>() == 16);

// SAFETY: two atomics, no pointers, no Drop.
unsafe impl Shared for Cell {}
// SAFETY: all zeros is an unlocked hole of version 0.
unsafe impl Zeroed for Cell {
    fn zeroed() -> Cell {
        Cell { map: AtomicU64::new(0), lock_version: AtomicU64::new(0) }
    }
}

impl Cell {
    /// The lock word, without the waiter bit.
    pub fn lock_version(&self) -> LockVersion {
        // ORDERING: Acquire, O1: pairs with the Release in `publish` and `unlock`.
        LockVersion(self.lock_version.load(Acquire)).settled()
    }

    /// The mapping.
    pub fn map(&self) -> Map {
        // ORDERING: Acquire, O1: a reader that sees a map while its writer publishes also sees the bytes in
        // its block.
        Map(self.map.load(Acquire))
    }

    /// Locks the cell for `lane` if it is free. Returns the cell's version, or the lock word of the present
    /// holder.
    pub fn try_lock(&self, lane: u16) -> Result<Version, LockVersion> {
        // ORDERING: Relaxed, a guess that the CAS checks.
        let seen = self.lock_version.load(Relaxed);
        if seen & LOCKED != 0 {
            return Err(LockVersion(seen).settled());
        }
        let mine = seen & !(0x3fff << LANE_SHIFT) | u64::from(lane) << LANE_SHIFT | LOCKED;
        // ORDERING: SeqCst on success (AcqRel for O1, and ordered before the later load of the inode's gate, see
        // `inode`); Relaxed on failure, nothing is read after it.
        match self.lock_version.compare_exchange(seen, mine, SeqCst, Relaxed) {
            Ok(_) => Ok(LockVersion(seen).version()),
            Err(now) => Err(LockVersion(now).settled()),
        }
    }

    /// Gives a locked cell its new content and unlocks it. Returns true if a thread waits and must be woken.
    pub fn publish(&self, map: Map, version: Version) -> bool {
        debug_assert!(self.lock_version().locked());
        // ORDERING: Release, O1: bytes and size come before the map that names them.
        self.map.store(map.0, Release);
        self.unlock(version)
    }

    /// Unlocks with the old version (nothing changed) or a new one (same block, new record). Returns true as
    /// [`Cell::publish`] does.
    pub fn unlock(&self, version: Version) -> bool {
        // A swap, not a store, so that a waiter bit set meanwhile is not lost (docs/protocol.md L3). SeqCst for O1, and because a thread
        // that parks on the cell relies on it (see the arena's `park`).
        self.lock_version.swap(version.0 << VERSION_SHIFT, SeqCst) & WAITER != 0
    }

    /// Returns true if the lock word is still `held`, with its waiter bit set. For a thread that parks on the
    /// cell. Without the waiter bit it is a later hold by the same lane at the same version (of a pinned
    /// reader, or of a writer that locks again), and its unlock would wake no thread.
    pub fn still(&self, held: LockVersion) -> bool {
        self.lock_version.load(SeqCst) == held.0 | WAITER
    }

    /// Sets the waiter bit. Returns false if the lock word is no longer `held`.
    pub fn set_waiter(&self, held: LockVersion) -> bool {
        let with = held.0 | WAITER;
        // ORDERING: AcqRel and Acquire, O1: a failure may show the unlocked word.
        match self.lock_version.compare_exchange(held.0, with, AcqRel, Acquire) {
            Ok(_) => true,
            Err(now) => now == with,
        }
    }

    /// Sets a cell that no other thread can reach: for recovery, and for the papers' variants under their own
    /// locks.
    pub fn set(&self, map: Map, version: Version) {
        // ORDERING: Release, O1.
        self.map.store(map.0, Release);
        // ORDERING: Release, O1.
        self.lock_version.store(version.0 << VERSION_SHIFT, Release);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_map_tells_holes_data_and_what_was_never_written_apart() {
        let block = BlockNo((1 << 40) - 1);
        assert_eq!((Map::HOLE.block(), Map::HOLE.content()), (None, None));
        assert_eq!((Map::data(block).block(), Map::data(block).content()), (Some(block), Some(block)));
        assert_eq!((Map::unwritten(block).block(), Map::unwritten(block).content()), (Some(block), None));
        assert_ne!(Map::data(BlockNo(1)), Map::unwritten(BlockNo(1)));
    }

    #[test]
    fn a_locked_cell_says_its_lane_and_keeps_its_version() {
        let cell = Cell::zeroed();
        cell.set(Map::data(BlockNo(9)), Version(1 << 47));
        assert_eq!(cell.try_lock(0x3fff), Ok(Version(1 << 47)));
        let held = cell.lock_version();
        assert_eq!((held.locked(), held.lane(), held.version()), (true, 0x3fff, Version(1 << 47)));
        assert_eq!((cell.try_lock(1), cell.map()), (Err(held), Map::data(BlockNo(9))));
        assert!(!cell.publish(Map::HOLE, Version((1 << 47) + 1)), "nobody waits");
        let free = cell.lock_version();
        assert_eq!((free.locked(), free.version(), cell.map()), (false, Version((1 << 47) + 1), Map::HOLE));
        assert_eq!(cell.try_lock(5), Ok(Version((1 << 47) + 1)));
        assert_eq!(cell.lock_version().lane(), 5, "nothing is left of the lane before");
    }

    #[test]
    fn who_asked_to_be_woken_is_and_once() {
        let cell = Cell::zeroed();
        cell.try_lock(3).unwrap();
        let held = cell.lock_version();
        assert!(!cell.still(held), "nobody has asked yet");
        assert!(cell.set_waiter(held) && cell.set_waiter(held) && cell.still(held));
        assert_eq!(
            (cell.lock_version(), cell.try_lock(4)),
            (held, Err(held)),
            "the wish is no part of the word"
        );
        assert!(cell.unlock(Version(7)), "to be woken");
        assert!(!cell.still(held) && !cell.set_waiter(held));
        cell.try_lock(3).unwrap();
        assert!(!cell.unlock(Version(8)));
        assert_eq!(cell.lock_version().version(), Version(8));
    }

    /// Somebody had scribbled over it.
    #[test]
    fn a_lock_names_its_lane_whatever_the_free_word_said() {
        let cell = Cell::zeroed();
        cell.lock_version.store(7 << VERSION_SHIFT | 0x3fff << LANE_SHIFT, SeqCst);
        assert_eq!(cell.try_lock(5), Ok(Version(7)));
        let held = cell.lock_version();
        assert_eq!((held.locked(), held.lane(), held.version()), (true, 5, Version(7)));
    }
}
