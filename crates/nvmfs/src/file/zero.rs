//! Clearing the whole pages of a range: they become holes, or stay allocated as unwritten pages, which read
//! as zeros.
//!
//! A page that becomes unwritten keeps its block. One record covers a run of blocks, at the version of the
//! clearing. So older records of the block as data lose, in any chain; and no other file has had the block
//! meanwhile.
//!
//! Crash       with few runs, all records of a call are one transaction. Otherwise the call is made in pieces; each piece is whole, and
//!             size and time come with the last.

use crate::file::new_blocks::Span;
use crate::file::range::Clean;
use crate::file::resize::{self, NewAttributes};
use crate::format::record::{Blocks, Record, WRITE_PAGES_MAX};
use crate::ids::{BlockNo, PageNo, Version};
use crate::planted::{Bug, planted};
use crate::state::cell::Map;
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use heddle_vfs::{Error, Result, Time};

/// The new state of whole pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Becomes {
    /// Holes: their blocks are freed.
    Hole,
    /// Allocated and never written: those that are mapped keep their blocks.
    Unwritten,
}

/// Bytes that will read as zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clear {
    /// The bytes.
    pub span: Span,
    /// The new state of whole pages among them.
    pub to: Becomes,
}

/// Number of pages that fit one transaction for any placement of their blocks.
const PIECE_PAGES: u64 = 32;

/// Makes a range read as zeros; its blocks stay allocated. The caller holds the EOF latch.
pub fn zero(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    span: Span,
    size: Option<u64>,
    clean: Clean,
) -> Result<()> {
    let whole = Clear { span, to: Becomes::Unwritten };
    match resize::clear(core, guard, inode, whole, size) {
        // There are too many runs for one transaction; nothing has changed.
        Err(Error::InvalidArgument(_)) => {}
        done => return done,
    }
    let mut start = span.start;
    loop {
        let end = PageNo(PageNo::of(start).0 + PIECE_PAGES).offset().min(span.end);
        let piece = Clear { span: Span { start, end }, to: Becomes::Unwritten };
        let last = end == span.end;
        resize::clear(core, guard, inode, piece, size.filter(|_| last))?;
        clean(core, guard, inode);
        if last {
            return Ok(());
        }
        start = end;
    }
}

fn change_count(inode: InodeRef<'_>, new: Option<&NewAttributes>) -> u64 {
    inode.volatile.change_count() + u64::from(new.is_some())
}

/// The record that turns whole pages into holes.
pub fn tombstone(
    inode: InodeRef<'_>,
    span: Span,
    (version, mtime): (Version, Time),
    new: Option<&NewAttributes>,
) -> Vec<Record> {
    let (page, end) = (PageNo::after(span.start), PageNo::of(span.end));
    let pages = end.0.saturating_sub(page.0);
    let record = Record::Punch { page, pages, version, mtime, change_count: change_count(inode, new) };
    if pages > 0 { vec![record] } else { Vec::new() }
}

/// The records that turn whole pages with data into unwritten ones, one for each run of blocks. The caller
/// holds the cells.
pub fn unwritten(
    core: &Core,
    inode: InodeRef<'_>,
    span: Span,
    (version, mtime): (Version, Time),
    new: Option<&NewAttributes>,
) -> Vec<Record> {
    let record = |(page, block, pages): (PageNo, BlockNo, u64)| Record::Write {
        page,
        pages,
        blocks: Blocks::Unwritten(block),
        // Another record carries the size.
        end_in_last_page: 0,
        version,
        mtime,
        change_count: change_count(inode, new),
    };
    runs(core, inode, PageNo::after(span.start), PageNo::of(span.end)).into_iter().map(record).collect()
}

/// Runs of pages with data whose blocks are contiguous.
fn runs(core: &Core, inode: InodeRef<'_>, first: PageNo, end: PageNo) -> Vec<(PageNo, BlockNo, u64)> {
    let mut runs: Vec<(PageNo, BlockNo, u64)> = Vec::new();
    for found in inode.volatile.index().runs(&core.arena, first, end) {
        for (page, block) in (found.page.0..).zip(found.cells.iter().map(|cell| Map::content(cell.map()))) {
            let Some(block) = block else { continue };
            match runs.last_mut() {
                Some((from, start, pages))
                    if (from.0 + *pages == page || planted(Bug::ZeroedRunOverGap))
                        && start.plus(*pages) == block
                        && *pages < WRITE_PAGES_MAX =>
                {
                    *pages += 1;
                }
                _ => runs.push((PageNo(page), block, 1)),
            }
        }
    }
    runs
}

const _: () = assert!(PIECE_PAGES as u32 + 8 < crate::format::page::SLOTS);

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::volume::bench::Bench;

    #[test]
    fn a_run_is_of_pages_and_blocks_side_by_side() {
        let bench = Bench::new();
        let (core, inode) = (bench.core(), bench.inode());
        let set = |page: u64, map: Map| {
            let run = inode.volatile.index().grow(&core.arena, PageNo(page)).unwrap();
            run.cells[0].set(map, Version(1));
        };
        let data =
            [(0, 100), (1, 101), (2, 102), (4, 104), (5, 106), (7, 107), (8, 108), (64, 109), (65, 110)];
        data.iter().for_each(|(page, block)| set(*page, Map::data(BlockNo(*block))));
        set(3, Map::unwritten(BlockNo(103)));
        let runs_in = |first, end| {
            let found = runs(core, inode, PageNo(first), PageNo(end)).into_iter();
            found.map(|(page, block, pages)| (page.0, block.0, pages)).collect::<Vec<_>>()
        };
        let all = [(0, 100, 3), (4, 104, 1), (5, 106, 1), (7, 107, 2), (64, 109, 2)];
        assert_eq!(runs_in(0, 100), all);
        assert_eq!(runs_in(1, 8), [(1, 101, 2), (4, 104, 1), (5, 106, 1), (7, 107, 1)]);
        assert!(runs_in(3, 4).is_empty(), "it reads as zeros already");
        data.iter().for_each(|(page, _)| set(*page, Map::HOLE));
        set(3, Map::HOLE);
    }
}
