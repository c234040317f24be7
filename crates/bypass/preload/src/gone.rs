//! Files that no number and no thread names any more, on their way to the engine and the heap.
//!
//! State       lists of files, each of one thread; the number of files in all of them.
//! Invariants  G1  a file is added under the table's lock, and given back without that and the lock of `replaced`: a signal handler may
//!                 wait for them without a limit, and its thread may have locked the heap.
//!             G2  a file counts from its addition until its engine has it back. So a thread that finds no such file, under the table's
//!                 lock, may unmap the engines.

use crate::descriptor::Descriptor;
use crate::real;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Files that are given back when this is dropped. The thread is busy until then. It holds no lock of the table then, and uses no file by
/// number.
pub struct Gone {
    /// Linked by `next_closed`.
    first: Cell<*mut Descriptor>,
}

impl Gone {
    /// No file.
    pub const fn none() -> Gone {
        Gone { first: Cell::new(null_mut()) }
    }

    /// Adds a file. The caller holds the table's lock.
    ///
    /// # Safety
    /// A boxed descriptor that no entry, no list and no thread names.
    pub unsafe fn add(&self, descriptor: *mut Descriptor) {
        COUNT.fetch_add(1, SeqCst);
        // SAFETY: the caller's promise.
        let known = unsafe { &*descriptor };
        // Under the lock, which keeps forks out: a child would have the shared word for as long as it lives.
        known.file.end_sharing();
        known.next_closed.store(self.first.replace(descriptor), SeqCst);
    }
}

impl Drop for Gone {
    fn drop(&mut self) {
        let (mut at, errno) = (self.first.replace(null_mut()), real::errno());
        while !at.is_null() {
            // SAFETY: as `add` has got it.
            let descriptor = unsafe { Box::from_raw(at) };
            at = descriptor.next_closed.load(SeqCst);
            descriptor.file.close();
            COUNT.fetch_sub(1, SeqCst);
        }
        real::set_errno(errno);
    }
}

/// Returns true if a thread is giving a file back. The caller holds the table's lock.
pub fn is_any() -> bool {
    COUNT.load(SeqCst) != 0
}

/// In a forked child: the parent's other threads do not exist, and the child leaves their files as they are.
pub fn reset_in_child() {
    COUNT.store(0, SeqCst);
}
