//! Process slots: file locks by which the kernel tells which processes are alive.
//!
//! State       A process slot is one byte of the arena's file, and a generation in the arena. A process holds it by an exclusive lock of
//!             that byte through an open file description of its own (`F_OFD_SETLK`). It maps one page of that description, keeps the page
//!             from its children (`MADV_DONTFORK`), and closes the descriptor: from then on the mapping alone keeps the lock.
//! Invariants  S1  The kernel drops the lock when the address space ends (exit of the last thread, exec, a fatal signal), and not before.
//!                 Closing descriptors does not drop it, and a fork passes nothing of it to the child. Process numbers and namespaces play
//!                 no part.
//!             S2  A process that has just locked a process slot raises its generation before it stores its identity in a lane. So a
//!                 process of an older generation is gone, and one of the present generation is gone if the byte is not locked.
//!             S3  The page is at the offset `process_slot * page_bytes()`. So `/proc/PID/maps` shows the process slot of each process to
//!                 users who may read it.
//! Limits      If another thread forks between opening and closing, the child has the descriptor. The process slot stays taken until the
//!             child ends or executes another program. A caller that cannot ask (without a descriptor of the arena) takes the process for
//!             alive.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::arena::Arena;
use crate::sync::atomic::AtomicU32;
use crate::sync::atomic::Ordering::SeqCst;

/// Number of processes that can hold a process slot at once.
pub const PROCESS_SLOTS: u16 = if cfg!(any(loom, shuttle)) { 8 } else { 1024 };

/// Bytes of a process slot's page: the kernel's own, because it maps no smaller part of a file.
pub fn page_bytes() -> u64 {
    rustix::param::page_size() as u64
}

const THREAD_BITS: u32 = 22;
pub(crate) const THREAD_MASK: u64 = (1 << THREAD_BITS) - 1;
const PROCESS_SLOT_BITS: u32 = 11;
const GENERATION_SHIFT: u32 = THREAD_BITS + PROCESS_SLOT_BITS;
const GENERATION_MASK: u32 = (1 << (64 - GENERATION_SHIFT)) - 1;
const _: () = assert!((PROCESS_SLOTS as u64) < 1 << PROCESS_SLOT_BITS);

/// A process: its process slot, and the process slot's generation. No two processes of a mount have the same.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ProcessTag(u64);

impl ProcessTag {
    /// Decodes a word, which may contain anything.
    pub fn from_word(word: u64) -> ProcessTag {
        ProcessTag(word & !THREAD_MASK)
    }

    fn new(process_slot: u16, generation: u32) -> ProcessTag {
        ProcessTag(
            u64::from(generation & GENERATION_MASK) << GENERATION_SHIFT
                | u64::from(process_slot + 1) << THREAD_BITS,
        )
    }

    /// As a number; never 0 for a process that holds a process slot.
    pub fn word(self) -> u64 {
        self.0
    }

    /// The process slot; `None` if the word is invalid.
    pub fn process_slot(self) -> Option<u16> {
        let number = (self.0 >> THREAD_BITS) as u16 & ((1 << PROCESS_SLOT_BITS) - 1);
        number.checked_sub(1).filter(|process_slot| *process_slot < PROCESS_SLOTS)
    }

    fn generation(self) -> u32 {
        (self.0 >> GENERATION_SHIFT) as u32
    }
}

/// The process slot of the calling process. It has no `Drop`: a forked child that drops its copy must not give up the
/// parent's process slot. [`ProcessSlot::leave`] gives it up.
pub struct ProcessSlot {
    tag: ProcessTag,
    pid: u32,
    page: *mut std::ffi::c_void,
}

// SAFETY: the page is never accessed; it is only unmapped, once.
unsafe impl Send for ProcessSlot {}
// SAFETY: as above.
unsafe impl Sync for ProcessSlot {}

impl ProcessSlot {
    pub(crate) fn take(arena: &Arena, process_slots: &[AtomicU32]) -> io::Result<ProcessSlot> {
        let pid = std::process::id();
        if crate::sync::in_model() || arena.fd().is_none() && arena.is_private() {
            // There is one process only, and no other can check it.
            let generation = process_slots[0].fetch_add(1, SeqCst).wrapping_add(1);
            return Ok(ProcessSlot { tag: ProcessTag::new(0, generation), pid, page: std::ptr::null_mut() });
        }
        let gone = || io::Error::other("the program has closed the descriptor of the arena");
        let fd = arena.fd().ok_or_else(gone)?;
        // A separate open: the lock belongs to this description, which only this process has. `self` would be the first thread, which may
        // have ended.
        let own = format!("/proc/thread-self/fd/{}", fd.as_raw_fd());
        let own = File::options().read(true).write(true).open(own)?;
        let first = first_tried(pid);
        let free = (0..PROCESS_SLOTS)
            .map(|step| (first + step) % PROCESS_SLOTS)
            .find(|process_slot| lock(&own, *process_slot));
        let process_slot =
            free.ok_or_else(|| io::Error::other("all process slots are taken by attached processes"))?;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        let offset = u64::from(process_slot) * page_bytes();
        // SAFETY: a new mapping at an address of the kernel's choice, which is never accessed.
        let page = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                page_bytes() as usize,
                ProtFlags::empty(),
                flags,
                &own,
                offset,
            )?
        };
        // SAFETY: the mapping just made.
        if let Err(error) = unsafe { rustix::mm::madvise(page, page_bytes() as usize, Advice::LinuxDontFork) }
        {
            // SAFETY: as above, and no other thread knows it.
            let _ = unsafe { rustix::mm::munmap(page, page_bytes() as usize) };
            return Err(error.into());
        }
        // S2.
        let generation = process_slots[usize::from(process_slot)].fetch_add(1, SeqCst).wrapping_add(1);
        Ok(ProcessSlot { tag: ProcessTag::new(process_slot, generation), pid, page })
    }

    /// The identity of this process.
    pub fn tag(&self) -> ProcessTag {
        self.tag
    }

    /// Returns true if the caller is the process that took the process slot. A child that runs in its parent's memory
    /// (vfork) is not: after the child's death, a lease of the child would name a thread that does not exist.
    pub fn is_the_callers(&self) -> bool {
        std::process::id() == self.pid
    }

    /// Gives up the process slot: from now on the process counts as gone. Called in the process that took the process slot,
    /// not in its children.
    pub fn leave(self) {
        // SAFETY: it is the caller's last use of it.
        unsafe { self.leave_unfreed() };
    }

    /// As [`ProcessSlot::leave`], for places where no memory may be freed: it only makes a system call.
    ///
    /// # Safety
    /// No thread uses the process slot any more, and it is not given up a second time.
    pub unsafe fn leave_unfreed(&self) {
        if !self.page.is_null() {
            // SAFETY: mapped by `take` in this process, and unmapped only here.
            let _ = unsafe { rustix::mm::munmap(self.page, page_bytes() as usize) };
        }
    }

    /// Returns true if thread `thread` of the process that took the process slot has ended. Returns false if another
    /// process asks (a child in its parent's memory).
    pub fn thread_has_ended(&self, thread: u32) -> bool {
        if crate::sync::in_model() || !self.is_the_callers() {
            return false;
        }
        // SAFETY: signal 0 is not delivered: the kernel only checks that it could be.
        let there = unsafe { libc::syscall(libc::SYS_tgkill, self.pid as i32, thread as i32, 0) };
        there != 0 && io::Error::last_os_error().raw_os_error() == Some(libc::ESRCH)
    }
}

/// The process slot that a process tries first: one of its own, so that few of those before it are taken.
fn first_tried(pid: u32) -> u16 {
    (pid.wrapping_mul(0x9E37_79B1) >> 16) as u16 % PROCESS_SLOTS
}

/// TID of the calling thread in its PID namespace.
pub(crate) fn this_thread() -> u32 {
    if crate::sync::in_model() {
        return 1;
    }
    rustix::thread::gettid().as_raw_nonzero().get() as u32 & THREAD_MASK as u32
}

fn byte_lock(process_slot: u16) -> libc::flock {
    // SAFETY: plain numbers, for which zero is valid.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = libc::F_WRLCK as i16;
    lock.l_whence = libc::SEEK_SET as i16;
    (lock.l_start, lock.l_len) = (process_slot.into(), 1);
    lock
}

fn lock(own: &File, process_slot: u16) -> bool {
    // SAFETY: a lock that lives as long as the call.
    unsafe { libc::fcntl(own.as_raw_fd(), libc::F_OFD_SETLK, &byte_lock(process_slot)) == 0 }
}

/// Implements [`LaneTable::is_gone`](crate::LaneTable::is_gone).
pub(crate) fn is_gone(arena: &Arena, process_slots: &[AtomicU32], process: ProcessTag) -> bool {
    if crate::sync::in_model() {
        // All processes of a model share one slot.
        return false;
    }
    let Some(process_slot) = process.process_slot() else { return true };
    // S2.
    if process_slots[usize::from(process_slot)].load(SeqCst) & GENERATION_MASK != process.generation() {
        return true;
    }
    arena.fd().is_some_and(|fd| is_free(fd, process_slot))
}

fn is_free(fd: BorrowedFd<'_>, process_slot: u16) -> bool {
    if crate::sync::in_model() {
        return false;
    }
    let mut asked = byte_lock(process_slot);
    // SAFETY: a lock that lives as long as the call.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &mut asked) };
    done == 0 && asked.l_type == libc::F_UNLCK as i16
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn processes_try_different_process_slots_first() {
        let first: HashSet<u16> = (1..=PROCESS_SLOTS.into()).map(first_tried).collect();
        assert!(first.iter().all(|process_slot| *process_slot < PROCESS_SLOTS));
        assert!(first.len() > usize::from(PROCESS_SLOTS) / 2, "{} of {PROCESS_SLOTS}", first.len());
    }
}
