//! The lane: what one thread owns while it works, so that two threads share nothing they write.
//!
//! State       `state`  sequence:62 | IDLE, ACTIVE or COMMITTED: the one word of a lane that others read
//!             `own`    free blocks, freed blocks, inodes, the chains it holds, counters: the lease holder's alone
//! Invariants  I1  a lane is ACTIVE before it locks a cell and COMMITTED before it publishes one; while it is COMMITTED
//!                 its records are durable. The step ACTIVE -> COMMITTED is the linearisation point of an operation.
//!             I2  `own` and `intent` are touched by the thread that holds the lease, and by nobody else while that thread lives.
//!             I3  they make sense after each single store: the holder may die behind any of them. A block is taken out of one
//!                 place before it is put into another.
//! Orderings   O1  `commit` (Release) pairs with a reader's load of the state (Acquire): who sees COMMITTED waits for
//!                 the unlock; who sees ACTIVE and, after its copy, the same word again, read before the commit.
//! Source      protocol review D14, L1; PMDK's lanes for the idea of a leased record.

mod stock;

use crate::counts::Counts;
use crate::ids::{BlockNo, InodeId, PageNo};
use crate::inode::Era;
use crate::opens::OpenTable;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::{AtomicPtr, Heap, Shared, Zeroed};
use heddle_vfs::Ino;
use std::cell::UnsafeCell;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
pub use stock::{Extents, Magazine};

const IDLE: u64 = 0;
const ACTIVE: u64 = 1;
const COMMITTED: u64 = 2;
const STATE_MASK: u64 = 3;
const SEQUENCE_ONE: u64 = 4;

/// In `Lane::held`: inode slots are, too.
const HOLDS_SLOTS: u64 = 1 << 63;

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

    /// Is none under way?
    pub fn idle(self) -> bool {
        self.0 & STATE_MASK == IDLE
    }

    /// Has one happened that is not all visible yet?
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

/// What only the lease holder touches.
#[repr(C)]
pub struct Own {
    /// Volatile memory.
    pub heap: Heap,
    /// Blocks ready to be used.
    pub magazine: Magazine,
    /// Blocks that wait for a fence.
    pub limbo: Extents<LIMBO_EXTENTS>,
    /// 1: [`Own::place`] has been called.
    placed: u64,
    /// Word of the free map where the next search starts.
    pub cursor: u64,
    /// Free inode slots.
    pub slots: crate::itable::Slots,
    /// Where the next search for a chunk starts.
    pub chunk_cursor: u64,
    /// Log pages written in this mount.
    pub page_serial: u64,
    /// Inodes made in this mount.
    pub inode_serial: u64,
    /// How often it has robbed others (`lease::take_back` I3).
    pub thefts: u64,
    /// Chains it holds.
    pub chains: [HeldChain; CHAIN_SLOTS],
    /// Which of them was used last.
    pub chain_last: u64,
    /// Which of them the present call uses, a bit each.
    pub chains_busy: u64,
    canary: u64,
}

/// Latches that a lane can hold at once.
pub const LATCHES: usize = 8;
/// Directories of which a lane can hold buckets at once.
const DIRS: usize = 4;
/// Extents of an operation under way that a settler can give back.
pub const TAKEN_EXTENTS: usize = 16;

/// First and last word of what a lane's holder writes: other values say that somebody has scribbled over it.
const CANARY: u64 = 0x6865_6464_6c65_c0de;

/// What a lane is about to take, said before it takes it (docs/processes.md). Its holder writes it with plain stores; nobody reads it but
/// who settles the lane after the holder's death.
#[repr(C, align(64))]
pub struct Intent {
    canary: AtomicU64,
    /// Process and thread of the holder as they number themselves, for people; 0: nobody.
    pub holder: AtomicU64,
    /// 1: it is inside a call.
    pub inside: AtomicU64,
    /// The lane that takes back what this one holds; 0: none does (`lease::take_back`).
    pub robbed: AtomicU64,
    /// Inode whose cells it may hold.
    ino: AtomicU64,
    first: AtomicU64,
    end: AtomicU64,
    /// Inode in whose log a transaction was begun.
    log_ino: AtomicU64,
    /// Log page and slot where it begins; 0: none, or its effects are visible.
    log: AtomicU64,
    /// Inode that it may have pinned, and how far it got.
    pin: AtomicU64,
    /// The same of the transaction before, in another inode's log: a rename across directories writes two.
    before_ino: AtomicU64,
    before: AtomicU64,
    /// Inode that it makes and that has no name yet.
    pub born: AtomicU64,
    /// Inode that it ends, and how far it got.
    ending: AtomicU64,
    /// An inode whose name is gone, durably, and may be counted still; and its generation.
    losing: [AtomicU64; 2],
    /// Directories of which it may hold buckets.
    dirs: [AtomicU64; DIRS],
    /// The table of which it locked buckets last, or was about to: it may have become another directory's just before.
    table: AtomicU64,
    /// Latches that it may hold.
    latches: [AtomicU64; LATCHES],
    /// Blocks of the operation under way.
    pub taken: Extents<TAKEN_EXTENTS>,
}

/// How far the end of an inode got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// None is ended.
    None = 0,
    /// It may or may not be claimed.
    Asked = 1,
    /// It is claimed, and may live on.
    Claimed = 2,
    /// Its blocks are being freed.
    Begun = 3,
}

/// How far pinning or unpinning got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pinning {
    /// No pin.
    None,
    /// It may or may not be counted.
    Doubtful(u64),
    /// It is counted, in this era.
    Done(u64, Era),
}

impl Pinning {
    /// The inode.
    pub fn ino(self) -> Option<u64> {
        match self {
            Pinning::None => None,
            Pinning::Doubtful(ino) | Pinning::Done(ino, _) => Some(ino),
        }
    }
}

impl Intent {
    fn new() -> Intent {
        Intent {
            canary: AtomicU64::new(0),
            holder: AtomicU64::new(0),
            inside: AtomicU64::new(0),
            robbed: AtomicU64::new(0),
            ino: AtomicU64::new(0),
            first: AtomicU64::new(0),
            end: AtomicU64::new(0),
            log_ino: AtomicU64::new(0),
            log: AtomicU64::new(0),
            before_ino: AtomicU64::new(0),
            before: AtomicU64::new(0),
            born: AtomicU64::new(0),
            ending: AtomicU64::new(0),
            losing: std::array::from_fn(|_| AtomicU64::new(0)),
            dirs: std::array::from_fn(|_| AtomicU64::new(0)),
            table: AtomicU64::new(0),
            pin: AtomicU64::new(0),
            latches: std::array::from_fn(|_| AtomicU64::new(0)),
            taken: Extents::new(),
        }
    }

    /// Cells of these pages are going to be locked.
    #[inline]
    fn pages(&self, ino: u64, first: PageNo, end: PageNo) {
        // ORDERING: Relaxed, before the Release of `begin`.
        self.ino.store(ino, Relaxed);
        self.first.store(first.0, Relaxed); // ORDERING: Relaxed, as above.
        self.end.store(end.0, Relaxed); // ORDERING: Relaxed, as above.
    }

    /// Inode and pages of the cells that it may hold.
    pub fn cells(&self) -> (u64, PageNo, PageNo) {
        // ORDERING: Relaxed, the holder is dead; whoever got its lease sees all of its stores.
        let [ino, first, end] = [&self.ino, &self.first, &self.end].map(|w| w.load(Relaxed));
        (ino, PageNo(first), PageNo(end))
    }

    /// A transaction is going to be written from this slot on.
    #[inline]
    pub fn logs(&self, ino: u64, page: BlockNo, slot: u32) {
        // ORDERING: Relaxed, the holder's own.
        let (earlier, at) = (self.log_ino.load(Relaxed), self.log.load(Relaxed));
        if at != 0 && earlier != ino {
            self.before_ino.store(earlier, Relaxed); // ORDERING: Relaxed, before the Release below.
            self.before.store(at, Release); // ORDERING: Release, before it is overwritten.
        }
        // ORDERING: Relaxed, published by the Release below.
        self.log_ino.store(ino, Relaxed);
        // ORDERING: Release, before the first line of the transaction.
        self.log.store(page.0 << 6 | u64::from(slot), Release);
    }

    /// What the transaction did is visible.
    #[inline]
    pub fn logged(&self) {
        // ORDERING: Release, after the effects.
        self.log.store(0, Release);
        // ORDERING: Relaxed load, the holder's own.
        if self.before.load(Relaxed) != 0 {
            self.before.store(0, Release); // ORDERING: Release, after the effects.
        }
    }

    /// As [`Intent::log`], of the transaction before.
    pub fn log_before(&self) -> Option<(u64, BlockNo, u32)> {
        // ORDERING: Relaxed, as in `cells`.
        let (ino, at) = (self.before_ino.load(Relaxed), self.before.load(Relaxed));
        (at != 0).then_some((ino, BlockNo(at >> 6), (at & 63) as u32))
    }

    /// Buckets of this directory are going to be locked.
    pub fn note_dir(&self, ino: u64) {
        // ORDERING: Relaxed loads, the holder's own.
        if self.dirs.iter().any(|dir| dir.load(Relaxed) == ino) {
            return;
        }
        if let Some(free) = self.dirs.iter().find(|dir| dir.load(Relaxed) == 0) {
            free.store(ino, Release); // ORDERING: Release, before the first bucket is locked.
        }
    }

    /// Directories of which it may hold buckets.
    pub fn dirs(&self) -> impl Iterator<Item = u64> {
        // ORDERING: Relaxed, as in `cells`.
        self.dirs.iter().map(|dir| dir.load(Relaxed)).filter(|ino| *ino != 0)
    }

    /// Buckets of the table that this word leads to are going to be locked.
    #[inline]
    pub fn note_table(&self, word: u64) {
        // ORDERING: Release, before they are locked.
        self.table.store(word, Release);
    }

    /// Where the table is of which it locked buckets last, or was about to; 0: nowhere.
    pub fn table(&self) -> u64 {
        // ORDERING: Relaxed, as in `cells`.
        self.table.load(Relaxed)
    }

    /// The end of a call: no bucket is held.
    #[inline]
    pub fn forget_dirs(&self) {
        // ORDERING: Relaxed load, the holder's own; they are filled from the first on.
        if self.dirs[0].load(Relaxed) != 0 {
            self.dirs.iter().for_each(|dir| dir.store(0, Release)); // ORDERING: Release, after the unlocks.
        }
    }

    /// An inode is being ended, as far as `how`.
    pub fn ends(&self, ino: u64, how: Ending) {
        // ORDERING: Release, after what came before; the claim that follows is a locked SeqCst operation, which it cannot pass. No more:
        // a locked store here would wait for the slot that was just zeroed on the media.
        self.ending.store(ino << 2 | how as u64, Release);
    }

    /// Says which inode has lost a name that its count of links still has.
    pub fn loses(&self, inode: InodeId) {
        self.losing[1].store(inode.generation, Release); // ORDERING: Release, as below.
        // ORDERING: Release, after the log says so, and before the change of the bucket.
        self.losing[0].store(inode.ino.0 << 1, Release);
    }

    /// Its count is about to be lowered; `last`: to nothing, as whoever settles this lane can see.
    pub fn lowers(&self, last: Option<InodeId>) {
        if let Some(inode) = last {
            self.losing[1].store(inode.generation, Release); // ORDERING: Release, as above.
        }
        // ORDERING: Release; the count is lowered by a locked operation.
        self.losing[0].store(last.map_or(0, |inode| inode.ino.0 << 1 | 1), Release);
    }

    /// The inode that has lost a name; true: its last, and its count may have been lowered.
    pub fn losing(&self) -> Option<(InodeId, bool)> {
        let word = self.losing[0].load(SeqCst);
        let inode = InodeId { ino: Ino(word >> 1), generation: self.losing[1].load(SeqCst) };
        (word != 0).then_some((inode, word & 1 != 0))
    }

    /// Says which inode it makes (0: none) that has no name yet.
    pub fn bears(&self, ino: u64) {
        // ORDERING: Release, after what came before; what follows (`be_born`, the name) is stored with Release at least.
        self.born.store(ino, Release);
    }

    /// The inode that is being ended.
    pub fn ending(&self) -> Option<(u64, Ending)> {
        let word = self.ending.load(SeqCst);
        match word & 3 {
            1 => Some((word >> 2, Ending::Asked)),
            2 => Some((word >> 2, Ending::Claimed)),
            3 => Some((word >> 2, Ending::Begun)),
            _ => None,
        }
    }

    /// Inode, page and slot of a transaction whose effects may not be visible.
    pub fn log(&self) -> Option<(u64, BlockNo, u32)> {
        // ORDERING: Relaxed, as in `cells`.
        let (ino, at) = (self.log_ino.load(Relaxed), self.log.load(Relaxed));
        (at != 0).then_some((ino, BlockNo(at >> 6), (at & 63) as u32))
    }

    /// Says that a latch is going to be taken; where that was said, `None` if there is no place.
    pub fn note_latch(&self, at: u64) -> Option<&AtomicU64> {
        // ORDERING: Relaxed load, the holder's own; Release, before the latch is taken.
        let place = self.latches.iter().find(|place| place.load(Relaxed) == 0)?;
        place.store(at, Release); // ORDERING: Release, as above.
        Some(place)
    }

    /// Places of latches that it may hold.
    pub fn latches(&self) -> impl Iterator<Item = u64> {
        // ORDERING: Relaxed, as in `cells`.
        self.latches.iter().map(|place| place.load(Relaxed)).filter(|at| *at != 0)
    }

    /// Forgets them.
    pub fn forget_latches(&self) {
        for place in &self.latches {
            place.store(0, Release); // ORDERING: Release, after their release.
        }
    }

    /// A pin is going to be counted or taken back.
    pub fn pinning(&self, ino: u64) {
        // ORDERING: Release, after what came before; the count that follows is a locked SeqCst operation, which it cannot pass.
        self.pin.store(ino << 2, Release);
    }

    /// A pin has been counted.
    pub fn pinned(&self, ino: u64, era: Era) {
        self.pin.store(ino << 2 | u64::from(era.0) << 1 | 1, Release); // ORDERING: Release, after the count.
    }

    /// No pin any more.
    pub fn unpinned(&self) {
        // ORDERING: Release, after the pin was given back.
        self.pin.store(0, Release);
    }

    /// The pin.
    pub fn pin(&self) -> Pinning {
        match self.pin.load(SeqCst) {
            0 => Pinning::None,
            word if word & 1 == 0 => Pinning::Doubtful(word >> 2),
            word => Pinning::Done(word >> 2, Era((word >> 1 & 1) as u32)),
        }
    }
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
    /// The process whose handles `opens` counts: a [`heddle_arena::Tag`].
    pub home: AtomicU64,
    apart2: [u64; 6],
    /// What it is about to take: for who settles it if its holder dies.
    pub intent: Intent,
    own: UnsafeCell<Own>,
    /// Models see whether one that takes `own` comes behind all that the last one did.
    #[cfg(loom)]
    taken: loom::cell::UnsafeCell<()>,
    /// What it has done.
    pub counts: Counts,
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
            home: AtomicU64::new(0),
            apart2: [0; 6],
            intent: Intent::new(),
            own: UnsafeCell::new(Own {
                heap: Heap::zeroed(),
                magazine: Magazine::new(),
                limbo: Extents::new(),
                placed: 0,
                cursor: 0,
                slots: crate::itable::Slots::zeroed(),
                chunk_cursor: 0,
                page_serial: 0,
                inode_serial: 0,
                thefts: 0,
                chains: [HeldChain::default(); CHAIN_SLOTS],
                chain_last: 0,
                chains_busy: 0,
                canary: 0,
            }),
            #[cfg(loom)]
            taken: loom::cell::UnsafeCell::new(()),
            counts: Counts::new(),
        }
    }
}

impl Own {
    /// Makes the chains that it uses ones that cannot be.
    #[cfg(test)]
    pub fn scribble_chains(&mut self) {
        (self.chains_busy, self.chains[0].chain) = (1, u64::MAX);
    }

    /// Takes that back.
    #[cfg(test)]
    pub fn rest_scribbled(&mut self) {
        (self.chains_busy, self.chains[0]) = (0, HeldChain::default());
    }

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

    /// IDLE -> ACTIVE, with a new sequence number: cells of pages `[first, end)` of inode `ino` are going to be locked.
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

    /// -> IDLE: no cell is held any more, the blocks that were taken are where they belong.
    #[inline]
    pub fn end(&self) {
        self.intent.taken.clear();
        self.intent.logged();
        // ORDERING: Relaxed, only the owner writes it.
        let state = self.state.load(Relaxed);
        // ORDERING: Release, O1: after the unlocks.
        self.state.store(state & !STATE_MASK | IDLE, Release);
    }

    /// A new holder begins.
    pub fn mark(&self, own: &mut Own) {
        // ORDERING: Relaxed, only who settles the lane reads it.
        self.intent.canary.store(CANARY, Relaxed);
        own.canary = CANARY;
    }

    /// Has nobody scribbled over it? A lane that nobody has leased yet is as sound.
    pub fn is_sound(&self, own: &Own) -> bool {
        // ORDERING: Relaxed, as in `mark`.
        matches!((self.intent.canary.load(Relaxed), own.canary), (CANARY, CANARY) | (0, 0))
    }

    /// Makes it one that nobody has leased yet.
    ///
    /// # Safety
    /// The caller holds the lease, and nobody has a reference to its `own`.
    pub unsafe fn reset(&self) {
        let opens = self.opens.load(Acquire); // ORDERING: Acquire, the table stays.
        // SAFETY: all zeros is a lane (`Zeroed`); other threads look at its atomics alone, word by word.
        unsafe { std::ptr::from_ref(self).cast_mut().cast::<u8>().write_bytes(0, size_of::<Lane>()) };
        self.opens.store(opens, Release); // ORDERING: Release, as it was.
    }

    /// The end of an operation whose thread died: `counts`, it has happened. What it had taken is free if it has not.
    pub fn end_dead(&self, counts: bool) {
        if counts {
            self.intent.taken.clear();
        }
        // ORDERING: Relaxed, the caller holds the lease.
        let state = self.state.load(Relaxed);
        // ORDERING: Release, O1: after the unlocks.
        self.state.store(((state & !STATE_MASK) + SEQUENCE_ONE) | IDLE, Release);
    }

    /// Free blocks in this lane's hands when it last said so, those of chunks without inodes included.
    pub fn held(&self) -> u64 {
        // ORDERING: Relaxed, an estimate.
        self.held.load(Relaxed) & !HOLDS_SLOTS
    }

    /// Did it hold blocks or inode slots when it last said so?
    pub fn holds_any(&self) -> bool {
        // ORDERING: Relaxed, an estimate.
        self.held.load(Relaxed) != 0
    }

    /// Says what is in this lane's hands.
    pub fn note_held(&self, own: &Own) {
        let blocks = own.magazine.len() as u64 + own.limbo.blocks() + own.slots.empty_chunks();
        let word = blocks | if own.slots.any() { HOLDS_SLOTS } else { 0 };
        // ORDERING: Relaxed, an estimate; stored only if it changes.
        if self.held.load(Relaxed) != word {
            self.held.store(word, Relaxed); // ORDERING: Relaxed, as above.
        }
    }

    /// The owner's part.
    ///
    /// # Safety
    /// The caller's thread holds the lease of this lane and has no other reference to its `own` (I2).
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn own(&self) -> &mut Own {
        #[cfg(loom)]
        self.taken.with_mut(|_| ());
        // SAFETY: exclusive by the caller's promise.
        unsafe { &mut *self.own.get() }
    }
}
