//! Cells of a range of pages, held by one lane: either all of them, allocated as needed, or only the existing
//! ones.
//!
//! Invariants  I1  cells are taken in ascending order, so that lanes that want several cannot deadlock.
//!             I2  a thread that has spun for a while sleeps on the cell. If the holder is dead, the waiter settles it.
//!             I3  a caller that holds only the existing cells also holds the EOF latch and has raised the gate. So no other thread
//!                 creates and writes another cell of the range meanwhile.

use crate::ids::{Extent, PageNo, Version, add_extent};
use crate::state::cell::{Cell, LockVersion, Map};
use crate::state::core::{Core, no_memory};
use crate::state::index::Run;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::operation::{Active, Durable};
use crate::state::wait;
use crate::steps::{Step, step};
use heddle_arena::Waited;
use heddle_arena::sync::{spin_hint, spins};
use heddle_vfs::Result;
use std::time::Instant;

/// Rounds of spinning before a thread sleeps on a cell.
const SPINS: u32 = spins(400);

/// Cells whose operation has happened: they must be published. Dropping this leaves them as they were before.
#[must_use]
pub struct Committed<C>(C);

/// The cell of one page, locked.
pub struct LockedCell<'v> {
    op: Active<'v>,
    core: &'v Core,
    cell: &'v Cell,
    /// Its version.
    pub version: Version,
}

/// Begins an operation on one page, whose cell exists, and locks the cell.
#[inline]
pub fn lock_one<'v>(
    core: &'v Core,
    guard: &LaneGuard<'v>,
    inode: InodeRef<'v>,
    page: PageNo,
    cell: &'v Cell,
) -> LockedCell<'v> {
    let op = Active::begin(guard.lane, inode.ino, page, PageNo(page.0 + 1));
    let version = lock_cell(core, cell, guard.id);
    LockedCell { op, core, cell, version }
}

impl<'v> LockedCell<'v> {
    /// The operation happens.
    #[inline]
    pub fn commit(self, durable: &Durable) -> Committed<LockedCell<'v>> {
        self.op.commit(durable);
        Committed(self)
    }

    /// Unlocks the cell unchanged, and ends the operation.
    #[inline]
    pub fn unlock(self) {
        if self.cell.unlock(self.version) {
            wake(self.core, self.cell);
        }
    }
}

impl Committed<LockedCell<'_>> {
    /// Maps the page to `map` at `version`, unlocks, and ends the operation.
    #[inline]
    pub fn publish(self, map: Map, version: Version) {
        if self.0.cell.publish(map, version) {
            wake(self.0.core, self.0.cell);
        }
        step(Step::LetGo);
    }
}

/// Cells `[first, end)` of an inode, locked by one lane. Dropping this unlocks them unchanged, and ends the
/// operation.
pub struct Locked<'v> {
    op: Active<'v>,
    core: &'v Core,
    lane: u16,
    inode: InodeRef<'v>,
    first: PageNo,
    /// Cells before this page are locked.
    locked: PageNo,
    end: PageNo,
    /// The first of them, once they are locked: they stay where they are while the inode lives.
    cells: Option<Run<'v>>,
    /// Largest version among them.
    pub version: Version,
}

/// Begins an operation and locks every cell of a range. Creates those that do not exist.
pub fn lock_pages<'v>(
    core: &'v Core,
    guard: &LaneGuard<'v>,
    inode: InodeRef<'v>,
    first: PageNo,
    end: PageNo,
) -> Result<Locked<'v>> {
    let op = Active::begin(guard.lane, inode.ino, first, end);
    let (locked, version) = (first, Version(0));
    let mut held = Locked { op, core, lane: guard.id, inode, first, locked, end, cells: None, version };
    held.lock()?;
    Ok(held)
}

/// Locks a cell; returns its version.
pub fn lock_cell(core: &Core, cell: &Cell, lane: u16) -> Version {
    let (mut spins, mut began, mut asked) = (0, None, None::<Instant>);
    loop {
        let held = match cell.try_lock(lane) {
            Ok(version) => {
                if let Some(asked) = asked {
                    core.lane(lane).counts.waited(1, asked.elapsed());
                }
                return version;
            }
            Err(held) => held,
        };
        spins += 1;
        if spins < SPINS || !held.locked() {
            spin_hint();
        } else if cell.set_waiter(held) {
            asked = asked.or_else(|| Some(Instant::now()));
            let (by, since) = *began.get_or_insert_with(|| (held, Instant::now()));
            if by != held {
                began = None;
            } else {
                wait_unlocked(core, cell, held, since);
            }
        }
    }
}

/// Sleeps until a cell's lock word is no longer `held`, or until it is time to check again; its waiter bit is
/// set. If the holder is dead, it is settled here. `since`: the time since which the caller waits for this
/// holder.
pub fn wait_unlocked(core: &Core, cell: &Cell, held: LockVersion, since: Instant) {
    let key = core.arena.offset_of(cell).raw();
    if core.arena.parking().wait(key, || cell.still(held), wait::check_every()) == Waited::TimedOut {
        wait::held_up(core, held.lane(), since.elapsed());
    }
}

/// Wakes the threads that sleep on a cell.
pub fn wake(core: &Core, cell: &Cell) {
    core.arena.parking().wake(core.arena.offset_of(cell).raw());
}

impl<'v> Locked<'v> {
    fn lock(&mut self) -> Result<()> {
        while self.locked < self.end {
            let run = self.inode.volatile.index().grow(&self.core.arena, self.locked).map_err(no_memory)?;
            self.cells = self.cells.or(Some(run));
            for cell in run.cells.iter().take((self.end.0 - self.locked.0) as usize) {
                self.version = self.version.max(lock_cell(self.core, cell, self.lane));
                self.locked = PageNo(self.locked.0 + 1);
            }
        }
        Ok(())
    }

    /// Unlocks the cells unchanged, calls `between`, and locks them again. The operation goes on.
    pub fn lock_again(mut self, between: impl FnOnce()) -> Result<Locked<'v>> {
        self.unlock();
        between();
        self.lock()?;
        Ok(self)
    }

    /// The operation happens.
    pub fn commit(self, durable: &Durable) -> Committed<Locked<'v>> {
        self.op.commit(durable);
        Committed(self)
    }

    fn for_cells(&self, mut f: impl FnMut(u64, &Cell)) {
        let (mut page, mut cells) = (self.first, self.cells);
        while page < self.locked {
            // Locked cells exist, and nodes stay while the inode lives.
            let found = cells.take().or_else(|| self.inode.volatile.index().find(&self.core.arena, page));
            let Some(run) = found else { return };
            for cell in run.cells.iter().take((self.locked.0 - page.0) as usize) {
                f(page.0 - self.first.0, cell);
                page = PageNo(page.0 + 1);
            }
        }
    }

    fn unlock(&mut self) {
        self.for_cells(|_, cell| {
            if cell.unlock(cell.lock_version().version()) {
                wake(self.core, cell);
            }
        });
        (self.locked, self.version) = (self.first, Version(0));
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if self.locked > self.first && !std::thread::panicking() {
            self.unlock();
        }
    }
}

impl Committed<Locked<'_>> {
    /// Maps the `n`th page to `map(n)` at `version`, unlocks, and ends the operation. The blocks mapped before
    /// are added to `replaced`.
    #[inline]
    pub fn publish(mut self, version: Version, map: impl Fn(u64) -> Map, replaced: &mut Vec<Extent>) {
        let mut change = 0i64;
        self.0.for_cells(|n, cell| {
            step(Step::Happened);
            let (old, new) = (cell.map(), map(n));
            change += i64::from(new.block().is_some()) - i64::from(old.block().is_some());
            if let Some(block) = old.block()
                && new.block() != Some(block)
            {
                add_extent(replaced, block);
            }
            if cell.publish(new, version) {
                wake(self.0.core, cell);
            }
        });
        self.0.locked = self.0.first;
        self.0.inode.volatile.count_blocks(change);
        step(Step::LetGo);
    }
}

/// A change of pages that is not a write of data. It is made under the EOF latch and the gate: every existing
/// cell of the range is locked, and no other cell can be created meanwhile.
pub struct Change {
    /// First page whose cells change.
    pub first: PageNo,
    /// One beyond the last.
    pub end: PageNo,
}

/// Existing cells of a range, locked. Dropping this unlocks them unchanged, and ends the operation.
pub struct LockedSparse<'v> {
    op: Active<'v>,
    core: &'v Core,
    lane: u16,
    inode: InodeRef<'v>,
    range: Change,
    is_locked: bool,
    /// Largest version among them.
    pub version: Version,
}

/// Begins an operation and locks the cells of a range that exist. The caller holds the EOF latch and has
/// raised the gate.
pub fn lock_existing<'v>(
    core: &'v Core,
    guard: &LaneGuard<'v>,
    inode: InodeRef<'v>,
    range: Change,
) -> LockedSparse<'v> {
    let op = Active::begin(guard.lane, inode.ino, range.first, range.end);
    let mut version = Version(0);
    for run in inode.volatile.index().runs(&core.arena, range.first, range.end) {
        for cell in run.cells {
            version = version.max(lock_cell(core, cell, guard.id));
        }
    }
    LockedSparse { op, core, lane: guard.id, inode, range, is_locked: true, version }
}

impl<'v> LockedSparse<'v> {
    /// Calls `f` for each cell that the lane holds.
    fn for_cells(&self, mut f: impl FnMut(PageNo, &Cell)) {
        for run in self.inode.volatile.index().runs(&self.core.arena, self.range.first, self.range.end) {
            for (i, cell) in run.cells.iter().enumerate() {
                // A leaf that was created since has cells that this lane does not hold; the gate keeps
                // writers off them.
                let held = cell.lock_version();
                if held.locked() && held.lane() == self.lane {
                    f(PageNo(run.page.0 + i as u64), cell);
                }
            }
        }
    }

    /// Returns true if the lane holds this page's cell.
    pub fn holds(&self, page: PageNo) -> bool {
        let cell =
            self.inode.volatile.index().find(&self.core.arena, page).map(|run| run.cells[0].lock_version());
        cell.is_some_and(|held| held.locked() && held.lane() == self.lane)
    }

    /// The operation happens.
    pub fn commit(self, durable: &Durable) -> Committed<LockedSparse<'v>> {
        self.op.commit(durable);
        Committed(self)
    }
}

impl Drop for LockedSparse<'_> {
    fn drop(&mut self) {
        if self.is_locked && !std::thread::panicking() {
            self.for_cells(|_, cell| {
                if cell.unlock(cell.lock_version().version()) {
                    wake(self.core, cell);
                }
            });
        }
    }
}

impl Committed<LockedSparse<'_>> {
    /// Gives each page its map after a shift, at `version`, unlocks, and ends the operation. No block is freed
    /// here: blocks have moved, or the caller frees them.
    pub fn publish_shifted(mut self, version: Version, map: impl Fn(PageNo) -> Map) {
        self.0.for_cells(|page, cell| {
            if cell.publish(map(page), version) {
                wake(self.0.core, cell);
            }
        });
        self.0.is_locked = false;
        step(Step::LetGo);
    }

    /// Maps each page to `map(page, old)` at `version`, unlocks, and ends the operation. A page for which that
    /// is `None` keeps content and version: no record names it (D1).
    pub fn publish(
        mut self,
        version: Version,
        map: impl Fn(PageNo, Map) -> Option<Map>,
        replaced: &mut Vec<Extent>,
    ) {
        let mut change = 0i64;
        self.0.for_cells(|page, cell| {
            let old = cell.map();
            let waited = match map(page, old) {
                None => cell.unlock(cell.lock_version().version()),
                Some(new) => {
                    change += i64::from(new.block().is_some()) - i64::from(old.block().is_some());
                    if let Some(block) = old.block()
                        && new.block() != Some(block)
                    {
                        add_extent(replaced, block);
                    }
                    cell.publish(new, version)
                }
            };
            if waited {
                wake(self.0.core, cell);
            }
        });
        self.0.is_locked = false;
        self.0.inode.volatile.count_blocks(change);
        step(Step::LetGo);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
