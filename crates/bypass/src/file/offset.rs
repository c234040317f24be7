//! Where the file offset lives, in this library or in the kernel, and how it moves between the two.
//!
//! Waiting     A thread that holds a file's lock may wait for the heap, and a signal handler's thread may have locked the heap. So a
//!             handler waits for a file's lock only for a bounded time.
//! Invariants  O1  a handler whose time is over makes no call: its offset would be that of a call under way. It does wait as long as the
//!                 lock's holder is in a call of the kernel, which ends without the heap.
//!             O2  a handler that gives an offset away, and whose time is over, gives that from before the call under way. That call moves
//!                 the kernel's offset, too, when it ends: it stores its offset, then looks whose counts. The handler sets whose counts,
//!                 then looks at the offset again.
//!             O3  the holder of the lock lends its offset to the kernel for a call. If it is given away meanwhile, the kernel has it
//!                 already, and the holder does not take it back.

use super::{File, Passed, Served, guarded};
use crate::kernel_stat::KernelStat;
use crate::number::Number;
use crate::patience::is_in_handler;
use crate::process::forks_are_under_way;
use crate::words::Words;
use rustix::fd::BorrowedFd;
use rustix::io::Errno;
use std::sync::atomic::Ordering::SeqCst;

// In this order: a giver sets the larger one.
/// This library's offset counts.
pub const OURS: u8 = 0;
/// The kernel's offset counts, for a call of this process.
const LENT: u8 = 1;
/// The kernel's offset counts, as long as another process with this library may have the open file.
const SHARED: u8 = 2;
/// The kernel's offset counts, for ever.
const KERNELS: u8 = 3;

/// The offset is the kernel's while this lives (O3).
struct Lent<'f> {
    file: &'f File,
    fd: BorrowedFd<'f>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Ok(now) = rustix::fs::tell(self.fd) {
            self.file.offset.store(now, SeqCst);
        }
        let _given_away = self.file.whose_offset.compare_exchange(LENT, OURS, SeqCst, SeqCst);
    }
}

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
        // A fork counts as a handler, but it waits for no allocator (`fork_gate`).
        let in_time = whose != SHARED && is_in_handler();
        let _held = if in_time { self.lock.take_in_time() } else { Some(self.lock.take()) };
        let offset = self.offset.load(SeqCst);
        if self.whose_offset.load(SeqCst) == OURS {
            self.offset_to_kernel(fd);
        }
        let before = self.whose_offset.fetch_max(whose, SeqCst);
        if before == OURS && self.offset.load(SeqCst) != offset {
            self.offset_to_kernel(fd); // O2
        }
    }

    /// Called at the end of a call that has found the offset to be ours. The caller holds `lock`.
    pub(super) fn offset_moves(&self, number: impl Number, to: u64) {
        self.offset.store(to, SeqCst);
        if self.whose_offset.load(SeqCst) != OURS {
            let _gone = number.while_ours(|fd| self.offset_to_kernel(fd)); // O2
        }
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
        if self.whose_offset.compare_exchange(SHARED, OURS, SeqCst, SeqCst).is_err() {
            return false;
        }
        true
    }

    /// Makes a kernel call that uses the kernel's offset, with ours; a call that appends finds the end
    /// itself. Returns `None`, and does nothing, if the number no longer means this file.
    pub fn with_kernel_offset<T>(&self, number: impl Number, call: impl FnOnce() -> T) -> Option<T> {
        number.while_ours(|fd| {
            let _held = self.lock.hold();
            self.lending(fd, call)
        })
    }

    /// As [`File::with_kernel_offset`], in a signal handler. Fails if another thread's call has the offset for too long (O1).
    pub fn with_kernel_offset_in_handler<T>(
        &self,
        number: impl Number,
        call: impl FnOnce() -> T,
    ) -> Option<Result<T, Errno>> {
        number.while_ours(|fd| {
            let _held = loop {
                match self.lock.take_in_time() {
                    Some(held) => break held,
                    None if self.whose_offset.load(SeqCst) == LENT => {}
                    None => return Err(Errno::DEADLK),
                }
            };
            Ok(self.lending(fd, call))
        })
    }

    /// Makes the call with our offset in the kernel, if it is ours. The caller holds `lock`.
    fn lending<T>(&self, fd: BorrowedFd<'_>, call: impl FnOnce() -> T) -> T {
        if self.append.is_on(fd) == Some(true) {
            KernelStat::refresh(fd);
        }
        let is_ours = self.whose_offset.compare_exchange(OURS, LENT, SeqCst, SeqCst).is_ok();
        let _lent = is_ours.then(|| {
            self.offset_to_kernel(fd);
            Lent { file: self, fd }
        });
        call()
    }

    /// Opens the handle and leases a lane, unless the kernel is to make the call. What fails here, the call itself finds again.
    #[inline]
    pub(super) fn get_ready(&self) {
        if self.whose_offset.load(SeqCst) == OURS || self.flags.append {
            let _opened = self.opened();
            let _leased = guarded(|| {
                self.at.fs().lease_lane();
                Ok(())
            });
        }
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
            self.offset_moves(number, offset);
            done
        }))
    }
}
