//! What decides over the locks of a rename, how far up it looks, and what it leaves in the logs.

use super::*;
use crate::fs::NvmFs;
use crate::ids::Version;
use crate::log::chain;
use crate::variant::Variant;
use crate::volume::{MountOptions, Volume, format, mount};
use heddle_pmem::Region;
use heddle_vfs::FileSystem;
use heddle_vfs::short::{Short, name};

fn formatted(len_bytes: u64) -> Region {
    let region = Region::anonymous(len_bytes).unwrap();
    format(&region, Variant::Heddle).unwrap();
    region
}

fn mounted(region: &Region) -> Volume {
    let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
    mount(region.map_again().unwrap(), &options).unwrap()
}

fn named(ino: u64, kind: FileKind, version: u64) -> Named {
    Named { child: InodeId { ino: Ino(ino), generation: 4 }, kind, version: Version(version) }
}

#[test]
fn names_are_as_they_were_if_both_lead_to_the_same_inodes() {
    let (file, dir) = (FileKind::Regular, FileKind::Directory);
    let seen = Found { moved: named(5, file, 1), target: Some(named(6, dir, 2)) };
    let with = |moved, target| Found { moved, target };
    for (found, is_like) in [
        (with(named(5, file, 9), Some(named(6, dir, 9))), true),
        (with(named(7, file, 1), Some(named(6, dir, 2))), false),
        (with(named(5, dir, 1), Some(named(6, dir, 2))), false),
        (with(named(5, file, 1), Some(named(7, dir, 2))), false),
        (with(named(5, file, 1), Some(named(6, file, 2))), false),
        (with(named(5, file, 1), None), false),
        (with(named(7, file, 1), None), false),
    ] {
        assert_eq!(found.is_like(&seen), is_like);
    }
    let none = with(named(5, file, 1), None);
    assert!(none.is_like(&with(named(5, file, 3), None)));
    let moves = [
        with(named(5, dir, 1), None),
        with(named(5, file, 1), Some(named(6, dir, 2))),
        with(named(5, dir, 1), Some(named(6, file, 2))),
        with(named(5, file, 1), Some(named(6, file, 2))),
        with(named(5, file, 1), None),
    ];
    assert_eq!(moves.map(|found| found.moves_a_directory()), [true, true, true, false, false]);
}

/// An image of 4 MiB can have 256 chunks of inodes.
#[test]
fn the_walk_upwards_ends_at_the_root_or_in_a_circle() {
    let volume = mounted(&formatted(4 << 20));
    let fs = volume.fs();
    let mut dirs = vec![Ino::ROOT];
    for _ in 0..450 {
        dirs.push(fs.new_dir(dirs[dirs.len() - 1], "d"));
    }
    let (core, deepest) = (&fs.core, dirs[450]);
    for at in [0, 1, 200, 449, 450] {
        assert_eq!(above(core, dirs[at], deepest), Ok(true), "{at}");
    }
    assert_eq!(above(core, deepest, dirs[449]), Ok(false));
    let aside = fs.new_dir(Ino::ROOT, "aside");
    assert_eq!((above(core, aside, deepest), above(core, dirs[1], aside)), (Ok(false), Ok(false)));
    assert_eq!(fs.replace((Ino::ROOT, "aside"), (deepest, "moved")), Ok(()));
    // As a client may scribble.
    core.inode(dirs[7]).unwrap().volatile.parent.store(dirs[9].0, SeqCst);
    assert!(matches!(above(core, aside, deepest), Err(Error::Corrupt(_))));
    volume.abandon();
}

fn in_order(core: &Core, one: Ino, other: Ino) -> (Ino, Ino) {
    let (low, high) = in_lock_order(core.inode(one).unwrap(), core.inode(other).unwrap());
    (low.ino, high.ino)
}

/// A record of a removal is dropped by cleaning only if no foreign record may count.
#[test]
fn a_rename_within_a_directory_leaves_two_records_and_no_foreign() {
    let volume = mounted(&formatted(8 << 20));
    let fs = volume.fs();
    let [dir, other] = ["dir", "other"].map(|text| fs.new_dir(Ino::ROOT, text));
    let file = fs.new_file(Ino::ROOT, "file");
    let core = &fs.core;
    assert_eq!((in_order(core, dir, other), in_order(core, other, dir)), ((dir, other), (dir, other)));
    let slot = |dir| chain::existing(core, core.inode(dir).unwrap()).next().unwrap().tail().1;
    let link = |text| _ = fs.link(&Cred::root(), file.ino, dir, name(text)).unwrap();
    let has_foreign = |dir| core.inode(dir).unwrap().volatile.foreign_record_may_count();
    link("aa");
    let first = slot(dir);
    link("bb");
    let of_a_link = slot(dir) - first;
    fs.remove(dir, "bb").unwrap();
    let before = slot(dir);
    let of_a_removal = before - first - of_a_link;
    fs.replace((dir, "aa"), (dir, "cc")).unwrap();
    assert_eq!(slot(dir) - before, of_a_link + of_a_removal);
    assert!(!has_foreign(dir));
    fs.replace((dir, "cc"), (other, "cc")).unwrap();
    assert_eq!((has_foreign(dir), has_foreign(other)), (true, false));
    fs.release(file);
    volume.abandon();
}

/// The inodes' names after a power cut.
fn after_a_cut(region: &Region, names: &[(&str, Option<Ino>)], when: &str) {
    let volume = mounted(region);
    let fs = volume.fs();
    let dir = fs.find(Ino::ROOT, "dir").unwrap().ino;
    for (text, ino) in names {
        assert_eq!(fs.find(dir, text).ok().map(|attr| attr.ino), *ino, "{text} after {when}");
    }
    volume.abandon();
}

/// All are in one bucket, whose version each change raises. A name with an old version would lose against its older record.
#[test]
fn each_change_of_a_bucket_is_newer_than_those_before() {
    let region = formatted(8 << 20);
    let exchange = |fs: &NvmFs, dir, one, other| {
        fs.rename(&Cred::root(), dir, name(one), dir, name(other), RenameMode::Exchange).unwrap();
    };
    let changed = |work: &dyn Fn(&NvmFs, Ino)| {
        let volume = mounted(&region);
        let fs = volume.fs();
        work(&fs, fs.find(Ino::ROOT, "dir").unwrap().ino);
        volume.abandon();
    };
    let volume = mounted(&region);
    let dir = volume.fs().new_dir(Ino::ROOT, "dir");
    let [a, b, x, y] = ["a", "b", "x", "y"].map(|text| {
        let file = volume.fs().new_file(dir, text);
        let ino = file.ino;
        volume.fs().release(file);
        Some(ino)
    });
    volume.abandon();
    after_a_cut(&region, &[("a", a), ("b", b), ("x", x), ("y", y)], "they were made");
    changed(&|fs, dir| {
        fs.remove(dir, "a").unwrap();
        fs.replace((dir, "x"), (dir, "b")).unwrap();
    });
    after_a_cut(&region, &[("a", None), ("b", x), ("x", None), ("y", y)], "a removal and a rename");
    changed(&|fs, dir| {
        exchange(fs, dir, "b", "y");
        exchange(fs, dir, "y", "b");
        exchange(fs, dir, "b", "y");
        fs.replace((dir, "b"), (dir, "c")).unwrap();
        fs.replace((dir, "y"), (dir, "b")).unwrap();
    });
    after_a_cut(&region, &[("b", x), ("c", y), ("y", None)], "exchanges");
    changed(&|fs, dir| {
        fs.replace((dir, "c"), (dir, "b")).unwrap();
        fs.release(fs.new_file(dir, "c"));
        fs.remove(dir, "c").unwrap();
        fs.replace((dir, "b"), (dir, "c")).unwrap();
        fs.replace((dir, "c"), (dir, "a")).unwrap();
    });
    after_a_cut(&region, &[("a", y), ("b", None), ("c", None)], "going back and forth");
}
