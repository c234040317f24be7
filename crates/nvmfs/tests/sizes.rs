//! Sizes far beyond the region: what a system can lock it can cut, what it cannot is refused before anything changes.

mod common;

use common::{Disk, Short, each_variant, root};
use heddle_nvmfs::Variant;
use heddle_vfs::{Cred, Error, FileSystem, Ino, OFFSET_MAX_BYTES, RangeOp, SetAttr};

const MIB: u64 = 1 << 20;

/// Where the largest file of a system ends.
fn size_max(variant: Variant) -> u64 {
    if variant == Variant::NovaArray { 16 * MIB } else { OFFSET_MAX_BYTES }
}

/// The arena of a mount has 256 MiB: a word a page of such a file would be hundreds of GiB.
#[test]
fn a_file_of_the_largest_size_can_be_cut_punched_and_shifted() {
    each_variant(|variant| {
        let volume = Disk::new(variant, 16 * MIB).mount();
        let fs = volume.fs();
        let max = size_max(variant);
        let file = fs.new_file(Ino::ROOT, "f");
        fs.write(&file, 0, b"first").unwrap();
        fs.write(&file, max - 4, b"last").unwrap();
        assert_eq!(fs.size(&file), max, "{variant:?}");
        let page = 4096;
        fs.fallocate(&file, RangeOp::Punch, page, max / 2).unwrap();
        // Zeroing allocates what is a hole.
        let zeroed = fs.fallocate(&file, RangeOp::Zero { keep_size: true }, page, max - page);
        assert_eq!(zeroed, Err(Error::NoSpace), "{variant:?}");
        fs.fallocate(&file, RangeOp::Zero { keep_size: true }, page, 8 * page).unwrap();
        fs.fallocate(&file, RangeOp::Collapse, page, max / 2).unwrap();
        fs.resize(&file, max).unwrap();
        assert_eq!(fs.read_vec(&file, max - 9, 100), [0; 9], "{variant:?}");
        fs.resize(&file, 5).unwrap();
        assert_eq!(fs.read_vec(&file, 0, 100), b"first", "{variant:?}");
        fs.release(file);
    });
}

#[test]
fn a_size_that_a_system_cannot_serve_is_refused_and_changes_nothing() {
    each_variant(|variant| {
        let volume = Disk::new(variant, 16 * MIB).mount();
        let fs = volume.fs();
        let max = size_max(variant);
        let file = fs.new_file(Ino::ROOT, "f");
        fs.write(&file, 0, b"first").unwrap();
        let before = fs.getattr(file.ino).unwrap();
        let by_path = SetAttr { size_bytes: Some(max + 1), perm: Some(0o600), ..SetAttr::default() };
        let page = 4096;
        let refused = [
            fs.resize(&file, max + 1),
            fs.setattr(&Cred::root(), file.ino, None, &by_path).map(|_| ()),
            fs.write(&file, max, b"x").map(|_| ()),
            fs.fallocate(&file, RangeOp::Allocate { keep_size: true }, max, page),
            fs.fallocate(&file, RangeOp::Allocate { keep_size: false }, max - 1, 2),
            fs.fallocate(&file, RangeOp::Zero { keep_size: false }, max, page),
            fs.fallocate(&file, RangeOp::Insert, 0, max),
        ];
        assert_eq!(refused, [const { Err(Error::FileTooBig) }; 7], "{variant:?}");
        fs.resize(&file, max).unwrap();
        assert_eq!(fs.append(&file, b"x"), Err(Error::FileTooBig), "{variant:?}");
        fs.resize(&file, 5).unwrap();
        let after = fs.getattr(file.ino).unwrap();
        assert_eq!((after.size_bytes, after.perm, after.blocks_512), (5, before.perm, before.blocks_512));
        fs.release(file);
        fs.unlink(&root(), Ino::ROOT, common::name("f")).unwrap();
    });
}

#[test]
fn a_hole_may_be_inserted_up_to_the_largest_size() {
    each_variant(|variant| {
        let volume = Disk::new(variant, 16 * MIB).mount();
        let fs = volume.fs();
        let (max, page) = (size_max(variant), 4096);
        let file = fs.new_file(Ino::ROOT, "f");
        fs.write(&file, 0, &[7; 4096]).unwrap();
        // Whole pages, if the largest size is not one of them.
        let rest = max / page * page - page;
        assert_eq!(fs.fallocate(&file, RangeOp::Insert, 0, rest + page), Err(Error::FileTooBig));
        assert_eq!(fs.fallocate(&file, RangeOp::Insert, 0, rest), Ok(()), "{variant:?}");
        assert_eq!((fs.size(&file), fs.read_vec(&file, rest, 9)), (rest + page, vec![7; 9]), "{variant:?}");
        fs.release(file);
    });
}

/// The number of its pages times that of the first is beyond all numbers of pages.
#[test]
fn pages_before_the_largest_offset_are_there_after_a_mount() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 * MIB);
        let (max, bytes) = (size_max(variant), vec![0x5a; 3 * 4096 + 7]);
        let volume = disk.mount();
        let file = volume.fs().new_file(Ino::ROOT, "f");
        volume.fs().write(&file, max - bytes.len() as u64, &bytes).unwrap();
        volume.fs().release(file);
        volume.unmount();
        let volume = disk.mount();
        let file = volume.fs().open_file(Ino::ROOT, "f");
        assert_eq!(volume.fs().size(&file), max, "{variant:?}");
        assert!(volume.fs().read_vec(&file, max - bytes.len() as u64, bytes.len()) == bytes, "{variant:?}");
        volume.fs().release(file);
    });
}

#[test]
fn a_write_of_more_than_2_gib_is_refused_and_changes_nothing() {
    // Zeros that take no memory until they are read.
    let too_long = vec![0; (2 << 30) + 1];
    each_variant(|variant| {
        let volume = Disk::new(variant, 16 * MIB).mount();
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        fs.write(&file, 0, b"first").unwrap();
        for said in [fs.write(&file, 0, &too_long).map(drop), fs.append(&file, &too_long).map(drop)] {
            assert!(matches!(said, Err(Error::InvalidArgument(_))), "{variant:?}: {said:?}");
        }
        assert_eq!(fs.read_vec(&file, 0, 100), b"first", "{variant:?}");
        fs.release(file);
    });
}
