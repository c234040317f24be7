//! What the kernel has of a file through the mount, for callers that bypass it: pages, because a process has mapped the file, and the
//! size, by which the kernel serves some calls on other descriptors.
//!
//! State       one word: the count of descriptors through which the kernel caches pages; two bits about the mount's descriptors
//!             of the file ([`Openers`]), which the mount counts in its own memory. The word lies beside what every call reads.
//! Invariants  K1  a caller looks before a call, and again after a change. If the kernel's pages may have missed the change, the
//!                 change is repeated through the mount. If the kernel's size may have, the kernel is made to ask for it.
//!             K2  the mount notes a descriptor before a program has it.
//! Orderings   SeqCst: a caller stores to the file, then loads the word; the mount stores the word, then reads for the kernel, or lets a
//!             program open the file. One of the two sees the other.

use super::VolatileInode;
use heddle_arena::sync::atomic::AtomicU32;
use heddle_vfs::Openers;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// The count of descriptors through which the kernel caches pages.
const PAGES: u32 = (1 << 30) - 1;
/// [`Openers::are_others`].
const OTHERS: u32 = 1 << 30;
/// [`Openers::are_asked`].
const ASKED: u32 = 1 << 31;

/// The word (see the module).
#[repr(transparent)]
pub struct Kernel(AtomicU32);

impl Kernel {
    pub(super) fn new() -> Kernel {
        Kernel(AtomicU32::new(0))
    }

    /// Adds or removes a descriptor through which the kernel caches pages.
    pub fn count_pages(&self, keeps: bool) {
        if keeps {
            self.0.fetch_add(1, SeqCst);
        } else {
            self.0.fetch_sub(1, SeqCst);
        }
    }

    /// Notes whose the mount's descriptors of the file are.
    pub fn note_openers(&self, openers: Openers) {
        for (bit, is) in [(OTHERS, openers.are_others()), (ASKED, openers.are_asked())] {
            match is {
                true => self.0.fetch_or(bit, SeqCst),
                false => self.0.fetch_and(!bit, SeqCst),
            };
        }
    }

    /// Nothing is noted any more: the inode is dead, or the mount is whose descriptors were.
    pub fn forget(&self) {
        // ORDERING: Relaxed: the next inode's generation follows, or the next mount.
        self.0.store(0, Relaxed);
    }
}

/// The word of a file, for a caller that bypasses the mount.
#[derive(Clone, Copy)]
pub struct KernelPages<'f>(&'f VolatileInode);

impl<'f> KernelPages<'f> {
    /// That of an inode on which a handle is open.
    pub fn of(inode: &'f VolatileInode) -> KernelPages<'f> {
        KernelPages(inode)
    }

    #[inline]
    fn has(self, bits: u32) -> bool {
        self.0.kernel.0.load(SeqCst) & bits != 0
    }

    /// Returns true if the kernel caches pages now.
    #[inline]
    pub fn are_kept(self) -> bool {
        self.has(PAGES)
    }

    /// Returns true if even a reader must look closer.
    #[inline]
    pub fn concern_readers(self) -> bool {
        self.has(PAGES | ASKED)
    }

    /// Returns true if a library asks whose the descriptors of the file are.
    pub fn are_asked(self) -> bool {
        self.has(ASKED)
    }

    /// Returns true if the kernel may serve calls on another descriptor, by the size that it has cached.
    #[inline]
    pub fn have_others(self) -> bool {
        self.has(OTHERS)
    }

    /// The size of the file.
    pub fn size_bytes(self) -> u64 {
        self.0.size()
    }

    /// Returns true if a change of the content must clear set-id bits or capabilities. The mount does that.
    #[inline]
    pub fn changes_take_rights(self) -> bool {
        self.0.mode().gives_rights()
    }
}
