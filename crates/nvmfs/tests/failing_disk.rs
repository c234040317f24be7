//! Images in a file on a disk, one write-back of which fails: the call says so, and the media has all of the change or nothing.
//!
//! The disk is simulated. It has what write-backs brought there, or also what the kernel wrote later by itself.
#![cfg(not(any(loom, shuttle)))]

mod common;

use common::{Short, each_variant, name, options, root};
use heddle_nvmfs::fsck::{FsckError, Severity, examine, undo};
use heddle_nvmfs::{NvmFs, Variant, Volume, format_region, mount};
use heddle_pmem::WriteBackResult::{Done, Failed, LostUntold};
use heddle_pmem::{FailingDisk, Pos, Region};
use heddle_vfs::{
    Error, FileKind, FileSystem, Handle, Ino, NewNode, OpenFlags, RangeOp, RenameMode, Result, SetAttr,
    SetXattr, XattrName,
};
use std::sync::{Arc, Barrier};
use std::time::Duration;

const PAGE: usize = 4096;
const IMAGE_BYTES: u64 = 4 << 20;
const NOTE: &[u8] = b"user.note";

/// What these tests compare: names, kinds, sizes, link counts, modes, contents and one extended attribute.
fn content(fs: &NvmFs) -> String {
    let mut all = String::new();
    let dir = fs.find(Ino::ROOT, "dir").unwrap().ino;
    let places = [
        (Ino::ROOT, ["old", "other", "dir", "new", "young"]),
        (dir, ["old", "other", "dir", "new", "young"]),
    ];
    for (parent, names) in places {
        for text in names {
            let Ok(attr) = fs.find(parent, text) else { continue };
            all += &format!("{}/{text} {:?} {:o} x{} ", parent.0, attr.kind, attr.perm, attr.nlink);
            if attr.kind == FileKind::Regular {
                let handle = fs.open(&root(), attr.ino, OpenFlags::READ).unwrap();
                let bytes = fs.read_vec(&handle, 0, 1 << 20);
                bytes.chunk_by(|a, b| a == b).for_each(|run| all += &format!("{}*{} ", run.len(), run[0]));
                fs.release(handle);
            }
            let note = fs.getxattr(&root(), attr.ino, XattrName::new(NOTE).unwrap()).unwrap_or_default();
            all += &format!("{}\n", note.len());
        }
    }
    all
}

struct Scene {
    disk: FailingDisk,
    volume: Volume,
    fs: NvmFs,
    old: Handle,
    dir: Ino,
}

impl Scene {
    fn new(variant: Variant) -> Scene {
        let (region, disk) = Region::on_failing_disk(IMAGE_BYTES);
        format_region(&region, variant).unwrap();
        let volume = mount(region, &options()).unwrap();
        let fs = volume.fs();
        let dir = fs.new_dir(Ino::ROOT, "dir");
        let old = fs.new_file(Ino::ROOT, "old");
        fs.write(&old, 0, &[1; 3 * PAGE + 5]).unwrap();
        fs.release(fs.new_file(Ino::ROOT, "other"));
        Scene { disk, volume, fs, old, dir }
    }
}

type Change = fn(&Scene) -> Result<()>;

const CHANGES: [(&str, Change); 17] = [
    ("overwrite a page", |s| s.fs.write(&s.old, PAGE as u64, &[2; PAGE]).map(drop)),
    ("overwrite pages in part", |s| s.fs.write(&s.old, 7, &[2; 2 * PAGE]).map(drop)),
    ("append", |s| s.fs.append(&s.old, &[3; PAGE + 9]).map(drop)),
    ("create", |s| s.fs.try_file(Ino::ROOT, "new").map(drop)),
    ("make a directory", |s| s.fs.try_dir(s.dir, "new").map(drop)),
    ("make a symbolic link", |s| {
        let node = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: b"old" };
        s.fs.make(&root(), Ino::ROOT, name("new"), node).map(drop)
    }),
    ("link", |s| s.fs.link(&root(), s.old.ino, s.dir, name("young")).map(drop)),
    ("rename", |s| s.fs.replace((Ino::ROOT, "old"), (Ino::ROOT, "new"))),
    ("rename over a name", |s| s.fs.replace((Ino::ROOT, "old"), (Ino::ROOT, "other"))),
    ("rename across", |s| s.fs.replace((Ino::ROOT, "old"), (s.dir, "young"))),
    ("exchange", |s| {
        s.fs.rename(&root(), Ino::ROOT, name("old"), Ino::ROOT, name("other"), RenameMode::Exchange)
    }),
    ("unlink", |s| s.fs.remove(Ino::ROOT, "other")),
    ("truncate", |s| s.fs.resize(&s.old, PAGE as u64 + 1)),
    ("open and truncate", |s| {
        let flags = OpenFlags { write: true, truncate: true, ..OpenFlags::default() };
        s.fs.open(&root(), s.old.ino, flags).map(drop)
    }),
    ("set the mode", |s| {
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        s.fs.setattr(&root(), s.old.ino, None, &set).map(drop)
    }),
    ("set an extended attribute", |s| {
        s.fs.setxattr(&root(), s.old.ino, XattrName::new(NOTE).unwrap(), &[5; 5000], SetXattr::Any)
    }),
    ("punch", |s| s.fs.fallocate(&s.old, RangeOp::Punch, 9, 2 * PAGE as u64)),
];

fn region_of(bytes: &[u8]) -> Region {
    let region = Region::anonymous(bytes.len() as u64).unwrap();
    region.nt_write(Pos(0), bytes);
    region
}

/// Checks the disk, as it is and as the kernel may make it: it has one of these contents.
fn media_has_one_of(disk: &FailingDisk, expected: &[&str], when: &str) {
    for bytes in [disk.media(), disk.media_at_last()] {
        let found = examine("copy", &region_of(&bytes)).unwrap().issues;
        let bad: Vec<_> = found.iter().filter(|(issue, _)| issue.severity() > Severity::Note).collect();
        assert!(bad.is_empty(), "{when}: {bad:?}");
        let volume = mount(region_of(&bytes), &options()).unwrap_or_else(|why| panic!("{when}: {why}"));
        let is = content(&volume.fs());
        volume.unmount();
        assert!(expected.contains(&&*is), "{when}: {is}\nexpected: {expected:?}");
    }
}

#[test]
fn a_call_whose_write_back_fails_says_so_and_tears_nothing() {
    each_variant(|variant| {
        for (what, change) in CHANGES {
            let sound = Scene::new(variant);
            let before = content(&sound.fs);
            sound.disk.on_write_back(|_| Done);
            change(&sound).unwrap();
            let (after, write_backs) = (content(&sound.fs), sound.disk.write_backs());
            assert!(write_backs > 0, "{variant:?} {what}");
            let both = [&*before, &*after];
            for failing in 1..=write_backs {
                let when = format!("{variant:?}, {what}, write-back {failing} of {write_backs}");
                let scene = Scene::new(variant);
                scene.disk.on_write_back(move |n| if n == failing { Failed } else { Done });
                let done = change(&scene);
                assert!(matches!(done, Err(Error::Io(_))), "{when}: {done:?}");
                let shown = content(&scene.fs);
                assert!(both.contains(&&*shown), "{when}");
                // What may not be durable is not published: no other process relies on it.
                assert!(shown == before || !what.starts_with("overwrite") && what != "append", "{when}");
                // Nothing is changed from here on, and each call says so.
                let Scene { disk, volume, fs, old, dir } = scene;
                assert!(matches!(fs.write(&old, 0, &[9; PAGE]), Err(Error::Io(_))), "{when}");
                assert!(matches!(fs.try_dir(dir, "dir"), Err(Error::Io(_))), "{when}");
                assert!(matches!(fs.fsync(&old, false), Err(Error::Io(_))), "{when}");
                fs.release(old);
                assert!(volume.close().is_err(), "{when}");
                media_has_one_of(&disk, &both, &when);
            }
        }
    });
}

/// The kernel told one thread of the pages that both lost.
#[test]
fn two_threads_whose_pages_are_lost_both_fail() {
    each_variant(|variant| {
        let scene = Scene::new(variant);
        let other = scene.fs.open_file(Ino::ROOT, "other");
        scene.fs.write(&other, 0, &[1; PAGE]).unwrap();
        let before = content(&scene.fs);
        let begun = Arc::new(Barrier::new(2));
        scene.disk.on_write_back(move |n| {
            if n > 2 {
                return Done;
            }
            begun.wait();
            if std::thread::current().name() == Some("told") {
                std::thread::sleep(Duration::from_millis(50));
                return Failed;
            }
            LostUntold
        });
        std::thread::scope(|scope| {
            let writers = [("told", &scene.old), ("untold", &other)].map(|(name, file)| {
                let fs = &scene.fs;
                let write = move || fs.write(file, 0, &[7; PAGE]);
                std::thread::Builder::new().name(name.into()).spawn_scoped(scope, write).unwrap()
            });
            for writer in writers {
                let done = writer.join().unwrap();
                assert!(matches!(done, Err(Error::Io(_))), "{variant:?}: {done:?}");
            }
        });
        media_has_one_of(&scene.disk, &[&before], &format!("{variant:?}"));
        scene.volume.abandon();
    });
}

/// The bytes of a region.
fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len_bytes() as usize];
    region.read(Pos(0), &mut bytes);
    bytes
}

/// A disk with these bytes.
fn disk_of(bytes: &[u8]) -> (Region, FailingDisk) {
    let (region, disk) = Region::on_failing_disk(bytes.len() as u64);
    region.nt_write(Pos(0), bytes);
    region.fence();
    disk.on_write_back(|_| Done);
    (region, disk)
}

/// Checks that the image says "half repaired", or is as it was, or is as it is to be. Of the superblocks the first one counts.
fn is_marked_or_whole(bytes: &[u8], wholes: [&[u8]; 2], when: &str) {
    let marked = matches!(examine("copy", &region_of(bytes)), Err(FsckError::HalfRepaired { .. }));
    let last = bytes.len() - PAGE;
    assert!(marked || wholes.iter().any(|whole| whole[..last] == bytes[..last]), "{when}");
}

#[test]
fn a_repair_that_cannot_write_keeps_mark_and_undo_file() {
    let scene = Scene::new(Variant::Heddle);
    let Scene { disk, volume, fs, old, .. } = scene;
    fs.release(old);
    volume.close().unwrap();
    let mut bad = disk.media();
    // One bit of each log page.
    let is_log =
        |page: &[u8]| page.iter().any(|byte| *byte != 0) && page.chunk_by(|a, b| a == b).count() > 30;
    let pages = bad.chunks_mut(PAGE).skip(4).filter(|page| is_log(page));
    pages.for_each(|page| page[68] ^= 4);
    let folder = tempfile::tempdir().unwrap();
    let undo_file = folder.path().join("undo");
    let fails = |done: std::result::Result<(), FsckError>, when: &str| {
        let Err(error @ FsckError::Write { .. }) = done else { panic!("{when}: {done:?}") };
        let way = format!("To go back: heddle fsck --undo {} IMAGE", undo_file.display());
        assert!(error.to_string().contains(&way), "{when}: {error}");
    };
    let verdict = examine("bad", &region_of(&bad)).unwrap();
    assert!(verdict.changes().count() > 1, "{:?}", verdict.issues);
    let (region, disk) = disk_of(&bad);
    verdict.apply(&region, &undo_file).unwrap();
    let (good, write_backs) = (disk.media(), disk.write_backs());
    for failing in 1..=write_backs {
        let when = format!("write-back {failing} of {write_backs}");
        let (region, disk) = disk_of(&bad);
        disk.on_write_back(move |n| if n == failing { Failed } else { Done });
        std::fs::remove_file(&undo_file).unwrap();
        fails(verdict.apply(&region, &undo_file).map(drop), &when);
        for bytes in [disk.media(), disk.media_at_last()] {
            is_marked_or_whole(&bytes, [&bad, &good], &when);
            let copy = region_of(&bytes);
            undo::restore(&undo_file, &copy).unwrap();
            assert!(bytes_of(&copy) == bad, "{when}");
        }
    }
    let (region, disk) = disk_of(&good);
    undo::restore(&undo_file, &region).unwrap();
    for failing in 1..=disk.write_backs() {
        let when = format!("way back, write-back {failing}");
        let (region, disk) = disk_of(&good);
        disk.on_write_back(move |n| if n == failing { Failed } else { Done });
        fails(undo::restore(&undo_file, &region).map(drop), &when);
        for bytes in [disk.media(), disk.media_at_last()] {
            is_marked_or_whole(&bytes, [&bad, &good], &when);
            undo::restore(&undo_file, &region_of(&bytes)).unwrap();
        }
    }
}
