//! Tables of directories that grow, or become another directory's, while other threads look up and lock.
//!
//! As in `names`, no entry is removed here.

use super::fixture::{Fixture, Worker, model, spawn};
use super::names::{DIR, find_in, make_dir, put_in};
use crate::names::table;
use heddle_vfs::Ino;

/// The directory that gets the buckets that [`DIR`] had.
const NEXT: Ino = Ino(0);
/// Names of one bucket: six in its line, and three outside it, with which a table of one bucket is full.
const CROWD: [&str; 9] = ["a", "b", "c", "d", "e", "f", "g", "h", "i"];

fn three() -> (Fixture, Worker, Worker, Worker) {
    let fixture = Fixture::new();
    let [first, second, third] = [1, 2, 3].map(|id| fixture.worker(id));
    (fixture, first, second, third)
}

/// A full table of one bucket grows while another thread works with the directory; then all names are there.
fn while_it_grows(preemptions: usize, other: fn(&mut Worker), made: &'static [&'static str]) {
    model(preemptions, move || {
        let (_rig, mut grower, mut worker, _) = three();
        make_dir(&mut grower, DIR, 1);
        let crowded = CROWD.iter().zip(1..).map(|(name, n)| put_in(&mut grower, DIR, name, n).unwrap().1);
        let crowded = crowded.last().unwrap().expect("the last one made it full");
        let thread = spawn(move || other(&mut worker));
        grower.with(|core, guard, _| {
            table::grow(core, guard.own, core.slot(DIR).unwrap(), crowded, false);
            assert!(table::count(core, core.slot(DIR).unwrap()) > 2, "it has not grown");
        });
        thread.join().unwrap();
        let all = CROWD.iter().chain(made).zip(1..);
        all.for_each(|(name, n)| assert_eq!(find_in(&mut grower, DIR, name), Some(n), "{name}"));
    });
}

#[test]
fn a_name_is_found_while_its_table_grows() {
    while_it_grows(1, |worker| assert_eq!(find_in(worker, DIR, "i"), Some(9)), &[]);
}

#[test]
fn a_name_is_made_while_its_table_grows() {
    while_it_grows(
        1,
        |worker| assert!(put_in(worker, DIR, "new", 10).is_some(), "the directory is dead"),
        &["new"],
    );
}

/// A thread that has read a directory's word locks a bucket that belongs to another directory by then.
#[test]
fn a_late_locker_changes_no_other_directory() {
    model(2, || {
        let (_rig, mut first, mut late, _) = three();
        make_dir(&mut first, DIR, 7);
        let thread = spawn(move || put_in(&mut late, DIR, "late", 5).is_some());
        let died = first.with(|core, _, _| {
            let dir = core.slot(DIR).unwrap();
            let whole = table::lock_whole(core, dir).unwrap();
            let dies = whole.is_empty();
            if dies {
                whole.kill();
                table::free(core, dir);
                dir.volatile.die();
            }
            dies
        });
        if died {
            make_dir(&mut first, NEXT, 7);
            assert!(put_in(&mut first, NEXT, "mine", 6).is_some(), "a living directory is dead");
        }
        let put = thread.join().unwrap();
        assert!(put != died, "a name was put into a directory that had ended, or none into one that lives");
        match died {
            true => {
                assert_eq!(find_in(&mut first, NEXT, "mine"), Some(6));
                assert_eq!(find_in(&mut first, NEXT, "late"), None, "a name of another directory");
                // No thread has left a lock.
                first.with(|core, _, _| drop(table::lock_whole(core, core.slot(NEXT).unwrap()).unwrap()));
            }
            false => assert_eq!(find_in(&mut first, DIR, "late"), Some(5)),
        }
    });
}
