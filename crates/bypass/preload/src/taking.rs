//! Whether files are taken up.
//!
//! State       the number of threads that are taking up a file; whether files are taken up at all, and whether the kernel may be asked what
//!             a file is.

use crate::inherited_filter;
use crate::thread::this_thread;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// Number of threads between finding an engine and having its file in the table.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// True: a thread is unmapping all engines.
pub static PAUSED: AtomicBool = AtomicBool::new(false);
/// True: the program has set a filter of system calls, all memory is locked, one number may mean two files, or this is a child without
/// fork(3)'s handlers. The kernel serves all files opened from now on.
static ENDED: AtomicBool = AtomicBool::new(false);
/// True: it is the first or the last of these. The kernel is not even asked for the sake of counts.
static MAY_NOT_ASK: AtomicBool = AtomicBool::new(false);

/// A thread that is taking up a file (D4 of `table`).
pub struct Taking;

impl Taking {
    /// `None`: no file may be taken up now.
    pub fn enter() -> Option<Taking> {
        COUNT.fetch_add(1, SeqCst);
        let taking = Taking;
        (!PAUSED.load(SeqCst) && may()).then_some(taking)
    }
}

impl Drop for Taking {
    fn drop(&mut self) {
        COUNT.fetch_sub(1, SeqCst);
    }
}

/// Returns true if a thread is taking up a file.
pub fn is_any() -> bool {
    COUNT.load(SeqCst) != 0
}

/// In a forked child: the parent's other threads do not exist.
pub fn reset_in_child() {
    COUNT.store(0, SeqCst);
    PAUSED.store(false, SeqCst);
}

/// From now on no file is taken up, and no mount is asked. In a vfork child nothing is taken up anyway, and its parent goes on.
pub fn no_more() {
    if !this_thread().is_vfork_child() {
        ENDED.store(true, SeqCst);
    }
}

/// As [`no_more`], and nothing is asked or counted.
pub fn no_more_and_ask_nothing() {
    if !this_thread().is_vfork_child() {
        MAY_NOT_ASK.store(true, SeqCst);
    }
    no_more();
}

/// Returns false if no file is taken up any more.
pub fn may() -> bool {
    !ENDED.load(SeqCst) && !inherited_filter::is_deadly()
}

/// Returns true if the kernel may be asked what a file is, and files be counted: no filter of system calls may end the program for that.
pub fn may_ask() -> bool {
    !MAY_NOT_ASK.load(SeqCst) && !inherited_filter::is_deadly()
}
