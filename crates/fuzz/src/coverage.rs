//! Which code an input reached: counters that the compiler puts on every edge of the control flow, if it was told to.
//!
//! State       the counters, one byte an edge, in a section of the program; `seen`: of each counter, which sizes were met so far.
//! Without     a build without counters works too: then an input is worth keeping if the target says something new of it.
//! Source      the interface is LLVM's SanitizerCoverage (inline 8-bit counters); sizes in eight classes are AFL's.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Where counters are, and how many.
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

/// What all inputs so far have reached.
pub struct Coverage {
    counters: Vec<(usize, usize)>,
    seen: Vec<u8>,
    /// Edges that were reached at all.
    pub edges: usize,
}

impl Coverage {
    /// Nothing yet.
    pub fn new() -> Coverage {
        let counters = COUNTERS.lock().map(|counters| counters.clone()).unwrap_or_default();
        let len = counters.iter().map(|(_, len)| len.next_multiple_of(8)).sum();
        Coverage { counters, seen: vec![0; len], edges: 0 }
    }

    /// Has this program counters?
    pub fn counts(&self) -> bool {
        !self.counters.is_empty()
    }

    /// Before an input.
    pub fn reset(&self) {
        for (start, len) in &self.counters {
            // SAFETY: the counters live as long as the program; other threads count without looking.
            unsafe { std::ptr::write_bytes(*start as *mut u8, 0, *len) };
        }
    }

    /// After an input: did it reach what none before it did?
    pub fn is_new(&mut self) -> bool {
        let (mut new, mut base) = (false, 0);
        for (start, len) in &self.counters {
            for at in (0..*len).step_by(8) {
                let mut bytes = [0; 8];
                if at + 8 <= *len && (start + at).is_multiple_of(8) {
                    // SAFETY: aligned, and inside the counters.
                    let word = unsafe { &*((start + at) as *const AtomicU64) };
                    bytes = word.load(Relaxed).to_ne_bytes(); // ORDERING: Relaxed, a count that may be a little old.
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
                    let class = class(count);
                    let seen = &mut self.seen[base + at + i];
                    if *seen & class != class {
                        self.edges += usize::from(*seen == 0);
                        *seen |= class;
                        new = true;
                    }
                }
            }
            base += len.next_multiple_of(8);
        }
        new
    }
}

/// A bit for each class of sizes.
fn class(count: u8) -> u8 {
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
