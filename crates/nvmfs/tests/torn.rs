//! Overlapping writes and reads are atomic to each other: two writers, two readers, three shapes, every variant.
//!
//! `HEDDLE_TORN_READS` reads a shape, `HEDDLE_TORN_READS_LARGEST` of the largest.

mod common;

use common::{env, fresh};
use heddle_nvmfs::{NvmFs, Variant};
use heddle_vfs::testkit::torn::{SHAPES, Shape, TornConfig, TornReport, check};
use heddle_vfs::testkit::{FsFile, PositionalIo};
use std::io;
use std::time::Duration;

fn config(shape: Shape) -> TornConfig {
    let reads = if shape == SHAPES[2] { "HEDDLE_TORN_READS_LARGEST" } else { "HEDDLE_TORN_READS" };
    TornConfig { reads: env(reads, 10_000), limit: Duration::from_secs(3600), ..TornConfig::new(shape) }
}

fn open<'a>(fs: &'a NvmFs) -> io::Result<FsFile<'a>> {
    FsFile::open(fs, "/shared", libc::O_RDWR | libc::O_CREAT)
}

fn reads_and_writes_are_whole(variant: Variant) {
    for shape in SHAPES {
        let volume = fresh(variant, 64 << 20);
        let fs = volume.fs();
        let wanted = config(shape);
        let report = check(&wanted, &|| Ok(Box::new(open(&fs)?))).unwrap();
        println!("{} {shape:?}: {report:?}", variant.name());
        assert!(report.is_clean(), "{} {shape:?}: {report:?}", variant.name());
        assert!(
            report.reads >= wanted.reads && report.writes > 0,
            "{shape:?}: too little was tried: {report:?}"
        );
        volume.unmount();
    }
}

#[test]
fn nova_never_shows_half_of_a_write() {
    reads_and_writes_are_whole(Variant::Nova);
}

#[test]
fn nova_interval_never_shows_half_of_a_write() {
    reads_and_writes_are_whole(Variant::NovaInterval);
}

#[test]
fn nova_array_never_shows_half_of_a_write() {
    reads_and_writes_are_whole(Variant::NovaArray);
}

#[test]
fn nova_tree_never_shows_half_of_a_write() {
    reads_and_writes_are_whole(Variant::NovaTree);
}

#[test]
fn heddle_never_shows_half_of_a_write() {
    reads_and_writes_are_whole(Variant::Heddle);
}

/// Writes in two calls what the checker asks for in one, and lets others run in between.
struct InTwo<T>(T);

impl<T: PositionalIo> PositionalIo for InTwo<T> {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        self.0.read_at(buf, offset)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<usize> {
        let half = buf.len() / 2;
        let first = self.0.write_at(&buf[..half], offset)?;
        std::thread::yield_now();
        Ok(first + self.0.write_at(&buf[half..], offset + half as u64)?)
    }
}

#[test]
fn a_write_made_in_two_calls_is_caught() {
    for variant in Variant::ALL {
        for shape in SHAPES {
            let volume = fresh(variant, 64 << 20);
            let fs = volume.fs();
            let wanted = TornConfig { reads: 1000, ..TornConfig::new(shape) };
            let caught = || check(&wanted, &|| Ok(Box::new(InTwo(open(&fs)?)))).unwrap().torn > 0;
            assert!((0..50).any(|_| caught()), "{} {shape:?}: 50,000 reads and none torn", variant.name());
        }
    }
}

#[test]
fn what_tmpfs_does_is_printed_beside_it() {
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    let path = place.path().join("shared");
    for shape in SHAPES {
        let open = || {
            let file =
                std::fs::File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
            Ok(Box::new(file) as Box<dyn PositionalIo>)
        };
        let report: TornReport = check(&config(shape), &open).unwrap();
        println!("tmpfs {shape:?}: {report:?}");
        assert!(report.reads > 0);
    }
}
