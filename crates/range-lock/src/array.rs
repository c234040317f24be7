//! SRL(array), alias pNOVA-atomic: a lock word for every segment that the largest file can have.
//!
//! State       `LockHead::root`: the first of `file_bytes_max / segment_bytes` words, made with the file. Untouched words cost
//!             address space, not memory.
//! Invariants  A1  Words are taken in ascending order, so that two ranges never wait for each other crosswise; given back in any.
//! Limits      4 bytes a segment of the LARGEST file: 1.5 GiB for 1.5 TB, 256 GiB for 2^48 bytes. Beyond it: [`Error::TooBig`].
//!             A range that is open at the end takes every word up to the maximum, one by one.
//! Source      SRL IV-B, VI-A; pNOVA 3.2. The papers' pseudo-code has two errors: a loop over n words ends only after word n + 1
//!             (`<=`), and pNOVA's read loop ends on `!= 0`. We implement what their prose says.

use std::ops::Range;

use heddle_arena::sync::atomic::AtomicU32;
use heddle_arena::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use heddle_arena::{Arena, Full, Ptr};

use crate::geometry::{BadGeometry, Geometry, Segments};
use crate::head::{Access, Held, LockHead};
use crate::wait::{Mode, Waiter, may_pass, wake};
use crate::{Error, RangeLock, word};

/// A fixed array of lock words.
#[derive(Clone, Copy, Debug)]
pub struct SrlArray {
    mode: Mode,
    segments: Segments,
}

impl SrlArray {
    /// An array for files of `geometry`, waiting as `mode` says.
    pub fn new(mode: Mode, geometry: &Geometry) -> Result<Self, BadGeometry> {
        Ok(SrlArray { mode, segments: geometry.segments()? })
    }

    /// Takes the rest of `words`, those of `range`, of which the first `taken` are held.
    #[cold]
    fn wait(
        &self,
        arena: &Arena,
        head: &LockHead,
        access: Access,
        words: &[AtomicU32],
        range: (u64, u64),
        taken: usize,
    ) {
        let mut waiter = Waiter::new(arena, head, self.mode, access, range);
        if taken == 0 {
            waiter.hold_back();
        }
        for word in &words[taken..] {
            while !word::try_lock(word, access) {
                waiter.pause(arena.offset_of(word).raw(), || word::holder(word, access));
            }
        }
        waiter.done();
    }

    #[inline]
    fn words<'a>(&self, arena: &'a Arena, base: u64, first: u64, last: u64) -> &'a [AtomicU32] {
        arena.slice(Ptr::from_raw(base).add(first as usize), (last - first + 1) as usize)
    }
}

impl RangeLock for SrlArray {
    fn init(&self, arena: &Arena, head: &LockHead) -> Result<(), Full> {
        let words = arena.alloc_zeroed::<AtomicU32>(self.segments.count() as usize)?;
        // ORDERING: Release, pairs with the Acquire in `acquire`.
        head.root.store(words.raw(), Release);
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
        // ORDERING: Acquire, pairs with the Release in `init`.
        let place = head.root.load(Acquire);
        let words = self.words(arena, place, first, last);
        let passes = may_pass(self.mode, head, access);
        let taken = words.iter().take_while(|word| passes && word::try_lock(word, access)).count();
        if taken < words.len() {
            self.wait(arena, head, access, words, (first, last), taken);
        }
        Ok(Held { first, last, place, access })
    }

    #[inline]
    fn release(&self, arena: &Arena, _: &LockHead, held: Held) {
        for word in self.words(arena, held.place, held.first, held.last) {
            if word::unlock(word, held.access) {
                wake(self.mode, arena, arena.offset_of(word).raw());
            }
        }
    }

    unsafe fn last_close(&self, _: &Arena, _: &LockHead) {}

    unsafe fn destroy(&self, arena: &Arena, head: &LockHead) {
        // ORDERING: Relaxed, nobody else is here (caller).
        let words = Ptr::<AtomicU32>::from_raw(head.root.swap(0, Relaxed));
        if !words.is_null() {
            // SAFETY: allocated by `init` with this count; nobody holds or acquires (caller).
            unsafe { arena.free(words, self.segments.count() as usize) }
        }
    }

    fn file_bytes_max(&self) -> u64 {
        self.segments.file_bytes_max
    }

    fn memory_bytes(&self, _: &Arena, _: &LockHead) -> u64 {
        self.segments.count() * size_of::<AtomicU32>() as u64
    }

    fn name(&self) -> &'static str {
        "array"
    }
}
