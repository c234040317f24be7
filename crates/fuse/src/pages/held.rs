//! The kernel's pages of one mapped file, where they differ from the engine's bytes.
//!
//! A call that changes the file takes `held` for writing (invariant P2 of `pages`). Reads for the kernel share it, unless an entry covers
//! their pages: then they take it for writing. An entry is a base, or a range of pages that were overwritten whole.
//!
//! A call over more than `LARGE_BYTES` captures only the pages that it covers in part. It overwrites all pages between, and the kernel
//! drops them before the call returns to its program. A write-back without a read since then carries stores older than the call, and is
//! ignored.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Once, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use heddle_vfs::{Error, FileSystem, Handle, Result};

use super::PAGE_BYTES;

/// Longer calls are not captured page by page. Only fallocate covers more: FUSE writes are at most about 1 MiB.
const LARGE_BYTES: u64 = 2 << 20;

const PAGE: usize = PAGE_BYTES as usize;

/// The state of one mapped file (see the module).
pub(crate) struct FilePages {
    /// All calls that began before the file was noted have ended.
    ready: Once,
    held: RwLock<Held>,
}

struct Held {
    /// Open for reading while the file is noted; afterwards nothing is remembered.
    handle: Option<Handle>,
    bases: BTreeMap<u64, Base>,
    /// Pages that were overwritten whole: a write-back of one is ignored.
    overwritten: Vec<Overwritten>,
    /// Number of the latest call that made entries.
    capture_serial: u64,
}

struct Base {
    bytes: Box<[u8]>,
    /// Number of the call that made the entry.
    capture_serial: u64,
}

#[derive(Clone)]
struct Overwritten {
    pages: Range<u64>,
    /// As in [`Base`].
    capture_serial: u64,
}

/// Pages that the kernel may drop, and the latest `capture_serial` when it was asked to.
#[derive(PartialEq, Eq, Debug)]
pub(super) struct Stale {
    pub(super) pages: Range<u64>,
    captured_by: u64,
}

impl FilePages {
    pub(super) fn new(handle: Handle) -> FilePages {
        let held =
            Held { handle: Some(handle), bases: BTreeMap::new(), overwritten: Vec::new(), capture_serial: 0 };
        FilePages { ready: Once::new(), held: RwLock::new(held) }
    }

    /// Waits, the first time; concurrent callers wait too.
    pub(crate) fn once(&self, wait: impl FnOnce()) {
        self.ready.call_once(wait);
    }

    /// Forgets everything. Returns the handle to the first caller.
    pub(super) fn end(&self) -> Option<Handle> {
        let mut held = self.alone();
        held.bases.clear();
        held.overwritten.clear();
        held.handle.take()
    }

    /// Reads for the kernel: its pages now equal the engine's.
    pub(crate) fn read(
        &self,
        fs: &dyn FileSystem,
        through: &Handle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        let pages = pages_of(&(offset..offset + buf.len() as u64));
        let held = self.shared();
        if held.knows_nothing_of(&pages) {
            return fs.read(through, offset, buf);
        }
        drop(held);
        let mut held = self.alone();
        let read = fs.read(through, offset, buf)?;
        held.forget(&pages, u64::MAX);
        Ok(read)
    }

    /// Makes a call that changes bytes of a range in the engine only. Also returns how many entries it added, at most.
    pub(crate) fn call_past_kernel_pages<T>(
        &self,
        fs: &dyn FileSystem,
        range: impl FnOnce() -> Result<Range<u64>>,
        call: impl FnOnce() -> Result<T>,
    ) -> (Result<T>, usize) {
        let mut held = self.alone();
        if held.handle.is_none() {
            return (call(), 0);
        }
        let range = match range() {
            Ok(range) => range,
            Err(error) => return (Err(error), 0),
        };
        held.capture_serial += 1;
        let pages = pages_of(&range);
        if range.end.saturating_sub(range.start) <= LARGE_BYTES {
            let captured = held.capture(fs, pages);
            return (call(), captured);
        }
        let whole = range.start.div_ceil(PAGE_BYTES)..range.end / PAGE_BYTES;
        let ends = held.capture(fs, pages.start..whole.start) + held.capture(fs, whole.end..pages.end);
        let done = call();
        if done.is_ok() {
            held.forget(&whole, u64::MAX);
            let capture_serial = held.capture_serial;
            held.overwritten.push(Overwritten { pages: whole, capture_serial });
        }
        (done, ends + 1)
    }

    /// Writes the bytes of the kernel's pages that stores have changed.
    pub(crate) fn write_back(
        &self,
        fs: &dyn FileSystem,
        through: &Handle,
        offset: u64,
        data: &[u8],
    ) -> Result<usize> {
        let mut held = self.alone();
        if held.knows_nothing_of(&pages_of(&(offset..offset + data.len() as u64))) {
            return fs.write(through, offset, data);
        }
        let mut merged = held.engine_bytes(fs, offset, data.len())?;
        let mut changed: Option<Range<usize>> = None;
        for (page, at, in_page) in pieces(offset, data.len()) {
            if let Some(stored) = held.merge(page, &in_page, &data[at.clone()], &mut merged[at.clone()]) {
                let stored = at.start + stored.start..at.start + stored.end;
                changed = Some(changed.map_or(stored.start, |before| before.start)..stored.end);
            }
        }
        if let Some(changed) = changed {
            let wrote = fs.write(through, offset + changed.start as u64, &merged[changed.clone()])?;
            if wrote < changed.len() {
                // The bases stay unchanged: a later write-back writes all bytes again, or the error is reported.
                return Err(Error::NoSpace);
            }
        }
        for (page, at, in_page) in pieces(offset, data.len()) {
            held.came_back(page, in_page, &data[at.clone()], &merged[at]);
        }
        Ok(data.len())
    }

    /// Ranges of pages of which something is remembered.
    pub(super) fn stale(&self) -> Vec<Stale> {
        let held = self.shared();
        let captured_by = held.capture_serial;
        let mut stale: Vec<Stale> =
            held.overwritten.iter().map(|gone| Stale { pages: gone.pages.clone(), captured_by }).collect();
        for page in held.bases.keys() {
            match stale.last_mut() {
                Some(last) if last.pages.end == *page => last.pages.end += 1,
                _ => stale.push(Stale { pages: *page..*page + 1, captured_by }),
            }
        }
        stale
    }

    /// Forgets pages that the kernel has dropped.
    pub(super) fn dropped(&self, stale: &Stale) {
        self.alone().forget(&stale.pages, stale.captured_by);
    }

    fn shared(&self) -> RwLockReadGuard<'_, Held> {
        self.held.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn alone(&self) -> RwLockWriteGuard<'_, Held> {
        self.held.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Held {
    /// Captures the engine's bytes of these pages, as far as they have no entry. Returns how many pages had none. A page that cannot be
    /// read is not in the kernel's cache either.
    fn capture(&mut self, fs: &dyn FileSystem, pages: Range<u64>) -> usize {
        let unknown = |page: &u64| {
            !self.bases.contains_key(page) && !self.overwritten.iter().any(|gone| gone.pages.contains(page))
        };
        let unknown: Vec<u64> = pages.clone().filter(unknown).collect();
        let (Some(first), Some(last)) = (unknown.first(), unknown.last()) else { return 0 };
        let (first, last) = (*first, *last);
        let all = self.engine_bytes(fs, first * PAGE_BYTES, (last + 1 - first) as usize * PAGE);
        for page in &unknown {
            let bytes = match &all {
                Ok(all) => Ok(all[(page - first) as usize * PAGE..][..PAGE].to_vec()),
                Err(_) => self.engine_bytes(fs, page * PAGE_BYTES, PAGE),
            };
            if let Ok(bytes) = bytes {
                self.bases.insert(*page, Base { bytes: bytes.into(), capture_serial: self.capture_serial });
            }
        }
        unknown.len()
    }

    /// The engine's bytes, zero beyond EOF.
    fn engine_bytes(&self, fs: &dyn FileSystem, offset: u64, len: usize) -> Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let handle = self.handle.as_ref().ok_or(Error::BadHandle)?;
        fs.read(handle, offset, &mut bytes)?;
        Ok(bytes)
    }

    fn knows_nothing_of(&self, pages: &Range<u64>) -> bool {
        let overlaps = |gone: &Overwritten| gone.pages.start < pages.end && pages.start < gone.pages.end;
        pages.is_empty()
            || self.bases.range(pages.clone()).next().is_none() && !self.overwritten.iter().any(overlaps)
    }

    /// Forgets entries of these pages that calls up to number `captured_by` made.
    fn forget(&mut self, pages: &Range<u64>, captured_by: u64) {
        if !pages.is_empty() {
            let gone = |(page, base): (&u64, &Base)| (base.capture_serial <= captured_by).then_some(*page);
            let gone: Vec<u64> = self.bases.range(pages.clone()).filter_map(gone).collect();
            gone.iter().for_each(|page| drop(self.bases.remove(page)));
        }
        let rest = |old: &Overwritten| {
            let parts = [
                old.pages.start..old.pages.end.min(pages.start),
                old.pages.start.max(pages.end)..old.pages.end,
            ];
            let parts = if old.capture_serial <= captured_by { parts } else { [old.pages.clone(), 0..0] };
            parts.map(|pages| Overwritten { pages, capture_serial: old.capture_serial })
        };
        let rest = self.overwritten.iter().flat_map(rest).filter(|rest| !rest.pages.is_empty()).collect();
        self.overwritten = rest;
    }

    /// Merges stores to a page, or a part of it, into the engine's bytes. Returns the changed range.
    fn merge(
        &self,
        page: u64,
        in_page: &Range<usize>,
        data: &[u8],
        merged: &mut [u8],
    ) -> Option<Range<usize>> {
        if self.overwritten.iter().any(|gone| gone.pages.contains(&page)) {
            return None;
        }
        let Some(base) = self.bases.get(&page) else {
            merged.copy_from_slice(data);
            return Some(0..data.len());
        };
        let base = &base.bytes[in_page.clone()];
        let first = (0..data.len()).find(|at| data[*at] != base[*at])?;
        let end = (0..data.len()).rfind(|at| data[*at] != base[*at])? + 1;
        for at in first..end {
            if data[at] != base[at] {
                merged[at] = data[at];
            }
        }
        Some(first..end)
    }

    /// Records a write-back: the kernel's page has `data` now and the engine `merged`.
    fn came_back(&mut self, page: u64, in_page: Range<usize>, data: &[u8], merged: &[u8]) {
        if data == merged && in_page.len() == PAGE {
            self.bases.remove(&page);
        } else if let Some(base) = self.bases.get_mut(&page) {
            base.bytes[in_page].copy_from_slice(data);
        }
    }
}

/// All pages of which the range has a byte.
fn pages_of(bytes: &Range<u64>) -> Range<u64> {
    if bytes.is_empty() { 0..0 } else { bytes.start / PAGE_BYTES..bytes.end.div_ceil(PAGE_BYTES) }
}

/// The pages of a range: for each its number, its part of the range, and its part of the page.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>, Range<usize>)> {
    let range = offset..offset + len as u64;
    pages_of(&range).map(move |page| {
        let start = range.start.max(page * PAGE_BYTES);
        let end = range.end.min((page + 1) * PAGE_BYTES);
        let in_page = (start % PAGE_BYTES) as usize;
        let at = (start - range.start) as usize;
        let len = (end - start) as usize;
        (page, at..at + len, in_page..in_page + len)
    })
}

#[cfg(test)]
mod tests;
