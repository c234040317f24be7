//! A shared mapping of a file or device, unmapped when its last user is dropped.
//!
//! State       base and length; both fixed for the mapping's life.
//! Invariants  I1  a file's blocks are reserved before it is stored to. So a full file system is an error of
//!                 `create` or `open`, not a SIGBUS of a later store. A file that another process truncates while it is
//!                 mapped still ends in SIGBUS.

use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Called with bytes done and bytes in total.
pub(crate) type Progress<'a> = Option<&'a (dyn Fn(u64, u64) + Sync)>;

/// Bytes that one entry of the second-lowest page-table level maps, on x86-64 and on aarch64 with 4 KiB
/// pages.
pub(crate) const HUGE_PAGE_BYTES: u64 = 2 << 20;

/// Step of reserving and pre-faulting, in whole large pages, so that progress can be reported.
const STEP_BYTES: u64 = 64 << 20;
/// More threads do not fault faster: they contend in the kernel.
const PREFAULT_THREADS_MAX: u64 = 16;

#[derive(Debug)]
pub(crate) struct Mapping {
    base: *mut u8,
    len_bytes: u64,
}

// SAFETY: the mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}
// SAFETY: `Mapping` itself gives no access to the memory; `Region` does, and argues for it there.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len_bytes` of `file`. With `sync`, only if stores need no more than a flush and a fence (DAX).
    pub(crate) fn of_file(
        file: BorrowedFd<'_>,
        len_bytes: u64,
        read_only: bool,
        sync: bool,
    ) -> Result<Mapping, Errno> {
        let access = if read_only { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
        let flags = if sync { MapFlags::SHARED_VALIDATE | MapFlags::SYNC } else { MapFlags::SHARED };
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let base = unsafe { mmap(null_mut(), len_bytes as usize, access, flags, file, 0)? };
        Ok(Mapping::undumped(base, len_bytes))
    }

    /// As [`Mapping::of_file`], for a file in memory, at an address where a large page can begin (`huge` I1).
    pub(crate) fn of_memory(file: BorrowedFd<'_>, len_bytes: u64, read_only: bool) -> Result<Mapping, Errno> {
        let len = len_bytes as usize;
        let reserved = len.checked_add(HUGE_PAGE_BYTES as usize).ok_or(Errno::NOMEM)?;
        let nothing = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let start = unsafe { mmap_anonymous(null_mut(), reserved, ProtFlags::empty(), nothing)? };
        let skipped = start.addr().next_multiple_of(HUGE_PAGE_BYTES as usize) - start.addr();
        let access = if read_only { ProtFlags::READ } else { ProtFlags::READ | ProtFlags::WRITE };
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        // SAFETY: replaces a part of the reservation just made, which no other thread knows.
        let mapped = unsafe { mmap(start.wrapping_byte_add(skipped), len, access, flags, file, 0) };
        for (from, to) in [(0, skipped), (skipped + len, reserved)] {
            // SAFETY: parts of the reservation that were not replaced. A failure leaves addresses unused.
            let _ = unsafe { munmap(start.wrapping_byte_add(from), to - from) };
        }
        // If that fails, the part to be replaced is not unmapped: the kernel may have released it, and
        // another thread may have mapped it since.
        Ok(Mapping::undumped(mapped?, len_bytes))
    }

    /// A mapping of a file, which a core dump of this process must not contain.
    fn undumped(base: *mut std::ffi::c_void, len_bytes: u64) -> Mapping {
        // SAFETY: the mapping just made. Advice only.
        let _ = unsafe { madvise(base, len_bytes as usize, Advice::LinuxDontDump) };
        Mapping { base: base.cast(), len_bytes }
    }

    /// Zeroed memory of this process alone.
    pub(crate) fn private(len_bytes: u64) -> Result<Mapping, Errno> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: the kernel chooses the address, so no existing mapping is replaced.
        let base = unsafe { mmap_anonymous(null_mut(), len_bytes as usize, access, flags)? };
        // Huge pages, as in a DAX mapping: otherwise most of a 4 KiB read of a large file would be page-table
        // walks. SAFETY: the mapping just made. Advice only: a kernel without huge pages refuses, which
        // changes speed and nothing else.
        let _ = unsafe { madvise(base, len_bytes as usize, Advice::LinuxHugepage) };
        Ok(Mapping { base: base.cast(), len_bytes })
    }

    /// Unmaps it, once and early.
    ///
    /// # Safety
    /// No thread uses it any more, and it is not dropped.
    pub(crate) unsafe fn unmap_without_freeing(&self) {
        // SAFETY: the caller's promise.
        let _ = unsafe { munmap(self.base.cast(), self.len_bytes as usize) };
    }

    pub(crate) fn base(&self) -> *mut u8 {
        self.base
    }

    pub(crate) fn len_bytes(&self) -> u64 {
        self.len_bytes
    }

    /// Takes the page faults of the first pages now, with as many threads as there are processors. On tmpfs a
    /// first touch costs about ten times as much as a 4 KiB copy, and most of the time of mounting a large
    /// image is spent here.
    pub(crate) fn prefault(
        &self,
        used_bytes: u64,
        read_only: bool,
        progress: Progress<'_>,
    ) -> Result<(), Errno> {
        let advice = if read_only { Advice::LinuxPopulateRead } else { Advice::LinuxPopulateWrite };
        side_by_side(used_bytes, progress, |at, bytes| self.populate(at, bytes, advice))
    }

    /// Puts large pages under a range, as far as the kernel permits; no byte changes.
    pub(crate) fn collapse(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        let from = self.base.wrapping_add(at as usize);
        // SAFETY: within the mapping; no byte changes.
        match unsafe { libc::madvise(from.cast(), bytes as usize, libc::MADV_COLLAPSE) } {
            0 => Ok(()),
            _ => Err(Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::INVAL)),
        }
    }

    pub(crate) fn populate(&self, at: u64, bytes: u64, advice: Advice) -> Result<(), Errno> {
        let from = self.base.wrapping_add(at as usize);
        loop {
            // SAFETY: within the mapping; populating changes no byte.
            match unsafe { madvise(from.cast::<c_void>(), bytes as usize, advice) } {
                Err(Errno::INTR | Errno::AGAIN) => {}
                // Kernels before 5.14 do not have it: page faults are then taken one by one at the first
                // touch.
                Ok(()) | Err(Errno::INVAL) => return Ok(()),
                Err(errno) => return Err(errno),
            }
        }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: unmapped nowhere else, and the holder of an address in it holds this mapping.
        let unmapped = unsafe { munmap(self.base.cast(), self.len_bytes as usize) };
        debug_assert_eq!(unmapped, Ok(()));
    }
}

/// Runs the steps of a range with as many threads as there are processors, and reports progress; the first
/// error ends it.
pub(crate) fn side_by_side(
    len_bytes: u64,
    progress: Progress<'_>,
    step: impl Fn(u64, u64) -> Result<(), Errno> + Sync,
) -> Result<(), Errno> {
    let steps = len_bytes.div_ceil(STEP_BYTES);
    let (next, done) = (AtomicU64::new(0), AtomicU64::new(0));
    let worker = || {
        loop {
            // ORDERING: Relaxed, each number is drawn once; joining the threads orders the rest.
            let at = next.fetch_add(1, Relaxed) * STEP_BYTES;
            let Some(bytes) = len_bytes.checked_sub(at).filter(|left| *left > 0) else {
                return Ok(());
            };
            let bytes = bytes.min(STEP_BYTES);
            if let Err(errno) = step(at, bytes) {
                // ORDERING: Relaxed, a thread that misses it takes one unnecessary step.
                next.store(steps, Relaxed);
                return Err(errno);
            }
            // ORDERING: Relaxed, a count for messages.
            let so_far = done.fetch_add(bytes, Relaxed) + bytes;
            if let Some(tell) = progress {
                tell(so_far, len_bytes);
            }
        }
    };
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let threads = cores.min(steps).clamp(1, PREFAULT_THREADS_MAX);
    std::thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(worker)).collect();
        let mine = worker();
        // A thread that failed leaves its steps undone.
        others.into_iter().fold(mine, |all, thread| all.and(thread.join().unwrap_or(Ok(()))))
    })
}

/// Reserves the blocks of a file, holes included. Where the file system has no such call, a new file is written full of
/// zeros, and an old one keeps its holes.
pub(crate) fn reserve(
    file: BorrowedFd<'_>,
    len_bytes: u64,
    is_new: bool,
    progress: Progress<'_>,
) -> Result<(), Errno> {
    in_steps(len_bytes, progress, |at, bytes| match fallocate(file, FallocateFlags::empty(), at, bytes) {
        Err(Errno::OPNOTSUPP | Errno::NOSYS) if is_new => write_zeros(file, at, bytes),
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
        done => done,
    })
}

fn write_zeros(file: BorrowedFd<'_>, at: u64, bytes: u64) -> Result<(), Errno> {
    let zeros = vec![0u8; 1 << 20];
    let mut done = 0;
    while done < bytes {
        let part = zeros.len().min((bytes - done) as usize);
        match rustix::io::pwrite(file, &zeros[..part], at + done) {
            Ok(written) => done += written as u64,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn in_steps(
    len_bytes: u64,
    progress: Progress<'_>,
    mut step: impl FnMut(u64, u64) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let mut done = 0;
    while done < len_bytes {
        let bytes = STEP_BYTES.min(len_bytes - done);
        match step(done, bytes) {
            Ok(()) => done += bytes,
            Err(Errno::INTR | Errno::AGAIN) => continue,
            Err(errno) => return Err(errno),
        }
        if let Some(tell) = progress {
            tell(done, len_bytes);
        }
    }
    Ok(())
}
