//! Processes that die in a call whose change of names was complete, and which others have changed since.

use super::super::{records, sweep};
use super::*;
use crate::ids::InodeId;
use crate::names::ops;
use crate::steps::Step;
use crate::upkeep::garbage;
use crate::volume::bench::child;
use heddle_vfs::short::Short;
use heddle_vfs::{FileKind, NewNode};
use std::io::{Read, Write, pipe};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// A child that makes `n` in the root, lets this process do `between`, and dies in the same call with what `locks` locks.
fn dies_after_making(fs: &NvmFs, between: impl FnOnce(), locks: impl FnOnce()) {
    let core = &fs.core;
    let ((mut is_made, mut made), (mut go, mut goes)) = (pipe().unwrap(), pipe().unwrap());
    let pid = child(|| {
        let mut guard = lease::enter(core).unwrap();
        let dir = core.inode(Ino::ROOT).unwrap();
        let node = NewNode { kind: FileKind::Regular, perm: 0o644, rdev: 0, target: &[] };
        let name = Name::new(b"n").unwrap();
        ops::make(core, &mut guard, &Cred::root(), dir, name, &node, false).unwrap();
        made.write_all(b"m").unwrap();
        go.read_exact(&mut [0]).unwrap();
        locks();
        // SAFETY: ends this process.
        unsafe { libc::_exit(3) };
    });
    is_made.read_exact(&mut [0]).unwrap();
    between();
    goes.write_all(b"g").unwrap();
    assert_eq!(libc::WEXITSTATUS(ended(pid, 0)), 3);
    sweep(core);
}

#[test]
fn a_name_that_others_removed_since_does_not_come_back() {
    let bench = bench();
    let fs = bench.volume.fs();
    let (root, n) = (Cred::root(), Name::new(b"n").unwrap());
    let locks = || {
        let dir = fs.core.inode(Ino::ROOT).unwrap();
        std::mem::forget(table::lock(&fs.core, dir, table::key(&fs.core, b"n").hash).unwrap());
    };
    dies_after_making(&fs, || fs.unlink(&root, Ino::ROOT, n).unwrap(), locks);
    assert_eq!(fs.lookup(&root, Ino::ROOT, n).err(), Some(Error::NotFound));
    fs.release(fs.new_file(Ino::ROOT, "n"));
    fs.release(bench.file);
    lease::leave(&fs.core);
}

#[test]
fn an_empty_directory_whose_bucket_the_dead_held_stays_alive() {
    let bench = bench();
    let fs = bench.volume.fs();
    let dir = fs.new_dir(Ino::ROOT, "d");
    let locks = || std::mem::forget(table::lock_whole(&fs.core, fs.core.inode(dir).unwrap()).unwrap());
    dies_after_making(&fs, || (), locks);
    fs.release(fs.new_file(dir, "in it"));
    fs.lookup(&Cred::root(), Ino::ROOT, Name::new(b"n").unwrap()).unwrap();
    fs.release(bench.file);
    lease::leave(&fs.core);
}

/// Cleaning dropped it: a name whose call was preempted there was gone after the next mount.
#[test]
fn a_durable_name_that_its_bucket_lacks_is_alive_for_cleaning() {
    let bench = bench();
    let fs = bench.volume.fs();
    let looked = Arc::new(AtomicBool::new(false));
    let (core, seen) = (fs.core.clone(), looked.clone());
    let dir = fs.new_dir(Ino::ROOT, "d");
    hook::set(Some(Arc::new(move |step| {
        let mine = lease::with_current(|_, lane| lane).filter(|_| step == Step::Durable);
        let Some((ino, page, slot)) = mine.and_then(|lane| core.lane(lane).intent.log()) else { return };
        let inode = core.inode(Ino(ino)).unwrap();
        for record in records::written(&core, mine.unwrap(), inode, page, slot) {
            assert!(garbage::alive(&core, inode, &record, None), "{record:?}");
            seen.store(true, SeqCst);
        }
    })));
    fs.release(fs.new_file(dir, "n"));
    hook::set(None);
    assert!(looked.load(SeqCst), "no record was seen");
    fs.release(bench.file);
    lease::leave(&fs.core);
}

/// Cleaning by a signal handler dropped all names of a bucket that the interrupted call was changing.
#[test]
fn names_are_alive_in_a_bucket_that_the_interrupted_call_changes() {
    let bench = bench();
    let fs = bench.volume.fs();
    {
        let _outer = lease::enter(&fs.core).unwrap();
        let dir = fs.core.inode(Ino::ROOT).unwrap();
        let key = table::key(&fs.core, b"f");
        let mut bucket = table::lock(&fs.core, dir, key.hash).unwrap();
        let version = bucket.find(key).unwrap().unwrap().version;
        bucket.begin_removal_in_place(bucket.version());
        let _inner = lease::enter(&fs.core).unwrap();
        assert!(table::may_count(&fs.core, dir, b"f", version));
    }
    fs.release(bench.file);
    lease::leave(&fs.core);
}

/// Both gave it its first name, and one of them was killed before its name was durable: the file ended, though it had the other's.
#[test]
fn a_nameless_file_keeps_the_name_of_the_linker_who_lived() {
    let bench = bench();
    let fs = bench.volume.fs();
    let (root, n) = (Cred::root(), Name::new(b"n").unwrap());
    let (_, file) = fs.tmpfile(&root, Ino::ROOT, 0o600, OpenFlags::READ_WRITE, true).unwrap();
    let d = fs.new_dir(Ino::ROOT, "d");
    let inode = fs.core.inode(file.ino).unwrap();
    let held = lease::enter(&fs.core).unwrap();
    let whole = table::lock_whole(&fs.core, fs.core.inode(d).unwrap()).unwrap();
    let pid = child(|| drop(fs.link(&root, file.ino, d, n)));
    while inode.volatile.nlink.load(SeqCst) == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    fs.link(&root, file.ino, Ino::ROOT, n).unwrap();
    // SAFETY: a child of this test.
    unsafe { libc::kill(pid, libc::SIGKILL) };
    ended(pid, 0);
    drop((whole, held));
    sweep(&fs.core);
    fs.release(file);
    let attr = fs.lookup(&root, Ino::ROOT, n).unwrap();
    assert_eq!(attr.nlink, 1);
    assert_eq!(fs.lookup(&root, d, n).err(), Some(Error::NotFound));
    fs.unlink(&root, Ino::ROOT, n).unwrap();
    assert_eq!(fs.core.slot(attr.ino).unwrap().volatile.generation(), 0, "it lives without a name");
    fs.release(bench.file);
    lease::leave(&fs.core);
}

/// The number of a dead creator's inode may be another's by now.
#[test]
fn an_inode_of_another_generation_is_not_the_dead_creators() {
    let bench = bench();
    let fs = bench.volume.fs();
    let id = fs.core.inode(bench.file.ino).unwrap().id();
    let pid = child(|| {
        let guard = lease::enter(&fs.core).unwrap();
        guard.lane.intent.note_creating(InodeId { generation: id.generation - 1, ..id });
        // SAFETY: ends this process.
        unsafe { libc::_exit(3) };
    });
    assert_eq!(libc::WEXITSTATUS(ended(pid, 0)), 3);
    sweep(&fs.core);
    assert_eq!(fs.getattr(bench.file.ino).unwrap().nlink, 1);
    assert!(fs.lookup(&Cred::root(), Ino::ROOT, Name::new(b"f").unwrap()).is_ok());
    fs.release(bench.file);
    lease::leave(&fs.core);
}
