//! Reads the bytes of a file: inline, or page by page. Pages without a block read as zeros.

use crate::format::{BLOCK_BYTES, Block, inline_flag};
use crate::ids::PageNo;
use crate::image::Media;
use crate::inode::Inode;
use crate::planted::{Breach, breaks};
use heddle_vfs::{Error, Result, SeekTarget};

const PAGE: u64 = BLOCK_BYTES as u64;
/// A longer run of blocks is not cached.
const CACHED_RUN_BYTES_MAX: usize = 64 << 10;

impl Media {
    /// Reads at `offset`. A read is short only at the end of the file.
    pub(crate) fn read(&self, inode: &Inode, offset: u64, buf: &mut [u8]) -> Result<usize> {
        inode.check_readable()?;
        let len = inode.size_bytes.saturating_sub(offset).min(buf.len() as u64) as usize;
        let buf = &mut buf[..len];
        if buf.is_empty() {
            return Ok(0);
        }
        if inode.has(inline_flag::DATA) {
            read_inline(inode, offset as usize, buf)?;
        } else {
            self.read_pages(inode, offset, buf)?;
        }
        Ok(len)
    }

    fn read_pages(&self, inode: &Inode, mut offset: u64, mut buf: &mut [u8]) -> Result<()> {
        while !buf.is_empty() {
            let (page, skip) = (PageNo(offset / PAGE), offset % PAGE);
            let in_page = ((PAGE - skip) as usize).min(buf.len());
            let copy = |block: &Block| buf[..in_page].copy_from_slice(&block[skip as usize..][..in_page]);
            let len = match self.pages.with_page_in_memory(inode.nid, page, copy) {
                Some(()) => in_page,
                None => self.read_run(inode, page, skip, buf)?,
            };
            offset += len as u64;
            buf = &mut std::mem::take(&mut buf)[len..];
        }
        Ok(())
    }

    /// Reads the run that begins at `page`, blocks or zeros, up to the next page that is dirty in memory. Returns
    /// the number of bytes.
    fn read_run(&self, inode: &Inode, page: PageNo, skip: u64, buf: &mut [u8]) -> Result<usize> {
        let run = self.run_of_blocks(inode, page)?;
        let changed = self.pages.next_dirty(inode.nid, page).map_or(u64::MAX, |next| next.0 - page.0);
        let bytes = run.pages.min(changed).saturating_mul(PAGE).saturating_sub(skip);
        let len = bytes.min(buf.len() as u64) as usize;
        match run.addr.is_block() {
            false => buf[..len].fill(0),
            // A long read is rarely repeated soon.
            true if len > CACHED_RUN_BYTES_MAX => {
                self.device.read(run.addr, skip as usize, &mut buf[..len])?
            }
            true => {
                let skip = skip as usize;
                let mut bytes = vec![0; (skip + len).next_multiple_of(BLOCK_BYTES)];
                self.device.read(run.addr, 0, &mut bytes)?;
                buf[..len].copy_from_slice(&bytes[skip..skip + len]);
                for (n, block) in bytes.as_chunks::<BLOCK_BYTES>().0.iter().enumerate() {
                    self.pages.cache(inode.nid, PageNo(page.0 + n as u64), Box::new(*block));
                }
            }
        }
        Ok(len)
    }

    /// Next data or hole at or after `offset`. A page that is only reserved counts as a hole.
    pub(crate) fn seek(&self, inode: &Inode, target: SeekTarget, offset: u64) -> Result<u64> {
        let size = inode.size_bytes;
        if offset >= size {
            return Err(Error::NoSuchOffset);
        }
        if inode.has(inline_flag::DATA) {
            return Ok(if target == SeekTarget::Data { offset } else { size });
        }
        let mut at = offset;
        while at < size {
            let page = PageNo(at / PAGE);
            let changed = self.pages.next_dirty(inode.nid, page);
            let (is_data, pages) = match changed {
                // A dirty page counts as data: it has a block, or has one reserved.
                Some(next) if next == page => (true, 1),
                _ => {
                    let is_reserved =
                        breaks(Breach::ReservedIsData) && self.hole_pages_from(inode, page)? == 0;
                    let (is_data, pages) =
                        if is_reserved { (true, 1) } else { self.run_of_data_or_hole(inode, page)? };
                    (is_data, pages.min(changed.map_or(u64::MAX, |next| next.0 - page.0)))
                }
            };
            if is_data == (target == SeekTarget::Data) {
                return Ok(at);
            }
            at = (at / PAGE).saturating_add(pages).saturating_mul(PAGE);
        }
        // The end of the file counts as a hole.
        if target == SeekTarget::Hole { Ok(size) } else { Err(Error::NoSuchOffset) }
    }
}

fn read_inline(inode: &Inode, offset: usize, buf: &mut [u8]) -> Result<()> {
    let content = inode.inline_content();
    if inode.size_bytes > content.len() as u64 {
        let (size, room) = (inode.size_bytes, content.len());
        return Err(Error::Corrupt(format!("inode {}: {size} bytes inline, where {room} fit", inode.nid.0)));
    }
    if inode.has(inline_flag::DATA_EXIST) {
        buf.copy_from_slice(&content[offset..][..buf.len()]);
    } else {
        buf.fill(0);
    }
    Ok(())
}
