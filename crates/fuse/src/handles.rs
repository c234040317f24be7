//! The engine's open files, by the numbers that the kernel knows.
//!
//! State       slots in segments that are added and never moved or freed: segment k has 64 * 2^k slots.
//!             Each slot has its own lock; only open and release take the lock of the list of free slots.
//!             Beside its lock a slot has the inode of its file, so that the files of one inode are found without locks.
//! Invariants  H1  a number is `generation << 32 | slot`. The generation counts the uses of a slot: a number that we never gave to the
//!                 kernel, or that it has released, finds no file.
//!             H2  a file leaves its slot under the slot's write lock, so no call is using it.
//!             H3  a slot has its inode before the file's number is known to any other thread.
//! Lock order  of two slots the smaller number first; a slot's lock is not held while the list's is taken.
//!
//! A request takes one uncontended read lock here: requests on different descriptors share no cache line.

use std::cmp::Ordering;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::{Mutex, OnceLock, PoisonError, RwLock};

use heddle_vfs::{Error, Handle, Ino, Result};

use crate::openers::Calls;

const FIRST_SLOTS: u32 = 64;
const SEGMENTS: usize = 20;
const SLOTS_MAX: u32 = FIRST_SLOTS * ((1 << SEGMENTS) - 1);

#[derive(Default)]
pub(crate) struct Handles {
    segments: [OnceLock<Box<[Slot]>>; SEGMENTS],
    free: Mutex<Free>,
}

#[derive(Default)]
struct Free {
    given_back: Vec<u32>,
    never_used: u32,
}

#[derive(Default)]
#[repr(align(64))]
struct Slot {
    entry: RwLock<Entry>,
    ino: AtomicU64,
}

#[derive(Default)]
struct Entry {
    generation: u32,
    open: Option<Open>,
}

/// Observations about one descriptor.
#[derive(Default)]
pub(crate) struct Marks {
    /// The kernel has read a page through this descriptor, or is about to map it.
    pub(crate) maps: AtomicBool,
    /// Who makes its calls.
    pub(crate) calls: Calls,
    /// `capabilities_given` plus one, when this file was seen to have none; 0: not checked yet.
    pub(crate) without_capability: AtomicU64,
}

/// An open file, and what was observed about its descriptor.
pub(crate) struct Open {
    pub(crate) handle: Handle,
    pub(crate) marks: Marks,
}

impl fmt::Debug for Handles {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Handles").finish_non_exhaustive()
    }
}

impl Handles {
    /// Stores a file and returns its number. If no slot is free, gives the file back.
    pub(crate) fn insert(&self, open: Open) -> std::result::Result<u64, Open> {
        let Some(index) = self.free_slot() else { return Err(open) };
        let slot = self.slot_or_new(index);
        let mut entry = slot.entry.write().unwrap_or_else(PoisonError::into_inner);
        slot.ino.store(open.handle.ino.0, SeqCst);
        entry.open = Some(open);
        Ok(u64::from(entry.generation) << 32 | u64::from(index))
    }

    /// Returns true if no file is open.
    pub(crate) fn is_empty(&self) -> bool {
        let free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        free.never_used as usize == free.given_back.len()
    }

    /// Calls `work` with a file.
    pub(crate) fn with<T>(&self, number: u64, work: impl FnOnce(&Open) -> Result<T>) -> Result<T> {
        let slot = self.slot(number as u32).ok_or(Error::BadHandle)?;
        let entry = slot.entry.read().unwrap_or_else(PoisonError::into_inner);
        match &entry.open {
            Some(open) if entry.generation == (number >> 32) as u32 => work(open),
            _ => Err(Error::BadHandle),
        }
    }

    /// Calls `work` with two files, which may be one. Whichever is named first, the smaller slot is locked first: two calls that each hold
    /// what the other wants would wait for ever behind writers that wait for both.
    pub(crate) fn with_both<T>(
        &self,
        [one, other]: [u64; 2],
        work: impl FnOnce(&Open, &Open) -> Result<T>,
    ) -> Result<T> {
        match (one as u32).cmp(&(other as u32)) {
            // A second lock of the slot could wait behind a writer that waits for the first.
            Ordering::Equal if one == other => self.with(one, |open| work(open, open)),
            Ordering::Equal => Err(Error::BadHandle),
            Ordering::Less => self.with(one, |one| self.with(other, |other| work(one, other))),
            Ordering::Greater => self.with(other, |other| self.with(one, |one| work(one, other))),
        }
    }

    /// Removes a file.
    pub(crate) fn remove(&self, number: u64) -> Option<Open> {
        let index = number as u32;
        let mut entry = self.slot(index)?.entry.write().unwrap_or_else(PoisonError::into_inner);
        if entry.generation != (number >> 32) as u32 {
            return None;
        }
        let open = entry.open.take()?;
        entry.generation = entry.generation.wrapping_add(1);
        drop(entry);
        self.free.lock().unwrap_or_else(PoisonError::into_inner).given_back.push(index);
        Some(open)
    }

    /// Removes all files.
    pub(crate) fn drain(&self) -> impl Iterator<Item = Open> + '_ {
        self.slots().filter_map(|slot| slot.entry.write().unwrap_or_else(PoisonError::into_inner).open.take())
    }

    /// Waits until all calls on files of this inode that have begun are finished. A call on such a file must
    /// not call this.
    pub(crate) fn wait_for_calls(&self, ino: Ino) {
        for slot in self.slots().filter(|slot| slot.ino.load(SeqCst) == ino.0) {
            drop(slot.entry.write().unwrap_or_else(PoisonError::into_inner));
        }
    }

    fn slots(&self) -> impl Iterator<Item = &Slot> {
        self.segments.iter().filter_map(OnceLock::get).flat_map(|segment| segment.iter())
    }

    fn free_slot(&self) -> Option<u32> {
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = free.given_back.pop() {
            return Some(index);
        }
        let index = free.never_used;
        (index < SLOTS_MAX).then(|| {
            free.never_used += 1;
            index
        })
    }

    fn slot(&self, index: u32) -> Option<&Slot> {
        let (segment, at) = place(index);
        self.segments.get(segment)?.get()?.get(at)
    }

    fn slot_or_new(&self, index: u32) -> &Slot {
        let (segment, at) = place(index);
        let slots = || (0..FIRST_SLOTS << segment).map(|_| Slot::default()).collect();
        &self.segments[segment].get_or_init(slots)[at]
    }
}

/// Segment, and slot in it.
fn place(index: u32) -> (usize, usize) {
    let segment = (u64::from(index / FIRST_SLOTS) + 1).ilog2();
    let before = u64::from(FIRST_SLOTS) * ((1_u64 << segment) - 1);
    (segment as usize, (u64::from(index) - before) as usize)
}

#[cfg(test)]
mod tests;
