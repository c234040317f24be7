//! The device is cut off at any instant: what was acknowledged is there, what is there is one instant of what happened, and the image is
//! one that fsck.f2fs and this engine take as it is.
//!
//! Of the writes since the last flush each may have reached the media or not, or in part. `HEDDLE_F2FS_CUTS`: cuts of each of the lists.

mod common;
#[path = "corners/forge.rs"]
mod forge;
mod power_cuts {
    mod faults;
    pub mod rig;
}

use common::{Image, fsck_is_clean};
use forge::Forge;
use heddle_f2fs::format::checkpoint_flag;
use heddle_f2fs::{F2fs, Traffic, Variant};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{Cred, FileSystem, Ino, Name, OpenFlags, SetAttr, SetTime, Time};
use power_cuts::rig::{
    Appended, BLOCK, Random, blocks_of, can_be_used_emptied_and_mounted, cut, instant, may_be, play,
    put_down, replaced, shifted,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// One of the states that may be there, and nothing else.
fn is_one_of(may_be: &[Tree], fs: &F2fs, what: &str) {
    let tree = Tree::of(fs).unwrap_or_else(|error| panic!("{what}: {error}"));
    let differs: Vec<String> = may_be.iter().filter_map(|wanted| tree.difference(wanted)).collect();
    assert!(differs.len() < may_be.len(), "{what}: {}", differs[0]);
}

/// Mounts what a cut left: how many files were found after its checkpoint, and what the mount gave to the device.
fn survived(
    blocks: &BTreeMap<u32, Vec<u8>>,
    variant: Variant,
    may_be: &[Tree],
    what: &str,
) -> (u64, Vec<Traffic>) {
    let left = put_down(blocks);
    fsck_is_clean(&left.path);
    let open = || F2fs::open_as(&left.path, variant).unwrap_or_else(|e| panic!("{what}: {e}"));
    let fs = open();
    is_one_of(may_be, &fs, what);
    let found = (fs.info().fsynced_inodes, fs.traffic());
    can_be_used_emptied_and_mounted(fs, &left.path, open);
    found
}

/// The number of files that were found again after a checkpoint.
fn cuts_are_survived(kind: &[&str], seed: u64, cuts: u64) -> u64 {
    let Some(image) = Image::empty(64, kind) else { return 1 };
    let mut rolled = 0;
    let base = blocks_of(&image.path);
    let mut random = Random(seed);
    let variant = [Variant::F2fs, Variant::RangeLock][seed as usize % 2];
    let fs = F2fs::open_as(&image.path, variant).unwrap();
    fs.set_discards(true);
    let start = Tree::of(&fs).unwrap();
    let moments = play(&fs, &mut random, 120);
    assert!(!fs.has_failed() && moments.iter().all(|moment| moment.returned));
    let traffic = fs.traffic();
    assert!(traffic.iter().filter(|t| matches!(t, Traffic::Flush)).count() > 4, "nothing was flushed");
    drop(fs);
    for _ in 0..cuts {
        let at = instant(&traffic, &mut random);
        let blocks = cut(&base, &traffic[..at], &mut random);
        let what = format!("{variant:?}, seed {seed}, cut {at} of {}", traffic.len());
        let may_be = may_be(&start, &moments, at);
        let (found, taken_in) = survived(&blocks, variant, &may_be, &what);
        rolled += found;
        // Cut once more while what was fsynced is taken in.
        if !taken_in.is_empty() {
            let at = instant(&taken_in, &mut random);
            let what = format!("{what}, then cut {at} of {}", taken_in.len());
            survived(&cut(&blocks, &taken_in[..at], &mut random), variant, &may_be, &what);
        }
    }
    rolled
}

#[test]
fn a_power_cut_leaves_one_instant_with_all_that_was_synced() {
    let cuts = std::env::var("HEDDLE_F2FS_CUTS").map_or(6, |text| text.parse().unwrap());
    let phone = ["-O", "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum"];
    let seeds = 1..=3;
    let rolled: u64 = seeds
        .map(|seed| cuts_are_survived(&[], seed, cuts) + cuts_are_survived(&phone, 100 + seed, cuts))
        .sum();
    assert!(rolled > 0, "no file was found again after a checkpoint");
}

/// Cuts a change before and after each of the device's writes and flushes.
fn is_done_or_not(change: impl Fn(&F2fs) -> (usize, [Tree; 2])) {
    for variant in [Variant::F2fs, Variant::RangeLock] {
        let Some(image) = Image::empty(64, &[]) else { return };
        let (base, mut random) = (blocks_of(&image.path), Random(1));
        let fs = F2fs::open_as(&image.path, variant).unwrap();
        let (begin, states) = change(&fs);
        let traffic = fs.traffic();
        drop(fs);
        for at in begin..=traffic.len() {
            let left = put_down(&cut(&base, &traffic[..at], &mut random));
            fsck_is_clean(&left.path);
            let fs = F2fs::open_as(&left.path, variant).unwrap();
            is_one_of(&states, &fs, &format!("{variant:?}, cut {at} of {}", traffic.len()));
        }
    }
}

#[test]
fn a_shift_cut_by_power_is_done_or_not() {
    is_done_or_not(shifted);
}

#[test]
fn a_rename_cut_by_power_is_done_or_not() {
    is_done_or_not(replaced);
}

/// The mount takes an inode in that was fsynced after the checkpoint, with an older time than that has.
#[test]
fn an_older_time_that_was_fsynced_stays() {
    let root = Cred::root();
    let older = Time::from_parts(80_000, 7);
    for variant in [Variant::F2fs, Variant::RangeLock] {
        let image = Image::made(64);
        let fs = F2fs::open_as(&image.path, variant).unwrap();
        let name = Name::new(b"file").unwrap();
        let (_, file) = fs.create(&root, Ino::ROOT, name, 0o600, OpenFlags::READ_WRITE).unwrap();
        fs.append(&file, &[1; 5000]).unwrap();
        fs.sync().unwrap();
        let set = SetAttr { mtime: Some(SetTime::At(older)), ..SetAttr::default() };
        fs.setattr(&root, file.ino, Some(&file), &set).unwrap();
        fs.fsync(&file, false).unwrap();
        fs.release(file);
        drop(fs);
        let fs = F2fs::open_as(&image.path, variant).unwrap();
        assert_eq!(fs.info().fsynced_inodes, 1, "{variant:?}");
        assert_eq!(fs.lookup(&root, Ino::ROOT, name).unwrap().mtime, older, "{variant:?}");
        fs.unmount().unwrap();
    }
}

/// Two fsyncs, of which a cut keeps only the second one's node: neither counts, and the second does not come to count when a later one of
/// another file fills the gap before it.
#[test]
fn what_lies_behind_a_lost_node_stays_lost() {
    let Some(image) = Image::empty(64, &[]) else { return };
    lose_the_first_of_two_fsyncs(&image);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    assert_eq!(fs.info().fsynced_inodes, 0);
    append(&fs, "three", true);
    drop(fs);
    has_content(&image, "threethree");
}

/// The next checkpoint writes its nodes into that gap. A cut before its tail must not make the second fsync count, whose pages are
/// overwritten by then. fsck.f2fs may say meanwhile that checksums do not count in versions of nodes.
#[test]
fn a_checkpoint_that_is_cut_off_does_not_bridge_a_lost_node() {
    [0, checkpoint_flag::NO_CRC_RECOVERY].into_iter().for_each(cut_off_behind_a_lost_node);
}

fn cut_off_behind_a_lost_node(flag: u32) {
    let image = Image::made(64);
    let gap = lose_the_first_of_two_fsyncs(&image);
    let left = Image::copy_of(&image);
    Forge::of(&left.path).head(|head| head.flags.set(head.flags.get() | flag));
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    append(&fs, "three", false);
    fs.sync().unwrap();
    let traffic = fs.traffic();
    drop(fs);
    let [before @ .., Traffic::Flush, Traffic::Write(..), Traffic::Flush] = &traffic[..] else { panic!() };
    let disk = File::options().write(true).open(&left.path).unwrap();
    let mut fills = false;
    for one in before {
        let Traffic::Write(addr, bytes) = one else { continue };
        disk.write_all_at(bytes, u64::from(addr.0) * BLOCK as u64).unwrap();
        fills |= addr.0 == gap;
    }
    assert!(fills, "no node was written to block {gap}");
    assert_eq!(F2fs::open(&left.path).unwrap().info().fsynced_inodes, 0);
    has_content(&left, "three");
}

/// Appends the name of a file to it.
fn append(fs: &F2fs, text: &str, fsync: bool) {
    let (root, name) = (Cred::root(), Name::new(text.as_bytes()).unwrap());
    let file = match fs.lookup(&root, Ino::ROOT, name) {
        Ok(attr) => fs.open(&root, attr.ino, OpenFlags::READ_WRITE).unwrap(),
        Err(_) => fs.create(&root, Ino::ROOT, name, 0o600, OpenFlags::READ_WRITE).unwrap().1,
    };
    fs.append(&file, text.as_bytes()).unwrap();
    if fsync {
        fs.fsync(&file, false).unwrap();
    }
    fs.release(file);
}

/// Three files, of which two were fsynced since the checkpoint, each with one node. The first of these nodes is lost: its block.
fn lose_the_first_of_two_fsyncs(image: &Image) -> u32 {
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    ["one", "two", "three"].into_iter().for_each(|text| append(&fs, text, false));
    fs.sync().unwrap();
    append(&fs, "one", true);
    let is_write = |t: &Traffic| matches!(t, Traffic::Write(..));
    let Some(Traffic::Write(lost, _)) = fs.traffic().into_iter().rfind(is_write) else { panic!() };
    append(&fs, "two", true);
    drop(fs);
    let disk = File::options().write(true).open(&image.path).unwrap();
    disk.write_all_at(&[0; BLOCK], u64::from(lost.0) * BLOCK as u64).unwrap();
    lost.0
}

fn has_content(image: &Image, three: &str) {
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    for (path, content) in [("/one", "one"), ("/two", "two"), ("/three", three)] {
        assert_eq!(common::read(&fs, Path::new(path)), content.as_bytes());
    }
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
}

/// Threads append to files of their own and fsync, some new ones among them; whatever returned before a cut is there after it.
#[test]
fn what_threads_fsync_side_by_side_is_there_after_a_cut() {
    [Variant::F2fs, Variant::RangeLock].into_iter().for_each(side_by_side);
}

fn side_by_side(variant: Variant) {
    let Some(image) = Image::empty(64, &[]) else { return };
    let fs = F2fs::open_as(&image.path, variant).unwrap();
    fs.sync().unwrap();
    fs.unmount().unwrap();
    let base = blocks_of(&image.path);
    let before = fs.traffic().len();
    let appended = Appended::side_by_side(&fs);
    let traffic = fs.traffic().split_off(before);
    drop(fs);
    let mut random = Random(17);
    let cuts: u64 = std::env::var("HEDDLE_F2FS_CUTS").map_or(20, |text| text.parse().unwrap());
    let mut rolled = 0;
    for _ in 0..cuts {
        let at = random.below(traffic.len() as u64 + 1) as usize;
        let left = put_down(&cut(&base, &traffic[..at], &mut random));
        fsck_is_clean(&left.path);
        let fs = F2fs::open_as(&left.path, variant).unwrap();
        rolled += fs.info().fsynced_inodes;
        appended.is_there(&fs, before + at);
        fs.unmount().unwrap();
        fsck_is_clean(&left.path);
    }
    assert!(rolled > cuts, "{rolled} files were found again after a checkpoint");
}

/// Head and tail of a pack count together if they have one version: a damaged pack has kept a tail that a new head must not meet.
#[test]
fn a_new_head_counts_not_before_its_tail_beside_a_damaged_pack() {
    let image = Image::made(64);
    let make = |fs: &F2fs, text: &str| {
        let name = Name::new(text.as_bytes()).unwrap();
        let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o600, OpenFlags::WRITE).unwrap();
        fs.release(file);
        fs.sync().unwrap();
    };
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    make(&fs, "one");
    let older = fs.info().checkpoint_version;
    make(&fs, "two");
    let [first, second] = [fs.info().geometry.checkpoint.0, fs.info().geometry.checkpoint.0 + 512];
    drop(fs);
    let device = File::options().read(true).write(true).open(&image.path).unwrap();
    let version = |pack: u32| {
        let mut word = [0; 8];
        device.read_exact_at(&mut word, u64::from(pack) * BLOCK as u64).unwrap();
        u64::from_le_bytes(word)
    };
    let newer = if version(first) > version(second) { first } else { second };
    device.write_all_at(&[0xff; 64], u64::from(newer) * BLOCK as u64 + 512).unwrap();
    let left = Image::copy_of(&image);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    assert_eq!(fs.info().checkpoint_version, older);
    make(&fs, "three");
    let traffic = fs.traffic();
    drop(fs);
    let device = File::options().write(true).open(&left.path).unwrap();
    let mut heads = 0;
    for one in traffic {
        let Traffic::Write(addr, bytes) = one else { continue };
        if addr.0 > newer && bytes[..8] == version(newer).to_le_bytes() {
            break; // The tail.
        }
        device.write_all_at(&bytes, u64::from(addr.0) * BLOCK as u64).unwrap();
        heads += usize::from(addr.0 == newer);
    }
    assert_eq!((heads, F2fs::open(&left.path).unwrap().info().checkpoint_version), (1, older));
}

/// One flush stands before the tail, for all that the checkpoint names, and one after it.
#[test]
fn a_checkpoint_flushes_the_device_twice() {
    let image = Image::made(64);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let (_, file) =
        fs.create(&Cred::root(), Ino::ROOT, Name::new(b"file").unwrap(), 0o600, OpenFlags::WRITE).unwrap();
    fs.append(&file, &[5; 100_000]).unwrap();
    fs.release(file);
    let before = fs.traffic().len();
    fs.sync().unwrap();
    let flushes: Vec<usize> = fs.traffic()[before..]
        .iter()
        .enumerate()
        .filter_map(|(n, one)| matches!(one, Traffic::Flush).then_some(n))
        .collect();
    let end = fs.traffic().len() - before;
    assert_eq!(flushes, [end - 3, end - 1], "the last write is the tail");
}
