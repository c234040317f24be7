//! The node log: what was fsynced or synced is there after any cut, of device and NVM at one instant; the device alone is clean at every
//! instant; whatever the log holds, it is taken in as it counts, or refused.
//!
//! `HEDDLE_F2FS_CUTS`: cuts of each of the lists.

mod common;
#[path = "node_log/damage.rs"]
mod damage;
#[path = "node_log/machine.rs"]
mod machine;
#[path = "node_log/pairing.rs"]
mod pairing;
#[path = "power_cuts/rig.rs"]
mod rig;

use common::{Image, fsck_is_clean};
use heddle_f2fs::{F2fs, Traffic, Variant};
use heddle_pmem::{CrashPoint, Region};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{Cred, Error, FileSystem, Ino, OpenFlags, RangeOp, SetAttr};
use machine::{Watch, append_durably, fresh, log_in, made, name, open};
use rig::{
    Appended, Random, blocks_of, can_be_used_emptied_and_mounted, cut, instant, may_be, play, put_down,
    replaced, shifted,
};
use std::path::Path;
use std::sync::{Arc, Mutex};

const BOTH: [Variant; 2] = [Variant::NodeLog, Variant::Integrated];

/// Files that were found in the log.
fn check(left: &Image, nvm: &[u8], variant: Variant, may_be: &[Tree], what: &str) -> u64 {
    // L1: the device alone.
    fsck_is_clean(&left.path);
    let (fs, nvm) = open(&left.path, variant, nvm);
    let fs = fs.unwrap_or_else(|error| panic!("{what}: {error}"));
    let tree = Tree::of(&fs).unwrap_or_else(|error| panic!("{what}: {error}"));
    let differs: Vec<String> = may_be.iter().filter_map(|wanted| tree.difference(wanted)).collect();
    assert!(differs.len() < may_be.len(), "{what}: {}", differs[0]);
    let found = fs.info().fsynced_inodes;
    can_be_used_emptied_and_mounted(fs, &left.path, || {
        open(&left.path, variant, &nvm.crash_point().durable_image()).0.unwrap()
    });
    found
}

/// Files that were found in the log, and cuts that were tried while a log was taken in.
fn cuts_are_survived(kind: &[&str], seed: u64, cuts: u64) -> (u64, u64) {
    let variant = BOTH[seed as usize % 2];
    let Some(image) = Image::empty(64, kind) else { return (1, 1) };
    let base = blocks_of(&image.path);
    let mut random = Random(seed);
    let (fs, nvm) = open(&image.path, variant, &fresh());
    let fs = fs.unwrap();
    let watch = Watch::of(&fs, &nvm, seed);
    let start = Tree::of(&fs).unwrap();
    let mut moments = play(&fs, &mut random, 60);
    for _ in 0..2 {
        fs.fold_now().unwrap();
        moments.extend(play(&fs, &mut random, 40));
    }
    assert!(!fs.has_failed() && moments.iter().all(|moment| moment.returned));
    let traffic = fs.traffic();
    nvm.stop_watching();
    drop(fs);
    let (mut found, mut nested) = (0, 0);
    for _ in 0..cuts {
        let (at, nvm) = watch.cut(&traffic, &mut random).expect("the log was used");
        let may_be = may_be(&start, &moments, at);
        let what = format!("{}, seed {seed}, cut {at} of {}", variant.name(), traffic.len());
        let blocks = cut(&base, &traffic[..at], &mut random);
        // Cut once more while the log is taken in.
        let left = put_down(&blocks);
        let (region, simulator) = Region::simulated_from(&nvm);
        let fences: Arc<Mutex<Vec<[Vec<u8>; 2]>>> = Arc::default();
        let (seen, mut chance) = (Arc::clone(&fences), Random(at as u64));
        simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
            seen.lock().unwrap().push([point.image(|_| chance.below(2) == 0), point.full_image()]);
        }));
        let fs = F2fs::open_with_log(&left.path, variant, log_in(region, &nvm, false));
        let taken_in = fs.unwrap_or_else(|error| panic!("{what}: {error}")).traffic();
        simulator.stop_watching();
        if let [first, second, .., last] = &fences.lock().unwrap()[..] {
            nested += 1;
            // The head says which checkpoint is to come before its tail is written, and that no record counts when that is durable.
            let is_change = |t: &Traffic| matches!(t, Traffic::Write(addr, _) if addr.0 > 1);
            let tail = taken_in.iter().rposition(is_change).expect("a fold writes a checkpoint");
            let done = tail + 1 + taken_in[tail..].iter().position(|t| matches!(t, Traffic::Flush)).unwrap();
            for (at, nvm) in [
                (instant(&taken_in[..tail], &mut random), &nvm),
                (tail, &first[0]),
                (tail, &second[0]),
                (tail + 1, &second[1]),
                (done, &second[1]),
                (done, &last[0]),
                // The mark goes, from one copy of the superblock after the other.
                (done + random.below((taken_in.len() - done) as u64 + 1) as usize, &last[1]),
                (taken_in.len(), &last[1]),
            ] {
                let left = put_down(&cut(&blocks, &taken_in[..at], &mut random));
                check(&left, nvm, variant, &may_be, &format!("{what}, then cut {at} of {}", taken_in.len()));
            }
        }
        found += check(&put_down(&blocks), &nvm, variant, &may_be, &what);
    }
    (found, nested)
}

#[test]
fn a_power_cut_leaves_one_instant_with_all_that_was_synced() {
    let cuts = std::env::var("HEDDLE_F2FS_CUTS").map_or(6, |text| text.parse().unwrap());
    let phone = ["-O", "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum"];
    let (mut found, mut nested) = (0, 0);
    for seed in 1..=4 {
        for (kind, seed) in [(&[][..], seed), (&phone, 100 + seed)] {
            let (f, n) = cuts_are_survived(kind, seed, cuts);
            (found, nested) = (found + f, nested + n);
        }
    }
    assert!(found > 0 && nested > 0, "{found} files found in logs, {nested} logs taken in");
}

fn is_done_or_not(change: impl Fn(&F2fs) -> (usize, [Tree; 2])) {
    for variant in BOTH {
        let Some(image) = Image::empty(64, &[]) else { return };
        let (base, mut random, mut tried) = (blocks_of(&image.path), Random(1), 0);
        let (fs, nvm) = open(&image.path, variant, &fresh());
        let fs = fs.unwrap();
        let watch = Watch::of(&fs, &nvm, 1);
        let (begin, states) = change(&fs);
        let traffic = fs.traffic();
        nvm.stop_watching();
        drop(fs);
        for _ in 0..40 {
            let (at, nvm) = watch.cut(&traffic, &mut random).unwrap();
            if at < begin {
                continue;
            }
            let left = put_down(&cut(&base, &traffic[..at], &mut random));
            check(&left, &nvm, variant, &states, &format!("{variant:?}, cut {at} of {}", traffic.len()));
            tried += 1;
        }
        assert!(tried > 4, "{variant:?}: {tried} cuts");
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

/// Threads append to files of their own and fsync, some new ones among them; whatever returned before a cut is there after it.
#[test]
fn what_threads_fsync_side_by_side_is_there_after_a_cut() {
    BOTH.into_iter().for_each(side_by_side);
}

fn side_by_side(variant: Variant) {
    let Some(image) = Image::empty(64, &[]) else { return };
    let base = blocks_of(&image.path);
    let (fs, nvm) = open(&image.path, variant, &fresh());
    let fs = fs.unwrap();
    let watch = Watch::of(&fs, &nvm, 5);
    let appended = Appended::side_by_side(&fs);
    let traffic = fs.traffic();
    nvm.stop_watching();
    drop(fs);
    let mut random = Random(17);
    let cuts: u64 = std::env::var("HEDDLE_F2FS_CUTS").map_or(20, |text| text.parse().unwrap());
    let mut found = 0;
    for _ in 0..cuts {
        let (at, nvm) = watch.cut(&traffic, &mut random).unwrap();
        let left = put_down(&cut(&base, &traffic[..at], &mut random));
        fsck_is_clean(&left.path);
        let fs = open(&left.path, variant, &nvm).0.unwrap();
        found += fs.info().fsynced_inodes;
        appended.is_there(&fs, at);
        fs.unmount().unwrap();
        fsck_is_clean(&left.path);
    }
    assert!(found > cuts, "{found} files were found in logs");
}

/// What an fsync writes is some hundred bytes, and nothing but its pages goes to the device.
#[test]
fn an_fsync_writes_its_pages_and_a_few_lines() {
    let image = Image::made(64);
    let (fs, nvm) = open(&image.path, Variant::NodeLog, &fresh());
    let fs = fs.unwrap();
    append_durably(&fs, "file", &[1; 4096]);
    let (writes, fences) = (fs.traffic().len(), nvm.fences());
    let before = nvm.crash_point().full_image();
    for _ in 0..10 {
        append_durably(&fs, "file", &[2; 4096]);
    }
    let traffic = &fs.traffic()[writes..];
    let is_page = |t: &Traffic| matches!(t, Traffic::Write(_, bytes) if bytes.len() == 4096 && bytes[0] == 2);
    assert_eq!(traffic.iter().filter(|t| is_page(t)).count(), 10);
    assert_eq!(traffic.iter().filter(|t| matches!(t, Traffic::Flush)).count(), 10);
    assert_eq!(traffic.len(), 20, "{traffic:?}");
    assert_eq!(nvm.fences() - fences, 10);
    let after = nvm.crash_point().full_image();
    let lines = before.chunks(64).zip(after.chunks(64)).filter(|(before, after)| before != after).count();
    // One a record, or two if the clock has ticked; every eighth is a whole one.
    assert!((10..=30).contains(&lines), "{lines} lines");
    fs.unmount().unwrap();
}

/// A log that is full is folded by who finds it full, and a mount that finds nothing in a log changes nothing.
#[test]
fn a_full_log_is_folded_and_goes_on() {
    let image = Image::made(64);
    let (fs, nvm) = open(&image.path, Variant::Integrated, &fresh());
    let fs = fs.unwrap();
    let first = fs.info().checkpoint_version;
    let mut wanted = Vec::new();
    for n in 0..20_000_u64 {
        let at = append_durably(&fs, &format!("file {}", n % 7), &n.to_le_bytes());
        assert_eq!(at, n / 7 * 8);
        wanted.push(n);
    }
    let folds = fs.info().checkpoint_version - first;
    assert!((2..30).contains(&folds), "{folds} folds");
    let nvm = nvm.crash_point().durable_image();
    drop(fs);
    let (fs, nvm) = open(&image.path, Variant::Integrated, &nvm);
    let fs = fs.unwrap();
    for file in 0..7 {
        let all: Vec<u8> = wanted.iter().filter(|n| *n % 7 == file).flat_map(|n| n.to_le_bytes()).collect();
        assert_eq!(common::read(&fs, Path::new(&format!("/file {file}"))), all);
    }
    fs.unmount().unwrap();
    let (version, nvm) = (fs.info().checkpoint_version, nvm.crash_point().durable_image());
    drop(fs);
    let (fs, again) = open(&image.path, Variant::NodeLog, &nvm);
    let fs = fs.unwrap();
    fs.unmount().unwrap();
    assert_eq!((fs.info().checkpoint_version, again.stores()), (version, 0));
}

/// What was cut off and written again, with nodes that went and came: the log says of numbers that they are free.
#[test]
fn nodes_that_went_are_gone_after_a_cut() {
    let Some(image) = Image::empty(512, &[]) else { return };
    let sized = |size| SetAttr { size_bytes: Some(size), ..SetAttr::default() };
    let far = 873 * 4096 + 3 * 1018 * 4096;
    for synced in [false, true] {
        let (fs, nvm) = open(&image.path, Variant::NodeLog, &fresh());
        let fs = fs.unwrap();
        let file = made(&fs, "file");
        fs.write(&file, far, &[1; 9_000]).unwrap();
        fs.fsync(&file, false).unwrap();
        if synced {
            fs.fold_now().unwrap();
        }
        let free = fs.statfs().unwrap();
        fs.setattr(&Cred::root(), file.ino, None, &sized(4096)).unwrap();
        fs.fsync(&file, false).unwrap();
        fs.write(&file, far, &[2; 5_000]).unwrap();
        fs.fsync(&file, false).unwrap();
        let now = fs.statfs().unwrap();
        assert_eq!(now.blocks_free, free.blocks_free + 1, "a page fewer");
        let nvm = nvm.crash_point().durable_image();
        fs.release(file);
        drop(fs);
        fsck_is_clean(&image.path);
        let fs = open(&image.path, Variant::NodeLog, &nvm).0.unwrap();
        assert_eq!(fs.info().fsynced_inodes, 1);
        assert_eq!(fs.statfs().unwrap(), now);
        let mut wanted = vec![0; far as usize];
        wanted.resize(far as usize + 5_000, 2);
        assert!(common::read(&fs, Path::new("/file")) == wanted);
        fs.unlink(&Cred::root(), Ino::ROOT, name("file")).unwrap();
        fs.unmount().unwrap();
        drop(fs);
        fsck_is_clean(&image.path);
    }
}

/// Until a fold nothing is written over that the base consists of, however many log checkpoints there were: the image without its log is
/// the base.
#[test]
fn the_base_stays_until_a_fold() {
    const LARGE: usize = 4 << 20;
    // Of 64 MiB four copies more leave fewer segments than are kept free, and a fold comes first.
    let image = Image::made(96);
    let (fs, nvm) = open(&image.path, Variant::NodeLog, &fresh());
    let fs = fs.unwrap();
    let file = made(&fs, "file");
    fs.write(&file, 0, &vec![1; LARGE]).unwrap();
    fs.fold_now().unwrap();
    for fill in 2..6 {
        fs.write(&file, 0, &vec![fill; LARGE]).unwrap();
        fs.sync().unwrap();
    }
    fs.release(file);
    drop(fs);
    let content = |fs: &F2fs| common::read(fs, Path::new("/file"));
    assert!(content(&F2fs::open(&image.path).unwrap()) == vec![1; LARGE]);
    let fs = open(&image.path, Variant::NodeLog, &nvm.crash_point().durable_image()).0.unwrap();
    assert!(content(&fs) == vec![5; LARGE]);
}

/// What was fsynced without a log is in the image's base before the log has anything.
#[test]
fn what_was_fsynced_without_a_log_comes_first() {
    let Some(image) = Image::empty(64, &[]) else { return };
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    append_durably(&fs, "file", b"one");
    append_durably(&fs, "file", b"two");
    drop(fs);
    let (fs, nvm) = open(&image.path, Variant::NodeLog, &fresh());
    let fs = fs.unwrap();
    assert_eq!(fs.info().fsynced_inodes, 1);
    append_durably(&fs, "file", b"three");
    drop(fs);
    fsck_is_clean(&image.path);
    assert_eq!(common::read(&F2fs::open(&image.path).unwrap(), Path::new("/file")), b"onetwo");
    let fs = open(&image.path, Variant::NodeLog, &nvm.crash_point().durable_image()).0.unwrap();
    assert_eq!(common::read(&fs, Path::new("/file")), b"onetwothree");
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
}

/// What is deleted, and not durably, is still there after a cut, and with it what was written in its place.
#[test]
fn space_that_came_free_is_not_promised_twice() {
    let Some(image) = Image::empty(64, &[]) else { return };
    let (fs, nvm) = open(&image.path, Variant::NodeLog, &fresh());
    let fs = fs.unwrap();
    let available = fs.statfs().unwrap().blocks_available;
    let large = made(&fs, "large");
    // Space without blocks: it is only counted.
    let whole = RangeOp::Allocate { keep_size: false };
    fs.fallocate(&large, whole, 0, available * 9 / 10 * 4096).unwrap();
    fs.sync().unwrap();
    fs.release(large);
    fs.unlink(&Cred::root(), Ino::ROOT, name("large")).unwrap();
    append_durably(&fs, "file", &vec![1; available as usize / 2 * 4096]);
    let nvm = nvm.crash_point().durable_image();
    drop(fs);
    let fs = open(&image.path, Variant::NodeLog, &nvm).0.unwrap();
    assert_eq!(common::read(&fs, Path::new("/file")).len(), available as usize / 2 * 4096);
    assert_eq!(fs.lookup(&Cred::root(), Ino::ROOT, name("large")), Err(Error::NotFound));
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
}

/// Of a full image, whose space one large file has, or many small ones, everything comes back.
#[test]
fn a_full_image_comes_back() {
    for small in [false, true] {
        let image = Image::made(64);
        let (fs, nvm) = open(&image.path, Variant::NodeLog, &vec![0; 8 << 20]);
        let fs = fs.unwrap();
        let root = Cred::root();
        let mut files = 0_u64;
        let full = loop {
            let text = format!("file {}", if small { files } else { 0 });
            let made = fs.create(&root, Ino::ROOT, name(&text), 0o600, OpenFlags::READ_WRITE);
            let file = match made {
                Ok((_, file)) => file,
                Err(Error::Exists) => opened_again(&fs, &text),
                Err(error) => break error,
            };
            let done = fs.append(&file, &[files as u8 | 1; 20_000]);
            let done =
                done.and_then(|_| if files.is_multiple_of(5) { fs.fsync(&file, false) } else { Ok(()) });
            fs.release(file);
            if let Err(error) = done {
                break error;
            }
            files += 1;
        };
        assert_eq!(full, Error::NoSpace);
        fs.sync().unwrap();
        let (tree, space) = (Tree::of(&fs).unwrap(), fs.statfs().unwrap());
        assert!(files > 300 && space.blocks_free < 100, "{files} files, {} blocks", space.blocks_free);
        drop(fs);
        let fs = open(&image.path, Variant::NodeLog, &nvm.crash_point().durable_image()).0.unwrap();
        assert_eq!(Tree::of(&fs).unwrap().difference(&tree), None);
        assert_eq!(fs.statfs().unwrap(), space);
        fs.unmount().unwrap();
        drop(fs);
        if Image::has_tools() {
            fsck_is_clean(&image.path);
        }
    }
}

fn opened_again(fs: &F2fs, text: &str) -> heddle_vfs::Handle {
    let root = Cred::root();
    let attr = fs.lookup(&root, Ino::ROOT, name(text)).unwrap();
    fs.open(&root, attr.ino, OpenFlags::READ_WRITE).unwrap()
}

/// A file that the base has without a name, and that got one in a log checkpoint, is no orphan; one that lost its name in a log checkpoint
/// is.
#[test]
fn names_that_came_and_went_with_a_log_checkpoint_count() {
    let Some(image) = Image::empty(64, &[]) else { return };
    let root = Cred::root();
    let (fs, nvm) = open(&image.path, Variant::NodeLog, &fresh());
    let fs = fs.unwrap();
    let (attr, file) = fs.tmpfile(&root, Ino::ROOT, 0o600, OpenFlags::READ_WRITE, true).unwrap();
    fs.write(&file, 0, &[3; 50_000]).unwrap();
    let gone = made(&fs, "gone");
    fs.write(&gone, 0, &[4; 50_000]).unwrap();
    fs.fold_now().unwrap();
    assert_eq!(fs.info().orphans, 1);
    let free = fs.statfs().unwrap().blocks_free;
    fs.link(&root, attr.ino, Ino::ROOT, name("named")).unwrap();
    fs.unlink(&root, Ino::ROOT, name("gone")).unwrap();
    fs.sync().unwrap();
    let gone_blocks = fs.getattr(gone.ino).unwrap().blocks_512 / 8 + 1;
    let nvm = nvm.crash_point().durable_image();
    drop(fs);
    fsck_is_clean(&image.path);
    let fs = open(&image.path, Variant::NodeLog, &nvm).0.unwrap();
    assert_eq!(common::read(&fs, Path::new("/named")), vec![3; 50_000]);
    assert_eq!(fs.lookup(&root, Ino::ROOT, name("gone")), Err(Error::NotFound));
    assert_eq!((fs.info().orphans, fs.statfs().unwrap().blocks_free), (0, free + gone_blocks));
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
}

/// Old records were applied to nodes that the checkpoint had written before it failed.
#[test]
fn after_a_failed_fold_files_read_as_they_were_last_written() {
    const MANY: u64 = 1 << 40;
    let image = Image::made(192);
    let (fs, _nvm) = open(&image.path, Variant::NodeLog, &fresh());
    let fs = fs.unwrap();
    // More inodes than the nodes that are kept in memory.
    let others: Vec<Ino> = (0..5000).map(|n| made(&fs, &n.to_string()).ino).collect();
    let change = || {
        append_durably(&fs, "file", &[1; 5000]);
        fs.append(&made(&fs, "file"), &[2; 5000]).unwrap();
    };
    let mut calls = MANY;
    for _ in 0..2 {
        fs.fold_now().unwrap();
        change();
        fs.set_faults(|faults| faults.served = MANY);
        fs.fold_now().unwrap();
        fs.set_faults(|faults| calls = MANY - std::mem::take(&mut faults.served));
    }
    change();
    let wanted = common::read(&fs, Path::new("/file"));
    // One of the last: nodes come first.
    fs.set_faults(|faults| (faults.served, faults.failing) = (calls - 3, 1));
    assert!(fs.fold_now().is_err());
    assert!(others.into_iter().all(|ino| fs.getattr(ino).is_ok()));
    assert!(wanted.len() == 30_000 && common::read(&fs, Path::new("/file")) == wanted);
}
