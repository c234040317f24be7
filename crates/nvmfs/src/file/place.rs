//! Where the bytes of a write go: fresh blocks, filled before anything is locked.
//!
//! Data is never written in place. Whole pages come from the caller; the rest of a page at either edge comes from the page's
//! present block, and is zero beyond it (I3 of `inode`).

use crate::alloc::{Purpose, take_blocks};
use crate::file::read::readable_still;
use crate::format::extent_list::{EXTENT_BLOCKS_MAX, EXTENTS_A_BLOCK, encode};
use crate::format::record::{Blocks, Record, WRITE_PAGES_MAX};
use crate::ids::{BlockNo, Extent, InodeId, PageNo, Version, block_at};
use crate::planted::{Bug, flushed_unless, planted};
use crate::state::cell::Map;
use crate::state::core::Core;
use crate::state::lane::Own;
use heddle_pmem::{BLOCK_BYTES, BadBuffer};
use heddle_vfs::{Error, Result, Time};

const BLOCK: u64 = BLOCK_BYTES as u64;

/// Extents that a write names directly; beyond, it names an extent list.
const EXTENTS_DIRECT_MAX: usize = 16;

/// Records of one write at most: [`EXTENTS_DIRECT_MAX`] extents.
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
    /// `len` bytes at `start`; a range that no number ends is longer than any file.
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

    /// Pages.
    pub fn pages(self) -> u64 {
        self.page_end().0 - self.first().0
    }

    /// Does it begin inside a page?
    pub fn ragged_start(self) -> bool {
        !self.start.is_multiple_of(BLOCK)
    }

    /// Does it end inside a page?
    pub fn ragged_end(self) -> bool {
        !self.end.is_multiple_of(BLOCK)
    }

    /// The pages it covers in part, first and last; `None` where an edge lies on a page boundary. A single page that is ragged
    /// at both ends is given once, as the first.
    pub fn edges(self) -> [Option<PageNo>; 2] {
        let (first, last) = (self.first(), PageNo(self.page_end().0 - 1));
        let head = self.ragged_start() || (first == last && self.ragged_end());
        let tail = self.ragged_end() && first != last;
        [head.then_some(first), tail.then_some(last)]
    }

    /// Valid bytes of its last page when the file then has `size` bytes, 1 to 4096.
    pub fn end_in_last_page(self, size: u64) -> u32 {
        let start_of_last = (self.page_end().0 - 1) * BLOCK;
        (size.max(self.end) - start_of_last).min(BLOCK) as u32
    }
}

/// Allocates the blocks of a span into `extents`. A single page that replaces another ([`Purpose::Replace`]) may use some of the
/// reserve: it leaves as much space free as there was.
pub fn allocate(
    core: &Core,
    own: &mut Own,
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

/// Copies the caller's bytes to their places. Not fenced.
///
/// # Errors
/// [`Error::BadBuffer`]: they are not there.
pub fn copy_in(core: &Core, span: Span, extents: &[Extent], data: &[u8]) -> Result<()> {
    let mut rest = data;
    let mut skip = span.start % BLOCK;
    for e in extents {
        let room = (e.count * BLOCK - skip).min(rest.len() as u64) as usize;
        let (now, later) = rest.split_at(room);
        let mut taken = Ok(());
        flushed_unless(Bug::EdgeNotFlushed, || {
            taken = core.region.take_in(e.block.pos().plus(skip), now, data.len());
        });
        taken.map_err(|BadBuffer| Error::BadBuffer)?;
        rest = later;
        skip = 0;
    }
    Ok(())
}

/// Fills the rest of an edge page from its present content. Not fenced.
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

/// Blocks of the extent list that so many extents need; 0 if records name them directly.
fn list_blocks(extents: &[Extent]) -> u64 {
    if extents.len() <= EXTENTS_DIRECT_MAX && extents.iter().all(|e| e.count <= WRITE_PAGES_MAX) {
        return 0;
    }
    let pieces: u64 = extents.iter().map(|e| e.count.div_ceil(EXTENT_BLOCKS_MAX)).sum();
    pieces.div_ceil(EXTENTS_A_BLOCK as u64)
}

/// An extent list that no record names yet.
pub struct List {
    /// Where it begins.
    pub first: BlockNo,
    /// All its blocks: to give back if the write fails.
    pub blocks: Vec<Extent>,
}

/// Writes the extent list of a write that needs one. Not fenced. The list's blocks live as long as the log page that names it.
pub fn write_list(core: &Core, own: &mut Own, owner: InodeId, extents: &[Extent]) -> Result<Option<List>> {
    let count = list_blocks(extents);
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
        let next = (i as u64 + 1 < count).then(|| block_at(&places, i as u64 + 1));
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
    /// When.
    pub mtime: Time,
    /// Generation of the size it saw.
    pub generation: u64,
    /// The blocks were not written: they read as zeros.
    pub unwritten: bool,
}

impl WriteRecords {
    /// Makes them: one an extent, or one that names the list.
    pub fn make(&self, extents: &[Extent], list: Option<BlockNo>, out: &mut Vec<Record>) {
        let record = |page: PageNo, pages: u64, blocks: Blocks, last: bool| Record::Write {
            page,
            pages,
            blocks,
            end_in_last_page: if last { self.end_in_last_page } else { BLOCK as u32 },
            version: self.version,
            mtime: self.mtime,
            generation: self.generation,
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
