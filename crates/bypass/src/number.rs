//! The number by which the kernel knows an open file.
//!
//! Another thread of a program may close that number, or put another file under it, at any time. What is asked of the kernel by number
//! would then be asked of the other file: a seek would move its offset.

use rustix::fd::BorrowedFd;

/// See the module.
pub trait Number: Copy {
    /// Calls with the number if it means the file, and nobody closes or replaces it meanwhile; `None`: it means something else by now.
    fn while_ours<T>(self, call: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T>;
}

/// Of one that nobody closes for as long as it is borrowed.
impl Number for BorrowedFd<'_> {
    fn while_ours<T>(self, call: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        Some(call(self))
    }
}
