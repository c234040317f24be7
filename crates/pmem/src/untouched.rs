//! Pages of an attached region that this process has not touched: the kernel maps each at its first touch, which costs several times a
//! 4 KiB copy. Mapping all of them when a process attaches would cost short-lived ones more than they ever use. So the pages around a
//! place that is going to be stored to are mapped together; a process that asks for it maps all of them at once.
//!
//! State       a bit for each step of [`STEP_BYTES`]: it was asked for. Pages may be mapped without it, and are then merely asked for
//!             again.

use crate::mapping::Mapping;
use rustix::mm::Advice;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// What is mapped together: as much as a lane takes of free blocks at once.
const STEP_BYTES: u64 = 256 << 10;

/// See the module.
#[derive(Debug)]
pub(crate) struct Untouched(Box<[AtomicU64]>);

impl Untouched {
    /// All of it.
    pub(crate) fn new(len_bytes: u64) -> Untouched {
        let words = len_bytes.div_ceil(STEP_BYTES).div_ceil(64);
        Untouched((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    /// Maps all pages, whatever was asked for before: a forked process has none of its parent's.
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
            // ORDERING: Relaxed, a thread that misses it populates pages that are there.
            if word.load(Relaxed) & bit == 0 {
                word.fetch_or(bit, Relaxed); // ORDERING: Relaxed, as above.
                let from = step * STEP_BYTES;
                let bytes = STEP_BYTES.min(mapping.len_bytes() - from);
                // What cannot be had now is had page by page.
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
        // The last page, and a range over a border of two steps.
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
