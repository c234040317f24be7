//! Random calls, remounts among them, give what the model gives. `HEDDLE_MODEL_CASES` sequences a variant.

mod common;

use common::{Disk, Short, each_variant, env, sound};
use heddle_nvmfs::{NvmFs, Variant, Volume};
use heddle_vfs::testkit::{Calls, Differential, agrees_with_model};
use heddle_vfs::{Cred, FileSystem, Ino, RangeOp, SetAttr};
use std::cell::RefCell;

/// What is mounted, and how often it was.
struct Mounted {
    disk: Disk,
    volume: Volume,
    mounts: u64,
}

fn follows_the_model(variant: Variant, calls: Calls) {
    let mounted: RefCell<Option<Mounted>> = RefCell::new(None);
    let make = || -> NvmFs {
        let disk = Disk::new(variant, 16 << 20);
        let volume = disk.mount();
        let fs = volume.fs();
        // The model's root belongs to root, whoever runs the tests.
        let owner = SetAttr { uid: Some(0), gid: Some(0), ..SetAttr::default() };
        fs.setattr(&Cred::root(), Ino::ROOT, None, &owner).unwrap();
        mounted.replace(Some(Mounted { disk, volume, mounts: 1 }));
        fs
    };
    let remount = |fs: NvmFs| -> NvmFs {
        drop(fs);
        let Some(Mounted { disk, volume, mounts }) = mounted.take() else { unreachable!("it was made") };
        // As after a power cut, and as after a clean end, by turns.
        if mounts % 2 == 1 {
            volume.abandon()
        } else {
            volume.unmount()
        }
        sound(disk.region()).unwrap();
        let volume = disk.mount();
        let fs = volume.fs();
        mounted.replace(Some(Mounted { disk, volume, mounts: mounts + 1 }));
        fs
    };
    let how = Differential { calls, cases: env("HEDDLE_MODEL_CASES", 60) as u32, steps_max: 80 };
    agrees_with_model(how, make, Some(&remount));
}

#[test]
fn nova_does_what_the_model_does() {
    follows_the_model(Variant::Nova, Calls::ALL);
}

#[test]
fn nova_interval_does_what_the_model_does() {
    follows_the_model(Variant::NovaInterval, Calls::ALL);
}

#[test]
fn nova_array_does_what_the_model_does() {
    follows_the_model(Variant::NovaArray, Calls::ALL);
}

#[test]
fn nova_tree_does_what_the_model_does() {
    follows_the_model(Variant::NovaTree, Calls::ALL);
}

#[test]
fn heddle_does_what_the_model_does() {
    follows_the_model(Variant::Heddle, Calls::ALL);
}

#[test]
fn contents_follow_the_model_through_every_kind_of_write() {
    let data = Calls::APPEND
        .with(Calls::TRUNCATE)
        .with(Calls::SHIFT)
        .with(Calls::COPY)
        .with(Calls::ALLOCATE)
        .with(Calls::PUNCH)
        .with(Calls::ZERO);
    for variant in Variant::ALL {
        follows_the_model(variant, data.with(Calls::SEEK));
    }
}

/// A punch replaced the page that the last write had made, and log cleaning dropped the record that alone told the size.
#[test]
fn crash_the_size_went_with_the_write_that_a_punch_replaced() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 << 20);
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "a");
        fs.write(&handle, 0, b"x").unwrap();
        fs.release(handle);
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.open_file(Ino::ROOT, "a");
        fs.fallocate(&handle, RangeOp::Punch, 0, 1).unwrap();
        fs.release(handle);
        drop(fs);
        volume.abandon();
        assert_eq!(disk.mount().fs().find(Ino::ROOT, "a").unwrap().size_bytes, 1, "{variant:?}");
    });
}
