//! An unmount that cannot mark the image clean says why.

use super::still::child_in_a_slow_append;
use super::{bench, ended};
use crate::volume::{VolumeError, read_superblock};
use heddle_vfs::{Cred, FileSystem, Ino, Name};
use std::cell::RefCell;
use std::sync::atomic::Ordering::SeqCst;

fn name() -> Name<'static> {
    Name::new(b"f").unwrap()
}

/// It called itself unmounted; the next mount recovered, and nobody knew why.
#[test]
fn an_unmount_names_the_process_whose_call_has_not_ended() {
    let bench = bench();
    let fs = bench.volume.fs();
    fs.core.root().attached.store(1, SeqCst);
    let Some(pid) = child_in_a_slow_append(&bench) else { return };
    drop(fs);
    let told = RefCell::new(Vec::new());
    let closed = bench.volume.close_with(&|error| told.borrow_mut().push(error.to_string()));
    // SAFETY: a child of this test.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    ended(pid, 0);
    let error = closed.unwrap_err();
    assert!(matches!(error, VolumeError::NotClean { .. }), "{error}");
    let said = error.to_string();
    for part in [format!("process {pid} was still in a call"), "the next mount recovers".to_owned()] {
        assert!(said.contains(&part), "{part}: {said}");
    }
    assert_eq!(told.into_inner(), [said], "it is told while the image is held");
    assert_eq!(read_superblock(&bench.region).unwrap().clean.get(), 0);
}

/// The other silence: the files stayed, the image was not clean.
#[test]
fn an_unmount_without_a_lane_says_that_nameless_files_stay() {
    let bench = bench();
    let fs = bench.volume.fs();
    fs.unlink(&Cred::root(), Ino::ROOT, name()).unwrap();
    let (table, process_slot) = (fs.core.lane_table(), fs.core.process_slot().unwrap());
    while table.lease(&fs.core.arena, process_slot).is_ok() {}
    // The thread of the test has a lane.
    let closed = std::thread::scope(|scope| {
        let volume = bench.volume;
        scope.spawn(|| volume.close()).join().unwrap()
    });
    let said = closed.unwrap_err().to_string();
    assert!(said.contains("files without a name") && said.contains("the next mount recovers"), "{said}");
    assert_eq!(read_superblock(&bench.region).unwrap().clean.get(), 0);
}
