//! The time to acquire a lock inside DWOM: threads write their own pages of one shared file through the
//! engine, and the engine reports how long each write waited for its range.
//!
//! State  each thread has [`SET_PAGES`] pages of its own. Pass one writes each of them for the first time (a tree grows),
//!        then they are written over and over. Each thread keeps its own histogram.

use crate::engines;
use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use heddle_nvmfs::{LockMode, MountOptions, NvmFs, Variant};
use heddle_pmem::Durability;
use heddle_range_lock::{Geometry, LockKind};
use heddle_vfs::{Cred, FileSystem, Handle, Ino, Name, OpenFlags};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use std::cell::RefCell;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// One lock, pattern and number of threads.
#[derive(Serialize)]
pub struct Row {
    pub lock: &'static str,
    /// `initial`: every page is written for the first time; or `overwrite`.
    pub pattern: &'static str,
    pub threads: usize,
    /// More threads than CPUs: a lock holder may be off its CPU.
    pub oversubscribed: bool,
    pub samples: u64,
    pub median_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
}

const PAGE_BYTES: u64 = 4096;
/// 8 MiB a thread, as FxMark's segments.
const SET_PAGES: u64 = 2048;
/// Files written for the first time, so that the initial pass has enough samples for its 99.9th percentile.
const FRESH_FILES: usize = 4;
/// Space for logs, beside twice the data.
const SPARE_BYTES: u64 = 256 << 20;

thread_local! {
    static WAITS: RefCell<Option<Histogram<u64>>> = const { RefCell::new(None) };
}

/// Records a wait that the engine reports for a write of this thread.
fn note(wait: Duration) {
    WAITS.with_borrow_mut(|waits| {
        if let Some(waits) = waits {
            waits.saturating_record(wait.as_nanos() as u64);
        }
    });
}

/// Measures every lock with every number of threads.
pub fn measure(
    mode: LockMode,
    geometry: &Geometry,
    threads: &[usize],
    cores: usize,
    secs: f64,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &n in threads {
        // The sets of all threads must fit the largest file.
        let wants = n as u64 * SET_PAGES * PAGE_BYTES;
        if wants > geometry.file_bytes_max {
            return Err(heddle_console::failure::usage(format!(
                "{n} threads need -M of {} bits",
                wants.ilog2() + 1
            )));
        }
        for kind in LockKind::ALL {
            let (initial, overwrite) = waits(kind, mode, geometry, n, secs)?;
            let row = |pattern, h: &Histogram<u64>| Row {
                lock: kind.name(),
                pattern,
                threads: n,
                oversubscribed: n > cores,
                samples: h.len(),
                median_ns: h.value_at_quantile(0.5).min(h.max()),
                p999_ns: h.value_at_quantile(0.999).min(h.max()),
                max_ns: h.max(),
            };
            rows.push(row("initial", &initial));
            rows.push(row("overwrite", &overwrite));
        }
    }
    Ok(rows)
}

/// Least time between two clock readings, which every latency contains.
pub fn clock_ns() -> u64 {
    let look = |_| {
        let before = Instant::now();
        before.elapsed().as_nanos() as u64
    };
    (0..1000).map(look).min().unwrap_or(0)
}

/// The variant that has this lock.
fn variant(kind: LockKind) -> Variant {
    match kind {
        LockKind::Inode => Variant::Nova,
        LockKind::Interval => Variant::NovaInterval,
        LockKind::Array => Variant::NovaArray,
        LockKind::Tree => Variant::NovaTree,
    }
}

type Pair = (Histogram<u64>, Histogram<u64>);

/// Waits of first writes and of overwrites.
fn waits(kind: LockKind, mode: LockMode, geometry: &Geometry, threads: usize, secs: f64) -> Result<Pair> {
    let options = MountOptions {
        lock_mode: mode,
        geometry: Some(geometry.clone()),
        on_lock: Some(note),
        ..MountOptions::default()
    };
    let data = threads as u64 * SET_PAGES * PAGE_BYTES;
    let volume = engines::fresh_with(variant(kind), &options, Durability::Process, 2 * data + SPARE_BYTES)?;
    let mut sum = (histogram()?, histogram()?);
    for round in 0..FRESH_FILES {
        let last = round + 1 == FRESH_FILES;
        let time = if last { Duration::from_secs_f64(secs) } else { Duration::ZERO };
        let (first, over) = round_of(&volume.fs(), threads, time)?;
        sum.0.add(first)?;
        sum.1.add(over)?;
    }
    volume.close()?;
    Ok(sum)
}

struct Setup<'a> {
    fs: &'a NvmFs,
    file: Handle,
    start: Barrier,
    /// Before pass two: no overwrite counts while another thread still makes first writes.
    again: Barrier,
    stop: AtomicBool,
}

/// All threads write their sets of a new file for the first time, then again and again for `time`. Then the
/// file is removed.
fn round_of(fs: &NvmFs, threads: usize, time: Duration) -> Result<Pair> {
    let name = Name::new(b"shared")?;
    let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o600, OpenFlags::READ_WRITE)?;
    // As in DWOM, the file has its full size before it is timed: otherwise writers would wait for EOF, not
    // for their range.
    let end = threads as u64 * SET_PAGES * PAGE_BYTES;
    fs.write(&file, end, &[1])?;
    let barrier = || Barrier::new(threads + 1);
    let setup = Setup { fs, file, start: barrier(), again: barrier(), stop: AtomicBool::new(time.is_zero()) };
    let parts: Vec<Result<Pair>> = thread::scope(|scope| {
        let setup = &setup;
        let workers: Vec<_> =
            (0..threads).map(|worker| scope.spawn(move || setup.work(worker as u64))).collect();
        setup.start.wait();
        setup.again.wait();
        thread::sleep(time);
        setup.stop.store(true, Ordering::SeqCst);
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
            .collect()
    });
    fs.release(setup.file);
    fs.unlink(&Cred::root(), Ino::ROOT, name)?;
    let mut sum = (histogram()?, histogram()?);
    for part in parts {
        let (first, over) = part?;
        sum.0.add(first)?;
        sum.1.add(over)?;
    }
    Ok(sum)
}

impl Setup<'_> {
    fn work(&self, worker: u64) -> Result<Pair> {
        let data = [worker as u8 + 1; PAGE_BYTES as usize];
        let write = |page: u64| {
            let offset = (worker * SET_PAGES + page) * PAGE_BYTES;
            self.fs.write(&self.file, offset, &data)
        };
        pin(worker as usize);
        let fresh = Some(histogram()?);
        self.start.wait();
        WAITS.set(fresh);
        // A thread that fails still arrives at the second barrier.
        let written = (0..SET_PAGES).try_for_each(|page| write(page).map(drop));
        let first = WAITS.replace(Some(histogram()?));
        self.again.wait();
        written?;
        // ORDERING: Relaxed: a flag alone; seeing it late costs one more round.
        while !self.stop.load(Ordering::Relaxed) {
            for page in 0..64 {
                write(page)?;
            }
        }
        let over = WAITS.take();
        first.zip(over).ok_or_else(|| anyhow!("a thread lost its histogram"))
    }
}

/// Pins the calling thread to a CPU, as FxMark does. If the kernel refuses, figures are noisier, not wrong.
fn pin(worker: usize) {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    let cpus: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    if !cpus.is_empty() {
        let mut one = CpuSet::new();
        one.set(cpus[worker % cpus.len()]);
        let _ = sched_setaffinity(None, &one);
    }
}

/// Up to a minute, three digits.
fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new_with_bounds(1, 60_000_000_000, 3)?)
}
