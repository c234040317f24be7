//! Addresses before there is anything to map there.

use std::ffi::c_void;
use std::mem::forget;
use std::ptr::null_mut;

use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::param::page_size;

/// What one entry of the last but one level of page tables maps, on x86-64 and on aarch64 with 4 KiB pages.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Addresses for a mapping of a file that begins where a huge page may begin. The kernel maps a file by huge pages only where its
/// pages and the addresses agree; otherwise look-ups of many files walk page tables again and again.
pub(crate) struct Reserved {
    base: *mut c_void,
    len_bytes: usize,
}

impl Reserved {
    pub(crate) fn new(len_bytes: usize) -> Result<Reserved> {
        let len_bytes = len_bytes.checked_add(HUGE_PAGE_BYTES).ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { mmap_anonymous(null_mut(), len_bytes, ProtFlags::empty(), flags)? };
        Ok(Reserved { base, len_bytes })
    }

    /// Where to map.
    pub(crate) fn aligned(&self) -> *mut c_void {
        self.base.wrapping_byte_add(self.skipped())
    }

    fn skipped(&self) -> usize {
        self.base.addr().next_multiple_of(HUGE_PAGE_BYTES) - self.base.addr()
    }

    /// `len_bytes` from the aligned address are in use now; the rest goes.
    pub(crate) fn keep(self, len_bytes: usize) {
        let used = self.skipped() + len_bytes.next_multiple_of(page_size());
        for (from, to) in [(0, self.skipped()), (used, self.len_bytes)] {
            if from < to {
                // SAFETY: the parts of the reservation that nothing has replaced. A failure would leave addresses unused.
                let _ = unsafe { munmap(self.base.wrapping_byte_add(from), to - from) };
            }
        }
        forget(self);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: nobody knows of it.
        let _ = unsafe { munmap(self.base, self.len_bytes) };
    }
}
