//! Cells that a lane holds, those that it does not hold, and threads that sleep on them.

use super::*;
use crate::volume::bench::Bench;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

/// A lane that no thread of these tests has.
const ANOTHER: u16 = 9;

fn all() -> Change {
    Change { first: PageNo(0), end: PageNo::END }
}

#[test]
fn a_cell_that_came_after_the_others_were_locked_stays_its_writers() {
    let bench = Bench::new();
    let (core, inode) = (bench.core(), bench.inode());
    let guard = bench.guard();
    let locked = lock_existing(core, &guard, inode, all());
    inode.volatile.index().grow(&core.arena, PageNo(100)).unwrap();
    bench.cell(100).try_lock(ANOTHER).unwrap();
    let holds = [0, 3, 100, 101, 1000].map(|page| locked.holds(PageNo(page)));
    assert_eq!(holds, [true, true, false, false, false]);
    let mut held = Vec::new();
    locked.for_cells(|page, _| held.push(page.0));
    assert_eq!(held, [0, 1, 2, 3]);
    drop(locked);
    let is_locked = [0, 3, 100].map(|page| bench.cell(page).lock_version().locked());
    assert_eq!(is_locked, [false, false, true]);
    bench.cell(100).unlock(Version(0));
}

/// How far the operation came is not known: a settler finds that out.
#[test]
fn a_thread_that_panics_leaves_its_cells_locked() {
    let bench = Bench::new();
    let (core, inode) = (bench.core(), bench.inode());
    let guard = bench.guard();
    let is_locked = || bench.cell(0).lock_version().locked();
    let unlock = || _ = bench.cell(0).unlock(Version(0));
    let panics = |locks: &dyn Fn()| {
        assert!(catch_unwind(AssertUnwindSafe(locks)).is_err());
        let left = is_locked();
        unlock();
        guard.lane.end();
        left
    };
    assert!(panics(&|| {
        let _locked = lock_pages(core, &guard, inode, PageNo(0), PageNo(1)).unwrap();
        panic!("with a range");
    }));
    assert!(panics(&|| {
        let range = Change { first: PageNo(0), end: PageNo(1) };
        let _locked = lock_existing(core, &guard, inode, range);
        panic!("with cells that there are");
    }));
    drop(lock_pages(core, &guard, inode, PageNo(0), PageNo(1)).unwrap());
    assert!(!is_locked());
}

#[test]
fn a_thread_that_sleeps_on_a_cell_is_woken() {
    let bench = Bench::new();
    let (core, cell) = (bench.core(), bench.cell(0));
    cell.try_lock(ANOTHER).unwrap();
    let held = cell.lock_version();
    std::thread::scope(|scope| {
        let sleeps =
            || core.arena.parking().wait(core.arena.offset_of(cell).raw(), || cell.still(held), None);
        assert!(cell.set_waiter(held));
        let sleeper = scope.spawn(sleeps);
        // It need not have fallen asleep by then: what it waits for is over all the same.
        std::thread::sleep(Duration::from_millis(50));
        assert!(cell.unlock(Version(1)), "one waits");
        wake(core, cell);
        assert_eq!(sleeper.join().unwrap(), Waited::Unblocked);
    });
    cell.set(Map::HOLE, Version(0));
}
