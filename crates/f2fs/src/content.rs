//! Bytes of files, changed. Pages are changed in memory; pointers are reserved at once.
//!
//! Everything here is called with the inode's lock held for writing, but for `has_pages`, and for `change_pages`, which may be called
//! with these pages held instead (`ranges`).

use crate::format::{BLOCK_BYTES, Block, INODE_POINTERS, SEGMENT_BLOCKS, inline_flag};
use crate::ids::{BlockAddr, Nid, PageNo};
use crate::inode::Inode;
use crate::media::Media;
use crate::way::Way;
use heddle_vfs::{Error, OFFSET_MAX_BYTES, RangeOp, Result};
use zerocopy::little_endian::U32;

pub(crate) const PAGE: u64 = BLOCK_BYTES as u64;
/// Pages that go to the device at one go: as many as a segment has.
const THROUGH_PAGES: usize = SEGMENT_BLOCKS as usize;

/// Where a range ends, if a file may be that long.
pub(crate) fn end_of(offset: u64, len_bytes: u64) -> Result<u64> {
    offset.checked_add(len_bytes).filter(|end| *end <= OFFSET_MAX_BYTES).ok_or(Error::FileTooBig)
}

/// # Errors
/// [`Error::InvalidArgument`].
pub(crate) fn aligned(offset: u64, len_bytes: u64) -> Result<()> {
    let whole = offset.is_multiple_of(PAGE) && len_bytes.is_multiple_of(PAGE);
    if whole { Ok(()) } else { Err(Error::InvalidArgument("the range is not of whole pages")) }
}

impl Media {
    /// Writes all of `buf`, or nothing.
    pub(crate) fn write(&self, nid: Nid, offset: u64, buf: &[u8], way: Way) -> Result<()> {
        let end = end_of(offset, buf.len() as u64)?;
        let inode = self.content_of_pages(nid)?;
        self.reserve_pages(nid, PageNo(offset / PAGE), PageNo((end - 1) / PAGE))?;
        self.change_pages(nid, offset, buf, way)?;
        if end > inode.size_bytes {
            self.change_inode(nid, |block| block.size_bytes.set(end))?;
        }
        Ok(())
    }

    /// Writes over pages that have their pointers.
    pub(crate) fn change_pages(&self, nid: Nid, offset: u64, buf: &[u8], way: Way) -> Result<()> {
        let end = offset + buf.len() as u64;
        if way == Way::Through {
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
                // Of a page that is written whole nothing has to be read.
                Some(whole) if self.pages.change(nid, PageNo(page), |block| *block = *whole) => {}
                Some(whole) => self.pages.put(nid, PageNo(page), Box::new(*whole)),
                None => self.change_page(nid, PageNo(page), change)?,
            }
        }
        Ok(())
    }

    /// Have all pages of a range their pointers?
    pub(crate) fn has_pages(&self, inode: &Inode, offset: u64, end: u64) -> Result<bool> {
        if !inode.has_pointers() {
            return Ok(false);
        }
        for page in offset / PAGE..=(end - 1) / PAGE {
            if self.hole(inode, PageNo(page))? > 0 {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// All of them or none.
    fn reserve_pages(&self, nid: Nid, first: PageNo, last: PageNo) -> Result<()> {
        let mut new = Vec::new();
        for page in (first.0..=last.0).map(PageNo) {
            match self.reserve(nid, page) {
                Ok((_, true)) => new.push(page),
                Ok(_) => {}
                Err(error) => {
                    for page in new {
                        self.punch_pages(nid, page, PageNo(page.0 + 1))?;
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
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

    /// The inode, its content in pages: what stood inline goes into the first one.
    fn content_of_pages(&self, nid: Nid) -> Result<Inode> {
        let inode = self.inode(nid)?;
        inode.readable()?;
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

    /// The slots hold nothing any more; they are pointers from now on.
    pub(crate) fn clear_inline(&self, inode: &Inode, flags: u8) -> Result<()> {
        let (from, to) = (inode.first_pointer(), INODE_POINTERS - inode.inline_xattr_slots());
        self.change_inode(inode.nid, |block| {
            block.addr[from..to].fill(U32::new(0));
            block.inline &= !flags;
        })
    }

    /// Cuts or extends.
    pub(crate) fn resize(&self, nid: Nid, size_bytes: u64) -> Result<()> {
        end_of(size_bytes, 0)?;
        let inode = self.inode(nid)?;
        inode.readable()?;
        if size_bytes == 0 && inode.has(inline_flag::DATA) {
            self.clear_inline(&inode, inline_flag::DATA | inline_flag::DATA_EXIST)?;
        } else if size_bytes != inode.size_bytes {
            self.content_of_pages(nid)?;
        }
        // Pages behind the end may be there: reserved ones.
        self.cut_pages(nid, PageNo(size_bytes.div_ceil(PAGE)))?;
        self.clear_bytes(nid, size_bytes, size_bytes.next_multiple_of(PAGE))?;
        self.change_inode(nid, |block| block.size_bytes.set(size_bytes))
    }

    /// Bytes within a page become zeros, unless there is no page.
    fn clear_bytes(&self, nid: Nid, from: u64, to: u64) -> Result<()> {
        let (inode, page) = (self.inode(nid)?, PageNo(from / PAGE));
        if from >= to || !inode.has_pointers() || self.hole(&inode, page)? > 0 {
            return Ok(());
        }
        let only_reserved = self.run(&inode, page)?.addr == BlockAddr::NEW;
        if only_reserved && self.pages.with(nid, page, |_| ()).is_none() {
            return Ok(());
        }
        let (from, to) = ((from % PAGE) as usize, (to - page.0 * PAGE) as usize);
        self.change_page(nid, page, |block| block[from..to].fill(0))
    }

    /// The range reads as zeros; pages wholly in it are holes.
    fn clear(&self, nid: Nid, offset: u64, end: u64) -> Result<()> {
        let (first, last) = (offset.div_ceil(PAGE), end / PAGE);
        if first <= last {
            self.clear_bytes(nid, offset, first * PAGE)?;
            self.punch_pages(nid, PageNo(first), PageNo(last))?;
            self.clear_bytes(nid, last * PAGE, end)
        } else {
            self.clear_bytes(nid, offset, end)
        }
    }

    /// A page of a file becomes another one, which is a hole. Its block stays behind: the summary says which pointer leads to it.
    fn move_page(&self, nid: Nid, from: PageNo, to: PageNo) -> Result<()> {
        let inode = self.inode(nid)?;
        if self.hole(&inode, from)? > 0 {
            return Ok(());
        }
        let only_reserved =
            self.run(&inode, from)?.addr == BlockAddr::NEW && self.pages.with(nid, from, |_| ()).is_none();
        let block = self.page(&inode, from)?;
        self.reserve(nid, to)?;
        if let Some(block) = block.filter(|_| !only_reserved) {
            self.pages.put(nid, to, block);
        }
        self.punch_pages(nid, from, PageNo(from.0 + 1))?;
        self.relieve(nid)
    }

    /// What fallocate(2) does.
    pub(crate) fn change_range(&self, nid: Nid, op: RangeOp, offset: u64, len_bytes: u64) -> Result<()> {
        let end = end_of(offset, len_bytes)?;
        let inode = self.content_of_pages(nid)?;
        let keeps = match op {
            RangeOp::Allocate { keep_size } => {
                let needed = end.div_ceil(PAGE) - offset / PAGE;
                let space = self.space()?;
                // Before anything is reserved: most of what cannot be had is asked for by mistake.
                if needed.saturating_sub(inode.block().blocks.get()) > space.blocks_user {
                    return Err(Error::NoSpace);
                }
                self.reserve_pages(nid, PageNo(offset / PAGE), PageNo((end - 1) / PAGE))?;
                keep_size
            }
            RangeOp::Punch => {
                self.clear(nid, offset, end)?;
                true
            }
            RangeOp::Zero { keep_size } => {
                self.clear(nid, offset, end)?;
                keep_size
            }
            RangeOp::Collapse => {
                aligned(offset, len_bytes)?;
                if end >= inode.size_bytes {
                    return Err(Error::InvalidArgument("a collapsed range ends before the end of the file"));
                }
                self.punch_pages(nid, PageNo(offset / PAGE), PageNo(end / PAGE))?;
                let pages = end / PAGE..inode.size_bytes.div_ceil(PAGE);
                for page in pages {
                    self.move_page(nid, PageNo(page), PageNo(page - len_bytes / PAGE))?;
                }
                return self.resize(nid, inode.size_bytes - len_bytes);
            }
            RangeOp::Insert => {
                aligned(offset, len_bytes)?;
                if offset >= inode.size_bytes {
                    return Err(Error::InvalidArgument("a hole is inserted before the end of the file"));
                }
                let size = end_of(inode.size_bytes, len_bytes)?;
                for page in (offset / PAGE..inode.size_bytes.div_ceil(PAGE)).rev() {
                    self.move_page(nid, PageNo(page), PageNo(page + len_bytes / PAGE))?;
                }
                return self.change_inode(nid, |block| block.size_bytes.set(size));
            }
        };
        if !keeps && end > inode.size_bytes {
            self.change_inode(nid, |block| block.size_bytes.set(end))?;
        }
        Ok(())
    }
}
