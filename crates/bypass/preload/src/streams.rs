//! Numbers of streams of the C library (stdio). It uses them inside itself with the kernel's offset (P2).
//!
//! State  a bit for each number. It is set when a stream with this number is made, and cleared by fclose(3). A number that is closed
//!        or replaced beneath its stream keeps its bit: the stream writes to whatever has the number then.

use crate::thread::this_thread;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// As many as the table has.
const NUMBERS: usize = 1024 * 1024;

static STREAMS: [AtomicU64; NUMBERS / 64] = [const { AtomicU64::new(0) }; NUMBERS / 64];

fn word(fd: i32) -> Option<(&'static AtomicU64, u64)> {
    let at = usize::try_from(fd).ok()?;
    Some((STREAMS.get(at / 64)?, 1 << (at % 64)))
}

/// Notes that a stream has this number. A vfork child has its own numbers, and its parent's memory.
pub fn add(fd: i32) {
    if let Some((word, bit)) = word(fd).filter(|_| !this_thread().is_vfork_child()) {
        word.fetch_or(bit, SeqCst);
    }
}

/// Notes that the stream with this number is closed.
pub fn remove(fd: i32) {
    let is_set = |(word, bit): &(&AtomicU64, u64)| word.load(SeqCst) & bit != 0;
    if let Some((word, bit)) = word(fd).filter(is_set).filter(|_| !this_thread().is_vfork_child()) {
        word.fetch_and(!bit, SeqCst);
    }
}

/// Returns true if a stream may use the file that gets this number. 0 to 2 are the standard streams.
pub fn may_use(fd: i32) -> bool {
    fd <= 2 || word(fd).is_some_and(|(word, bit)| word.load(SeqCst) & bit != 0)
}
