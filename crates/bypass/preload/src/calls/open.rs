//! Opening. The kernel opens the file. If it is a regular file of a heddle mount, this library may serve its data calls.

use crate::real;
use crate::table::opened;
use libc::{c_char, c_int, mode_t};

const CREATED: c_int = libc::O_CREAT | libc::O_WRONLY | libc::O_TRUNC;
const TEMPORARY: c_int = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;

/// The mode is a variadic argument: if it was not passed, its value is not used.
macro_rules! opening {
    ($($name:ident($($arg:ident: $type:ty),*), $flags:expr;)*) => {$(
        /// As the C library's.
        ///
        /// # Safety
        /// As the C library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            // SAFETY: the caller's promise.
            opened(unsafe { real::$name($($arg),*) }, $flags)
        }
    )*};
}

opening! {
    open(path: *const c_char, flags: c_int, mode: mode_t), flags;
    open64(path: *const c_char, flags: c_int, mode: mode_t), flags;
    openat(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t), flags;
    openat64(dir: c_int, path: *const c_char, flags: c_int, mode: mode_t), flags;
    __open_2(path: *const c_char, flags: c_int), flags;
    __open64_2(path: *const c_char, flags: c_int), flags;
    __openat_2(dir: c_int, path: *const c_char, flags: c_int), flags;
    __openat64_2(dir: c_int, path: *const c_char, flags: c_int), flags;
    creat(path: *const c_char, mode: mode_t), CREATED;
    creat64(path: *const c_char, mode: mode_t), CREATED;
    mkstemp(path: *mut c_char), TEMPORARY;
    mkstemp64(path: *mut c_char), TEMPORARY;
    mkostemp(path: *mut c_char, flags: c_int), TEMPORARY | flags;
    mkostemp64(path: *mut c_char, flags: c_int), TEMPORARY | flags;
    mkstemps(path: *mut c_char, suffix: c_int), TEMPORARY;
    mkstemps64(path: *mut c_char, suffix: c_int), TEMPORARY;
    mkostemps(path: *mut c_char, suffix: c_int, flags: c_int), TEMPORARY | flags;
    mkostemps64(path: *mut c_char, suffix: c_int, flags: c_int), TEMPORARY | flags;
}
