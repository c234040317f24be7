//! An open file description that this library serves; descriptors that dup(2) made share it.

use heddle_bypass::File;
use std::sync::atomic::{AtomicPtr, AtomicU32};

/// An open file description of the table.
pub struct Descriptor {
    /// The file.
    pub file: File,
    /// Number of file descriptors that refer to it.
    pub number_count: AtomicU32,
    /// The next in the list of files that are closed and not freed yet.
    pub next_closed: AtomicPtr<Descriptor>,
}
