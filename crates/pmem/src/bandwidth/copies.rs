//! Pages a second that a region takes one by one: a copy and a fence each, nothing else.
//!
//! Invariants  I1  a page's words contain the number of the copy. The last content is compared, so only copies that were stored count.

use super::{allowed_processors, pin_to};
use crate::{BLOCK_BYTES, Pos, Region};
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

/// Bytes of region that a thread needs.
pub const COPIES_REGION_BYTES: u64 = 1 << 20;

/// Number of blocks to which a thread copies in turn: a writer that replaces its page has the new block, the
/// replaced one, and the one before.
const TURNS: u64 = 3;

/// The clock is read once for so many copies.
const BATCH: u64 = 64;

const WORDS: usize = BLOCK_BYTES / 8;

/// The result of one thread.
#[derive(Clone, Copy, Debug)]
pub struct Copies {
    /// Copies, each fenced.
    pub done: u64,
    /// The time it took.
    pub time: Duration,
}

/// A block does not hold what was copied to it last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the memory at {at:?} holds {found:#x} instead of {want:#x}")]
pub struct WrongCopy {
    at: Pos,
    found: u64,
    want: u64,
}

/// Copies pages for this time, each thread pinned to a processor of its own.
///
/// # Errors
/// [`WrongCopy`].
///
/// Panics if the region has less than [`COPIES_REGION_BYTES`] a thread.
pub fn copies(region: &Region, threads: usize, time: Duration) -> Result<Vec<Copies>, WrongCopy> {
    let (processors, start) = (allowed_processors(), Barrier::new(threads));
    thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|worker| {
                let (processors, start) = (&processors, &start);
                scope.spawn(move || {
                    pin_to(processors, worker);
                    work(region, Pos(worker as u64 * COPIES_REGION_BYTES), time, start)
                })
            })
            .collect();
        workers.into_iter().map(|worker| worker.join().expect("a measuring thread panicked")).collect()
    })
}

fn block(base: Pos, copy: u64) -> Pos {
    base.plus(copy % TURNS * BLOCK_BYTES as u64)
}

/// The words between the first and the last.
fn body(at: usize) -> u64 {
    at as u64 * 2 + 1
}

fn work(region: &Region, base: Pos, time: Duration, start: &Barrier) -> Result<Copies, WrongCopy> {
    let mut page: Vec<u8> = (0..WORDS).flat_map(|at| body(at).to_ne_bytes()).collect();
    let mut copy = |number: u64| {
        // First and last word: a copy that stops early is detected.
        page[..8].copy_from_slice(&number.to_ne_bytes());
        page[BLOCK_BYTES - 8..].copy_from_slice(&number.to_ne_bytes());
        region.nt_write(block(base, number), &page);
        // PERSIST: copies that count are durable.
        region.fence();
    };
    // Takes the page faults first.
    (0..TURNS).for_each(&mut copy);
    start.wait();
    let began = Instant::now();
    let mut done = 0;
    while done == 0 || began.elapsed() < time {
        (done..done + BATCH).for_each(|number| copy(TURNS + number));
        done += BATCH;
    }
    let time = began.elapsed();
    for number in done..done + TURNS {
        for word in 0..WORDS {
            let want = if word == 0 || word == WORDS - 1 { number } else { body(word) };
            let at = block(base, number).plus(word as u64 * 8);
            let found = region.load_u64(at);
            if found != want {
                return Err(WrongCopy { at, found, want });
            }
        }
    }
    Ok(Copies { done, time })
}
