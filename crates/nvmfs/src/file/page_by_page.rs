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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::volume::bench::Bench;

    const PAGE: u64 = BLOCK_BYTES as u64;

    /// What `write` returns for this range of a file of four pages, and the pieces that it asked for: all but the nth succeed.
    fn written(bench: &Bench, offset: u64, len: u64, fails: usize) -> (Result<usize>, Vec<(u64, usize)>) {
        let data: Vec<u8> = (0..len).map(|n| (n % 251) as u8).collect();
        let mut pieces = Vec::new();
        let piece = |_: &mut LaneGuard<'_>, at: u64, bytes: &[u8]| {
            assert_eq!(bytes, &data[(at - offset) as usize..][..bytes.len()]);
            pieces.push((at, bytes.len()));
            if pieces.len() == fails { Err(Error::BadBuffer) } else { Ok(at) }
        };
        let done = write(bench.core(), &mut bench.guard(), bench.inode(), offset, &data, piece);
        (done, pieces)
    }

    #[test]
    fn a_write_goes_on_page_by_page_until_one_fails() {
        let bench = Bench::new();
        bench.write(0, 1, 4 * PAGE);
        let all = vec![(100, 3996), (PAGE, 4096), (2 * PAGE, 10)];
        assert_eq!(written(&bench, 100, 3996 + PAGE + 10, 0), (Ok(8102), all.clone()));
        for (fails, done) in [(1, Err(Error::BadBuffer)), (2, Ok(3996)), (3, Ok(8092))] {
            assert_eq!(written(&bench, 100, 3996 + PAGE + 10, fails), (done, all[..fails].to_vec()));
        }
        let two = vec![(2 * PAGE, 4096), (3 * PAGE, 4096)];
        assert_eq!(written(&bench, 2 * PAGE, 2 * PAGE, 0), (Ok(8192), two));
    }

    #[test]
    fn a_write_of_one_page_or_over_a_hole_is_not_begun() {
        let bench = Bench::new();
        bench.write(0, 1, 4 * PAGE);
        for (offset, len) in
            [(0, PAGE), (PAGE, PAGE), (PAGE + 5, 10), (3 * PAGE, PAGE + 1), (3 * PAGE + 1, PAGE)]
        {
            assert_eq!(
                written(&bench, offset, len, 0),
                (Err(Error::NoSpace), Vec::new()),
                "{len} at {offset}"
            );
        }
        assert_eq!(written(&bench, u64::MAX, 2, 0), (Err(Error::FileTooBig), Vec::new()));
    }
}
