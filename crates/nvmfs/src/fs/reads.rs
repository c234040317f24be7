//! Reads of a file's bytes.

use super::NvmFs;
use crate::file;
use crate::lane_counters::Kind;
use crate::state::inode::InodeRef;
use crate::state::lease::{LaneGuard, enter_for};
use heddle_vfs::{Error, FileKind, Handle, Result};

impl NvmFs {
    pub(super) fn read_part(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.readable(handle)?;
        if buf.is_empty() {
            let directory = matches!(inode.volatile.kind_perm(), Some((FileKind::Directory, _)));
            return if directory { Err(Error::IsDirectory) } else { Ok(0) };
        }
        let mut guard = enter_for(&self.core, Kind::Read)?;
        self.get(&mut guard, inode, offset, buf)
    }

    pub(super) fn get(
        &self,
        guard: &mut LaneGuard<'_>,
        inode: InodeRef<'_>,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize> {
        match inode.volatile.kind_perm() {
            Some((FileKind::Directory, _)) => return Err(Error::IsDirectory),
            None => return Err(Error::Stale),
            _ => {}
        }
        let bytes = file::read_at(&self.core, guard, inode, offset, buf)?;
        guard.lane.counts.moved(Kind::Read, bytes as u64);
        Ok(bytes)
    }
}
