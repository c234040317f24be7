//! fallocate and lseek: allocating, zeroing, finding data and holes. Collapsing and inserting ranges: see
//! [`shift`].

use crate::alloc::{Purpose, return_unused, take_blocks};
use crate::file::cells::lock_pages;
use crate::file::deferred::free_replaced;
use crate::file::new_blocks::{Span, WriteRecords};
use crate::file::resize::{NewAttributes, clear, set_attributes};
use crate::file::shift;
use crate::file::zero::{Becomes, Clear, zero};
use crate::format::record::Record;
use crate::ids::{BlockNo, Extent, PageNo, block_at};
use crate::log::commit;
use crate::planted::{Breach, Bug, breaks, planted};
use crate::state::cell::Map;
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::papers::lock_range;
use crate::steps::{Step, step};
use heddle_range_lock::Access;
use heddle_vfs::{Error, RangeOp, Result, SeekTarget, SetTime};

/// Number of pages that are allocated under one hold of their cells.
const STRIDE_PAGES: u64 = 4096;
/// Most records of one transaction of an allocation.
const RUNS_MAX: usize = 16;

/// Cleans the log of a file whose EOF latch is held. A call of many transactions needs the freed log space
/// before it ends.
pub type Clean = fn(&Core, &mut LaneGuard<'_>, InodeRef<'_>);

/// fallocate(2).
#[allow(clippy::too_many_arguments)]
pub fn fallocate(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    op: RangeOp,
    offset: u64,
    len: u64,
    clean: Clean,
) -> Result<()> {
    let max = core.file_bytes_max();
    let end = offset.checked_add(len).filter(|end| *end <= max).ok_or(Error::FileTooBig)?;
    let span = Span { start: offset, end };
    let _eof = inode.volatile.eof.lock();
    let grown = (end > inode.volatile.size()).then_some(end);
    match op {
        RangeOp::Allocate { keep_size } => {
            allocate(core, guard, inode, span, clean)?;
            let size = grown.filter(|_| !keep_size);
            let mtime = Some(SetTime::Now);
            set_attributes(core, guard, inode, &NewAttributes { size, mtime, ..NewAttributes::default() })
        }
        RangeOp::Punch => clear(core, guard, inode, Clear { span, to: Becomes::Hole }, None),
        RangeOp::Zero { .. } if breaks(Breach::ZeroPunches) => {
            clear(core, guard, inode, Clear { span, to: Becomes::Hole }, None)
        }
        RangeOp::Zero { keep_size } => {
            allocate(core, guard, inode, span, clean)?;
            zero(core, guard, inode, span, grown.filter(|_| !keep_size), clean)
        }
        RangeOp::Collapse => shift::collapse(core, guard, inode, span),
        RangeOp::Insert => shift::insert(core, guard, inode, span),
    }
}

/// Allocates blocks for the pages of a range. Only the file's block count changes visibly.
pub fn give_blocks(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    span: Span,
    clean: Clean,
) -> Result<()> {
    let _eof = inode.volatile.eof.lock();
    // The file may have been truncated meanwhile.
    let span = Span { end: span.end.min(inode.volatile.size()).max(span.start), ..span };
    allocate(core, guard, inode, span, clean)
}

fn allocate(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    span: Span,
    clean: Clean,
) -> Result<()> {
    let mut page = span.first();
    while page < span.page_end() {
        let end = PageNo((page.0 + STRIDE_PAGES).min(span.page_end().0));
        page = allocate_some(core, guard, inode, page, end)?;
        clean(core, guard, inode);
    }
    Ok(())
}

/// Allocates the holes of `[page, end)`, as many as one transaction names. Returns the page after the last
/// one examined.
fn allocate_some(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    page: PageNo,
    end: PageNo,
) -> Result<PageNo> {
    let _range =
        lock_range(core, guard.lane, guard.own, inode, page.offset(), end.offset(), Access::Exclusive)?;
    let (run, next) = first_hole(core, inode, page, end);
    let Some((first, want)) = run else { return Ok(next) };
    // Not before: a range without holes needs no log page, and a full image has none.
    if commit::prepare(core, guard, inode, RUNS_MAX as u32, Purpose::Data)? {
        // PERSIST: a fresh log page is empty before it is linked.
        core.region.fence();
    }
    let mut extents = Vec::new();
    if !take_blocks(core.free_map(), &core.region, guard.own, want, Purpose::Data, &mut extents) {
        return Err(Error::NoSpace);
    }
    // As many extents as fit one transaction; the others are allocated in the next one.
    let spare = extents.split_off(extents.len().min(RUNS_MAX));
    return_unused(core.free_map(), &spare);
    let count: u64 = extents.iter().map(|e| e.count).sum();
    let stop = PageNo(first.0 + count);
    let allocated = map_holes(core, guard, inode, &extents, (first, stop));
    if !matches!(allocated, Ok(true)) {
        return_unused(core.free_map(), &extents);
    }
    // If a writer came first, check again.
    Ok(if allocated? { stop } else { first })
}

/// Maps the holes `[first, stop)` to blocks that were never written. Returns false if one is no hole any
/// more; then, and on an error, nothing has changed.
fn map_holes(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    extents: &[Extent],
    (first, stop): (PageNo, PageNo),
) -> Result<bool> {
    let locked = lock_pages(core, guard, inode, first, stop)?;
    if holes(core, inode, first, stop) < stop.0 - first.0 {
        return Ok(false);
    }
    let version = locked.version.max(inode.volatile.floor()).next();
    let mut records: Vec<Record> = Vec::new();
    WriteRecords {
        page: first,
        end_in_last_page: 0,
        version,
        // The content does not change here. The times change with the attribute record after the whole
        // allocation, or not at all.
        mtime: inode.volatile.times()[0],
        change_count: inode.volatile.change_count(),
        unwritten: true,
    }
    .make(extents, None, &mut records);
    for record in records.iter_mut().filter(|_| !planted(Bug::KeptSizeGrows)) {
        if let Record::Write { end_in_last_page, .. } = record {
            *end_in_last_page = 0;
        }
    }
    let durable = commit::commit(core, guard, inode, &records)?;
    step(Step::Durable);
    let mut replaced = Vec::new();
    let map = |n: u64| Map::unwritten(block_at(extents, n));
    locked.commit(&durable).publish(version, map, &mut replaced);
    free_replaced(core, guard, inode, &replaced);
    Ok(true)
}

/// The first run of pages without blocks in `[page, end)`, and the page at which to continue.
fn first_hole(
    core: &Core,
    inode: InodeRef<'_>,
    page: PageNo,
    end: PageNo,
) -> (Option<(PageNo, u64)>, PageNo) {
    let mapped = |page: PageNo| block_of(core, inode, page).is_some();
    let mut first = page;
    while first < end && mapped(first) {
        first = PageNo(first.0 + 1);
    }
    let mut stop = first;
    while stop < end && !mapped(stop) {
        stop = PageNo(stop.0 + 1);
    }
    ((first < stop).then_some((first, stop.0 - first.0)), stop)
}

fn block_of(core: &Core, inode: InodeRef<'_>, page: PageNo) -> Option<BlockNo> {
    inode.volatile.index().find(&core.arena, page).and_then(|run| run.cells[0].map().block())
}

/// Number of pages without a block.
pub fn holes(core: &Core, inode: InodeRef<'_>, first: PageNo, end: PageNo) -> u64 {
    (first.0..end.0).filter(|p| block_of(core, inode, PageNo(*p)).is_none()).count() as u64
}

/// lseek(2) with `SEEK_DATA` or `SEEK_HOLE`. Allocated blocks that were never written count as a hole.
pub fn seek(core: &Core, inode: InodeRef<'_>, target: SeekTarget, offset: u64) -> Result<u64> {
    let size = inode.volatile.size();
    if offset >= size {
        return Err(Error::NoSuchOffset);
    }
    let mut page = PageNo::of(offset);
    for run in inode.volatile.index().runs(&core.arena, page, PageNo::after(size)) {
        // Pages before the run have no cells: a hole.
        if target == SeekTarget::Hole && run.page > page {
            return Ok(page.offset().max(offset));
        }
        for (cell, p) in run.cells.iter().zip(run.page.0..) {
            if cell.map().content().is_some() == (target == SeekTarget::Data) {
                return Ok((p * heddle_pmem::BLOCK_BYTES as u64).max(offset));
            }
        }
        page = PageNo(run.page.0 + run.cells.len() as u64);
    }
    match target {
        SeekTarget::Hole => Ok(page.offset().clamp(offset, size)),
        SeekTarget::Data => Err(Error::NoSuchOffset),
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
