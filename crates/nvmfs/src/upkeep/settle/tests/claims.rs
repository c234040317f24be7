//! What a dead process, or a settler, was in the middle of saying about an inode that others use.

use super::super::sweep;
use super::{PAGE, bench, dies};
use crate::state::lane::Freeing;
use crate::state::{lease, opens};
use heddle_vfs::{Cred, FileSystem, Ino, Name};
use std::time::{Duration, Instant};

#[test]
fn an_open_file_lives_though_a_dead_process_claimed_its_end() {
    let bench = bench();
    let fs = bench.volume.fs();
    fs.unlink(&Cred::root(), Ino::ROOT, Name::new(b"f").unwrap()).unwrap();
    for how in [Freeing::Asked, Freeing::Claimed] {
        assert!(dies(1, || {
            let guard = lease::enter(&fs.core).unwrap();
            let inode = fs.core.slot(bench.file.ino).unwrap();
            guard.lane.intent.note_freeing(inode.ino.0, how);
            assert!(inode.volatile.claim(opens::claims_as(&fs.core, guard.id)));
            crate::steps::step(crate::steps::Step::Held);
        }));
        let began = Instant::now();
        assert!(fs.getattr(bench.file.ino).is_ok(), "{how:?}: a file that is open is stale");
        assert!(began.elapsed() < Duration::from_secs(5));
    }
    let mut page = [0; PAGE as usize];
    assert_eq!(fs.read(&bench.file, 0, &mut page), Ok(PAGE as usize));
    let ino = bench.file.ino;
    fs.release(bench.file);
    assert_eq!(fs.core.slot(ino).unwrap().volatile.generation(), 0, "nobody ended it");
    lease::leave(&fs.core);
}

#[test]
fn crash_an_open_file_was_stale_during_anothers_close() {
    let bench = bench();
    let fs = bench.volume.fs();
    fs.unlink(&Cred::root(), Ino::ROOT, Name::new(b"f").unwrap()).unwrap();
    let inode = fs.core.slot(bench.file.ino).unwrap();
    std::thread::scope(|scope| {
        let guard = lease::enter(&fs.core).unwrap();
        let by = opens::claims_as(&fs.core, guard.id);
        guard.lane.intent.note_freeing(inode.ino.0, Freeing::Asked);
        assert!(inode.volatile.claim(by));
        let (begins, begun) = std::sync::mpsc::channel();
        let (fs, file) = (&fs, &bench.file);
        let looker = scope.spawn(move || {
            begins.send(()).unwrap();
            fs.getattr(file.ino).is_ok() && fs.read(file, 0, &mut [0; 10]) == Ok(10)
        });
        begun.recv().unwrap();
        // So long it looks at an inode that is claimed; it cannot say when it has begun to.
        std::thread::sleep(Duration::from_millis(20));
        inode.volatile.unclaim(by);
        guard.lane.intent.note_freeing(0, Freeing::None);
        assert!(looker.join().unwrap(), "a file that is open is stale");
    });
    fs.release(bench.file);
    lease::leave(&fs.core);
}

#[test]
fn a_claim_of_another_lane_is_not_taken_back_by_a_settler() {
    let bench = bench();
    let fs = bench.volume.fs();
    let inode = fs.core.slot(bench.file.ino).unwrap();
    // The dead one had asked; the claim is the living one's.
    assert!(dies(1, || {
        let guard = lease::enter(&fs.core).unwrap();
        guard.lane.intent.note_freeing(inode.ino.0, Freeing::Asked);
        crate::steps::step(crate::steps::Step::Held);
    }));
    let living = lease::enter(&fs.core).unwrap();
    let by = opens::claims_as(&fs.core, living.id);
    assert!(inode.volatile.claim(by));
    sweep(&fs.core);
    assert!(
        !inode.volatile.lives() && inode.volatile.claimer() == living.id,
        "the settler has taken the claim back"
    );
    inode.volatile.unclaim(by);
    drop(living);
    fs.release(bench.file);
    lease::leave(&fs.core);
}

#[test]
fn a_pin_is_given_back_at_most_once_however_many_settlers_die() {
    for settlers in 1..8 {
        let bench = bench();
        let fs = bench.volume.fs();
        let inode = fs.core.inode(bench.file.ino).unwrap();
        // A living reader's.
        let phase = inode.volatile.pins.pin();
        assert!(dies(2, || {
            let mut guard = lease::enter(&fs.core).unwrap();
            let mut bytes = vec![0; 5 * PAGE as usize];
            crate::file::read::read_pinned(&fs.core, &mut guard, inode, 0, &mut bytes).unwrap();
        }));
        dies(settlers, || {
            sweep(&fs.core);
        });
        sweep(&fs.core);
        assert!(
            !inode.volatile.pins.now().over(phase),
            "settler {settlers}: the living reader's pin is gone"
        );
        inode.volatile.pins.unpin(phase);
        fs.release(bench.file);
        lease::leave(&fs.core);
    }
}
