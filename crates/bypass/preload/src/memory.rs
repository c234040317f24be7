//! Memory outside the heap.

use std::ptr::null_mut;

/// Maps zeroed, private memory, without the allocator. `None`: the kernel refused.
pub fn map_zeroed(len_bytes: usize) -> Option<*mut std::ffi::c_void> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    // SAFETY: new memory, at an address of the kernel's choice.
    unsafe { mmap_anonymous(null_mut(), len_bytes, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }
        .ok()
}
