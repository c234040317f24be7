//! The lane: everything that one thread owns while it works, so that two threads write no common line.
//!
//! State       `state`  sequence:62 | IDLE, ACTIVE or COMMITTED: the only word of a lane that readers load
//!             `own`    free blocks, freed blocks, inodes, the chains it holds, counters: one thread at a time uses it (I2)
//! Invariants  I1  a lane is ACTIVE before it locks a cell and COMMITTED before it publishes one; while it is COMMITTED
//!                 its records are durable. The step ACTIVE -> COMMITTED is the linearisation point of an operation, except for a
//!                 write that moves EOF: there the store of the size is.
//!             I2  while a call is inside, only its thread touches `own`. Outside calls, one announced reclaimer may. When the thread is
//!                 dead, its settler does.
//!             I3  both are consistent after each single store, because the holder may die after any of them. A block is removed from one
//!                 place before it is added to another.
//! Orderings   O1  `commit` (Release) pairs with a reader's load of the state (Acquire). A reader that sees COMMITTED waits for
//!                 the unlock. A reader that sees ACTIVE and, after its copy, the same word again, has read before the commit.
//! Source      docs/protocol.md D14, L1; PMDK's lanes for the idea of a leased record.

mod blocks;
mod intent;
pub mod open_table;
pub mod slots;

use crate::ids::PageNo;
use crate::lane_counters::Counts;
use crate::state::chain::Chain;
pub use blocks::{Extents, Magazine};
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::{Arena, AtomicPtr, Heap, Ptr, Shared, Zeroed};
use heddle_vfs::Ino;
pub use intent::{Freeing, Intent, Pinning};
use open_table::{KEPT_MAX, OpenTable, Slot};
use slots::Slots;
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const IDLE: u64 = 0;
const ACTIVE: u64 = 1;
const COMMITTED: u64 = 2;
const STATE_MASK: u64 = 3;
const SEQUENCE_ONE: u64 = 4;

/// Flag in `Lane::held`: the lane holds inode slots too.
const HOLDS_SLOTS: u64 = 1 << 63;

/// Single free blocks a lane keeps at most.
pub const MAGAZINE_BLOCKS: usize = 64;
/// Freed extents a lane keeps at most until its next fence.
pub const LIMBO_EXTENTS: usize = 48;
/// Number of chains that a lane remembers.
pub const CHAIN_SLOTS: usize = 16;

/// State word of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpState(u64);

impl OpState {
    /// Returns true if an operation is under way that is not committed.
    pub fn active(self) -> bool {
        self.0 & STATE_MASK == ACTIVE
    }

    /// Returns true if no operation is under way.
    pub fn idle(self) -> bool {
        self.0 & STATE_MASK == IDLE
    }

    /// Returns true if an operation is committed and not fully visible yet.
    pub fn committed(self) -> bool {
        self.0 & STATE_MASK == COMMITTED
    }
}

/// A chain that the lane holds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldChain {
    /// Inode number, 0: none.
    pub ino: u64,
    /// Its generation.
    pub generation: u64,
    /// The chain's record in the arena.
    pub chain: u64,
}

/// The part of a lane that one thread at a time touches (I2).
#[repr(C)]
pub struct LaneLocal {
    /// Its allocator of arena memory.
    pub heap: Heap,
    /// Blocks ready for use.
    pub magazine: Magazine,
    /// Blocks that wait for a fence.
    pub limbo: Extents<LIMBO_EXTENTS>,
    /// 1: [`LaneLocal::place`] has been called.
    placed: u64,
    /// Word of the free map where the next search starts.
    pub cursor: u64,
    /// Free inode slots.
    pub slots: Slots,
    /// The chunk at which the next search starts.
    pub chunk_cursor: u64,
    /// Log pages written in this mount.
    pub page_serial: u64,
    /// Inodes made in this mount.
    pub inode_serial: u64,
    /// Number of times that it has reclaimed from others (`reclaim` I3).
    pub reclaims: u64,
    /// Chains it holds.
    pub chains: [HeldChain; CHAIN_SLOTS],
    /// The one used last.
    pub chain_last: u64,
    /// Those that the present call uses, one bit each.
    pub chains_busy: u64,
    canary: u64,
}

/// First and last word of the part that a lane's holder writes. Any other value shows that a client has
/// scribbled over it.
const CANARY: u64 = 0x6865_6464_6c65_c0de;

/// A lane.
#[repr(C, align(64))]
pub struct Lane {
    state: AtomicU64,
    // Two lines: the prefetcher of adjacent lines must not fetch the state too.
    held: AtomicU64,
    apart: [u64; 6],
    /// The files that its holders have open, read when inodes are freed. It is apart from words that change
    /// with each operation.
    pub opens: AtomicPtr<OpenTable>,
    /// The process whose handles `opens` counts: a [`heddle_arena::ProcessTag`].
    pub home: AtomicU64,
    /// 1: `kept` may count handles.
    pub keeps: AtomicU64,
    apart2: [u64; 5],
    /// What it is about to take: for its settler, if its holder dies.
    pub intent: Intent,
    own: UnsafeCell<LaneLocal>,
    /// Lets models check that each thread that takes `own` comes after all accesses of the last one.
    #[cfg(loom)]
    taken: loom::cell::UnsafeCell<()>,
    /// Its counters.
    pub counts: Counts,
    /// Handles of its settler for which `opens` has no room.
    pub kept: [Slot; KEPT_MAX],
}

// SAFETY: no pointers, no Drop; one thread at a time reaches `own` (I2).
unsafe impl Shared for Lane {}
// SAFETY: see `Shared`.
unsafe impl Sync for Lane {}

// SAFETY: all zeros is an idle lane that holds nothing and was never leased.
unsafe impl Zeroed for Lane {
    fn zeroed() -> Lane {
        Lane {
            state: AtomicU64::new(IDLE),
            held: AtomicU64::new(0),
            apart: [0; 6],
            opens: AtomicPtr::new(heddle_arena::Ptr::NULL),
            home: AtomicU64::new(0),
            keeps: AtomicU64::new(0),
            apart2: [0; 5],
            intent: Intent::new(),
            own: UnsafeCell::new(LaneLocal {
                heap: Heap::zeroed(),
                magazine: Magazine::new(),
                limbo: Extents::new(),
                placed: 0,
                cursor: 0,
                slots: Slots::zeroed(),
                chunk_cursor: 0,
                page_serial: 0,
                inode_serial: 0,
                reclaims: 0,
                chains: [HeldChain::default(); CHAIN_SLOTS],
                chain_last: 0,
                chains_busy: 0,
                canary: 0,
            }),
            #[cfg(loom)]
            taken: loom::cell::UnsafeCell::new(()),
            counts: Counts::new(),
            kept: std::array::from_fn(|_| Slot::new()),
        }
    }
}

impl LaneLocal {
    /// Overwrites the chains in use with impossible ones.
    #[cfg(test)]
    pub fn scribble_chains(&mut self) {
        (self.chains_busy, self.chains[0].chain) = (1, u64::MAX);
    }

    /// Reverts that.
    #[cfg(test)]
    pub fn rest_scribbled(&mut self) {
        (self.chains_busy, self.chains[0]) = (0, HeldChain::default());
    }

    /// Ends a call: the lane keeps its chains, not busy.
    pub fn rest_chains(&mut self, arena: &Arena, lane: u16) {
        let mut busy = std::mem::take(&mut self.chains_busy);
        while busy != 0 {
            let way = busy.trailing_zeros() as usize;
            busy &= busy - 1;
            arena.get::<Chain>(Ptr::from_raw(self.chains[way].chain)).rest(lane);
        }
    }

    /// Called at the first lease of a lane: sets the start of its searches, so that lanes start apart.
    pub fn place(&mut self, cursor: u64, chunk_cursor: u64) {
        if self.placed == 0 {
            (self.placed, self.cursor, self.chunk_cursor) = (1, cursor, chunk_cursor);
        }
    }
}

impl Lane {
    /// The state word.
    pub fn state(&self) -> OpState {
        // ORDERING: Acquire, O1.
        OpState(self.state.load(Acquire))
    }

    /// IDLE -> ACTIVE, with a new sequence number. The operation will lock cells of pages `[first, end)` of
    /// inode `ino`.
    #[inline]
    pub fn begin(&self, ino: Ino, first: PageNo, end: PageNo) {
        self.intent.pages(ino.0, first, end);
        self.intent.logged();
        // ORDERING: Relaxed, only the owner writes it.
        let state = self.state.load(Relaxed);
        // ORDERING: Release, O1: ACTIVE before any cell is locked (I1).
        self.state.store(((state & !STATE_MASK) + SEQUENCE_ONE) | ACTIVE, Release);
    }

    /// ACTIVE -> COMMITTED: the operation has happened.
    pub fn commit(&self) {
        // ORDERING: Relaxed, only the owner writes it.
        let state = self.state.load(Relaxed);
        debug_assert!(OpState(state).active());
        // ORDERING: Release, O1.
        self.state.store(state & !STATE_MASK | COMMITTED, Release);
    }

    /// -> IDLE: no cell is held any more, and the taken blocks are used or returned.
    #[inline]
    pub fn end(&self) {
        self.intent.taken.clear();
        self.intent.logged();
        // ORDERING: Relaxed, only the owner writes it.
        let state = self.state.load(Relaxed);
        // ORDERING: Release, O1: after the unlocks.
        self.state.store(state & !STATE_MASK | IDLE, Release);
    }

    /// Marks the lane as leased by a new holder.
    pub fn mark(&self, own: &mut LaneLocal) {
        // ORDERING: Relaxed, only the lane's settler reads it.
        self.intent.canary.store(CANARY, Relaxed);
        own.canary = CANARY;
    }

    /// Returns true if no client has scribbled over the lane. A lane that was never leased is sound too.
    pub fn is_sound(&self, own: &LaneLocal) -> bool {
        // ORDERING: Relaxed, as in `mark`.
        matches!((self.intent.canary.load(Relaxed), own.canary), (CANARY, CANARY) | (0, 0))
    }

    /// Resets the lane to one that was never leased.
    ///
    /// # Safety
    /// The caller holds the lease, and no reference to its `own` exists.
    pub unsafe fn reset(&self) {
        let opens = self.opens.load(Acquire); // ORDERING: Acquire, the table stays.
        // SAFETY: all zeros is a lane (`Zeroed`); other threads load only its atomics, word by word.
        unsafe { std::ptr::from_ref(self).cast_mut().cast::<u8>().write_bytes(0, size_of::<Lane>()) };
        self.opens.store(opens, Release); // ORDERING: Release, as before.
    }

    /// Ends the operation of a dead thread. `counts`: it has happened. If it has not, the blocks that it had
    /// taken are free.
    pub fn end_dead(&self, counts: bool) {
        if counts {
            self.intent.taken.clear();
        }
        // ORDERING: Relaxed, the caller holds the lease.
        let state = self.state.load(Relaxed);
        // ORDERING: Release, O1: after the unlocks.
        self.state.store(((state & !STATE_MASK) + SEQUENCE_ONE) | IDLE, Release);
    }

    /// Free blocks that this lane noted last as its own, including those of chunks without inodes.
    pub fn held(&self) -> u64 {
        // ORDERING: Relaxed, an estimate.
        self.held.load(Relaxed) & !HOLDS_SLOTS
    }

    /// Returns true if its last note says that it holds blocks or inode slots.
    pub fn holds_any(&self) -> bool {
        // ORDERING: Relaxed, an estimate.
        self.held.load(Relaxed) != 0
    }

    /// Notes the resources that this lane holds.
    pub fn note_held(&self, own: &LaneLocal) {
        let blocks = own.magazine.len() as u64 + own.limbo.blocks() + own.slots.empty_chunks();
        let word = blocks | if own.slots.any() { HOLDS_SLOTS } else { 0 };
        // ORDERING: Relaxed, an estimate; stored only if it changes.
        if self.held.load(Relaxed) != word {
            self.held.store(word, Relaxed);
        }
    }

    /// The owner's part.
    ///
    /// # Safety
    /// I2 permits the caller to touch `own`, and it has no other reference to it.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn own(&self) -> &mut LaneLocal {
        #[cfg(loom)]
        self.taken.with_mut(|_| ());
        // SAFETY: exclusive by the caller's promise.
        unsafe { &mut *self.own.get() }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::ids::{BlockNo, Extent};

    fn is(state: OpState) -> [bool; 3] {
        [state.idle(), state.active(), state.committed()]
    }

    #[test]
    fn an_operation_begins_happens_and_ends_under_its_own_number() {
        let lane = Box::new(Lane::zeroed());
        let (before, all) = (lane.state(), Extent { block: BlockNo(5), count: 2 });
        assert_eq!(is(before), [true, false, false]);
        lane.begin(Ino(7), PageNo(1), PageNo(3));
        let active = lane.state();
        assert_eq!((is(active), lane.intent.cells()), ([false, true, false], (7, PageNo(1), PageNo(3))));
        lane.intent.taken.push(all);
        lane.commit();
        assert_eq!(is(lane.state()), [false, false, true]);
        lane.end();
        assert_eq!((is(lane.state()), lane.intent.taken.blocks()), ([true, false, false], 0));
        lane.begin(Ino(7), PageNo(1), PageNo(3));
        assert!(lane.state() != active && is(lane.state()) == is(active));
        // Its thread dies before it has happened: what it took is to be freed.
        let dead = lane.state();
        lane.intent.taken.push(all);
        lane.end_dead(false);
        assert_eq!((is(lane.state()), lane.intent.taken.blocks()), ([true, false, false], 2));
        lane.begin(Ino(7), PageNo(1), PageNo(3));
        assert_ne!(lane.state(), dead);
        lane.end_dead(true);
        assert_eq!((is(lane.state()), lane.intent.taken.blocks()), ([true, false, false], 0));
    }

    #[test]
    fn what_a_lane_holds_is_noted_with_its_slots() {
        let lane = Box::new(Lane::zeroed());
        // SAFETY: one thread, and one reference.
        let own = unsafe { lane.own() };
        assert!(lane.is_sound(own) && !lane.holds_any());
        assert!(own.magazine.push(BlockNo(3)) && own.magazine.push(BlockNo(4)));
        own.limbo.push(Extent { block: BlockNo(5), count: 4 });
        lane.note_held(own);
        assert_eq!((lane.held(), lane.holds_any()), (6, true));
        (own.slots.empty, own.slots.ended_len) = (10, 1);
        lane.note_held(own);
        assert_eq!((lane.held(), lane.holds_any()), (16, true));
        (own.magazine, own.slots.empty) = (Magazine::new(), 0);
        own.limbo.clear();
        lane.note_held(own);
        assert_eq!((lane.held(), lane.holds_any()), (0, true), "a slot alone");
        own.slots.ended_len = 0;
        lane.note_held(own);
        assert!(!lane.holds_any());
        own.place(7, 8);
        own.place(70, 80);
        assert_eq!((own.cursor, own.chunk_cursor), (7, 8), "the first lease counts");
    }

    #[test]
    fn a_lane_is_sound_while_both_its_ends_are_as_they_were() {
        let lane = Box::new(Lane::zeroed());
        // SAFETY: one thread, and one reference.
        let own = unsafe { lane.own() };
        lane.mark(own);
        assert!(lane.is_sound(own));
        own.canary ^= 1;
        assert!(!lane.is_sound(own));
        own.canary = 0;
        assert!(!lane.is_sound(own), "only one is");
        own.canary = CANARY;
        lane.intent.canary.store(0, Relaxed);
        assert!(!lane.is_sound(own));
    }
}
