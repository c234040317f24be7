//! Writes that find no space: they wait for what is about to come back, make the file's log shorter, and proceed page by page.

use super::NvmFs;
use crate::file::deferred::retry_if_full;
use crate::file::page_by_page;
use crate::file::range::holes;
use crate::file::write_at;
use crate::file::write_heddle::At;
use crate::ids::PageNo;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::upkeep::clean;
use crate::upkeep::relog::Progress;
use heddle_vfs::{Error, Result, room_for};
use std::time::Duration;

/// Most turns of one attempt. One that moves a page of the log gives at least as many free slots as the page had dead records. Other
/// writers may take them first (`several_threads_can_overwrite_each_page_of_a_full_image`).
const TURNS_MAX: u32 = 400;
/// As many follow each other at once. After each later one that meets chains in use comes a pause.
const QUICK_TURNS: u32 = 40;
const PAUSE: Duration = Duration::from_micros(200);

impl NvmFs {
    /// Writes on a full image. A write of one page over another lacks no more than room in the log: the log is made shorter. One of
    /// several pages asks for all its blocks at once, and proceeds page by page later.
    #[cold]
    fn write_compressing(
        &self,
        guard: &mut LaneGuard<'_>,
        inode: InodeRef<'_>,
        at: At,
        buf: &[u8],
    ) -> Result<u64> {
        let mut done = write_at(&self.core, guard, inode, at, buf);
        let replaces_a_page = |offset: u64| {
            let (first, end) = (PageNo::of(offset), PageNo::after(offset.saturating_add(buf.len() as u64)));
            end.0 - first.0 == 1 && holes(&self.core, inode, first, end) == 0
        };
        if done != Err(Error::NoSpace) || !matches!(at, At::Offset(offset) if replaces_a_page(offset)) {
            return done;
        }
        for turn in 0..TURNS_MAX {
            if done != Err(Error::NoSpace) {
                break;
            }
            let Some(progress) = clean::compress(&self.core, guard, inode) else { break };
            done = write_at(&self.core, guard, inode, at, buf);
            if progress == Progress::Busy && turn >= QUICK_TURNS && done == Err(Error::NoSpace) {
                // A thread that uses a chain waits for a processor, or does the same as this one: it may use this lane's chains.
                guard.lane.intent.logged();
                guard.own.rest_chains(&self.core.arena, guard.id);
                std::thread::sleep(PAUSE);
            }
        }
        done
    }

    /// Retries a write that has failed: it may find space now, or a part of it may.
    #[cold]
    pub(super) fn write_retrying(
        &self,
        guard: &mut LaneGuard<'_>,
        inode: InodeRef<'_>,
        at: At,
        buf: &[u8],
    ) -> Result<(u64, usize)> {
        let done = retry_if_full(&self.core, guard, |guard| self.write_compressing(guard, inode, at, buf));
        if let (Err(Error::FileTooBig), At::Offset(offset)) = (&done, at) {
            let room = room_for(offset, buf.len(), self.core.file_bytes_max())?;
            // If the limit is another one than the file size, a retry would meet it again for ever.
            if room < buf.len() {
                return self.write_retrying(guard, inode, at, &buf[..room]);
            }
        }
        let (Err(Error::NoSpace), At::Offset(offset)) = (&done, at) else {
            return done.map(|offset| (offset, buf.len()));
        };
        let page = |guard: &mut LaneGuard<'_>, at, buf: &[u8]| {
            let done = self.write_compressing(guard, inode, At::Offset(at), buf);
            clean::after_call(&self.core, guard, done)
        };
        Ok((offset, page_by_page::write(&self.core, guard, inode, offset, buf, page)?))
    }
}
