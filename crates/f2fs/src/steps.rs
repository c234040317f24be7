//! Steps of changes: what a call does to nodes, pages, node numbers and blocks in memory, one after the
//! other.
//!
//! If a later step fails, because of the device or an inconsistency, the earlier ones are done. They are not
//! undone; so they must not be written to the device either. The file system is not changed any more
//! (`F2fs::failed`), and the next mount has the durable state. A call that fails before its first step has
//! changed nothing, and only returns its error.
//!
//! State       the number of this thread's steps, for all images: a call works on one.

use std::cell::Cell;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// Called before each step.
pub(crate) fn take() {
    TAKEN.with(|taken| taken.set(taken.get().wrapping_add(1)));
}

/// Number of steps that this thread has taken.
pub(crate) fn taken() -> u64 {
    TAKEN.with(Cell::get)
}
