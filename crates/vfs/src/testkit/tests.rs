use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::Duration;

use super::torn::{SHAPES, Shape, TornConfig};
use super::*;
use crate::model::ModelFs;
use crate::{Cookie, Cred, FileKind, FileSystem, Ino, Name, NewNode};

fn create(fs: &ModelFs, name: &str) {
    drop(FsFile::open(fs, name, libc::O_CREAT | libc::O_RDWR).unwrap());
}

#[test]
fn the_model_agrees_with_itself() {
    let how = Differential { cases: 300, ..Differential::default() };
    agrees_with_model(how, ModelFs::new, Some(&|fs| fs));
}

#[test]
#[should_panic(expected = "the engine and the model differ")]
fn a_remount_that_loses_everything_is_noticed() {
    agrees_with_model(Differential::default(), ModelFs::new, Some(&|_| ModelFs::new()));
}

/// The random steps must succeed often enough to mean something.
#[test]
fn random_steps_mostly_do_something() {
    use proptest::strategy::{Strategy, ValueTree};
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    let (mut done, mut all) = (0, 0);
    for _ in 0..100 {
        let steps = random_steps(Calls::ALL, 80, false).new_tree(&mut runner).unwrap().current();
        let (fs, mut files) = (ModelFs::new(), OpenFiles::default());
        let outcomes: Vec<_> = steps.iter().map(|step| play(&fs, &mut files, step)).collect();
        all += outcomes.len();
        done += outcomes.iter().filter(|o| !matches!(o, Outcome::Failed(_) | Outcome::Skipped)).count();
    }
    assert!(done * 3 > all, "{done} of {all} steps did something");
}

fn torn_config(shape: Shape) -> TornConfig {
    TornConfig { reads: 2000, limit: Duration::from_secs(20), ..TornConfig::new(shape) }
}

#[test]
fn the_model_is_never_torn() {
    for shape in SHAPES {
        let fs = ModelFs::new();
        let report = torn::check(&torn_config(shape), &|| {
            Ok(Box::new(FsFile::open(&fs, "file", libc::O_CREAT | libc::O_RDWR)?) as Box<dyn PositionalIo>)
        });
        let report = report.unwrap();
        assert!(report.is_clean() && report.reads > 0 && report.writes > 0, "{report:?}");
    }
}

/// A file whose two halves have a lock each: every byte is right, only not at the same time.
struct Halves(Mutex<Vec<u8>>, Mutex<Vec<u8>>);

impl PositionalIo for &Halves {
    fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        let middle = buf.len() / 2;
        buf[..middle].copy_from_slice(&self.0.lock().unwrap());
        // Long enough for a write, however busy the machine is.
        std::thread::sleep(Duration::from_micros(20));
        buf[middle..].copy_from_slice(&self.1.lock().unwrap());
        Ok(buf.len())
    }

    fn write_at(&self, buf: &[u8], _offset: u64) -> io::Result<usize> {
        let middle = buf.len() / 2;
        self.0.lock().unwrap().copy_from_slice(&buf[..middle]);
        std::thread::yield_now();
        self.1.lock().unwrap().copy_from_slice(&buf[middle..]);
        Ok(buf.len())
    }
}

#[test]
fn a_planted_tear_is_caught() {
    let halves = Halves(Mutex::new(vec![0; 2048]), Mutex::new(vec![0; 2048]));
    let report =
        torn::check(&torn_config(SHAPES[0]), &|| Ok(Box::new(&halves) as Box<dyn PositionalIo>)).unwrap();
    assert!(report.torn > 0, "{report:?}");
}

/// A file that answers every third read with what it held some writes before: those have returned, however busy the machine is.
struct Forgetful {
    bytes: Mutex<VecDeque<Vec<u8>>>,
    reads: AtomicU32,
}

impl PositionalIo for &Forgetful {
    fn read_at(&self, buf: &mut [u8], _offset: u64) -> io::Result<usize> {
        let bytes = self.bytes.lock().unwrap();
        let old = self.reads.fetch_add(1, SeqCst).is_multiple_of(3);
        let held = if old { bytes.back() } else { bytes.front() };
        buf.copy_from_slice(held.unwrap());
        Ok(buf.len())
    }

    fn write_at(&self, buf: &[u8], _offset: u64) -> io::Result<usize> {
        let mut bytes = self.bytes.lock().unwrap();
        bytes.pop_back();
        bytes.push_front(buf.to_vec());
        Ok(buf.len())
    }
}

#[test]
fn a_planted_return_of_an_old_write_is_caught() {
    let file = Forgetful { bytes: Mutex::new(vec![vec![0; 4096]; 8].into()), reads: AtomicU32::new(1) };
    let config = TornConfig { writers: 1, ..torn_config(SHAPES[0]) };
    let report = torn::check(&config, &|| Ok(Box::new(&file) as Box<dyn PositionalIo>)).unwrap();
    assert!(report.backwards > 0 && report.stale > 0 && report.torn == 0, "{report:?}");
}

#[test]
fn appenders_lose_nothing_in_the_model_and_in_the_kernel() {
    let fs = ModelFs::new();
    create(&fs, "log");
    let open = || Ok(Box::new(FsFile::open(&fs, "log", libc::O_WRONLY)?) as Box<dyn AppendIo>);
    let reader = FsFile::open(&fs, "log", libc::O_RDONLY).unwrap();
    let report = appenders::check(3, 200, &open, &reader).unwrap();
    assert!(report.is_clean() && report.records == 600, "{report:?}");

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("log");
    File::create(&path).unwrap();
    let open = || Ok(Box::new(Mutex::new(File::options().append(true).open(&path)?)) as Box<dyn AppendIo>);
    let report = appenders::check(3, 200, &open, &File::open(&path).unwrap()).unwrap();
    assert!(report.is_clean() && report.records == 600, "{report:?}");
}

/// Appends that find the end and write in two calls, as a file system without atomic append would.
struct Racy<'a>(FsFile<'a>, &'a ModelFs, Ino);

impl AppendIo for Racy<'_> {
    fn append(&self, buf: &[u8]) -> io::Result<u64> {
        let end = self.1.getattr(self.2).unwrap().size_bytes;
        std::thread::yield_now();
        self.0.write_at(buf, end)?;
        Ok(end)
    }
}

#[test]
fn appends_that_overwrite_each_other_are_caught() {
    let fs = ModelFs::new();
    create(&fs, "log");
    let ino = crate::path::resolve(&fs, &Cred::root(), "log").unwrap().ino;
    let open =
        || Ok(Box::new(Racy(FsFile::open(&fs, "log", libc::O_WRONLY)?, &fs, ino)) as Box<dyn AppendIo>);
    let reader = FsFile::open(&fs, "log", libc::O_RDONLY).unwrap();
    let report = appenders::check(4, 500, &open, &reader).unwrap();
    assert!(report.lost > 0, "{report:?}");
}

#[test]
fn trees_tell_their_first_difference() {
    let (one, two) = (ModelFs::new(), ModelFs::new());
    for fs in [&one, &two] {
        let file = FsFile::open(fs, "file", libc::O_CREAT | libc::O_RDWR).unwrap();
        file.write_at(&[7; 5000], 0).unwrap();
    }
    let difference = || Tree::of(&one).unwrap().difference(&Tree::of(&two).unwrap());
    assert_eq!(difference(), None);
    FsFile::open(&one, "file", libc::O_RDWR).unwrap().write_at(&[8], 4500).unwrap();
    assert!(difference().unwrap().contains("content differs from byte 4500"), "{:?}", difference());
    let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    two.make(&Cred::root(), Ino::ROOT, Name::new(b"dir").unwrap(), node).unwrap();
    assert!(difference().unwrap().contains("links is 2, should be 3"), "{:?}", difference());
    assert_eq!(Cookie::default(), Cookie(0));
}
