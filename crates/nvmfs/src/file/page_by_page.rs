//! A write of several pages on a full image, page by page, where the file has a block for each of the pages.
//!
//! No page is written in place. Each takes one of the blocks reserved for overwrites
//! ([`Purpose::Replace`](crate::alloc::Purpose)), and frees the page's old block before the next page takes
//! one. So a write of any length needs one block at a time, and room in the log. It is not atomic: readers see
//! some of its pages, and a crash may leave some.

use crate::file::deferred::retry_if_full;
use crate::file::range::holes;
use crate::ids::PageNo;
use crate::planted::{Breach, breaks};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use heddle_pmem::BLOCK_BYTES;
use heddle_vfs::{Error, Result};

/// Writes as much of `data` as possible with `write`, which writes bytes of one page. Returns the number of
/// bytes. Nothing is written if a page of the range has no block.
///
/// # Errors
/// [`Error::NoSpace`], also for a write of one page and if a page has no block; [`Error::FileTooBig`]; those of
/// `write` for the first page. No byte was written then.
#[cold]
pub fn write(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    offset: u64,
    data: &[u8],
    mut write: impl FnMut(&mut LaneGuard<'_>, u64, &[u8]) -> Result<u64>,
) -> Result<usize> {
    let end = offset.checked_add(data.len() as u64).ok_or(Error::FileTooBig)?;
    let (first, last) = (PageNo::of(offset), PageNo::after(end));
    if breaks(Breach::NotPageByPage) || last.0 - first.0 < 2 || holes(core, inode, first, last) > 0 {
        return Err(Error::NoSpace);
    }
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        let len = (BLOCK_BYTES - at as usize % BLOCK_BYTES).min(data.len() - done);
        match retry_if_full(core, guard, |guard| write(guard, at, &data[done..done + len])) {
            Ok(_) => done += len,
            // Pages that were written stay so: the caller gets the number of bytes.
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
