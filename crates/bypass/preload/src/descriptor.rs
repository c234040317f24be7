//! The file behind a number of ours: an open file, shared by numbers that are duplicates of one another.

use heddle_bypass::File;
use std::sync::atomic::{AtomicPtr, AtomicU32};

/// An open file of the table.
pub struct Descriptor {
    /// The file.
    pub file: File,
    /// Number of descriptor numbers that mean it.
    pub number_count: AtomicU32,
    /// The next in the list of files that are closed and not freed yet.
    pub next_closed: AtomicPtr<Descriptor>,
}
