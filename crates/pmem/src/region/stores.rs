//! Storing bytes to a region: whole words in the middle, pieces of words at unaligned edges; a watcher sees
//! each part.

use super::Region;
use crate::caller::{self, BadBuffer};
use crate::cpu;
use crate::simulator::StoreKind;
use std::cell::Cell;

impl Region {
    /// # Safety
    /// The target is inside the region, the source readable, unless faults end here; they do not overlap.
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    pub(super) unsafe fn store_range(
        &self,
        at: u64,
        from: *const u8,
        len_bytes: usize,
        whole_bytes: usize,
    ) -> Result<(), BadBuffer> {
        let (head, body, tail) = split(at, len_bytes);
        // SAFETY: the parts lie one after the other in the caller's ranges; the body is whole words.
        unsafe {
            self.edge_of(at, from, head)?;
            self.words(at + head as u64, from.add(head), body, whole_bytes)?;
            self.edge_of(at + (head + body) as u64, from.add(head + body), tail)
        }
    }

    /// # Safety
    /// As [`Region::store_range`]; less than a word.
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    unsafe fn edge_of(&self, at: u64, from: *const u8, len_bytes: usize) -> Result<(), BadBuffer> {
        if len_bytes == 0 {
            return Ok(());
        }
        let mut bytes = [0; 8];
        // SAFETY: the caller's promise; the target is our own.
        caller::all(unsafe { self.cpu.load(bytes.as_mut_ptr(), from, len_bytes) })?;
        // SAFETY: the caller's promise.
        unsafe { self.edge(at, bytes, len_bytes) }
        Ok(())
    }

    /// Less than a word: stored through the cache, since there are no non-temporal stores this small, and flushed.
    ///
    /// # Safety
    /// The target is inside the region.
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    pub(super) unsafe fn edge(&self, at: u64, bytes: [u8; 8], len_bytes: usize) {
        if len_bytes == 0 {
            return;
        }
        // SAFETY: the caller's promise.
        let store = || unsafe { cpu::store_pieces(self.address(at), bytes, len_bytes) };
        self.store(StoreKind::Cached, at, len_bytes, store);
        // SAFETY: the caller's promise.
        unsafe { self.flush(at, len_bytes) }
    }

    /// # Safety
    /// As [`Region::store_range`], and both `at` and `len_bytes` are multiples of 8.
    #[inline]
    #[cfg_attr(feature = "planted", track_caller)]
    unsafe fn words(
        &self,
        at: u64,
        from: *const u8,
        len_bytes: usize,
        whole_bytes: usize,
    ) -> Result<(), BadBuffer> {
        let left_bytes = Cell::new(0);
        // SAFETY: the caller's promise; a mapping starts on a page, so the address is aligned as `at` is.
        let store =
            || left_bytes.set(unsafe { self.cpu.words(self.address(at), from, len_bytes, whole_bytes) });
        self.store(StoreKind::NonTemporal, at, len_bytes, store);
        caller::all(left_bytes.get())
    }

    /// # Safety
    /// As [`Region::words`].
    #[cfg_attr(feature = "planted", track_caller)]
    pub(super) unsafe fn zero_words(&self, at: u64, len_bytes: usize) {
        // SAFETY: the caller's promise; a mapping starts on a page, so the address is aligned as `at` is.
        let store = || unsafe { self.cpu.zero_words(self.address(at), len_bytes) };
        self.store(StoreKind::NonTemporal, at, len_bytes, store);
    }
}

/// Lengths of the unaligned head, the whole words and the unaligned tail of a range.
#[inline]
pub(super) fn split(at: u64, len_bytes: usize) -> (usize, usize, usize) {
    let head = (at.wrapping_neg() as usize & 7).min(len_bytes);
    let body = (len_bytes - head) & !7;
    (head, body, len_bytes - head - body)
}
