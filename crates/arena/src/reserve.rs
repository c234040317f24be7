//! Reserved addresses, for mapping a file at an aligned address.

use std::ffi::c_void;
use std::ptr::null_mut;

use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use rustix::param::page_size;

/// Bytes of a huge page (one PMD entry) on x86-64 and on aarch64 with 4 KiB pages.
pub(crate) const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Addresses for a mapping of a file, aligned to a huge page. The kernel uses huge pages for a file only
/// where file offset and address agree modulo their size. With small pages, look-ups of many files miss the TLB.
pub(crate) struct ReservedRange {
    base: *mut c_void,
    len_bytes: usize,
}

impl ReservedRange {
    pub(crate) fn new(len_bytes: usize) -> Result<ReservedRange> {
        let len_bytes = len_bytes.checked_add(HUGE_PAGE_BYTES).ok_or(Errno::NOMEM)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing memory.
        let base = unsafe { mmap_anonymous(null_mut(), len_bytes, ProtFlags::empty(), flags)? };
        Ok(ReservedRange { base, len_bytes })
    }

    /// The address to map at.
    pub(crate) fn aligned(&self) -> *mut c_void {
        self.base.wrapping_byte_add(self.skipped())
    }

    fn skipped(&self) -> usize {
        self.base.addr().next_multiple_of(HUGE_PAGE_BYTES) - self.base.addr()
    }

    /// Unmaps all but `len_bytes` at the aligned address. These are the caller's, also if its mapping there
    /// failed: the kernel may have released that part, and another thread may have mapped it since.
    pub(crate) fn release_unused(self, len_bytes: usize) {
        let used = self.skipped() + len_bytes.next_multiple_of(page_size());
        for (from, to) in [(0, self.skipped()), (used, self.len_bytes)] {
            if from < to {
                // SAFETY: parts of the reservation that were not replaced. A failure would leave addresses
                // unused.
                let _ = unsafe { munmap(self.base.wrapping_byte_add(from), to - from) };
            }
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub(crate) mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::fs::MetadataExt;

    /// First and end addresses of the parts of a memory file that this process has mapped.
    pub(crate) fn parts_mapped(file: &File) -> Vec<(usize, usize)> {
        let inode = file.metadata().unwrap().ino().to_string();
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let is_of_file =
            |line: &&str| line.contains("/memfd:") && line.split_whitespace().nth(4) == Some(inode.as_str());
        let number = |text: &str| usize::from_str_radix(text, 16).unwrap();
        let parts = maps.lines().filter(is_of_file).map(|line| {
            let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
            (number(from), number(to))
        });
        parts.collect()
    }

    #[test]
    fn around_what_is_used_only_the_reservation_is_unmapped() {
        const WHOLE: usize = 16 << 20;
        let file = rustix::fs::memfd_create("reserved", rustix::fs::MemfdFlags::empty()).unwrap();
        rustix::fs::ftruncate(&file, WHOLE as u64).unwrap();
        // Where the reservation begins and ends, from an address that a huge page may have.
        for (from, to, used, used_bytes) in [
            (4096, 6 << 20, 2 << 20, 5000),
            ((2 << 20) - 4096, 6 << 20, 2 << 20, 4096),
            (2 << 20, 6 << 20, 2 << 20, 8192),
            (4096, (2 << 20) + 8192, 2 << 20, 8192),
        ] {
            // SAFETY: a new mapping at an address of the kernel's choice, of a file that is nobody else's.
            let all = unsafe {
                rustix::mm::mmap(null_mut(), WHOLE, ProtFlags::empty(), MapFlags::SHARED, &file, 0).unwrap()
            };
            let file: File = file.try_clone().unwrap().into();
            let origin = all.addr().next_multiple_of(2 << 20);
            let base = all.with_addr(origin + from);
            let reserved = ReservedRange { base, len_bytes: to - from };
            assert_eq!(reserved.aligned().addr(), origin + used, "from {from:#x}");
            reserved.release_unused(used_bytes);
            let pages = used_bytes.div_ceil(4096) * 4096;
            let left = [
                (all.addr(), origin + from),
                (origin + used, origin + used + pages),
                (origin + to, all.addr() + WHOLE),
            ];
            assert_eq!(joined(&left), parts_mapped(&file), "from {from:#x} to {to:#x}");
            for (from, to) in left {
                // SAFETY: what is left of the mapping above, and nobody's.
                unsafe { munmap(all.with_addr(from), to - from) }.unwrap();
            }
        }
    }

    /// Parts that touch are one.
    fn joined(parts: &[(usize, usize)]) -> Vec<(usize, usize)> {
        let mut all: Vec<(usize, usize)> = Vec::new();
        for part in parts {
            match all.last_mut() {
                Some(last) if last.1 == part.0 => last.1 = part.1,
                _ => all.push(*part),
            }
        }
        all
    }

    /// Bytes of this process' address space.
    fn mapped_bytes() -> usize {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').next().unwrap().parse::<usize>().unwrap() * page_size()
    }

    #[test]
    fn what_is_not_used_of_a_reservation_is_unmapped() {
        const GIB: usize = 1 << 30;
        let reserved = ReservedRange::new(64 * GIB).unwrap();
        let before = mapped_bytes();
        let used = reserved.aligned();
        reserved.release_unused(page_size());
        // Other tests map and unmap meanwhile.
        assert!(mapped_bytes() + 32 * GIB < before, "{before} bytes, and then {}", mapped_bytes());
        // SAFETY: the page that is left, and nobody's.
        unsafe { munmap(used, page_size()) }.unwrap();
    }
}
