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
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::wait;
use crate::steps::{Step, step};
use heddle_arena::Waited;
use heddle_arena::sync::{spin_hint, spins};
use heddle_vfs::Result;
use std::time::Instant;

/// Rounds of spinning before a thread sleeps on a cell.
const SPINS: u32 = spins(400);

/// Cells `[first, end)` of an inode, locked by one lane.
pub struct Locked<'v> {
    inode: InodeRef<'v>,
    first: PageNo,
    end: PageNo,
    /// Largest version among them.
    pub version: Version,
}

/// Locks every cell of a range, and creates those that do not exist.
pub fn lock_pages<'v>(
    core: &Core,
    guard: &LaneGuard<'_>,
    inode: InodeRef<'v>,
    first: PageNo,
    end: PageNo,
) -> Result<Locked<'v>> {
    let mut locked = Locked { inode, first, end: first, version: Version(0) };
    while locked.end < end {
        let run = match inode.volatile.index().grow(&core.arena, locked.end) {
            Ok(run) => run,
            Err(full) => {
                locked.unlock(core);
                return Err(no_memory(full));
            }
        };
        for cell in run.cells.iter().take((end.0 - locked.end.0) as usize) {
            locked.version = locked.version.max(lock_cell(core, cell, guard.id));
            locked.end = PageNo(locked.end.0 + 1);
        }
    }
    Ok(locked)
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
    if core.arena.parking().wait(key, || cell.still(held), wait::look()) == Waited::TimedOut {
        wait::held_up(core, held.lane(), since.elapsed());
    }
}

/// Wakes the threads that sleep on a cell.
pub fn wake(core: &Core, cell: &Cell) {
    core.arena.parking().wake(core.arena.offset_of(cell).raw());
}

impl Locked<'_> {
    fn for_cells(&self, core: &Core, mut f: impl FnMut(u64, &Cell)) {
        let mut page = self.first;
        while page < self.end {
            // Locked cells exist, and nodes stay while the inode lives.
            let Some(run) = self.inode.volatile.index().find(&core.arena, page) else { return };
            for cell in run.cells.iter().take((self.end.0 - page.0) as usize) {
                f(page.0 - self.first.0, cell);
                page = PageNo(page.0 + 1);
            }
        }
    }

    /// Unlocks the cells unchanged.
    pub fn unlock(self, core: &Core) {
        self.for_cells(core, |_, cell| {
            if cell.unlock(cell.lock_version().version()) {
                wake(core, cell);
            }
        });
    }

    /// Maps the `n`th page to `map(n)` at `version` and unlocks. The blocks mapped before are added to
    /// `replaced`.
    pub fn publish(
        self,
        core: &Core,
        inode: InodeRef<'_>,
        version: Version,
        map: impl Fn(u64) -> Map,
        replaced: &mut Vec<Extent>,
    ) {
        let mut change = 0i64;
        self.for_cells(core, |n, cell| {
            step(Step::Happened);
            let (old, new) = (cell.map(), map(n));
            change += i64::from(new.block().is_some()) - i64::from(old.block().is_some());
            if let Some(block) = old.block()
                && new.block() != Some(block)
            {
                add_extent(replaced, block);
            }
            if cell.publish(new, version) {
                wake(core, cell);
            }
        });
        inode.volatile.count_blocks(change);
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

/// Existing cells of a range, locked.
pub struct LockedSparse<'v> {
    inode: InodeRef<'v>,
    range: Change,
    /// Largest version among them.
    pub version: Version,
}

/// Locks the cells of a range that exist. The caller holds the EOF latch and has raised the gate.
pub fn lock_existing<'v>(
    core: &Core,
    guard: &LaneGuard<'_>,
    inode: InodeRef<'v>,
    range: Change,
) -> LockedSparse<'v> {
    let mut version = Version(0);
    for run in inode.volatile.index().runs(&core.arena, range.first, range.end) {
        for cell in run.cells {
            version = version.max(lock_cell(core, cell, guard.id));
        }
    }
    LockedSparse { inode, range, version }
}

impl LockedSparse<'_> {
    fn for_cells(&self, core: &Core, mut f: impl FnMut(PageNo, &Cell)) {
        for run in self.inode.volatile.index().runs(&core.arena, self.range.first, self.range.end) {
            for (i, cell) in run.cells.iter().enumerate() {
                // A leaf that was created since has cells that this lane does not hold; the gate keeps
                // writers off them.
                if cell.lock_version().locked() {
                    f(PageNo(run.page.0 + i as u64), cell);
                }
            }
        }
    }

    /// Unlocks the cells unchanged.
    pub fn unlock(self, core: &Core, lane: u16) {
        self.for_cells(core, |_, cell| {
            if cell.lock_version().lane() == lane && cell.unlock(cell.lock_version().version()) {
                wake(core, cell);
            }
        });
    }

    /// Gives each page its map after a shift, at `version`, and unlocks. No block is freed here: blocks have
    /// moved, or the caller frees them.
    pub fn publish_shifted(self, core: &Core, lane: u16, version: Version, map: impl Fn(PageNo) -> Map) {
        self.for_cells(core, |page, cell| {
            if cell.lock_version().lane() == lane && cell.publish(map(page), version) {
                wake(core, cell);
            }
        });
    }

    /// Returns true if the lane holds this page's cell.
    pub fn holds(&self, core: &Core, lane: u16, page: PageNo) -> bool {
        let cell = self.inode.volatile.index().find(&core.arena, page).map(|run| run.cells[0].lock_version());
        cell.is_some_and(|lock_version| lock_version.locked() && lock_version.lane() == lane)
    }

    /// Maps each page to `map(page, old)` at `version` and unlocks. A page for which that is `None` keeps
    /// content and version: no record names it (D1).
    pub fn publish(
        self,
        core: &Core,
        lane: u16,
        version: Version,
        map: impl Fn(PageNo, Map) -> Option<Map>,
        replaced: &mut Vec<Extent>,
    ) {
        let mut change = 0i64;
        self.for_cells(core, |page, cell| {
            let held = cell.lock_version();
            if held.lane() != lane {
                return;
            }
            let old = cell.map();
            let waited = match map(page, old) {
                None => cell.unlock(held.version()),
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
                wake(core, cell);
            }
        });
        self.inode.volatile.count_blocks(change);
    }
}
