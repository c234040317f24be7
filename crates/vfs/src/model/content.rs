//! The bytes of a model file: pages by number; an absent page is a hole.
//!
//! Invariants  C1  bytes of a page at and after the size are zero; pages wholly after it may be there (preallocated),
//!                 all zeros.

use std::collections::BTreeMap;

use crate::{Error, OFFSET_MAX_BYTES, Result};

/// Bytes of a page: the grain of holes.
pub(super) const PAGE_BYTES: u64 = 4096;

/// What the model says it can hold, and the most that one call preallocates.
pub(super) const CAPACITY_PAGES: u64 = 1 << 20;

#[derive(Default)]
pub(super) struct Content {
    size_bytes: u64,
    pages: BTreeMap<u64, Box<[u8]>>,
}

impl Content {
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(super) fn blocks_512(&self) -> u64 {
        self.pages.len() as u64 * (PAGE_BYTES / 512)
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let len = self.size_bytes.saturating_sub(offset).min(buf.len() as u64) as usize;
        for (page, within, part) in pieces(offset, len) {
            match self.pages.get(&page) {
                Some(bytes) => buf[part.clone()].copy_from_slice(&bytes[within..within + part.len()]),
                None => buf[part].fill(0),
            }
        }
        len
    }

    pub(super) fn write(&mut self, offset: u64, buf: &[u8]) -> Result<()> {
        let end = end_of(offset, buf.len() as u64)?;
        for (page, within, part) in pieces(offset, buf.len()) {
            self.page_mut(page)[within..within + part.len()].copy_from_slice(&buf[part]);
        }
        self.size_bytes = self.size_bytes.max(end);
        Ok(())
    }

    pub(super) fn set_size(&mut self, size_bytes: u64) -> Result<()> {
        end_of(size_bytes, 0)?;
        self.clear(size_bytes, OFFSET_MAX_BYTES);
        self.size_bytes = size_bytes;
        Ok(())
    }

    pub(super) fn allocate(&mut self, offset: u64, len_bytes: u64, keep_size: bool) -> Result<()> {
        let end = end_of(offset, len_bytes)?;
        if len_bytes.div_ceil(PAGE_BYTES) > CAPACITY_PAGES {
            return Err(Error::NoSpace);
        }
        for page in offset / PAGE_BYTES..end.div_ceil(PAGE_BYTES) {
            self.page_mut(page);
        }
        if !keep_size {
            self.size_bytes = self.size_bytes.max(end);
        }
        Ok(())
    }

    /// Makes the range read as zeros; pages wholly inside become holes.
    pub(super) fn clear(&mut self, from: u64, to: u64) {
        let whole = from.div_ceil(PAGE_BYTES)..(to / PAGE_BYTES).max(from.div_ceil(PAGE_BYTES));
        let gone: Vec<u64> = self.pages.range(whole).map(|(page, _)| *page).collect();
        for page in gone {
            self.pages.remove(&page);
        }
        for page in [from / PAGE_BYTES, to / PAGE_BYTES] {
            let start = page * PAGE_BYTES;
            let (low, high) = (from.max(start), to.min(start + PAGE_BYTES));
            if low < high
                && let Some(bytes) = self.pages.get_mut(&page)
            {
                bytes[(low - start) as usize..(high - start) as usize].fill(0);
            }
        }
    }

    /// Cuts out whole pages; what follows moves down.
    pub(super) fn collapse(&mut self, offset: u64, len_bytes: u64) -> Result<()> {
        aligned(offset, len_bytes)?;
        if end_of(offset, len_bytes)? >= self.size_bytes {
            return Err(Error::InvalidArgument("the range to collapse must end before the end of the file"));
        }
        let (first, count) = (offset / PAGE_BYTES, len_bytes / PAGE_BYTES);
        let tail = self.pages.split_off(&first);
        let moved = tail.into_iter().filter(|(page, _)| *page >= first + count);
        self.pages.extend(moved.map(|(page, bytes)| (page - count, bytes)));
        self.size_bytes -= len_bytes;
        Ok(())
    }

    /// Inserts a hole of whole pages; what follows moves up.
    pub(super) fn insert(&mut self, offset: u64, len_bytes: u64) -> Result<()> {
        aligned(offset, len_bytes)?;
        if offset >= self.size_bytes {
            return Err(Error::InvalidArgument("a hole must be inserted before the end of the file"));
        }
        let size_bytes = end_of(self.size_bytes, len_bytes)?;
        let (first, count) = (offset / PAGE_BYTES, len_bytes / PAGE_BYTES);
        let tail = self.pages.split_off(&first);
        self.pages.extend(tail.into_iter().map(|(page, bytes)| (page + count, bytes)));
        self.size_bytes = size_bytes;
        Ok(())
    }

    pub(super) fn next_data(&self, offset: u64) -> Result<u64> {
        let (page, _) = self.pages.range(offset / PAGE_BYTES..).next().ok_or(Error::NoSuchOffset)?;
        Some(offset.max(page * PAGE_BYTES)).filter(|data| *data < self.size_bytes).ok_or(Error::NoSuchOffset)
    }

    pub(super) fn next_hole(&self, offset: u64) -> Result<u64> {
        if offset >= self.size_bytes {
            return Err(Error::NoSuchOffset);
        }
        let mut page = offset / PAGE_BYTES;
        while self.pages.contains_key(&page) {
            page += 1;
        }
        Ok(offset.max(page * PAGE_BYTES).min(self.size_bytes))
    }

    fn page_mut(&mut self, page: u64) -> &mut [u8] {
        self.pages.entry(page).or_insert_with(|| vec![0; PAGE_BYTES as usize].into_boxed_slice())
    }
}

/// Where a range ends, if a file may be that long.
pub(super) fn end_of(offset: u64, len_bytes: u64) -> Result<u64> {
    offset.checked_add(len_bytes).filter(|end| *end <= OFFSET_MAX_BYTES).ok_or(Error::FileTooBig)
}

fn aligned(offset: u64, len_bytes: u64) -> Result<()> {
    let whole = offset.is_multiple_of(PAGE_BYTES) && len_bytes.is_multiple_of(PAGE_BYTES);
    if whole { Ok(()) } else { Err(Error::InvalidArgument("the range is not of whole pages")) }
}

/// The pages a range touches: page number, offset in the page, place in the caller's buffer.
fn pieces(offset: u64, len: usize) -> impl Iterator<Item = (u64, usize, std::ops::Range<usize>)> {
    let mut done = 0;
    std::iter::from_fn(move || {
        let at = offset + done as u64;
        let within = (at % PAGE_BYTES) as usize;
        let count = (PAGE_BYTES as usize - within).min(len - done);
        let part = done..done + count;
        done += count;
        (count > 0).then_some((at / PAGE_BYTES, within, part))
    })
}
