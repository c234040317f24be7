//! For callers that bypass the mount: its process, and what its kernel has of a file.

use super::NvmFs;
use crate::state::inode::KernelPages;
use crate::state::lease;
use heddle_vfs::Handle;
use std::sync::atomic::Ordering::SeqCst;

impl NvmFs {
    /// Names the process that mounted the image, or that took it over last.
    pub fn daemon(&self) -> u64 {
        self.core.root().daemon.load(SeqCst)
    }

    /// Leases a lane for the calling thread, if it has none. A later call of the thread then needs less of the heap.
    #[inline]
    pub fn lease_lane(&self) {
        lease::ahead(&self.core);
    }

    /// Tells what the kernel has of this file; the handle must stay open meanwhile.
    pub fn kernel_pages(&self, handle: &Handle) -> Option<KernelPages<'_>> {
        self.open_inode(handle).ok().map(|inode| KernelPages::of(inode.volatile))
    }
}
