//! A lane's cache of free arena memory, by size class. A *block* here is such memory, not a block of the media.
//!
//! State       a class: `loaded` (list of `loaded_count` free blocks) and `spare` (a full batch, or 0).
//! Invariants  H1  One owner at a time: the holder of the lane. So nothing here needs a read-modify-write. The words are atomics
//!                 because the next owner may be a thread of another process, and so that death leaves no word half written.
//!             H2  At most two batches a class are kept; blocks beyond that return to the shared lists.
//! Death       Every step removes blocks from one place before it adds them to the next. The stores are Release, so that
//!             they reach memory in that order: an owner that dies between two of them leaks at most two batches and a block.
//! Orderings   O1  Release stores of all three words keep the order for Death. Between owners, the lease's compare-and-exchange orders.

use crate::arena::{Arena, Block, Full};
use crate::class::{self, Class};
use crate::ptr::Ptr;
use crate::shared::{Shared, Zeroed};
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{Relaxed, Release};

crate::shared! {
    /// A cache of free blocks for one owner at a time; it is part of a lane's record.
    pub struct Heap { caches: [ClassCache; class::SMALL] }
}

crate::shared! {
    struct ClassCache { loaded: AtomicU64, loaded_count: AtomicU64, spare: AtomicU64 }
}

impl Heap {
    /// Allocates a `T`.
    ///
    /// # Safety
    /// The caller is the heap's only owner, and the heap lies in `arena` or is used only with it.
    #[inline]
    #[track_caller]
    pub unsafe fn alloc<T: Shared>(&self, arena: &Arena, value: T) -> Result<Ptr<T>, Full> {
        let class = arena.class_of::<T>(1)?;
        if !class.is_small() {
            return arena.alloc(value);
        }
        let block = self.take(arena, class)?;
        // SAFETY: only this caller has the block, and it is of T's class.
        Ok(unsafe { arena.fill(block, value) })
    }

    /// Allocates `n` values, the `i`th made by `make(i)`; returns the first.
    ///
    /// # Safety
    /// As [`alloc`](Self::alloc).
    #[track_caller]
    pub unsafe fn alloc_slice<T: Shared>(
        &self,
        arena: &Arena,
        n: usize,
        make: impl FnMut(usize) -> T,
    ) -> Result<Ptr<T>, Full> {
        let class = arena.class_of::<T>(n)?;
        if !class.is_small() {
            return arena.alloc_slice(n, make);
        }
        let block = self.take(arena, class)?;
        // SAFETY: only this caller has the block, and it is of the class of n Ts.
        Ok(unsafe { arena.fill_slice(block, n, make) })
    }

    /// Allocates `n` zero values; returns the first.
    ///
    /// # Safety
    /// As [`alloc`](Self::alloc).
    #[track_caller]
    pub unsafe fn alloc_zeroed<T: Zeroed>(&self, arena: &Arena, n: usize) -> Result<Ptr<T>, Full> {
        let class = arena.class_of::<T>(n)?;
        if !class.is_small() {
            return arena.alloc_zeroed(n);
        }
        let block = self.take(arena, class)?;
        // SAFETY: only this caller has the block, and it is of the class of n Ts.
        Ok(unsafe { arena.fill_zeroed(block, n) })
    }

    /// Frees `n` values that were allocated together at `ptr`, by any heap or by the arena.
    ///
    /// # Safety
    /// As [`alloc`](Self::alloc), and as [`Arena::free`].
    #[inline]
    pub unsafe fn free<T: Shared>(&self, arena: &Arena, ptr: Ptr<T>, n: usize) {
        let class = arena.class_of::<T>(n).expect("what was allocated has a class");
        if class.is_small() {
            self.give(arena, class, ptr.raw());
        } else {
            // SAFETY: passed on.
            unsafe { arena.free(ptr, n) }
        }
    }

    /// Drops what cannot be a list of free blocks: the last owner is dead, and may have scribbled over the words.
    ///
    /// # Safety
    /// As [`alloc`](Self::alloc).
    pub unsafe fn drop_implausible_lists(&self, arena: &Arena) {
        for (index, cache) in self.caches.iter().enumerate() {
            let class = Class::small(index);
            let (loaded, count) = cache.loaded();
            if !arena.could_be_list(class, loaded, count) {
                cache.set_loaded(0, 0);
            }
            // ORDERING: Relaxed, H1.
            let spare = cache.spare.load(Relaxed);
            if spare != 0 && !arena.could_be_list(class, spare, class.batch()) {
                cache.spare.store(0, Release); // ORDERING: Release, O1.
            }
        }
    }

    /// Returns every cached block to the shared lists.
    ///
    /// # Safety
    /// As [`alloc`](Self::alloc).
    pub unsafe fn flush(&self, arena: &Arena) {
        for (index, cache) in self.caches.iter().enumerate() {
            let class = Class::small(index);
            let (loaded, count) = cache.loaded();
            cache.set_loaded(0, 0);
            if loaded != 0 {
                arena.give_batch(class, loaded, count);
            }
            cache.release_spare(arena, class);
        }
    }

    #[inline]
    fn take(&self, arena: &Arena, class: Class) -> Result<Block, Full> {
        #[cfg(feature = "planted")]
        if crate::planted::is_refused() {
            return Err(Full { wanted_bytes: class.bytes(), capacity_bytes: arena.capacity_bytes() });
        }
        let cache = &self.caches[class.index()];
        let (mut first, mut count) = cache.loaded();
        if first == 0 {
            (first, count) = cache.refill(arena, class)?;
        }
        arena.check_block(class, first);
        let rest = if count > 1 {
            // ORDERING: Relaxed, only this owner has the block (H1).
            arena.links(first).next.load(Relaxed)
        } else {
            0
        };
        cache.set_loaded(rest, count - 1);
        Ok(Block { offset: first, untouched: false })
    }

    #[inline]
    fn give(&self, arena: &Arena, class: Class, block: u64) {
        let cache = &self.caches[class.index()];
        let (mut loaded, mut count) = cache.loaded();
        if count == class.batch() {
            cache.set_loaded(0, 0);
            cache.release_spare(arena, class);
            // ORDERING: Release, O1.
            cache.spare.store(loaded, Release);
            (loaded, count) = (0, 0);
        }
        // ORDERING: Relaxed, only this owner has the block (H1); the Release in `set_loaded` orders it for
        // Death.
        arena.links(block).next.store(loaded, Relaxed);
        cache.set_loaded(block, count + 1);
    }
}

impl ClassCache {
    #[inline]
    fn loaded(&self) -> (u64, u64) {
        // ORDERING: Relaxed, H1. A death between the two stores of `set_loaded` leaves a count that is too small or no list.
        let (first, count) = (self.loaded.load(Relaxed), self.loaded_count.load(Relaxed));
        if count == 0 { (0, 0) } else { (first, count) }
    }

    /// The count never exceeds the list's length, whichever store is the owner's last.
    #[inline]
    fn set_loaded(&self, first: u64, count: u64) {
        // ORDERING: Relaxed load (H1), Release stores (O1).
        if count > self.loaded_count.load(Relaxed) {
            self.loaded.store(first, Release);
            self.loaded_count.store(count, Release);
        } else {
            self.loaded_count.store(count, Release);
            self.loaded.store(first, Release);
        }
    }

    #[cold]
    #[inline(never)]
    fn refill(&self, arena: &Arena, class: Class) -> Result<(u64, u64), Full> {
        // ORDERING: Relaxed, H1.
        let spare = self.spare.load(Relaxed);
        if spare != 0 {
            // ORDERING: Release, O1: removed from `spare` before it is handed out.
            self.spare.store(0, Release);
            return Ok((spare, class.batch()));
        }
        let (first, count, _fresh) = arena.take_batch(class)?;
        Ok((first, count))
    }

    fn release_spare(&self, arena: &Arena, class: Class) {
        // ORDERING: Relaxed, H1.
        let spare = self.spare.load(Relaxed);
        if spare != 0 {
            // ORDERING: Release, O1: removed from the heap before it is in a list.
            self.spare.store(0, Release);
            arena.give_batch(class, spare, class.batch());
        }
    }
}
