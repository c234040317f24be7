//! Which code an input reached: counters that the compiler puts on every edge of the control flow, if an option of the build asks for them.
//!
//! State       the counters, one byte an edge, in a section of the program; `seen`: for each counter, which hit-count buckets occurred.
//! No counters An input is kept if the target returned a new signal.
//! Source      the interface is LLVM's SanitizerCoverage (inline 8-bit counters); the eight hit-count buckets are AFL's.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Address and number of the counters of each part of the program.
static COUNTERS: Mutex<Vec<(usize, usize)>> = Mutex::new(Vec::new());

/// Called before `main` by every part of the program that has counters.
///
/// # Safety
/// `start..stop` are the counters, for as long as the program runs.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn __sanitizer_cov_8bit_counters_init(start: *mut u8, stop: *mut u8) {
    let (start, stop) = (start as usize, stop as usize);
    if let Ok(mut counters) = COUNTERS.lock()
        && start != stop
        && !counters.iter().any(|(at, _)| *at == start)
    {
        counters.push((start, stop - start));
    }
}

/// The coverage of all inputs so far.
pub struct Coverage {
    counters: Vec<(usize, usize)>,
    seen: Vec<u8>,
    /// Edges that were reached at all.
    pub edges: usize,
}

impl Coverage {
    /// No input yet.
    pub fn new() -> Coverage {
        let counters = COUNTERS.lock().map(|counters| counters.clone()).unwrap_or_default();
        let len = counters.iter().map(|(_, len)| len.next_multiple_of(8)).sum();
        Coverage { counters, seen: vec![0; len], edges: 0 }
    }

    /// Returns true if this program has counters.
    pub fn has_counters(&self) -> bool {
        !self.counters.is_empty()
    }

    /// Zeroes all counters, before an input.
    pub fn reset(&self) {
        for (start, len) in &self.counters {
            // SAFETY: the counters live as long as the program; other threads only increment them, and a lost increment is harmless.
            unsafe { std::ptr::write_bytes(*start as *mut u8, 0, *len) };
        }
    }

    /// Merges the counters into `seen`, after an input. Returns true if a counter has a bucket that no earlier input had.
    pub fn merge_and_is_new(&mut self) -> bool {
        let (mut new, mut base) = (false, 0);
        for (start, len) in &self.counters {
            for at in (0..*len).step_by(8) {
                let mut bytes = [0; 8];
                if at + 8 <= *len && (start + at).is_multiple_of(8) {
                    // SAFETY: aligned, and inside the counters.
                    let word = unsafe { &*((start + at) as *const AtomicU64) };
                    bytes = word.load(Relaxed).to_ne_bytes(); // ORDERING: Relaxed, a slightly older count is harmless.
                } else {
                    for (i, byte) in bytes.iter_mut().enumerate().take(len - at) {
                        // SAFETY: inside the counters.
                        *byte = unsafe { ((start + at + i) as *const u8).read_volatile() };
                    }
                }
                if bytes == [0; 8] {
                    continue;
                }
                for (i, count) in bytes.into_iter().enumerate() {
                    let bucket = bucket(count);
                    let seen = &mut self.seen[base + at + i];
                    if *seen & bucket != bucket {
                        self.edges += usize::from(*seen == 0);
                        *seen |= bucket;
                        new = true;
                    }
                }
            }
            base += len.next_multiple_of(8);
        }
        new
    }
}

/// The bit of a count's hit-count bucket; 0: the edge was not reached.
fn bucket(count: u8) -> u8 {
    match count {
        0 => 0,
        1 => 1,
        2 => 2,
        3 => 4,
        4..8 => 8,
        8..16 => 16,
        16..32 => 32,
        32..128 => 64,
        _ => 128,
    }
}
