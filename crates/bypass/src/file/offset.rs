//! Where the file offset lives, in this library or in the kernel, and how it moves between the two.

use super::{File, Passed, Served};
use crate::kernel_stat::KernelStat;
use crate::number::Number;
use crate::process::forks_are_under_way;
use crate::words::Words;
use rustix::fd::BorrowedFd;
use std::sync::atomic::Ordering::SeqCst;

/// This library's offset counts.
pub const OURS: u8 = 0;
/// The kernel's offset counts, as long as another process with this library may have the open file.
const SHARED: u8 = 1;
/// The kernel's offset counts, for ever.
const KERNELS: u8 = 2;

impl File {
    /// Moves the offset to the kernel for ever: code that knows only the kernel's offset is about to share
    /// it.
    pub fn give_offset_away(&self, number: impl Number) {
        number.while_ours(|fd| {
            self.offset_is(KERNELS, fd);
            self.is_the_kernels_too(fd);
        });
    }

    /// Returns true if the kernel's offset counts for ever. Until then, calls of the kernel that use it go through
    /// [`File::with_kernel_offset`]: another thread may take the offset back at any time.
    pub fn offset_is_the_kernels(&self) -> bool {
        self.whose_offset.load(SeqCst) == KERNELS
    }

    /// Prepares the file for a forked child, which has this library too.
    pub fn share_with_child(&self, fd: BorrowedFd<'_>, words: &mut Words) {
        self.offset_is(SHARED, fd);
        self.append.share(words);
    }

    /// Prepares the file for a program without this library.
    pub fn share_with_stranger(&self, fd: BorrowedFd<'_>) {
        self.offset_is(KERNELS, fd);
        self.is_the_kernels_too(fd);
        self.append.ask_from_now_on();
    }

    fn offset_is(&self, whose: u8, fd: BorrowedFd<'_>) {
        let _held = self.lock.take();
        let now = self.whose_offset.load(SeqCst);
        if now == OURS {
            self.offset_to_kernel(fd);
        }
        self.whose_offset.store(now.max(whose), SeqCst);
    }

    /// Returns true if the offset is ours, or ours again. The caller holds `lock`.
    #[inline]
    pub(super) fn has_offset(&self, number: impl Number) -> bool {
        match self.whose_offset.load(SeqCst) {
            OURS => true,
            SHARED => self.take_offset_back(number),
            _ => false,
        }
    }

    /// Takes the offset back if the processes that shared it have ended: they make no call any more.
    #[cold]
    fn take_offset_back(&self, number: impl Number) -> bool {
        if forks_are_under_way() || !self.append.is_this_process_alone() {
            return false;
        }
        let Some(Ok(now)) = number.while_ours(|fd| rustix::fs::tell(fd)) else { return false };
        self.offset.store(now, SeqCst);
        self.whose_offset.store(OURS, SeqCst);
        true
    }

    /// Makes a kernel call that uses the kernel's offset, with ours; a call that appends finds the end
    /// itself. Returns `None`, and does nothing, if the number no longer means this file.
    pub fn with_kernel_offset<T>(&self, number: impl Number, call: impl FnOnce() -> T) -> Option<T> {
        number.while_ours(|fd| {
            let _held = self.lock.hold();
            if self.append.is_on(fd) == Some(true) {
                KernelStat::refresh(fd);
            }
            if self.whose_offset.load(SeqCst) != OURS {
                return call();
            }
            self.offset_to_kernel(fd);
            let done = call();
            if let Ok(now) = rustix::fs::tell(fd) {
                self.offset.store(now, SeqCst);
            }
            done
        })
    }

    fn offset_to_kernel(&self, fd: BorrowedFd<'_>) {
        // A seek to any offset that a call has reached succeeds in a regular file.
        let _ = rustix::fs::seek(fd, rustix::fs::SeekFrom::Start(self.offset.load(SeqCst)));
    }

    pub(super) fn with_offset<T>(
        &self,
        number: impl Number,
        call: impl FnOnce(u64) -> Served<(T, u64)>,
    ) -> Served<T> {
        let _held = self.lock.hold();
        if !self.has_offset(number) {
            return Err(Passed::KernelOffset);
        }
        Ok(call(self.offset.load(SeqCst))?.map(|(done, offset)| {
            self.offset.store(offset, SeqCst);
            done
        }))
    }
}
