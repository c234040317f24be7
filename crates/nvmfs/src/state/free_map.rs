//! The free map: one bit for each block. The rules for setting and clearing bits, and the invariants cited
//! here, are in [`alloc`](crate::alloc).

use crate::format::layout::Layout;
use crate::ids::{BlockNo, Extent};
use crate::state::lane::MAGAZINE_BLOCKS;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::{Arena, Full, Ptr};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// At most about this fraction of the region is held by all lanes together.
const KEPT_SHARE: u64 = 32;

const WORD_BLOCKS: u64 = 64;
/// 34 MiB; with more blocks, counting them would take too long.
const RESERVE_BLOCKS_MAX: u64 = 8704;
const LINE_WORDS: usize = 8;

/// The purpose for which blocks are taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// New data, new inodes, new names, and their records.
    Data,
    /// A change that, except for its record, leaves as many blocks free as before: a page over another,
    /// attributes.
    Replace,
    /// A change that may free space later: removals of names, holes.
    Free,
    /// A change that frees at once at least as many blocks as it takes: log cleaning, a truncation that frees
    /// blocks, the copy of an edge.
    Regain,
}

impl Purpose {
    /// The number of free blocks that a taker must leave.
    fn leaves(self, reserve: u64) -> u64 {
        match self {
            Purpose::Data => reserve,
            Purpose::Replace => reserve / 2,
            Purpose::Free => reserve / 4,
            Purpose::Regain => 0,
        }
    }
}

/// The free map; a view that is created where it is needed.
#[derive(Clone, Copy)]
pub struct FreeMap<'a> {
    words: &'a [AtomicU64],
    scarce: &'a AtomicU64,
    lanes: &'a AtomicU64,
    layout: &'a Layout,
}

/// Allocates the memory of a region's free map.
pub fn new_map(arena: &Arena, layout: &Layout) -> Result<Ptr<AtomicU64>, Full> {
    arena.alloc_zeroed::<AtomicU64>(words_of(layout) + 2 * LINE_WORDS)
}

fn words_of(layout: &Layout) -> usize {
    layout.blocks_total.div_ceil(WORD_BLOCKS) as usize
}

/// Half of the reserve is log space for overwrites: a page that is written alone keeps one of a log page's 63
/// slots. So the reserve suffices for all pages of an image; above the limit it suffices for 1 GiB of them.
fn reserve_blocks(layout: &Layout) -> u64 {
    (layout.blocks_total / 30).clamp(32, RESERVE_BLOCKS_MAX)
}

/// First of the image's last blocks, as many as the reserve has. New data never takes these.
fn reserve_start(layout: &Layout) -> u64 {
    layout.last().0 - reserve_blocks(layout)
}

impl<'a> FreeMap<'a> {
    /// The map at `at`, which `lanes` lanes share.
    pub fn new(
        arena: &'a Arena,
        at: Ptr<AtomicU64>,
        layout: &'a Layout,
        lanes: &'a AtomicU64,
    ) -> FreeMap<'a> {
        let words = words_of(layout);
        let (words, behind) = arena.slice(at, words + 2 * LINE_WORDS).split_at(words);
        // On a line of its own, for any start of the map.
        FreeMap { words, scarce: &behind[LINE_WORDS], lanes, layout }
    }

    /// Free blocks that no lane holds.
    pub fn count(&self) -> u64 {
        self.count_in(0, u64::MAX)
    }

    /// Those of them that new data may take.
    pub fn count_for_data(&self) -> u64 {
        self.count().saturating_sub(reserve_blocks(self.layout))
    }

    /// Returns true if more than a sixteenth of the image, or 256 MiB, is free for data.
    pub fn has_plenty(&self) -> bool {
        let enough = reserve_blocks(self.layout) + (self.layout.blocks_total / 16).min(1 << 16);
        self.count_in(0, enough) >= enough
    }

    /// Free blocks from `start` on. Counting stops at `enough`.
    fn count_in(&self, start: u64, enough: u64) -> u64 {
        let mut count = 0;
        for w in start / WORD_BLOCKS..self.layout.last().0.div_ceil(WORD_BLOCKS) {
            let skip = start.saturating_sub(w * WORD_BLOCKS);
            // ORDERING: Relaxed, an estimate.
            count += u64::from((self.words[w as usize].load(Relaxed) >> skip << skip).count_ones());
            if count >= enough {
                break;
            }
        }
        count
    }

    /// Returns true if taking `want` blocks leaves what this purpose must leave (I2).
    fn leaves_enough(&self, want: u64, purpose: Purpose) -> bool {
        let reserve = reserve_blocks(self.layout);
        let needed = match purpose {
            // Checked elsewhere.
            Purpose::Data => reserve,
            Purpose::Replace | Purpose::Free => purpose.leaves(reserve) + want,
            Purpose::Regain => return true,
        };
        self.count_in(reserve_start(self.layout), needed) >= needed
            || self.count_in(0, want + purpose.leaves(reserve)) >= want + purpose.leaves(reserve)
    }

    /// Marks blocks free (I1).
    pub fn give(&self, extent: Extent) {
        self.for_words(extent, |word, mask| {
            // ORDERING: Release, O1.
            let before = word.fetch_or(mask, Release);
            assert_eq!(before & mask, 0, "a block was freed twice");
        });
        if self.scarce() && self.leaves_enough(WORD_BLOCKS, Purpose::Data) {
            self.scarce.store(0, Relaxed); // ORDERING: Relaxed, a hint.
        }
    }

    /// Returns true if a request was refused, and few blocks were freed since.
    pub fn scarce(&self) -> bool {
        // ORDERING: Relaxed, a hint.
        self.scarce.load(Relaxed) != 0
    }

    fn refuse(&self) -> bool {
        if !self.scarce() {
            self.scarce.store(1, Relaxed); // ORDERING: Relaxed, a hint.
        }
        false
    }

    /// Marks blocks free that a dead lane has left. Blocks that are free already are left alone: another lane
    /// may know of them.
    pub fn give_if_used(&self, extent: Extent) {
        self.for_words(extent, |word, mask| {
            // ORDERING: Release, O1.
            word.fetch_or(mask, Release);
        });
    }

    /// Marks blocks used while the map is built. Returns false if one of them is marked already.
    pub fn claim(&self, extent: Extent) -> bool {
        let mut free = true;
        self.for_words(extent, |word, mask| {
            // ORDERING: Acquire, O1.
            free &= word.fetch_and(!mask, Acquire) & mask == mask;
        });
        free
    }

    fn for_words(&self, extent: Extent, mut f: impl FnMut(&AtomicU64, u64)) {
        let (mut at, end) = (extent.block.0, extent.block.0 + extent.count);
        while at < end {
            let shift = at % WORD_BLOCKS;
            let n = (WORD_BLOCKS - shift).min(end - at);
            let mask = if n == 64 { u64::MAX } else { ((1 << n) - 1) << shift };
            f(&self.words[(at / WORD_BLOCKS) as usize], mask);
            at += n;
        }
    }

    /// Takes up to `want` consecutive blocks out of word `w`: the first run that is long enough, else the
    /// longest.
    fn take_run(&self, w: u64, want: u64, limit: u64) -> Option<Extent> {
        let word = &self.words[w as usize];
        let tail = limit.saturating_sub(w * WORD_BLOCKS);
        let allowed = if tail >= 64 { u64::MAX } else { (1 << tail) - 1 };
        loop {
            // ORDERING: Relaxed, a guess that the CAS checks.
            let bits = word.load(Relaxed);
            let (start, len) = best_run(bits & allowed, want)?;
            let mask = if len == 64 { u64::MAX } else { ((1 << len) - 1) << start };
            // ORDERING: Acquire, O1.
            if word.compare_exchange_weak(bits, bits & !mask, Acquire, Relaxed).is_ok() {
                return Some(Extent { block: BlockNo(w * WORD_BLOCKS + start), count: len });
            }
        }
    }

    /// Takes `want` blocks into `out`, in as few pieces as a search from the lane's cursor finds. On failure
    /// no block is taken.
    pub fn take(&self, cursor: &mut u64, want: u64, purpose: Purpose, out: &mut impl Pieces) -> bool {
        if !self.leaves_enough(want, purpose) {
            return self.refuse();
        }
        let limit = if purpose == Purpose::Data { reserve_start(self.layout) } else { self.layout.last().0 };
        let words = limit.div_ceil(WORD_BLOCKS);
        let first = out.count();
        let mut missing = want;
        // The first round takes long runs only, so that large writes do not take fragments. The second takes
        // any block.
        for shortest in [want.min(WORD_BLOCKS), 1] {
            let mut w = *cursor % words;
            for _ in 0..words {
                // ORDERING: Relaxed, a hint.
                let bits = self.words[w as usize].load(Relaxed);
                if bits != 0
                    && (shortest == 1
                        || best_run(bits, shortest).is_some_and(|(_, len)| len >= shortest.min(missing)))
                {
                    while missing > 0
                        && let Some(run) = self.take_run(w, missing, limit)
                    {
                        join(out, first, run);
                        missing -= run.count;
                        if run.count < shortest {
                            break;
                        }
                    }
                    *cursor = w;
                }
                if missing == 0 {
                    return true;
                }
                w = if w + 1 == words { 0 } else { w + 1 };
            }
        }
        while out.count() > first
            && let Some(extent) = out.remove_last()
        {
            self.give(extent);
        }
        self.refuse()
    }

    /// Most blocks that a lane keeps: few in a small region, or in one that many lanes share, because other
    /// lanes cannot use them while it is idle.
    pub fn keep_max(&self) -> usize {
        // ORDERING: Relaxed, an estimate, which changes when threads start and end.
        let lanes = (self.lanes.load(Relaxed) as i64).max(1) as u64;
        let share = (self.layout.blocks_total / KEPT_SHARE / lanes).clamp(1, MAGAZINE_BLOCKS as u64);
        (self.words.len() / 8).clamp(4, MAGAZINE_BLOCKS).min(share as usize)
    }

    /// Returns true if a lane may keep this block alone (I2 of `alloc`).
    pub fn may_be_kept(&self, block: BlockNo) -> bool {
        block.0 < reserve_start(self.layout)
    }
}

/// A list of taken blocks.
pub trait Pieces {
    /// Number of extents.
    fn count(&self) -> usize;
    /// Those behind the first ones.
    fn after(&self, first: usize) -> &[Extent];
    /// Adds one.
    fn add(&mut self, extent: Extent);
    /// The one that was added last.
    fn newest(&mut self) -> Option<&mut Extent>;
    /// Takes the last one out.
    fn remove_last(&mut self) -> Option<Extent>;
}

impl Pieces for Vec<Extent> {
    fn count(&self) -> usize {
        self.len()
    }

    fn after(&self, first: usize) -> &[Extent] {
        &self[first..]
    }

    fn add(&mut self, extent: Extent) {
        self.push(extent);
    }

    fn newest(&mut self) -> Option<&mut Extent> {
        self.last_mut()
    }

    fn remove_last(&mut self) -> Option<Extent> {
        self.pop()
    }
}

/// The pieces of at most a magazine's blocks, without the heap.
pub struct FewPieces {
    extents: [Extent; MAGAZINE_BLOCKS],
    count: usize,
}

impl FewPieces {
    /// No piece.
    pub const fn none() -> FewPieces {
        FewPieces { extents: [Extent { block: BlockNo(0), count: 0 }; MAGAZINE_BLOCKS], count: 0 }
    }
}

impl Pieces for FewPieces {
    fn count(&self) -> usize {
        self.count
    }

    fn after(&self, first: usize) -> &[Extent] {
        &self.extents[first..self.count]
    }

    fn add(&mut self, extent: Extent) {
        self.extents[self.count] = extent;
        self.count += 1;
    }

    fn newest(&mut self) -> Option<&mut Extent> {
        self.extents[..self.count].last_mut()
    }

    fn remove_last(&mut self) -> Option<Extent> {
        self.count = self.count.checked_sub(1)?;
        Some(self.extents[self.count])
    }
}

fn join(out: &mut impl Pieces, first: usize, run: Extent) {
    if out.count() > first
        && let Some(last) = out.newest()
        && last.block.0 + last.count == run.block.0
    {
        last.count += run.count;
        return;
    }
    out.add(run);
}

/// Start and length (at most `want`) of the first run of ones with length `want`, else of the longest.
fn best_run(bits: u64, want: u64) -> Option<(u64, u64)> {
    let mut rest = bits;
    let mut best: Option<(u64, u64)> = None;
    while rest != 0 {
        let start = u64::from(rest.trailing_zeros());
        let len = u64::from((!(rest >> start)).trailing_zeros()).min(64 - start);
        if len >= want {
            return Some((start, want));
        }
        if best.is_none_or(|(_, l)| len > l) {
            best = Some((start, len));
        }
        if start + len >= 64 {
            break;
        }
        rest &= u64::MAX << (start + len);
    }
    best
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
