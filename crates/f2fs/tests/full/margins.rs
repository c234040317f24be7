//! Calls that need much at once, where there is little.

use crate::common::{Image, Source, fill, fsck_is_clean, open_as, read};
use heddle_f2fs::{F2fs, Variant};
use heddle_vfs::{Cred, Error, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RangeOp, SetAttr};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn create(fs: &F2fs, text: &str) -> Handle {
    fs.create(&Cred::root(), Ino::ROOT, name(text), 0o644, OpenFlags::READ_WRITE).unwrap().1
}

/// To the last block.
fn fill_up(fs: &F2fs) {
    let ballast = create(fs, "ballast");
    fill(fs, &ballast, 1 << 16);
    while fs.append(&ballast, &[1; 4096]).is_ok() {}
    fs.release(ballast);
}

#[test]
fn bytes_that_stand_inline_survive_every_call_that_lacks_space() {
    let source = Source::of_inline_files();
    let Some(image) = Image::sized_of(&source, 64, &[]) else { return };
    for variant in Variant::ALL {
        inline_bytes_survive(&Image::copy_of(&image), variant);
    }
}

fn inline_bytes_survive(image: &Image, variant: Variant) {
    let fs = open_as(&image.path, variant).unwrap();
    fill_up(&fs);
    let (root, path) = (Cred::root(), Path::new("/inline2"));
    let before = read(&fs, path);
    let attr = fs.lookup(&root, Ino::ROOT, name("inline2")).unwrap();
    let file = fs.open(&root, attr.ino, OpenFlags::READ_WRITE).unwrap();
    let size = SetAttr { size_bytes: Some(1 << 20), ..SetAttr::default() };
    let allocate = RangeOp::Allocate { keep_size: false };
    for refused in [
        fs.append(&file, &[1; 1000]).map(drop),
        fs.write(&file, 3, &[1; 4000]).map(drop),
        fs.setattr(&root, file.ino, None, &size).map(drop),
        fs.fallocate(&file, allocate, 0, 5000),
        fs.fallocate(&file, RangeOp::Zero { keep_size: false }, 0, 5000),
    ] {
        assert_eq!(refused, Err(Error::NoSpace));
        assert!(read(&fs, path) == before);
    }
    // What only gives back needs nothing.
    fs.fallocate(&file, RangeOp::Punch, 10, 90).unwrap();
    let size = SetAttr { size_bytes: Some(200), ..SetAttr::default() };
    fs.setattr(&root, file.ino, None, &size).unwrap();
    let mut wanted = before[..200].to_vec();
    wanted[10..100].fill(0);
    assert!(read(&fs, path) == wanted);
    fs.release(file);
    // A directory that stands inline keeps its names when it has no room for one more.
    let dir = fs.lookup(&root, Ino::ROOT, name("dir")).unwrap().ino;
    let names = crate::common::listed(&fs, Path::new("/dir"));
    let long = "n".repeat(255);
    let pipe = NewNode { kind: heddle_vfs::FileKind::Fifo, perm: 0o600, rdev: 0, target: &[] };
    assert_eq!(fs.make(&root, dir, name(&long), pipe).map(drop), Err(Error::NoSpace));
    assert_eq!(crate::common::listed(&fs, Path::new("/dir")), names);
    fs.sync().unwrap();
    drop(fs);
    fsck_is_clean(&image.path);
    let fs = open_as(&image.path, variant).unwrap();
    assert!(read(&fs, path) == wanted);
    assert_eq!(crate::common::listed(&fs, Path::new("/dir")), names);
    fs.unlink(&root, Ino::ROOT, name("ballast")).unwrap();
    fs.make(&root, dir, name(&long), pipe).unwrap();
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
}

/// One punch changes more nodes than there are free segments for at once.
#[test]
fn crash_one_call_changed_more_nodes_than_free_segments_hold() {
    Variant::ALL.into_iter().for_each(a_punch_of_many_nodes);
}

fn a_punch_of_many_nodes(variant: Variant) {
    let image = Image::made(256);
    let fs = open_as(&image.path, variant).unwrap();
    let sparse = create(&fs, "sparse");
    let pages = 9000;
    // Each under a direct node of its own.
    for n in 0..pages {
        fs.write(&sparse, (900 + n * 1018) * 4096, &[5; 4096]).unwrap();
    }
    fill_up(&fs);
    let ballast = fs.lookup(&Cred::root(), Ino::ROOT, name("ballast")).unwrap();
    let file = fs.open(&Cred::root(), ballast.ino, OpenFlags::READ_WRITE).unwrap();
    let mut random = 7_u64;
    for _ in 0..25_000 {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let page = (random >> 33) % (ballast.size_bytes / 4096);
        fs.write(&file, page * 4096, &[6; 4096]).unwrap();
    }
    fs.fallocate(&sparse, RangeOp::Punch, 0, 900 * 4096 + pages * 1018 * 4096).unwrap();
    fs.write(&file, 0, &[8; 4096]).unwrap();
    fs.sync().unwrap();
    assert_eq!(fs.seek(&sparse, heddle_vfs::SeekTarget::Data, 0), Err(Error::NoSuchOffset));
    fs.release(file);
    fs.release(sparse);
    fs.unmount().unwrap();
    if Image::has_tools() {
        fsck_is_clean(&image.path);
    }
}

/// Writers that each find room for themselves alone.
#[test]
fn writers_side_by_side_on_a_full_image_lack_space_at_most() {
    for variant in Variant::ALL {
        let image = Image::made(64);
        let fs = open_as(&image.path, variant).unwrap();
        let refused = AtomicU64::new(0);
        let files: Vec<Handle> = (0..8).map(|thread| create(&fs, &format!("file {thread}"))).collect();
        std::thread::scope(|scope| {
            for (thread, file) in (0_u8..).zip(files) {
                let (fs, refused) = (&fs, &refused);
                scope.spawn(move || {
                    for n in 0..24_u64 {
                        match fs.write(&file, n % 6 * (1 << 20), &vec![thread; 1 << 20]) {
                            Ok(_) => {}
                            Err(Error::NoSpace) => _ = refused.fetch_add(1, Relaxed),
                            Err(error) => panic!("{}: {error}", variant.name()),
                        }
                        if n % 7 == 0 {
                            fs.fsync(&file, false).unwrap();
                        }
                    }
                    fs.release(file);
                });
            }
        });
        assert!(!fs.has_failed() && refused.into_inner() > 0, "{}", variant.name());
        fs.unmount().unwrap();
        if Image::has_tools() {
            fsck_is_clean(&image.path);
        }
    }
}
