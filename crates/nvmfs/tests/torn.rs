//! Overlapping writes and reads are atomic to each other: two writers, two readers, three shapes, every variant.
//!
//! `HEDDLE_TORN_READS` reads a shape, `HEDDLE_TORN_READS_LARGEST` of the largest, half of them under each durability or all under
//! `HEDDLE_DURABILITY`.

mod common;

use common::{Disk, by_durability, env, fresh};
use heddle_nvmfs::{NvmFs, Variant};
use heddle_pmem::Durability;
use heddle_vfs::testkit::torn::{SHAPES, Shape, TornConfig, TornReport, check};
use heddle_vfs::testkit::{FsFile, PositionalIo};
use std::io;
use std::path::Path;
use std::time::Duration;

fn reads_of(shape: Shape) -> u64 {
    env(if shape == SHAPES[2] { "HEDDLE_TORN_READS_LARGEST" } else { "HEDDLE_TORN_READS" }, 1000)
}

fn config(shape: Shape, reads: u64) -> TornConfig {
    TornConfig { reads, limit: Duration::from_secs(3600), ..TornConfig::new(shape) }
}

fn open<'a>(fs: &'a NvmFs) -> io::Result<FsFile<'a>> {
    FsFile::open(fs, "/shared", libc::O_RDWR | libc::O_CREAT)
}

fn reads_and_writes_are_whole(variant: Variant) {
    for shape in SHAPES {
        by_durability(reads_of(shape), |durability, reads| {
            these_are_whole(variant, durability, &config(shape, reads));
        });
    }
}

fn these_are_whole(variant: Variant, durability: Durability, wanted: &TornConfig) {
    let volume = Disk::promising(variant, 64 << 20, durability).mount();
    let fs = volume.fs();
    let report = check(wanted, &|| Ok(Box::new(open(&fs)?))).unwrap();
    let what = format!("{} {durability} {:?}: {report:?}", variant.name(), wanted.shape);
    println!("{what}");
    assert!(report.is_clean(), "{what}");
    assert!(report.reads >= wanted.reads && report.writes > 0, "too little was tried: {what}");
    volume.unmount();
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
fn what_the_kernels_file_systems_do_is_printed_beside_it() {
    let mut seen = Vec::new();
    for folder in [Path::new("/dev/shm"), &std::env::temp_dir(), Path::new(env!("CARGO_TARGET_TMPDIR"))] {
        let Ok(kind) = rustix::fs::statfs(folder).map(|stat| stat.f_type as u64) else { continue };
        if seen.contains(&kind) {
            continue;
        }
        seen.push(kind);
        let name = FILE_SYSTEMS.iter().find(|known| known.0 == kind).map_or("another", |known| known.1);
        compare(name, folder);
    }
    assert!(!seen.is_empty(), "no folder to compare with");
}

/// Numbers that statfs(2) gives, and what they mean.
const FILE_SYSTEMS: [(u64, &str); 4] =
    [(0x0102_1994, "tmpfs"), (0xef53, "ext4"), (0x5846_5342, "xfs"), (0x9123_683e, "btrfs")];

fn compare(name: &str, folder: &Path) {
    let place = tempfile::tempdir_in(folder).unwrap();
    let path = place.path().join("shared");
    for shape in SHAPES {
        let open = || {
            let file =
                std::fs::File::options().read(true).write(true).create(true).truncate(false).open(&path)?;
            Ok(Box::new(file) as Box<dyn PositionalIo>)
        };
        let report: TornReport = check(&config(shape, reads_of(shape)), &open).unwrap();
        println!("{name} {shape:?}: {report:?}");
        assert!(report.reads > 0);
    }
}
