//! EOF, truncation and punching against writers: the gate, the floor, the EOF latch.

use super::fixture::{Fixture, PAGE, Worker, model, spawn};
use crate::file::new_blocks::Span;
use crate::file::resize::{NewAttributes, clear, set_attributes};
use crate::file::zero::{Becomes, Clear};

fn truncate(worker: &mut Worker, size: u64) {
    worker.with(|core, guard, file| {
        let _eof = file.volatile.eof.lock();
        set_attributes(core, guard, file, &NewAttributes { size: Some(size), ..NewAttributes::default() })
            .unwrap();
    });
}

fn punch_pages(worker: &mut Worker, first: u64, end: u64) {
    worker.with(|core, guard, file| {
        let _eof = file.volatile.eof.lock();
        let span = Span { start: first * PAGE, end: end * PAGE };
        clear(core, guard, file, Clear { span, to: Becomes::Hole }, None).unwrap();
    });
}

/// A file of eight pages, the first two written, by two lanes that have their chains already.
fn two_seats() -> (Fixture, Worker, Worker) {
    let fixture = Fixture::new();
    let (mut first, mut second) = (fixture.worker(1), fixture.worker(2));
    first.write(0, 1, 1);
    second.write(1, 1, 1);
    fixture.file().volatile.set_size(8 * PAGE);
    (fixture, first, second)
}

/// The page has no cell when the truncation looks for cells: only the gate orders the two (D8).
#[test]
fn truncation_and_write_without_a_cell_are_ordered() {
    model(2, || {
        let (fixture, mut writer, mut cutter) = two_seats();
        let thread = spawn(move || writer.write(5, 1, 9));
        truncate(&mut cutter, PAGE);
        thread.join().unwrap();
        let size = fixture.file().volatile.size();
        let map = fixture.file().volatile.index().find(&fixture.core().arena, crate::ids::PageNo(5));
        let mapped = map.is_some_and(|run| run.cells[0].map().block().is_some());
        assert_eq!(size, if mapped { 6 * PAGE } else { PAGE }, "mapped: {mapped}");
        if mapped {
            assert_eq!(fixture.worker(3).read(0, 6), [1, 0, 0, 0, 0, 9]);
        }
    });
}

/// The same with a punch, which changes no size: the surviving data must have the larger version, or a power
/// cut would lose it.
#[test]
fn what_a_write_leaves_beside_a_punch_has_the_larger_version() {
    model(2, || {
        let (fixture, mut writer, mut puncher) = two_seats();
        let thread = spawn(move || writer.write(5, 1, 9));
        punch_pages(&mut puncher, 1, 8);
        thread.join().unwrap();
        let floor = fixture.file().volatile.floor();
        if let Some(run) = fixture.file().volatile.index().find(&fixture.core().arena, crate::ids::PageNo(5))
        {
            let (map, version) = (run.cells[0].map(), run.cells[0].lock_version().version());
            assert!(!run.cells[0].lock_version().locked());
            assert!(map.block().is_none() || version > floor, "version {version:?}, floor {floor:?}");
        }
        let seen = fixture.worker(3).read(0, 8);
        assert!(seen == [1, 0, 0, 0, 0, 0, 0, 0] || seen == [1, 0, 0, 0, 0, 9, 0, 0], "read {seen:?}");
    });
}

#[test]
fn appends_never_overlap() {
    model(3, || {
        let fixture = Fixture::new();
        let (mut first, mut second) = (fixture.worker(1), fixture.worker(2));
        first.append(1);
        second.append(1);
        let thread = spawn(move || second.append(3));
        let mine = first.append(2);
        let other = thread.join().unwrap();
        assert_eq!(mine + other, 5 * PAGE);
        let seen = fixture.worker(3).read(0, 5);
        assert!(seen == [1, 1, 2, 3] || seen == [1, 1, 3, 2], "read {seen:?}");
    });
}

/// A reader that sees the new size sees the bytes below it.
#[test]
fn the_bytes_of_an_append_are_there_when_its_size_is() {
    model(3, || {
        let fixture = Fixture::new();
        let mut writer = fixture.worker(1);
        writer.append(1);
        let mut reader = fixture.worker(2);
        let thread = spawn(move || {
            writer.append(2);
        });
        let seen = reader.read(0, 3);
        assert!(seen == [1] || seen == [1, 2], "read {seen:?}");
        thread.join().unwrap();
    });
}

/// A file is cut and grown again: below the old end a reader sees the old bytes or zeros, never a mixture
/// with bytes that were cut.
#[test]
fn a_cut_is_seen_whole() {
    model(2, || {
        let fixture = Fixture::new();
        let mut cutter = fixture.worker(1);
        cutter.write(0, 3, 1);
        let mut reader = fixture.worker(2);
        let thread = spawn(move || {
            truncate(&mut cutter, PAGE);
            truncate(&mut cutter, 3 * PAGE);
        });
        let seen = reader.read(0, 3);
        assert!(seen == [1, 1, 1] || seen == [1] || seen == [1, 0, 0], "read {seen:?}");
        thread.join().unwrap();
    });
}
