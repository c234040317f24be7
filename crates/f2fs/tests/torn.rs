//! Overlapping writes and reads are atomic to each other: two writers, two readers, three shapes, all systems, with checkpoints
//! beside them.
//!
//! `HEDDLE_TORN_READS` reads a shape, `HEDDLE_TORN_READS_LARGEST` of the largest.

mod common;

use common::{Image, fsck_is_clean, open_as};
use heddle_f2fs::Variant;
use heddle_vfs::FileSystem;
use heddle_vfs::testkit::torn::{SHAPES, TornConfig, check};
use heddle_vfs::testkit::{FsFile, PositionalIo};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

fn reads_and_writes_are_whole(variant: Variant) {
    // Through a file for direct I/O whole pages go to the device at once, and the rest does not.
    for (shape, how) in SHAPES.into_iter().flat_map(|shape| [(shape, 0), (shape, libc::O_DIRECT)]) {
        let image = Image::made(128);
        let fs = open_as(&image.path, variant).unwrap();
        let reads = if shape == SHAPES[2] { "HEDDLE_TORN_READS_LARGEST" } else { "HEDDLE_TORN_READS" };
        let reads = std::env::var(reads).map_or(1000, |text| text.parse().unwrap());
        let wanted = TornConfig { reads, limit: Duration::from_secs(3600), ..TornConfig::new(shape) };
        let done = AtomicBool::new(false);
        let report = std::thread::scope(|scope| {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    fs.sync().unwrap();
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            let open = || -> io::Result<FsFile<'_>> {
                FsFile::open(&fs, "/shared", libc::O_RDWR | libc::O_CREAT | how)
            };
            let report = check(&wanted, &|| Ok(Box::new(open()?) as Box<dyn PositionalIo>));
            done.store(true, Relaxed);
            report.unwrap()
        });
        println!("{} {shape:?}: {report:?}", variant.name());
        assert!(report.is_clean(), "{} {shape:?}: {report:?}", variant.name());
        assert!(
            report.reads >= wanted.reads && report.writes > 0,
            "{shape:?}: too little was tried: {report:?}"
        );
        fs.unmount().unwrap();
        drop(fs);
        if Image::has_tools() {
            fsck_is_clean(&image.path);
        }
    }
}

#[test]
fn f2fs_never_shows_half_of_a_write() {
    reads_and_writes_are_whole(Variant::F2fs);
}

#[test]
fn f2fs_rl_never_shows_half_of_a_write() {
    reads_and_writes_are_whole(Variant::RangeLock);
}

#[test]
fn f2fs_nl_never_shows_half_of_a_write() {
    reads_and_writes_are_whole(Variant::NodeLog);
}

#[test]
fn f2fs_integrated_never_shows_half_of_a_write() {
    reads_and_writes_are_whole(Variant::Integrated);
}
