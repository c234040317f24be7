//! ioctl(2): requests that the kernel answers by its own offset and its cached size.

use super::copies::{refresh_kernel_size, with_our_offset};
use crate::real;
use libc::{c_int, c_ulong, c_void};

/// `FS_IOC_RESVSP`, `FS_IOC_UNRESVSP`, both again for 64 bits, and `FS_IOC_ZERO_RANGE`: older names of
/// fallocate(2), which may count from the offset or from the end.
const OLD_ALLOCATIONS: [c_ulong; 5] = [0x4030_5828, 0x4030_5829, 0x4030_582a, 0x4030_582b, 0x4030_5839];

/// As ioctl(2).
///
/// # Safety
/// As ioctl(2).
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    // SAFETY: the caller's promise.
    with_our_offset_and_size(fd, request, || unsafe { real::ioctl(fd, request, arg) })
}

/// Makes the call. If the request uses the offset or the size, the kernel's size is refreshed first, and the
/// kernel has our offset during the call.
pub fn with_our_offset_and_size<T: From<i8>>(fd: c_int, request: c_ulong, call: impl Fn() -> T) -> T {
    if request != libc::FIONREAD && !OLD_ALLOCATIONS.contains(&request) {
        return call();
    }
    refresh_kernel_size(fd);
    with_our_offset(fd, call)
}
