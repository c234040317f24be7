//! For callers that bypass the mount: its process, and what its kernel has of a file.

use super::NvmFs;
use crate::state::inode::KernelPages;
use heddle_vfs::Handle;
use std::sync::atomic::Ordering::SeqCst;

impl NvmFs {
    /// Names the process that mounted the image, or that took it over last.
    pub fn daemon(&self) -> u64 {
        self.core.root().daemon.load(SeqCst)
    }

    /// Tells what the kernel has of this file; the handle must stay open meanwhile.
    pub fn kernel_pages(&self, handle: &Handle) -> Option<KernelPages<'_>> {
        self.open_inode(handle).ok().map(|inode| KernelPages::of(inode.volatile))
    }
}
