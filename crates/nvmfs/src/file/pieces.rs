//! A write of several pages on a full image, where the file has a block for each of them: page by page.
//!
//! No page is written in place: each takes one block of those that are left for what replaces ([`Purpose::Replace`](crate::alloc::Purpose))
//! and gives the page's old one back, before the next page takes one. So a write of any length needs one block at a time, and room in
//! the log. It is not atomic: readers, and a cut, may see some of its pages.

use crate::file::deferred::patiently;
use crate::file::range::holes;
use crate::ids::PageNo;
use crate::planted::{Breach, breaks};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use heddle_pmem::BLOCK_BYTES;
use heddle_vfs::{Error, Result};

/// Writes as much of `data` as it can with `write`, which writes bytes of one page; how much. A file that has not a block for every page
/// is left alone.
///
/// # Errors
/// [`Error::NoSpace`], and nothing was written.
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
    if breaks(Breach::NoPieces) || last.0 - first.0 < 2 || holes(core, inode, first, last) > 0 {
        return Err(Error::NoSpace);
    }
    let mut done = 0;
    while done < data.len() {
        let at = offset + done as u64;
        let len = (BLOCK_BYTES - at as usize % BLOCK_BYTES).min(data.len() - done);
        match patiently(core, guard, |guard| write(guard, at, &data[done..done + len])) {
            Ok(_) => done += len,
            // Pages that were written stay so: the caller is told how many.
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    Ok(done)
}
