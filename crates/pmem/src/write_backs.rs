//! The calls of `msync` that are under way for one open file.
//!
//! State       a place for each call under way, with the call's number and its thread. Neither lock nor heap: a forked child finds
//!             nothing locked.
//! Why         The kernel tells a failed write-back to one caller of an open file. Another one, whose pages were lost at the same
//!             time, may hear of success. So a call that succeeded waits for those that overlap it, and then asks whether one failed.
//! Invariants  I1  a call has a place before its `msync`, and notes its failure before it leaves the place. While the place lacks its
//!                 thread, the `msync` has not begun, and nobody waits for it.
//!             I2  a call waits for those alone that have a place at its own end, and it has left its own by then: no circle, no
//!                 starvation.
//!             I3  a call waits for no call of its own thread, which is interrupted by a signal handler.
//!             I4  a call waits a limited time: a thread that ended in the middle keeps its place. Then the place is free.
//!             I5  places of another process, which a fork copied, are free.

use crate::process;
use rustix::thread::futex;
use std::cell::Cell;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize};
use std::time::{Duration, Instant};

/// No working device takes so long.
const WAIT_MAX: Duration = if cfg!(test) { Duration::from_secs(2) } else { Duration::from_secs(120) };

/// Calls beyond these wait for a place.
const PLACES: usize = 64;

/// The thread is not there yet.
const INCOMPLETE: u64 = 1;

#[derive(Debug)]
struct Place {
    /// The process in the high half, a number in the low one, and [`INCOMPLETE`]; 0: free.
    call: AtomicU64,
    /// Where this thread's [`MARK`] lies.
    thread: AtomicUsize,
}

/// The calls of one open file. Away from words that every store loads.
#[derive(Debug)]
#[repr(align(64))]
pub(crate) struct WriteBacks {
    places: [Place; PLACES],
    calls_so_far: AtomicU32,
    /// Counts calls that have left their place: the futex of those that wait.
    left: AtomicU32,
}

/// A call under way, until dropped.
pub(crate) struct WriteBack<'a> {
    all: &'a WriteBacks,
    place: &'a Place,
    call: u64,
}

thread_local! {
    static MARK: Cell<u8> = const { Cell::new(0) };
}

fn this_thread() -> usize {
    MARK.with(|mark| std::ptr::from_ref(mark).addr())
}

fn is_of(process: u32, call: u64) -> bool {
    call >> 32 == u64::from(process)
}

impl Default for WriteBacks {
    fn default() -> WriteBacks {
        let place = |_| Place { call: AtomicU64::new(0), thread: AtomicUsize::new(0) };
        WriteBacks {
            places: std::array::from_fn(place),
            calls_so_far: AtomicU32::new(0),
            left: AtomicU32::new(0),
        }
    }
}

impl WriteBacks {
    pub(crate) fn begin(&self) -> WriteBack<'_> {
        let process = process::generation();
        let call = u64::from(process) << 32 | u64::from(self.calls_so_far.fetch_add(2, SeqCst));
        loop {
            let left = self.left.load(SeqCst);
            for place in &self.places {
                let there = place.call.load(SeqCst);
                if is_of(process, there) {
                    continue;
                }
                // Free, or I5.
                if place.call.compare_exchange(there, call | INCOMPLETE, SeqCst, SeqCst).is_ok() {
                    place.thread.store(this_thread(), SeqCst);
                    place.call.store(call, SeqCst);
                    return WriteBack { all: self, place, call };
                }
            }
            self.sleep(left, Duration::from_millis(100));
        }
    }

    fn sleep(&self, left: u32, wait: Duration) {
        if let Ok(wait) = wait.try_into() {
            // Whatever ends the wait, the caller looks again.
            let _ = futex::wait(&self.left, futex::Flags::PRIVATE, left, Some(&wait));
        }
    }

    fn wake_all(&self) {
        self.left.fetch_add(1, SeqCst);
        // A wake cannot fail: the word is mapped.
        let _ = futex::wake(&self.left, futex::Flags::PRIVATE, i32::MAX as u32);
    }
}

impl WriteBack<'_> {
    /// Ends this call, and waits until all that overlap it have noted their result.
    pub(crate) fn end_and_wait(self) {
        let (all, process) = (self.all, process::generation());
        drop(self);
        // I2.
        let under_way = all.places.each_ref().map(|place| {
            let (call, thread) = (place.call.load(SeqCst), place.thread.load(SeqCst));
            let waits = is_of(process, call) && call & INCOMPLETE == 0 && thread != this_thread();
            if waits { call } else { 0 }
        });
        let until = Instant::now() + WAIT_MAX;
        for (place, call) in all.places.iter().zip(under_way).filter(|(_, call)| *call != 0) {
            loop {
                let left = all.left.load(SeqCst);
                if place.call.load(SeqCst) != call {
                    break;
                }
                match until.saturating_duration_since(Instant::now()) {
                    // I4. If the call goes on after all, nobody waits for it.
                    Duration::ZERO => {
                        let _ = place.call.compare_exchange(call, 0, SeqCst, SeqCst);
                    }
                    wait => all.sleep(left, wait),
                }
            }
        }
    }
}

impl Drop for WriteBack<'_> {
    fn drop(&mut self) {
        // The place may be another's by now (I4).
        let _ = self.place.call.compare_exchange(self.call, 0, SeqCst, SeqCst);
        self.all.wake_all();
    }
}

#[cfg(test)]
mod tests;
