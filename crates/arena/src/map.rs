//! Mappings: the memory of an arena.

use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{MemfdFlags, SealFlags, SeekFrom};
use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::reserve::{HUGE_PAGE_BYTES, ReservedRange};

/// The first bytes of an arena stay on small pages.
const SMALL_ARENA_BYTES: u64 = 8 << 20;

/// The offset of the huge page that bytes `[from, to)` reach into, if they are the first to do so. Small arenas get none, nor does a part
/// at the end that holds no whole one.
fn begins_huge_page(from: u64, to: u64, len_bytes: u64) -> Option<u64> {
    let huge = HUGE_PAGE_BYTES as u64;
    let start = (to - 1) / huge * huge;
    (start >= SMALL_ARENA_BYTES && from <= start && start + huge <= len_bytes).then_some(start)
}

/// A readable and writable mapping of whole pages, unmapped when dropped.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len_bytes: usize,
    fd: Option<Kept>,
}

/// A descriptor that the program may close without our knowledge (`closefrom`) and whose number it may reuse.
/// It is used, and closed, only while it is still the same file.
struct Kept {
    fd: ManuallyDrop<OwnedFd>,
    device: u64,
    inode: u64,
}

impl Kept {
    fn of(fd: OwnedFd) -> rustix::io::Result<Kept> {
        let stat = rustix::fs::fstat(&fd)?;
        Ok(Kept { fd: ManuallyDrop::new(fd), device: stat.st_dev, inode: stat.st_ino })
    }

    fn get(&self) -> Option<BorrowedFd<'_>> {
        let stat = rustix::fs::fstat(&*self.fd).ok()?;
        ((stat.st_dev, stat.st_ino) == (self.device, self.inode)).then(|| self.fd.as_fd())
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.get().is_some() {
            // SAFETY: dropped only here.
            unsafe { ManuallyDrop::drop(&mut self.fd) };
        }
    }
}

// SAFETY: a mapping belongs to no thread; the arena decides how its bytes are used.
unsafe impl Send for Mapping {}
// SAFETY: as above; nothing here changes after construction.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Zeroed memory of this process. Untouched pages cost nothing.
    pub(crate) fn private(len_bytes: usize) -> rustix::io::Result<Mapping> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                std::ptr::null_mut(),
                len_bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                flags,
            )?
        };
        Ok(Mapping::new(base, len_bytes, None))
    }

    /// Zeroed memory that other processes can map through its descriptor. The size is sealed, so that no peer can turn an access
    /// into a SIGBUS by truncating it.
    pub(crate) fn shared(len_bytes: usize) -> rustix::io::Result<Mapping> {
        let fd = rustix::fs::memfd_create("heddle-arena", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
        rustix::fs::ftruncate(&fd, len_bytes as u64)?;
        rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
        Mapping::of(fd)
    }

    /// Maps all of the file `fd`. The descriptor must be sealed against shrinking.
    pub(crate) fn of(fd: OwnedFd) -> rustix::io::Result<Mapping> {
        if !rustix::fs::fcntl_get_seals(&fd)?.contains(SealFlags::SHRINK) {
            return Err(rustix::io::Errno::PERM);
        }
        let file = File::from(fd);
        let len_bytes = rustix::fs::fstat(&file)?.st_size as usize;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE | MapFlags::FIXED;
        let at = ReservedRange::new(len_bytes)?;
        // SAFETY: replaces a part of the reservation just made, which no other thread knows.
        let base = unsafe {
            rustix::mm::mmap(at.aligned(), len_bytes, ProtFlags::READ | ProtFlags::WRITE, flags, &file, 0)
        };
        at.release_unused(len_bytes);
        let base = base?;
        // A core dump of one of many processes must not contain the memory of all: most of it was never
        // touched, and the dump would write it out. SAFETY: the mapping just made. Advice only.
        let _ = unsafe { rustix::mm::madvise(base, len_bytes, Advice::LinuxDontDump) };
        Ok(Mapping::new(base, len_bytes, Some(Kept::of(file.into())?)))
    }

    fn new(base: *mut std::ffi::c_void, len_bytes: usize, fd: Option<Kept>) -> Mapping {
        // SAFETY: the mapping just made. Advice only: a kernel without huge pages refuses, which changes speed and nothing else.
        let _ = unsafe { rustix::mm::madvise(base, len_bytes, Advice::LinuxHugepage) };
        Mapping { base: NonNull::new(base.cast()).expect("mmap does not return null"), len_bytes, fd }
    }

    pub(crate) fn base(&self) -> NonNull<u8> {
        self.base
    }

    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    pub(crate) fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.fd.as_ref().and_then(Kept::get)
    }

    pub(crate) fn is_private(&self) -> bool {
        self.fd.is_none()
    }

    /// Puts a huge page under bytes that come into use, `[from, to)`, if the kernel permits (see [`begins_huge_page`]).
    /// `MADV_HUGEPAGE` would have no effect on shared memory where `shmem_enabled` is `never`, which is the default.
    pub(crate) fn enlarge_pages(&self, from: u64, to: u64) {
        let Some(start) = begins_huge_page(from, to, self.len_bytes as u64) else { return };
        let start = start as usize;
        // SAFETY: inside the mapping. The kernel requires that the page exists.
        unsafe { self.base.as_ptr().add(start).read_volatile() };
        // SAFETY: inside the mapping; no byte changes. A failure (kernels before 6.1, no contiguous memory)
        // changes nothing.
        let _ = unsafe {
            libc::madvise(self.base.as_ptr().add(start).cast(), HUGE_PAGE_BYTES, libc::MADV_COLLAPSE)
        };
    }

    /// Prefaults the pages that the memory has, also those that another process touched first; it allocates none.
    /// Pages for which that fails are mapped at their first use.
    pub(crate) fn map_present(&self) {
        let Some(fd) = self.fd() else { return };
        let mut from = 0;
        while let Ok(start) = rustix::fs::seek(fd, SeekFrom::Data(from)) {
            let end = rustix::fs::seek(fd, SeekFrom::Hole(start)).unwrap_or(start);
            let end = end.min(self.len_bytes as u64);
            if start >= end {
                return;
            }
            let at = self.base.as_ptr().wrapping_add(start as usize);
            // SAFETY: within the mapping; no byte changes.
            let _later =
                unsafe { rustix::mm::madvise(at.cast(), (end - start) as usize, Advice::LinuxPopulateWrite) };
            from = end;
        }
    }

    /// Zeroes the whole pages of bytes `[offset, offset + len_bytes)` by returning them to the kernel. Returns false
    /// if the kernel refuses.
    ///
    /// # Safety
    /// No thread uses those bytes.
    pub(crate) unsafe fn punch(&self, offset: u64, len_bytes: u64) -> bool {
        let advice = if self.fd.is_some() { Advice::LinuxRemove } else { Advice::LinuxDontNeed };
        // SAFETY: inside the mapping, unused (caller).
        unsafe {
            rustix::mm::madvise(self.base.as_ptr().add(offset as usize).cast(), len_bytes as usize, advice)
                .is_ok()
        }
    }
}

impl Mapping {
    /// Unmaps the memory although the mapping is not dropped: it makes one system call and frees nothing.
    ///
    /// # Safety
    /// No thread uses the mapping any more, it is not dropped, and this is not called twice.
    pub(crate) unsafe fn unmap_without_freeing(&self) {
        // SAFETY: the caller's promise.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: made by us, and nothing borrowed from the arena outlives it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len_bytes) };
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_huge_page_is_asked_for_once_by_its_first_bytes() {
        const MIB: u64 = 1 << 20;
        const BLOCK: u64 = 1 << 16;
        for (from, to, len, start) in [
            (28 << 10, 28 << 10 | 4096, 16 * MIB, None),
            (2 * MIB, 2 * MIB + BLOCK, 16 * MIB, None),
            (6 * MIB, 6 * MIB + BLOCK, 16 * MIB, None),
            (8 * MIB - BLOCK, 8 * MIB, 16 * MIB, None),
            (8 * MIB, 8 * MIB + BLOCK, 16 * MIB, Some(8 * MIB)),
            (8 * MIB - BLOCK / 2, 8 * MIB + BLOCK / 2, 16 * MIB, Some(8 * MIB)),
            (8 * MIB - BLOCK, 8 * MIB + 1, 16 * MIB, Some(8 * MIB)),
            (8 * MIB + 64, 8 * MIB + BLOCK, 16 * MIB, None),
            (10 * MIB - BLOCK, 10 * MIB, 16 * MIB, None),
            (14 * MIB, 14 * MIB + 1, 16 * MIB, Some(14 * MIB)),
            (14 * MIB, 14 * MIB + 1, 16 * MIB - 4096, None),
            (16 * MIB - BLOCK, 16 * MIB, 16 * MIB, None),
        ] {
            assert_eq!(begins_huge_page(from, to, len), start, "[{from:#x}, {to:#x}) of {len:#x}");
        }
    }

    #[test]
    fn no_peer_may_shorten_or_lengthen_the_memory() {
        let mapping = Mapping::shared(1 << 20).unwrap();
        let seals = rustix::fs::fcntl_get_seals(mapping.fd().unwrap()).unwrap();
        for seal in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
            assert!(seals.contains(seal), "{seal:?}");
        }
        let flags = rustix::io::fcntl_getfd(mapping.fd().unwrap()).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "a program that is started gets nothing of it");
    }

    #[test]
    fn a_dropped_mapping_is_unmapped() {
        let mapping = Mapping::shared(1 << 20).unwrap();
        let file = File::from(mapping.fd().unwrap().try_clone_to_owned().unwrap());
        let parts = || crate::reserve::tests::parts_mapped(&file);
        let at = mapping.base().addr().get();
        assert_eq!(parts(), [(at, at + (1 << 20))]);
        drop(mapping);
        assert_eq!(parts(), []);
    }
}
