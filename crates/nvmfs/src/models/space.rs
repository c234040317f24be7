//! Blocks: pins against reuse, and no block handed out twice or lost.

use super::fixture::{Fixture, PAGE, Worker, model, spawn, values};
use crate::file::deferred::{free_deferred_blocks, unpin};
use crate::file::read::read_pinned;
use std::sync::atomic::Ordering::Relaxed;

/// A pinned reader does not collect the cells again after its copy. So no block whose number it has from a cell may be reused meanwhile.
#[test]
fn a_block_is_not_reused_while_a_pinned_reader_copies_it() {
    model(2, || {
        let fixture = Fixture::new();
        let mut writer = fixture.worker(1);
        writer.write(0, 1, 1);
        writer.write(0, 1, 2);
        let mut reader = fixture.worker(2);
        let thread = spawn(move || (3..6).for_each(|value| writer.write(0, 1, value)));
        let mut data = vec![0xee; PAGE as usize];
        reader.with(|core, guard, file| read_pinned(core, guard, file, 0, &mut data)).unwrap();
        let seen = values(&data);
        assert!((2..6).contains(&seen[0]), "read {seen:?}");
        thread.join().unwrap();
    });
}

/// As above, while pins of other readers begin and end, so that the phase changes.
#[test]
fn a_pinned_block_is_not_reused_while_other_readers_pin_and_unpin() {
    model(2, || {
        let fixture = Fixture::new();
        let mut writer = fixture.worker(1);
        writer.write(0, 1, 1);
        let (mut reader, mut other) = (fixture.worker(2), fixture.worker(3));
        let threads = [
            spawn(move || (2..4).for_each(|value| writer.write(0, 1, value))),
            spawn(move || (0..2).for_each(|_| pin_and_unpin(&mut other))),
        ];
        let mut data = vec![0xee; PAGE as usize];
        reader.with(|core, guard, file| read_pinned(core, guard, file, 0, &mut data)).unwrap();
        let seen = values(&data);
        assert!((1..4).contains(&seen[0]), "read {seen:?}");
        threads.into_iter().for_each(|thread| thread.join().unwrap());
    });
}

/// As above, while another lane, which needs space, frees the file's waiting blocks and reuses them.
#[test]
fn a_pinned_block_is_not_reused_while_another_lane_needs_space() {
    model(1, || {
        let fixture = Fixture::with_free(3);
        let mut writer = fixture.worker(1);
        writer.write(0, 1, 1);
        let (mut reader, mut other) = (fixture.worker(2), fixture.worker(3));
        let thread = spawn(move || {
            writer.write(0, 1, 2);
            writer.leave();
            other.with(free_deferred_blocks);
            let found = other.try_take(1);
            other.mark(&found);
            other.give(found);
            other.leave();
        });
        let mut data = vec![0xee; PAGE as usize];
        reader.with(|core, guard, file| read_pinned(core, guard, file, 0, &mut data)).unwrap();
        let seen = values(&data);
        assert!((1..3).contains(&seen[0]), "read {seen:?}");
        reader.leave();
        thread.join().unwrap();
        // ORDERING: Relaxed, the other threads have been joined.
        assert_eq!(
            fixture.file().volatile.deferred.load(Relaxed),
            0,
            "blocks wait for a pin that nobody has"
        );
        assert_eq!(fixture.free(), fixture.total() - 2);
    });
}

fn pin_and_unpin(worker: &mut Worker) {
    let phase = worker.with(|_, _, file| file.volatile.pins.pin());
    worker.with(|core, guard, file| unpin(core, guard, file, phase));
}

/// The last thread, either the reader with its pin or the writer that deferred, frees the block; also with a
/// second reader in between.
#[test]
fn blocks_that_waited_for_a_pin_are_freed() {
    model(2, || {
        let fixture = Fixture::new();
        let mut writer = fixture.worker(1);
        writer.write(0, 1, 1);
        let (mut reader, mut other) = (fixture.worker(2), fixture.worker(3));
        let threads = [
            spawn(move || {
                writer.write(0, 1, 2);
                writer.leave();
            }),
            spawn(move || {
                pin_and_unpin(&mut other);
                other.leave();
            }),
        ];
        pin_and_unpin(&mut reader);
        reader.leave();
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // ORDERING: Relaxed, the other threads have been joined.
        assert!(fixture.file().volatile.pins.now().none());
        assert_eq!(
            fixture.file().volatile.deferred.load(Relaxed),
            0,
            "blocks wait for a pin that nobody has"
        );
        // One block of data, one of log.
        assert_eq!(fixture.free(), fixture.total() - 2);
    });
}

/// Blocks move between lanes through the free map. The lane whose compare-and-swap clears the bit owns the block.
#[test]
fn no_block_has_two_owners_and_none_is_lost() {
    model(2, || {
        let fixture = Fixture::new();
        let work = |mut worker: super::fixture::Worker| {
            move || {
                let first = worker.take(2);
                worker.mark(&first);
                worker.give(first);
                let second = worker.take(3);
                worker.mark(&second);
                worker.give(second);
                worker.leave();
            }
        };
        let thread = spawn(work(fixture.worker(1)));
        work(fixture.worker(2))();
        thread.join().unwrap();
        assert_eq!(fixture.free(), fixture.total());
    });
}
