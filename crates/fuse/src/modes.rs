//! Who else looks at a file: programs that change it past the mount, and the kernel's pages of mappings.
//!
//! State       counts by inode, of descriptors that have said or shown it; a descriptor counts once, until it is closed for
//!             good. The kernel keeps it open for as long as it is mapped, duplicated, inherited.
//! Invariants  M1  while an inode counts here as changed past the mount, no attribute of it is given to the kernel to keep.
//!             M2  the engine has been told of a kernel page before that page is read.
//!
//! A read without a lock owner fills a page of the kernel's cache: every file is open for direct I/O, whose reads have an
//! owner, so only mappings ask so. Private ones (programs, libraries) cannot be told from shared ones.
//! Source      protocol review M1; fuse-and-bypass 5.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError};

use heddle_vfs::{FileSystem, Handle, Ino};

/// What one descriptor has said or shown.
#[derive(Default)]
pub(crate) struct Marks {
    changes_past: AtomicBool,
    maps: AtomicBool,
}

#[derive(Default)]
pub(crate) struct Modes {
    changed_past: Mutex<HashMap<Ino, u32>>,
    /// Inodes in the table, so that a mount without such programs looks at one word.
    any: AtomicUsize,
}

impl Modes {
    /// Is this inode changed past the mount?
    pub(crate) fn is_changed_past(&self, ino: Ino) -> bool {
        self.any.load(SeqCst) != 0 && self.table().contains_key(&ino)
    }

    /// This descriptor's program changes the file past the mount; true if that is news of the inode.
    pub(crate) fn note_changes_past(&self, marks: &Marks, ino: Ino) -> bool {
        if marks.changes_past.swap(true, SeqCst) {
            return false;
        }
        let mut table = self.table();
        let count = table.entry(ino).or_insert(0);
        *count += 1;
        let first = *count == 1;
        self.any.store(table.len(), SeqCst);
        first
    }

    /// The kernel is about to fill a page through this descriptor (M2).
    pub(crate) fn note_mapped(&self, fs: &dyn FileSystem, marks: &Marks, handle: &Handle) {
        if !marks.maps.load(SeqCst) && !marks.maps.swap(true, SeqCst) {
            fs.note_kernel_pages(handle, true);
        }
    }

    /// This descriptor is closed for good.
    pub(crate) fn forget(&self, fs: &dyn FileSystem, marks: &Marks, handle: &Handle) {
        if marks.maps.load(SeqCst) {
            fs.note_kernel_pages(handle, false);
        }
        if !marks.changes_past.load(SeqCst) {
            return;
        }
        let mut table = self.table();
        if let Some(count) = table.get_mut(&handle.ino) {
            *count -= 1;
            if *count == 0 {
                table.remove(&handle.ino);
            }
        }
        self.any.store(table.len(), SeqCst);
    }

    fn table(&self) -> std::sync::MutexGuard<'_, HashMap<Ino, u32>> {
        self.changed_past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
