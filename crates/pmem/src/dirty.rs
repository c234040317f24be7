//! Stores and fences of a file-backed region: a fence writes back the pages to which its thread has stored since its last one.
//!
//! State       each thread notes its ranges by itself (`noted`).
//! Invariants  I1  a range is noted after its store and before the next fence of the same thread, which so covers it. A signal handler
//!                 that comes in between may fence: it leaves the range to that next fence.
//!             I2  the first error of `msync` stays: the kernel reports it once and drops the pages.
//!             I3  once a fence has failed, no store is made any more. A store that relies on a fence follows its return, and so the
//!                 note of its failure. So nothing that relies on lost pages reaches the media, whatever the caller does.
//!             I4  a fence that succeeded has heard of all failures of other threads that may concern its pages (`write_backs`).
//!             I5  no thread holds a lock here, so a forked child finds none locked.

use crate::failing_disk::Disk;
use crate::lost::Lost;
use crate::noted::RegionNumber;
use crate::set_once::SetOnce;
use crate::write_backs::WriteBacks;
use crate::{BLOCK_BYTES, Error};
use rustix::io::Errno;
use rustix::mm::{MsyncFlags, msync};
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

/// The first failure: the error is set once durability is lost. All mappings of one open file share it,
/// because the kernel reports the error to only one of them.
pub(crate) type Failure = Arc<FirstError>;

/// Every operation loads it, so it has a line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
pub(crate) struct FirstError {
    first: SetOnce<Error>,
    /// Lines that cannot be loaded.
    pub(crate) lost: Lost,
    write_backs: WriteBacks,
    hearers: SetOnce<Hearer>,
}

/// Hears of the first failed fence before it returns.
struct Hearer {
    hear: Box<dyn Fn() + Send + Sync>,
    next: SetOnce<Hearer>,
}

impl std::fmt::Debug for Hearer {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("Hearer")
    }
}

impl FirstError {
    /// Calls `hear` at the first failed fence, before that fence or one that overlaps it returns.
    pub(crate) fn on_failed_fence(&self, hear: Box<dyn Fn() + Send + Sync>) {
        let (mut last, mut hearer) = (&self.hearers, Hearer { hear, next: SetOnce::default() });
        while let Err(back) = last.set(hearer) {
            hearer = back;
            last = last.get().map_or(last, |other| &other.next);
        }
    }

    fn note_failed_fence(&self, error: Error) {
        if self.first.set(error).is_ok() {
            let hearers = std::iter::successors(self.hearers.get(), |hearer| hearer.next.get());
            hearers.for_each(|hearer| (hearer.hear)());
        }
    }
}

impl std::ops::Deref for FirstError {
    type Target = SetOnce<Error>;

    fn deref(&self) -> &SetOnce<Error> {
        &self.first
    }
}

#[derive(Debug)]
pub(crate) struct DirtyPages {
    number: RegionNumber,
    len_bytes: u64,
    failure: Failure,
    path: PathBuf,
    /// In place of the kernel's disk, in tests.
    pub(crate) disk: Option<Arc<Disk>>,
}

impl DirtyPages {
    pub(crate) fn new(
        len_bytes: u64,
        path: PathBuf,
        failure: Failure,
        disk: Option<Arc<Disk>>,
    ) -> DirtyPages {
        DirtyPages { number: RegionNumber::new(), len_bytes, failure, path, disk }
    }

    /// Runs `store`, which stores to this range, unless a fence has failed (I3).
    pub(crate) fn store(&self, at: u64, len_bytes: u64, store: &dyn Fn()) {
        if self.failure.get().is_none() {
            store();
            self.note(at, len_bytes);
        }
    }

    pub(crate) fn note(&self, at: u64, len_bytes: u64) {
        let page = BLOCK_BYTES as u64;
        self.number.note(at & !(page - 1)..(at + len_bytes).next_multiple_of(page));
    }

    /// Writes back the pages that this thread noted. `base` is the start of the mapping to which it stored.
    pub(crate) fn write_back(&self, base: *mut u8) {
        let mut noted = self.number.take();
        if noted.is_empty() || self.failure.get().is_some() {
            return;
        }
        let mine = self.failure.write_backs.begin();
        let (is_whole, all) = (noted.is_whole, 0..self.len_bytes);
        for range in noted.merged().filter(|_| !is_whole).chain(is_whole.then_some(all)) {
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

#[cfg(test)]
mod tests;
