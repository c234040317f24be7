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

/// A bucket's version rises with each change. A name with an older version loses against its older record after a power cut.
#[test]
fn each_change_of_a_bucket_is_newer_than_those_before() {
    fn exchange(fs: &NvmFs, dir: Ino, one: &str, other: &str) {
        fs.rename(&Cred::root(), dir, name(one), dir, name(other), RenameMode::Exchange).unwrap();
    }
    // Six files in the order of their names; then the change, and which file some names lead to.
    type Change = (fn(&NvmFs, Ino), &'static [(&'static str, Option<usize>)]);
    let cases: [Change; 6] = [
        (
            |fs, dir| {
                fs.remove(dir, "0").unwrap();
                fs.replace((dir, "1"), (dir, "5")).unwrap();
            },
            &[("0", None), ("1", None), ("5", Some(1))],
        ),
        (
            |fs, dir| {
                fs.replace((dir, "0"), (dir, "new")).unwrap();
                fs.replace((dir, "1"), (dir, "5")).unwrap();
            },
            &[("0", None), ("new", Some(0)), ("1", None), ("5", Some(1))],
        ),
        (|fs, dir| fs.replace((dir, "1"), (dir, "5")).unwrap(), &[("1", None), ("5", Some(1))]),
        (|fs, dir| exchange(fs, dir, "5", "1"), &[("1", Some(5)), ("5", Some(1))]),
        (|fs, dir| exchange(fs, dir, "1", "5"), &[("1", Some(5)), ("5", Some(1))]),
        (
            |fs, dir| {
                exchange(fs, dir, "0", "1");
                fs.replace((dir, "2"), (dir, "5")).unwrap();
            },
            &[("0", Some(1)), ("1", Some(0)), ("2", None), ("5", Some(2))],
        ),
    ];
    let mut wrong = Vec::new();
    for (case, (change, wanted)) in cases.into_iter().enumerate() {
        let region = formatted(4 << 20);
        let volume = mounted(&region);
        let fs = volume.fs();
        let dir = fs.new_dir(Ino::ROOT, "dir");
        let inos: Vec<Ino> = (0..6)
            .map(|n| {
                let file = fs.new_file(dir, &format!("{n}"));
                let ino = file.ino;
                fs.release(file);
                ino
            })
            .collect();
        change(&fs, dir);
        drop(fs);
        volume.abandon();
        let volume = mounted(&region);
        let dir = volume.fs().find(Ino::ROOT, "dir").unwrap().ino;
        for (text, file) in wanted {
            let found = volume.fs().find(dir, text).ok().map(|attr| attr.ino);
            if found != file.map(|n| inos[n]) {
                wrong.push((case, *text, found));
            }
        }
        volume.abandon();
    }
    assert!(wrong.is_empty(), "case, name, and where it leads: {wrong:?}");
}
