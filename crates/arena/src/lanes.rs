//! Lanes: entries of a table that threads of several processes lease, and the check whether a holder is alive.
//!
//! State       Each lane has a line with two words: the holder, and the holder that a waiter wants checked. The lane's contents (its
//!             operation, its blocks) are in the engine's structure for that lane. [`process_slots`] tells which processes live.
//!             word  0: free; else generation:31 | process slot + 1:11 | TID:22, the most significant field first. TID 0: the
//!                   process keeps the lane, and none of its threads has it (parked).
//! Invariants  L1  A lane has at most one holder: the word changes only by compare-and-exchange.
//!             L2  A lane is taken only if its holder's process is gone, or its thread has ended. Threads of other processes are checked
//!                 by the daemon, through /proc. A lease taken from a dead holder has `died`. The check is repeated after the
//!                 exchange, because the TID of an ended thread may be reused by a thread that leases the same lane. If the second
//!                 check finds the thread alive, the lane is put back. (No two address spaces have the same process tag: generation
//!                 and process slot.)
//!             L3  A caller that gets `died` must settle the lane before it uses or releases it. If it dies too, the next caller gets
//!                 `died` again: the settler is the holder.
//!             L4  A forked child takes a process slot of its own, or has no lane.
//!             L5  Any attached process may write any word; it is checked before it is used.
//! Search      A thread starts where it found its last lane, at first at a place of its own, so leases rarely collide.

use std::cell::Cell;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use crate::arena::{Arena, Full};
use crate::process_slots::{self, PROCESS_SLOTS, ProcessSlot, ProcessTag};
use crate::ptr::Ptr;
use crate::shared::{Shared, Zeroed};
use crate::sync::atomic::{AtomicU32 as SharedU32, AtomicU64};

/// Number of a lane, from 1. 0 means no lane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct LaneId(pub u16);

impl LaneId {
    /// No lane.
    pub const NOBODY: LaneId = LaneId(0);

    /// Index of the lane in an array with an entry for each lane.
    ///
    /// # Panics
    /// On [`NOBODY`](Self::NOBODY) when built with overflow checks.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize - 1
    }
}

/// The holder of a lane: a process and one of its threads, as the lane's word names them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Holder(u64);

impl Holder {
    /// The process.
    pub fn process(self) -> ProcessTag {
        ProcessTag::from_word(self.0)
    }

    /// The TID of the thread in the PID namespace of its process; 0: the lane is parked.
    pub fn thread(self) -> u32 {
        (self.0 & process_slots::THREAD_MASK) as u32
    }
}

/// A lane that the calling thread holds now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a lane that is not released stays leased until its thread or process ends"]
pub struct Lease {
    /// The lane.
    pub lane: LaneId,
    /// True: its last holder died while it had the lane. The caller must settle the lane before it uses or releases it (L3).
    pub died: bool,
    holder: Holder,
}

/// No lane is free, and no lane's holder is known to be dead.
#[derive(thiserror::Error, Debug, Clone, Copy, PartialEq, Eq)]
#[error("all {lanes} lanes are in use: run fewer threads at once, or configure more lanes")]
pub struct NoLane {
    /// Number of lanes in the table.
    pub lanes: u16,
}

/// The lane is not held under this lease, or not any more.
#[derive(thiserror::Error, Debug, Clone, Copy, PartialEq, Eq)]
#[error("lane {} is not held under this lease: release a lane once", lane.0)]
pub struct NotHolder {
    /// The lane.
    pub lane: LaneId,
}

/// The lanes of an engine. An arena has at most one table, because the process slots of its processes are locks of
/// the arena's file.
#[repr(C)]
pub struct LaneTable {
    words: Ptr<LaneWords>,
    process_slots: Ptr<SharedU32>,
    len: u32,
}

// SAFETY: plain numbers, written before the table is published.
unsafe impl Shared for LaneTable {}

#[repr(C, align(64))]
struct LaneWords {
    holder: AtomicU64,
    /// The holder for which a waiter has requested a check (see [`LaneTable::request_check`]).
    check_requested: AtomicU64,
}

// SAFETY: atomics only.
unsafe impl Shared for LaneWords {}
// SAFETY: all zeros is a free lane.
unsafe impl Zeroed for LaneWords {
    fn zeroed() -> LaneWords {
        LaneWords { holder: AtomicU64::new(0), check_requested: AtomicU64::new(0) }
    }
}

thread_local! {
    /// The place where this thread's search starts.
    static START: Cell<u32> = {
        static THREADS: AtomicU32 = AtomicU32::new(0);
        if cfg!(any(loom, shuttle)) {
            // Under a model checker all threads of a model are one to the system, and runs must not differ.
            return Cell::new(0);
        }
        // ORDERING: Relaxed, any distribution will do.
        let nth = THREADS.fetch_add(1, Relaxed);
        Cell::new(nth.wrapping_add(std::process::id().wrapping_mul(0x9E37_79B1) >> 16))
    };
}

/// Makes the calling thread search for a lane from the `nth` on, as if that were its last one. By default the start depends on the PID and
/// on the order in which threads search for the first time. A rig whose runs must be identical sets it.
pub fn look_first_at(nth: u32) {
    START.set(nth);
}

impl LaneTable {
    /// A table of `n` free lanes, at most 16,383: a lane takes 14 bits in an engine's words.
    ///
    /// # Panics
    /// If `n` is 0 or larger than that.
    pub fn create(arena: &Arena, n: u16) -> Result<Ptr<LaneTable>, Full> {
        assert!((1..1 << 14).contains(&n), "1 to 16383 lanes");
        let words = arena.alloc_zeroed::<LaneWords>(n as usize)?;
        let process_slots = arena.alloc_zeroed::<SharedU32>(PROCESS_SLOTS as usize)?;
        arena.alloc(LaneTable { words, process_slots, len: n as u32 })
    }

    /// Number of lanes.
    pub fn len(&self) -> u16 {
        self.len as u16
    }

    /// Always false: a table has at least one lane.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the calling process a process slot. Each process calls this once, also a forked one.
    ///
    /// # Errors
    /// The system's: there is no descriptor of the arena any more, no `/proc`, or all process slots are taken.
    pub fn take_process_slot(&self, arena: &Arena) -> std::io::Result<ProcessSlot> {
        ProcessSlot::take(arena, arena.slice(self.process_slots, PROCESS_SLOTS as usize))
    }

    /// Returns true if the given process's address space has ended. Returns false if that is unknown.
    pub fn is_gone(&self, arena: &Arena, process: ProcessTag) -> bool {
        process_slots::is_gone(arena, arena.slice(self.process_slots, PROCESS_SLOTS as usize), process)
    }

    /// Leases a free lane, or one whose holder is dead, to the calling thread. `process_slot` is its process's.
    pub fn lease(&self, arena: &Arena, process_slot: &ProcessSlot) -> Result<Lease, NoLane> {
        let start = START.get();
        let mut lanes = (0..self.len).map(|step| start.wrapping_add(step) % self.len);
        let found = lanes
            .by_ref()
            .find_map(|index| self.replace(arena, LaneId(index as u16 + 1), 0, process_slot))
            .or_else(|| (1..=self.len()).find_map(|lane| self.lease_lane(arena, LaneId(lane), process_slot)));
        let lease = found.ok_or(NoLane { lanes: self.len() })?;
        START.set(lease.lane.index() as u32);
        Ok(lease)
    }

    /// Leases this lane to the calling thread, if the lane is free or its holder is dead. For settling dead lanes.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn lease_lane(&self, arena: &Arena, lane: LaneId, process_slot: &ProcessSlot) -> Option<Lease> {
        let word = self.words_of(arena, lane).holder.load(SeqCst);
        if word == 0 {
            return self.replace(arena, lane, word, process_slot);
        }
        self.lease_from(arena, lane, Holder(word), process_slot, || {
            self.is_dead(arena, Holder(word), process_slot)
        })
    }

    /// Takes a lane from a holder if `is_dead` returns true before and after the exchange (L2).
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn lease_from(
        &self,
        arena: &Arena,
        lane: LaneId,
        holder: Holder,
        process_slot: &ProcessSlot,
        mut is_dead: impl FnMut() -> bool,
    ) -> Option<Lease> {
        let lease = if is_dead() { self.replace(arena, lane, holder.0, process_slot)? } else { return None };
        if is_dead() {
            return Some(lease);
        }
        // No other thread changes a lane that is held: the word is still the one stored here.
        let _back = self.give(arena, lease, holder.0);
        None
    }

    fn replace(&self, arena: &Arena, lane: LaneId, from: u64, process_slot: &ProcessSlot) -> Option<Lease> {
        let word = &self.words_of(arena, lane).holder;
        // ORDERING: Relaxed, a guess that the exchange checks: a search must not write lines of other lanes.
        if word.load(Relaxed) != from {
            return None;
        }
        let holder = Holder(process_slot.tag().word() | u64::from(process_slots::this_thread()));
        word.compare_exchange(from, holder.0, SeqCst, SeqCst).ok()?;
        Some(Lease { lane, died: from != 0 && from != process_slot.tag().word(), holder })
    }

    /// Returns the holder of a lane.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn holder(&self, arena: &Arena, lane: LaneId) -> Option<Holder> {
        Some(Holder(self.words_of(arena, lane).holder.load(SeqCst))).filter(|holder| holder.0 != 0)
    }

    /// Returns true if the holder is dead, as far as a process that holds `process_slot` can know (L2).
    pub fn is_dead(&self, arena: &Arena, holder: Holder, process_slot: &ProcessSlot) -> bool {
        if holder.process() == process_slot.tag() {
            return holder.thread() != 0 && process_slot.thread_has_ended(holder.thread());
        }
        self.is_gone(arena, holder.process())
    }

    /// Releases the lane.
    ///
    /// # Errors
    /// [`NotHolder`] if it is not held under this lease.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn release(&self, arena: &Arena, lease: Lease) -> Result<(), NotHolder> {
        self.give(arena, lease, 0)
    }

    /// Parks the lane for a process: only its threads may [`unpark`](Self::unpark) it while that process
    /// lives.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    ///
    /// # Panics
    /// As there.
    pub fn park(&self, arena: &Arena, lease: Lease, process: ProcessTag) -> Result<(), NotHolder> {
        self.give(arena, lease, process.word())
    }

    fn give(&self, arena: &Arena, lease: Lease, to: u64) -> Result<(), NotHolder> {
        let given =
            self.words_of(arena, lease.lane).holder.compare_exchange(lease.holder.0, to, SeqCst, SeqCst);
        given.map(drop).map_err(|_| NotHolder { lane: lease.lane })
    }

    /// Leases the lane if the process of this process slot has parked it.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn unpark(&self, arena: &Arena, lane: LaneId, process_slot: &ProcessSlot) -> Option<Lease> {
        self.replace(arena, lane, process_slot.tag().word(), process_slot)
    }

    /// Requests that the daemon checks whether this holder is dead, in its next check of all lanes (about twice a second). For a thread
    /// that has waited long for the holder.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn request_check(&self, arena: &Arena, lane: LaneId, holder: Holder) {
        let requested = &self.words_of(arena, lane).check_requested;
        // ORDERING: Relaxed, a hint; stored only if it changes.
        if requested.load(Relaxed) != holder.0 {
            requested.store(holder.0, Relaxed);
        }
    }

    /// Clears the request for a check of this lane. Returns the requested holder if it still holds the lane.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn take_check_request(&self, arena: &Arena, lane: LaneId) -> Option<Holder> {
        let words = self.words_of(arena, lane);
        // ORDERING: Relaxed, a hint.
        let requested = words.check_requested.load(Relaxed);
        if requested == 0 {
            return None;
        }
        words.check_requested.store(0, Relaxed);
        Some(Holder(requested)).filter(|holder| Some(*holder) == self.holder(arena, lane))
    }

    fn words_of<'a>(&self, arena: &'a Arena, lane: LaneId) -> &'a LaneWords {
        &arena.slice(self.words, self.len as usize)[lane.index()]
    }
}
