//! The minimum cost of a durable 4 KiB write: a copy past the cache, a fence, one line past the cache, a
//! fence; and an atomic update after each fence, as for a lock and its release. Prints nanoseconds for each
//! of 1 to N concurrent threads.

use heddle_pmem::{BLOCK_BYTES, Durability, LINE_BYTES, Pos, Region};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::Instant;

const ROUNDS: u64 = 1_000_000;
const SHARE_BYTES: u64 = 16 << 20;

/// One thread's rounds in its own part of the region: three blocks in turn, and a log of lines.
fn rounds(region: &Region, start: u64) -> f64 {
    let (data, lock) = ([3u8; BLOCK_BYTES], AtomicU64::new(0));
    let log = start + (1 << 20);
    let began = Instant::now();
    for i in 0..ROUNDS {
        region.nt_write(Pos(start + i % 3 * BLOCK_BYTES as u64), &data);
        // PERSIST: the data before its line.
        region.fence();
        lock.fetch_add(1, SeqCst);
        region.nt_line(Pos(log + i % 4096 * LINE_BYTES as u64), &[i | 1; 8]);
        // PERSIST: the line.
        region.fence();
        lock.fetch_add(1, SeqCst);
    }
    began.elapsed().as_nanos() as f64 / ROUNDS as f64
}

fn main() -> heddle_pmem::Result<()> {
    let most = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let region = Region::anonymous_as(most * SHARE_BYTES, Durability::Power)?;
    for threads in 1..=most {
        let together = Barrier::new(threads as usize);
        let (region, together) = (&region, &together);
        let slowest = std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads)
                .map(|n| {
                    scope.spawn(move || {
                        together.wait();
                        rounds(region, n * SHARE_BYTES)
                    })
                })
                .collect();
            all.into_iter().map(|t| t.join().unwrap_or(f64::NAN)).fold(0.0, f64::max)
        });
        let per_second = threads as f64 * 1000.0 / slowest;
        println!("{threads} threads: {slowest:.0} ns a write, {per_second:.2} million a second on all");
    }
    Ok(())
}
