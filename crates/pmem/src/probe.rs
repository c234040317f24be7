//! A region that records which of its words were loaded.
//!
//! A crash rig mounts thousands of images that differ in a few words. If recovery and the walk after it
//! never load a word, its value cannot matter: images that agree in all loaded words need only one check.
//!
//! State       memory; for each word a bit in `read` and in `stored`; for each block a byte in `changed`.
//! Invariants  I1  a word's bit in `read` is set by a load of it, unless it was completely stored to before.
//!             I2  memory differs from the image that was loaded last only in blocks of `changed`.
//! Source      Vinter's rule (only lines that recovery reads matter), by words instead of lines.

use crate::dirty::Failure;
use crate::lost::LOST_WORD;
use crate::mapping::Mapping;
use crate::{BLOCK_BYTES, LINE_BYTES, Pos};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// The rig's side of a probed region: loads images into it, and reports which words were read.
#[derive(Clone, Debug)]
pub struct Probe {
    pub(crate) memory: Arc<Mapping>,
    pub(crate) log: Arc<ProbeLog>,
}

/// The region's side.
pub(crate) struct ProbeLog {
    read: Box<[AtomicU64]>,
    stored: Box<[AtomicU64]>,
    changed: Box<[AtomicBool]>,
    /// For lines that cannot be loaded.
    pub(crate) failure: Failure,
}

impl Probe {
    /// Sets the memory to `image` with `words` on top, and clears the record of reads. With `same_image` the
    /// caller asserts that `image` is the last one: then only changed blocks are restored. No other thread
    /// uses the region meanwhile.
    ///
    /// Panics if the image has another length, or a word lies outside it.
    pub fn load(&self, image: &[u8], words: &[(Pos, u64)], same_image: bool) {
        assert_eq!(image.len() as u64, self.memory.len_bytes(), "an image of another length");
        for (block, bytes) in image.chunks_exact(BLOCK_BYTES).enumerate() {
            // ORDERING: Relaxed, no other thread uses the region.
            if self.log.changed[block].swap(false, Ordering::Relaxed) || !same_image {
                let to = self.memory.base().wrapping_add(block * BLOCK_BYTES);
                // SAFETY: within the mapping, which no other thread uses meanwhile.
                let memory = unsafe { std::slice::from_raw_parts_mut(to, BLOCK_BYTES) };
                if memory != bytes {
                    memory.copy_from_slice(bytes);
                }
            }
        }
        self.log.failure.lost.clear();
        for bits in self.log.read.iter().chain(&self.log.stored) {
            bits.store(0, Ordering::Relaxed); // ORDERING: Relaxed, no other thread uses the region.
        }
        for (at, value) in words {
            assert!(at.0 + 8 <= self.memory.len_bytes() && at.is_aligned(8), "a word outside: {at:?}");
            // SAFETY: within the mapping, which no other thread uses meanwhile, and aligned.
            unsafe { self.memory.base().wrapping_add(at.0 as usize).cast::<u64>().write(value.to_le()) };
            // ORDERING: Relaxed, no other thread uses the region.
            self.log.changed[at.0 as usize / BLOCK_BYTES].store(true, Ordering::Relaxed);
        }
    }

    /// Loses a line of the media: loads of it return [`LOST_WORD`]s until the whole line is stored to, or an
    /// image is loaded. `at` is a multiple of 64. No other thread uses the region meanwhile.
    ///
    /// Panics outside the region.
    pub fn lose(&self, at: Pos) {
        assert!(at.0 + LINE_BYTES as u64 <= self.memory.len_bytes() && at.is_aligned(64), "no line: {at:?}");
        self.log.failure.lost.note(at.0, LINE_BYTES.trailing_zeros());
        // ORDERING: Relaxed, no other thread uses the region.
        self.log.changed[at.0 as usize / BLOCK_BYTES].store(true, Ordering::Relaxed);
        for word in 0..LINE_BYTES / 8 {
            let to = self.memory.base().wrapping_add(at.0 as usize).cast::<u64>().wrapping_add(word);
            // SAFETY: within the mapping, which no other thread uses meanwhile, and aligned.
            unsafe { to.write(LOST_WORD.to_le()) };
        }
    }

    /// Returns true if this word was loaded since [`Probe::load`], before it was completely stored to.
    pub fn was_read(&self, word: Pos) -> bool {
        let index = word.0 as usize / 8;
        // ORDERING: Relaxed, called when the reading threads have ended.
        self.log.read[index / 64].load(Ordering::Relaxed) >> (index % 64) & 1 == 1
    }

    /// The blocks in which [`Probe::was_read`] is true for a word.
    pub fn read_blocks(&self) -> Vec<u64> {
        const MASKS: usize = BLOCK_BYTES / 8 / 64;
        // ORDERING: Relaxed, as in `was_read`.
        let read = |masks: &[AtomicU64]| masks.iter().any(|m| m.load(Ordering::Relaxed) != 0);
        self.log
            .read
            .chunks(MASKS)
            .enumerate()
            .filter(|(_, masks)| read(masks))
            .map(|(b, _)| b as u64)
            .collect()
    }

    /// The blocks that differ, or may differ, from the loaded image, with their content. No other thread uses
    /// the region meanwhile.
    pub fn changed_blocks(&self) -> impl Iterator<Item = (u64, &[u8])> {
        // ORDERING: Relaxed, as in `was_read`.
        let changed = self.log.changed.iter().enumerate().filter(|(_, c)| c.load(Ordering::Relaxed));
        changed.map(|(block, _)| {
            let from = self.memory.base().wrapping_add(block * BLOCK_BYTES);
            // SAFETY: within the mapping, to which no thread stores meanwhile.
            (block as u64, unsafe { std::slice::from_raw_parts(from, BLOCK_BYTES) })
        })
    }

    /// All of the memory. No other thread uses the region meanwhile.
    pub fn image(&self) -> Vec<u8> {
        // SAFETY: the mapping, to which no thread stores meanwhile.
        unsafe { std::slice::from_raw_parts(self.memory.base(), self.memory.len_bytes() as usize) }.to_vec()
    }
}

impl ProbeLog {
    pub(crate) fn new(len_bytes: u64) -> ProbeLog {
        let words = (len_bytes as usize / 8).div_ceil(64);
        ProbeLog {
            read: (0..words).map(|_| AtomicU64::new(0)).collect(),
            stored: (0..words).map(|_| AtomicU64::new(0)).collect(),
            changed: (0..len_bytes as usize / BLOCK_BYTES).map(|_| AtomicBool::new(false)).collect(),
            failure: Failure::default(),
        }
    }

    pub(crate) fn note_load(&self, at: u64, len_bytes: u64) {
        for_words(at, len_bytes, |index, mask, _| {
            // ORDERING: Relaxed, read when the work has ended.
            let fresh = mask & !self.stored[index].load(Ordering::Relaxed);
            if fresh != 0 {
                self.read[index].fetch_or(fresh, Ordering::Relaxed);
            }
        });
    }

    /// Notes a store. A word that is stored to in part keeps some of its old bits: it counts as read.
    pub(crate) fn note_store(&self, at: u64, len_bytes: u64) {
        self.failure.lost.heal(at, len_bytes);
        for block in at / BLOCK_BYTES as u64..=(at + len_bytes - 1) / BLOCK_BYTES as u64 {
            // ORDERING: Relaxed here and below, read when the work has ended.
            self.changed[block as usize].store(true, Ordering::Relaxed);
        }
        for_words(at, len_bytes, |index, mask, partial| {
            let fresh = partial & !self.stored[index].load(Ordering::Relaxed);
            if fresh != 0 {
                self.read[index].fetch_or(fresh, Ordering::Relaxed);
            }
            self.stored[index].fetch_or(mask, Ordering::Relaxed); // ORDERING: Relaxed, read when the work has ended.
        });
    }
}

/// Calls `f` with the index in a bitmap, the bits of the range's words there, and those of the words covered
/// only in part.
fn for_words(at: u64, len_bytes: u64, mut f: impl FnMut(usize, u64, u64)) {
    if len_bytes == 0 {
        return;
    }
    let (first, last) = (at / 8, (at + len_bytes - 1) / 8);
    let (ragged_first, ragged_last) = (!at.is_multiple_of(8), !(at + len_bytes).is_multiple_of(8));
    for index in first / 64..=last / 64 {
        let from = first.max(index * 64) % 64;
        let to = last.min(index * 64 + 63) % 64;
        let mask = (u64::MAX >> (63 - (to - from))) << from;
        let mut partial = 0;
        if ragged_first && first / 64 == index {
            partial |= 1 << (first % 64);
        }
        if ragged_last && last / 64 == index {
            partial |= 1 << (last % 64);
        }
        f(index as usize, mask, partial);
    }
}

impl std::fmt::Debug for ProbeLog {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("ProbeLog")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Region;

    fn read_words(probe: &Probe, of: std::ops::Range<u64>) -> Vec<u64> {
        of.filter(|word| probe.was_read(Pos(word * 8))).collect()
    }

    #[test]
    fn a_word_counts_as_read_unless_it_was_stored_to_whole_before() {
        let (region, probe) = Region::probed(8192);
        region.nt_write(Pos(16), &[1; 16]);
        region.nt_write(Pos(33), &[1; 3]);
        region.read(Pos(8), &mut [0; 24]);
        assert_eq!(read_words(&probe, 0..100), [1, 4], "2 and 3 were stored to whole, 4 in part");
        region.load_u64(Pos(4096));
        let _ = region.line(Pos(64));
        region.nt_copy(Pos(4104), Pos(512), 8);
        assert_eq!(read_words(&probe, 0..1024), [1, 4, 8, 9, 10, 11, 12, 13, 14, 15, 64, 512]);
    }

    #[test]
    fn a_load_puts_back_what_changed_and_forgets_what_was_read() {
        let (region, probe) = Region::probed(8192);
        let image: Vec<u8> = (0..8192u32).map(|i| (i % 253) as u8).collect();
        probe.load(&image, &[(Pos(8), 7)], false);
        assert_eq!((region.load_u64(Pos(8)), probe.was_read(Pos(8))), (7, true));
        region.store_u64(Pos(4096), 1);
        let changed: Vec<u64> = probe.changed_blocks().map(|(block, _)| block).collect();
        assert_eq!(changed, [0, 1]);
        probe.load(&image, &[], true);
        assert_eq!(probe.image(), image);
        assert!(!probe.was_read(Pos(8)) && probe.changed_blocks().next().is_none());
    }

    #[test]
    fn ranges_of_any_alignment_cover_their_words() {
        for at in 0..20u64 {
            for len in 1..1100u64 {
                let (mut words, mut partial) = (Vec::new(), Vec::new());
                for_words(at, len, |index, mask, ragged| {
                    (0..64).for_each(|bit| {
                        if mask >> bit & 1 == 1 {
                            words.push(index as u64 * 64 + bit);
                        }
                        if ragged >> bit & 1 == 1 {
                            partial.push(index as u64 * 64 + bit);
                        }
                    });
                });
                assert_eq!(words, (at / 8..=(at + len - 1) / 8).collect::<Vec<_>>());
                let ragged = |word: u64| word * 8 < at || word * 8 + 8 > at + len;
                assert_eq!(partial, words.iter().copied().filter(|w| ragged(*w)).collect::<Vec<_>>());
            }
        }
    }
}
