//! Inode chunks: made of any free block, given back when no inode lies in them, numbers never mistaken for older ones.

mod common;

use common::{Disk, Short, each_variant, root};
use heddle_nvmfs::NvmFs;
use heddle_vfs::{Error, FileSystem, Ino, RangeOp};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// What a directory's log may keep of names that are gone, and the chunk of the root.
const KEPT_BLOCKS_MAX: u64 = 8;

fn available(fs: &NvmFs) -> u64 {
    fs.statfs().unwrap().blocks_available
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::NoSpace | Error::NoInodes)
}

/// Writes pages to the end of a file until there is no space; how many went in.
fn fill(fs: &NvmFs, text: &str) -> u64 {
    let handle = fs.open_file(Ino::ROOT, text);
    let pages = (0..).find(|_| match fs.append(&handle, &[7; PAGE as usize]) {
        Ok(_) => false,
        Err(error) => is_full(&error) || panic!("{error:?}"),
    });
    fs.release(handle);
    pages.unwrap()
}

/// Makes and removes `count` files, all of them there at once.
fn come_and_go(fs: &NvmFs, count: u64) -> Vec<Ino> {
    let dir = fs.try_dir(Ino::ROOT, "dir").unwrap();
    let inos = (0..count).map(|n| {
        let handle = fs.new_file(dir, &format!("f{n}"));
        let ino = handle.ino;
        fs.release(handle);
        ino
    });
    let inos: Vec<Ino> = inos.collect();
    (0..count).for_each(|n| fs.remove(dir, &format!("f{n}")).unwrap());
    fs.rmdir(&root(), Ino::ROOT, common::name("dir")).unwrap();
    inos
}

#[test]
fn files_are_made_as_long_as_single_blocks_are_free() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 8 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        fs.release(fs.new_file(Ino::ROOT, "data"));
        let pages = fill(&fs, "data");
        let handle = fs.open_file(Ino::ROOT, "data");
        (0..pages / 3).for_each(|n| fs.fallocate(&handle, RangeOp::Punch, 3 * n * PAGE, PAGE).unwrap());
        let free = available(&fs);
        assert!(free > 500, "{variant:?}: {free} blocks of {pages} are free");
        let made = (0..).find(|n| match fs.try_file(Ino::ROOT, &format!("f{n}")) {
            Ok(handle) => {
                fs.release(handle);
                false
            }
            Err(error) => is_full(&error) || panic!("{error:?}"),
        });
        // 32 a chunk, and 60 names a page of the directory's log.
        assert!(made.unwrap() > 500 * 18, "{variant:?}: {made:?} files with {free} blocks free");
        assert!(available(&fs) < 16, "{variant:?}: {} blocks are left", available(&fs));
        fs.release(handle);
        drop(fs);
        volume.unmount();
        common::sound(disk.region()).unwrap();
    });
}

#[test]
fn blocks_of_inodes_that_are_gone_are_for_data_again() {
    each_variant(|variant| {
        for remount in [false, true] {
            let disk = Disk::new(variant, 8 * MIB);
            let mut volume = disk.mount();
            let before = available(&volume.fs());
            come_and_go(&volume.fs(), 10_000);
            if remount {
                volume.unmount();
                volume = disk.mount();
            }
            let fs = volume.fs();
            let after = available(&fs);
            assert!(after + KEPT_BLOCKS_MAX >= before, "{variant:?}: {before} blocks, then {after}");
            fs.release(fs.new_file(Ino::ROOT, "data"));
            let pages = fill(&fs, "data");
            let log = pages / 60 + 2;
            assert!(pages + log + KEPT_BLOCKS_MAX >= after, "{variant:?}: {pages} pages of {after}");
            drop(fs);
            volume.abandon();
            common::sound(disk.region()).unwrap();
            let volume = disk.mount();
            assert_eq!(volume.fs().find(Ino::ROOT, "data").unwrap().size_bytes, pages * PAGE, "{variant:?}");
            volume.unmount();
        }
    });
}

#[test]
fn inode_numbers_of_freed_chunks_are_stale_and_not_repeated() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 8 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let inos = come_and_go(&fs, 5_000);
        let kept = fs.new_file(Ino::ROOT, "kept");
        fs.remove(Ino::ROOT, "kept").unwrap();
        fs.release(fs.new_file(Ino::ROOT, "data"));
        fill(&fs, "data");
        let stale = |ino: &&Ino| fs.getattr(**ino) == Err(Error::Stale);
        let living = [kept.ino, fs.find(Ino::ROOT, "data").unwrap().ino];
        let gone = inos.iter().filter(|ino| !living.contains(ino));
        assert!(gone.clone().filter(stale).count() == gone.count(), "{variant:?}");
        fs.remove(Ino::ROOT, "data").unwrap();
        let again = made_again(&fs, 5_000, &inos);
        assert!(again > 4_000, "{variant:?}: {again} numbers came again");
        // What is open lives, though its name and all that was made beside it are gone.
        fs.write(&kept, 0, b"here").unwrap();
        assert_eq!(fs.getattr(kept.ino).unwrap().size_bytes, 4, "{variant:?}");
        fs.release(kept);
    });
}

/// Makes `count` files of generations of their own: how many have one of those numbers.
fn made_again(fs: &NvmFs, count: u64, before: &[Ino]) -> usize {
    let known: std::collections::HashSet<Ino> = before.iter().copied().collect();
    let mut tokens = std::collections::HashSet::new();
    let dir = fs.try_dir(Ino::ROOT, "again").unwrap();
    let made = (0..count).filter(|n| {
        let handle = fs.new_file(dir, &format!("f{n}"));
        assert!(tokens.insert(handle.token), "a generation came twice");
        let again = known.contains(&handle.ino);
        fs.release(handle);
        again
    });
    made.count()
}
