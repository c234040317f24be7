//! Other descriptors of the file, whose calls the kernel serves: some of these calls use the size that the kernel has cached.
//!
//! State       `announced`: whether the mount knows that this library makes the calls on this descriptor. A forked child has a copy.
//!             `sent`: whether the open file may have a number that this library does not know, for example through a message.
//! Invariants  N1  while the engine tells of others, a call that changes the size has the kernel ask for it before the call returns. So a
//!                 program whose call begins afterwards finds that size.
//!             N2  a program without this library gets a descriptor only after its announcement was taken back, and the kernel then has
//!                 the size. Where a forked child has the file too, it may have announced it since, so that counts as announced.
//!             N3  once the descriptor was sent, N1 holds also where the engine tells of no others: the receiver may be this program.
//! Cost        nothing where the file has one descriptor that was not sent, or all are announced. A descriptor is announced at most once:
//!             by a write beside others, or by the first call after such a write of another process.

use super::File;
use crate::kernel_stat::KernelStat;
use crate::number::Number;
use rustix::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::SeqCst};

/// The mount was told nothing.
const NOT_YET: u8 = 0;
/// The mount was told that we make the calls.
const ANNOUNCED: u8 = 1;
/// The kernel makes some, or the mount does not know such announcements.
const NEVER: u8 = 2;

/// Whether the mount knows whose the descriptor's calls are (see the module).
pub struct Announced {
    to_mount: AtomicU8,
    sent: AtomicBool,
}

impl Announced {
    pub const fn new() -> Announced {
        Announced { to_mount: AtomicU8::new(NOT_YET), sent: AtomicBool::new(false) }
    }
}

impl File {
    /// Announces that this library makes the calls on this descriptor.
    #[cold]
    pub(super) fn announce(&self, number: impl Number) {
        let announced = &self.announced.to_mount;
        if announced.compare_exchange(NOT_YET, ANNOUNCED, SeqCst, SeqCst).is_ok()
            && number.while_ours(KernelStat::calls_go_past_kernel) != Some(true)
        {
            announced.store(NEVER, SeqCst);
        }
    }

    /// Takes the announcement back, for ever (N2): code that knows only the kernel is about to share the descriptor.
    pub(super) fn is_the_kernels_too(&self, fd: BorrowedFd<'_>) {
        let shared = self.append.was_shared();
        match self.announced.to_mount.swap(NEVER, SeqCst) {
            NEVER => {}
            NOT_YET if !shared => {}
            _ => KernelStat::calls_go_through_kernel(fd),
        }
        // What was announced was told no size. What was not was told those of other descriptors alone. A file that was given away before
        // may have grown since.
        match self.engines_size() {
            Some(_) => self.refresh(fd, |size| Some(size) != self.engines_size()),
            // A forked process may have changed it.
            None if shared => KernelStat::refresh(fd),
            None => {}
        }
    }

    /// Prepares the file for a number that this library does not know, in this process or another. A message may carry it there.
    pub fn share_with_unknown_number(&self, fd: BorrowedFd<'_>) {
        // First: a change of the size by another thread either finds it, or comes before the kernel is told the size (N3).
        self.announced.sent.store(true, SeqCst);
        self.share_with_stranger(fd);
    }

    /// As `File::is_the_kernels_too`, where nothing is known of the program's children: it is told the descriptor.
    pub fn is_told(&self, fd: BorrowedFd<'_>) {
        if self.announced.to_mount.swap(NEVER, SeqCst) != NEVER {
            KernelStat::calls_go_through_kernel(fd);
            KernelStat::refresh(fd);
        }
    }

    /// After a write up to `end`: makes the kernel know a size that contains it (N1).
    #[inline]
    pub(super) fn tell_others(&self, number: impl Number, end: u64) {
        if self.others_use_size() {
            self.tell_size(number, |size| size < end);
        }
    }

    /// After a change of the size: makes the kernel know it (N1).
    pub(super) fn tell_others_size(&self, fd: BorrowedFd<'_>) {
        if self.others_use_size() {
            self.tell_size(fd, |size| Some(size) != self.engines_size());
        }
    }

    #[cold]
    fn tell_size(&self, number: impl Number, stale: impl Fn(u64) -> bool) {
        self.announce(number);
        if self.others_use_size() {
            number.while_ours(|fd| self.refresh(fd, stale));
        }
    }

    fn refresh(&self, fd: BorrowedFd<'_>, stale: impl Fn(u64) -> bool) {
        KernelStat::refresh_if(fd, stale, || self.engines_size().unwrap_or_default());
    }

    #[inline]
    fn others_use_size(&self) -> bool {
        self.announced.sent.load(SeqCst)
            || self.opened_here().is_some_and(|opened| opened.pages.have_others())
    }

    fn engines_size(&self) -> Option<u64> {
        self.opened_here().map(|opened| opened.pages.size_bytes())
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod asks;
#[cfg(test)]
mod tests;
