//! The memory page that all workers of a run share, threads or forked processes: the phase of the run, and their results.
//!
//! State      one anonymous shared mapping: `Head` (phase, arrivals, failures) and one `Slot` a worker. All of it is
//!            atomics for which zero bytes are valid.
//! Invariants I1  `phase` lies alone on its lines and changes only between the parts of a run: workers poll it every
//!                operation and it stays in their caches.
//!            I2  a slot is written by its own worker before it arrives; it is read after that arrival was counted.
//! Orderings  O1  `arrive` (AcqRel) pairs with the Acquire of `arrived`: the reader of the count sees the results (I2).
//!            O2  `enter` (Release) pairs with the Acquire of `wait`: what earlier parts made is seen by later ones.
//!                The poll in the timed loop is Relaxed: it decides only when to stop.

use crate::ops::{Failure, Result};
use crate::recorder::{Recorder, latencies};
use hdrhistogram::Histogram;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64};
use std::{io, ptr, time::Duration};

/// Parts of a run, in order. Before them, while the board is all zero, worker 0 makes the shared files.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u32)]
pub(crate) enum Phase {
    /// Each worker makes its own files.
    Prepare = 1,
    /// Worker 0 writes back; each worker maps the files of all.
    WriteBack,
    WarmUp,
    /// Warm-up is over, the clock has not started.
    Ready,
    Measure,
    /// The timed loops end.
    Stop,
    /// Workers check the files that the loop left.
    Check,
    /// Operations checked one by one.
    Prove,
    End,
    Abort,
}

#[repr(align(128))]
struct Line<T>(T);

/// Text of a failure, truncated to fit.
struct Note {
    len: AtomicU32,
    bytes: [AtomicU8; 1020],
}

struct Head {
    phase: Line<AtomicU32>,
    arrived: Line<AtomicU32>,
    failed: Line<AtomicU32>,
    note: Note,
}

/// Distinct latencies a worker can report: more than a histogram of `recorder::latencies` has places.
const LATENCY_PLACES: usize = 5000;

#[repr(align(128))]
struct Slot {
    wall_ns: AtomicU64,
    timed_ns: AtomicU64,
    reads: AtomicU64,
    writes: AtomicU64,
    user_ns: AtomicU64,
    system_ns: AtomicU64,
    places: AtomicU32,
    latencies: [[AtomicU64; 2]; LATENCY_PLACES],
    note: Note,
}

/// See the module.
pub(crate) struct ResultBoard {
    base: ptr::NonNull<u8>,
    workers: usize,
}

/// What one worker reports.
pub(crate) struct Tally {
    pub wall_ns: u64,
    /// Without pauses.
    pub timed_ns: u64,
    pub reads: u64,
    pub writes: u64,
    pub user_ns: u64,
    pub system_ns: u64,
}

// SAFETY: the mapping lives as long as the board and holds atomics alone.
unsafe impl Send for ResultBoard {}
// SAFETY: as above.
unsafe impl Sync for ResultBoard {}

impl Note {
    fn set(&self, text: &str) {
        let len = text.floor_char_boundary(self.bytes.len());
        for (to, from) in self.bytes.iter().zip(text.as_bytes()[..len].iter()) {
            to.store(*from, Relaxed); // ORDERING: published by `len`.
        }
        // ORDERING: Release, pairs with the Acquire in `get`: the bytes come first.
        self.len.store(len as u32, Release);
    }

    fn get(&self) -> Option<String> {
        // ORDERING: Acquire, pairs with the Release in `set`.
        let len = self.len.load(Acquire) as usize;
        // ORDERING: after the Acquire above.
        let bytes: Vec<u8> =
            self.bytes[..len.min(self.bytes.len())].iter().map(|b| b.load(Relaxed)).collect();
        (len > 0).then(|| String::from_utf8_lossy(&bytes).into_owned())
    }
}

impl ResultBoard {
    pub fn new(workers: usize) -> io::Result<ResultBoard> {
        let (flags, access) = (libc::MAP_SHARED | libc::MAP_ANONYMOUS, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: a fresh anonymous mapping.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), ResultBoard::len_bytes(workers), access, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let base = ptr::NonNull::new(base.cast()).expect("the kernel maps nothing at 0 unasked");
        Ok(ResultBoard { base, workers })
    }

    fn len_bytes(workers: usize) -> usize {
        size_of::<Head>() + workers * size_of::<Slot>()
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping starts with a head, page-aligned; zero bytes are valid atomics.
        unsafe { self.base.cast::<Head>().as_ref() }
    }

    fn slot(&self, worker: usize) -> &Slot {
        assert!(worker < self.workers);
        // SAFETY: inside the mapping by the assert; the head's size is a multiple of its alignment, which is the
        // slots' too.
        unsafe { &*self.base.as_ptr().add(size_of::<Head>()).cast::<Slot>().add(worker) }
    }

    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Starts the next part.
    pub fn enter(&self, phase: Phase) {
        self.head().phase.0.store(phase as u32, Release); // ORDERING: O2.
    }

    /// Returns true if the run is still in this part.
    #[inline]
    pub fn is(&self, phase: Phase) -> bool {
        self.head().phase.0.load(Relaxed) == phase as u32 // ORDERING: O2.
    }

    /// Waits until a part begins.
    pub fn wait(&self, phase: Phase) -> Result<()> {
        let mut spins = 0_u32;
        loop {
            // ORDERING: O2, Acquire pairs with `enter`.
            let now = self.head().phase.0.load(Acquire);
            if now == Phase::Abort as u32 {
                return Err(Failure::Aborted);
            }
            if now >= phase as u32 {
                return Ok(());
            }
            spins += 1;
            if spins < 2000 { std::hint::spin_loop() } else { std::thread::sleep(Duration::from_micros(50)) }
        }
    }

    /// Records that a worker has finished its part.
    pub fn arrive(&self) {
        self.head().arrived.0.fetch_add(1, AcqRel); // ORDERING: O1.
    }

    /// Arrivals since the run began.
    pub fn arrived(&self) -> usize {
        self.head().arrived.0.load(Acquire) as usize // ORDERING: O1.
    }

    /// Records that a worker gives up. A worker that was only told to stop records nothing.
    pub fn fail(&self, worker: usize, failure: &str) {
        self.slot(worker).note.set(failure);
        self.head().failed.0.fetch_add(1, AcqRel); // ORDERING: as O1.
    }

    /// Returns true if any worker has given up.
    pub fn has_failed(&self) -> bool {
        self.head().failed.0.load(Acquire) > 0 // ORDERING: as O1.
    }

    /// The failure: the run's own first, then the first worker's.
    pub fn failure(&self) -> Option<String> {
        let worker = |w: usize| self.slot(w).note.get().map(|text| format!("worker {w}: {text}"));
        (0..self.workers).find_map(worker).or_else(|| self.head().note.get())
    }

    /// Records that the run as a whole gives up.
    pub fn fail_run(&self, text: &str) {
        self.head().note.set(text);
    }

    /// Reports a worker's results: its counts, the time of its loop with pauses, its user and system time, in
    /// ns.
    pub fn report(&self, worker: usize, recorder: &Recorder, wall_ns: u64, cpu_ns: (u64, u64)) {
        let slot = self.slot(worker);
        let values = [
            (&slot.wall_ns, wall_ns),
            (&slot.timed_ns, wall_ns.saturating_sub(recorder.excluded_ns)),
            (&slot.reads, recorder.reads),
            (&slot.writes, recorder.writes),
            (&slot.user_ns, cpu_ns.0),
            (&slot.system_ns, cpu_ns.1),
        ];
        for (to, value) in values {
            to.store(value, Relaxed); // ORDERING: Relaxed, published by `arrive` (O1).
        }
        let mut places = 0;
        for (place, value) in slot.latencies.iter().zip(recorder.latencies.iter_recorded()) {
            // ORDERING: Relaxed here and below, published by `arrive` (O1).
            place[0].store(value.value_iterated_to(), Relaxed);
            place[1].store(value.count_at_value(), Relaxed);
            places += 1;
        }
        slot.places.store(places, Relaxed);
    }

    /// The results of a worker. Read it only after the worker has arrived.
    pub fn tally(&self, worker: usize) -> Tally {
        let slot = self.slot(worker);
        let get = |value: &AtomicU64| value.load(Relaxed); // ORDERING: after `arrived` (O1).
        Tally {
            wall_ns: get(&slot.wall_ns),
            timed_ns: get(&slot.timed_ns),
            reads: get(&slot.reads),
            writes: get(&slot.writes),
            user_ns: get(&slot.user_ns),
            system_ns: get(&slot.system_ns),
        }
    }

    /// The latencies of all workers together.
    pub fn latencies(&self) -> Histogram<u64> {
        let mut all = latencies();
        for slot in (0..self.workers).map(|w| self.slot(w)) {
            // ORDERING: after `arrived` (O1).
            for place in &slot.latencies[..slot.places.load(Relaxed) as usize] {
                all.saturating_record_n(place[0].load(Relaxed), place[1].load(Relaxed));
            }
        }
        all
    }
}

impl Drop for ResultBoard {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this length; no reference outlives the board.
        unsafe { libc::munmap(self.base.as_ptr().cast(), ResultBoard::len_bytes(self.workers)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_histogram_always_fits_its_slot() {
        assert!(latencies().distinct_values() <= LATENCY_PLACES, "{}", latencies().distinct_values());
    }

    #[test]
    fn latencies_of_all_workers_are_merged() {
        let board = ResultBoard::new(2).unwrap();
        for (worker, ns) in [(0, 100), (1, 5000)] {
            let mut recorder = Recorder::new();
            recorder.latencies.record_n(ns, 10).unwrap();
            board.report(worker, &recorder, 1, (0, 0));
        }
        let all = board.latencies();
        assert_eq!(all.len(), 20);
        assert!(all.value_at_quantile(0.4) <= 101 && all.value_at_quantile(0.9) >= 4950);
    }

    #[test]
    fn a_failure_is_told_with_its_worker_and_cut_to_fit() {
        let board = ResultBoard::new(2).unwrap();
        board.fail(1, &"ü".repeat(2000));
        let text = board.failure().unwrap();
        assert!(text.starts_with("worker 1: üü") && text.len() < 1040);
    }
}
