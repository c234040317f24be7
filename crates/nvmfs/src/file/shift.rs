//! Collapsing a range of a file and inserting a hole: all pages after it move in one transaction, however
//! many there are.
//!
//! A remap record gives the contents of all pages from the first on: a blob lists those that have blocks, the
//! others are holes. So it is a tombstone and a write in one, at one version. The attribute record beside it has
//! the new size. No data is copied.
//! Invariants  I1  the caller holds the EOF latch, and the gate is up while cells are looked for. Every cell that exists from the
//!                 first page on is held, and every page that will have a block has a cell that is.
//!             I2  blocks that move stay allocated; blocks that were cut out are freed when the record is durable.
//!             I3  the blob lives as long as the log page that names it, as an extent list does.
//! Lock order  the papers' range lock, cells in ascending order. Target cells are created before the first cell is locked: otherwise
//!             a writer could hold a target cell that was created later, and wait for a cell that this call has locked already.
//! Crash order C1  blob fenced, records fenced, cells published.
//! Source      ours; the permitted arguments and their errors are ext4's.

use crate::alloc::blob::{self, Fresh};
use crate::alloc::{Purpose, release_limbo};
use crate::file::cells::{Change, Committed, LockedSparse, lock_existing, wake};
use crate::file::deferred::free_replaced;
use crate::file::new_blocks::Span;
use crate::file::resize::{NewAttributes, apply, attributes_of};
use crate::file::write_heddle::cell_state;
use crate::format::blob::{
    Kind, MapRun, RUN_PAGES_MAX, WORDS_A_BLOCK, WORDS_A_RUN, map_of_words, words_of_map,
};
use crate::format::record::{Blocks, Record};
use crate::ids::{BlockNo, Extent, InodeId, PageNo, Version, add_extent};
use crate::log::commit;
use crate::planted::{Bug, planted};
use crate::state::cell::Map;
use crate::state::core::{Core, no_memory};
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::operation::Durable;
use crate::state::papers::lock_range;
use crate::state::wait;
use crate::steps::{Step, step};
use heddle_range_lock::Access;
use heddle_vfs::{Error, Result, SetTime};

/// Slots of the transaction: remap 1, attributes 2.
const SLOTS: u32 = 3;

/// The mapping from old to new pages.
#[derive(Clone, Copy)]
struct Shift {
    first: PageNo,
    pages: u64,
    down: bool,
}

impl Shift {
    /// The new place of a page at or behind the first; `None`: it is cut out.
    fn target(self, page: PageNo) -> Option<PageNo> {
        match self.down {
            true => page.0.checked_sub(self.pages).filter(|to| *to >= self.first.0).map(PageNo),
            false => Some(PageNo(page.0 + self.pages)),
        }
    }
}

fn whole_pages(span: Span) -> Result<()> {
    if span.ragged_start() || span.ragged_end() {
        return Err(Error::InvalidArgument("the range is not of whole blocks of 4096 bytes"));
    }
    Ok(())
}

/// Cuts `span` out of the file. The caller holds the EOF latch.
pub fn collapse(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, span: Span) -> Result<()> {
    whole_pages(span)?;
    let size = inode.volatile.size();
    if span.end >= size {
        return Err(Error::InvalidArgument("the range to collapse must end before the end of the file"));
    }
    let shift = Shift { first: span.first(), pages: span.pages(), down: true };
    shift_pages(core, guard, inode, shift, size - (span.end - span.start))
}

/// Inserts a hole at `span`. The caller holds the EOF latch.
pub fn insert(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, span: Span) -> Result<()> {
    whole_pages(span)?;
    let size = inode.volatile.size();
    if span.start >= size {
        return Err(Error::InvalidArgument("a hole must be inserted before the end of the file"));
    }
    let grown = size + (span.end - span.start);
    if grown > core.file_bytes_max() {
        return Err(Error::FileTooBig);
    }
    shift_pages(core, guard, inode, Shift { first: span.first(), pages: span.pages(), down: false }, grown)
}

fn shift_pages(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    shift: Shift,
    size: u64,
) -> Result<()> {
    let end = size.max(inode.volatile.size());
    let _range =
        lock_range(core, guard.lane, guard.own, inode, shift.first.offset(), end, Access::Exclusive)?;
    let purpose = if shift.down { Purpose::Free } else { Purpose::Data };
    if commit::prepare(core, guard, inode, SLOTS, purpose)? {
        // PERSIST: a fresh log page is empty before it is linked, by this call, or by another one if this
        // call fails before the fence of `log`. No check sees it: no rig can cause an error in between.
        core.region.fence();
    }
    let gate = inode.volatile.raise_gate();
    let locked = hold_cells(core, guard, inode, shift)?;
    step(Step::Held);
    let plan = plan(core, inode, shift);
    let version = locked.version.max(inode.volatile.floor()).next();
    let (records, durable) = log(core, guard, inode, shift, size, version, &plan)?;
    step(Step::Durable);
    let committed = locked.commit(&durable);
    step(Step::Happened);
    apply(inode, &records, Some(SetTime::Now));
    publish(core, guard, inode, shift, version, plan, committed);
    drop(gate);
    Ok(())
}

/// Pages from the first on that have blocks.
fn mapped(core: &Core, inode: InodeRef<'_>, first: PageNo, mut each: impl FnMut(PageNo, Map)) {
    for run in inode.volatile.index().runs(&core.arena, first, PageNo::END) {
        for (cell, at) in run.cells.iter().zip(run.page.0..) {
            let map = cell.map();
            if map.block().is_some() {
                each(PageNo(at), map);
            }
        }
    }
}

/// Locks the cells that I1 requires. A writer that was about to publish when the gate was raised may give a
/// page a block after the target cells were created. Then the locking is repeated.
fn hold_cells<'v>(
    core: &'v Core,
    guard: &LaneGuard<'v>,
    inode: InodeRef<'v>,
    shift: Shift,
) -> Result<LockedSparse<'v>> {
    let mut turns = wait::Retries::default();
    loop {
        let mut targets = Vec::new();
        mapped(core, inode, shift.first, |page, _| targets.extend(shift.target(page)));
        if targets.last().is_some_and(|last| *last >= PageNo::END) {
            return Err(Error::FileTooBig);
        }
        for target in targets {
            inode.volatile.index().grow(&core.arena, target).map_err(no_memory)?;
        }
        let range = Change { first: shift.first, end: PageNo::END };
        let locked = lock_existing(core, guard, inode, range);
        let mut whole = true;
        mapped(core, inode, shift.first, |page, _| {
            whole &= shift.target(page).is_none_or(|target| locked.holds(target));
        });
        if whole {
            return Ok(locked);
        }
        drop(locked);
        turns.again(core, || format!("the index of inode {}", inode.ino.0))?;
    }
}

/// The shift's effect on the pages.
struct Plan {
    runs: Vec<MapRun>,
    cut: Vec<Extent>,
    blocks_cut: u64,
}

fn plan(core: &Core, inode: InodeRef<'_>, shift: Shift) -> Plan {
    let mut plan = Plan { runs: Vec::new(), cut: Vec::new(), blocks_cut: 0 };
    mapped(core, inode, shift.first, |page, map| {
        let Some(block) = map.block() else { return };
        match shift.target(page) {
            Some(target) => {
                let unwritten = map.content().is_none() && !planted(Bug::ShiftWritesUnwritten);
                plan.add(target, block, unwritten);
            }
            None => {
                add_extent(&mut plan.cut, block);
                plan.blocks_cut += 1;
            }
        }
    });
    plan
}

impl Plan {
    fn add(&mut self, page: PageNo, block: BlockNo, unwritten: bool) {
        if let Some(run) = self.runs.last_mut()
            && run.page.0 + run.blocks.count == page.0
            && run.blocks.block.0 + run.blocks.count == block.0
            && run.unwritten == unwritten
            && run.blocks.count < RUN_PAGES_MAX
        {
            run.blocks.count += 1;
            return;
        }
        self.runs.push(MapRun { page, blocks: Extent { block, count: 1 }, unwritten });
    }
}

/// The map of a page in a list of runs.
fn map_in(runs: &[MapRun], page: PageNo) -> Map {
    let behind = runs.partition_point(|run| run.page <= page);
    let run = behind.checked_sub(1).map(|at| runs[at]);
    let Some(run) = run.filter(|run| page.0 < run.page.0 + run.blocks.count) else { return Map::HOLE };
    let block = run.blocks.block.plus(page.0 - run.page.0);
    if run.unwritten { Map::unwritten(block) } else { Map::data(block) }
}

/// Makes the shift durable. Returns its records.
fn log(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    shift: Shift,
    size: u64,
    version: Version,
    plan: &Plan,
) -> Result<([Record; 2], Durable)> {
    let words = words_of_map(&plan.runs);
    // The blob stays as long as the log page that names it. So only a shift that frees more than it takes may use the reserve; otherwise a
    // full disk could not be emptied.
    let frees = plan.blocks_cut > words.len().div_ceil(WORDS_A_BLOCK) as u64;
    let purpose = if frees { Purpose::Regain } else { Purpose::Data };
    let fresh: Fresh = blob::write_unfenced(core, guard.own, inode.id(), Kind::Map, &words, purpose)?;
    // PERSIST: C1; also D15 for what the last operation freed.
    core.region.fence();
    release_limbo(core.free_map(), guard.own);
    let new = NewAttributes { size: Some(size), ..NewAttributes::default() };
    let attributes = attributes_of(guard, inode, &new, crate::clock::exact());
    let records = [
        Record::Remap {
            page: shift.first,
            blob: fresh.first(),
            version,
            mtime: attributes.mtime,
            change_count: attributes.change_count,
        },
        Record::Attributes(attributes),
    ];
    match commit::commit(core, guard, inode, &records) {
        Ok(durable) => Ok((records, durable)),
        Err(error) => {
            fresh.give_up(core);
            Err(error)
        }
    }
}

fn publish(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    shift: Shift,
    version: Version,
    plan: Plan,
    committed: Committed<LockedSparse<'_>>,
) {
    inode.volatile.raise_floor(version);
    inode.volatile.note_tombstone(shift.first, version);
    committed.publish_shifted(version, |page| map_in(&plan.runs, page));
    inode.volatile.count_blocks(-(plan.blocks_cut as i64));
    free_replaced(core, guard, inode, &plan.cut);
}

/// The runs in a remap record's blob, and the blocks of that blob; `None` if it is damaged. An attached process can
/// forge one that leads in a circle. But no map has more runs than the image has blocks.
pub fn read_map(core: &Core, owner: InodeId, first: Option<BlockNo>) -> Option<(Vec<MapRun>, Vec<Extent>)> {
    let words_max = core.layout.blocks_total as usize * WORDS_A_RUN;
    let (words, blocks) = blob::read(core, owner, Kind::Map, first, words_max.div_ceil(WORDS_A_BLOCK))?;
    Some((map_of_words(&words)?, blocks))
}

/// Completes a shift whose holder died after its durable record: cells that the lane still holds get their
/// maps from the runs. A block that is in no run was cut out, and is added to `replaced`. If its cell was
/// already made a hole, the block is free at the next mount.
pub fn roll_forward(
    core: &Core,
    lane: u16,
    inode: InodeRef<'_>,
    first: PageNo,
    version: Version,
    runs: &[MapRun],
    replaced: &mut Vec<Extent>,
) {
    let mut kept: Vec<Extent> = runs.iter().map(|run| run.blocks).collect();
    kept.sort_by_key(|extent| extent.block);
    let is_kept = |block: BlockNo| {
        let behind = kept.partition_point(|extent| extent.block <= block);
        behind.checked_sub(1).is_some_and(|at| block.0 < kept[at].block.0 + kept[at].count)
    };
    let mut cut = 0;
    for run in inode.volatile.index().runs(&core.arena, first, PageNo::END) {
        for (cell, at) in run.cells.iter().zip(run.page.0..) {
            let lock_version = cell.lock_version();
            if !lock_version.locked() || lock_version.lane() != lane {
                continue;
            }
            if let Some(block) = cell.map().block().filter(|block| !is_kept(*block)) {
                add_extent(replaced, block);
                cut += 1;
            }
            if cell.publish(map_in(runs, PageNo(at)), version) {
                wake(core, cell);
            }
        }
    }
    inode.volatile.count_blocks(-cut);
}

/// The pages that a remap record still determines, as write records; `None` if its map cannot be read.
pub fn current(core: &Core, inode: InodeRef<'_>, record: &Record) -> Option<Vec<Record>> {
    let Record::Remap { blob, version, mtime, change_count, .. } = *record else { return Some(Vec::new()) };
    let (runs, _) = read_map(core, inode.id(), blob)?;
    // A forged one may name any number of pages.
    if runs.iter().map(|run| run.blocks.count).sum::<u64>() > core.layout.blocks_total {
        return None;
    }
    let still = |run: &MapRun| {
        (run.page.0..run.page.0 + run.blocks.count)
            .any(|page| cell_state(core, inode, PageNo(page)).1 <= version)
    };
    let write = |run: MapRun| Record::Write {
        page: run.page,
        pages: run.blocks.count,
        blocks: if run.unwritten {
            Blocks::Unwritten(run.blocks.block)
        } else {
            Blocks::At(run.blocks.block)
        },
        end_in_last_page: 0,
        version,
        mtime,
        change_count,
    };
    Some(runs.into_iter().filter(still).map(write).collect())
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
