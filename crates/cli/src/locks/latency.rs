//! How long a lock takes to get, inside the loop of DWOM: lock a page of one's own in a shared file, store 4 KiB past the
//! cache, fence, unlock.
//!
//! State  each thread has [`SET_PAGES`] pages of its own. Pass one writes each of them for the first time (a tree grows),
//!        then they are written over and over. Each thread keeps its own histogram.

use anyhow::{Result, anyhow};
use hdrhistogram::Histogram;
use heddle_arena::{Arena, Ptr};
use heddle_nvmfs::LockMode;
use heddle_pmem::{Pos, Region};
use heddle_range_lock::{Access, AnyLock, Geometry, LockHead, LockKind, RangeLock, make};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// One lock, pattern and number of threads.
#[derive(Serialize)]
pub struct Row {
    pub lock: &'static str,
    /// `initial`: every page for the first time; `overwrite`.
    pub pattern: &'static str,
    pub threads: usize,
    /// More threads than CPUs: a holder may be off the CPU.
    pub oversubscribed: bool,
    pub samples: u64,
    pub median_ns: u64,
    pub p999_ns: u64,
    pub max_ns: u64,
}

const PAGE_BYTES: u64 = 4096;
/// 8 MiB a thread, as FxMark's segments.
const SET_PAGES: u64 = 2048;
/// Sets written for the first time, so that the initial pass has enough samples for its 99.9th percentile.
const FRESH_LOCKS: usize = 4;
/// What one thread copies into: the target's bytes do not matter to the lock.
const TARGET_BYTES: u64 = 1 << 20;

/// Every lock with every number of threads.
pub fn measure(
    mode: LockMode,
    geometry: &Geometry,
    threads: &[usize],
    cores: usize,
    secs: f64,
) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for &n in threads {
        // A set of each thread must fit the largest file.
        let wants = n as u64 * SET_PAGES * PAGE_BYTES;
        if wants > geometry.file_bytes_max {
            return Err(crate::failure::usage(format!("{n} threads need -M of {} bits", wants.ilog2() + 1)));
        }
        for kind in LockKind::ALL {
            let lock = make(kind, mode, geometry)?;
            let mut initial = histogram()?;
            let mut overwrite = histogram()?;
            for round in 0..FRESH_LOCKS {
                let last = round + 1 == FRESH_LOCKS;
                let time = if last { Duration::from_secs_f64(secs) } else { Duration::ZERO };
                let (first, over) = round_of(&lock, geometry, n, time)?;
                initial.add(first)?;
                overwrite.add(over)?;
            }
            let row = |pattern, h: &Histogram<u64>| Row {
                lock: kind.name(),
                pattern,
                threads: n,
                oversubscribed: n > cores,
                samples: h.len(),
                median_ns: h.value_at_quantile(0.5),
                p999_ns: h.value_at_quantile(0.999),
                max_ns: h.max(),
            };
            rows.push(row("initial", &initial));
            rows.push(row("overwrite", &overwrite));
        }
    }
    Ok(rows)
}

/// Least time between two looks at the clock, which every latency contains.
pub fn clock_ns() -> u64 {
    let look = |_| {
        let before = Instant::now();
        before.elapsed().as_nanos() as u64
    };
    (0..1000).map(look).min().unwrap_or(0)
}

struct Setup<'a> {
    lock: &'a AnyLock,
    arena: Arena,
    head: Ptr<LockHead>,
    region: Region,
    start: Barrier,
    stop: AtomicBool,
}

type Pair = (Histogram<u64>, Histogram<u64>);

/// All threads write their sets for the first time, then over and over for `time`.
fn round_of(lock: &AnyLock, geometry: &Geometry, threads: usize, time: Duration) -> Result<Pair> {
    let words_bytes = (geometry.file_bytes_max / geometry.segment_bytes) as usize * 4;
    let arena =
        Arena::private(words_bytes + (256 << 20)).map_err(|e| anyhow!("no memory for a lock: {e}"))?;
    let head = arena.alloc_zeroed::<LockHead>(1)?;
    lock.init(&arena, arena.get(head))?;
    let region = Region::anonymous(threads as u64 * TARGET_BYTES)?;
    let start = Barrier::new(threads + 1);
    let setup = Setup { lock, arena, head, region, start, stop: AtomicBool::new(time.is_zero()) };
    let parts: Vec<Result<Pair>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                scope.spawn({
                    let setup = &setup;
                    move || setup.work(worker as u64)
                })
            })
            .collect();
        setup.start.wait();
        thread::sleep(time);
        setup.stop.store(true, Ordering::SeqCst);
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
            .collect()
    });
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
        let base = Pos(worker * TARGET_BYTES);
        // Page faults of the target are not the lock's.
        (0..TARGET_BYTES / PAGE_BYTES)
            .for_each(|page| self.region.nt_write(base.plus(page * PAGE_BYTES), &data));
        pin(worker as usize);
        let (mut first, mut over) = (histogram()?, histogram()?);
        self.start.wait();
        for page in 0..SET_PAGES {
            self.write(worker, page, base, &data, &mut first)?;
        }
        // ORDERING: Relaxed: a flag alone; a late sight of it is one more write.
        while !self.stop.load(Ordering::Relaxed) {
            for page in 0..64 {
                self.write(worker, page, base, &data, &mut over)?;
            }
        }
        Ok((first, over))
    }

    fn write(&self, worker: u64, page: u64, base: Pos, data: &[u8], into: &mut Histogram<u64>) -> Result<()> {
        let offset = (worker * SET_PAGES + page) * PAGE_BYTES;
        let head = self.arena.get(self.head);
        let began = Instant::now();
        let held = self.lock.acquire(&self.arena, head, offset..offset + PAGE_BYTES, Access::Exclusive)?;
        let took = began.elapsed();
        self.region.nt_write(base.plus(page * PAGE_BYTES % TARGET_BYTES), data);
        // PERSIST: as a write holds its lock until its data is durable.
        self.region.fence();
        self.lock.release(&self.arena, head, held);
        into.saturating_record(took.as_nanos() as u64);
        Ok(())
    }
}

/// Ties the calling thread to a CPU, as FxMark does. Where the kernel refuses, figures are noisier, not wrong.
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
