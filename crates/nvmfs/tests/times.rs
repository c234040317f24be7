//! The times of files and directories: what a program sees after a call is what the next mount finds.

mod common;

use common::{Disk, Short, each_variant, fresh, name, root};
use heddle_nvmfs::NvmFs;
use heddle_vfs::{FileSystem, Handle, Ino, RangeOp, SetAttr, SetTime, SetXattr, Time, XattrName};
use std::time::Duration;

const PAGE: u64 = 4096;
/// Files of each call: the clock may stand still between two of its readings.
const FILES: u64 = 20;
const NO_CHANGE: SetAttr =
    SetAttr { perm: None, uid: None, gid: None, size_bytes: None, atime: None, mtime: None };

/// A file of ten pages and some bytes, `f`, in a directory of its own.
struct Place<'a> {
    fs: &'a NvmFs,
    dir: Ino,
    file: &'a Handle,
}

impl Place<'_> {
    fn range(&self, op: RangeOp, offset: u64, len: u64) {
        self.fs.fallocate(self.file, op, offset, len).unwrap();
    }

    fn set(&self, set: SetAttr) {
        self.fs.setattr(&root(), self.file.ino, None, &set).unwrap();
    }

    fn change_the_mode(&self) {
        [0o600, 0o640, 0o644]
            .into_iter()
            .for_each(|perm| self.set(SetAttr { perm: Some(perm), ..NO_CHANGE }));
    }

    fn set_attribute(&self, len: usize) {
        let attribute = XattrName::new(b"user.a").unwrap();
        self.fs.setxattr(&root(), self.file.ino, attribute, &vec![7; len], SetXattr::Any).unwrap();
    }
}

/// Whether the media has the ctime of the file after the call, too.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ctime {
    Stored,
    /// SHORTCOMINGS.md: calls on names.
    NotStored,
}
use Ctime::{NotStored, Stored};

type Call = (&'static str, Ctime, fn(&Place<'_>));

const CALLS: &[Call] = &[
    ("write", Stored, |at| {
        at.fs.write(at.file, 3 * PAGE, &[1; PAGE as usize]).unwrap();
    }),
    ("write of parts", Stored, |at| {
        at.fs.write(at.file, PAGE + 7, &[1; 2 * PAGE as usize]).unwrap();
    }),
    ("append", Stored, |at| {
        at.fs.append(at.file, &[1; 5000]).unwrap();
    }),
    ("cut within a page", Stored, |at| at.fs.resize(at.file, 3 * PAGE + 10).unwrap()),
    ("cut all", Stored, |at| at.fs.resize(at.file, 0).unwrap()),
    ("the same size", Stored, |at| at.fs.resize(at.file, 10 * PAGE + 100).unwrap()),
    ("grow", Stored, |at| at.fs.resize(at.file, 20 * PAGE).unwrap()),
    ("allocate and grow", Stored, |at| at.range(RangeOp::Allocate { keep_size: false }, 9 * PAGE, 9 * PAGE)),
    ("allocate", Stored, |at| at.range(RangeOp::Allocate { keep_size: true }, 9 * PAGE, 9 * PAGE)),
    ("allocate what is there", Stored, |at| at.range(RangeOp::Allocate { keep_size: true }, 0, PAGE)),
    ("punch", Stored, |at| at.range(RangeOp::Punch, PAGE + 5, 5 * PAGE)),
    ("punch pages", Stored, |at| at.range(RangeOp::Punch, PAGE, 5 * PAGE)),
    ("punch within a page", Stored, |at| at.range(RangeOp::Punch, PAGE + 5, 100)),
    ("punch pages after changes of mode", Stored, |at| {
        at.change_the_mode();
        at.range(RangeOp::Punch, PAGE, 5 * PAGE);
    }),
    ("zero pages after changes of mode", Stored, |at| {
        at.change_the_mode();
        at.range(RangeOp::Zero { keep_size: true }, PAGE, 5 * PAGE);
    }),
    ("punch beyond the end", Stored, |at| at.range(RangeOp::Punch, 30 * PAGE + 5, 100)),
    ("zero", Stored, |at| at.range(RangeOp::Zero { keep_size: true }, PAGE + 5, 5 * PAGE)),
    ("zero and grow", Stored, |at| at.range(RangeOp::Zero { keep_size: false }, 9 * PAGE + 5, 5 * PAGE)),
    ("zero within a page", Stored, |at| at.range(RangeOp::Zero { keep_size: true }, PAGE + 5, 100)),
    ("collapse", Stored, |at| at.range(RangeOp::Collapse, PAGE, 2 * PAGE)),
    ("insert", Stored, |at| at.range(RangeOp::Insert, PAGE, 2 * PAGE)),
    ("chmod", Stored, |at| at.set(SetAttr { perm: Some(0o600), ..NO_CHANGE })),
    ("chown", Stored, |at| at.set(SetAttr { uid: Some(7), gid: Some(8), ..NO_CHANGE })),
    ("times now", Stored, |at| {
        at.set(SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..NO_CHANGE });
    }),
    ("an old time", Stored, |at| {
        let old = Some(SetTime::At(Time(1_000_000_000_123_456_789)));
        at.set(SetAttr { atime: old, mtime: old, ..NO_CHANGE });
    }),
    ("an old time and a write", Stored, |at| {
        at.set(SetAttr { mtime: Some(SetTime::At(Time(1_000_000_000_123_456_789))), ..NO_CHANGE });
        at.fs.write(at.file, 0, &[1; 10]).unwrap();
    }),
    ("an attribute", Stored, |at| at.set_attribute(10)),
    ("a large attribute", Stored, |at| at.set_attribute(9000)),
    ("remove an attribute", Stored, |at| {
        at.set_attribute(10);
        at.fs.removexattr(&root(), at.file.ino, XattrName::new(b"user.a").unwrap()).unwrap();
    }),
    ("link", NotStored, |at| {
        at.fs.link(&root(), at.file.ino, at.dir, name("g")).unwrap();
    }),
    ("unlink", NotStored, |at| {
        at.fs.link(&root(), at.file.ino, at.dir, name("g")).unwrap();
        at.fs.remove(at.dir, "g").unwrap();
    }),
    ("rename", NotStored, |at| {
        at.fs.replace((at.dir, "f"), (at.dir, "g")).unwrap();
        at.fs.replace((at.dir, "g"), (at.dir, "f")).unwrap();
    }),
    ("mkdir", Stored, |at| {
        at.fs.new_dir(at.dir, "d");
    }),
    ("mkdir and rmdir", Stored, |at| {
        at.fs.new_dir(at.dir, "d");
        at.fs.rmdir(&root(), at.dir, name("d")).unwrap();
    }),
    ("chmod of the directory", Stored, |at| {
        at.fs.setattr(&root(), at.dir, None, &SetAttr { perm: Some(0o700), ..NO_CHANGE }).unwrap();
    }),
];

/// Times of a file and its directory: atime, mtime, ctime.
fn times(fs: &NvmFs, dir: Ino, ctime: Ctime) -> [[Time; 3]; 2] {
    [fs.find(dir, "f").unwrap(), fs.getattr(dir).unwrap()].map(|attr| {
        let is_files = attr.ino != dir;
        let ctime = if is_files && ctime == NotStored { attr.mtime } else { attr.ctime };
        [attr.atime, attr.mtime, ctime]
    })
}

#[test]
fn times_are_the_same_after_the_next_mount() {
    each_variant(|variant| {
        let mut wrong = Vec::new();
        for (what, ctime, call) in CALLS {
            let disk = Disk::new(variant, 8 << 20);
            let volume = disk.mount();
            let fs = volume.fs();
            let mut seen = Vec::new();
            for n in 0..FILES {
                let text = format!("d{n}");
                let dir = fs.new_dir(Ino::ROOT, &text);
                let file = fs.new_file(dir, "f");
                fs.write(&file, 0, &[7; 10 * PAGE as usize + 100]).unwrap();
                call(&Place { fs: &fs, dir, file: &file });
                fs.release(file);
                seen.push((text, times(&fs, dir, *ctime)));
            }
            drop(fs);
            volume.abandon();
            let volume = disk.mount();
            let fs = volume.fs();
            let differ = |(text, before): &&(String, _)| {
                times(&fs, fs.find(Ino::ROOT, text).unwrap().ino, *ctime) != *before
            };
            match seen.iter().filter(differ).count() {
                0 => {}
                files => wrong.push(format!("{what}: {files} of {FILES}")),
            }
        }
        assert!(wrong.is_empty(), "{variant:?}: {wrong:#?}");
    });
}

/// Both stand for a change of content; cleaning, which may follow it, is none.
#[test]
fn a_change_that_has_logs_cleaned_gives_mtime_and_ctime_one_value() {
    each_variant(|variant| {
        let volume = fresh(variant, 8 << 20);
        let fs = volume.fs();
        let one_value = |ino: Ino, what: &str, round: u64| {
            let attr = fs.getattr(ino).unwrap();
            assert_eq!(attr.ctime, attr.mtime, "{variant:?}, {what}, round {round}");
        };
        let [a, b] = ["a", "b"].map(|text| fs.new_dir(Ino::ROOT, text));
        let file = fs.new_file(a, "f");
        let at = Place { fs: &fs, dir: a, file: &file };
        at.set(SetAttr { perm: Some(0o600), ..NO_CHANGE });
        // Its old directory has attributes logged again.
        fs.replace((a, "f"), (b, "f")).unwrap();
        // A tick of the clock: afterwards no time is later than a change.
        std::thread::sleep(Duration::from_millis(20));
        for round in 0..2000 {
            // A living record now and then: the log is long, so that the attributes are logged again.
            let page = if round % 70 == 0 { 1 + round / 70 } else { 0 };
            fs.write(&file, page * PAGE, &[1; PAGE as usize]).unwrap();
            one_value(file.ino, "file", round);
        }
        for round in 0..200 {
            fs.new_dir(a, "d");
            one_value(a, "directory", round);
            fs.rmdir(&root(), a, name("d")).unwrap();
        }
        fs.release(file);
    });
}
