//! Free space: a bitmap that every lane may take from, and a few blocks in each lane's own hands.
//!
//! State       `map`: a bit a block of the region, 1 = free and in nobody's hands. Blocks in a lane's magazine or limbo, and
//!             blocks in use, are 0.
//!             `scarce`: a word behind the map, written when it changes: a request was refused, and not much has come back since.
//!             Lanes keep nothing then: what lies in idle hands is missing elsewhere.
//! Invariants  I1  a bit is set only by who owns the block, after a fence that covers the record that frees it (INV) and
//!                 every store of its last use (D15).
//!             I2  as many blocks as the reserve has are left by new data, fewer by what replaces or removes (`Purpose`), and what gives
//!                 back at least as much as it takes may have the last one. No removal of a name depends on it (`names::strike`): from
//!                 every state a sequence of unlinks ends with an empty file system. The number counts, not the place: what
//!                 replaces a block by one of the reserve frees one elsewhere, and that one is not for new data. The place, the
//!                 last blocks of the region, makes the count cheap: while all of them are free nobody counts the others.
//!                 A block of the reserve never stays in a magazine. Callers that count at the same time may each find the last
//!                 blocks: the reserve is short of a few then.
//! Orderings   O1  bits are cleared with Acquire and set with Release: who gets a block sees what its last owner did.
//! Source      leases of chunks are affinity alone, stealing is always legal: protocol review L4.

use crate::format::layout::Layout;
use crate::ids::{BlockNo, Extent};
use crate::lane::{MAGAZINE_BLOCKS, Own};
use crate::planted::{Breach, block_refused, breaks_at_times};
use crate::region::Region;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::{Arena, Full, Ptr, watch};
use heddle_pmem::BLOCK_BYTES;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const WORD_BLOCKS: u64 = 64;
/// 34 MiB; more are too many to count.
const RESERVE_BLOCKS_MAX: u64 = 8704;
const LINE_WORDS: usize = 8;

/// What blocks are wanted for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// New data, new inodes, new names, and their records.
    Data,
    /// What leaves as much free as before but for its record: a page over another, attributes.
    Replace,
    /// What may free space later: removals of names, holes.
    Free,
    /// What gives back at once at least as much as it takes: log cleaning, a truncation that frees blocks, the copy of an edge.
    Regain,
}

impl Purpose {
    /// Free blocks that must be left.
    fn leaves(self, reserve: u64) -> u64 {
        match self {
            Purpose::Data => reserve,
            Purpose::Replace => reserve / 2,
            Purpose::Free => reserve / 4,
            Purpose::Regain => 0,
        }
    }
}

/// The free map; a view that is made anew wherever it is needed.
#[derive(Clone, Copy)]
pub struct FreeMap<'a> {
    words: &'a [AtomicU64],
    scarce: &'a AtomicU64,
    lanes: &'a AtomicU64,
    layout: Layout,
}

/// Memory of the free map of a region.
pub fn new_map(arena: &Arena, layout: &Layout) -> Result<Ptr<AtomicU64>, Full> {
    arena.alloc_zeroed::<AtomicU64>(words_of(layout) + 2 * LINE_WORDS)
}

fn words_of(layout: &Layout) -> usize {
    layout.blocks_total.div_ceil(WORD_BLOCKS) as usize
}

/// Half of it is log space for what replaces: a page that is written by itself keeps one of a log page's 63 slots. So it suffices for all
/// pages of an image, up to the limit: from there on for 1 GiB of them.
fn reserve_blocks(layout: &Layout) -> u64 {
    (layout.blocks_total / 30).clamp(32, RESERVE_BLOCKS_MAX)
}

/// First block of the reserve.
fn reserve_start(layout: &Layout) -> u64 {
    layout.last().0 - reserve_blocks(layout)
}

impl<'a> FreeMap<'a> {
    /// The map at `at`, of which `lanes` lanes take.
    pub fn new(arena: &'a Arena, at: Ptr<AtomicU64>, layout: Layout, lanes: &'a AtomicU64) -> FreeMap<'a> {
        let words = words_of(&layout);
        let (words, behind) = arena.slice(at, words + 2 * LINE_WORDS).split_at(words);
        // On a line of its own, wherever the map begins.
        FreeMap { words, scarce: &behind[LINE_WORDS], lanes, layout }
    }

    /// Free blocks outside the lanes' hands.
    pub fn count(&self) -> u64 {
        self.count_in(0, u64::MAX)
    }

    /// Those of them that new data may take.
    pub fn count_for_data(&self) -> u64 {
        self.count().saturating_sub(reserve_blocks(&self.layout))
    }

    /// Is more than a sixteenth of the image free for data, or 256 MiB?
    pub fn has_plenty(&self) -> bool {
        let enough = reserve_blocks(&self.layout) + (self.layout.blocks_total / 16).min(1 << 16);
        self.count_in(0, enough) >= enough
    }

    /// Free blocks from `start` on, counted until there are `enough`.
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

    /// Do `want` blocks leave what this purpose must leave (I2)?
    fn leaves_enough(&self, want: u64, purpose: Purpose) -> bool {
        let reserve = reserve_blocks(&self.layout);
        let needed = match purpose {
            // Taken elsewhere.
            Purpose::Data => reserve,
            Purpose::Replace | Purpose::Free => purpose.leaves(reserve) + want,
            Purpose::Regain => return true,
        };
        self.count_in(reserve_start(&self.layout), needed) >= needed
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

    /// Was a request refused, and has not much come back since?
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

    /// Marks blocks free that a dead lane has left. What is free already stays so: somebody else may know of it.
    pub fn give_if_used(&self, extent: Extent) {
        self.for_words(extent, |word, mask| {
            // ORDERING: Release, O1.
            word.fetch_or(mask, Release);
        });
    }

    /// Marks blocks used while the map is built; false if one of them is marked already.
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

    /// Takes up to `want` consecutive blocks out of word `w`; of several runs the first that is long enough, else the longest.
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

    /// Takes `want` blocks, in as few pieces as a search from the lane's cursor finds, into `out`. On failure nothing is taken.
    fn take(&self, cursor: &mut u64, want: u64, purpose: Purpose, out: &mut Vec<Extent>) -> bool {
        if !self.leaves_enough(want, purpose) {
            return self.refuse();
        }
        let limit = if purpose == Purpose::Data { reserve_start(&self.layout) } else { self.layout.last().0 };
        let words = limit.div_ceil(WORD_BLOCKS);
        let first = out.len();
        let mut missing = want;
        // The first round takes long runs only, so that large writes do not pick up crumbs; the second takes what there is.
        for shortest in [want.min(WORD_BLOCKS), 1] {
            let mut w = *cursor % words;
            for _ in 0..words {
                // ORDERING: Relaxed, a guess.
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
        for extent in out.drain(first..) {
            self.give(extent);
        }
        self.refuse()
    }
}

fn join(out: &mut Vec<Extent>, first: usize, run: Extent) {
    if out.len() > first
        && let Some(last) = out.last_mut()
        && last.block.0 + last.count == run.block.0
    {
        last.count += run.count;
        return;
    }
    out.push(run);
}

/// Start and length (at most `want`) of the first run of ones that is `want` long, else of the longest.
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

/// Of the region, what all lanes together keep at most, about.
const KEPT_SHARE: u64 = 32;

/// Blocks a lane keeps at most: few of a small region, or of one that many lanes share, lest others starve while it is idle.
fn keep_max(map: FreeMap<'_>) -> usize {
    // ORDERING: Relaxed, an estimate, which changes with threads' births and deaths.
    let lanes = (map.lanes.load(Relaxed) as i64).max(1) as u64;
    let share = (map.layout.blocks_total / KEPT_SHARE / lanes).clamp(1, MAGAZINE_BLOCKS as u64);
    (map.words.len() / 8).clamp(4, MAGAZINE_BLOCKS).min(share as usize)
}

/// Is there room for one more extent in what waits for a fence? Of a lane that may keep few blocks there wait few.
fn limbo_has_room(map: FreeMap<'_>, own: &Own) -> bool {
    let keep = keep_max(map);
    keep == MAGAZINE_BLOCKS || own.limbo.blocks() < 4 * keep as u64
}

/// Longest extent that waits in a lane's limbo: what is longer goes back to the map at once, at the price of a fence, for the lane
/// may stay idle while others look for space.
const LIMBO_EXTENT_MAX: u64 = 4;

/// One block. The lane's magazine is filled first, from the map, so that most calls touch nothing shared.
pub fn take_block(map: FreeMap<'_>, region: &Region, own: &mut Own, purpose: Purpose) -> Option<BlockNo> {
    let block = take_one(map, region, own, purpose)?;
    watch::name(region.base_address() + block.pos().0 as usize, BLOCK_BYTES, DATA_BLOCK);
    Some(block)
}

/// What tools call a block that has not been given another name.
const DATA_BLOCK: &str = "data block";

fn take_one(map: FreeMap<'_>, region: &Region, own: &mut Own, purpose: Purpose) -> Option<BlockNo> {
    if block_refused() {
        return None;
    }
    if let Some(block) = own.magazine.pop() {
        return Some(block);
    }
    let mut pieces = Vec::new();
    if map.take(&mut own.cursor, keep_max(map) as u64, Purpose::Data, &mut pieces) {
        expect_stores(region, &pieces);
        for extent in pieces.iter().rev() {
            for i in (0..extent.count).rev() {
                let kept = own.magazine.push(extent.block.plus(i));
                debug_assert!(kept);
            }
        }
        return own.magazine.pop();
    }
    take_last(map, region, own, 1, purpose, &mut pieces).then(|| pieces[0].block)
}

/// `count` blocks into `out`; false, and nothing taken, if there are not that many.
pub fn take_blocks(
    map: FreeMap<'_>,
    region: &Region,
    own: &mut Own,
    count: u64,
    purpose: Purpose,
    out: &mut Vec<Extent>,
) -> bool {
    if count == 1 {
        return take_block(map, region, own, purpose)
            .map(|block| out.push(Extent { block, count: 1 }))
            .is_some();
    }
    !block_refused() && take_last(map, region, own, count, purpose, out)
}

/// From the map; if it has too few, what the lane itself has freed or holds is added first.
fn take_last(
    map: FreeMap<'_>,
    region: &Region,
    own: &mut Own,
    count: u64,
    purpose: Purpose,
    out: &mut Vec<Extent>,
) -> bool {
    let first = out.len();
    if map.take(&mut own.cursor, count, purpose, out) {
        expect_stores(region, &out[first..]);
        return true;
    }
    if own.limbo.blocks() == 0 && own.magazine.len() == 0 {
        return false;
    }
    // PERSIST: D15: the publications that freed these blocks, and this lane's stores into them, come before their next use.
    region.fence();
    return_all(map, own);
    map.take(&mut own.cursor, count, purpose, out)
}

/// Blocks that came out of the map may be strange to this process.
fn expect_stores(region: &Region, extents: &[Extent]) {
    for extent in extents {
        region.expect_stores(extent.block.pos(), extent.count * BLOCK_BYTES as u64);
    }
}

/// Gives back blocks that were taken for an operation that did not happen: nothing on media or in an index names them.
pub fn untake(map: FreeMap<'_>, extents: &[Extent]) {
    for extent in extents {
        map.give(*extent);
    }
}

/// Frees blocks whose last record is durably superseded; they can be used again after the lane's next fence.
pub fn free_later(map: FreeMap<'_>, region: &Region, own: &mut Own, extent: Extent) {
    if breaks_at_times(Breach::BlocksLost) {
        return;
    }
    let waits = !map.scarce() && extent.count <= LIMBO_EXTENT_MAX && limbo_has_room(map, own);
    if waits && own.limbo.push(extent) {
        return;
    }
    // PERSIST: D15, orders the publication that freed these blocks before their next use.
    region.fence();
    settle_limbo(map, own);
    map.give(extent);
}

/// After a fence: what was freed before it may be used again.
pub fn settle_limbo(map: FreeMap<'_>, own: &mut Own) {
    let keep = if map.scarce() { 0 } else { keep_max(map) };
    let reserve = reserve_start(&map.layout);
    while let Some(extent) = own.limbo.pop() {
        let single = extent.count == 1 && extent.block.0 < reserve && own.magazine.len() < keep;
        if !(single && own.magazine.push(extent.block)) {
            map.give(extent);
        }
    }
}

/// Returns all that a lane holds to the map. The caller has fenced since the lane's last operation.
pub fn return_all(map: FreeMap<'_>, own: &mut Own) {
    settle_limbo(map, own);
    while let Some(block) = own.magazine.pop() {
        map.give(Extent { block, count: 1 });
    }
}
