//! The arena: a mapping, a header, blocks of size classes.
//!
//! State       [`Header`] at offset 0: magic, capacity, `top` (bytes below it have been handed out at least once), a root, one
//!             [`FreeList`] a class, and the [`ParkingTable`] for every word of the arena. Then blocks.
//! Invariants  A1  A block is owned by one allocation, one heap's cache or one free list; `top` never goes down, so a block made
//!                 once stays a block of its class for as long as the arena lives.
//!             A2  Bytes above `top` are zero.
//! Reuse       Freed memory stays mapped. So a reader that follows an offset without a lock may read a block that has
//!             been freed, and handed out again, under three conditions. (1) Every field that it reads is an atomic. (2) It reads the
//!             offset with [`Arena::try_get`] if the offset itself came from such memory. (3) It checks afterwards, by a version or a
//!             lock word, that the contents were current, and discards them if not. The new owner's first stores are plain
//!             stores of whole words: such a reader sees an old word or a new one. A type that never shares its class with others
//!             (or poisons itself before it is freed) can promise more; this allocator promises no more than this.
//! Death       A process that dies inside the allocator leaks at most one batch and never hands a block out twice.
//! Orderings   O1  `top` is Relaxed: only its uniqueness matters. A thread that receives a pointer from another one
//!             receives it through that thread's own Release.

use std::os::fd::{BorrowedFd, OwnedFd};

use crate::class::{self, Class};
use crate::free_list::{CAPACITY_MAX, FreeList, LINK_BYTES, Links};
use crate::map::Mapping;
use crate::park::ParkingTable;
use crate::ptr::Ptr;
use crate::shared::{Shared, Zeroed};
use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use crate::watch;

/// There is no memory left.
#[derive(thiserror::Error, Debug, Clone, Copy, PartialEq, Eq)]
#[error(
    "no volatile memory left: {wanted_bytes} bytes wanted of an arena of {capacity_bytes}; close files or make the arena larger"
)]
pub struct Full {
    /// Bytes asked for.
    pub wanted_bytes: u64,
    /// Size of the arena, in bytes.
    pub capacity_bytes: u64,
}

/// The arena cannot be made or mapped.
#[derive(thiserror::Error, Debug)]
pub enum MapError {
    /// The kernel refused to make it.
    #[error(
        "cannot map an arena of {capacity_bytes} bytes: {source}; ask for less, or raise the limits \
         on address space and on files (ulimit -v, ulimit -f)"
    )]
    Kernel {
        /// Size asked for, in bytes.
        capacity_bytes: u64,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// The kernel refused to map one that exists.
    #[error("cannot map the arena of {capacity_bytes} bytes: {source}")]
    Existing {
        /// Its size, in bytes.
        capacity_bytes: u64,
        /// The kernel's error.
        source: std::io::Error,
    },
    /// Smaller than the header, or larger than offsets can express.
    #[error(
        "an arena of {capacity_bytes} bytes is not possible: choose a size from {min_bytes} to {CAPACITY_MAX} bytes"
    )]
    Size {
        /// Size asked for, in bytes.
        capacity_bytes: u64,
        /// The smallest possible, in bytes.
        min_bytes: u64,
    },
    /// The descriptor is not one of an arena.
    #[error("the descriptor is not an arena of this version: attach to a daemon of the same build")]
    Foreign,
    /// The arena is private.
    #[error("a private arena cannot be mapped again: make it with Arena::shared")]
    Private,
}

/// "heddle" and the version of the header's layout.
const MAGIC: u64 = 0x6865_6464_6c65_0001;

#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    capacity_bytes: AtomicU64,
    root: AtomicU64,
    top: Top,
    free: [FreeList; class::COUNT],
    parking: ParkingTable,
}

/// On a line of its own: every lane that takes fresh memory writes it.
#[repr(C, align(64))]
struct Top(AtomicU64);

const HEADER_BYTES: u64 = size_of::<Header>().next_multiple_of(4096) as u64;
/// The smallest arena, in bytes.
const CAPACITY_MIN: u64 = 2 * HEADER_BYTES;

/// A process's view of an arena. Dropping it unmaps the view; mappings of other processes stay.
pub struct Arena {
    mapping: Mapping,
}

impl Arena {
    /// An arena of this process alone. A fork gets a copy on write, and must not use it. Untouched bytes cost
    /// no memory.
    pub fn private(capacity_bytes: usize) -> Result<Arena, MapError> {
        Arena::format(capacity_bytes, Mapping::private)
    }

    /// An arena that other processes can [`attach`](Self::attach) to through its [`fd`](Self::fd).
    pub fn shared(capacity_bytes: usize) -> Result<Arena, MapError> {
        Arena::format(capacity_bytes, Mapping::shared)
    }

    /// Maps the arena that another process made and handed over.
    pub fn attach(fd: OwnedFd) -> Result<Arena, MapError> {
        let capacity_bytes = rustix::fs::fstat(&fd).map_or(0, |stat| stat.st_size as u64);
        let mapping = Mapping::of(fd).map_err(|e| MapError::Existing { capacity_bytes, source: e.into() })?;
        if (mapping.len_bytes() as u64) < CAPACITY_MIN {
            return Err(MapError::Foreign);
        }
        let arena = Arena { mapping };
        let header = arena.header();
        // ORDERING: Acquire, pairs with the Release in `format`: the header is whole.
        let known = header.magic.load(Acquire) == MAGIC;
        // ORDERING: Relaxed, written before the magic.
        if !known || header.capacity_bytes.load(Relaxed) != arena.capacity_bytes() {
            return Err(MapError::Foreign);
        }
        Ok(arena)
    }

    /// Maps a shared arena a second time, at another address.
    pub fn map_again(&self) -> Result<Arena, MapError> {
        let fd = self.fd().ok_or(MapError::Private)?;
        let capacity_bytes = self.capacity_bytes();
        let fd = fd.try_clone_to_owned();
        Arena::attach(fd.map_err(|source| MapError::Existing { capacity_bytes, source })?)
    }

    /// Unmaps this process's view by a system call alone. For a signal handler, where nothing may be freed.
    ///
    /// # Safety
    /// No thread uses this view any more, and it is never dropped.
    pub unsafe fn unmap_without_freeing(&self) {
        // SAFETY: the caller's promise.
        unsafe { self.mapping.unmap_without_freeing() };
    }

    fn format(
        capacity_bytes: usize,
        map: impl FnOnce(usize) -> rustix::io::Result<Mapping>,
    ) -> Result<Arena, MapError> {
        let capacity = (capacity_bytes as u64).next_multiple_of(4096);
        if !(CAPACITY_MIN..=CAPACITY_MAX).contains(&capacity) {
            return Err(MapError::Size { capacity_bytes: capacity_bytes as u64, min_bytes: CAPACITY_MIN });
        }
        let mapping = map(capacity as usize)
            .map_err(|e| MapError::Kernel { capacity_bytes: capacity_bytes as u64, source: e.into() })?;
        let header = Header {
            magic: AtomicU64::new(0),
            capacity_bytes: AtomicU64::new(capacity),
            root: AtomicU64::new(0),
            top: Top(AtomicU64::new(HEADER_BYTES)),
            free: std::array::from_fn(|_| FreeList::new()),
            parking: ParkingTable::zeroed(),
        };
        // SAFETY: the mapping is at least HEADER_BYTES long, aligned to a page, and no other thread knows it
        // yet.
        unsafe { mapping.base().cast::<Header>().write(header) };
        let arena = Arena { mapping };
        // ORDERING: Release, pairs with the Acquire in `attach`.
        arena.header().magic.store(MAGIC, Release);
        let header = arena.header();
        watch::report_background(
            arena.mapping.base().as_ptr() as usize,
            capacity as usize,
            "arena: free block",
        );
        watch::report_created(std::slice::from_ref(&header.root));
        watch::report_created(std::slice::from_ref(&header.top));
        watch::report_created(&header.free);
        watch::report_created(std::slice::from_ref(&header.parking));
        Ok(arena)
    }

    fn header(&self) -> &Header {
        // SAFETY: `format` wrote it, or `attach` loads its atomics, for which any bytes are valid.
        unsafe { self.mapping.base().cast::<Header>().as_ref() }
    }

    /// The descriptor to hand to another process; `None` if the arena is private.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.mapping.fd()
    }

    /// Returns true if [`Arena::private`] made it.
    pub fn is_private(&self) -> bool {
        self.mapping.is_private()
    }

    /// Prefaults the pages of a shared arena that other processes have touched, so that this process's first
    /// touch of each costs no page fault.
    pub fn map_present(&self) {
        self.mapping.map_present();
    }

    /// Size of the arena, in bytes.
    #[inline]
    pub fn capacity_bytes(&self) -> u64 {
        self.mapping.len_bytes() as u64
    }

    /// Bytes that were ever handed out, including the header. The figure never falls, since freed blocks stay
    /// blocks.
    pub fn used_bytes(&self) -> u64 {
        // ORDERING: Relaxed, a figure for messages.
        self.header().top.0.load(Relaxed)
    }

    /// Bytes of memory that it uses, according to the kernel. For a private arena, which no other process
    /// writes, its size.
    pub fn touched_bytes(&self) -> u64 {
        let touched =
            self.fd().and_then(|fd| rustix::fs::fstat(fd).ok()).map(|stat| stat.st_blocks as u64 * 512);
        touched.unwrap_or(self.capacity_bytes())
    }

    /// The one pointer that a newly attached process finds by itself. [`Ptr::NULL`] until it is set.
    pub fn root<T: Shared>(&self) -> Ptr<T> {
        // ORDERING: Acquire, pairs with the Release in `set_root`.
        Ptr::from_raw(self.header().root.load(Acquire))
    }

    /// Sets the [`root`](Self::root).
    pub fn set_root<T: Shared>(&self, root: Ptr<T>) {
        // ORDERING: Release, pairs with the Acquire in `root`.
        self.header().root.store(root.raw(), Release);
    }

    /// The table in which threads sleep until a word of this arena changes.
    #[inline]
    pub fn parking(&self) -> &ParkingTable {
        &self.header().parking
    }

    /// The offset of a value in this arena, for instance as the key to park on.
    ///
    /// # Panics
    /// If it does not lie in this arena.
    #[inline]
    pub fn offset_of<T: Shared>(&self, thing: &T) -> Ptr<T> {
        let offset = (thing as *const T as usize).wrapping_sub(self.mapping.base().as_ptr() as usize) as u64;
        assert!(offset < self.capacity_bytes(), "not in this arena");
        Ptr::from_raw(offset)
    }

    /// The value at `ptr`.
    ///
    /// # Panics
    /// If `ptr` is null, misaligned or outside the arena.
    #[inline]
    pub fn get<T: Shared>(&self, ptr: Ptr<T>) -> &T {
        match self.try_get(ptr) {
            Some(thing) => thing,
            None => bad_ptr(ptr.raw()),
        }
    }

    /// The value at `ptr`, or `None` if `ptr` is null, misaligned or outside: for offsets read from memory
    /// that may have been freed.
    #[inline]
    pub fn try_get<T: Shared>(&self, ptr: Ptr<T>) -> Option<&T> {
        if !self.holds(ptr, 1) {
            return None;
        }
        // SAFETY: in bounds and aligned; T is Shared, so any bytes are valid, and shared access is allowed.
        Some(unsafe { self.mapping.base().add(ptr.raw() as usize).cast::<T>().as_ref() })
    }

    /// The `n` values from `ptr` on.
    ///
    /// # Panics
    /// If `ptr` is null or misaligned, or the last of them lies outside the arena.
    #[inline]
    pub fn slice<T: Shared>(&self, ptr: Ptr<T>, n: usize) -> &[T] {
        match self.try_slice(ptr, n) {
            Some(things) => things,
            None => bad_ptr(ptr.raw()),
        }
    }

    /// The `n` values from `ptr` on, or `None` if `ptr` is null or misaligned, or the last of them lies
    /// outside; see [`Arena::try_get`].
    #[inline]
    pub fn try_slice<T: Shared>(&self, ptr: Ptr<T>, n: usize) -> Option<&[T]> {
        if !self.holds(ptr, n) {
            return None;
        }
        // SAFETY: as in `try_get`, for n elements.
        Some(unsafe {
            std::slice::from_raw_parts(self.mapping.base().add(ptr.raw() as usize).cast::<T>().as_ptr(), n)
        })
    }

    /// Prefetches the line at any `offset`. Does nothing if it is outside.
    #[inline]
    pub fn prefetch(&self, offset: u64) {
        prefetch(self.mapping.base().as_ptr().wrapping_add(offset as usize));
    }

    #[inline]
    fn holds<T>(&self, ptr: Ptr<T>, n: usize) -> bool {
        let room = self.capacity_bytes().saturating_sub(ptr.raw());
        let fits = if n == 1 {
            size_of::<T>() as u64 <= room
        } else {
            n as u64 <= room / size_of::<T>().max(1) as u64
        };
        ptr.raw() >= HEADER_BYTES && ptr.raw().is_multiple_of(align_of::<T>() as u64) && fits
    }

    /// Allocates a `T`.
    #[track_caller]
    pub fn alloc<T: Shared>(&self, value: T) -> Result<Ptr<T>, Full> {
        let block = self.take(self.class_of::<T>(1)?)?;
        // SAFETY: only this caller has the block, and it is of T's class.
        Ok(unsafe { self.fill(block, value) })
    }

    /// Allocates `n` values, the `i`th made by `make(i)`; returns the first.
    #[track_caller]
    pub fn alloc_slice<T: Shared>(&self, n: usize, make: impl FnMut(usize) -> T) -> Result<Ptr<T>, Full> {
        let block = self.take(self.class_of::<T>(n)?)?;
        // SAFETY: only this caller has the block, and it is of the class of n Ts.
        Ok(unsafe { self.fill_slice(block, n, make) })
    }

    /// Allocates `n` zero values; returns the first. A large allocation touches no memory.
    #[track_caller]
    pub fn alloc_zeroed<T: Zeroed>(&self, n: usize) -> Result<Ptr<T>, Full> {
        let block = self.take(self.class_of::<T>(n)?)?;
        // SAFETY: only this caller has the block, and it is of the class of n Ts.
        Ok(unsafe { self.fill_zeroed(block, n) })
    }

    /// Frees `n` values that were allocated together at `ptr`, by this arena or a heap of it.
    ///
    /// # Safety
    /// They were allocated so, are not yet freed, and no caller relies on them any more. Readers
    /// that may still load them obey the reuse rule (module header of `arena`).
    pub unsafe fn free<T: Shared>(&self, ptr: Ptr<T>, n: usize) {
        let class = self.class_of::<T>(n).expect("what was allocated has a class");
        self.header().free[class.index()].push(|block| self.links(block), ptr.raw(), 1);
    }

    #[inline]
    pub(crate) fn class_of<T>(&self, n: usize) -> Result<Class, Full> {
        const { assert!(align_of::<T>() <= 64 && !std::mem::needs_drop::<T>()) };
        let bytes = (n as u64).saturating_mul(size_of::<T>() as u64);
        Class::of(bytes).ok_or(Full { wanted_bytes: bytes, capacity_bytes: self.capacity_bytes() })
    }

    /// Takes a block for one owner. The rest of its batch returns to the shared list.
    fn take(&self, class: Class) -> Result<Block, Full> {
        #[cfg(feature = "planted")]
        if crate::planted::is_refused() {
            return Err(Full { wanted_bytes: class.bytes(), capacity_bytes: self.capacity_bytes() });
        }
        let (first, count, fresh) = self.take_batch(class)?;
        self.check_block(class, first);
        if count > 1 {
            // ORDERING: Relaxed, the batch is ours (F2 of `free_list`).
            let rest = self.links(first).next.load(Relaxed);
            self.give_batch(class, rest, count - 1);
        }
        Ok(Block { offset: first, untouched: fresh && count == 1 })
    }

    /// A batch: first block, count, and true if it is fresh memory from the top.
    pub(crate) fn take_batch(&self, class: Class) -> Result<(u64, u64, bool), Full> {
        if let Some((first, count)) = self.header().free[class.index()].pop(|block| self.links(block)) {
            if !(1..=class.batch()).contains(&count) {
                bad_ptr(first);
            }
            return Ok((first, count, false));
        }
        let (first, count) = self.carve(class, class.batch()).or_else(|_| self.carve(class, 1))?;
        Ok((first, count, true))
    }

    pub(crate) fn give_batch(&self, class: Class, first: u64, count: u64) {
        self.header().free[class.index()].push(|block| self.links(block), first, count);
    }

    /// Makes `count` new blocks, as one list, at the top.
    fn carve(&self, class: Class, count: u64) -> Result<(u64, u64), Full> {
        let stride = class.bytes() + LINK_BYTES;
        let full = Full { wanted_bytes: count * class.bytes(), capacity_bytes: self.capacity_bytes() };
        let top = &self.header().top.0;
        // ORDERING: Relaxed throughout, O1.
        let mut now = top.load(Relaxed);
        let (start, end) = loop {
            let start = now.checked_next_multiple_of(class.align().max(64)).ok_or(full)?;
            if start < HEADER_BYTES {
                bad_ptr(start);
            }
            let end = stride.checked_mul(count).and_then(|len| len.checked_add(start)).ok_or(full)?;
            if end > self.capacity_bytes() {
                return Err(full);
            }
            match top.compare_exchange_weak(now, end, Relaxed, Relaxed) {
                Ok(_) => break (start, end),
                Err(other) => now = other,
            }
        };
        // A large block may stay empty.
        if cfg!(not(loom)) && class.is_small() {
            self.mapping.enlarge_pages(now, end);
        }
        let first = start + LINK_BYTES;
        for i in 0..count {
            let block = first + i * stride;
            let next = if i + 1 < count { block + stride } else { 0 };
            #[cfg(loom)]
            // SAFETY: fresh memory that no other thread has; LINK_BYTES before the block are for the links.
            unsafe {
                self.at::<Links>(block - LINK_BYTES).write(Links::new())
            };
            if count > 1 {
                // ORDERING: Relaxed, the block is ours (F2 of `free_list`).
                self.links(block).next.store(next, Relaxed);
            }
        }
        Ok((first, count))
    }

    /// Returns false if `first` cannot head a list of `count` free blocks of this class. True is not certain.
    pub(crate) fn could_be_list(&self, class: Class, first: u64, count: u64) -> bool {
        let mut at = first;
        for _ in 0..count.min(class.batch()) {
            let fits = at.checked_add(class.bytes()).is_some_and(|end| end <= self.used_bytes());
            if at < HEADER_BYTES || !at.is_multiple_of(class.align()) || !fits {
                return false;
            }
            // ORDERING: Relaxed, if it is a block, it is the caller's.
            at = self.links(at).next.load(Relaxed);
        }
        count <= class.batch()
    }

    /// Panics if no block of that class can begin there: other processes may overwrite the lists of free
    /// blocks.
    #[inline]
    pub(crate) fn check_block(&self, class: Class, block: u64) {
        let fits = block >= HEADER_BYTES && block.saturating_add(class.bytes()) <= self.capacity_bytes();
        if !fits || block & (class.align() - 1) != 0 {
            bad_ptr(block);
        }
    }

    /// The links of a free block.
    #[inline]
    pub(crate) fn links(&self, block: u64) -> &Links {
        let at = block.wrapping_sub(LINK_BYTES);
        let last = self.capacity_bytes() - HEADER_BYTES - size_of::<Links>() as u64;
        if at.wrapping_sub(HEADER_BYTES) > last || !at.is_multiple_of(16) {
            bad_ptr(block);
        }
        // SAFETY: in bounds and aligned, whatever the lists of free blocks contain; links are atomics only.
        unsafe { &*self.at::<Links>(at) }
    }

    #[inline]
    fn at<T>(&self, offset: u64) -> *mut T {
        debug_assert!(offset < self.capacity_bytes());
        // SAFETY: offsets of blocks are inside the mapping (`check_block`, `links`).
        unsafe { self.mapping.base().as_ptr().add(offset as usize).cast() }
    }

    /// # Safety
    /// `block` is owned by the caller and of the class of a `T`.
    #[inline]
    #[track_caller]
    pub(crate) unsafe fn fill<T: Shared>(&self, block: Block, value: T) -> Ptr<T> {
        // SAFETY: large enough, aligned, unshared (caller).
        unsafe { self.at::<T>(block.offset).write(value) };
        self.named(block, 1)
    }

    /// # Safety
    /// `block` is owned by the caller and of the class of `n` `T`s.
    #[track_caller]
    pub(crate) unsafe fn fill_slice<T: Shared>(
        &self,
        block: Block,
        n: usize,
        mut make: impl FnMut(usize) -> T,
    ) -> Ptr<T> {
        let first = self.at::<T>(block.offset);
        for i in 0..n {
            // SAFETY: inside the block (caller), unshared.
            unsafe { first.add(i).write(make(i)) };
        }
        self.named(block, n)
    }

    /// # Safety
    /// `block` is owned by the caller and of the class of `n` `T`s.
    #[track_caller]
    pub(crate) unsafe fn fill_zeroed<T: Zeroed>(&self, block: Block, n: usize) -> Ptr<T> {
        if cfg!(loom) {
            // SAFETY: passed on.
            return unsafe { self.fill_slice(block, n, |_| T::zeroed()) };
        }
        let bytes = (n * size_of::<T>()) as u64;
        if !block.untouched {
            let by_page = bytes >= PUNCH_BYTES_MIN;
            // SAFETY: a class beyond 64 KiB is whole pages, and only this caller has the block.
            if !by_page || !unsafe { self.mapping.punch(block.offset, bytes.next_multiple_of(4096)) } {
                // SAFETY: inside the block (caller), unshared.
                unsafe { self.at::<u8>(block.offset).write_bytes(0, bytes as usize) };
            }
        }
        self.named(block, n)
    }

    /// Tells the watcher the use of the block.
    #[inline]
    #[track_caller]
    fn named<T: Shared>(&self, block: Block, n: usize) -> Ptr<T> {
        let ptr = Ptr::from_raw(block.offset);
        if watch::is_on() {
            watch::report_created(self.slice(ptr, n));
        }
        ptr
    }
}

/// From this size on, a used block is zeroed by releasing its pages: most of a large table is never touched.
const PUNCH_BYTES_MIN: u64 = 1 << 20;

/// A block that its holder owns.
#[derive(Clone, Copy)]
pub(crate) struct Block {
    pub(crate) offset: u64,
    /// Not written since the arena was made: still zero (A2).
    pub(crate) untouched: bool,
}

/// Prefetches the line at an address, which may be any number.
#[inline]
pub fn prefetch<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which faults at no address.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(at.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

/// As [`prefetch`], for writing: the CPU that has the line loses it. For a lock that is taken after another
/// wait.
#[inline]
pub fn prefetch_to_write<T>(at: *const T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which faults at no address; a processor without it does nothing.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_ET0 }>(at.cast())
    };
    #[cfg(not(target_arch = "x86_64"))]
    let _ = at;
}

#[cold]
#[inline(never)]
fn bad_ptr(raw: u64) -> ! {
    panic!("offset {raw:#x} names nothing in this arena");
}
