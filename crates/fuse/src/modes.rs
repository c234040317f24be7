//! Writers of a file, counted: the count decides about the kernel's own copies of attributes. (Of bytes: `pages`.)
//!
//! State       counts of descriptors open for writing, by a hash of the inode; a descriptor counts until it is closed for good
//!             (the kernel keeps it open for as long as it is mapped, duplicated, inherited). Two inodes that share a count
//!             cost round trips, nothing else.
//! Invariants  M1  while an inode is open for writing, no attribute of it is given to the kernel to keep, nor afterwards one that was
//!                 asked for before; what the kernel was given before, or is on its way to it, is dropped when it opens.
//!
//! Why M1      of two answers that are under way at once the kernel keeps the one that comes first, and hands the other to its
//!             caller without keeping it. If the second is the newer, its caller has seen a size that the next stat(2), answered
//!             from what is kept, takes back. And a program may change the file past the mount, of which the kernel knows nothing.
//! Order       opening counts, then drops: a request that the kernel has sent before that changes nothing it keeps (it numbers
//!             its attributes for that), and one sent later finds the count. Closing adds to `closings`, then uncounts: a call that
//!             finds no count, and as many closings as before the engine was asked, has asked after the last change. A file that is made
//!             needs no drop: the kernel lets no look-up into a directory while it makes something there, and knows nothing of it yet.
//!
//! A read without a lock owner fills a page of the kernel's cache: every file is open for direct I/O, whose reads have an
//! owner, so only mappings ask so. Private ones (programs, libraries) cannot be told from shared ones.
//! Source      protocol review M1; fuse-and-bypass 5.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::SeqCst};

use heddle_vfs::{Handle, Ino};

/// Counts: so many that a few hundred files open for writing leave nearly all others their own.
const COUNTS: usize = 8192;

/// Counts of something by inode.
pub(crate) struct Counts(Box<[AtomicU32]>);

impl Default for Counts {
    fn default() -> Counts {
        Counts((0..COUNTS).map(|_| AtomicU32::new(0)).collect())
    }
}

impl Counts {
    /// That of this inode, and of others with its hash.
    pub(crate) fn of(&self, ino: Ino) -> &AtomicU32 {
        // The top bits of a product by an odd constant: neighbouring inodes go apart.
        let hash = ino.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (u64::BITS - COUNTS.ilog2());
        &self.0[hash as usize]
    }
}

#[derive(Default)]
pub(crate) struct Modes {
    writers: Counts,
    /// Descriptors open for writing that were closed for good.
    closings: AtomicU64,
}

/// When the engine was asked for an attribute.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    closings: u64,
}

impl Modes {
    /// To be called before the engine is asked for an attribute.
    pub(crate) fn asked(&self) -> Asked {
        Asked { closings: self.closings.load(SeqCst) }
    }

    /// May the kernel keep attributes of this inode that the engine gave since `asked`?
    pub(crate) fn may_be_kept(&self, ino: Ino, asked: Asked) -> bool {
        self.writers.of(ino).load(SeqCst) == 0 && self.closings.load(SeqCst) == asked.closings
    }

    /// A descriptor of this file opens; true if what the kernel has of it must be dropped then, before anyone hears of the descriptor.
    pub(crate) fn opens(&self, handle: &Handle) -> bool {
        if handle.flags.write {
            self.writers.of(handle.ino).fetch_add(1, SeqCst);
        }
        handle.flags.write
    }

    /// This descriptor is closed for good.
    pub(crate) fn closes(&self, handle: &Handle) {
        if handle.flags.write {
            self.closings.fetch_add(1, SeqCst);
            self.writers.of(handle.ino).fetch_sub(1, SeqCst);
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
        let modes = Modes::default();
        let may_be_kept = || modes.may_be_kept(Ino(7), modes.asked());
        let [reader, writer, other] = [OpenFlags::READ, OpenFlags::WRITE, OpenFlags::READ_WRITE].map(handle);
        assert!(!modes.opens(&reader) && may_be_kept());
        assert!(modes.opens(&writer) && !may_be_kept());
        assert!(modes.opens(&other) && !may_be_kept());
        modes.closes(&writer);
        assert!(!may_be_kept());
        modes.closes(&other);
        assert!(may_be_kept());
        modes.closes(&reader);
        assert!(may_be_kept());
    }

    #[test]
    fn what_was_asked_for_before_a_writer_closed_is_not_kept() {
        let modes = Modes::default();
        let before_it_opened = modes.asked();
        let writer = handle(OpenFlags::WRITE);
        modes.opens(&writer);
        let while_it_was_open = modes.asked();
        modes.closes(&writer);
        assert!(!modes.may_be_kept(Ino(7), before_it_opened));
        assert!(!modes.may_be_kept(Ino(7), while_it_was_open));
        assert!(modes.may_be_kept(Ino(7), modes.asked()));
    }
}
