//! Free inode slots of a lane: the words. They are taken and returned in `itable`.

use crate::format::inode::CHUNK_INODES;
use crate::format::layout::chunk_of;
use heddle_vfs::Ino;

/// Most chunks whose free slots a lane holds.
pub const CHUNKS_HELD: usize = 32;
/// The mask of a chunk without inodes.
pub const ALL_FREE: u64 = (1 << CHUNK_INODES) - 1;
/// Most freed inodes that wait for a fence.
pub const ENDED: usize = 32;

/// Free slots that a lane holds.
#[repr(C)]
#[derive(Debug)]
pub struct Slots {
    /// The chunks of these slots.
    pub chunks: [HeldChunk; CHUNKS_HELD],
    /// The one used last.
    pub last: u64,
    /// Number of them without an inode.
    pub empty: u64,
    /// Freed inodes whose slots are zeroed, but not yet fenced.
    pub ended: [u64; ENDED],
    /// Number of them.
    pub ended_len: u64,
    /// Number of chunks that have no inode once these are fenced.
    pub ended_empty: u64,
}

/// A chunk whose free slots a lane holds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct HeldChunk {
    /// Its number plus one; 0: none.
    pub number: u64,
    /// Its free slots, one bit each.
    pub free: u64,
}

impl Slots {
    /// No slots.
    pub fn zeroed() -> Slots {
        Slots {
            chunks: [HeldChunk::default(); CHUNKS_HELD],
            last: 0,
            empty: 0,
            ended: [0; ENDED],
            ended_len: 0,
            ended_empty: 0,
        }
    }

    /// Takes a slot.
    pub fn pop(&mut self) -> Option<Ino> {
        let last = self.last as usize;
        let at = (last..CHUNKS_HELD).chain(0..last).find(|at| self.chunks[*at].free != 0)?;
        self.last = at as u64;
        let held = &mut self.chunks[at];
        let (number, free) = (held.number, held.free);
        held.free &= free - 1;
        self.count_empty(free);
        Some(Ino((number - 1) * CHUNK_INODES + u64::from(free.trailing_zeros())))
    }

    /// Updates the number of empty chunks: a chunk with these free slots is about to change, or has changed.
    pub fn count_empty(&mut self, free: u64) {
        if free == ALL_FREE {
            self.empty = self.chunks.iter().filter(|held| held.free == ALL_FREE).count() as u64;
        }
    }

    /// Held chunks without an inode: their blocks can be freed when another lane needs space.
    pub fn empty_chunks(&self) -> u64 {
        self.empty.saturating_add(self.ended_empty)
    }

    /// Updates the count for the inode freed last. It may have been the last of its chunk, of which no lane
    /// holds these `shared` slots.
    pub fn count_ended(&mut self, chunk: u64, shared: u64) {
        let held = self.chunks.iter().find(|held| held.number == chunk + 1).map_or(0, |held| held.free);
        let ended = self.ended.iter().take(self.ended_len as usize).map(|ino| chunk_of(Ino(*ino)));
        let ended = ended.filter(|(of, _)| *of == chunk).fold(0, |slots, (_, index)| slots | 1 << index);
        self.ended_empty += u64::from(held | ended | shared == ALL_FREE);
    }

    /// Returns true if it holds a slot that another lane may need.
    pub fn any(&self) -> bool {
        self.chunks[0].number != 0 || self.ended_len > 0
    }

    /// The place of a held chunk. For a new chunk: a place without free slots, else the next in turn.
    pub fn place(&mut self, chunk: u64, max: usize) -> usize {
        let chunks = &self.chunks[..max];
        let known = chunks.iter().position(|held| held.number == chunk + 1);
        let empty = || chunks.iter().position(|held| held.free == 0);
        known.or_else(empty).unwrap_or((self.last as usize + 1) % max)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    fn holding(chunks: &[(u64, u64)]) -> Slots {
        let mut slots = Slots::zeroed();
        for (held, (chunk, free)) in slots.chunks.iter_mut().zip(chunks) {
            *held = HeldChunk { number: chunk + 1, free: *free };
        }
        slots.count_empty(ALL_FREE);
        slots
    }

    #[test]
    fn free_slots_are_taken_chunk_by_chunk_from_the_one_used_last() {
        let mut slots = holding(&[(3, 0b101), (9, ALL_FREE), (0, 1 << 31)]);
        assert_eq!((slots.empty_chunks(), slots.any()), (1, true));
        let taken: Vec<u64> = (0..4).filter_map(|_| slots.pop()).map(|ino| ino.0).collect();
        assert_eq!(taken, [3 * 32, 3 * 32 + 2, 9 * 32, 9 * 32 + 1]);
        assert_eq!((slots.last, slots.empty_chunks()), (1, 0), "it has an inode now");
        slots.chunks[0].free = 0b10;
        (0..30).for_each(|_| _ = slots.pop());
        assert_eq!((slots.pop(), slots.last), (Some(Ino(31)), 2));
        assert_eq!((slots.pop(), slots.last), (Some(Ino(3 * 32 + 1)), 0), "around once");
        assert_eq!((slots.pop(), slots.last), (None, 0));
        assert!(slots.any(), "its chunks are held still");
        let mut none = Slots::zeroed();
        assert!(!none.any() && none.empty_chunks() == 0 && none.pop().is_none());
        none.ended_len = 1;
        assert!(none.any());
    }

    #[test]
    fn a_chunk_whose_last_inode_ended_counts_as_empty() {
        let mut slots = holding(&[(3, ALL_FREE & !0b111)]);
        slots.ended[..3].copy_from_slice(&[3 * 32, 3 * 32 + 1, 4 * 32 + 2]);
        slots.ended_len = 3;
        slots.count_ended(3, 0);
        assert_eq!(slots.ended_empty, 0, "one is left");
        slots.count_ended(3, 0b100);
        assert_eq!(slots.ended_empty, 1, "no lane holds that slot");
        slots.ended[2] = 3 * 32 + 2;
        slots.count_ended(3, 0);
        assert_eq!((slots.ended_empty, slots.empty_chunks()), (2, 2));
        slots.ended_len = 2;
        slots.count_ended(3, 0);
        slots.count_ended(4, ALL_FREE & !1);
        assert_eq!(slots.ended_empty, 2, "what is behind their number is old");
        slots.count_ended(4, ALL_FREE);
        assert_eq!(slots.ended_empty, 3);
        slots.empty = u64::MAX;
        assert_eq!(slots.empty_chunks(), u64::MAX);
    }

    #[test]
    fn a_chunk_has_its_place_or_gets_one_in_turn() {
        let mut slots = holding(&[(3, 1), (4, 1), (5, 0), (6, 1)]);
        assert_eq!([3, 4, 5].map(|chunk| slots.place(chunk, 4)), [0, 1, 2]);
        assert_eq!(slots.place(77, 4), 2, "without free slots");
        slots.chunks[2].free = 1;
        assert_eq!(slots.place(77, 4), 1);
        slots.last = 3;
        assert_eq!((slots.place(77, 4), slots.place(77, 5)), (0, 4));
        assert_eq!(slots.place(6, 3), 1, "behind the places there are");
    }
}
