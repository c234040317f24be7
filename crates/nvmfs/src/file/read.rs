//! The read of `heddle`: collect the cells, copy, collect again. Readers write nothing shared.
//!
//! The content of a cell is still valid while an operation holds it that is not committed (ACTIVE). If the
//! operation is committed (COMMITTED), the cell is about to change, and the reader waits. Suppose the second
//! collect finds every lock word unchanged, and the state of every owner that was ACTIVE. Then there was an
//! instant between the two collects at which all of it held at once, and the bytes are those of that instant
//! (docs/protocol.md D14).
//!
//! Invariants  I1  the bytes are discarded unless the second collect agrees; blocks may be reused while they are copied.
//!             I2  a reader whose attempt fails (with one page: whose second attempt) pins the inode. It takes the maps while it holds the
//!                 cells, and no block that they name is freed until it releases the pin (D17; `deferred`). So a read of any length
//!                 ends after two copies, of one page after three.
//! Orderings   O1  an Acquire fence stands between the copy and the second collect (O2 of `cell`).

use crate::file::cells::{lock_cell, wait_unlocked, wake};
use crate::file::deferred;
use crate::file::new_blocks::Span;
use crate::ids::PageNo;
use crate::state::cell::{Cell, Map};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::{self, LaneGuard};
use crate::state::operation::Active;
use crate::state::scratch::{ABSENT, Seen};
use crate::steps::{Step, step};
use heddle_arena::sync::atomic::fence;
use heddle_arena::sync::{spin_hint, spins};
use heddle_pmem::{BLOCK_BYTES, BadBuffer, Pos};
use heddle_vfs::{Error, Result};
use std::sync::atomic::Ordering::Acquire;
use std::time::Instant;

const BLOCK: u64 = BLOCK_BYTES as u64;
/// How often a reader loads a cell that is about to change before it sleeps on it.
const WAIT_SPINS: u32 = spins(400);

/// Reads up to `into.len()` bytes at `offset`. Returns their number.
pub fn read(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    offset: u64,
    into: &mut [u8],
) -> Result<usize> {
    let size = inode.volatile.size();
    let len = readable(size, offset, into.len());
    if len == 0 {
        return Ok(0);
    }
    let span = Span::new(offset, len as u64);
    if let Some(read) = read_page(core, inode, span, size, &mut into[..len]) {
        return read;
    }
    let mut collected = std::mem::take(&mut guard.scratch.collected);
    let tried = read_once(core, inode, span, size, &mut into[..len], &mut collected);
    guard.scratch.collected = collected;
    if let Some(read) = tried {
        return read.map(|()| len);
    }
    read_pinned(core, guard, inode, offset, into)
}

fn readable(size: u64, offset: u64, want: usize) -> usize {
    usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX).min(want)
}

/// The common case: one page, first attempt. Returns `None` if it is another case, or if a cell changed.
fn read_page(
    core: &Core,
    inode: InodeRef<'_>,
    span: Span,
    size: u64,
    into: &mut [u8],
) -> Option<Result<usize>> {
    if span.pages() != 1 {
        return None;
    }
    let cell = &inode.volatile.index().find(&core.arena, span.first())?.cells[0];
    let before = cell.lock_version();
    if before.locked() {
        return None;
    }
    let copied = copy_page(core, cell.map(), span.start % BLOCK, into);
    // ORDERING: Acquire, O1.
    fence(Acquire);
    let same = cell.lock_version() == before && inode.volatile.size() == size;
    same.then(|| copied.map(|()| into.len()))
}

/// Copies part of a page.
pub fn copy_page(core: &Core, map: Map, within: u64, into: &mut [u8]) -> Result<()> {
    let bad = |BadBuffer| Error::BadBuffer;
    let Some(block) = map.content() else { return core.region.zero_out(into).map_err(bad) };
    let from = block.pos().plus(within);
    core.region.read_out(from, into).map_err(bad)?;
    readable_still(core, from, into.len() as u64)
}

/// Checks that bytes just loaded from there came from the media.
///
/// # Errors
/// [`Error::Io`]: the media could not deliver them.
pub fn readable_still(core: &Core, from: Pos, len_bytes: u64) -> Result<()> {
    if core.region.lost(from, len_bytes) {
        let block = from.0 / BLOCK;
        return Err(Error::Io(format!("block {block} of the image cannot be read: its media has failed")));
    }
    Ok(())
}

/// Returns `None` if a cell changed.
fn read_once(
    core: &Core,
    inode: InodeRef<'_>,
    span: Span,
    size: u64,
    into: &mut [u8],
    collected: &mut Vec<Seen>,
) -> Option<Result<()>> {
    collected.clear();
    for_pages(core, inode, span, |_, cell| collected.push(cell.map_or(ABSENT, |c| collect(core, c))));
    let copied = copy_span(core, span, into, |n| collected[n as usize].map);
    // ORDERING: Acquire, O1.
    fence(Acquire);
    let mut same = inode.volatile.size() == size;
    for_pages(core, inode, span, |n, cell| same &= unchanged(core, cell, &collected[n as usize]));
    same.then_some(copied)
}

/// Calls `f(n, cell)` for the `n`th page of a span, in order.
fn for_pages(core: &Core, inode: InodeRef<'_>, span: Span, mut f: impl FnMut(u64, Option<&Cell>)) {
    let (mut page, end) = (span.first(), span.page_end());
    while page < end {
        match inode.volatile.index().find(&core.arena, page) {
            Some(run) => {
                for cell in run.cells.iter().take((end.0 - page.0) as usize) {
                    f(page.0 - span.first().0, Some(cell));
                    page = PageNo(page.0 + 1);
                }
            }
            None => {
                f(page.0 - span.first().0, None);
                page = PageNo(page.0 + 1);
            }
        }
    }
}

/// First load of a cell: waits while its owner publishes.
fn collect(core: &Core, cell: &Cell) -> Seen {
    let (mut tries, mut began) = (0, None);
    loop {
        let lock_version = cell.lock_version();
        if !lock_version.locked() {
            note_wait(core, began);
            return Seen { lock_version: Some(lock_version), owner: None, map: cell.map() };
        }
        let owner = core.lane(lock_version.lane()).state();
        if owner.active() {
            note_wait(core, began);
            return Seen { lock_version: Some(lock_version), owner: Some(owner), map: cell.map() };
        }
        tries += 1;
        if tries > WAIT_SPINS && cell.set_waiter(lock_version) {
            let began = *began.get_or_insert_with(Instant::now);
            wait_unlocked(core, cell, lock_version, began);
        }
        spin_hint();
    }
}

/// Counts the wait of a reader that has slept since then.
#[inline]
fn note_wait(core: &Core, since: Option<Instant>) {
    if let Some(since) = since {
        lease::with_current(|_, lane| core.lane(lane).counts.waited(1, since.elapsed()));
    }
}

/// Second load: returns true if the cell is unchanged.
fn unchanged(core: &Core, cell: Option<&Cell>, seen: &Seen) -> bool {
    match (cell, seen.lock_version) {
        (None, None) => true,
        // A leaf was created since: the page is still a hole if the cell was never locked or written.
        (Some(cell), None) => {
            let lock_version = cell.lock_version();
            !lock_version.locked() && lock_version.version().0 == 0
        }
        (Some(cell), Some(lock_version)) => {
            cell.lock_version() == lock_version
                && seen.owner.is_none_or(|state| core.lane(lock_version.lane()).state() == state)
        }
        // Leaves are never removed.
        (None, Some(_)) => false,
    }
}

/// Copies a span, run by run where blocks are contiguous, else page by page.
pub fn copy_span(core: &Core, span: Span, into: &mut [u8], map: impl Fn(u64) -> Map) -> Result<()> {
    let (mut at, mut done) = (span.start, 0usize);
    while at < span.end {
        let n = PageNo::of(at).0 - span.first().0;
        let first = map(n);
        let mut end = ((PageNo::of(at).0 + 1) * BLOCK).min(span.end);
        let mut i = 1;
        while end < span.end && follows(first, map(n + i), i) {
            end = (end + BLOCK).min(span.end);
            i += 1;
        }
        let len = (end - at) as usize;
        copy_page(core, first, at % BLOCK, &mut into[done..done + len])?;
        done += len;
        at = end;
    }
    Ok(())
}

fn follows(first: Map, later: Map, by: u64) -> bool {
    match (first.content(), later.content()) {
        (Some(a), Some(b)) => a.plus(by) == b,
        (None, None) => true,
        _ => false,
    }
}

/// A read that always completes: it takes the maps while it holds the cells, and pins the blocks (I2).
pub fn read_pinned(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    offset: u64,
    into: &mut [u8],
) -> Result<usize> {
    let phase = deferred::pin(guard, inode);
    let mut collected = std::mem::take(&mut guard.scratch.collected);
    let len = loop {
        let size = inode.volatile.size();
        let len = readable(size, offset, into.len());
        if len == 0 {
            break Ok(0);
        }
        let span = Span::new(offset, len as u64);
        collected.clear();
        let lane = guard.id;
        let op = Active::begin(guard.lane, inode.ino, span.first(), span.page_end());
        for_pages(core, inode, span, |_, cell| {
            collected.push(cell.map_or(ABSENT, |cell| {
                lock_cell(core, cell, lane);
                Seen { lock_version: Some(cell.lock_version()), owner: None, map: cell.map() }
            }));
        });
        step(Step::Held);
        // A page without a cell may have got one, and content, meanwhile: then the maps are not of one
        // instant.
        let mut same = inode.volatile.size() == size;
        for_pages(core, inode, span, |n, cell| {
            same &=
                collected[n as usize].lock_version.is_some() || unchanged(core, cell, &collected[n as usize]);
        });
        for_pages(core, inode, span, |n, cell| {
            if let (Some(cell), Some(lock_version)) = (cell, collected[n as usize].lock_version)
                && cell.unlock(lock_version.version())
            {
                wake(core, cell);
            }
        });
        drop(op);
        step(Step::Pinned);
        if same {
            break copy_span(core, span, &mut into[..len], |n| collected[n as usize].map).map(|()| len);
        }
    };
    guard.scratch.collected = collected;
    deferred::unpin(core, guard, inode, phase);
    len
}

/// Maps of a span, for callers that hold the range by a lock of their own (the papers' variants).
pub fn maps_of(core: &Core, inode: InodeRef<'_>, span: Span, out: &mut Vec<Seen>) {
    out.clear();
    for_pages(core, inode, span, |_, cell| {
        out.push(Seen { lock_version: None, owner: None, map: cell.map_or(Map::HOLE, Cell::map) });
    });
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
