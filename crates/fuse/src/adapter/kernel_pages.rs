//! Calls on files of which the kernel holds pages (`pages`).

use std::ops::Range;
use std::sync::atomic::Ordering::SeqCst;

use fuser::{FileHandle, Request};
use heddle_vfs::{Error, FileKind, Handle, Ino, RangeOp, Result, SeekTarget, ioctl};

use super::Adapter;
use crate::convert::seek_target;

impl Adapter {
    /// Reads for a page of the kernel's page cache.
    pub(crate) fn read_pages(&self, fh: FileHandle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.note_mapped(fh)?;
        self.with_handle(fh, |handle| {
            // The kernel does not tell whether it needs the page for a store.
            if handle.flags.write
                && let Err(Error::NoSpace) = self.fs.expect_stores(handle, offset, buf.len() as u64)
            {
                return Err(Error::NoSpace);
            }
            match self.pages.of(handle.ino) {
                Some(pages) => pages.read(&*self.fs, handle, offset, buf),
                None => self.fs.read(handle, offset, buf),
            }
        })
    }

    /// Reads for a call.
    pub(crate) fn read_call(
        &self,
        request: &Request,
        fh: FileHandle,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        self.with_handle(fh, |handle| {
            self.refuse_if_interrupted(request, handle.ino)?;
            self.fs.read(handle, offset, buf)
        })
    }

    /// Notes that a program is about to map this descriptor ([`heddle_vfs::ioctl::MAPS`]).
    pub(crate) fn maps(&self, ino: Ino, fh: FileHandle) -> Result<()> {
        let attr = self.guarded(|| self.fs.getattr(ino))?;
        if attr.kind != FileKind::Regular {
            return Err(Error::InvalidArgument("a directory has no pages"));
        }
        self.note_mapped(fh)
    }

    /// Notes who makes the calls on this descriptor ([`ioctl::PAST_KERNEL`], [`ioctl::THROUGH_KERNEL`]).
    pub(crate) fn announced(&self, command: u32, fh: FileHandle) -> Result<()> {
        self.with_open(fh, |open| {
            let (fs, handle, calls) = (&*self.fs, &open.handle, &open.marks.calls);
            match command {
                ioctl::PAST_KERNEL => self.openers.past_kernel(fs, handle, calls),
                _ => self.openers.through_kernel(fs, handle, calls),
            }
            Ok(())
        })
    }

    /// Marks the descriptor as mapped (P1).
    fn note_mapped(&self, fh: FileHandle) -> Result<()> {
        if self.with_open(fh, |open| Ok(open.marks.maps.load(SeqCst)))? {
            return Ok(());
        }
        let ino = self.with_handle(fh, |handle| Ok(handle.ino))?;
        let pages = self.guarded(|| self.pages.note(ino))?;
        pages.once(|| self.handles.wait_for_calls(ino));
        let marked = self.with_open(fh, |open| Ok(!open.marks.maps.swap(true, SeqCst)));
        if marked != Ok(true) {
            self.pages.closes_one_of(ino);
        }
        marked.map(drop)
    }

    /// Writes back a page of the kernel's page cache.
    pub(crate) fn write_back(&self, handle: &Handle, offset: u64, data: &[u8]) -> Result<usize> {
        match self.pages.of(handle.ino) {
            Some(pages) => pages.write_back(&*self.fs, handle, offset, data),
            None => self.fs.write(handle, offset, data),
        }
    }

    /// Writes past the kernel's pages.
    pub(crate) fn write_past_kernel_pages(&self, handle: &Handle, offset: u64, data: &[u8]) -> Result<usize> {
        let len = data.len() as u64;
        let range = || Ok(offset..offset.saturating_add(len));
        self.call_past_kernel_pages(handle, range, || self.fs.write(handle, offset, data))
    }

    /// Appends past the kernel's pages.
    pub(crate) fn append_past_kernel_pages(&self, handle: &Handle, data: &[u8]) -> Result<usize> {
        let range = || {
            let end = self.fs.getattr(handle.ino)?.size_bytes;
            Ok(end..end.saturating_add(data.len() as u64))
        };
        self.call_past_kernel_pages(handle, range, || self.fs.append_part(handle, data).map(|(_, len)| len))
    }

    /// Makes a change durable if its descriptor was opened with `O_SYNC` or `O_DSYNC`. The kernel sends no
    /// fsync after fallocate(2) and copy_file_range(2).
    pub(crate) fn synced(&self, handle: &Handle) -> Result<()> {
        if handle.flags.sync { self.fs.fsync(handle, false) } else { Ok(()) }
    }

    /// Allocates, punches or zeroes a range past the kernel's pages.
    pub(crate) fn fallocate_past_kernel_pages(
        &self,
        handle: &Handle,
        op: RangeOp,
        offset: u64,
        len_bytes: u64,
    ) -> Result<()> {
        let range = || match op {
            RangeOp::Allocate { .. } => Ok(0..0),
            _ => Ok(offset..offset.saturating_add(len_bytes)),
        };
        self.call_past_kernel_pages(handle, range, || self.fs.fallocate(handle, op, offset, len_bytes))
    }

    /// Finds data or a hole. The kernel may hold stores to holes of a mapped file that it has not written back: such a file is all data.
    pub(crate) fn seek(&self, fh: FileHandle, offset: i64, whence: i32) -> Result<u64> {
        self.with_handle(fh, |handle| {
            let offset = u64::try_from(offset).map_err(|_| Error::NoSuchOffset)?;
            let target = seek_target(whence)?;
            if !self.is_mapped(handle.ino) {
                return self.fs.seek(handle, target, offset);
            }
            let size_bytes = self.fs.getattr(handle.ino)?.size_bytes;
            match target {
                _ if offset >= size_bytes => Err(Error::NoSuchOffset),
                SeekTarget::Data => Ok(offset),
                SeekTarget::Hole => Ok(size_bytes),
            }
        })
    }

    /// Returns true if the kernel may hold pages of this file.
    pub(crate) fn is_mapped(&self, ino: Ino) -> bool {
        self.pages.of(ino).is_some()
    }

    fn call_past_kernel_pages<T>(
        &self,
        handle: &Handle,
        range: impl FnOnce() -> Result<Range<u64>>,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        let Some(pages) = self.pages.of(handle.ino) else { return call() };
        let (result, captured) = pages.call_past_kernel_pages(&*self.fs, range, call);
        self.pages.count(captured);
        result
    }
}
