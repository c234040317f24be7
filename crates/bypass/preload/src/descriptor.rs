//! What a number of ours means: an open file, shared by the numbers that were duplicated from one another.

use heddle_bypass::File;
use std::sync::atomic::{AtomicPtr, AtomicU32};

/// An open file of the table.
pub struct Descriptor {
    /// The file.
    pub file: File,
    /// Numbers that mean it.
    pub numbers: AtomicU32,
    /// The next of those that were closed and are not given back yet.
    pub next_closed: AtomicPtr<Descriptor>,
}
