//! The pages of a file-backed region to which a thread has stored since its last fence.
//!
//! State       one list of page ranges for each thread, under one mutex: a fence here is a disk write, which takes a thousand times as
//!             long as the mutex.
//! Invariants  I1  a range is noted before its store, so that a fence of the same thread covers it.
//!             I2  the first error of `msync` stays: the kernel reports it once and drops the pages.
//!             I3  once a fence has failed, no store is made any more. A store that relies on a fence follows its return, and so the
//!                 note of its failure. So nothing that relies on lost pages reaches the media, whatever the caller does.
//!             I4  a fence that succeeded has heard of all failures of other threads that may concern its pages (`write_backs`).

use crate::failing_disk::Disk;
use crate::lost::Lost;
use crate::write_backs::WriteBacks;
use crate::{BLOCK_BYTES, Error};
use rustix::io::Errno;
use rustix::mm::{MsyncFlags, msync};
use std::collections::HashMap;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::{self, ThreadId};

/// The first failure: the error is set once durability is lost. All mappings of one open file share it,
/// because the kernel reports the error to only one of them.
pub(crate) type Failure = Arc<FirstError>;

/// Every operation loads it, so it has a line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct FirstError {
    first: OnceLock<Error>,
    /// Lines that cannot be loaded.
    pub(crate) lost: Lost,
    write_backs: WriteBacks,
    hearers: Hearers,
}

/// Who hears of the first failed fence before it returns.
#[derive(Default)]
struct Hearers(Mutex<Vec<Box<dyn Fn() + Send + Sync>>>);

impl std::fmt::Debug for Hearers {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Hearers")
    }
}

impl FirstError {
    /// Calls `hear` at the first failed fence, before that fence or one that overlaps it returns.
    pub(crate) fn on_failed_fence(&self, hear: Box<dyn Fn() + Send + Sync>) {
        self.hearers.0.lock().unwrap_or_else(PoisonError::into_inner).push(hear);
    }

    fn note_failed_fence(&self, error: Error) {
        if self.first.set(error).is_ok() {
            self.hearers.0.lock().unwrap_or_else(PoisonError::into_inner).iter().for_each(|hear| hear());
        }
    }
}

impl std::ops::Deref for FirstError {
    type Target = OnceLock<Error>;

    fn deref(&self) -> &OnceLock<Error> {
        &self.first
    }
}

#[derive(Debug)]
pub(crate) struct DirtyPages {
    of_thread: Mutex<HashMap<ThreadId, Vec<Range<u64>>>>,
    failure: Failure,
    path: PathBuf,
    /// In place of the kernel's disk, in tests.
    pub(crate) disk: Option<Arc<Disk>>,
}

impl DirtyPages {
    pub(crate) fn new(path: PathBuf, failure: Failure, disk: Option<Arc<Disk>>) -> DirtyPages {
        DirtyPages { of_thread: Mutex::default(), failure, path, disk }
    }

    /// Runs `store`, which stores to this range, unless a fence has failed (I3).
    pub(crate) fn store(&self, at: u64, len_bytes: u64, store: &dyn Fn()) {
        self.note(at, len_bytes);
        if self.failure.get().is_none() {
            store();
        }
    }

    pub(crate) fn note(&self, at: u64, len_bytes: u64) {
        let page = BLOCK_BYTES as u64;
        let range = at & !(page - 1)..(at + len_bytes).next_multiple_of(page);
        let mut of_thread = self.of_thread.lock().unwrap_or_else(PoisonError::into_inner);
        let ranges = of_thread.entry(thread::current().id()).or_default();
        match ranges.last_mut() {
            Some(last) if last.start <= range.end && range.start <= last.end => {
                *last = last.start.min(range.start)..last.end.max(range.end);
            }
            _ => ranges.push(range),
        }
    }

    /// Writes back the pages that this thread noted. `base` is the start of the mapping to which it stored.
    pub(crate) fn write_back(&self, base: *mut u8) {
        let noted =
            self.of_thread.lock().unwrap_or_else(PoisonError::into_inner).remove(&thread::current().id());
        let Some(noted) = noted.filter(|_| self.failure.get().is_none()) else { return };
        let mine = self.failure.write_backs.begin();
        for range in merged(noted) {
            if let Err(errno) = self.write_back_range(base, range) {
                self.failure.note_failed_fence(Error::NotDurable { path: self.path.clone(), errno });
                return;
            }
        }
        mine.end_and_wait();
    }

    fn write_back_range(&self, base: *mut u8, range: Range<u64>) -> Result<(), Errno> {
        if let Some(disk) = &self.disk {
            return disk.write_back(range);
        }
        let from = base.wrapping_add(range.start as usize);
        let len_bytes = (range.end - range.start) as usize;
        loop {
            // SAFETY: page-rounded ranges of stores that were inside the mapping, whose length is whole pages.
            match unsafe { msync(from.cast(), len_bytes, MsyncFlags::SYNC) } {
                Err(Errno::INTR) => {}
                done => return done,
            }
        }
    }
}

fn merged(mut ranges: Vec<Range<u64>>) -> Vec<Range<u64>> {
    ranges.sort_unstable_by_key(|range| range.start);
    ranges.dedup_by(|next, last| {
        let touch = next.start <= last.end;
        if touch {
            last.end = last.end.max(next.end);
        }
        touch
    });
    ranges
}
