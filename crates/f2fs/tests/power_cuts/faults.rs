//! The device fails, once or from some call on: nothing panics, whoever asked for something durable is told, nothing is written down that
//! a call left half done, and the next mount has all that was acknowledged.
//!
//! `HEDDLE_F2FS_FAULTS`: devices that fail, of each kind.

use super::rig::{Appended, Random, blocks_of, cut, may_be, play, put_down};
use crate::common::{Image, fsck_is_clean, open_as};
use heddle_f2fs::{F2fs, Variant};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{Cred, Error, FileSystem, Ino, Name, OpenFlags};

/// Did the device fail half-way through a call?
fn one_failure(image: &Image, seed: u64, served: u64, failing: u64) -> bool {
    let mut random = Random(seed);
    let base = blocks_of(&image.path);
    let copy = put_down(&base);
    // By another one: the first call has to read what it needs.
    let start = Tree::of(&F2fs::open(&copy.path).unwrap()).unwrap();
    let variant = Variant::ALL[(seed / 4 + seed) as usize % 4];
    let fs = open_as(&copy.path, variant).unwrap();
    fs.set_discards(true);
    fs.set_faults(|faults| (faults.served, faults.failing) = (served, failing));
    let moments = play(&fs, &mut random, 80);
    let failed = fs.has_failed();
    let name = Name::new(b"after").unwrap();
    if failed {
        assert!(matches!(fs.sync(), Err(Error::Io(_))), "seed {seed}: what was left half done is durable");
        let made = fs.create(&Cred::root(), Ino::ROOT, name, 0o600, OpenFlags::WRITE);
        assert!(matches!(made, Err(Error::Io(_))), "seed {seed}: {made:?}");
        // What is there can still be read.
        Tree::of(&fs).unwrap();
        assert!(fs.unmount().is_err());
    }
    let traffic = fs.traffic();
    drop(fs);
    let left = put_down(&cut(&base, &traffic, &mut random));
    fsck_is_clean(&left.path);
    if variant.has_node_log() {
        std::fs::copy(copy.path.with_extension("nvm"), left.path.with_extension("nvm")).unwrap();
    }
    let fs = open_as(&left.path, variant).unwrap_or_else(|e| panic!("seed {seed}, {served}: {e}"));
    let tree = Tree::of(&fs).unwrap();
    let may_be = if moments.is_empty() { vec![start] } else { may_be(&start, &moments, traffic.len()) };
    let differs: Vec<String> = may_be.iter().filter_map(|wanted| tree.difference(wanted)).collect();
    let what = format!("seed {seed}, {failing} failures after {served} calls of {}", traffic.len());
    assert!(differs.len() < may_be.len(), "{what}: {}", differs[0]);
    let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o600, OpenFlags::WRITE).unwrap();
    fs.release(file);
    fs.unmount().unwrap();
    fsck_is_clean(&left.path);
    failed
}

#[test]
fn a_device_that_fails_loses_nothing_that_was_acknowledged() {
    let Some(image) = Image::empty(64, &[]) else { return };
    // Something is there, and has to be read first.
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    play(&fs, &mut Random(7), 80);
    fs.unmount().unwrap();
    drop(fs);
    let count = std::env::var("HEDDLE_F2FS_FAULTS").map_or(40, |text| text.parse().unwrap());
    let mut random = Random(99);
    let mut failed = 0;
    for n in 0..count {
        let (served, failing) =
            (random.below([10, 300][n as usize / 4 % 2]), [1, 1, 3, u64::MAX][n as usize % 4]);
        failed += u64::from(one_failure(&image, n, served, failing));
    }
    assert!(failed > count / 4, "{failed} of {count} devices failed half-way through a call");
}

/// The device reports a lost block to one of the flushes that run at once, and a lost node hides those behind it.
#[test]
fn an_fsync_that_returned_counts_though_one_beside_it_failed() {
    let Some(image) = Image::empty(64, &[]) else { return };
    let (base, mut random) = (blocks_of(&image.path), Random(5));
    let mut failed = 0;
    for served in 0..80 {
        let copy = put_down(&base);
        let fs = F2fs::open_for_writing(&copy.path).unwrap();
        fs.sync().unwrap();
        fs.set_faults(|faults| (faults.served, faults.failing) = (served, 1));
        let appended = Appended::until_a_failure(&fs, 8);
        failed += u64::from(fs.has_failed());
        let traffic = fs.traffic();
        drop(fs);
        let left = put_down(&cut(&base, &traffic, &mut random));
        let fs = F2fs::open_for_writing(&left.path).unwrap_or_else(|e| panic!("{served}: {e}"));
        appended.is_there(&fs, traffic.len());
    }
    assert!(failed > 40, "{failed} devices failed half-way through a call");
}
