//! Which process this is, and whether it forks.
//!
//! A forked child has its parent's files and none of its handles and pages: whatever it keeps of an engine carries the number of the
//! process that made it.

use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

static PROCESS: AtomicU32 = AtomicU32::new(1);
static FORKS: AtomicU32 = AtomicU32::new(0);

/// Which process this is: a forked child is another one.
#[inline]
pub(crate) fn process() -> u32 {
    PROCESS.load(SeqCst)
}

/// Says, in a forked child, that this is another process now: it opens handles of its own.
pub fn this_is_a_child() {
    PROCESS.fetch_add(1, SeqCst);
    FORKS.store(0, SeqCst);
}

/// Says that what this process has opened is left alone from now on, as a parent's is in its child.
pub(crate) fn this_is_another() {
    PROCESS.fetch_add(1, SeqCst);
}

/// A fork begins: offsets that are given to the kernel from now on stay there (F3 of `file`).
pub fn a_fork_begins() {
    FORKS.fetch_add(1, SeqCst);
}

/// A fork has ended, in the parent.
pub fn a_fork_ended() {
    FORKS.fetch_sub(1, SeqCst);
}

/// Is a fork of this process under way?
#[inline]
pub(crate) fn forks_are_under_way() -> bool {
    FORKS.load(SeqCst) != 0
}
