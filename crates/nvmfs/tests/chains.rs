//! The chains of one file's log, one for each thread that writes it: what ends with the file, and what later mounts make of them.

mod common;

use common::{Disk, Short, each_variant, root};
use heddle_nvmfs::NvmFs;
use heddle_vfs::{FileSystem, Handle, Ino, RangeOp};
use std::sync::Barrier;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// More than an inode's slot has heads for: the others lie in a block of their own.
const THREADS: u64 = 10;
const OTHERS_BYTES: usize = 10 * MIB as usize;

/// Each of many threads writes a page of its own, and keeps its chain until all have written.
fn written_by_many(fs: &NvmFs, file: &Handle, value: u8) {
    let all = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let all = &all;
            scope.spawn(move || {
                fs.write(file, thread * PAGE, &[value; PAGE as usize]).unwrap();
                all.wait();
            });
        }
    });
}

/// A new file whose inode has this number; the others that it takes to get there stay.
fn made_as(fs: &NvmFs, ino: Ino) -> Handle {
    let made = (0..1000).find_map(|n| {
        let file = fs.new_file(Ino::ROOT, &format!("{n}"));
        if file.ino == ino {
            return Some(file);
        }
        fs.release(file);
        None
    });
    made.expect("the number comes again")
}

/// The first one's block of heads was gone, and its chains were not: what the second one wrote was lost.
#[test]
fn crash_the_superblock_got_the_heads_of_a_second_file() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let first = fs.new_file(Ino::ROOT, "first");
        let ino = first.ino;
        written_by_many(&fs, &first, 1);
        fs.release(first);
        fs.remove(Ino::ROOT, "first").unwrap();
        let second = made_as(&fs, ino);
        // It gets the first one's block of heads, among others.
        let third = fs.new_file(Ino::ROOT, "third");
        fs.write(&third, 0, &vec![3; OTHERS_BYTES]).unwrap();
        written_by_many(&fs, &second, 2);
        fs.link(&root(), ino, Ino::ROOT, common::name("second")).unwrap();
        let good = |fs: &NvmFs, when: &str| {
            for (text, value, len) in [("second", 2, (THREADS * PAGE) as usize), ("third", 3, OTHERS_BYTES)] {
                let file = fs.open_file(Ino::ROOT, text);
                assert!(fs.read_vec(&file, 0, len) == vec![value; len], "{variant:?}, {when}: {text}");
                fs.release(file);
            }
        };
        good(&fs, "at once");
        fs.release(second);
        fs.release(third);
        drop(fs);
        volume.abandon();
        common::sound(disk.region()).unwrap();
        good(&disk.mount().fs(), "after a remount");
    });
}

/// A later mount goes on with the block of heads that there is, and gives it back.
#[test]
fn further_chains_stay_a_files_through_mounts_and_end_with_it() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 * MIB);
        let free = |fs: &NvmFs| fs.statfs().unwrap().blocks_free;
        let volume = disk.mount();
        let before = free(&volume.fs());
        let file = volume.fs().new_file(Ino::ROOT, "f");
        written_by_many(&volume.fs(), &file, 1);
        volume.fs().release(file);
        volume.abandon();
        for value in [2, 3] {
            let volume = disk.mount();
            let file = volume.fs().open_file(Ino::ROOT, "f");
            written_by_many(&volume.fs(), &file, value);
            volume.fs().release(file);
            volume.abandon();
            common::sound(disk.region()).unwrap();
        }
        let volume = disk.mount();
        let file = volume.fs().open_file(Ino::ROOT, "f");
        let bytes = (THREADS * PAGE) as usize;
        assert!(volume.fs().read_vec(&file, 0, bytes) == vec![3; bytes], "{variant:?}");
        volume.fs().release(file);
        volume.fs().remove(Ino::ROOT, "f").unwrap();
        // Names are in the log of the root.
        assert!(free(&volume.fs()) + 4 >= before, "{variant:?}: {} of {before} blocks", free(&volume.fs()));
        volume.unmount();
        common::sound(disk.region()).unwrap();
    });
}

/// The punch lies in a younger chain than the write that it covers, in a log that is older than the mount.
#[test]
fn a_hole_stays_one_when_a_later_mount_cleans_its_log() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        let overwrite = |fs: &NvmFs, file: &Handle, page: u64| {
            for round in 0..2000u32 {
                fs.write(file, page * PAGE, &[round as u8 | 1; PAGE as usize]).unwrap();
            }
        };
        overwrite(&fs, &file, 0);
        fs.write(&file, 7 * PAGE, &[1; PAGE as usize]).unwrap();
        fs.release(file);
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        let fs = volume.fs();
        let file = fs.open_file(Ino::ROOT, "f");
        // This thread takes the old chain, the other one a new one.
        fs.write(&file, PAGE, &[1; PAGE as usize]).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                fs.fallocate(&file, RangeOp::Punch, 7 * PAGE, PAGE).unwrap();
                overwrite(&fs, &file, 5);
            });
        });
        fs.release(file);
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        let fs = volume.fs();
        let file = fs.open_file(Ino::ROOT, "f");
        let firsts = [0, 1, 5, 7].map(|page| fs.read_vec(&file, page * PAGE, 1)[0]);
        assert_eq!(firsts, [207, 1, 207, 0], "{variant:?}");
        fs.release(file);
    });
}
