//! Steps of changes: what a call does to nodes, pages, node numbers and blocks in memory, one after the other.
//!
//! A call whose last step fails, because the device does or what it holds makes no sense, has done the ones before. Nothing undoes them: so
//! nobody writes them down either. The file system is not changed any more (`F2fs::failed`), and the next mount has what was durable.
//! A call that fails before its first step has changed nothing, and says so alone.
//!
//! State       a count of this thread's steps; of whichever image, for a call works on one.

use std::cell::Cell;

thread_local! {
    static TAKEN: Cell<u64> = const { Cell::new(0) };
}

/// What follows is a step.
pub(crate) fn take() {
    TAKEN.with(|taken| taken.set(taken.get().wrapping_add(1)));
}

/// How many this thread has taken.
pub(crate) fn taken() -> u64 {
    TAKEN.with(Cell::get)
}
