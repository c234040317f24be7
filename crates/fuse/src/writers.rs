//! Counts of a file's writers, which decide whether the kernel may cache its attributes. (For its bytes:
//! `pages`.)
//!
//! State       counts of descriptors open for writing, by a hash of the inode. A descriptor counts until it is closed for good (the
//!             kernel keeps it open while it is mapped, duplicated or inherited). Two inodes that share a count cost round trips only.
//! Invariants  M1  while an inode is open for writing, the kernel gets no attribute of it to keep, nor afterwards one that was asked for
//!                 before. Attributes that the kernel has, or is about to get, are dropped when the inode is opened for writing.
//!
//! Why M1      of two answers under way at once the kernel keeps the first to arrive; it passes the other to its caller without keeping
//! it.
//!             If the second is newer, its caller has seen a size that the next stat(2), answered from the cache, takes back.
//!             And a program may change the file past the mount, which the kernel does not see.
//! Order       opening counts, then drops. A request that the kernel sent before the drop changes nothing that it keeps (it numbers its
//!             attributes for that), and a request sent later finds the count. Closing adds to `closings`, then uncounts. A call that
//!             finds no count, and as many closings as before it asked the engine, has asked after the last change. A created file needs
//!             no drop: the kernel allows no lookup in a directory while it creates there, and does not know the file yet.
//!
//! A read without a lock owner fills a page of the kernel's cache: every file is open for direct I/O, whose
//! reads have an owner, so only mappings ask this way. Private ones (programs, libraries) cannot be told from
//! shared ones.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use heddle_vfs::{Handle, Ino};

/// Number of counts: so many that with a few hundred files open for writing nearly all other files share no
/// count with them.
const COUNTS: usize = 8192;

/// Counts by inode.
pub(crate) struct Counts(Box<[AtomicU32]>);

impl Default for Counts {
    fn default() -> Counts {
        Counts((0..COUNTS).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Counts {
    /// The count of this inode, and of others with its hash.
    pub(crate) fn of(&self, ino: Ino) -> &AtomicU32 {
        // The top bits of a product by an odd constant: neighbouring inodes get distant counts.
        let hash = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - COUNTS.ilog2());
        &self.0[hash as usize]
    }
}

#[derive(Default)]
pub(crate) struct Writers {
    open_for_writing: Counts,
    /// How many descriptors open for writing were closed for good.
    closings: AtomicU64,
}

/// The state when the engine was asked for an attribute.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    closings: u64,
}

impl Writers {
    /// Call this before the engine is asked for an attribute.
    pub(crate) fn asked(&self) -> Asked {
        Asked { closings: self.closings.load(SeqCst) }
    }

    /// Returns true if the kernel may keep attributes of this inode that the engine gave since `asked`.
    pub(crate) fn may_be_kept(&self, ino: Ino, asked: Asked) -> bool {
        self.open_for_writing.of(ino).load(SeqCst) == 0 && self.closings.load(SeqCst) == asked.closings
    }

    /// Counts a descriptor of this file. Returns true if the kernel's attributes must be dropped before any
    /// other thread knows the descriptor.
    pub(crate) fn opens(&self, handle: &Handle) -> bool {
        if handle.flags.write {
            self.open_for_writing.of(handle.ino).fetch_add(1, SeqCst);
        }
        handle.flags.write
    }

    /// Uncounts a descriptor that is closed for good.
    pub(crate) fn closes(&self, handle: &Handle) {
        if handle.flags.write {
            self.closings.fetch_add(1, SeqCst);
            self.open_for_writing.of(handle.ino).fetch_sub(1, SeqCst);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_vfs::OpenFlags;

    fn handle(flags: OpenFlags) -> Handle {
        Handle { ino: Ino(7), flags, token: 0 }
    }

    #[test]
    fn nothing_is_kept_of_a_file_that_is_open_for_writing() {
        let writers = Writers::default();
        let may_be_kept = || writers.may_be_kept(Ino(7), writers.asked());
        let [reader, writer, other] = [OpenFlags::READ, OpenFlags::WRITE, OpenFlags::READ_WRITE].map(handle);
        assert!(!writers.opens(&reader) && may_be_kept());
        assert!(writers.opens(&writer) && !may_be_kept());
        assert!(writers.opens(&other) && !may_be_kept());
        writers.closes(&writer);
        assert!(!may_be_kept());
        writers.closes(&other);
        assert!(may_be_kept());
        writers.closes(&reader);
        assert!(may_be_kept());
    }

    #[test]
    fn what_was_asked_for_before_a_writer_closed_is_not_kept() {
        let writers = Writers::default();
        let before_it_opened = writers.asked();
        let writer = handle(OpenFlags::WRITE);
        writers.opens(&writer);
        let while_it_was_open = writers.asked();
        writers.closes(&writer);
        assert!(!writers.may_be_kept(Ino(7), before_it_opened));
        assert!(!writers.may_be_kept(Ino(7), while_it_was_open));
        assert!(writers.may_be_kept(Ino(7), writers.asked()));
    }
}
