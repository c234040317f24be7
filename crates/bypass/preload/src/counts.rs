//! What a thread counts of its calls: served, or passed on and why.

use heddle_bypass::Passed;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Count {
    /// Files that were taken up when they were opened.
    Opened,
    /// Files of a heddle mount that were not: it could not be attached to, or they have set-id bits or capabilities.
    NotTaken,
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Seeks.
    Seek,
    /// fsync and the like.
    Sync,
    /// fstat.
    Stat,
    /// ftruncate, fallocate.
    Resize,
    /// readahead, posix_fadvise.
    Advise,
}

/// Under which names they are reported.
pub const COUNTS: [(&str, Count); 9] = [
    ("opened", Count::Opened),
    ("not_taken", Count::NotTaken),
    ("read", Count::Read),
    ("write", Count::Write),
    ("seek", Count::Seek),
    ("sync", Count::Sync),
    ("stat", Count::Stat),
    ("resize", Count::Resize),
    ("advise", Count::Advise),
];

/// Why calls are passed on, and under which names that is reported.
pub const REASONS: [(&str, Passed); 6] = [
    ("mapped", Passed::Mapped),
    ("kernel_offset", Passed::KernelOffset),
    ("engine", Passed::Engine),
    ("unserved", Passed::Unserved),
    ("in_handler", Passed::InHandler),
    ("limited", Passed::Limited),
];

/// Counters of one thread.
#[derive(Default)]
pub struct Counts {
    pub(crate) calls: [AtomicU64; COUNTS.len()],
    pub(crate) passed: [AtomicU64; REASONS.len()],
    pub(crate) bytes_read: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
}

impl Counts {
    /// One more.
    pub fn add(&self, what: Count, bytes: usize) {
        bump(&self.calls[what as usize], 1);
        match what {
            Count::Read => bump(&self.bytes_read, bytes as u64),
            Count::Write => bump(&self.bytes_written, bytes as u64),
            _ => {}
        }
    }

    /// One more that was passed on.
    pub fn add_passed(&self, why: Passed) {
        bump(&self.passed[why as usize], 1);
    }

    /// Back to nothing.
    pub fn clear(&self) {
        for counter in self.calls.iter().chain(&self.passed).chain([&self.bytes_read, &self.bytes_written]) {
            // ORDERING: Relaxed, a count alone.
            counter.store(0, Relaxed);
        }
    }
}

/// Only its own thread adds: no locked instruction.
fn bump(counter: &AtomicU64, by: u64) {
    // ORDERING: Relaxed, a count alone.
    counter.store(counter.load(Relaxed) + by, Relaxed);
}
