//! Calls that break a promise on purpose: the breaches of `planted` that take more than a changed condition.

use crate::format::inline_flag;
use crate::inode::{Inode, nid_of};
use crate::mounted::F2fs;
use heddle_vfs::{Cred, FileKind, FileSystem, Handle, Ino, Name, RangeOp, Result};
use std::time::Duration;

impl F2fs {
    /// `ReadsInTwo`.
    pub(super) fn read_in_two(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let (first, second) = buf.split_at_mut(buf.len() / 4);
        let read = self.read_range(handle, offset, first)?;
        std::thread::yield_now();
        match read {
            read if read < first.len() => Ok(read),
            read => self.read_range(handle, offset + read as u64, second).map(|more| read + more),
        }
    }

    /// `AppendsAtOldEnd`. Returns an end of the file that may be old.
    pub(super) fn old_end(&self, handle: &Handle) -> Result<u64> {
        let end = self.getattr(handle.ino)?.size_bytes;
        std::thread::sleep(Duration::from_micros(50));
        Ok(end)
    }

    /// `WritesInTwo`. Returns the number of bytes written.
    pub(super) fn write_half(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<usize> {
        let half = buf.len() / 2;
        if half > 0 {
            self.write_range(handle, offset, &buf[..half])?;
        }
        Ok(half)
    }

    /// `FailedWriteGrows`.
    pub(super) fn grow_after_failed_write(
        &self,
        handle: &Handle,
        len_bytes: usize,
        offset: impl Fn(&Inode) -> u64,
    ) -> Result<()> {
        let nid = nid_of(handle.ino)?;
        let _locked = self.guards.alone(&[nid]);
        let inode = self.media.inode(nid)?;
        let end = offset(&inode) + len_bytes as u64;
        if end <= inode.size_bytes || inode.has(inline_flag::DATA) {
            return Ok(());
        }
        self.media.change_inode(nid, |block| block.size_bytes.set(end))
    }

    /// `ShiftInTwo`.
    pub(super) fn punch_before_shift(&self, handle: &Handle, offset: u64, end: u64) -> Result<()> {
        if end >= self.getattr(handle.ino)?.size_bytes {
            return Ok(());
        }
        self.change_range(handle, RangeOp::Punch, offset, end)?;
        self.checkpoint()
    }

    /// `RenameInTwo`: removes the inode that has the new name.
    pub(super) fn unlink_before_rename(&self, from: (Ino, Name<'_>), to: (Ino, Name<'_>)) -> Result<()> {
        let root = Cred::root();
        let found = (self.lookup(&root, from.0, from.1), self.lookup(&root, to.0, to.1));
        let (Ok(moved), Ok(target)) = found else { return Ok(()) };
        if moved.kind != FileKind::Regular
            || target.ino == moved.ino
            || self.unlink(&root, to.0, to.1).is_err()
        {
            return Ok(());
        }
        self.checkpoint()
    }
}
