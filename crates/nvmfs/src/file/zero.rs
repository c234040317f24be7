//! What clearing a range makes of its whole pages: holes, or pages that read as zeros and keep their blocks.
//!
//! A page that becomes unwritten keeps its block under a record of its own, as large as its run of blocks, at the version of the
//! clearing. So an older record of the block as data loses, whatever chain it lies in; and the block has been in nobody else's hands.
//!
//! Crash       the records of one call lie in one transaction where it has few runs; else it goes in pieces, each of which is whole, and
//!             size and time come with the last.

use crate::file::place::Span;
use crate::file::range::Clean;
use crate::file::resize::{self, NewState};
use crate::format::record::{Blocks, Record, WRITE_PAGES_MAX};
use crate::ids::{BlockNo, PageNo, Version};
use crate::state::cell::Map;
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use heddle_vfs::{Error, Result};

/// What whole pages become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Becomes {
    /// Holes: their blocks are freed.
    Hole,
    /// Allocated and never written: those that are mapped keep their blocks.
    Unwritten,
}

/// Bytes that are to read as zeros.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Clear {
    /// Which.
    pub span: Span,
    /// What becomes of pages that lie in them whole.
    pub to: Becomes,
}

/// Pages that surely fit one transaction, whatever blocks they have.
const PIECE_PAGES: u64 = 32;

/// Makes a range read as zeros; what is allocated there stays so. The caller holds the EOF latch.
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
        // Too many runs; nothing has changed.
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

fn generation(inode: InodeRef<'_>, new: Option<&NewState>) -> u64 {
    inode.vi.change() + u64::from(new.is_some())
}

/// The record that makes whole pages holes.
pub fn tombstone(inode: InodeRef<'_>, span: Span, version: Version, new: Option<&NewState>) -> Vec<Record> {
    let (page, end) = (PageNo::after(span.start), PageNo::of(span.end));
    let mtime = crate::clock::exact();
    let pages = end.0.saturating_sub(page.0);
    let record = Record::Punch { page, pages, version, mtime, generation: generation(inode, new) };
    if pages > 0 { vec![record] } else { Vec::new() }
}

/// The records that make whole pages with data unwritten, a run of blocks each. The caller holds the cells.
pub fn unwritten(
    core: &Core,
    inode: InodeRef<'_>,
    span: Span,
    version: Version,
    new: Option<&NewState>,
) -> Vec<Record> {
    let mtime = crate::clock::exact();
    let record = |(page, block, pages): (PageNo, BlockNo, u64)| Record::Write {
        page,
        pages,
        blocks: Blocks::Unwritten(block),
        // The size is another record's affair.
        end_in_last_page: 0,
        version,
        mtime,
        generation: generation(inode, new),
    };
    runs(core, inode, PageNo::after(span.start), PageNo::of(span.end)).into_iter().map(record).collect()
}

/// Runs of pages with data whose blocks are neighbours.
fn runs(core: &Core, inode: InodeRef<'_>, first: PageNo, end: PageNo) -> Vec<(PageNo, BlockNo, u64)> {
    let mut runs: Vec<(PageNo, BlockNo, u64)> = Vec::new();
    for found in inode.vi.index().runs(&core.arena, first, end) {
        for (page, block) in (found.page.0..).zip(found.cells.iter().map(|cell| Map::content(cell.map()))) {
            let Some(block) = block else { continue };
            match runs.last_mut() {
                Some((from, start, pages))
                    if from.0 + *pages == page && start.plus(*pages) == block && *pages < WRITE_PAGES_MAX =>
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
