//! The identity of this process, and whether it forks.
//!
//! A forked child has its parent's files, but none of its handles and pages. So all that this library keeps
//! of an engine carries the number of the process that made it.

use crate::words;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

static PROCESS: AtomicU32 = AtomicU32::new(1);
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The identity of this process: a forked child has another one.
#[inline]
pub(crate) fn process() -> u32 {
    PROCESS.load(SeqCst)
}

/// Marks, in a forked child, that this is another process now: it opens handles of its own.
pub fn this_is_a_child() {
    PROCESS.fetch_add(1, SeqCst);
    FORKS.store(0, SeqCst);
    words::reset_in_child();
}

/// Makes this process disown all that it has opened, as a child does with its parent's: it leaves it alone.
pub(crate) fn disown_all_opened() {
    PROCESS.fetch_add(1, SeqCst);
}

/// Marks the start of a fork: offsets that are given to the kernel from now on stay there (F3 of `file`).
pub fn a_fork_begins() {
    FORKS.fetch_add(1, SeqCst);
}

/// Marks the end of a fork, in the parent.
pub fn a_fork_ended() {
    FORKS.fetch_sub(1, SeqCst);
}

/// Returns true if a fork of this process is under way.
#[inline]
pub(crate) fn forks_are_under_way() -> bool {
    FORKS.load(SeqCst) != 0
}
