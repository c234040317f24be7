//! The region: every load and store of persistent memory.
//!
//! State       the mapping, the processor's features, and for some backends a watcher of stores.
//! Invariants  I1  `base` is valid for `len_bytes` as long as `mapping` lives, which this struct holds.
//!             I2  stores are allowed below `writable_bytes`: the length, or 0 for a read-only region. One comparison.
//!             I3  real memory has no watcher: each store costs one branch that is always predicted correctly.
//!             I4  loads are allowed below `readable_bytes`: the length, or 0 for a probed region, whose loads are noted.
//!                 So noting costs other regions nothing.
//!             I5  the instructions of stores, flushes and fences follow the region's [`Durability`]. If that is the death of
//!                 processes, stores are plain and a fence only orders.
//! Orderings   O1  `store_u64` (Release) pairs with `load_u64` (Acquire).

mod stores;
mod watcher;

use crate::caller::{self, BadBuffer};
use crate::cpu::{self, Cpu};
use crate::dirty::{DirtyPages, Failure};
use crate::domain::Backend;
use crate::durability::{Durability, Reach};
use crate::failing_disk::Disk;
use crate::fault_handler::HandledRegion;
use crate::huge;
use crate::mapping::Mapping;
use crate::probe::ProbeLog;
use crate::set_once::SetOnce;
use crate::simulator::{Recorder, StoreKind};
use crate::stale_cache::StaleCache;
#[cfg(shuttle)]
use crate::steps::{before_store, step};
use crate::untouched::Untouched;
use crate::{BLOCK_BYTES, Error, LINE_BYTES, Pos};
use heddle_signatures::Claim;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use stores::split;
use watcher::Watcher;

/// Persistent memory, shared among threads. A store is durable once its own thread has fenced.
///
/// Positions outside the region panic, and so do positions that are not aligned as a method requires, and
/// stores to a read-only region.
#[derive(Debug)]
pub struct Region {
    base: *mut u8,
    len_bytes: u64,
    writable_bytes: u64,
    readable_bytes: u64,
    cpu: Cpu,
    watcher: Option<Box<Watcher>>,
    /// Declared before the mapping: it must be dropped first.
    guarded: Option<HandledRegion>,
    mapping: Arc<Mapping>,
    /// Declared after the mapping: it must be dropped later.
    stale_cache: Option<StaleCache>,
    source: Source,
    /// Only for a region that was attached.
    untouched: Option<Untouched>,
    /// The value of [`Region::huge_bytes`], which takes the kernel a walk through all pages.
    huge: SetOnce<Option<u64>>,
}

/// The parts from which a region is made.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) backend: Backend,
    pub(crate) durability: Durability,
    pub(crate) read_only: bool,
    pub(crate) file: Option<OwnedFd>,
    pub(crate) path: Option<PathBuf>,
    pub(crate) failure: Failure,
    /// Other names of the same bytes.
    pub(crate) claim: Option<Arc<Claim>>,
}

impl Source {
    /// The reach that a fence needs.
    fn reach(&self) -> Reach {
        #[cfg(feature = "planted")]
        if let Some(reach) = crate::planted::reach() {
            return reach;
        }
        match (self.backend, self.durability) {
            // The kernel writes back a file's pages, whatever the cache holds.
            (Backend::File, _) | (_, Durability::Process) => Reach::Memory,
            (Backend::DaxCached, Durability::Power) => Reach::Cache,
            (Backend::Memory | Backend::Dax | Backend::Simulated, Durability::Power) => Reach::Controller,
        }
    }

    fn simulated() -> Source {
        Source {
            backend: Backend::Simulated,
            durability: Durability::Power,
            read_only: false,
            file: None,
            path: None,
            failure: Failure::default(),
            claim: None,
        }
    }
}

// SAFETY: the memory is accessed only by assembly, volatile and atomic accesses; the caller's protocol
// defines the meaning of races.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(mapping: Mapping, source: Source) -> Region {
        let watcher = (source.backend == Backend::File).then(|| {
            let path = source.path.clone().unwrap_or_default();
            Watcher::Dirty(DirtyPages::new(mapping.len_bytes(), path, source.failure.clone(), None))
        });
        let guarded = HandledRegion::new(mapping.base() as usize, mapping.len_bytes(), &source.failure);
        let stale_cache = match (&source.file, &watcher) {
            (Some(file), Some(_)) => StaleCache::of(file.as_fd(), &source.failure),
            _ => None,
        };
        Region { guarded, stale_cache, ..Region::watched(Arc::new(mapping), source, watcher) }
    }

    pub(crate) fn recorded(mapping: Arc<Mapping>, recorder: Arc<Recorder>) -> Region {
        Region::watched(mapping, Source::simulated(), Some(Watcher::Recorder(recorder)))
    }

    pub(crate) fn on_disk(mapping: Arc<Mapping>, disk: Arc<Disk>, failure: Failure) -> Region {
        let dirty = {
            let path = PathBuf::from("(failing disk)");
            DirtyPages::new(mapping.len_bytes(), path, failure.clone(), Some(disk))
        };
        let source = Source { backend: Backend::File, failure, ..Source::simulated() };
        Region::watched(mapping, source, Some(Watcher::Dirty(dirty)))
    }

    pub(crate) fn noted(mapping: Arc<Mapping>, log: Arc<ProbeLog>) -> Region {
        let source = Source { failure: log.failure.clone(), ..Source::simulated() };
        Region::watched(mapping, source, Some(Watcher::Probe(log)))
    }

    pub(crate) fn unwatched(mapping: Arc<Mapping>, log: &ProbeLog) -> Region {
        Region::watched(mapping, Source { failure: log.failure.clone(), ..Source::simulated() }, None)
    }

    fn watched(mapping: Arc<Mapping>, source: Source, watcher: Option<Watcher>) -> Region {
        let len_bytes = mapping.len_bytes();
        Region {
            base: mapping.base(),
            len_bytes,
            writable_bytes: if source.read_only { 0 } else { len_bytes },
            readable_bytes: if matches!(watcher, Some(Watcher::Probe(_))) { 0 } else { len_bytes },
            cpu: Cpu::detect(source.reach()),
            watcher: watcher.map(Box::new),
            guarded: None,
            mapping,
            stale_cache: None,
            source,
            untouched: None,
            huge: SetOnce::default(),
        }
    }

    /// Another handle on the same memory, for a region whose memory cannot be mapped twice.
    pub(crate) fn simulated_again(&self) -> Option<Region> {
        match self.watcher.as_deref() {
            Some(Watcher::Recorder(recorder)) => {
                Some(Region::recorded(self.mapping.clone(), recorder.clone()))
            }
            Some(Watcher::Probe(log)) => Some(Region::noted(self.mapping.clone(), log.clone())),
            Some(Watcher::Dirty(DirtyPages { disk: Some(disk), .. })) => {
                Some(Region::on_disk(self.mapping.clone(), disk.clone(), self.source.failure.clone()))
            }
            _ => None,
        }
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// The same region, none of whose pages this process has touched yet.
    pub(crate) fn untouched(mut self) -> Region {
        // In a file, pages that are made writable would have to be written back.
        let worth_it = !self.is_read_only() && self.backend() != Backend::File;
        self.untouched = worth_it.then(|| Untouched::new(self.len_bytes));
        self
    }

    /// Announces stores to a range: if this process has not touched it yet, its page faults are taken
    /// together now.
    #[inline]
    pub fn expect_stores(&self, at: Pos, len_bytes: u64) {
        if let Some(untouched) = &self.untouched
            && len_bytes > 0
        {
            self.checked_store(at, len_bytes);
            untouched.touch(&self.mapping, at.0, len_bytes);
        }
    }

    /// Maps all pages of an attached region now, which takes about a third of a second for each GiB in pages of 4 KiB. For a
    /// process that will store to most of it and cannot afford slow first stores. A region that this process
    /// has opened itself is mapped already; a file region that is written back never is.
    pub fn map_all(&self) {
        if let Some(untouched) = &self.untouched {
            untouched.touch_all(&self.mapping);
        }
    }

    /// Unmaps the region by system calls alone. For a signal handler, where nothing may be freed.
    ///
    /// # Safety
    /// No thread uses the region any more, and it is never dropped.
    pub unsafe fn unmap_without_freeing(&self) {
        if let Some(guarded) = &self.guarded {
            guarded.forget();
        }
        // SAFETY: the caller's promise.
        unsafe { self.mapping.unmap_without_freeing() };
    }

    /// Length in bytes, whole blocks.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Number of bytes that this process had mapped by pages of 2 MiB or more at the first call. `None`: the
    /// region is not in memory, is mapped on first touch, or the kernel does not tell.
    pub fn huge_bytes(&self) -> Option<u64> {
        let from = self.base_address() as u64;
        let whole = self.backend() == Backend::Memory && self.untouched.is_none();
        if self.huge.get().is_none() {
            // If another thread was faster, its value stays.
            let _ = self.huge.set(whole.then(|| huge::huge_bytes(from..from + self.len_bytes)).flatten());
        }
        self.huge.get().copied().flatten()
    }

    /// Address of the region in this process, as a number: for tools that look at memory from outside.
    pub fn base_address(&self) -> usize {
        self.base as usize
    }

    /// The mechanism that makes a store durable here.
    pub fn backend(&self) -> Backend {
        self.source.backend
    }

    /// The durability of its stores. All processes that map it keep the same.
    pub fn durability(&self) -> Durability {
        self.source.durability
    }

    /// The file or device; `None` for anonymous and simulated regions.
    pub fn path(&self) -> Option<&Path> {
        self.source.path.as_deref()
    }

    /// The descriptor to hand to another process (see [`Region::attach`]); `None` if the region is simulated.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.source.file.as_ref().map(AsFd::as_fd)
    }

    /// Closes the descriptor, which the mapping and the lock do not need. For programs that may close it
    /// without our knowledge.
    pub fn close_file(&mut self) {
        self.source.file = None;
        self.stale_cache = None;
    }

    /// Returns true if stores are refused (by a panic).
    pub fn is_read_only(&self) -> bool {
        self.source.read_only
    }

    /// The failure, if a fence could not do its work (only with [`Backend::File`]), or stores do not reach
    /// the media for another reason ([`install_fault_handler`](crate::install_fault_handler)). Once set it stays. After a failed fence
    /// stores have no effect, so nothing reaches the media that relies on what was lost.
    pub fn failed(&self) -> Option<Error> {
        if let Some(error) = self.source.failure.get() {
            return Some(error.clone());
        }
        let path = || self.path().map_or_else(|| PathBuf::from("(memory)"), Path::to_path_buf);
        self.source.failure.lost.any_replaced().then(|| Error::Lost { path: path() })
    }

    /// Calls `hear` when a fence first fails (only with [`Backend::File`]), before it returns.
    pub fn on_failed_fence(&self, hear: impl Fn() + Send + Sync + 'static) {
        if self.watcher.is_some() {
            self.source.failure.on_failed_fence(Box::new(hear));
        }
    }

    /// As [`Region::failed`], for a caller that is about to rely on its fence. A region in memory has no fence that can fail: there it
    /// costs one branch.
    #[inline(always)]
    pub fn failed_fence(&self) -> Option<Error> {
        self.watcher.as_ref().and_then(|_| self.failed())
    }

    /// Returns true if a byte of a range is lost: the media could not serve a load, which got
    /// [`LOST_WORD`](crate::LOST_WORD)s. Called after the load.
    #[inline]
    pub fn lost(&self, at: Pos, len_bytes: u64) -> bool {
        self.source.failure.lost.hits(at.0, len_bytes)
    }

    /// Stores bytes, at any alignment and length; past the cache if the region's durability requires that, or
    /// if they are many. The stores are durable, and visible to others in order, only after
    /// [`Region::fence`].
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    pub fn nt_write(&self, at: Pos, bytes: &[u8]) {
        // The program's own memory is always mapped.
        let _all = self.nt_write_user(at, bytes, bytes.len());
    }

    /// As [`Region::nt_write`], from a caller's memory, which may not be mapped. The bytes are one of the
    /// pieces of `whole_bytes` which are stored together; that length decides how they are stored.
    ///
    /// # Errors
    /// [`BadBuffer`], in a process that handles faults with [`after_fault`](crate::after_fault);
    /// otherwise the process gets the fault. The content of the range is undefined then.
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    pub fn nt_write_user(&self, at: Pos, bytes: &[u8], whole_bytes: usize) -> Result<(), BadBuffer> {
        self.checked_store(at, bytes.len() as u64);
        #[cfg(shuttle)]
        let (at, bytes) = {
            let (first, second) = bytes.split_at(bytes.len() / 2);
            step();
            // SAFETY: checked above; the bytes are a live slice, which region memory never is.
            unsafe { self.store_range(at.0, first.as_ptr(), first.len(), whole_bytes)? }
            step();
            (at.plus(first.len() as u64), second)
        };
        // SAFETY: checked above; the bytes are a live slice, which region memory never is.
        unsafe { self.store_range(at.0, bytes.as_ptr(), bytes.len(), whole_bytes) }
    }

    /// Stores one line, word by word; `at` is a multiple of 64. As [`Region::nt_write`].
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    pub fn nt_line(&self, at: Pos, words: &[u64; 8]) {
        self.checked_store(at, LINE_BYTES as u64);
        assert!(at.is_aligned(LINE_BYTES as u64), "a line at {at:?} would straddle two");
        // SAFETY: checked above.
        let store = || unsafe { self.cpu.line(self.address(at.0), words) };
        self.store(StoreKind::NonTemporal, at.0, LINE_BYTES, store);
    }

    /// Stores zeros. As [`Region::nt_write`].
    #[cfg_attr(feature = "planted", track_caller)]
    pub fn nt_zero(&self, at: Pos, len_bytes: u64) {
        self.checked_store(at, len_bytes);
        let (head, body, tail) = split(at.0, len_bytes as usize);
        // SAFETY: the parts lie within the checked range; head and tail are shorter than a word.
        unsafe {
            self.edge(at.0, [0; 8], head);
            self.zero_words(at.0 + head as u64, body);
            self.edge(at.0 + (head + body) as u64, [0; 8], tail);
        }
    }

    /// Copies within the region; the ranges do not overlap. As [`Region::nt_write`].
    #[cfg_attr(feature = "planted", track_caller)]
    pub fn nt_copy(&self, to: Pos, from: Pos, len_bytes: u64) {
        self.checked_store(to, len_bytes);
        self.checked_load(from, len_bytes);
        assert!(
            to.0.abs_diff(from.0) >= len_bytes,
            "a copy from {from:?} to {to:?} of {len_bytes} bytes overlaps itself"
        );
        // SAFETY: checked above. A load that fails in this region is not a caller's fault (`lost`).
        let _all =
            unsafe { self.store_range(to.0, self.address(from.0), len_bytes as usize, len_bytes as usize) };
    }

    /// Stores one word atomically (Release) and starts its write-back; `at` is a multiple of 8. Durable after
    /// [`Region::fence`].
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    pub fn store_u64(&self, at: Pos, value: u64) {
        self.checked_store(at, 8);
        assert!(at.is_aligned(8), "a word at {at:?} could tear");
        // SAFETY: checked above.
        let word = unsafe { AtomicU64::from_ptr(self.address(at.0).cast()) };
        // ORDERING: Release, pairs with the Acquire in `load_u64` (O1).
        self.store(StoreKind::Cached, at.0, 8, || word.store(value, Ordering::Release));
        // SAFETY: checked above.
        unsafe { self.flush(at.0, 8) }
    }

    /// Stores one line through the cache and starts its write-back; `at` is a multiple of 64. For a line that
    /// is stored to again soon: a line stored past the cache would have to be fetched first. Durable after
    /// [`Region::fence`].
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    pub fn store_line(&self, at: Pos, words: &[u64; 8]) {
        self.checked_store(at, LINE_BYTES as u64);
        assert!(at.is_aligned(LINE_BYTES as u64), "a line at {at:?} would straddle two");
        for (i, value) in words.iter().enumerate() {
            // SAFETY: checked above.
            let word = unsafe { AtomicU64::from_ptr(self.address(at.0 + i as u64 * 8).cast()) };
            // ORDERING: Release, pairs with the Acquire in `load_u64` (O1).
            self.store(StoreKind::Cached, at.0 + i as u64 * 8, 8, || word.store(*value, Ordering::Release));
        }
        // SAFETY: checked above.
        unsafe { self.flush(at.0, LINE_BYTES) }
    }

    /// Returns when all earlier stores of this thread are durable; see [`Region::failed`] for
    /// [`Backend::File`]. It orders stores only with stores: a later load may still be served before them.
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    pub fn fence(&self) {
        #[cfg(shuttle)]
        step();
        self.cpu.fence();
        if let Some(watcher) = &self.watcher {
            watcher.fence(self.base);
        }
    }

    /// As [`Region::fence`]; on Intel's processors this thread also stalls until the stores are done. Useful
    /// after a large copy past the cache, if stores to cached lines follow: without it the whole takes
    /// longer on those of 2023.
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    pub fn fence_and_wait(&self) {
        #[cfg(shuttle)]
        step();
        self.cpu.fence_and_wait();
        if let Some(watcher) = &self.watcher {
            watcher.fence(self.base);
        }
    }

    /// Starts the write-back of any thread's stores to `[at, at + len_bytes)`: for stores whose own thread
    /// died before its fence. Durable after [`Region::fence`].
    #[cfg_attr(feature = "planted", track_caller)]
    pub fn flush_unfenced(&self, at: Pos, len_bytes: u64) {
        self.checked_store(at, len_bytes);
        if len_bytes == 0 {
            return;
        }
        if let Some(Watcher::Dirty(pages)) = self.watcher.as_deref() {
            pages.note(at.0, len_bytes);
        }
        // SAFETY: checked above.
        unsafe { self.flush(at.0, len_bytes as usize) }
    }

    /// Copies out of the region. Bytes that another thread is storing meanwhile may be old, new or mixed.
    #[inline]
    pub fn read(&self, at: Pos, into: &mut [u8]) {
        // The program's own memory is always mapped.
        let _all = self.read_out(at, into);
    }

    /// As [`Region::read`], to a caller's memory, which may not be mapped.
    ///
    /// # Errors
    /// [`BadBuffer`], in a process that handles faults with [`after_fault`](crate::after_fault);
    /// otherwise the process gets the fault.
    #[inline]
    pub fn read_out(&self, at: Pos, into: &mut [u8]) -> Result<(), BadBuffer> {
        self.checked_load(at, into.len() as u64);
        #[cfg(shuttle)]
        let (at, into) = {
            let (first, second) = into.split_at_mut(into.len() / 2);
            step();
            // SAFETY: checked above; the target is a live slice, which region memory never is.
            unsafe { self.cpu.load(first.as_mut_ptr(), self.address(at.0), first.len()) };
            step();
            (at.plus(first.len() as u64), second)
        };
        // SAFETY: checked above; the target is a slice, which region memory never is.
        caller::all(unsafe { self.cpu.load(into.as_mut_ptr(), self.address(at.0), into.len()) })
    }

    /// Fills a caller's memory with zeros, as the content of a hole.
    ///
    /// # Errors
    /// As [`Region::read_out`].
    pub fn zero_out(&self, into: &mut [u8]) -> Result<(), BadBuffer> {
        const ZEROS: &[u8; BLOCK_BYTES] = &[0; BLOCK_BYTES];
        into.chunks_mut(BLOCK_BYTES).try_for_each(|part| {
            // SAFETY: no longer than the zeros; the target is a slice.
            caller::all(unsafe { self.cpu.load(part.as_mut_ptr(), ZEROS.as_ptr(), part.len()) })
        })
    }

    /// Loads one word atomically (Acquire); `at` is a multiple of 8.
    #[inline]
    pub fn load_u64(&self, at: Pos) -> u64 {
        self.checked_load(at, 8);
        assert!(at.is_aligned(8), "a word at {at:?} could tear");
        // SAFETY: checked above.
        // ORDERING: Acquire, pairs with the Release in `store_u64` (O1).
        unsafe { AtomicU64::from_ptr(self.address(at.0).cast()).load(Ordering::Acquire) }
    }

    /// Loads the eight words of a line, each atomically, not all together; `at` is a multiple of 64.
    #[inline]
    pub fn line(&self, at: Pos) -> [u64; 8] {
        self.checked_load(at, LINE_BYTES as u64);
        assert!(at.is_aligned(LINE_BYTES as u64), "a line at {at:?} would straddle two");
        std::array::from_fn(|slot| {
            // SAFETY: checked above; eight words are within the line.
            let word = unsafe { AtomicU64::from_ptr(self.address(at.0).cast::<u64>().add(slot)) };
            // ORDERING: Relaxed; a record is verified by its checksum, not by when it was loaded.
            word.load(Ordering::Relaxed)
        })
    }

    #[inline]
    fn checked_store(&self, at: Pos, len_bytes: u64) {
        if at.0.checked_add(len_bytes).is_none_or(|end| end > self.writable_bytes) {
            self.refuse(at, len_bytes, self.writable_bytes)
        }
    }

    #[inline]
    fn checked_load(&self, at: Pos, len_bytes: u64) {
        if at.0.checked_add(len_bytes).is_none_or(|end| end > self.readable_bytes) {
            self.note_load(at, len_bytes)
        }
    }

    /// Handles a load that is outside, or in a region whose loads are noted (I4).
    #[cold]
    fn note_load(&self, at: Pos, len_bytes: u64) {
        match self.watcher.as_deref() {
            Some(Watcher::Probe(log))
                if at.0.checked_add(len_bytes).is_some_and(|end| end <= self.len_bytes) =>
            {
                log.note_load(at.0, len_bytes);
            }
            _ => self.refuse(at, len_bytes, self.len_bytes),
        }
    }

    #[cold]
    fn refuse(&self, at: Pos, len_bytes: u64, limit_bytes: u64) -> ! {
        panic!(
            "{len_bytes} bytes at {at:?} of a region of {} bytes, {limit_bytes} of them accessible",
            self.len_bytes
        )
    }

    #[inline]
    fn address(&self, at: u64) -> *mut u8 {
        self.base.wrapping_add(at as usize)
    }

    /// Runs `store`, which stores exactly `[at, at + len_bytes)`, so that a watcher sees it.
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    fn store(&self, kind: StoreKind, at: u64, len_bytes: usize, store: impl Fn()) {
        #[cfg(shuttle)]
        before_store();
        match &self.watcher {
            None => store(),
            Some(watcher) => watcher.store(kind, at, len_bytes, &store),
        }
    }

    /// # Safety
    /// The range is inside the region.
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    unsafe fn flush(&self, at: u64, len_bytes: usize) {
        #[cfg(feature = "planted")]
        if crate::planted::left_out() {
            return;
        }
        match self.watcher.as_deref() {
            Some(Watcher::Recorder(recorder)) => recorder.flush(cpu::lines(at, len_bytes, LINE_BYTES)),
            // SAFETY: the caller's promise; lines do not cross the page on which a mapping ends.
            _ => unsafe { self.cpu.flush(self.address(at), len_bytes) },
        }
    }
}
