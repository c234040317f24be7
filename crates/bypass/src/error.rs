//! Errors as the numbers that C programs get.

pub use rustix::io::Errno;

/// The number of an engine's error.
pub fn errno_of(error: &heddle_vfs::Error) -> Errno {
    Errno::from_raw_os_error(error.errno())
}
