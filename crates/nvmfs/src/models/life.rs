//! The death of an inode: its last name and its last handle may go at the same time, while another thread
//! opens it (D23).

use super::fixture::{FILE, Fixture, Worker, model, spawn};
use crate::names::life;
use crate::state::living::lives_on;
use crate::state::opens;
use loom::thread::JoinHandle;
use std::sync::atomic::Ordering::Relaxed;

const GENERATION: u64 = 1;

fn unlink(worker: &mut Worker) {
    worker.with(|core, guard, file| life::drop_name(core, guard, file));
}

/// Opens the file. If that succeeds, the file lives until the handle is released.
fn visit(worker: &mut Worker) {
    let opened = worker.with(|core, guard, file| life::open(core, guard, file, GENERATION));
    if opened.is_ok() {
        assert_eq!(worker.read(0, 1), [1], "the file was ended under an open handle");
        worker.with(|core, guard, file| {
            assert!(file.volatile.generation() == GENERATION, "the file was ended under an open handle");
            life::drop_open(core, guard, file, GENERATION);
        });
    }
}

/// A written file, its writer's lane, and lanes that may open it.
fn ready() -> (Fixture, Worker, Worker, Worker) {
    let fixture = Fixture::new();
    let mut workers = [1, 2, 3].map(|id| fixture.worker(id));
    workers.iter_mut().for_each(Worker::equip);
    let [mut first, second, third] = workers;
    first.write(0, 1, 1);
    (fixture, first, second, third)
}

/// Asserts that no inode is in the slot and that all blocks are free. A block that is freed twice panics by
/// itself.
fn is_ended(fixture: &Fixture, workers: Vec<Worker>) {
    assert_eq!(fixture.file().volatile.generation(), 0, "nobody ended it");
    // ORDERING: Relaxed, the other threads have been joined.
    assert_eq!(fixture.file().volatile.opens.load(Relaxed), 0, "handles are counted of nothing");
    workers.into_iter().for_each(Worker::leave);
    assert_eq!(fixture.free(), fixture.total(), "blocks of a dead file");
}

#[test]
fn an_opener_gets_a_living_file_or_none() {
    model(2, || {
        let (fixture, mut first, mut second, third) = ready();
        let thread = spawn(move || {
            visit(&mut second);
            second
        });
        unlink(&mut first);
        let second = thread.join().unwrap();
        is_ended(&fixture, vec![first, second, third]);
    });
}

#[test]
fn of_the_last_name_and_the_last_handles_one_ends_the_file() {
    model(1, || {
        let (fixture, mut first, mut second, mut third) = ready();
        for worker in [&mut second, &mut third] {
            worker.with(|core, guard, file| life::open(core, guard, file, GENERATION)).unwrap();
        }
        let close = |mut worker: Worker| {
            move || {
                worker.with(|core, guard, file| life::drop_open(core, guard, file, GENERATION));
                worker
            }
        };
        let threads = [spawn(close(second)), spawn(close(third))];
        unlink(&mut first);
        let mut workers: Vec<Worker> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        workers.push(first);
        is_ended(&fixture, workers);
    });
}

/// Another lane than the opener's may close a handle: only the sum is the number of handles.
#[test]
fn a_handle_that_another_lane_closes_is_still_one_handle() {
    model(2, || {
        let (fixture, mut first, mut second, mut third) = ready();
        second.with(|core, guard, file| life::open(core, guard, file, GENERATION)).unwrap();
        let thread = spawn(move || {
            third.with(|core, guard, file| life::drop_open(core, guard, file, GENERATION));
            third
        });
        unlink(&mut first);
        let third = thread.join().unwrap();
        assert_eq!(fixture.file().volatile.generation(), 0, "nobody ended it");
        [first, second, third].into_iter().for_each(Worker::leave);
        assert_eq!(fixture.free(), fixture.total());
    });
}

/// Moves what lane 2 counts to lane 3, as the end of a thread does.
fn moving(mut second: Worker) -> JoinHandle<Worker> {
    spawn(move || {
        second.with(|core, guard, _| {
            let lives_on = |inode, generation| lives_on(core, inode, generation);
            for nameless in opens::hand_over(core, 2, 3, lives_on) {
                life::end_once(core, guard, nameless);
            }
        });
        second
    })
}

/// Who ended the file could read one lane before a handle came there, and the other when it had gone.
#[test]
fn a_handle_that_moves_keeps_its_file() {
    model(2, || {
        let (fixture, mut first, mut second, mut third) = ready();
        second.with(|core, guard, file| life::open(core, guard, file, GENERATION)).unwrap();
        let thread = moving(second);
        unlink(&mut first);
        let second = thread.join().unwrap();
        assert_eq!(
            fixture.file().volatile.generation(),
            GENERATION,
            "the file was ended under an open handle"
        );
        third.with(|core, guard, file| life::drop_open(core, guard, file, GENERATION));
        is_ended(&fixture, vec![first, second, third]);
    });
}

/// Who closed it could look where it was not yet, and then where it was no more.
#[test]
fn a_handle_that_moves_is_found_by_who_closes_it() {
    model(2, || {
        let (fixture, mut first, mut second, third) = ready();
        second.with(|core, guard, file| life::open(core, guard, file, GENERATION)).unwrap();
        let thread = moving(second);
        first.with(|core, guard, file| life::drop_open(core, guard, file, GENERATION));
        let second = thread.join().unwrap();
        unlink(&mut first);
        is_ended(&fixture, vec![first, second, third]);
    });
}

/// The loads of getattr and setattr. A thread that closes another handle of a file without a name claims it,
/// and withdraws the claim.
#[test]
fn an_open_file_is_never_stale_for_who_looks() {
    model(2, || {
        let (fixture, mut first, mut second, third) = ready();
        for worker in [&mut first, &mut second] {
            worker.with(|core, guard, file| life::open(core, guard, file, GENERATION)).unwrap();
        }
        unlink(&mut first);
        let thread = spawn(move || {
            second.with(|core, guard, file| life::drop_open(core, guard, file, GENERATION));
            second
        });
        assert!(fixture.core().inode(FILE).is_ok(), "a file that is open is stale");
        let second = thread.join().unwrap();
        first.with(|core, guard, file| life::drop_open(core, guard, file, GENERATION));
        is_ended(&fixture, vec![first, second, third]);
    });
}

/// A thread loads a file whose last handle is released: the file is there, or it is stale. No thread waits
/// for ever, and the file is freed.
#[test]
fn who_looks_at_a_file_that_ends_gets_an_answer() {
    model(2, || {
        let (fixture, mut first, mut second, third) = ready();
        second.with(|core, guard, file| life::open(core, guard, file, GENERATION)).unwrap();
        unlink(&mut first);
        let thread = spawn(move || {
            second.with(|core, guard, file| life::drop_open(core, guard, file, GENERATION));
            second
        });
        let _either = fixture.core().inode(FILE).is_ok();
        let second = thread.join().unwrap();
        assert!(fixture.core().inode(FILE).is_err(), "a file that has ended is there");
        is_ended(&fixture, vec![first, second, third]);
    });
}
