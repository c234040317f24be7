//! Memory that is not the heap's.

use std::ptr::null_mut;

/// Zeroed memory of so many bytes, by the kernel alone.
pub fn pages(len: usize) -> Option<*mut std::ffi::c_void> {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    // SAFETY: new memory, at no place in particular.
    unsafe { mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE) }.ok()
}
