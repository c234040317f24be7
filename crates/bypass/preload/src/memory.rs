//! Memory outside the heap.

use std::ptr::null_mut;

/// Zeroed memory of this length, directly from the kernel.
pub fn pages(len: usize) -> Option<*mut std::ffi::c_void> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    // SAFETY: new memory, at an address of the kernel's choice.
    unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }.ok()
}
