//! Fresh blocks for the bytes of a write, filled before any lock is taken.
//!
//! Data is never written in place. Whole pages come from the caller. At either edge, the rest of a page is
//! copied from the page's present block, and is zero beyond it (I3 of `inode`).

use crate::alloc::{Purpose, take_blocks};
use crate::file::read::readable_still;
use crate::format::extent_list::{EXTENT_BLOCKS_MAX, EXTENTS_A_BLOCK, encode};
use crate::format::record::{Blocks, Record, WRITE_PAGES_MAX};
use crate::ids::{BlockNo, Extent, InodeId, PageNo, Version, block_at};
use crate::planted::{Bug, flushed_unless, planted};
use crate::state::cell::Map;
use crate::state::core::Core;
use crate::state::lane::LaneLocal;
use heddle_pmem::{BLOCK_BYTES, BadBuffer};
use heddle_vfs::{Error, Result, Time};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Most extents that a write names in its records; with more, it names an extent list.
const EXTENTS_DIRECT_MAX: usize = 16;

/// Most records of one write: one for each of [`EXTENTS_DIRECT_MAX`] extents.
pub const WRITE_SLOTS_MAX: u32 = EXTENTS_DIRECT_MAX as u32;

/// A range of a file in bytes and pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Span {
    /// First byte.
    pub start: u64,
    /// One beyond the last byte.
    pub end: u64,
}

impl Span {
    /// `len` bytes at `start`. If the end overflows, the span is longer than any file.
    pub fn new(start: u64, len: u64) -> Span {
        Span { start, end: start.saturating_add(len) }
    }

    /// First page.
    pub fn first(self) -> PageNo {
        PageNo::of(self.start)
    }

    /// One beyond the last page.
    pub fn page_end(self) -> PageNo {
        PageNo::after(self.end)
    }

    /// Number of pages.
    pub fn pages(self) -> u64 {
        self.page_end().0 - self.first().0
    }

    /// Returns true if it begins inside a page.
    pub fn ragged_start(self) -> bool {
        !self.start.is_multiple_of(BLOCK)
    }

    /// Returns true if it ends inside a page.
    pub fn ragged_end(self) -> bool {
        !self.end.is_multiple_of(BLOCK)
    }

    /// The pages it covers in part, first and last; `None` where an edge lies on a page boundary. A single
    /// page that is partial at both ends is returned once, as the first.
    pub fn edges(self) -> [Option<PageNo>; 2] {
        let (first, last) = (self.first(), PageNo(self.page_end().0 - 1));
        let head = self.ragged_start() || (first == last && self.ragged_end());
        let tail = self.ragged_end() && first != last;
        [head.then_some(first), tail.then_some(last)]
    }

    /// Number of valid bytes in its last page when the file has `size` bytes, 1 to 4096.
    pub fn end_in_last_page(self, size: u64) -> u32 {
        let start_of_last = (self.page_end().0 - 1) * BLOCK;
        let end = (size.max(self.end) - start_of_last).min(BLOCK) as u32;
        if planted(Bug::PageEndSaysNoSize) { end % BLOCK as u32 } else { end }
    }
}

/// Allocates the blocks of a span into `extents`. A single page that replaces another ([`Purpose::Replace`])
/// may take a block of the reserve: it frees as many blocks as it takes.
pub fn allocate(
    core: &Core,
    own: &mut LaneLocal,
    span: Span,
    purpose: Purpose,
    extents: &mut Vec<Extent>,
) -> Result<()> {
    extents.clear();
    if take_blocks(core.free_map(), &core.region, own, span.pages(), purpose, extents) {
        Ok(())
    } else {
        Err(Error::NoSpace)
    }
}

/// Copies the caller's bytes to their blocks, without a fence.
///
/// # Errors
/// [`Error::BadBuffer`]: the caller's buffer is not mapped.
pub fn copy_in(core: &Core, span: Span, extents: &[Extent], data: &[u8]) -> Result<()> {
    let mut rest = data;
    let mut skip = span.start % BLOCK;
    for e in extents {
        let room = (e.count * BLOCK - skip).min(rest.len() as u64) as usize;
        let (now, later) = rest.split_at(room);
        let mut taken = Ok(());
        flushed_unless(Bug::EdgeNotFlushed, || {
            taken = core.region.nt_write_user(e.block.pos().plus(skip), now, data.len());
        });
        taken.map_err(|BadBuffer| Error::BadBuffer)?;
        rest = later;
        skip = 0;
    }
    Ok(())
}

/// Fills the rest of an edge page from its present content, without a fence.
///
/// # Errors
/// [`Error::Io`]: that content cannot be read.
pub fn fill_edge(core: &Core, span: Span, extents: &[Extent], page: PageNo, map: Map) -> Result<()> {
    let block = block_at(extents, page.0 - span.first().0);
    let from = span.start.saturating_sub(page.offset()).min(BLOCK);
    let to = (span.end - page.offset()).min(BLOCK);
    flushed_unless(Bug::EdgeNotFlushed, || match map.content() {
        Some(old) => {
            core.region.nt_copy(block.pos(), old.pos(), from);
            core.region.nt_copy(block.pos().plus(to), old.pos().plus(to), BLOCK - to);
        }
        None => {
            core.region.nt_zero(block.pos(), from);
            core.region.nt_zero(block.pos().plus(to), BLOCK - to);
        }
    });
    let Some(old) = map.content() else { return Ok(()) };
    readable_still(core, old.pos(), from)?;
    readable_still(core, old.pos().plus(to), BLOCK - to)
}

/// Number of blocks of the extent list for so many extents; 0 if records name them directly.
fn list_block_count(extents: &[Extent]) -> u64 {
    if extents.len() <= EXTENTS_DIRECT_MAX && extents.iter().all(|e| e.count <= WRITE_PAGES_MAX) {
        return 0;
    }
    let pieces: u64 = extents.iter().map(|e| e.count.div_ceil(EXTENT_BLOCKS_MAX)).sum();
    pieces.div_ceil(EXTENTS_A_BLOCK as u64)
}

/// An extent list that no record names yet.
pub struct List {
    /// Its first block.
    pub first: BlockNo,
    /// All its blocks, to be returned if the write fails.
    pub blocks: Vec<Extent>,
}

/// Writes the extent list of a write that needs one, without a fence. The list's blocks live as long as the
/// log page that names it.
pub fn write_list(
    core: &Core,
    own: &mut LaneLocal,
    owner: InodeId,
    extents: &[Extent],
) -> Result<Option<List>> {
    let count = list_block_count(extents);
    if count == 0 {
        return Ok(None);
    }
    let mut places = Vec::new();
    if !take_blocks(core.free_map(), &core.region, own, count, Purpose::Data, &mut places) {
        return Err(Error::NoSpace);
    }
    let mut pieces = Vec::new();
    for e in extents {
        let mut at = 0;
        while at < e.count {
            let n = (e.count - at).min(EXTENT_BLOCKS_MAX);
            pieces.push(Extent { block: e.block.plus(at), count: n });
            at += n;
        }
    }
    for (i, chunk) in pieces.chunks(EXTENTS_A_BLOCK).enumerate() {
        let at = block_at(&places, i as u64);
        let further = i as u64 + 1 + u64::from(planted(Bug::LongListCut)) < count;
        let next = further.then(|| block_at(&places, i as u64 + 1));
        let words = encode(core.seed, owner, at, chunk, next);
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        if planted(Bug::ListNotFlushed) {
            flushed_unless(Bug::ListNotFlushed, || {
                for (i, word) in (0..).zip(words) {
                    // PERSIST: part of a planted bug.
                    core.region.store_u64(at.pos().plus(i * 8), word);
                }
            });
        } else {
            core.region.nt_write(at.pos(), &bytes);
        }
    }
    Ok(Some(List { first: block_at(&places, 0), blocks: places }))
}

/// The records of a write.
pub struct WriteRecords {
    /// First page.
    pub page: PageNo,
    /// Valid bytes of the last page.
    pub end_in_last_page: u32,
    /// Version of all of them.
    pub version: Version,
    /// Time of the write.
    pub mtime: Time,
    /// Change count of the size that the write saw.
    pub change_count: u64,
    /// The blocks were not written: they read as zeros.
    pub unwritten: bool,
}

impl WriteRecords {
    /// Appends the records to `out`: one for each extent, or one that names the list.
    pub fn make(&self, extents: &[Extent], list: Option<BlockNo>, out: &mut Vec<Record>) {
        let record = |page: PageNo, pages: u64, blocks: Blocks, last: bool| Record::Write {
            page,
            pages,
            blocks,
            end_in_last_page: if last { self.end_in_last_page } else { BLOCK as u32 },
            version: self.version,
            mtime: self.mtime,
            change_count: self.change_count,
        };
        if let Some(list) = list {
            let pages = extents.iter().map(|e| e.count).sum();
            out.push(record(self.page, pages, Blocks::List(list), true));
            return;
        }
        let mut page = self.page;
        for (i, e) in extents.iter().enumerate() {
            let blocks = if self.unwritten { Blocks::Unwritten(e.block) } else { Blocks::At(e.block) };
            out.push(record(page, e.count, blocks, i + 1 == extents.len()));
            page = PageNo(page.0 + e.count);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
