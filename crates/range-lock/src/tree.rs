//! SRL(tree): the lock words of SRL under a radix tree that grows where the file is touched.
//!
//! State       `LockHead::root`: the root, made with the file. Interior nodes are arrays of [`slot`]s that name children; the nodes of
//!             the last level are arrays of lock words. The nodes above the leaves end in a link to their right neighbour.
//! Leaves      hold the words themselves, not pointers to words as in SRL Fig. 6: one line less to read, 8 bytes a segment less to keep.
//! One descent A range goes down once; from leaf to leaf it walks the parent's slots, from parent to parent the link (filled in by
//!             the first walker there; every walker would write the same). So leaves form the list of SRL Algorithm 1, l. 42 to 45.
//!             Release goes down once more if the range lies in more than one leaf; else the token names the word.
//! Invariants  R1  A slot goes 0 -> child by CAS, once; the loser frees its node (Algorithm 1, l. 23 to 38). Children stay until the last
//!                 opener closes, so a child that was seen needs no protection.
//!             R2  Words and absent subtrees are taken in ascending order of segments, so that ranges never wait crosswise.
//! Open ends   A range to the end of the file (truncate) cannot take 2^36 words one by one. Where a whole subtree is absent, its slot
//!             itself serves as the lock word: locked instead of named a child. A thread that wants a segment below waits, or reads
//!             along, and grows the
//!             tree once the slot is free. A locked slot is never grown and a child never goes, so release finds the same places again.
//!             Ranges with a known end always grow, as in the paper.
//! Orderings   O1  installing (Release) pairs with following (Acquire): a child's zeroes are seen. O2  as in `word`.
//! Source      SRL IV-A, Algorithm 1, Fig. 6 and 7.

mod cursor;
mod slot;

use std::ops::Range;

use heddle_arena::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use heddle_arena::sync::atomic::{AtomicU32, AtomicU64};
use heddle_arena::{Arena, Full, Ptr};

use crate::geometry::{BadGeometry, DEPTH_MAX, Geometry, Segments};
use crate::head::{Access, Held, LockHead};
use crate::wait::{Mode, Waiter, may_pass, wake};
use crate::{Error, RangeLock, word};
use cursor::{Cursor, Found};

/// A radix tree of lock words.
#[derive(Clone, Debug)]
pub struct SrlTree {
    mode: Mode,
    segments: Segments,
    levels: [Level; DEPTH_MAX],
    depth: usize,
}

/// The bits of a level's index in a segment's number.
#[derive(Clone, Copy, Debug, Default)]
struct Level {
    shift: u32,
    bits: u32,
}

impl Level {
    #[inline]
    fn index(self, segment: u64) -> usize {
        ((segment >> self.shift) & ((1 << self.bits) - 1)) as usize
    }
}

impl SrlTree {
    /// A tree shaped by `geometry`, waiting as `mode` says.
    pub fn new(mode: Mode, geometry: &Geometry) -> Result<Self, BadGeometry> {
        let bits = geometry.levels()?;
        let mut levels = [Level::default(); DEPTH_MAX];
        let mut shift = 0;
        for (level, &bits) in levels[..bits.len()].iter_mut().zip(&bits).rev() {
            *level = Level { shift, bits };
            shift += bits;
        }
        Ok(SrlTree { mode, segments: geometry.segments()?, levels, depth: bits.len() })
    }

    /// Index bits of each level, from the root down.
    pub fn split(&self) -> Vec<u8> {
        self.levels[..self.depth].iter().map(|level| level.bits as u8).collect()
    }

    fn is_leaf(&self, level: usize) -> bool {
        level + 1 == self.depth
    }

    /// Slots of an interior node of `level`: the last ones above the leaves have a link after them.
    fn slots(&self, level: usize) -> usize {
        (1 << self.levels[level].bits) + (level + 2 == self.depth) as usize
    }

    fn node_bytes(&self, level: usize) -> u64 {
        if self.is_leaf(level) { 4 << self.levels[level].bits } else { 8 * self.slots(level) as u64 }
    }

    fn new_node(&self, arena: &Arena, level: usize) -> Result<u64, Full> {
        Ok(if self.is_leaf(level) {
            arena.alloc_zeroed::<AtomicU32>(1 << self.levels[level].bits)?.raw()
        } else {
            arena.alloc_zeroed::<AtomicU64>(self.slots(level))?.raw()
        })
    }

    /// # Safety
    /// Made by `new_node` for this level, and no thread knows it any more.
    unsafe fn free_node(&self, arena: &Arena, level: usize, node: u64) {
        // SAFETY: passed on.
        unsafe {
            if self.is_leaf(level) {
                arena.free(Ptr::<AtomicU32>::from_raw(node), 1 << self.levels[level].bits)
            } else {
                arena.free(Ptr::<AtomicU64>::from_raw(node), self.slots(level))
            }
        }
    }

    /// # Safety
    /// No thread holds or acquires a range of the file.
    unsafe fn free_below(&self, arena: &Arena, head: &LockHead, level: usize, node: u64) {
        if self.is_leaf(level) {
            return;
        }
        for slot in arena.slice(Ptr::<AtomicU64>::from_raw(node), 1 << self.levels[level].bits) {
            // ORDERING: Relaxed here and below: no other thread is here (caller).
            let child = slot.swap(0, Relaxed);
            if child == 0 {
                continue;
            }
            debug_assert!(slot::is_child(child), "a range is held while the file closes");
            head.bytes.fetch_sub(self.node_bytes(level + 1), Relaxed);
            // SAFETY: the slot named it, as a node of the next level; no other thread is here (caller).
            unsafe {
                self.free_below(arena, head, level + 1, child);
                self.free_node(arena, level + 1, child);
            }
        }
    }

    /// Takes the rest of the range `first..=last`, which is held up to `segment`.
    #[cold]
    fn wait(
        &self,
        arena: &Arena,
        head: &LockHead,
        (first, last): (u64, u64),
        mut segment: u64,
        open: bool,
        access: Access,
    ) -> Result<(), Full> {
        let mut waiter = Waiter::new(arena, head, self.mode, access, (first, last));
        if segment == first {
            waiter.hold_back();
        }
        let mut cursor = Cursor::new(self, arena, head);
        while segment <= last {
            match cursor.locate(segment, last, open) {
                Ok(Found::Words(words)) => {
                    for word in words {
                        while !word::try_lock(word, access) {
                            waiter.pause(arena.offset_of(word).raw(), || word::holder(word, access));
                        }
                    }
                    segment += words.len() as u64;
                }
                Ok(Found::Slot { slot, last, covered }) => {
                    if slot::try_lock(slot, access, covered) {
                        segment = last + 1;
                    } else {
                        waiter.pause(arena.offset_of(slot).raw(), || slot::holder(slot, access));
                    }
                }
                Err(full) => {
                    if segment > first {
                        self.release_segments(arena, head, first, segment - 1, access);
                    }
                    waiter.done();
                    return Err(full);
                }
            }
        }
        waiter.done();
        Ok(())
    }

    #[inline]
    fn release_words(&self, arena: &Arena, words: &[AtomicU32], access: Access) {
        for word in words {
            if word::unlock(word, access) {
                wake(self.mode, arena, arena.offset_of(word).raw());
            }
        }
    }

    fn release_segments(&self, arena: &Arena, head: &LockHead, first: u64, last: u64, access: Access) {
        let mut cursor = Cursor::new(self, arena, head);
        let mut segment = first;
        while segment <= last {
            match cursor.locate(segment, last, false).expect("what is held exists and needs no memory") {
                Found::Words(words) => {
                    self.release_words(arena, words, access);
                    segment += words.len() as u64;
                }
                Found::Slot { slot, last, .. } => {
                    if slot::unlock(slot, access) {
                        wake(self.mode, arena, arena.offset_of(slot).raw());
                    }
                    segment = last + 1;
                }
            }
        }
    }
}

impl RangeLock for SrlTree {
    fn init(&self, arena: &Arena, head: &LockHead) -> Result<(), Full> {
        let root = self.new_node(arena, 0)?;
        // ORDERING: Relaxed, a figure for people.
        head.bytes.store(self.node_bytes(0), Relaxed);
        // ORDERING: Release, O1.
        head.root.store(root, Release);
        Ok(())
    }

    #[inline]
    fn acquire(
        &self,
        arena: &Arena,
        head: &LockHead,
        bytes: Range<u64>,
        access: Access,
    ) -> Result<Held, Error> {
        let (first, last) = self.segments.within_file(&bytes)?;
        let open = bytes.end == u64::MAX;
        let mut cursor = Cursor::new(self, arena, head);
        let mut segment = first;
        let mut place = 0;
        if may_pass(self.mode, head, access) {
            while let Ok(Found::Words(words)) = cursor.locate(segment, last, open) {
                if words.len() as u64 == last - first + 1 {
                    place = arena.offset_of(&words[0]).raw();
                }
                let taken = words.iter().take_while(|word| word::try_lock(word, access)).count();
                segment += taken as u64;
                if taken < words.len() || segment > last {
                    break;
                }
            }
        }
        if segment <= last {
            self.wait(arena, head, (first, last), segment, open, access)?;
        }
        Ok(Held { first, last, place, access })
    }

    #[inline]
    fn release(&self, arena: &Arena, head: &LockHead, held: Held) {
        if held.place == 0 {
            return self.release_segments(arena, head, held.first, held.last, held.access);
        }
        // All in one leaf: no descent.
        let words = arena.slice(Ptr::from_raw(held.place), (held.last - held.first + 1) as usize);
        self.release_words(arena, words, held.access);
    }

    unsafe fn last_close(&self, arena: &Arena, head: &LockHead) {
        // ORDERING: Acquire, O1.
        let root = head.root.load(Acquire);
        // SAFETY: passed on.
        unsafe { self.free_below(arena, head, 0, root) };
    }

    unsafe fn destroy(&self, arena: &Arena, head: &LockHead) {
        // ORDERING: Acquire, O1.
        let root = head.root.swap(0, Acquire);
        if root != 0 {
            // SAFETY: passed on; the root was made by `init`.
            unsafe {
                self.free_below(arena, head, 0, root);
                self.free_node(arena, 0, root);
            }
        }
        // ORDERING: Relaxed, a figure for people.
        head.bytes.store(0, Relaxed);
    }

    fn file_bytes_max(&self) -> u64 {
        self.segments.file_bytes_max
    }

    fn memory_bytes(&self, _: &Arena, head: &LockHead) -> u64 {
        // ORDERING: Relaxed, a figure for people.
        head.bytes.load(Relaxed)
    }

    fn name(&self) -> &'static str {
        "tree"
    }
}
