//! The number by which the kernel knows an open file.
//!
//! Another thread of the program may close that number, or put another file under it, at any time. A kernel
//! call by that number would then change the other file: a seek would move its offset.

use rustix::fd::BorrowedFd;

/// The number of an open file (see the module).
pub trait Number: Copy {
    /// Calls `call` with the number if it means the file, and keeps it so meanwhile. Returns `None` if it no
    /// longer means the file.
    fn while_ours<T>(self, call: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T>;
}

/// A descriptor that stays open for as long as it is borrowed.
impl Number for BorrowedFd<'_> {
    fn while_ours<T>(self, call: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        Some(call(self))
    }
}
