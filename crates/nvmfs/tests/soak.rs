//! Mixed work of many threads on an image that is nearly full, remounted again and again: in the end, and at each remount, it holds what
//! it should.
//!
//! Each thread has a directory of its own, of which it knows every byte; in the shared files it owns a range, at odd places, so that
//! its writes share pages with its neighbours'. At each round's end all threads stop, all of it is compared, the image is unmounted or
//! left as by a power cut, by turns, checked by fsck, mounted, and compared again. The durability changes every other round.
//!
//! `HEDDLE_SOAK_SECONDS` a variant (1), `HEDDLE_SOAK_ROUND_SECONDS` (2), `HEDDLE_SOAK_THREADS` (8), `HEDDLE_SOAK_VARIANT` (all of them),
//! `HEDDLE_SOAK_SEED`, `HEDDLE_DURABILITY` (both), `HEDDLE_SOAK_DIR` for images that stay (a directory in memory, else elsewhere). The
//! long form: `cargo xtask soak`.

mod common;
mod soak {
    pub mod shared;
    pub mod worker;
}

use common::{Short, env, named_durability, options, promising};
use heddle_nvmfs::{NvmFs, Variant, Volume, format_region, mount};
use heddle_pmem::{Durability, OpenOptions, Region};
use heddle_vfs::{FileSystem, Ino};
use soak::shared::Shared;
use soak::worker::Worker;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// The image: less than the threads would fill.
const IMAGE_BYTES: u64 = 24 * MIB;
/// A run as long as this fills the image.
const LONG_SECONDS: u64 = 60;

fn variants() -> Vec<Variant> {
    let Ok(name) = std::env::var("HEDDLE_SOAK_VARIANT") else { return Variant::ALL.to_vec() };
    let found = Variant::ALL.into_iter().find(|v| v.name() == name);
    vec![found.unwrap_or_else(|| panic!("HEDDLE_SOAK_VARIANT={name}: no such variant"))]
}

fn open(image: &Path, round: usize) -> Volume {
    let durability = named_durability().unwrap_or(Durability::ALL[round / 2 % 2]);
    mount(Region::open(image, &promising(durability)).unwrap(), &options()).unwrap()
}

/// fsck finds nothing to mend on an unmounted image.
fn check(image: &Path, when: &str) {
    let options = OpenOptions { read_only: true, ..OpenOptions::default() };
    let region = Region::open(image, &options).unwrap();
    common::sound(&region).unwrap_or_else(|why| panic!("{when}: {why}"));
}

/// All threads and what they know.
struct WorkerPool {
    workers: Vec<Worker>,
    shared: Shared,
}

impl WorkerPool {
    fn new(fs: &NvmFs, threads: u64, seed: u64) -> WorkerPool {
        let workers = (0..threads).map(|n| Worker::new(fs, n, seed)).collect();
        WorkerPool { workers, shared: Shared::new(fs, threads) }
    }

    fn work(&mut self, fs: &NvmFs, until: Instant) {
        let WorkerPool { workers, shared } = self;
        std::thread::scope(|scope| {
            for (worker, ranges) in workers.iter_mut().zip(shared.ranges()) {
                scope.spawn(move || worker.work(fs, ranges, until));
            }
        });
    }

    fn compare(&self, fs: &NvmFs, when: &str) {
        let mut told: Vec<String> = self.workers.iter().filter_map(|worker| worker.differs(fs)).collect();
        told.extend(self.shared.differs(fs));
        assert!(told.is_empty(), "{when}: {told:#?}");
    }
}

fn soak(variant: Variant, place: &Path) {
    let image: PathBuf = place.join(variant.name());
    let seconds = env("HEDDLE_SOAK_SECONDS", 1);
    let round = Duration::from_secs(env("HEDDLE_SOAK_ROUND_SECONDS", 2).max(1));
    let seed = env("HEDDLE_SOAK_SEED", 1);
    let region = Region::create(&image, IMAGE_BYTES, &OpenOptions::default()).unwrap();
    format_region(&region, variant).unwrap();
    drop(region);
    let mut volume = open(&image, 0);
    let mut pool = WorkerPool::new(&volume.fs(), env("HEDDLE_SOAK_THREADS", 8), seed);
    let end = Instant::now() + Duration::from_secs(seconds);
    let mut rounds = 0;
    while Instant::now() < end {
        let fs = volume.fs();
        pool.work(&fs, end.min(Instant::now() + round));
        let what = format!("{} round {rounds}, seed {seed}", variant.name());
        pool.compare(&fs, &format!("{what}, before the remount"));
        drop(fs);
        if rounds % 2 == 0 {
            volume.abandon()
        } else {
            volume.unmount()
        }
        check(&image, &what);
        rounds += 1;
        volume = open(&image, rounds);
        pool.compare(&volume.fs(), &format!("{what}, after the remount"));
    }
    let calls: u64 = pool.workers.iter().map(|w| w.calls).sum();
    let refused: u64 = pool.workers.iter().map(|w| w.refused).sum();
    println!("{}: {rounds} remounts, {calls} calls, {refused} refused for want of space", variant.name());
    assert!(calls > 100 && rounds > 0, "nothing was done");
    assert!(refused > 0 || seconds < LONG_SECONDS, "the image was never full");
    common::remove_everything(&volume.fs()).unwrap();
    volume.unmount();
    check(&image, &format!("{}, all removed, seed {seed}", variant.name()));
}

#[test]
fn mixed_work_of_threads_and_remounts_leaves_a_sound_image() {
    if let Ok(kept) = std::env::var("HEDDLE_SOAK_DIR") {
        return variants().into_iter().for_each(|variant| soak(variant, Path::new(&kept)));
    }
    let place = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap();
    variants().into_iter().for_each(|variant| soak(variant, place.path()));
}

/// Each thread rewrites, cuts, makes and removes files until a hundred times the image was written. Then all is removed: the space is back,
/// at once, and after a remount.
#[test]
fn a_hundred_times_the_image_is_written_and_its_space_comes_back() {
    const BYTES: u64 = 8 * MIB;
    let times = env("HEDDLE_SOAK_TIMES", 100);
    for variant in variants() {
        let disk = common::Disk::new(variant, BYTES);
        let volume = disk.mount();
        let fs = volume.fs();
        let free = |fs: &NvmFs| fs.statfs().unwrap().blocks_free;
        fs.release(fs.new_file(Ino::ROOT, "first"));
        let before = free(&fs);
        std::thread::scope(|scope| {
            for n in 0..4u64 {
                let fs = &fs;
                scope.spawn(move || rewrite(fs, n, times * BYTES / 4));
            }
        });
        common::remove_everything(&fs).unwrap();
        let left = before.saturating_sub(free(&fs));
        drop(fs);
        volume.unmount();
        let volume = disk.mount();
        let after = before.saturating_sub(free(&volume.fs()));
        println!("{}: {left} of {before} blocks missing, {after} after a remount", variant.name());
        // What is left: log pages of the root, blocks of inodes.
        assert!(left <= 64 && after <= 64, "{variant:?}: {left} blocks missing, {after} after a remount");
        volume.unmount();
    }
}

/// Writes so many bytes into a few files of its own.
fn rewrite(fs: &NvmFs, thread: u64, bytes: u64) {
    let text = |n: u64| format!("w{thread}-{}", n % 3);
    let (mut written, mut n) = (0, thread);
    while written < bytes {
        n += 1;
        let handle = fs.try_file(Ino::ROOT, &text(n)).unwrap_or_else(|_| fs.open_file(Ino::ROOT, &text(n)));
        for i in 0..8 {
            let len = 1 + (n * 7919 + i * 104_729) % 60_000;
            let at = (n * 31 + i * 17) % 40 * 4096 + n % 4096;
            match fs.write(&handle, at, &vec![n as u8; len as usize]) {
                Ok(_) => written += len,
                Err(heddle_vfs::Error::NoSpace) => fs.resize(&handle, 0).unwrap(),
                Err(error) => panic!("{error:?}"),
            }
        }
        if n % 4 == 0 {
            fs.resize(&handle, n * 613 % 100_000)
                .unwrap_or_else(|e| assert_eq!(e, heddle_vfs::Error::NoSpace));
        }
        fs.release(handle);
        if n % 5 == 0 {
            fs.remove(Ino::ROOT, &text(n)).unwrap();
        }
    }
}
