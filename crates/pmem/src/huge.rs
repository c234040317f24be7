//! Pages of 2 MiB under a region in memory: the kernel maps one in place of 512 pages of 4 KiB. Mounting,
//! first stores, and random reads are faster then.
//!
//! State       none; the pages stay with the file, for all later mappings.
//! Invariants  I1  a region begins at an address where such a page can begin: elsewhere the kernel maps it by small pages in any case.
//!             I2  the request changes no byte. If it is refused, pages stay small: on older kernels, with fragmented memory, and on
//!                 hugetlbfs, whose pages are large already. The later reservation reports missing space.
//! Why so      A tmpfs has small pages unless it was mounted with `huge=`, and `MADV_HUGEPAGE` has no effect if the system's
//!             `shmem_enabled` is `never`, which is the default. `MADV_COLLAPSE` works since Linux 6.1, on memory that has a page already.

use crate::BLOCK_BYTES;
use crate::mapping::{HUGE_PAGE_BYTES, Mapping, Progress, side_by_side};
use rustix::io::Errno;
use rustix::mm::Advice;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

/// Smallest region for which such pages are requested and reported. In a smaller one the page tables of small
/// pages stay in the cache.
pub const HUGE_FROM_BYTES: u64 = 128 << 20;

/// Allocates the pages of a new file in memory, as huge pages where the kernel allows, with as many threads as
/// there are processors. All pages are zeroed.
pub(crate) fn ask_for(file: BorrowedFd<'_>, len_bytes: u64, progress: Progress<'_>) {
    if len_bytes < HUGE_FROM_BYTES {
        return;
    }
    let Ok(mapping) = Mapping::of_memory(file, len_bytes, false) else { return };
    let write = Advice::LinuxPopulateWrite;
    let no_contiguous_memory = AtomicBool::new(false);
    let step = |at: u64, bytes: u64| {
        // ORDERING: Relaxed, a thread that misses it makes one unnecessary request.
        if !no_contiguous_memory.load(Relaxed) {
            // The kernel makes a large page only where there is a small one.
            (at..at + bytes)
                .step_by(HUGE_PAGE_BYTES as usize)
                .try_for_each(|page| mapping.populate(page, BLOCK_BYTES as u64, write))?;
            match mapping.collapse(at, bytes) {
                Ok(()) => return Ok(()),
                // A page was in use for a moment.
                Err(Errno::AGAIN | Errno::BUSY) => {}
                // Each search for contiguous free memory takes the kernel long.
                Err(_) => no_contiguous_memory.store(true, Relaxed), // ORDERING: Relaxed, a hint.
            }
        }
        // Allocates the rest in small pages.
        mapping.populate(at, bytes, write)
    };
    // I2: missing space is found later.
    let _in_part = side_by_side(len_bytes, progress, step);
}

/// Bytes of a range of addresses that this process has mapped by pages of 2 MiB or more; `None`: the kernel
/// does not tell.
pub(crate) fn huge_bytes(range: Range<u64>) -> Option<u64> {
    Some(huge_of(&std::fs::read_to_string("/proc/self/smaps").ok()?, range))
}

/// Bytes in large pages of the mappings that begin in a range, from the text of `smaps`.
fn huge_of(smaps: &str, range: Range<u64>) -> u64 {
    const KINDS: [&str; 5] =
        ["ShmemPmdMapped:", "FilePmdMapped:", "AnonHugePages:", "Shared_Hugetlb:", "Private_Hugetlb:"];
    let (mut inside, mut sum_kib) = (false, 0);
    for line in smaps.lines() {
        let mut words = line.split_whitespace();
        let (Some(first), second) = (words.next(), words.next()) else { continue };
        if let Some((start, _)) = first.split_once('-')
            && let Ok(start) = u64::from_str_radix(start, 16)
        {
            inside = range.contains(&start);
        } else if inside && KINDS.contains(&first) {
            sum_kib += second.and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0);
        }
    }
    sum_kib << 10
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Pos, Region};

    #[test]
    fn large_pages_are_counted_of_the_regions_mappings_alone() {
        let smaps = "\
7f0000000000-7f0008000000 rw-s 00000000 00:01 1026 /memfd:heddle-region (deleted)
Size:             131072 kB
ShmemPmdMapped:   126976 kB
FilePmdMapped:         0 kB
VmFlags: rd wr sh
7f0008000000-7f0008001000 rw-p 00000000 00:00 0
AnonHugePages:      2048 kB
7f0010000000-7f0010200000 rw-p 00000000 00:00 0
AnonHugePages:      2048 kB
";
        assert_eq!(huge_of(smaps, 0x7f00_0000_0000..0x7f00_0800_1000), (126976 + 2048) << 10);
        assert_eq!(huge_of(smaps, 0x7f00_0000_0000..0x7f00_0800_0000), 126976 << 10);
        assert_eq!(huge_of("", 0..1), 0);
    }

    #[test]
    fn a_new_region_in_memory_lies_in_large_pages() {
        let region = Region::anonymous(HUGE_FROM_BYTES).unwrap();
        assert_eq!(region.base_address() as u64 % HUGE_PAGE_BYTES, 0, "I1");
        for at in (0..HUGE_FROM_BYTES).step_by(4096) {
            assert_eq!(region.load_u64(Pos(at)), 0);
        }
        // A test with one page: does this kernel support it?
        let file = rustix::fs::memfd_create("one-page", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, HUGE_PAGE_BYTES).unwrap();
        let one = Mapping::of_memory(std::os::fd::AsFd::as_fd(&file), HUGE_PAGE_BYTES, false).unwrap();
        one.populate(0, BLOCK_BYTES as u64, Advice::LinuxPopulateWrite).unwrap();
        let given = region.huge_bytes().unwrap();
        match one.collapse(0, HUGE_PAGE_BYTES) {
            Ok(()) => assert!(given >= HUGE_FROM_BYTES / 2, "{given}"),
            Err(errno) => {
                eprintln!("SKIPPED: this kernel makes no large pages (Linux 6.1 and later do): {errno}")
            }
        }
        assert_eq!(Region::anonymous(1 << 20).unwrap().huge_bytes(), Some(0));
    }
}
