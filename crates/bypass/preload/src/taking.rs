//! Whether files are taken up.
//!
//! State       the number of threads that are taking up a file; whether files are taken up at all, and whether the kernel may be asked what
//!             a file is.

use crate::thread::this_thread;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::atomic::{AtomicBool, AtomicU32};

/// Number of threads between finding an engine and having its file in the table.
static COUNT: AtomicU32 = AtomicU32::new(0);
/// True: a thread is unmapping all engines.
pub static PAUSED: AtomicBool = AtomicBool::new(false);
/// True: a filter of system calls may end the program for a call that attaching takes, all memory is locked, or one number may mean two
/// files. The kernel serves all files opened from now on.
static ENDED: AtomicBool = AtomicBool::new(false);
/// True: it is a filter of system calls. The kernel is not even asked for the sake of counts.
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

/// As [`no_more`], because of a filter of system calls.
pub fn no_more_and_ask_nothing() {
    if !this_thread().is_vfork_child() {
        MAY_NOT_ASK.store(true, SeqCst);
    }
    no_more();
}

/// Returns false if no file is taken up any more.
pub fn may() -> bool {
    !ENDED.load(SeqCst)
}

/// Returns true if a filter of system calls may not end the program for asking what a file is.
pub fn may_ask() -> bool {
    !MAY_NOT_ASK.load(SeqCst)
}
