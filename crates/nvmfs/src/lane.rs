//! The lane: what one thread owns while it works, so that two threads share nothing they write.
//!
//! State       `state`  sequence:62 | IDLE, ACTIVE or COMMITTED: the one word of a lane that others read
//!             `own`    free blocks, freed blocks, inodes, the chains it holds, counters: the lease holder's alone
//! Invariants  I1  a lane is ACTIVE before it locks a cell and COMMITTED before it publishes one; while it is COMMITTED
//!                 its records are durable. The step ACTIVE -> COMMITTED is the linearisation point of an operation.
//!             I2  `own` is touched by the thread that holds the lease, and by nobody else while that thread lives.
//! Orderings   O1  `commit` (Release) pairs with a reader's load of the state (Acquire): who sees COMMITTED waits for
//!                 the unlock; who sees ACTIVE and, after its copy, the same word again, read before the commit.
//! Source      protocol review D14, L1; PMDK's lanes for the idea of a leased record.

use crate::ids::{BlockNo, Extent};
use crate::opens::OpenTable;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::{AtomicPtr, Heap, Shared, Zeroed};
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const IDLE: u64 = 0;
const ACTIVE: u64 = 1;
const COMMITTED: u64 = 2;
const STATE_MASK: u64 = 3;
const SEQUENCE_ONE: u64 = 4;

/// Single free blocks a lane keeps at most.
pub const MAGAZINE_BLOCKS: usize = 64;
/// Freed extents a lane keeps at most until its next fence.
pub const LIMBO_EXTENTS: usize = 48;
/// Chains a lane remembers.
pub const CHAIN_SLOTS: usize = 16;

/// State word of a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OpState(u64);

impl OpState {
    /// Is an operation under way that has not happened yet?
    pub fn active(self) -> bool {
        self.0 & STATE_MASK == ACTIVE
    }
}

/// Blocks that may be handed out, last in first out.
#[derive(Debug)]
pub struct Magazine {
    len: u32,
    blocks: [u64; MAGAZINE_BLOCKS],
}

impl Magazine {
    /// Takes one.
    pub fn pop(&mut self) -> Option<BlockNo> {
        let at = self.len.checked_sub(1)?;
        self.len = at;
        Some(BlockNo(self.blocks[at as usize]))
    }

    /// Adds one; false if full.
    pub fn push(&mut self, block: BlockNo) -> bool {
        let room = (self.len as usize) < MAGAZINE_BLOCKS;
        if room {
            self.blocks[self.len as usize] = block.0;
            self.len += 1;
        }
        room
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.len as usize
    }
}

/// Extents that were freed but may be read or named by an unfenced record until the next fence (D15).
#[derive(Debug)]
pub struct Limbo {
    len: u32,
    extents: [(u64, u64); LIMBO_EXTENTS],
}

impl Limbo {
    /// Adds an extent; false if full.
    pub fn push(&mut self, extent: Extent) -> bool {
        let room = (self.len as usize) < LIMBO_EXTENTS;
        if room {
            self.extents[self.len as usize] = (extent.block.0, extent.count);
            self.len += 1;
        }
        room
    }

    /// Blocks in it.
    pub fn blocks(&self) -> u64 {
        self.extents[..self.len as usize].iter().map(|e| e.1).sum()
    }

    /// Takes one out.
    pub fn pop(&mut self) -> Option<Extent> {
        let at = self.len.checked_sub(1)?;
        self.len = at;
        let (block, count) = self.extents[at as usize];
        Some(Extent { block: BlockNo(block), count })
    }
}

/// A chain that the lane holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldChain {
    /// Inode number, 0: none.
    pub ino: u64,
    /// Its generation.
    pub generation: u64,
    /// The chain's record in the arena.
    pub chain: u64,
}

/// What only the lease holder touches.
pub struct Own {
    /// Volatile memory.
    pub heap: Heap,
    /// Blocks ready to be used.
    pub magazine: Magazine,
    /// Blocks that wait for a fence.
    pub limbo: Limbo,
    /// 1: [`Own::place`] has been called.
    placed: u64,
    /// Word of the free map where the next search starts.
    pub cursor: u64,
    /// Inode chunk the lane allocates from, plus one (0: none yet).
    pub chunk: u64,
    /// Free slots of that chunk.
    pub chunk_free: [u64; 2],
    /// Where the next search for a chunk starts.
    pub chunk_cursor: u64,
    /// Log pages written in this mount.
    pub page_serial: u64,
    /// Inodes made in this mount.
    pub inode_serial: u64,
    /// Chains it holds.
    pub chains: [HeldChain; CHAIN_SLOTS],
    /// Which of them was used last.
    pub chain_last: u64,
    /// Which of them the present call uses, a bit each.
    pub chains_busy: u64,
}

/// See the module.
#[repr(C, align(64))]
pub struct Lane {
    state: AtomicU64,
    // Two lines: the prefetcher of neighbouring lines must not drag the state along.
    held: AtomicU64,
    apart: [u64; 6],
    /// What its holders have open, read by who ends inodes: apart from what changes with each operation.
    pub opens: AtomicPtr<OpenTable>,
    apart2: [u64; 7],
    own: UnsafeCell<Own>,
}

// SAFETY: no pointers, no Drop; `own` is reached through the lease alone (I2).
unsafe impl Shared for Lane {}
// SAFETY: see `Shared`.
unsafe impl Sync for Lane {}

// SAFETY: all zeros is a lane at rest that holds nothing and was never leased.
unsafe impl Zeroed for Lane {
    fn zeroed() -> Lane {
        Lane {
            state: AtomicU64::new(IDLE),
            held: AtomicU64::new(0),
            apart: [0; 6],
            opens: AtomicPtr::new(heddle_arena::Ptr::NULL),
            apart2: [0; 7],
            own: UnsafeCell::new(Own {
                heap: Heap::zeroed(),
                magazine: Magazine { len: 0, blocks: [0; MAGAZINE_BLOCKS] },
                limbo: Limbo { len: 0, extents: [(0, 0); LIMBO_EXTENTS] },
                placed: 0,
                cursor: 0,
                chunk: 0,
                chunk_free: [0; 2],
                chunk_cursor: 0,
                page_serial: 0,
                inode_serial: 0,
                chains: [HeldChain::default(); CHAIN_SLOTS],
                chain_last: 0,
                chains_busy: 0,
            }),
        }
    }
}

impl Own {
    /// At the first lease of its lane: where its searches start, so that lanes begin apart.
    pub fn place(&mut self, cursor: u64, chunk_cursor: u64) {
        if self.placed == 0 {
            (self.placed, self.cursor, self.chunk_cursor) = (1, cursor, chunk_cursor);
        }
    }
}

impl Lane {
    /// The word as others see it.
    pub fn state(&self) -> OpState {
        // ORDERING: Acquire, O1.
        OpState(self.state.load(Acquire))
    }

    /// IDLE -> ACTIVE, with a new sequence number.
    pub fn begin(&self) {
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

    /// -> IDLE: no cell is held any more.
    pub fn end(&self) {
        // ORDERING: Relaxed, only the owner writes it.
        let state = self.state.load(Relaxed);
        // ORDERING: Release, O1: after the unlocks.
        self.state.store(state & !STATE_MASK | IDLE, Release);
    }

    /// Free blocks in this lane's hands when it last said so.
    pub fn held(&self) -> u64 {
        // ORDERING: Relaxed, an estimate.
        self.held.load(Relaxed)
    }

    /// Says how many free blocks are in this lane's hands.
    pub fn note_held(&self, blocks: u64) {
        // ORDERING: Relaxed, an estimate; stored only if it changes.
        if self.held.load(Relaxed) != blocks {
            self.held.store(blocks, Relaxed); // ORDERING: Relaxed, as above.
        }
    }

    /// The owner's part.
    ///
    /// # Safety
    /// The caller's thread holds the lease of this lane and has no other reference to its `own` (I2).
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn own(&self) -> &mut Own {
        // SAFETY: exclusive by the caller's promise.
        unsafe { &mut *self.own.get() }
    }
}
