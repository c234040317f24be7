//! Changes of files' bytes. Pages are changed in memory; pointers are reserved at once.
//!
//! Each change has a function that computes its need (`need_…`) and changes nothing, and a function of
//! [`Change`] that makes the change with that reservation. Large ranges are allocated and punched in pieces.
//! Moving pages (collapse, insert) is one piece, however large.
//!
//! All functions here are called with the inode's lock held for writing, except `has_pages`, and
//! `change_pages`, which may be called with a lock of these pages instead (`range_lock`).

use super::direct_io::{WritePath, aligned};
use crate::change::{Change, Lacking, Need, pages_of};
use crate::format::{
    BLOCK_BYTES, Block, INODE_POINTERS, NODE_POINTERS, SEGMENT_BLOCKS, advise_flag, inline_flag,
};
use crate::ids::{BlockAddr, Nid, PageNo};
use crate::image::Media;
use crate::inode::Inode;
use crate::planted::{Breach, breaks, breaks_at_times};
use heddle_vfs::{Error, OFFSET_MAX_BYTES, RangeOp, Result};
use std::ops::Range;
use zerocopy::little_endian::U32;

pub(crate) const PAGE: u64 = BLOCK_BYTES as u64;
/// Number of pages written to the device in one request: as many as a segment has.
const THROUGH_PAGES: usize = SEGMENT_BLOCKS as usize;
/// Bytes of a piece of a large range: the pages of some 64 nodes.
const PIECE_BYTES: u64 = 256 << 20;

/// The end of a range, if a file may be that long.
pub(crate) fn end_of(offset: u64, len_bytes: u64) -> Result<u64> {
    offset.checked_add(len_bytes).filter(|end| *end <= OFFSET_MAX_BYTES).ok_or(Error::FileTooBig)
}

/// The same operation with the file's size kept.
pub(crate) fn keeping_size(op: RangeOp) -> RangeOp {
    match op {
        RangeOp::Allocate { .. } => RangeOp::Allocate { keep_size: true },
        RangeOp::Zero { .. } => RangeOp::Zero { keep_size: true },
        other => other,
    }
}

impl Media {
    /// Overwrites pages that have their pointers.
    pub(crate) fn change_pages(&self, nid: Nid, offset: u64, buf: &[u8], way: WritePath) -> Result<()> {
        let end = offset + buf.len() as u64;
        if way == WritePath::Direct {
            let pages: Vec<PageNo> = (offset / PAGE..end / PAGE).map(PageNo).collect();
            for (pages, bytes) in pages.chunks(THROUGH_PAGES).zip(buf.chunks(THROUGH_PAGES * BLOCK_BYTES)) {
                self.place_pages(nid, pages, bytes)?;
            }
            self.space()?.since.spilled(nid);
            return Ok(());
        }
        for page in offset / PAGE..=(end - 1) / PAGE {
            let start = page * PAGE;
            let (from, to) = (offset.max(start), end.min(start + PAGE));
            let piece = &buf[(from - offset) as usize..(to - offset) as usize];
            let at = (from - start) as usize;
            let change = |block: &mut Block| block[at..at + piece.len()].copy_from_slice(piece);
            match piece.first_chunk() {
                // A page that is written whole need not be read.
                Some(whole) if self.pages.change(nid, PageNo(page), |block| *block = *whole) => {}
                Some(whole) => self.pages.put(nid, PageNo(page), Box::new(*whole)),
                None => self.change_page(nid, PageNo(page), change)?,
            }
        }
        Ok(())
    }

    /// Returns true if all pages of a range have their pointers.
    pub(crate) fn has_pages(&self, inode: &Inode, offset: u64, end: u64) -> Result<bool> {
        if !inode.has_pointers() {
            return Ok(false);
        }
        for page in offset / PAGE..=(end - 1) / PAGE {
            if self.hole_pages_from(inode, PageNo(page))? > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Changes a page that has its pointer.
    pub(crate) fn change_page(&self, nid: Nid, page: PageNo, change: impl Fn(&mut Block)) -> Result<()> {
        if self.pages.change(nid, page, &change) {
            return Ok(());
        }
        let mut block = self.page(&self.inode(nid)?, page)?.unwrap_or_else(|| Box::new([0; BLOCK_BYTES]));
        change(&mut block);
        self.pages.put(nid, page, block);
        Ok(())
    }

    /// Clears the slots of inline content; they are pointers from now on.
    pub(crate) fn clear_inline(&self, inode: &Inode, flags: u8) -> Result<()> {
        let (from, to) = (inode.first_pointer(), INODE_POINTERS - inode.inline_xattr_slots());
        self.change_inode(inode.nid, |block| {
            block.addr[from..to].fill(U32::new(0));
            block.inline &= !flags;
        })
    }

    /// What it takes to move inline content to pages, and to give the pages of a range their pointers.
    pub(crate) fn need_to_have(&self, inode: &Inode, pages: Range<u64>) -> Result<Need> {
        inode.check_readable()?;
        inode.check_room_to(pages.end)?;
        if !inode.has(inline_flag::DATA) {
            return self.need_of_pages(inode, pages);
        }
        let apart = u64::from(inode.size_bytes > 0 && !pages.contains(&0));
        Ok(self.need_of_pages(inode, pages)? + Need { pages: apart, ..Need::NONE })
    }

    /// What it takes to write bytes from `offset` to `end`. No block, if the whole file is inline afterwards.
    pub(crate) fn need_to_write(&self, inode: &Inode, offset: u64, end: u64) -> Result<Need> {
        inode.check_readable()?;
        if inode.keeps_inline(end) { Ok(Need::NONE) } else { self.need_to_have(inode, pages_of(offset, end)) }
    }

    /// What it takes to give a file this size.
    pub(crate) fn need_to_resize(&self, inode: &Inode, size_bytes: u64) -> Result<Need> {
        inode.check_readable()?;
        inode.check_room_to(size_bytes.div_ceil(PAGE))?;
        self.check_nodes(inode, size_bytes.div_ceil(PAGE)..u64::MAX)?;
        self.check_edges(inode, size_bytes, size_bytes)?;
        if inode.keeps_inline(size_bytes) || size_bytes == inode.size_bytes {
            return Ok(Need::NONE);
        }
        self.need_to_have(inode, 0..0)
    }

    /// What a piece of a fallocate(2) takes, from `offset` to `end`.
    pub(crate) fn need_of_range(&self, inode: &Inode, op: RangeOp, offset: u64, end: u64) -> Result<Need> {
        let pages = pages_of(offset, end);
        // Nodes whose pointers change.
        let nodes = |pages: u64| Need { dirty: 2 * pages.div_ceil(NODE_POINTERS as u64), ..Need::NONE };
        let size = inode.size_bytes;
        match op {
            RangeOp::Allocate { .. } => {
                Ok(self.need_to_write(inode, offset, end)? + nodes(pages.end - pages.start))
            }
            RangeOp::Zero { .. } => {
                inode.check_room_to(pages.end)?;
                self.check_nodes(inode, pages.clone())?;
                self.check_edges(inode, offset, end)?;
                Ok(self.need_to_write(inode, offset, end)? + nodes(pages.end - pages.start))
            }
            RangeOp::Punch => {
                let hole =
                    if inode.has_pointers() { self.hole_pages_from(inode, PageNo(pages.start))? } else { 0 };
                let changed = pages.end.saturating_sub(pages.start.saturating_add(hole));
                inode.check_room_to(pages.end)?;
                self.check_nodes(inode, pages)?;
                self.check_edges(inode, offset, end)?;
                let stays = inode.keeps_inline(size);
                Ok(if stays { Need::NONE } else { self.need_to_have(inode, 0..0)? } + nodes(changed))
            }
            RangeOp::Collapse => {
                aligned(offset, end - offset)?;
                if end >= size {
                    return Err(Error::InvalidArgument(
                        "the range to collapse must end before the end of the file",
                    ));
                }
                self.check_nodes(inode, offset / PAGE..u64::MAX)?;
                self.need_to_shift(inode, end / PAGE, offset / PAGE)
            }
            RangeOp::Insert => {
                aligned(offset, end - offset)?;
                if offset >= size {
                    return Err(Error::InvalidArgument("a hole must be inserted before the end of the file"));
                }
                let longer = end_of(size, end - offset)?;
                inode.check_room_to(longer.div_ceil(PAGE))?;
                self.need_to_shift(inode, offset / PAGE, end / PAGE)
            }
        }
    }

    /// What it takes to move all pages from `from` on to `to`: the nodes there, and one block for the page
    /// being moved. All of them are written again.
    fn need_to_shift(&self, inode: &Inode, from: u64, to: u64) -> Result<Need> {
        let inline = self.need_to_have(inode, 0..0)?;
        let (mut at, end) = (from, inode.size_bytes.div_ceil(PAGE));
        let (mut moved, mut lacking) = (0, Lacking::default());
        if inode.has(inline_flag::DATA) && from == 0 {
            self.add_lacking(inode, to..to + 1, &mut lacking)?;
            moved = 1;
        }
        while at < end && inode.has_pointers() {
            let hole = self.hole_pages_from(inode, PageNo(at))?;
            if hole > 0 {
                at = at.saturating_add(hole);
                continue;
            }
            let target = at - from + to;
            let pages = self.run_of_blocks(inode, PageNo(at))?.pages.min(end - at);
            self.add_lacking(inode, target..target + pages, &mut lacking)?;
            (at, moved) = (at + pages, moved + pages);
        }
        let nodes = (2 * (end.saturating_sub(from) / NODE_POINTERS as u64 + 2)).min(2 * moved);
        let need = Need { pages: u64::from(moved > 0), nodes: lacking.nodes.len() as u64, dirty: 0 };
        Ok(need + inline + Need { dirty: moved + nodes + lacking.nodes.len() as u64, ..Need::NONE })
    }

    /// The end of the next piece of a fallocate(2) of a large range, which begins at `offset`.
    pub(crate) fn piece_end(&self, inode: &Inode, op: RangeOp, offset: u64, end: u64) -> Result<u64> {
        let whole = |bytes: u64| offset.saturating_add(bytes) / PIECE_BYTES * PIECE_BYTES;
        Ok(match op {
            RangeOp::Collapse | RangeOp::Insert => end,
            RangeOp::Allocate { .. } | RangeOp::Zero { .. } => end.min(whole(PIECE_BYTES)),
            // Holes cost no write.
            RangeOp::Punch => {
                let first = PageNo(offset.div_ceil(PAGE));
                let hole = if inode.has_pointers() { self.hole_pages_from(inode, first)? } else { 0 };
                end.min(whole(hole.saturating_mul(PAGE).saturating_add(PIECE_BYTES)))
            }
        })
    }
}

impl Change<'_> {
    /// Writes all of `buf`.
    pub(crate) fn write(&self, nid: Nid, offset: u64, buf: &[u8], way: WritePath) -> Result<()> {
        let end = offset + buf.len() as u64;
        if self.inode(nid)?.keeps_inline(end) {
            return self.write_inline(nid, offset, buf);
        }
        let inode = self.content_of_pages(nid)?;
        self.reserve_pages(nid, pages_of(offset, end))?;
        if !breaks_at_times(Breach::WriteNotShown) {
            self.change_pages(nid, offset, buf, way)?;
        }
        if end > inode.size_bytes && !breaks_at_times(Breach::SizeStays) {
            self.change_inode(nid, |block| block.size_bytes.set(end))?;
        }
        Ok(())
    }

    /// Writes bytes of a file whose content stays inline.
    fn write_inline(&self, nid: Nid, offset: u64, buf: &[u8]) -> Result<()> {
        let (inode, end) = (self.inode(nid)?, offset + buf.len() as u64);
        // Linux sets this flag with the first byte: without it the inline bytes do not count.
        let there = if inode.has(inline_flag::DATA_EXIST) { inode.size_bytes } else { 0 };
        self.change_inode(nid, |block| {
            let content = inode.inline_content_mut(block);
            content[there as usize..].fill(0);
            content[offset as usize..end as usize].copy_from_slice(buf);
            block.inline |= inline_flag::DATA_EXIST;
            block.size_bytes.set(inode.size_bytes.max(end));
        })
    }

    fn reserve_pages(&self, nid: Nid, pages: Range<u64>) -> Result<()> {
        pages.into_iter().try_for_each(|page| self.reserve(nid, PageNo(page)).map(drop))
    }

    /// The inode, with its content in pages: inline content is moved to the first one.
    fn content_of_pages(&self, nid: Nid) -> Result<Inode> {
        let inode = self.inode(nid)?;
        if !inode.has(inline_flag::DATA) {
            return Ok(inode);
        }
        let mut block = Box::new([0; BLOCK_BYTES]);
        let len = self.read(&inode, 0, &mut block[..])?;
        self.clear_inline(&inode, inline_flag::DATA | inline_flag::DATA_EXIST)?;
        if len > 0 {
            self.reserve(nid, PageNo(0))?;
            self.pages.put(nid, PageNo(0), block);
        }
        self.inode(nid)
    }

    /// Truncates or extends. Inline content stays inline if it fits.
    pub(crate) fn resize(&self, nid: Nid, size_bytes: u64) -> Result<()> {
        let inode = self.inode(nid)?;
        if inode.keeps_inline(size_bytes) {
            return self.change_inode(nid, |block| {
                let content = inode.inline_content_mut(block);
                content[(size_bytes.min(inode.size_bytes)) as usize..].fill(0);
                block.size_bytes.set(size_bytes);
            });
        }
        if size_bytes != inode.size_bytes {
            self.content_of_pages(nid)?;
        }
        // Allocated pages may exist behind EOF. A file that grows keeps them.
        if size_bytes <= inode.size_bytes {
            self.cut_pages(nid, PageNo(size_bytes.div_ceil(PAGE)))?;
            if !breaks(Breach::CutOffComesBack) {
                self.clear_bytes(nid, size_bytes, size_bytes.next_multiple_of(PAGE))?;
            }
        }
        self.change_inode(nid, |block| block.size_bytes.set(size_bytes))
    }

    /// Zeroes bytes within a page, unless the page is a hole.
    fn clear_bytes(&self, nid: Nid, from: u64, to: u64) -> Result<()> {
        let (inode, page) = (self.inode(nid)?, PageNo(from / PAGE));
        if from >= to || !inode.has_pointers() || self.hole_pages_from(&inode, page)? > 0 {
            return Ok(());
        }
        let only_reserved = self.run_of_blocks(&inode, page)?.addr == BlockAddr::NEW;
        if only_reserved && self.pages.with(nid, page, |_| ()).is_none() {
            return Ok(());
        }
        let (from, to) = ((from % PAGE) as usize, (to - page.0 * PAGE) as usize);
        self.change_page(nid, page, |block| block[from..to].fill(0))
    }

    /// Makes the range read as zeros; `whole` handles the pages that lie wholly in it.
    fn clear(
        &self,
        nid: Nid,
        (offset, end): (u64, u64),
        whole: impl FnOnce(PageNo, PageNo) -> Result<()>,
    ) -> Result<()> {
        let (first, last) = (offset.div_ceil(PAGE), end / PAGE);
        if first <= last {
            self.clear_bytes(nid, offset, first * PAGE)?;
            whole(PageNo(first), PageNo(last))?;
            self.clear_bytes(nid, last * PAGE, end)
        } else {
            self.clear_bytes(nid, offset, end)
        }
    }

    /// The pages of a file from this one on that are no holes. A sparse file may have a billion of holes.
    fn mapped(&self, nid: Nid, from: u64) -> Result<Vec<Range<u64>>> {
        let inode = self.inode(nid)?;
        let (mut page, end) = (from, inode.size_bytes.div_ceil(PAGE));
        let mut found: Vec<Range<u64>> = Vec::new();
        while page < end {
            let hole = self.hole_pages_from(&inode, PageNo(page))?;
            page = page.saturating_add(hole);
            if hole > 0 {
                continue;
            }
            match found.last_mut().filter(|last| last.end == page) {
                Some(last) => last.end += 1,
                None => found.push(page..page + 1),
            }
            page += 1;
        }
        Ok(found)
    }

    /// Moves a page of a file, which is no hole, to another page, which is one. Its old block remains: the
    /// summary must name the pointer that leads to a block.
    fn move_page(&self, nid: Nid, from: PageNo, to: PageNo) -> Result<()> {
        let inode = self.inode(nid)?;
        let only_reserved = self.run_of_blocks(&inode, from)?.addr == BlockAddr::NEW
            && self.pages.with(nid, from, |_| ()).is_none();
        let block = self.page(&inode, from)?;
        self.reserve(nid, to)?;
        if let Some(block) = block.filter(|_| !only_reserved) {
            self.pages.put(nid, to, block);
        }
        self.punch_pages(nid, from, PageNo(from.0 + 1))?;
        self.relieve(nid)
    }

    /// Changes a range, or a piece of one, as fallocate(2) requires.
    pub(crate) fn change_range(&self, nid: Nid, op: RangeOp, offset: u64, end: u64) -> Result<()> {
        let inode = self.inode(nid)?;
        let grown = match op {
            RangeOp::Allocate { keep_size: true } | RangeOp::Zero { keep_size: true } | RangeOp::Punch => {
                inode.size_bytes
            }
            _ => inode.size_bytes.max(end),
        };
        let inline_end = if op == RangeOp::Punch { 0 } else { end };
        match op {
            RangeOp::Allocate { .. } | RangeOp::Punch | RangeOp::Zero { .. }
                if inode.keeps_inline(inline_end) =>
            {
                self.change_inode(nid, |block| {
                    let content = inode.inline_content_mut(block);
                    let len = content.len() as u64;
                    if !matches!(op, RangeOp::Allocate { .. }) {
                        content[offset.min(len) as usize..end.min(len) as usize].fill(0);
                    }
                    content[inode.size_bytes as usize..grown as usize].fill(0);
                })?;
            }
            RangeOp::Allocate { .. } => {
                self.content_of_pages(nid)?;
                self.reserve_pages(nid, pages_of(offset, end))?;
            }
            RangeOp::Punch => {
                self.content_of_pages(nid)?;
                self.clear(nid, (offset, end), |from, to| self.punch_pages(nid, from, to))?;
            }
            RangeOp::Zero { .. } if breaks(Breach::ZeroPunches) => {
                self.content_of_pages(nid)?;
                self.clear(nid, (offset, end), |from, to| self.punch_pages(nid, from, to))?;
            }
            RangeOp::Zero { .. } => {
                self.content_of_pages(nid)?;
                self.reserve_pages(nid, pages_of(offset, end))?;
                self.clear(nid, (offset, end), |from, to| self.zero_pages(nid, from, to))?;
            }
            RangeOp::Collapse => {
                self.content_of_pages(nid)?;
                self.punch_pages(nid, PageNo(offset / PAGE), PageNo(end / PAGE))?;
                for page in self.mapped(nid, end / PAGE)?.into_iter().flatten() {
                    self.move_page(nid, PageNo(page), PageNo(page - (end - offset) / PAGE))?;
                }
                return self.resize(nid, inode.size_bytes - (end - offset));
            }
            RangeOp::Insert => {
                self.content_of_pages(nid)?;
                for page in self.mapped(nid, offset / PAGE)?.into_iter().flatten().rev() {
                    self.move_page(nid, PageNo(page), PageNo(page + (end - offset) / PAGE))?;
                }
                return self.change_inode(nid, |block| block.size_bytes.set(inode.size_bytes + end - offset));
            }
        }
        if grown == inode.size_bytes {
            return Ok(());
        }
        self.change_inode(nid, |block| block.size_bytes.set(grown))
    }

    /// Marks a file that is to keep its size, though pages up to `end` were allocated: Linux' recovery of an
    /// fsync would extend the file over them. `op`: that of a piece of the range. Between two pieces an fsync may
    /// come, and the last piece may fail.
    pub(crate) fn mark_kept_size(&self, nid: Nid, op: RangeOp, end: u64) -> Result<()> {
        let keeps = [RangeOp::Allocate { keep_size: true }, RangeOp::Zero { keep_size: true }];
        let inode = self.inode(nid)?;
        if !keeps.contains(&op) || end <= inode.size_bytes || !inode.has_pointers() {
            return Ok(());
        }
        self.change_inode(nid, |block| block.advise |= advise_flag::KEEP_SIZE)
    }
}

#[cfg(test)]
pub(crate) mod tests;
