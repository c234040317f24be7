//! Asynchronous interfaces of the kernel are refused, so that programs use the calls that are served.
//! (MariaDB, fio and PostgreSQL fall back by themselves.) With `HEDDLE_AIO=pass` they are passed on, and go
//! through the mount.

use libc::{c_int, c_void};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// Returns true if they are refused.
pub fn refused() -> bool {
    static SAID: AtomicU8 = AtomicU8::new(0);
    // ORDERING: Relaxed, a thread that finds no answer reads the variable again, with the same result.
    match SAID.load(Relaxed) {
        0 => {
            let pass = std::env::var_os("HEDDLE_AIO").is_some_and(|said| said == "pass");
            SAID.store(1 + u8::from(pass), Relaxed);
            !pass
        }
        said => said == 1,
    }
}

/// Gives all offsets to the kernel: reads and writes of a ring are not seen here, and with offset -1 they use
/// the kernel's.
pub fn offsets_are_the_kernels() {
    crate::table::OFFSETS_ARE_KERNELS.store(true, std::sync::atomic::Ordering::SeqCst);
    crate::fork::offsets_to_kernel(true);
}

macro_rules! refusing {
    ($($name:ident($($arg:ident: $type:ty),*);)*) => {$(
        /// The C library's function, refused by default; see the module.
        ///
        /// # Safety
        /// As the library's.
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($arg: $type),*) -> c_int {
            if !refused() {
                offsets_are_the_kernels();
                static NEXT: std::sync::atomic::AtomicPtr<c_void> = std::sync::atomic::AtomicPtr::new(std::ptr::null_mut());
                const NAME: &std::ffi::CStr =
                    match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                        Ok(name) => name,
                        Err(_) => c"",
                    };
                let next = crate::real::next(NAME, &NEXT);
                if !next.is_null() {
                    // SAFETY: the library's function of this name has this form.
                    let next: unsafe extern "C" fn($($type),*) -> c_int = unsafe { std::mem::transmute(next) };
                    // SAFETY: the caller's promise.
                    return unsafe { next($($arg),*) };
                }
            }
            -libc::ENOSYS
        }
    )*};
}

// Both libraries return the negative error number, and so does io_uring_setup of liburing.
refusing! {
    io_setup(events: c_int, context: *mut c_void);
    io_queue_init(events: c_int, context: *mut c_void);
    io_uring_queue_init(entries: u32, ring: *mut c_void, flags: u32);
    io_uring_queue_init_params(entries: u32, ring: *mut c_void, params: *mut c_void);
    io_uring_queue_init_mem(entries: u32, ring: *mut c_void, params: *mut c_void, buf: *mut c_void, len: usize);
    io_uring_setup(entries: u32, params: *mut c_void);
}
