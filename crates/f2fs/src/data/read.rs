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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::write::tests::{INLINE, NODE, OWN, Scene};
    use crate::inode::nid_of;
    use heddle_vfs::short::Short;
    use heddle_vfs::{FileSystem, RangeOp};

    #[test]
    fn sixteen_pages_at_a_time_are_cached_and_more_are_not() {
        let scene = Scene::new();
        let file = scene.fs.new_file(heddle_vfs::Ino::ROOT, "file");
        let bytes: Vec<u8> = (0..60 * PAGE).map(|at| (at / PAGE + at % 251) as u8).collect();
        scene.fs.write(&file, 0, &bytes).unwrap();
        scene.fs.sync().unwrap();
        let (pages, nid) = (&scene.fs.media.pages, nid_of(file.ino).unwrap());
        let cached = || -> Vec<u64> {
            let has = |page: &u64| {
                let is = pages.with_page_in_memory(nid, PageNo(*page), |block| {
                    assert!(block[..] == bytes[(*page * PAGE) as usize..][..BLOCK_BYTES], "page {page}");
                });
                is.is_some()
            };
            (0..60).filter(has).collect()
        };
        let read = |at: u64, len: usize| {
            assert!(scene.fs.read_vec(&file, at, len) == bytes[at as usize..][..len], "{len} bytes at {at}");
        };
        assert_eq!(cached(), [0; 0]);
        read(20 * PAGE, (64 << 10) + 1);
        assert_eq!(cached(), [0; 0]);
        read(0, 64 << 10);
        assert_eq!(cached(), (0..16).collect::<Vec<_>>());
        read(40 * PAGE + 100, 5000);
        assert_eq!(cached(), (0..16).chain(40..42).collect::<Vec<_>>());
        read(0, 60 * PAGE as usize);
        read(41 * PAGE + 4095, 2);
        assert_eq!(cached(), (0..16).chain(40..43).collect::<Vec<_>>());
    }

    #[test]
    fn a_seek_finds_data_and_holes_to_the_byte() {
        let scene = Scene::new();
        let far = OWN + NODE + 5;
        let file = scene.file("file", &[0..2, far..far + 1]);
        scene.fs.fallocate(&file, RangeOp::Allocate { keep_size: true }, 5 * PAGE, 3 * PAGE).unwrap();
        scene.fs.sync().unwrap();
        // One of the reserved pages is written, and not on the device yet.
        scene.fs.write(&file, 6 * PAGE, b"x").unwrap();
        scene.fs.write(&file, (far + 1) * PAGE, b"the end").unwrap();
        let seek = |target, at: u64| scene.fs.media.seek(&scene.inode(&file), target, at);
        let end = (far + 1) * PAGE + 7;
        for (at, data, hole) in [
            (0, 0, 2 * PAGE),
            (PAGE + 3, PAGE + 3, 2 * PAGE),
            (2 * PAGE, 6 * PAGE, 2 * PAGE),
            (3 * PAGE + 9, 6 * PAGE, 3 * PAGE + 9),
            (5 * PAGE + 1, 6 * PAGE, 5 * PAGE + 1),
            (6 * PAGE + 1, 6 * PAGE + 1, 7 * PAGE),
            (7 * PAGE + 1, far * PAGE, 7 * PAGE + 1),
            (OWN * PAGE + 1, far * PAGE, OWN * PAGE + 1),
            (far * PAGE, far * PAGE, end),
            (end - 1, end - 1, end),
        ] {
            assert_eq!(
                (seek(SeekTarget::Data, at), seek(SeekTarget::Hole, at)),
                (Ok(data), Ok(hole)),
                "{at}"
            );
        }
        for target in [SeekTarget::Data, SeekTarget::Hole] {
            assert_eq!(seek(target, end), Err(Error::NoSuchOffset));
        }
        scene.fs.resize(&file, end + 9 * PAGE).unwrap();
        assert_eq!(seek(SeekTarget::Data, (far + 2) * PAGE), Err(Error::NoSuchOffset));
        assert_eq!(seek(SeekTarget::Hole, far * PAGE), Ok((far + 2) * PAGE));
        let inline = scene.inode(&scene.inline("inline", 100));
        let seek = |target, at: u64| scene.fs.media.seek(&inline, target, at);
        assert_eq!((seek(SeekTarget::Data, 50), seek(SeekTarget::Hole, 50)), (Ok(50), Ok(100)));
        assert_eq!(seek(SeekTarget::Hole, 100), Err(Error::NoSuchOffset));
    }

    #[test]
    fn inline_bytes_are_read_up_to_all_the_room_there_is() {
        let scene = Scene::new();
        let file = scene.inline("inline", INLINE as usize);
        assert!(scene.fs.read_vec(&file, 10, 5000) == vec![7; INLINE as usize - 10]);
        let read = |inode: &Inode| {
            let mut bytes = [1; 100];
            scene.fs.media.read(inode, 0, &mut bytes).map(|len| bytes[..len].to_vec())
        };
        let more = scene.inode_as(&file, |block| block.size_bytes.set(INLINE + 1));
        assert!(matches!(read(&more), Err(Error::Corrupt(_))));
        let none = scene.inode_as(&file, |block| block.inline &= !inline_flag::DATA_EXIST);
        assert_eq!(read(&none), Ok(vec![0; 100]), "without that flag its bytes do not count");
    }
}
