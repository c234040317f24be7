//! The region: every load and store of persistent memory.
//!
//! State       the mapping, what the processor offers, and for some backends a watcher of stores.
//! Invariants  I1  `base` is valid for `len_bytes` as long as `mapping` lives, which this struct holds.
//!             I2  stores are allowed below `writable_bytes`: the length, or 0 for a read-only region. One comparison.
//!             I3  real memory has no watcher: each store costs one branch that is always predicted.
//!             I4  loads are allowed below `readable_bytes`: the length, or 0 for a region whose loads are noted (a probed one):
//!                 noting costs other regions nothing.
//!             I5  the instructions of stores, flushes and fences follow the region's promise ([`Durability`]): where that is the death of
//!                 processes, stores are plain and a fence orders, no more.
//! Orderings   O1  `store_u64` (Release) pairs with `load_u64` (Acquire).

mod stores;
mod watcher;

use crate::caller::{self, BadBuffer};
use crate::cpu::{self, Cpu};
use crate::dirty::{DirtyPages, Failure};
use crate::domain::Backend;
use crate::durability::{Durability, Reach};
use crate::huge;
use crate::mapping::Mapping;
use crate::probe::ProbeLog;
use crate::simulator::{Recorder, StoreKind};
#[cfg(shuttle)]
use crate::steps::{before_store, step};
use crate::survive::Guarded;
use crate::untouched::Untouched;
use crate::{BLOCK_BYTES, Error, LINE_BYTES, Pos};
use heddle_media::Claim;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use stores::split;
use watcher::Watcher;

/// Persistent memory. Shared freely among threads; a store is durable once its own thread has fenced.
///
/// Positions outside the region, and positions not aligned as a method asks, panic. So do stores to a read-only region.
#[derive(Debug)]
pub struct Region {
    base: *mut u8,
    len_bytes: u64,
    writable_bytes: u64,
    readable_bytes: u64,
    cpu: Cpu,
    watcher: Option<Box<Watcher>>,
    /// Before the mapping: it must not outlive that.
    guarded: Option<Guarded>,
    mapping: Arc<Mapping>,
    source: Source,
    /// Of a region that was attached.
    untouched: Option<Untouched>,
    /// See [`Region::huge_bytes`]: looking takes the kernel a walk through all pages.
    huge: OnceLock<Option<u64>>,
}

/// Where a region comes from.
#[derive(Debug)]
pub(crate) struct Source {
    pub(crate) backend: Backend,
    pub(crate) durability: Durability,
    pub(crate) read_only: bool,
    pub(crate) file: Option<OwnedFd>,
    pub(crate) path: Option<PathBuf>,
    pub(crate) failure: Failure,
    /// Other names of the bytes.
    pub(crate) claim: Option<Arc<Claim>>,
}

impl Source {
    /// What the processor must do for a fence.
    fn reach(&self) -> Reach {
        #[cfg(feature = "planted")]
        if let Some(reach) = crate::planted::reach() {
            return reach;
        }
        match (self.backend, self.durability) {
            // A file's pages are written back by the kernel, whatever the cache holds.
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

// SAFETY: the memory is reached by assembly, volatile and atomic accesses only; what races mean is the caller's
// protocol.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    pub(crate) fn new(mapping: Mapping, source: Source) -> Region {
        let watcher = (source.backend == Backend::File).then(|| {
            let path = source.path.clone().unwrap_or_default();
            Watcher::Dirty(DirtyPages::new(path, source.failure.clone()))
        });
        let guarded = Guarded::new(mapping.base() as usize, mapping.len_bytes(), &source.failure);
        Region { guarded, ..Region::watched(Arc::new(mapping), source, watcher) }
    }

    pub(crate) fn recorded(mapping: Arc<Mapping>, recorder: Arc<Recorder>) -> Region {
        Region::watched(mapping, Source::simulated(), Some(Watcher::Recorder(recorder)))
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
            source,
            untouched: None,
            huge: OnceLock::new(),
        }
    }

    /// Another handle on the same memory, for a region whose memory cannot be mapped twice.
    pub(crate) fn simulated_again(&self) -> Option<Region> {
        match self.watcher.as_deref() {
            Some(Watcher::Recorder(recorder)) => {
                Some(Region::recorded(self.mapping.clone(), recorder.clone()))
            }
            Some(Watcher::Probe(log)) => Some(Region::noted(self.mapping.clone(), log.clone())),
            _ => None,
        }
    }

    pub(crate) fn source(&self) -> &Source {
        &self.source
    }

    /// The same, of which no page was touched by this process yet.
    pub(crate) fn untouched(mut self) -> Region {
        // Of another file, pages that are made writable would have to be written back.
        let worth_it = !self.is_read_only() && self.backend() != Backend::File;
        self.untouched = worth_it.then(|| Untouched::new(self.len_bytes));
        self
    }

    /// Stores to a range are to come: what its first touch costs is paid for all of it together, if this process has not touched it yet.
    #[inline]
    pub fn expect_stores(&self, at: Pos, len_bytes: u64) {
        if let Some(untouched) = &self.untouched
            && len_bytes > 0
        {
            self.checked_store(at, len_bytes);
            untouched.touch(&self.mapping, at.0, len_bytes);
        }
    }

    /// Maps all pages of an attached region now, which takes about a third of a second a GiB: for a process that will store to most of
    /// it and cannot have its first stores take longer. A region that this process has opened itself is mapped already, one of a file
    /// that is written back never is.
    pub fn map_all(&self) {
        if let Some(untouched) = &self.untouched {
            untouched.touch_all(&self.mapping);
        }
    }

    /// Unmaps the region by system calls alone, where nothing may be freed: in a handler of a signal.
    ///
    /// # Safety
    /// Nobody uses the region any more, and it is never dropped.
    pub unsafe fn abandon(&self) {
        if let Some(guarded) = &self.guarded {
            guarded.forget();
        }
        // SAFETY: the caller's promise.
        unsafe { self.mapping.abandon() };
    }

    /// Length in bytes, whole blocks.
    #[inline]
    pub fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// How many of its bytes this process has mapped by pages of 2 MiB or more, when it was first asked. `None`: the region is not in
    /// memory, is mapped as it is touched, or the kernel does not tell.
    pub fn huge_bytes(&self) -> Option<u64> {
        let from = self.base_address() as u64;
        let whole = self.backend() == Backend::Memory && self.untouched.is_none();
        *self.huge.get_or_init(|| whole.then(|| huge::huge_bytes(from..from + self.len_bytes))?)
    }

    /// Where the region lies in this process, as a number: for tools that look at memory from outside.
    pub fn base_address(&self) -> usize {
        self.base as usize
    }

    /// What makes a store durable here.
    pub fn backend(&self) -> Backend {
        self.source.backend
    }

    /// What stores to it survive. All processes that map it keep the same promise.
    pub fn durability(&self) -> Durability {
        self.source.durability
    }

    /// The file or device; none for anonymous and simulated regions.
    pub fn path(&self) -> Option<&Path> {
        self.source.path.as_deref()
    }

    /// The descriptor to hand to another process (see [`Region::attach`]); none if the region is simulated.
    pub fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.source.file.as_ref().map(AsFd::as_fd)
    }

    /// Closes the descriptor: the mapping, and the lock, need it no more. For programs that may close it behind our back.
    pub fn close_file(&mut self) {
        self.source.file = None;
    }

    /// Whether stores are refused (by a panic).
    pub fn is_read_only(&self) -> bool {
        self.source.read_only
    }

    /// Whether a fence could not do its work (only [`Backend::File`] can fail), or what is stored does not reach the media for another
    /// reason ([`survive_faults`](crate::survive_faults)). Once set it stays.
    pub fn failed(&self) -> Option<Error> {
        if let Some(error) = self.source.failure.get() {
            return Some(error.clone());
        }
        let path = || self.path().map_or_else(|| PathBuf::from("(memory)"), Path::to_path_buf);
        self.source.failure.lost.any_replaced().then(|| Error::Lost { path: path() })
    }

    /// Is some byte of a range lost: could a load of it not be served by the media, and gave [`LOST_WORD`](crate::LOST_WORD)s? Asked
    /// after the load.
    #[inline]
    pub fn lost(&self, at: Pos, len_bytes: u64) -> bool {
        self.source.failure.lost.hits(at.0, len_bytes)
    }

    /// Stores bytes, at any alignment and length; past the cache where the region's promise asks for that, or they are many. Not
    /// durable, nor seen in order by others, before [`Region::fence`].
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    pub fn nt_write(&self, at: Pos, bytes: &[u8]) {
        // Memory of the program's own is there.
        let _all = self.take_in(at, bytes, bytes.len());
    }

    /// As [`Region::nt_write`], out of memory of a caller that may not be there. The bytes are one of the pieces of `whole_bytes` which
    /// are stored together: how they are stored goes by that.
    ///
    /// # Errors
    /// [`BadBuffer`], in a process that handles faults with [`after_fault`](crate::after_fault); else the fault is the process's. What
    /// the range holds is not known then.
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    pub fn take_in(&self, at: Pos, bytes: &[u8], whole_bytes: usize) -> Result<(), BadBuffer> {
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
        // SAFETY: checked above.
        // What this region cannot load is no caller's fault (`lost`).
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

    /// Stores one line through the cache and starts its write-back; `at` is a multiple of 64. For a line that is soon stored to
    /// again: one stored past the cache would have to be fetched first. Durable after [`Region::fence`].
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

    /// Returns when everything this thread stored before is durable; see [`Region::failed`] for [`Backend::File`].
    /// Orders stores with stores only: a load after it may still be served before them.
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

    /// As [`Region::fence`], and on Intel's processors this thread does nothing else before. Worth it behind a large copy past the
    /// cache, where stores to cached lines follow: with those of 2023 all of it takes longer otherwise.
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

    /// Starts the write-back of what anybody has stored to `[at, at + len_bytes)`: for stores whose own thread died before its
    /// fence. Durable after [`Region::fence`].
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

    /// Copies out of the region. Bytes that another thread is storing meanwhile come out old, new or mixed.
    #[inline]
    pub fn read(&self, at: Pos, into: &mut [u8]) {
        // Memory of the program's own is there.
        let _all = self.read_out(at, into);
    }

    /// As [`Region::read`], into memory of a caller that may not be there.
    ///
    /// # Errors
    /// [`BadBuffer`], in a process that handles faults with [`after_fault`](crate::after_fault); else the fault is the process's.
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

    /// Fills memory of a caller with zeros: what a hole reads as.
    ///
    /// # Errors
    /// As [`Region::read_out`].
    pub fn zero_out(&self, into: &mut [u8]) -> Result<(), BadBuffer> {
        const ZEROS: &[u8; BLOCK_BYTES] = &[0; BLOCK_BYTES];
        into.chunks_mut(BLOCK_BYTES).try_for_each(|part| {
            // SAFETY: as long as the zeros are; the target is a slice.
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
            // ORDERING: Relaxed; a record proves itself by its checksum, not by when it was loaded.
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

    /// I4: a load that is outside, or of a region whose loads are noted.
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

    /// Runs `store`, which stores exactly `[at, at + len_bytes)`, where a watcher can see it.
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
            // SAFETY: the caller's; lines do not cross the page on which a mapping ends.
            _ => unsafe { self.cpu.flush(self.address(at), len_bytes) },
        }
    }
}
