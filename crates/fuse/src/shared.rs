//! State shared by the threads that serve a mount and the mount's owner.
//!
//! Invariant: after a panic the engine is not called again. A broken invariant gives no answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{
    AtomicBool,
    Ordering::{Relaxed, SeqCst},
};

use fuser::{INodeNo, Notifier};
use heddle_vfs::{Error, Ino, Result};

use crate::guard::Guard;

/// The shared state (see the module).
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) notifier: OnceLock<Notifier>,
    /// The kernel's number of the connection.
    pub(crate) connection: OnceLock<u32>,
    shut_down: AtomicBool,
    broken: AtomicBool,
    /// Nothing serves the mount any more.
    pub(crate) ended: AtomicBool,
}

impl Shared {
    pub(crate) fn is_shut_down(&self) -> bool {
        self.shut_down.load(SeqCst)
    }

    /// Calls the engine, unless it has panicked.
    pub(crate) fn guarded<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let failed = || Error::Io("the engine panicked; the mount is out of service".into());
        // ORDERING: Relaxed: a flag alone, no other data depends on it; seeing it late costs one more call.
        if self.broken.load(Relaxed) {
            return Err(failed());
        }
        if self.is_shut_down() {
            return Err(Error::Io("the file system was shut down".into()));
        }
        catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            self.broken.store(true, Relaxed); // ORDERING: Relaxed, a flag alone.
            Err(failed())
        })
    }

    pub(crate) fn shut_down(&self) {
        self.shut_down.store(true, SeqCst);
    }

    /// For a thread that waits for the kernel. Returns `None` if there can be no guard.
    pub(crate) fn guard(&self) -> Option<Guard> {
        Guard::start(*self.connection.get()?)
    }

    /// Makes the kernel forget its attributes of this inode, also those on their way to it.
    pub(crate) fn drop_attributes(&self, ino: Ino) {
        if let Some(notifier) = self.notifier.get() {
            // It fails for an inode that the kernel does not know (any more): then it has nothing to forget.
            let _ = notifier.inval_inode(INodeNo(ino.0), -1, 0);
        }
    }

    /// Makes the kernel write back and drop all its pages of this inode, as [`Shared::drop_pages`] does.
    pub(crate) fn drop_all_pages(&self, ino: Ino) -> bool {
        // The kernel takes a length of 0 as the rest of the file.
        self.drop_pages(ino, 0, 0)
    }

    /// Makes the kernel write back and drop its pages in `len_bytes` bytes of this inode, or in all behind
    /// `offset` if that is 0. Waits for threads that serve, and no signal ends that wait: the caller has a
    /// [`Guard`]. Returns false if the kernel refused the notification. It does not answer whether each page went.
    pub(crate) fn drop_pages(&self, ino: Ino, offset: u64, len_bytes: u64) -> bool {
        let Some(notifier) = self.notifier.get() else { return true };
        // An inode that the kernel does not know has no pages, and is no error.
        notifier.inval_inode(INodeNo(ino.0), offset as i64, len_bytes as i64).is_ok()
    }
}
