//! The words of a lane's table of open files. The counting of handles is in `opens`.

use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::sync::spin_hint;
use heddle_arena::{AtomicPtr, Shared, Zeroed};
use heddle_vfs::Ino;
use std::sync::atomic::Ordering::SeqCst;

/// Number of files that a lane can have open before two of them must share an entry's index.
const SLOTS: usize = if cfg!(loom) { 4 } else { 1024 };
/// Most tables of a lane: so many files with the same entry index can be open at once.
pub const TABLES: usize = if cfg!(loom) { 2 } else { 64 };
const INO_BITS: u32 = 40;
/// Bits of the inode number.
pub const INO_MASK: u64 = (1 << INO_BITS) - 1;
/// One takeover of the entry.
pub const TAKEN_ONE: u64 = 1 << INO_BITS;
/// Bits of the number of takeovers.
pub const TAKEN_MASK: u64 = 0xff << INO_BITS;
/// Position of the count.
pub const COUNT_SHIFT: u32 = INO_BITS + 8;
/// Most inodes that a settler keeps alive without room in a table: those of the lane's chains, and a few that its intent names.
pub const KEPT_MAX: usize = if cfg!(loom) { 1 } else { 32 };
/// One handle.
pub const ONE: u64 = 1 << COUNT_SHIFT;
/// Most handles of an entry.
pub const COUNT_MAX: u64 = u64::MAX >> COUNT_SHIFT;
/// An entry.
#[repr(C)]
pub struct Slot {
    /// Inode number, number of takeovers, and count.
    pub word: AtomicU64,
    /// Generation of the inode that it counts.
    pub generation: AtomicU64,
}

/// The files that a lane has open.
#[repr(C, align(64))]
pub struct OpenTable {
    /// Its entries.
    pub slots: [Slot; SLOTS],
    /// The next table, for inodes whose entry here is taken.
    pub next: AtomicPtr<OpenTable>,
}

// SAFETY: atomics only.
unsafe impl Shared for OpenTable {}
// SAFETY: all zeros is a table of free slots.
unsafe impl Zeroed for OpenTable {
    fn zeroed() -> OpenTable {
        OpenTable {
            slots: std::array::from_fn(|_| Slot::new()),
            next: AtomicPtr::new(heddle_arena::Ptr::NULL),
        }
    }
}

impl OpenTable {
    /// The entry of an inode in the `nth` table. Two inodes with the same entry in one table may have
    /// different entries in the next.
    pub fn slot(&self, ino: Ino, nth: usize) -> &Slot {
        let at = if nth == 0 {
            ino.0
        } else {
            ino.0.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(8 * nth as u32)
        };
        &self.slots[at as usize % SLOTS]
    }
}

impl Slot {
    /// A free entry.
    pub fn new() -> Slot {
        Slot { word: AtomicU64::new(0), generation: AtomicU64::new(0) }
    }

    /// The entry's word, if it counts handles of this inode.
    pub fn counts(&self, ino: Ino, generation: u64) -> Option<u64> {
        loop {
            let word = self.word.load(SeqCst);
            if word & INO_MASK != ino.0 || word >> COUNT_SHIFT == 0 {
                return None;
            }
            let of = self.generation.load(SeqCst);
            if self.word.load(SeqCst) == word {
                return (of == generation).then_some(word);
            }
            spin_hint();
        }
    }

    /// Lowers the count by one handle. Returns false if the entry counts none of this inode.
    pub fn lower(&self, ino: Ino, generation: u64) -> bool {
        while let Some(word) = self.counts(ino, generation) {
            if self.word.compare_exchange(word, word - ONE, SeqCst, SeqCst).is_ok() {
                return true;
            }
        }
        false
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn inodes_that_share_an_entry_have_their_own_in_the_next_table() {
        let table = Box::new(OpenTable::zeroed());
        let at = |ino, nth| std::ptr::from_ref(table.slot(Ino(ino), nth));
        let first = |n: usize| std::ptr::from_ref(&table.slots[n]);
        for (ino, slot) in [(0, 0), (5, 5), (1023, 1023), (1024, 0), (1029, 5), (1 << 39, 0)] {
            assert_eq!(at(ino, 0), first(slot), "inode {ino}");
        }
        for nth in 1..8 {
            assert_ne!(at(5, nth), at(1029, nth), "table {nth}");
        }
    }

    #[test]
    fn an_entry_counts_handles_of_one_inode_of_one_generation() {
        let slot = Slot { word: AtomicU64::new(3 << 40 | 5), generation: AtomicU64::new(9) };
        assert_eq!(slot.counts(Ino(5), 9), None, "no handle");
        assert!(!slot.lower(Ino(5), 9));
        // Two handles, after three takeovers.
        let word = 2 << 48 | 3 << 40 | 5;
        slot.word.store(word, SeqCst);
        assert_eq!(slot.counts(Ino(5), 9), Some(word));
        assert_eq!(
            (slot.counts(Ino(5), 8), slot.counts(Ino(4), 9), slot.counts(Ino(7), 9)),
            (None, None, None)
        );
        assert!(!slot.lower(Ino(5), 8) && !slot.lower(Ino(4), 9));
        assert!(slot.lower(Ino(5), 9));
        assert_eq!(slot.word.load(SeqCst), 1 << 48 | 3 << 40 | 5);
        assert!(slot.lower(Ino(5), 9) && !slot.lower(Ino(5), 9));
        assert_eq!(slot.word.load(SeqCst), 3 << 40 | 5);
    }
}
