//! What a full image gives back after a crash: nobody has to make room first.

use crate::common::{Image, fsck_is_clean, open_as, open_with_log_of};
use heddle_f2fs::{F2fs, Variant};
use heddle_vfs::{Cred, Error, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, SetAttr};

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// The kinds of inodes that an image is filled with, by turns.
const KINDS: usize = 4;

fn make(fs: &F2fs, n: usize) -> Result<(), Error> {
    let (root, text) = (Cred::root(), format!("f{n}"));
    let node = |kind, target| NewNode { kind, perm: 0o700, rdev: 0, target };
    match n % KINDS {
        0 => {
            fs.create(&root, Ino::ROOT, name(&text), 0o600, OpenFlags::READ).map(|(_, file)| fs.release(file))
        }
        1 => fs.make(&root, Ino::ROOT, name(&text), node(FileKind::Directory, &[])).map(drop),
        2 => fs.make(&root, Ino::ROOT, name(&text), node(FileKind::Symlink, &[b'x'; 3700])).map(drop),
        _ => {
            let (_, file) = fs.create(&root, Ino::ROOT, name(&text), 0o600, OpenFlags::READ_WRITE)?;
            let written = fs.write(&file, 0, &[9; 5000]);
            fs.release(file);
            written.map(drop)
        }
    }
}

/// How many there are in an image that has no space for one more.
fn filled_by_turns(fs: &F2fs) -> usize {
    for n in 0.. {
        match make(fs, n) {
            Ok(()) => {}
            Err(Error::NoSpace) => return n,
            Err(error) => panic!("{n}: {error}"),
        }
    }
    0
}

/// One call that gives back, on the file, directory or link of this number.
fn give_back(fs: &F2fs, n: usize) -> Result<(), Error> {
    let (root, text) = (Cred::root(), format!("f{n}"));
    let cut = SetAttr { size_bytes: Some(0), ..SetAttr::default() };
    match n % KINDS {
        1 => fs.rmdir(&root, Ino::ROOT, name(&text)),
        3 if n % 8 == 3 => {
            let ino = fs.lookup(&root, Ino::ROOT, name(&text))?.ino;
            fs.setattr(&root, ino, None, &cut).map(drop)
        }
        _ => fs.unlink(&root, Ino::ROOT, name(&text)),
    }
}

/// `leave` leaves a full image; whatever the first call on it is then, it succeeds, and so do all others.
fn it_can_be_emptied(variant: Variant, left: &str, leave: impl Fn(&F2fs)) {
    let image = Image::made(64);
    // A log that holds all of it: nothing is folded before the crash.
    let fs = open_with_log_of(&image.path, variant, 32 << 20).unwrap();
    let count = filled_by_turns(&fs);
    leave(&fs);
    drop(fs);
    let nvm = image.path.with_extension("nvm");
    for first in [4, 5, 6, 7, 11] {
        let again = Image::copy_of(&image);
        if nvm.exists() {
            std::fs::copy(&nvm, again.path.with_extension("nvm")).unwrap();
        }
        let fs = open_as(&again.path, variant).unwrap();
        let what = |n: usize| format!("{}, {left}: {n} of {count}, first {first}", variant.name());
        give_back(&fs, first).unwrap_or_else(|error| panic!("{}: {error}", what(first)));
        for n in (0..count).filter(|n| *n != first && first == 4) {
            give_back(&fs, n).unwrap_or_else(|error| panic!("{}: {error}", what(n)));
        }
        fs.unmount().unwrap();
        drop(fs);
        if first == 4 && Image::has_tools() {
            fsck_is_clean(&again.path);
        }
    }
}

#[test]
fn a_full_image_gives_back_at_the_first_call_after_a_crash() {
    for variant in Variant::ALL {
        it_can_be_emptied(variant, "killed", |fs| fs.sync().unwrap());
        it_can_be_emptied(variant, "unmounted", |fs| fs.unmount().unwrap());
        it_can_be_emptied(variant, "folded", |fs| fs.fold_now().unwrap());
    }
}

fn open(fs: &F2fs, n: usize) -> Handle {
    let attr = fs.lookup(&Cred::root(), Ino::ROOT, name(&format!("f{n}"))).unwrap();
    fs.open(&Cred::root(), attr.ino, OpenFlags::READ_WRITE).unwrap()
}

/// An image with so many files of one page, and few free segments.
fn with_files(count: usize) -> Image {
    const SEGMENTS_LEFT: u32 = 32;
    let image = Image::made(256);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let create =
        |text: &str| fs.create(&Cred::root(), Ino::ROOT, name(text), 0o600, OpenFlags::READ_WRITE).unwrap().1;
    for n in 0..count {
        let file = create(&format!("f{n}"));
        fs.write(&file, 0, &[1; 4096]).unwrap();
        fs.release(file);
    }
    let ballast = create("ballast");
    while fs.info().segments_free > SEGMENTS_LEFT {
        fs.append(&ballast, &[1; 1 << 20]).unwrap();
        fs.sync().unwrap();
    }
    fs.release(ballast);
    fs.unmount().unwrap();
    image
}

/// Writes over so many files, and fsyncs each; how many that were before something else made a checkpoint.
fn fsync_one_by_one(fs: &F2fs, count: usize) -> usize {
    // No fsync goes without one before the first.
    fs.sync().unwrap();
    let version = || fs.info().checkpoint_version;
    let before = version();
    for n in 0..count {
        let file = open(fs, n);
        fs.write(&file, 0, &[2; 4096]).unwrap();
        fs.fsync(&file, false).unwrap();
        fs.release(file);
        if version() != before {
            return n;
        }
    }
    count
}

/// A mount after a crash writes each node anew that an fsync had written: there are segments for that.
#[test]
fn files_fsynced_one_by_one_are_taken_in_where_little_is_free() {
    const FILES: usize = 7000;
    let full = with_files(FILES);
    for variant in [Variant::F2fs, Variant::RangeLock] {
        let probe = Image::copy_of(&full);
        let count = fsync_one_by_one(&open_as(&probe.path, variant).unwrap(), FILES);
        assert!(0 < count && count < FILES, "{count} without a checkpoint");
        let image = Image::copy_of(&full);
        let fs = open_as(&image.path, variant).unwrap();
        assert_eq!(fsync_one_by_one(&fs, count), count);
        drop(fs);
        let fs = open_as(&image.path, variant).unwrap_or_else(|error| panic!("{}: {error}", variant.name()));
        assert_eq!(fs.info().fsynced_inodes, count as u64);
        for n in 0..count {
            let (file, mut bytes) = (open(&fs, n), [0; 4097]);
            assert_eq!(fs.read(&file, 0, &mut bytes), Ok(4096));
            assert!(bytes[..4096] == [2; 4096], "{}: {n}", variant.name());
            fs.release(file);
        }
        fs.unlink(&Cred::root(), Ino::ROOT, name("f0")).unwrap();
        fs.unmount().unwrap();
        drop(fs);
        if Image::has_tools() {
            fsck_is_clean(&image.path);
        }
    }
}
