//! Allocated ranges: writes find their space there, zeroing keeps them, and a truncation takes those beyond the end.

mod common;

use common::{Image, Source, fsck_is_clean, open_as, read};
use heddle_f2fs::{F2fs, Variant};
use heddle_vfs::{
    Cred, Error, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RangeOp, SetAttr,
};
use std::path::Path;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
const KEEP: RangeOp = RangeOp::Allocate { keep_size: true };
const ZERO: RangeOp = RangeOp::Zero { keep_size: false };

fn open(fs: &F2fs, text: &str) -> Handle {
    let (root, name) = (Cred::root(), Name::new(text.as_bytes()).unwrap());
    match fs.lookup(&root, Ino::ROOT, name) {
        Ok(attr) => fs.open(&root, attr.ino, OpenFlags::READ_WRITE).unwrap(),
        Err(_) => fs.create(&root, Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap().1,
    }
}

/// Pages that a file has space for; its nodes count too.
fn allocated(fs: &F2fs, file: &Handle) -> u64 {
    fs.getattr(file.ino).unwrap().blocks_512 / 8
}

fn resize(fs: &F2fs, file: &Handle, size_bytes: u64) {
    let size = SetAttr { size_bytes: Some(size_bytes), ..SetAttr::default() };
    fs.setattr(&Cred::root(), file.ino, Some(file), &size).unwrap();
}

/// To the last block.
fn fill_up(fs: &F2fs) {
    let ballast = open(fs, "ballast");
    for piece in [64, 1] {
        while fs.append(&ballast, &vec![1; piece * PAGE as usize]).is_ok() {}
    }
    fs.release(ballast);
    // A page and its node may be one too many.
    for n in 0..fs.statfs().unwrap().blocks_free {
        let node = NewNode { kind: FileKind::Fifo, perm: 0o600, rdev: 0, target: &[] };
        fs.make(&Cred::root(), Ino::ROOT, Name::new(format!("pad {n}").as_bytes()).unwrap(), node).unwrap();
    }
    assert_eq!(fs.statfs().unwrap().blocks_free, 0);
}

/// The kernel asks before a program may store to pages that it has mapped.
#[test]
fn stores_to_holes_of_a_full_image_are_expected_to_fail() {
    for image in images() {
        let fs = open_as(&image.path, Variant::F2fs).unwrap();
        let file = open(&fs, "f");
        fs.write(&file, 0, &[1; PAGE as usize]).unwrap();
        resize(&fs, &file, 3 * PAGE);
        assert_eq!(fs.expect_stores(&file, PAGE, PAGE), Ok(()), "there is space");
        fill_up(&fs);
        assert_eq!(fs.expect_stores(&file, PAGE, PAGE), Err(Error::NoSpace));
        assert_eq!(fs.expect_stores(&file, 3 * PAGE, PAGE), Ok(()), "no store beyond the end needs space");
        fs.release(file);
    }
}

/// Leaves an image to fsck.f2fs, and opens it as the same system again.
fn again(fs: F2fs, image: &Image, variant: Variant) -> F2fs {
    fs.unmount().unwrap();
    drop(fs);
    fsck_is_clean(&image.path);
    open_as(&image.path, variant).unwrap()
}

/// An image of our own, and one of mkfs.f2fs.
fn images() -> Vec<Image> {
    let own = Image::has_tools().then(|| Image::made(64));
    own.into_iter().chain(Image::empty(128, &[])).collect()
}

#[test]
fn writes_into_allocated_space_and_over_data_succeed_on_a_full_image() {
    for (variant, image) in Variant::ALL.into_iter().flat_map(|v| images().into_iter().map(move |i| (v, i))) {
        let fs = open_as(&image.path, variant).unwrap();
        let file = open(&fs, "file");
        // Allocated, never written; written; a hole; all zeroed but the first, and what is behind the end.
        fs.fallocate(&file, KEEP, 0, 2 * MIB).unwrap();
        fs.write(&file, 2 * MIB, &vec![7; MIB as usize]).unwrap();
        fs.fallocate(&file, ZERO, 2 * MIB + 100, 2 * MIB).unwrap();
        fs.fallocate(&file, KEEP, 5 * MIB, MIB).unwrap();
        fill_up(&fs);
        let mut fill = 0;
        let mut over = |fs: &F2fs, file: &Handle| {
            for piece in [3 * PAGE / 2, 64 * PAGE, PAGE] {
                fill += 1;
                for range in [0..4 * MIB, 5 * MIB..6 * MIB] {
                    for at in range.clone().step_by(piece as usize) {
                        let len = piece.min(range.end - at) as usize;
                        let done = fs.write(file, at, &vec![fill; len]);
                        assert_eq!(done, Ok(len), "{}, {at}", variant.name());
                    }
                }
                fs.fsync(file, false).unwrap();
            }
            let bytes = read(fs, Path::new("/file"));
            assert_eq!(bytes.len() as u64, 6 * MIB);
            let is_hole = |at: usize| (4 * MIB..5 * MIB).contains(&(at as u64));
            let wrong = (0..bytes.len()).find(|at| bytes[*at] != if is_hole(*at) { 0 } else { fill });
            assert_eq!(wrong, None, "{}", variant.name());
        };
        over(&fs, &file);
        // Zeroed where it is full, too.
        fs.fallocate(&file, ZERO, PAGE / 2, 3 * MIB).unwrap();
        assert_eq!(fs.fallocate(&file, ZERO, 4 * MIB, MIB), Err(Error::NoSpace));
        over(&fs, &file);
        fs.fallocate(&file, ZERO, PAGE / 2, 3 * MIB).unwrap();
        fs.release(file);
        let fs = again(fs, &image, variant);
        let file = open(&fs, "file");
        over(&fs, &file);
        fs.release(file);
        again(fs, &image, variant);
    }
}

#[test]
fn zeroing_a_range_keeps_its_blocks_and_allocates_its_holes() {
    for (variant, image) in Variant::ALL.into_iter().flat_map(|v| images().into_iter().map(move |i| (v, i))) {
        let fs = open_as(&image.path, variant).unwrap();
        let file = open(&fs, "file");
        // Across the inode's own pointers and two nodes.
        let pages = 2100;
        for n in (0..pages).filter(|n| n % 3 != 2).rev() {
            fs.write(&file, n * PAGE, &[7; PAGE as usize]).unwrap();
        }
        fs.sync().unwrap();
        let held = allocated(&fs, &file) + pages / 3;
        fs.fallocate(&file, ZERO, PAGE / 2, (pages - 1) * PAGE).unwrap();
        let mut wanted = vec![0; ((pages - 1) * PAGE + PAGE / 2) as usize];
        wanted[..PAGE as usize / 2].fill(7);
        assert!(read(&fs, Path::new("/file")) == wanted, "{}", variant.name());
        assert_eq!(allocated(&fs, &file), held, "{}", variant.name());
        // As after a power cut, then as after an unmount.
        fs.fsync(&file, false).unwrap();
        fs.release(file);
        drop(fs);
        let mut fs = open_as(&image.path, variant).unwrap();
        for _ in 0..2 {
            fs = again(fs, &image, variant);
            assert!(read(&fs, Path::new("/file")) == wanted, "{}", variant.name());
            let file = open(&fs, "file");
            assert_eq!(allocated(&fs, &file), held, "{}", variant.name());
            fs.release(file);
        }
        let file = open(&fs, "file");
        fs.fallocate(&file, RangeOp::Zero { keep_size: true }, 0, (pages + 10) * PAGE).unwrap();
        wanted.fill(0);
        assert_eq!(allocated(&fs, &file), held + 10);
        assert!(read(&fs, Path::new("/file")) == wanted, "{}", variant.name());
        fs.release(file);
        again(fs, &image, variant);
    }
}

/// Pages with data, holes between and behind them, and space beyond the end.
#[test]
fn a_shift_moves_what_lies_before_the_end_and_nothing_else() {
    for (variant, image) in Variant::ALL.into_iter().flat_map(|v| images().into_iter().map(move |i| (v, i))) {
        let fs = open_as(&image.path, variant).unwrap();
        let file = open(&fs, "file");
        let page_of = |value: u8| [value; PAGE as usize];
        for page in [0, 1, 3] {
            fs.write(&file, page * PAGE, &page_of(page as u8 + 1)).unwrap();
        }
        resize(&fs, &file, 6 * PAGE);
        fs.fallocate(&file, KEEP, 6 * PAGE, 3 * PAGE).unwrap();
        fs.sync().unwrap();
        let held = allocated(&fs, &file);
        fs.fallocate(&file, RangeOp::Insert, PAGE, 2 * PAGE).unwrap();
        let inserted = [1, 0, 0, 2, 0, 4, 0, 0].map(page_of).concat();
        assert!(read(&fs, Path::new("/file")) == inserted, "{}, inserted", variant.name());
        assert_eq!(allocated(&fs, &file), held, "{}: the space beyond the end stays", variant.name());
        fs.fallocate(&file, RangeOp::Collapse, PAGE, 2 * PAGE).unwrap();
        let collapsed = [1, 2, 0, 4, 0, 0].map(page_of).concat();
        assert!(read(&fs, Path::new("/file")) == collapsed, "{}, collapsed", variant.name());
        assert_eq!(allocated(&fs, &file), held - 1, "{}: what is beyond the new end goes", variant.name());
        fs.release(file);
        let fs = again(fs, &image, variant);
        assert!(read(&fs, Path::new("/file")) == collapsed, "{}, after a mount", variant.name());
    }
}

#[test]
fn blocks_beyond_the_end_go_with_a_truncation_to_the_same_size() {
    for (variant, image) in Variant::ALL.into_iter().flat_map(|v| images().into_iter().map(move |i| (v, i))) {
        let fs = open_as(&image.path, variant).unwrap();
        for size in [0, 10, PAGE, PAGE + 1] {
            let file = open(&fs, &format!("file {size}"));
            if size > 0 {
                fs.write(&file, 0, &vec![7; size as usize]).unwrap();
            }
            let held = allocated(&fs, &file);
            let allocate = || {
                fs.fallocate(&file, KEEP, 0, 64 * PAGE).unwrap();
                assert_eq!(allocated(&fs, &file), 64, "{}, {size}", variant.name());
            };
            allocate();
            resize(&fs, &file, size);
            assert_eq!(allocated(&fs, &file), held, "{}, {size}: to its size", variant.name());
            allocate();
            resize(&fs, &file, size + 1);
            assert_eq!(allocated(&fs, &file), 64, "{}, {size}: one that grows keeps them", variant.name());
            resize(&fs, &file, size);
            assert_eq!(allocated(&fs, &file), held, "{}, {size}: cut by a byte", variant.name());
            assert!(read(&fs, Path::new(&format!("/file {size}"))) == vec![7; size as usize]);
            allocate();
            let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
            fs.release(fs.open(&Cred::root(), file.ino, flags).unwrap());
            assert_eq!(allocated(&fs, &file), 0, "{}, {size}: O_TRUNC", variant.name());
            fs.release(file);
        }
        again(fs, &image, variant);
    }
}

/// Bytes in an inode have their space: no block is taken for those that come where there is room.
#[test]
fn what_stands_inline_can_be_written_on_a_full_image() {
    let source = Source::of_inline_files();
    for variant in Variant::ALL {
        let Some(image) = Image::sized_of(&source, 64, &[]) else { return };
        let fs = open_as(&image.path, variant).unwrap();
        let path = Path::new("/inline");
        let mut wanted = read(&fs, path);
        fill_up(&fs);
        let file = open(&fs, "inline");
        fs.write(&file, 3, b"over").unwrap();
        wanted[3..7].copy_from_slice(b"over");
        fs.append(&file, b"behind").unwrap();
        wanted.extend(b"behind");
        fs.write(&file, 3000, b"far").unwrap();
        wanted.resize(3000, 0);
        wanted.extend(b"far");
        fs.fallocate(&file, RangeOp::Allocate { keep_size: false }, 0, 3100).unwrap();
        wanted.resize(3100, 0);
        fs.fallocate(&file, ZERO, 10, 3100).unwrap();
        wanted.resize(3110, 0);
        wanted[10..].fill(0);
        assert!(read(&fs, path) == wanted, "{}", variant.name());
        // What is allocated beyond the room of an inode takes a block, and what does not fit changes nothing.
        for op in [KEEP, RangeOp::Zero { keep_size: true }] {
            assert_eq!(fs.fallocate(&file, op, 0, 2 * PAGE), Err(Error::NoSpace));
        }
        assert_eq!(fs.write(&file, 3000, &[1; 2000]), Err(Error::NoSpace));
        fs.fsync(&file, false).unwrap();
        fs.release(file);
        // As after a power cut.
        drop(fs);
        let fs = again(open_as(&image.path, variant).unwrap(), &image, variant);
        assert!(read(&fs, path) == wanted, "{}", variant.name());
        // With room, both kinds of allocation reach beyond what fits inline, and a write finds its block there.
        fs.unlink(&Cred::root(), Ino::ROOT, Name::new(b"ballast").unwrap()).unwrap();
        for (text, op) in [("inline", KEEP), ("inline2", RangeOp::Zero { keep_size: true })] {
            let file = open(&fs, text);
            fs.fallocate(&file, op, 0, 4 * PAGE).unwrap();
            assert_eq!(allocated(&fs, &file), 4, "{text}");
            fs.release(file);
        }
        fill_up(&fs);
        let file = open(&fs, "inline2");
        fs.write(&file, 0, &[8; 4 * PAGE as usize]).unwrap();
        fs.release(file);
        again(fs, &image, variant);
    }
}

/// It goes in pieces: the first would fit.
#[test]
fn a_zeroed_range_that_does_not_fit_has_zeroed_nothing() {
    let image = Image::made(512);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let file = open(&fs, "file");
    fs.write(&file, 0, &[7; 8 * PAGE as usize]).unwrap();
    assert_eq!(fs.fallocate(&file, ZERO, 0, 1 << 30), Err(Error::NoSpace));
    assert!(read(&fs, Path::new("/file")) == [7; 8 * PAGE as usize]);
    fs.release(file);
}

/// Recovery cut the file at its size after it had taken in the space behind that.
#[test]
fn crash_space_beyond_the_end_of_a_shortened_file_was_not_recovered() {
    let image = Image::made(64);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let file = open(&fs, "file");
    fs.write(&file, 0, &[5; 1000 * PAGE as usize]).unwrap();
    fs.sync().unwrap();
    resize(&fs, &file, 900 * PAGE);
    fs.fallocate(&file, KEEP, 900 * PAGE, 100 * PAGE).unwrap();
    fs.fsync(&file, false).unwrap();
    let before = allocated(&fs, &file);
    fs.release(file);
    drop(fs);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let file = open(&fs, "file");
    assert_eq!((fs.info().fsynced_inodes, allocated(&fs, &file)), (1, before));
    assert!(read(&fs, Path::new("/file")) == [5; 900 * PAGE as usize]);
    resize(&fs, &file, 1000 * PAGE);
    assert!(read(&fs, Path::new("/file"))[900 * PAGE as usize..] == [0; 100 * PAGE as usize]);
    fs.release(file);
    fs.unmount().unwrap();
    drop(fs);
    fsck_is_clean(&image.path);
}
