//! The bandwidth of this machine's memory: the limit with which results of file systems are compared.
//!
//! State       a region cut into one private buffer a thread; every thread pinned to a processor of its own.
//! Invariants  I1  a buffer is touched by its thread before the clock starts, so that no page fault is timed.
//!             I2  the written bytes are never zero: some machines write zeros over zeros a quarter faster.
//! Source      the method of SRL's Fig. 9: 64-byte non-temporal stores and 64-byte loads over 300 MB a thread.

mod copies;

pub use copies::{COPIES_REGION_BYTES, Copies, WrongCopy, copies};

use crate::{BLOCK_BYTES, LINE_BYTES, Pos, Region};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Default buffer of one thread: far larger than any cache.
pub const BUFFER_BYTES: u64 = 300 << 20;

/// The clock is read once for this many bytes.
const CHUNK_BYTES: u64 = 1 << 20;

/// The result for a number of threads together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Row {
    /// Threads at work.
    pub threads: usize,
    /// Stores past the cache, fenced every MiB.
    pub write: Rate,
    /// Loads.
    pub read: Rate,
}

/// Median and extremes of the repeats, in 10^9 bytes per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The median.
    pub gb_s: f64,
    /// The slowest repeat.
    pub min_gb_s: f64,
    /// The fastest repeat.
    pub max_gb_s: f64,
}

/// The parameters of a measurement.
#[derive(Clone, Debug)]
pub struct Plan {
    /// A row for each; more threads than processors share the processors.
    pub threads: Vec<usize>,
    /// Private buffer of a thread, rounded down to whole MiB; below the cache's size it measures the cache.
    pub buffer_bytes: u64,
    /// Time of one repeat of one direction.
    pub time: Duration,
    /// Repeats; the median counts.
    pub repeats: usize,
}

impl Plan {
    /// Bytes of region that the plan needs.
    pub fn region_bytes(&self) -> u64 {
        self.threads.iter().copied().max().map_or(0, |n| self.buffer_bytes.saturating_mul(n as u64))
    }
}

/// Measures, and overwrites the region. A region of [`Region::anonymous`] measures plain memory, one on a
/// device measures that device.
///
/// Panics if the region is smaller than [`Plan::region_bytes`], a buffer smaller than 1 MiB, or there are no repeats.
pub fn measure(region: &Region, plan: &Plan) -> Vec<Row> {
    assert!(region.len_bytes() >= plan.region_bytes(), "the region is too small for a buffer a thread");
    assert!(plan.buffer_bytes >= CHUNK_BYTES, "a buffer holds a MiB at least");
    let rate = |threads, work: Work| {
        let runs = (0..plan.repeats).map(|_| run(region, plan, threads, work)).collect();
        summary(runs)
    };
    let row = |&threads: &usize| Row {
        threads,
        write: rate(threads, write_chunk),
        read: rate(threads, read_chunk),
    };
    plan.threads.iter().map(row).collect()
}

type Work = fn(&Region, Pos);

fn write_chunk(region: &Region, at: Pos) {
    let words = [at.0 | 1; 8];
    for offset in (0..CHUNK_BYTES).step_by(LINE_BYTES) {
        region.nt_line(at.plus(offset), &words);
    }
    // PERSIST: bytes that count as written have left the processor.
    region.fence();
}

fn read_chunk(region: &Region, at: Pos) {
    for offset in (0..CHUNK_BYTES).step_by(LINE_BYTES) {
        std::hint::black_box(region.line(at.plus(offset)));
    }
}

/// Bytes a second of all threads together, in 10^9.
fn run(region: &Region, plan: &Plan, threads: usize, work: Work) -> f64 {
    let processors = allowed_processors();
    let start = Barrier::new(threads);
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let (processors, start) = (&processors, &start);
                scope.spawn(move || {
                    pin_to(processors, worker);
                    let base = Pos(worker as u64 * plan.buffer_bytes);
                    stream(region, base, plan, work, start)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a measuring thread panicked")).sum()
    })
}

fn stream(region: &Region, base: Pos, plan: &Plan, work: Work, start: &Barrier) -> f64 {
    let chunks = plan.buffer_bytes / CHUNK_BYTES;
    for page in (0..plan.buffer_bytes).step_by(BLOCK_BYTES) {
        region.store_u64(base.plus(page), 1);
    }
    start.wait();
    let began = Instant::now();
    let mut done = 0;
    while done == 0 || began.elapsed() < plan.time {
        work(region, base.plus(done % chunks * CHUNK_BYTES));
        done += 1;
    }
    (done * CHUNK_BYTES) as f64 / began.elapsed().as_secs_f64() / 1e9
}

fn summary(mut runs: Vec<f64>) -> Rate {
    runs.sort_unstable_by(f64::total_cmp);
    let (low, high) = (runs[(runs.len() - 1) / 2], runs[runs.len() / 2]);
    Rate { gb_s: (low + high) / 2.0, min_gb_s: runs[0], max_gb_s: runs[runs.len() - 1] }
}

fn allowed_processors() -> Vec<usize> {
    let allowed = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect()
}

/// If the kernel refuses, the thread is not pinned: the figure is noisier, but not wrong.
fn pin_to(processors: &[usize], worker: usize) {
    if !processors.is_empty() {
        let mut one = CpuSet::new();
        one.set(processors[worker % processors.len()]);
        let _ = sched_setaffinity(None, &one);
    }
}

#[cfg(test)]
mod tests;
