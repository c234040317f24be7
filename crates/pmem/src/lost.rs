//! Lines that the media cannot return: a load gets [`LOST_WORD`]s in their place, and a caller can ask for
//! such losses.
//!
//! State       [`Lost`], shared by all mappings of one open file: ranges, and whether a page of a mapping had to be replaced.
//! Invariants  I1  it is changed inside a signal handler: only by atomics, without allocation and without waiting.
//!             I2  a range is noted before its words can be loaded as [`LOST_WORD`]s: so a reader that asks after its load is told.
//! Orderings   O1  `count` (Release) pairs with the Acquire in `hits`; a thread that took the fault itself needs neither.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// The word that a load gets for a lost one. It is no valid record, header, pointer or checksum, and neither
/// zero nor marked as written.
pub const LOST_WORD: u64 = u64::from_le_bytes(*b"heddLOST");

/// Number of ranges that are stored; with more, everything counts as lost.
const RANGES_MAX: usize = 256;
/// A range that was stored to again.
const HEALED: u64 = u64::MAX;

/// The lost lines of a file.
pub(crate) struct Lost {
    count: AtomicU32,
    /// Start, a multiple of the length, with the length's logarithm in the low 6 bits; 0: not noted yet.
    ranges: [AtomicU64; RANGES_MAX],
    replaced: AtomicBool,
}

impl Default for Lost {
    fn default() -> Lost {
        Lost {
            count: AtomicU32::new(0),
            ranges: std::array::from_fn(|_| AtomicU64::new(0)),
            replaced: AtomicBool::new(false),
        }
    }
}

impl Lost {
    /// `1 << order` bytes at `at` are lost; at least a line.
    pub(crate) fn note(&self, at: u64, order: u32) {
        // ORDERING: Relaxed, only uniqueness matters; a reader that comes in between takes everything for
        // lost.
        let n = self.count.fetch_add(1, Ordering::Relaxed) as usize;
        if let Some(range) = self.ranges.get(n) {
            range.store(at >> order << order | u64::from(order), Ordering::Release); // ORDERING: Release, O1.
        }
    }

    /// Notes that a page of a mapping was replaced: stores to it are lost as well.
    pub(crate) fn note_replaced(&self) {
        // ORDERING: Release, O1.
        self.replaced.store(true, Ordering::Release);
    }

    pub(crate) fn any_replaced(&self) -> bool {
        // ORDERING: Relaxed, set once; a thread that misses it sees it at its next call.
        self.replaced.load(Ordering::Relaxed)
    }

    /// Returns true if a byte of a range is lost.
    #[inline]
    pub(crate) fn hits(&self, at: u64, len_bytes: u64) -> bool {
        // ORDERING: Acquire, O1.
        let count = self.count.load(Ordering::Acquire) as usize;
        count != 0 && self.hits_one(count, at, len_bytes)
    }

    #[cold]
    fn hits_one(&self, count: usize, at: u64, len_bytes: u64) -> bool {
        let hit = |range: &AtomicU64| {
            // ORDERING: Acquire, O1.
            let range = range.load(Ordering::Acquire);
            let (start, len) = (range & !63, 1 << (range & 63));
            range == 0 || range != HEALED && start < at + len_bytes && at < start + len
        };
        count > RANGES_MAX || self.ranges[..count].iter().any(hit)
    }

    /// Notes that whole lines were stored to, which makes them readable again.
    pub(crate) fn heal(&self, at: u64, len_bytes: u64) {
        // ORDERING: Acquire, O1.
        let count = (self.count.load(Ordering::Acquire) as usize).min(RANGES_MAX);
        for range in &self.ranges[..count] {
            // ORDERING: Acquire, O1.
            let now = range.load(Ordering::Acquire);
            if now != HEALED && at <= now & !63 && (now & !63) + (1 << (now & 63)) <= at + len_bytes {
                range.store(HEALED, Ordering::Release); // ORDERING: Release, O1.
            }
        }
    }

    /// Clears everything, for another image. No other thread uses the region meanwhile.
    pub(crate) fn clear(&self) {
        // ORDERING: Relaxed, no other thread uses the region.
        if self.count.swap(0, Ordering::Relaxed) != 0 {
            self.ranges.iter().for_each(|range| range.store(0, Ordering::Relaxed));
        }
    }
}

impl std::fmt::Debug for Lost {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // ORDERING: Relaxed, for messages.
        write!(out, "Lost {{ {} ranges }}", self.count.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lost_bytes_are_reported_until_stored_anew() {
        let lost = Lost::default();
        assert!(!lost.hits(0, 1 << 40));
        lost.note(4096 + 70, 6);
        lost.note(8192 + 5, 12);
        assert!(
            lost.hits(4160, 1) && lost.hits(4000, 161) && lost.hits(4223, 1) && lost.hits(8192 + 4095, 9)
        );
        assert!(!lost.hits(4096, 64) && !lost.hits(4224, 3000) && !lost.hits(12288, 4096));
        lost.heal(4161, 100);
        assert!(lost.hits(4160, 1), "a part of it was stored to");
        lost.heal(4160, 64);
        assert!(!lost.hits(4096, 4096));
        (0..RANGES_MAX as u64).for_each(|i| lost.note(1 << 20 | i << 6, 6));
        assert!(lost.hits(0, 1), "too many to tell apart");
        lost.clear();
        assert!(!lost.hits(0, 1 << 40));
    }
}
