//! A name that was removed in the log itself: its process died before it could say which inode has lost a name.

use super::super::sweep;
use super::*;
use crate::alloc::{Purpose, take_block};
use crate::log::chain;
use crate::names::in_place_removal;
use crate::names::locks::{Locks, NamePlace};
use crate::volume::bench::child;
use heddle_vfs::short::Short;
use heddle_vfs::{FileKind, NewNode};
use std::sync::Barrier;

/// A child that turns the name's record into a removal, and dies at once.
fn dies_behind_removal(fs: &NvmFs, dir: Ino, name: &[u8]) {
    let core = &fs.core;
    let pid = child(|| {
        let guard = lease::enter(core).unwrap();
        let dir = core.inode(dir).unwrap();
        let key = table::key(core, name);
        let named = table::find(core, dir, key).unwrap().unwrap();
        let place = NamePlace { dir, hash: key.hash };
        let victim = core.inode(named.child.ino).unwrap();
        let victim = Some(victim).filter(|victim| victim.volatile.is_directory());
        let mut locks = Locks::take(core, place, None, victim).unwrap().unwrap();
        let records = in_place_removal::find(core, guard.id, dir, name, named.version).unwrap().unwrap();
        assert!(!records.is_empty());
        locks.at(place).unwrap().begin_removal_in_place(named.version.next());
        records.remove();
        // SAFETY: ends this process.
        unsafe { libc::_exit(3) };
    });
    assert_eq!(libc::WEXITSTATUS(ended(pid, 0)), 3);
    sweep(core);
}

#[test]
fn a_file_the_dead_removed_in_the_log_ends_with_its_handle() {
    let bench = bench();
    let fs = bench.volume.fs();
    let ino = bench.file.ino;
    dies_behind_removal(&fs, Ino::ROOT, b"f");
    let name = Name::new(b"f").unwrap();
    assert_eq!(fs.lookup(&Cred::root(), Ino::ROOT, name).err(), Some(Error::NotFound));
    assert_eq!(fs.getattr(ino).unwrap().nlink, 0);
    assert_eq!(fs.read(&bench.file, 0, &mut [0; 10]), Ok(10));
    fs.release(bench.file);
    assert_eq!(fs.core.slot(ino).unwrap().volatile.generation(), 0, "its last handle did not end it");
    lease::leave(&fs.core);
}

#[test]
fn a_directory_the_dead_removed_in_the_log_ends() {
    let bench = bench();
    let fs = bench.volume.fs();
    let (root, d) = (Cred::root(), Name::new(b"d").unwrap());
    let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    let dir = fs.new_dir(Ino::ROOT, "d");
    dies_behind_removal(&fs, Ino::ROOT, b"d");
    assert_eq!(fs.lookup(&root, Ino::ROOT, d).err(), Some(Error::NotFound));
    assert_eq!(fs.core.slot(dir).unwrap().volatile.generation(), 0, "nobody ended it");
    assert!(fs.make(&root, dir, d, node).is_err(), "a name was made in it");
    fs.new_dir(Ino::ROOT, "d");
    fs.release(bench.file);
    lease::leave(&fs.core);
}

/// The slot kept chains of the file that it was, and their heads were looked for in the superblock.
#[test]
fn the_dead_are_settled_in_a_slot_that_had_many_chains() {
    let bench = bench();
    let (fs, root) = (bench.volume.fs(), Cred::root());
    let old = bench.file.ino;
    let all = Barrier::new(10);
    std::thread::scope(|scope| {
        for _ in 0..10 {
            scope.spawn(|| {
                let mut guard = lease::enter(&fs.core).unwrap();
                chain::lease(&fs.core, &mut guard, fs.core.inode(old).unwrap()).unwrap();
                all.wait();
            });
        }
    });
    fs.release(bench.file);
    fs.unlink(&root, Ino::ROOT, Name::new(b"f").unwrap()).unwrap();
    let dir = (0..1000).map(|n| fs.new_dir(Ino::ROOT, &n.to_string())).find(|dir| *dir == old);
    let dir = dir.expect("the slot is used again");
    let file = fs.new_file(dir, "f");
    dies_behind_removal(&fs, dir, b"f");
    fs.new_dir(Ino::ROOT, "the mount takes changes");
    assert_eq!(fs.lookup(&root, dir, Name::new(b"f").unwrap()).err(), Some(Error::NotFound));
    fs.release(file);
    lease::leave(&fs.core);
}

/// The record was a removal before the bucket said that it changes: the name stayed until the next mount.
#[test]
fn a_name_removed_in_place_by_the_dead_is_gone_for_all() {
    let (root, f) = (Cred::root(), Name::new(b"f").unwrap());
    for nth in 1.. {
        let Bench { region, volume, file } = bench();
        let fs = volume.fs();
        let log = chain::existing(&fs.core, fs.core.inode(Ino::ROOT).unwrap()).next().unwrap();
        // A call makes room for two slots, because a name may take as many.
        for n in (0..).take_while(|_| log.has_room(2)) {
            fs.link(&root, file.ino, Ino::ROOT, Name::new(format!("{n}").as_bytes()).unwrap()).unwrap();
        }
        let guard = lease::enter(&fs.core).unwrap();
        while take_block(fs.core.free_map(), &fs.core.region, guard.own, Purpose::Regain).is_some() {}
        drop(guard);
        let died = dies(nth, || fs.unlink(&root, Ino::ROOT, f).unwrap());
        sweep(&fs.core);
        let found = fs.lookup(&root, Ino::ROOT, f).map(|attr| attr.ino);
        fs.release(file);
        lease::leave(&fs.core);
        drop(fs);
        volume.abandon();
        let volume = mount_again(&region);
        assert_eq!(volume.fs().lookup(&root, Ino::ROOT, f).map(|attr| attr.ino), found, "step {nth}");
        lease::leave(&volume.fs().core);
        volume.unmount();
        if !died {
            assert!(nth > 1 && found == Err(Error::NotFound), "{nth} steps, {found:?}");
            break;
        }
    }
}
