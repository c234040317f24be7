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
    use crate::variant::Variant;
    use heddle_vfs::{Cred, Ino, Name, OpenFlags, RangeOp};

    fn with_file(variant: Variant, work: impl FnOnce(&F2fs, &Handle)) {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("image");
        std::fs::File::create(&path).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
        crate::make_image(&path, "", &|_, _| ()).unwrap();
        let fs = F2fs::open_as(&path, variant).unwrap();
        let name = Name::new(b"f").unwrap();
        let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
        work(&fs, &file);
        fs.release(file);
        fs.unmount().unwrap();
    }

    #[test]
    fn existing_pages_are_overwritten_without_the_whole_file() {
        with_file(Variant::F2fs, |fs, file| {
            fs.write(file, 0, &[1; 3 * 4096]).unwrap();
            assert_eq!(fs.overwrite_existing(file, 100, &[2; 8000]), Ok(true));
            assert_eq!(fs.overwrite_existing(file, 3 * 4096, &[2]), Ok(false), "beyond the end");
        });
    }

    #[test]
    fn a_write_that_grows_or_fills_a_hole_takes_the_whole_file() {
        with_file(Variant::RangeLock, |fs, file| {
            fs.write(file, 0, &[1; 100]).unwrap();
            // The page is there, and the size changes.
            assert_eq!(fs.overwrite_existing(file, 50, &[2; 51]), Ok(false));
            assert_eq!(fs.overwrite_existing(file, 50, &[2; 50]), Ok(true));
            fs.write(file, 2 * 4096, &[1; 100]).unwrap();
            assert_eq!(fs.overwrite_existing(file, 4096, &[2]), Ok(false), "a hole");
            assert_eq!(fs.write(file, 50, &[3; 51]), Ok(51));
            let mut bytes = [0; 102];
            assert_eq!(fs.read(file, 0, &mut bytes), Ok(102));
            assert_eq!((&bytes[..50], &bytes[50..101], bytes[101]), (&[1; 50][..], &[3; 51][..], 0));
        });
    }

    #[test]
    fn no_bytes_are_read_from_anywhere() {
        for variant in [Variant::F2fs, Variant::RangeLock] {
            with_file(variant, |fs, file| {
                fs.write(file, 0, b"bytes").unwrap();
                for at in [0, 3, 5, 1 << 40] {
                    assert_eq!(fs.read(file, at, &mut []), Ok(0), "{at}");
                }
            });
        }
    }

    /// Blocks are counted from where the range begins.
    #[test]
    fn a_small_range_is_allocated_however_far_it_lies() {
        for op in [RangeOp::Allocate { keep_size: true }, RangeOp::Zero { keep_size: true }] {
            with_file(Variant::F2fs, |fs, file| {
                assert_eq!(fs.fallocate(file, op, 1 << 41, 3 * 4096), Ok(()));
                assert_eq!(fs.fallocate(file, op, 0, 1 << 41), Err(Error::NoSpace));
                assert!(matches!(fs.fallocate(file, op, 0, 0), Err(Error::InvalidArgument(_))));
                assert_eq!(fs.getattr(file.ino).unwrap().size_bytes, 0);
            });
        }
    }
}
