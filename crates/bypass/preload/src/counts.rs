//! A thread's counts of its calls: served, or passed on, with the reason.

use heddle_bypass::Passed;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The kinds of counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(usize)]
pub enum Count {
    /// Files taken up at their open.
    Opened,
    /// Regular files of a mount that the kernel serves from their open on. docs/bypass.md (`not_taken`) lists the reasons.
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

/// The names of the counts in reports.
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

/// The reasons for which calls are passed on, with their names in reports.
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
    /// Counts one call.
    pub fn add(&self, what: Count, bytes: usize) {
        bump(&self.calls[what as usize], 1);
        match what {
            Count::Read => bump(&self.bytes_read, bytes as u64),
            Count::Write => bump(&self.bytes_written, bytes as u64),
            _ => {}
        }
    }

    /// Counts one call that was passed on.
    pub fn add_passed(&self, why: Passed) {
        bump(&self.passed[why as usize], 1);
    }

    /// Resets all counts.
    pub fn clear(&self) {
        for counter in self.calls.iter().chain(&self.passed).chain([&self.bytes_read, &self.bytes_written]) {
            // ORDERING: Relaxed, only a count.
            counter.store(0, Relaxed);
        }
    }
}

/// Only the thread itself adds to its counters, so no locked instruction is needed.
fn bump(counter: &AtomicU64, by: u64) {
    // ORDERING: Relaxed, only a count.
    counter.store(counter.load(Relaxed) + by, Relaxed);
}
