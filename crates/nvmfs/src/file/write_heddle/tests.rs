//! Writers that meet in the middle of a write, and which of them wait.

use super::*;
use crate::file::cells::wake;
use crate::variant::Variant;
use crate::volume::bench::{Bench, parked, until_one_waits_for};
use heddle_vfs::FileSystem;
use std::sync::Barrier;

const PAGE: u64 = BLOCK_BYTES as u64;

/// A file of four pages.
fn four_pages(variant: Variant) -> Bench {
    let bench = Bench::of(variant);
    bench.write(0, 1, 4 * PAGE);
    bench
}

/// The second write of a thread to a file is the one that may go the short way.
const WITHIN: [(u64, u64); 6] =
    [(0, PAGE), (3 * PAGE, PAGE), (100, 100), (3 * PAGE + 1, PAGE - 1), (PAGE, 2 * PAGE), (0, 4 * PAGE)];

#[test]
fn only_a_write_that_moves_the_end_waits_for_its_latch() {
    for variant in Variant::ALL {
        let bench = four_pages(variant);
        let waits =
            |(at, len)| bench.waits_for_latch(false, || bench.write(0, 2, PAGE), || bench.write(at, 3, len));
        assert_eq!(WITHIN.map(waits), [false; 6], "{variant:?}");
        assert_eq!([(4 * PAGE - 1, 2), (6 * PAGE, PAGE)].map(waits), [true; 2], "{variant:?}");
        assert_eq!(bench.size(), 7 * PAGE, "{variant:?}");
    }
}

#[test]
fn a_write_waits_for_the_call_that_has_raised_the_gate() {
    let bench = four_pages(Variant::Heddle);
    let waits =
        |(at, len)| bench.waits_for_latch(true, || bench.write(0, 2, PAGE), || bench.write(at, 3, len));
    assert_eq!(WITHIN.map(waits), [true; 6]);
    assert_eq!(bench.read(0, 4 * PAGE), vec![3; 4 * PAGE as usize]);
}

/// It ends where the file did: the size that it has seen is an old one by then.
#[test]
fn an_append_beside_a_write_of_the_last_page_moves_the_end() {
    for (at, len) in [(PAGE, PAGE), (PAGE + 100, PAGE - 100)] {
        let bench = Bench::new();
        bench.write(0, 1, 2 * PAGE);
        parked(
            Step::Happened,
            || bench.write(0, 1, PAGE),
            || bench.write(at, 2, len),
            || assert_eq!(bench.fs.append(&bench.file, &[3; 10]), Ok(2 * PAGE)),
        );
        assert_eq!(bench.size(), 2 * PAGE + 10, "{len} bytes");
        assert_eq!(bench.read(2 * PAGE - 1, PAGE), [[2; 1].as_slice(), &[3; 10]].concat());
    }
}

/// The second one has said a version before it held the page. The next mount finds no two records of one version.
#[test]
fn of_two_writes_of_a_page_the_one_that_waited_is_later() {
    let bench = four_pages(Variant::Heddle);
    let before = cell_state(bench.core(), bench.inode(), PageNo(0)).1;
    let [ready, go_on] = [(); 2].map(|()| Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bench.write(2 * PAGE, 1, PAGE);
            ready.wait();
            go_on.wait();
            bench.write(0, 3, PAGE);
        });
        ready.wait();
        let look = || {
            go_on.wait();
            until_one_waits_for(bench.cell(0));
        };
        parked(Step::Held, || bench.write(PAGE, 1, PAGE), || bench.write(0, 2, PAGE), look);
    });
    assert_eq!(cell_state(bench.core(), bench.inode(), PageNo(0)).1, Version(before.0 + 2));
    let waits = bench.fs.counters().totals;
    assert!(waits.waits() > 0 && waits.wait_ns() > 0);
    assert_eq!(bench.read(0, PAGE), [3; PAGE as usize]);
    assert_eq!(bench.mounted_again().read(0, PAGE), [3; PAGE as usize]);
}

/// A later time was shown while the writer waited for its page.
#[test]
fn the_time_of_a_write_that_waited_is_the_one_on_media() {
    let bench = four_pages(Variant::Heddle);
    let (core, cell, ready) = (bench.core(), bench.cell(0), Barrier::new(2));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            bench.write(PAGE, 1, PAGE);
            ready.wait();
            ready.wait();
            bench.write(0, 2, PAGE);
        });
        ready.wait();
        let call = bench.guard();
        let version = cell.try_lock(call.id).unwrap();
        ready.wait();
        until_one_waits_for(cell);
        bench.inode().volatile.touch(crate::clock::exact());
        if cell.unlock(version) {
            wake(core, cell);
        }
    });
    let shown = bench.fs.getattr(bench.file.ino).unwrap().mtime;
    let bench = bench.mounted_again();
    assert_eq!(bench.fs.getattr(bench.file.ino).unwrap().mtime, shown);
}

#[test]
fn a_reader_passes_a_write_until_it_is_committed() {
    for step in [Step::Held, Step::Stored, Step::Durable] {
        let bench = four_pages(Variant::Heddle);
        let look = || {
            for (at, len) in [(0, PAGE), (10, 20), (0, 3 * PAGE), (PAGE - 1, 2)] {
                assert_eq!(bench.read(at, len), vec![1; len as usize], "in {step:?}");
            }
        };
        parked(step, || bench.write(PAGE, 1, PAGE), || bench.write(0, 2, PAGE), look);
        assert_eq!(bench.read(0, PAGE), [2; PAGE as usize]);
        assert_eq!(bench.fs.counters().totals.waits(), 0);
    }
}

#[test]
fn a_reader_waits_for_a_committed_write_and_that_is_counted() {
    for len in [PAGE, 3 * PAGE] {
        let bench = four_pages(Variant::Heddle);
        let go_on = Barrier::new(2);
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                go_on.wait();
                bench.read(0, len)
            });
            let look = || {
                go_on.wait();
                until_one_waits_for(bench.cell(0));
            };
            parked(Step::Happened, || (), || bench.write(0, 2, PAGE), look);
            assert_eq!(reader.join().unwrap()[..PAGE as usize], [2; PAGE as usize]);
        });
        let waits = bench.fs.counters().totals;
        assert!(waits.waits() > 0 && waits.wait_ns() > 0);
    }
}

/// The rest of the page was copied before.
#[test]
fn a_write_in_part_keeps_what_was_written_beside_it() {
    let bench = four_pages(Variant::Heddle);
    parked(Step::Filled, || (), || bench.write(100, 2, 2 * PAGE), || bench.write(0, 3, 4 * PAGE));
    let (start, end) = (100, 100 + 2 * PAGE as usize);
    let mut wanted = vec![3; 4 * PAGE as usize];
    wanted[start..end].fill(2);
    assert!(bench.read(0, 4 * PAGE) == wanted);
    assert!(bench.mounted_again().read(0, 4 * PAGE) == wanted);
}
