//! The write of `heddle`: copy first, lock late, commit by one store.
//!
//! Steps       with the numbers of docs/protocol.md: 1. blocks from the lane, the caller's bytes into them; 2. fence; 3. EOF latch, if the
//!             write ends beyond EOF; 4. ACTIVE, lock the pages' cells, ascending; 5. check gate and size, copy changed edges again;
//!             6. records, fence: durable; 7. COMMITTED: the operation has happened; 8. size, mtime, maps and versions, unlock;
//!             9. free the replaced blocks.
//! Invariants  I1  no memory of the caller is touched while a cell is held (D17): it may be a mapping of this very file.
//!             I2  the version is one more than the largest of the pages' versions and the inode's version floor, read while the pages are
//!                 held and the gate is down (D8).
//!             I3  a write that ends beyond EOF holds the EOF latch from before its cells are locked to after its publication (D12).
//! Source      ours: docs/protocol.md, "A write of `heddle`", and D1 to D17 of its hazards.

use crate::alloc::{Purpose, free_later, release_limbo, return_unused};
use crate::file::cells::{lock_one, lock_pages};
use crate::file::deferred::free_replaced;
use crate::file::new_blocks::{self, List, Span, WRITE_SLOTS_MAX, WriteRecords};
use crate::format::record::{PlainWrite, encode_plain_write};
use crate::ids::{Extent, PageNo, Version, block_at};
use crate::log::{chain, commit};
use crate::planted::{Breach, Bug, breaks, breaks_at_times, fence_unless, planted, wait_unless};
use crate::state::cell::{Cell, Map};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::latch::Latched;
use crate::state::lease::LaneGuard;
use crate::state::operation::Durable;
use crate::steps::{Step, step};
use heddle_pmem::BLOCK_BYTES;
use heddle_vfs::{Error, Result};

/// The position of a write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum At {
    /// At this offset.
    Offset(u64),
    /// At the end of the file.
    End,
}

/// Writes all of `data`; returns its offset.
pub fn write(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    at: At,
    data: &[u8],
) -> Result<u64> {
    let before = breaks(Breach::AppendsAtOldEnd).then(|| inode.volatile.size());
    let eof = (at == At::End).then(|| inode.volatile.eof.lock());
    let start = match at {
        At::Offset(offset) => offset,
        At::End => before.unwrap_or_else(|| inode.volatile.size()),
    };
    let span = Span::new(start, data.len() as u64);
    if span.end > core.file_bytes_max() {
        return Err(Error::FileTooBig);
    }
    if data.len() == BLOCK_BYTES
        && !planted(Bug::EntryBeforeData)
        && !span.ragged_start()
        && write_page(core, guard, inode, span.first(), data, eof.is_some()).is_some()
    {
        return Ok(start);
    }
    let mut extents = std::mem::take(&mut guard.scratch.extents);
    let prepared = prepare(core, guard, inode, span, data, &mut extents);
    if breaks(Breach::FailedWriteGrows) && prepared.is_err() && span.end > inode.volatile.size() {
        inode.volatile.set_size(span.end);
    }
    let done = prepared.and_then(|prepared| {
        let result = publish(core, guard, inode, span, &extents, &prepared, eof);
        if planted(Bug::EntryBeforeData) {
            let _late = new_blocks::copy_in(core, span, &extents, data);
            // PERSIST: too late: part of a planted bug.
            core.region.fence();
        }
        if result.is_err() {
            give_back(core, guard, &extents, prepared.list.as_ref());
        }
        result
    });
    guard.scratch.extents = extents;
    done.map(|()| start)
}

/// The most frequent write by far, one whole page. It takes the same steps without the loops, and without an
/// extra fence or shared line. It predicts the contents of the record, and builds the line, while the data is
/// on its way to the media. It checks the prediction when it holds the cell. Returns `None` if this is
/// another case, or became one; nothing has changed then. `eof`: the EOF latch is held.
fn write_page(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    page: PageNo,
    data: &[u8],
    eof: bool,
) -> Option<()> {
    let end = page.offset() + BLOCK_BYTES as u64;
    let next = chain::next_slot(core, guard.own, guard.id, inode)?;
    let cell = &inode.volatile.index().find(&core.arena, page)?.cells[0];
    if !eof && (cell.map().block().is_none() || end > inode.volatile.size()) {
        return None;
    }
    let block = guard.own.magazine.pop()?;
    guard.lane.intent.taken.push(Extent { block, count: 1 });
    if core.region.nt_write_user(block.pos(), data, data.len()).is_err() {
        // The general write meets the fault again, and reports it.
        give_back(core, guard, &[Extent { block, count: 1 }], None);
        return None;
    }
    if let (true, Some(old)) = (planted(Bug::WriteInPlace), cell.map().block()) {
        // PERSIST: part of a planted bug.
        core.region.nt_write(old.pos(), data);
    }
    let mtime = inode.volatile.write_time();
    let saying = |version: Version| PlainWrite {
        page,
        pages: 1,
        end_in_last_page: BLOCK_BYTES as u32,
        version,
        change_count: inode.volatile.change_count(),
    };
    let guess = saying(cell.lock_version().version().max(inode.volatile.floor()).next());
    let mut line = encode_plain_write(next.seed, next.slot, guard.id, &guess, block, mtime);
    // PERSIST: data before the record that names it; also D15 for what the last operation freed.
    wait_unless(Bug::DataFenceMissing, &core.region);
    release_limbo(core.free_map(), guard.own);
    let locked = lock_one(core, guard, inode, page, cell);
    step(Step::Held);
    let cleared = !eof && inode.volatile.gate_up();
    let (size, old) = (inode.volatile.size(), cell.map());
    if !eof && (cleared || end > size || old.block().is_none()) {
        locked.unlock();
        free_later(core.free_map(), &core.region, guard.own, Extent { block, count: 1 });
        return None;
    }
    let version = locked.version.max(inode.volatile.floor()).next();
    let truth = saying(version);
    let taken = mtime;
    let mtime = inode.volatile.write_time_since(taken);
    if truth != guess || mtime != taken {
        line = encode_plain_write(next.seed, next.slot, guard.id, &truth, block, mtime);
    }
    next.append_unfenced(core, guard.lane, inode, &line);
    step(Step::Stored);
    // PERSIST: the operation is durable from here on.
    let fenced = Durable::fenced(&core.region, || fence_unless(Bug::CommitFenceMissing, &core.region));
    let Ok(durable) = fenced else {
        // The general write meets the failure again, and reports it.
        locked.unlock();
        return None;
    };
    step(Step::Durable);
    let committed = locked.commit(&durable);
    step(Step::Happened);
    if end > size {
        inode.volatile.set_size(end);
    }
    inode.volatile.touch(mtime);
    let shown = if breaks_at_times(Breach::WriteNotShown) { old } else { Map::data(block) };
    committed.publish(shown, version);
    match old.block() {
        Some(block) => free_replaced(core, guard, inode, &[Extent { block, count: 1 }]),
        None => inode.volatile.count_blocks(1),
    }
    Some(())
}

/// State found before the cells are locked.
struct Prepared<'v> {
    list: Option<List>,
    edges: [Option<Edge<'v>>; 2],
}

/// A page that a write covers in part.
struct Edge<'v> {
    page: PageNo,
    /// Its cell, if there was one.
    cell: Option<&'v Cell>,
    /// Its content and version when it was copied.
    copied: (Map, Version),
}

/// A page's content and version.
pub fn cell_state(core: &Core, inode: InodeRef<'_>, page: PageNo) -> (Map, Version) {
    state_of(cell_of(core, inode, page))
}

#[inline]
fn cell_of<'v>(core: &'v Core, inode: InodeRef<'v>, page: PageNo) -> Option<&'v Cell> {
    inode.volatile.index().find(&core.arena, page).map(|run| &run.cells[0])
}

#[inline]
fn state_of(cell: Option<&Cell>) -> (Map, Version) {
    cell.map_or((Map::HOLE, Version(0)), |cell| {
        let version = cell.lock_version().version();
        (cell.map(), version)
    })
}

/// Steps 1 and 2. On an error no lock and no block is held.
fn prepare<'v>(
    core: &'v Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'v>,
    span: Span,
    data: &[u8],
    extents: &mut Vec<Extent>,
) -> Result<Prepared<'v>> {
    let single = if span.pages() == 1 { cell_of(core, inode, span.first()) } else { None };
    let replaces = state_of(single).0.block().is_some();
    let purpose = if replaces { Purpose::Replace } else { Purpose::Data };
    new_blocks::allocate(core, guard.own, span, purpose, extents)?;
    for extent in extents.iter() {
        guard.lane.intent.taken.push(*extent);
    }
    let mut list = None;
    let filled = (|| {
        list = new_blocks::write_list(core, guard.own, inode.id(), extents)?;
        commit::prepare(core, guard, inode, WRITE_SLOTS_MAX.min(extents.len() as u32), purpose)?;
        if !planted(Bug::EntryBeforeData) {
            new_blocks::copy_in(core, span, extents, data)?;
        }
        let mut edges = [None, None];
        for (edge, to) in span.edges().into_iter().zip(&mut edges) {
            let Some(page) = edge else { continue };
            let cell = single.or_else(|| cell_of(core, inode, page));
            let copied = state_of(cell);
            new_blocks::fill_edge(core, span, extents, page, copied.0)?;
            *to = Some(Edge { page, cell, copied });
        }
        Ok(edges)
    })();
    let edges = match filled {
        Ok(edges) => edges,
        Err(error) => {
            give_back(core, guard, extents, list.as_ref());
            return Err(error);
        }
    };
    // PERSIST: data and fresh log pages before the records that name them; also D15 for what the last operation freed.
    wait_unless(Bug::DataFenceMissing, &core.region);
    release_limbo(core.free_map(), guard.own);
    step(Step::Filled);
    Ok(Prepared { list, edges })
}

/// Returns blocks that were filled and not used.
fn give_back(core: &Core, guard: &LaneGuard<'_>, extents: &[Extent], list: Option<&List>) {
    guard.lane.intent.taken.clear();
    if planted(Bug::FailedWriteLeaks) {
        return;
    }
    // PERSIST: D15: this lane's stores into them come before another lane's. No check sees it, since
    // simulated memory orders two stores to one word. Also, a prepared log page is empty before another call
    // links it.
    core.region.fence();
    return_unused(core.free_map(), extents);
    return_unused(core.free_map(), list.map_or(&[][..], |list| &list.blocks));
}

/// Steps 3 to 9.
fn publish<'v>(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'v>,
    span: Span,
    extents: &[Extent],
    prepared: &Prepared<'_>,
    mut eof: Option<Latched<'v>>,
) -> Result<()> {
    if eof.is_none() && span.end > inode.volatile.size() {
        eof = Some(inode.volatile.eof.lock());
    }
    let mut locked = lock_pages(core, guard, inode, span.first(), span.page_end())?;
    // I2, I3: a truncation may have run in between; the EOF latch keeps the next one out.
    if eof.is_none() && (inode.volatile.gate_up() || span.end > inode.volatile.size()) {
        locked = locked.lock_again(|| eof = Some(inode.volatile.eof.lock()))?;
    }
    step(Step::Held);
    let recopied = recopy_edges(core, inode, span, extents, prepared);
    let mtime = inode.volatile.write_time();
    let version = locked.version.max(inode.volatile.floor()).next();
    let size = inode.volatile.size();
    let mut records = std::mem::take(&mut guard.scratch.records);
    records.clear();
    WriteRecords {
        page: span.first(),
        end_in_last_page: span.end_in_last_page(size),
        version,
        mtime,
        change_count: inode.volatile.change_count(),
        unwritten: false,
    }
    .make(extents, prepared.list.as_ref().map(|list| list.first), &mut records);
    let logged = recopied.and_then(|()| commit::commit(core, guard, inode, &records));
    guard.scratch.records = records;
    let durable = logged?;
    step(Step::Durable);
    let committed = locked.commit(&durable);
    step(Step::Happened);
    if span.end > size && !breaks_at_times(Breach::SizeStays) {
        inode.volatile.set_size(span.end);
    }
    inode.volatile.touch(mtime);
    let mut replaced = std::mem::take(&mut guard.scratch.replaced);
    replaced.clear();
    committed.publish(version, |n| Map::data(block_at(extents, n)), &mut replaced);
    drop(eof);
    free_replaced(core, guard, inode, &replaced);
    guard.scratch.replaced = replaced;
    Ok(())
}

/// Copies an edge page again that changed between the copy and the lock, only from old blocks (I1).
fn recopy_edges(
    core: &Core,
    inode: InodeRef<'_>,
    span: Span,
    extents: &[Extent],
    prepared: &Prepared<'_>,
) -> Result<()> {
    let mut stale = false;
    for edge in prepared.edges.iter().flatten() {
        let now = state_of(edge.cell.or_else(|| cell_of(core, inode, edge.page)));
        if now != edge.copied && !breaks(Breach::EdgesOld) {
            new_blocks::fill_edge(core, span, extents, edge.page, now.0)?;
            stale = true;
        }
    }
    if stale {
        // PERSIST: data before the records that name it.
        core.region.fence();
    }
    Ok(())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
