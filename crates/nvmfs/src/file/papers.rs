//! How the papers' variants write and read: the steps of SRL paper Fig. 2 (`nova`) and Fig. 5 (`nova-*`).
//!
//! | step | `nova` | `nova-*` |
//! |------|--------|----------|
//! | lock of the range | the inode's lock, exclusive | the range lock |
//! | data write | under it | under it, beside writers of other ranges |
//! | logging, tail, tree, time and size | under it | each under a spinlock of its own |
//!
//! Readers hold the lock, shared, while they look up and copy. A call that moves EOF takes the EOF latch
//! first, in `nova` too, where the latch is free whenever the inode's lock is. The reason: the papers' code
//! reads the size before any lock, so two appends could take one offset (research on pNOVA's published code).

use crate::alloc::{Purpose, free_later, release_limbo, return_unused};
use crate::file::new_blocks::{self, List, Span, WriteRecords};
use crate::file::read;
use crate::file::write_heddle::At;
use crate::ids::{BlockNo, Extent, PageNo, Version, add_extent, block_at};
use crate::log::chain::{self, Chain};
use crate::log::commit;
use crate::planted::{Bug, fence_unless, planted};
use crate::state::cell::Map;
use crate::state::core::{Core, no_memory};
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::papers::{lock_range, paper_locks, step_locks};
use crate::steps::{Step, step};
use heddle_pmem::BLOCK_BYTES;
use heddle_range_lock::Access;
use heddle_vfs::{Error, Result};

/// Writes all of `data`; returns its offset.
pub fn write(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    at: At,
    data: &[u8],
) -> Result<u64> {
    let mut eof = None;
    loop {
        if eof.is_none() && wants_eof(inode, at, data.len()) {
            eof = Some(inode.volatile.eof.lock());
        }
        let guess = start_of(inode, at);
        let end = guess.checked_add(data.len() as u64).filter(|end| *end <= core.file_bytes_max());
        let _range = lock_range(
            core,
            guard.lane,
            guard.own,
            inode,
            guess,
            end.ok_or(Error::FileTooBig)?,
            Access::Exclusive,
        )?;
        if eof.is_none() && wants_eof(inode, at, data.len()) {
            continue;
        }
        let start = start_of(inode, at);
        let span = Span::new(start, data.len() as u64);
        if span.end > core.file_bytes_max() {
            return Err(Error::FileTooBig);
        }
        step(Step::RangeCheck);
        let mut extents = std::mem::take(&mut guard.scratch.extents);
        let done = write_locked(core, guard, inode, span, data, &mut extents);
        guard.scratch.extents = extents;
        return done.map(|()| start);
    }
}

fn start_of(inode: InodeRef<'_>, at: At) -> u64 {
    match at {
        At::Offset(offset) => offset,
        At::End => inode.volatile.size(),
    }
}

fn wants_eof(inode: InodeRef<'_>, at: At, len: usize) -> bool {
    match at {
        At::End => true,
        At::Offset(offset) => offset.saturating_add(len as u64) > inode.volatile.size(),
    }
}

/// The steps of a write whose range is locked.
fn write_locked(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    span: Span,
    data: &[u8],
    extents: &mut Vec<Extent>,
) -> Result<()> {
    let version = grow_cells(core, inode, span)?;
    let mut old = std::mem::take(&mut guard.scratch.collected);
    read::maps_of(core, inode, span, &mut old);
    let replaces = old.len() == 1 && old[0].map().block().is_some();
    let purpose = if replaces { Purpose::Replace } else { Purpose::Data };
    let result = new_blocks::allocate(core, guard.own, span, purpose, extents).and_then(|()| {
        if planted(Bug::FreedBeforeCommit) {
            for block in old.iter().filter_map(|seen| seen.map().block()) {
                guard.own.magazine.push(block);
            }
        }
        let mut list = None;
        let done = data_write(core, guard, inode, span, data, extents, &mut list, |n| old[n as usize].map())
            .and_then(|()| {
                let list = list.as_ref().map(|list| list.first);
                log_and_publish(core, guard, inode, span, extents, list, version)
            });
        if done.is_err() {
            // PERSIST: D15: this lane's stores into them come before another lane's. No check sees it:
            // simulated memory orders two stores to one word, whichever lanes make them.
            core.region.fence();
            return_unused(core.free_map(), extents);
            return_unused(core.free_map(), list.as_ref().map_or(&[][..], |list| &list.blocks));
        }
        done
    });
    if result.is_ok() {
        let mut replaced = std::mem::take(&mut guard.scratch.replaced);
        replaced.clear();
        old.iter().filter_map(|seen| seen.map().block()).for_each(|b| add_extent(&mut replaced, b));
        inode.volatile.count_blocks(
            span.pages() as i64 - old.iter().filter(|s| s.map().block().is_some()).count() as i64,
        );
        for extent in replaced.iter().filter(|_| !planted(Bug::FreedBeforeCommit)) {
            free_later(core.free_map(), &core.region, guard.own, *extent);
        }
        guard.scratch.replaced = replaced;
    }
    guard.scratch.collected = old;
    result
}

/// Creates the cells of a span. Returns one more than the largest version among them and the floor.
fn grow_cells(core: &Core, inode: InodeRef<'_>, span: Span) -> Result<Version> {
    let mut version = inode.volatile.floor();
    let mut page = span.first();
    while page < span.page_end() {
        let run = inode.volatile.index().grow(&core.arena, page).map_err(no_memory)?;
        let n = run.cells.len().min((span.page_end().0 - page.0) as usize);
        version = run.cells[..n].iter().map(|c| c.lock_version().version()).fold(version, Version::max);
        page = PageNo(page.0 + n as u64);
    }
    Ok(version.next())
}

#[allow(clippy::too_many_arguments)]
fn data_write(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    span: Span,
    data: &[u8],
    extents: &[Extent],
    list: &mut Option<List>,
    old: impl Fn(u64) -> Map,
) -> Result<()> {
    *list = new_blocks::write_list(core, guard.own, inode.id(), extents)?;
    new_blocks::copy_in(core, span, extents, data)?;
    for page in span.edges().into_iter().flatten() {
        new_blocks::fill_edge(core, span, extents, page, old(page.0 - span.first().0))?;
    }
    if let (true, Some(block)) = (planted(Bug::WriteInPlace) && data.len() == BLOCK_BYTES, old(0).block()) {
        // PERSIST: part of a planted bug.
        core.region.nt_write(block.pos(), data);
    }
    step(Step::DataWrite);
    if let Some(locks) = paper_locks(core, inode) {
        locks.log.prefetch();
        chain::existing(core, inode).for_each(Chain::prefetch);
    }
    // PERSIST: data before the records that name it; also D15 for what the last operation freed.
    fence_unless(Bug::DataFenceMissing, &core.region);
    release_limbo(core.free_map(), guard.own);
    Ok(())
}

fn log_and_publish(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    span: Span,
    extents: &[Extent],
    list: Option<BlockNo>,
    version: Version,
) -> Result<()> {
    let locks = step_locks(core, inode);
    let size = inode.volatile.size();
    let mtime = inode.volatile.write_time();
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
    .make(extents, list, &mut records);
    let committed = commit::commit(core, guard, inode, &records);
    guard.scratch.records = records;
    committed?;
    {
        let _index = locks.map(|l| l.index.lock());
        step(Step::Index);
        let mut page = span.first();
        while page < span.page_end() {
            // `grow_cells` created them, and nodes stay while the inode lives.
            let Some(run) = inode.volatile.index().find(&core.arena, page) else { break };
            for cell in run.cells.iter().take((span.page_end().0 - page.0) as usize) {
                cell.set(Map::data(block_at(extents, page.0 - span.first().0)), version);
                page = PageNo(page.0 + 1);
            }
        }
    }
    let _time = locks.map(|l| l.time.lock());
    step(Step::Time);
    if span.end > inode.volatile.size() {
        inode.volatile.set_size(span.end);
    }
    // Every write takes the time lock, as the papers' code does. But the line that all writers read for the
    // size is not written while the clock shows the same time: storing it took a sixth of the time of two
    // writers.
    if inode.volatile.times()[..2] != [mtime; 2] {
        inode.volatile.touch(mtime);
    }
    Ok(())
}

/// Reads up to `into.len()` bytes at `offset`. Returns their number.
pub fn read(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    offset: u64,
    into: &mut [u8],
) -> Result<usize> {
    loop {
        let len = usize::try_from(inode.volatile.size().saturating_sub(offset))
            .unwrap_or(usize::MAX)
            .min(into.len());
        if len == 0 {
            return Ok(0);
        }
        let span = Span::new(offset, len as u64);
        let _range = lock_range(core, guard.lane, guard.own, inode, span.start, span.end, Access::Shared)?;
        // A write that moved EOF while this call waited must be seen whole.
        let now = inode.volatile.size();
        if now < span.end || (len < into.len() && now > span.end) {
            continue;
        }
        let mut maps = std::mem::take(&mut guard.scratch.collected);
        read::maps_of(core, inode, span, &mut maps);
        let copied = read::copy_span(core, span, &mut into[..len], |n| maps[n as usize].map());
        guard.scratch.collected = maps;
        return copied.map(|()| len);
    }
}
