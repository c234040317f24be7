//! Calls that read or write a part of an open file.
//!
//! With `f2fs` and `f2fs-nl` a writer locks the whole file. With `f2fs-rl` and `f2fs-integrated` a write over
//! existing pages locks only these (`range_lock`). A write that extends the file, fills a hole or finds inline
//! content locks the whole file, as any other change does.

use super::attrs::check_regular;
use crate::change::Need;
use crate::data::direct_io::WritePath;
use crate::data::pointers::PAGES_MANY;
use crate::data::write::end_of;
use crate::inode::{Alteration, Inode, check_same_inode, nid_of};
use crate::mounted::F2fs;
use crate::mounted::guards::Guards;
use crate::mounted::range_lock::HeldRange;
use heddle_range_lock::Access;
use heddle_vfs::{Error, FileKind, FileSystem, Handle, Result, room_for};
use std::sync::RwLockReadGuard;

/// A locked part of a file. Fields are in the order in which they are dropped.
struct Part<'f> {
    inode: Inode,
    _range: Option<HeldRange<'f>>,
    _stripe: RwLockReadGuard<'f, ()>,
}

impl F2fs {
    /// Reads a part; the bytes are of one instant.
    pub(crate) fn read_range(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let _inside = self.inside();
        let part = self.lock_part(handle, offset, buf.len(), Access::Shared)?;
        match part.inode.kind {
            _ if !handle.flags.read => Err(Error::BadHandle),
            FileKind::Directory => Err(Error::IsDirectory),
            _ => self.media.read(&part.inode, offset, buf),
        }
    }

    /// Writes all of `buf`, or nothing. If `buf` goes beyond the largest file size, writes the part below it.
    /// Returns the number of bytes.
    pub(crate) fn write_range(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<usize> {
        match self.write_or_nothing(handle, offset, buf) {
            Err(Error::FileTooBig) => {
                let room = room_for(offset, buf.len(), self.size_max_bytes(handle.ino)?)?;
                self.write_or_nothing(handle, offset, &buf[..room]).map(|()| room)
            }
            done => done.map(|()| buf.len()),
        }
    }

    /// Writes all of `buf`, or nothing.
    fn write_or_nothing(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<()> {
        if self.ranges.is_some() && self.overwrite_existing(handle, offset, buf)? {
            return Ok(());
        }
        self.write_exclusive(handle, buf, Alteration::Content, |_| offset).map(drop)
    }

    /// Overwrites existing pages. Returns false if not all exist, or if too many pages are in memory.
    fn overwrite_existing(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<bool> {
        if !handle.flags.write {
            return Err(Error::BadHandle);
        }
        let end = end_of(offset, buf.len() as u64)?;
        // Two more: the range may begin and end inside a page.
        let pages = Need::to_write((buf.len() / crate::format::BLOCK_BYTES) as u64 + 2);
        let _inside = self.changing(pages.dirty_in_all())?;
        let part = self.lock_part(handle, offset, buf.len(), Access::Exclusive)?;
        let inode = &part.inode;
        check_regular(inode)?;
        inode.check_allowed(Alteration::Content)?;
        inode.check_readable()?;
        // Pages in memory are written to the device only under an exclusive lock of their file (`range_lock` R1).
        let fits = end <= inode.size_bytes && self.media.pages.count() < PAGES_MANY;
        if !fits || !self.media.has_pages(inode, offset, end)? {
            return Ok(false);
        }
        self.media.check_edges(inode, offset, end)?;
        let way = WritePath::of(handle.flags.direct, offset, buf.len());
        self.watched(|| {
            self.media.change_pages(inode.nid, offset, buf, way)?;
            self.modified(inode, true)
        })?;
        Ok(true)
    }

    /// The inode of an open file, with a part of it locked if the variant locks parts.
    fn lock_part(&self, handle: &Handle, offset: u64, len_bytes: usize, access: Access) -> Result<Part<'_>> {
        let nid = nid_of(handle.ino)?;
        let stripe = self.guards.shared(nid);
        let bytes = offset..offset.saturating_add(len_bytes as u64);
        let range = match &self.ranges {
            Some(ranges) if !bytes.is_empty() => Some(ranges.hold(Guards::stripe(nid), bytes, access)?),
            _ => None,
        };
        let inode = self.media.inode(nid)?;
        check_same_inode(handle, &inode)?;
        Ok(Part { inode, _range: range, _stripe: stripe })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_vfs::{Cred, Ino, Name, OpenFlags};

    #[test]
    fn existing_pages_are_overwritten_without_the_whole_file() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
        crate::make_image(&path, "", &|_, _| ()).unwrap();
        let fs = F2fs::open_for_writing(&path).unwrap();
        let name = Name::new(b"f").unwrap();
        let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
        fs.write(&file, 0, &[1; 3 * 4096]).unwrap();
        assert_eq!(fs.overwrite_existing(&file, 100, &[2; 8000]), Ok(true));
        assert_eq!(fs.overwrite_existing(&file, 3 * 4096, &[2]), Ok(false), "beyond the end");
        fs.release(file);
        fs.unmount().unwrap();
    }
}
