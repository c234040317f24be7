//! Pages of an attached region that this process has not touched: the kernel maps each at its first touch,
//! which costs several times as much as a 4 KiB copy. Mapping all of them at attach would cost a short-lived
//! process more than it ever uses. So the pages around a position that will be stored to are mapped together.
//! A process can also ask for all of them at once.
//!
//! State       a bit for each step of [`STEP_BYTES`]: the step was requested. Pages may be mapped without it; then they are merely
//!             requested again.

use crate::mapping::Mapping;
use rustix::mm::Advice;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Bytes that are mapped together: as many as a lane takes of free blocks at once.
const STEP_BYTES: u64 = 256 << 10;

/// The untouched pages of a region.
#[derive(Debug)]
pub(crate) struct Untouched(Box<[AtomicU64]>);

impl Untouched {
    /// All pages are untouched.
    pub(crate) fn new(len_bytes: u64) -> Untouched {
        let words = len_bytes.div_ceil(STEP_BYTES).div_ceil(64);
        Untouched((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Maps all pages, including those requested before: a forked process has none of its parent's.
    pub(crate) fn touch_all(&self, mapping: &Mapping) {
        for word in &self.0 {
            word.store(0, Relaxed); // ORDERING: Relaxed, as below.
        }
        self.touch(mapping, 0, mapping.len_bytes());
    }

    /// Maps the pages around `[at, at + len_bytes)`, which is not empty and lies in the mapping.
    pub(crate) fn touch(&self, mapping: &Mapping, at: u64, len_bytes: u64) {
        for step in at / STEP_BYTES..=(at + len_bytes - 1) / STEP_BYTES {
            let (word, bit) = (&self.0[(step / 64) as usize], 1 << (step % 64));
            // ORDERING: Relaxed, a thread that misses it populates existing pages.
            if word.load(Relaxed) & bit == 0 {
                word.fetch_or(bit, Relaxed);
                let from = step * STEP_BYTES;
                let bytes = STEP_BYTES.min(mapping.len_bytes() - from);
                // Pages that cannot be mapped now are mapped one by one later.
                let _later = mapping.populate(from, bytes, Advice::LinuxPopulateWrite);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Pos, Region};

    #[test]
    fn an_attached_region_maps_what_is_going_to_be_stored_to() {
        let region = Region::anonymous(3 << 20).unwrap();
        let file = region.fd().unwrap().try_clone_to_owned().unwrap();
        let attached = Region::attach(file, None, 3 << 20, false, crate::Durability::Process).unwrap();
        let faults = || {
            // SAFETY: plain numbers, for which zero is valid; a live local.
            unsafe {
                let mut usage: libc::rusage = std::mem::zeroed();
                libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
                usage.ru_minflt
            }
        };
        // The last page, and a range across the border of two steps.
        attached.expect_stores(Pos((3 << 20) - 4096), 4096);
        attached.expect_stores(Pos((1 << 20) - 4096), 8192);
        let before = faults();
        for at in (768 << 10..1280 << 10).chain((3 << 20) - (256 << 10)..3 << 20).step_by(4096) {
            attached.store_u64(Pos(at), 7);
        }
        assert_eq!(faults(), before, "pages were not mapped together");
        assert_eq!(region.load_u64(Pos(1 << 20)), 7);
        attached.map_all();
        let before = faults();
        for at in (0..3 << 20).step_by(4096) {
            attached.store_u64(Pos(at), 7);
        }
        assert_eq!(faults(), before, "not all pages were mapped");
    }
}
