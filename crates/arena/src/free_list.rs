//! Free blocks of one size class, shared by all processes: a Treiber stack of batches.
//!
//! State       head  offset / 16 of the top batch:38 | pushes:26
//!             A free block carries [`Links`]: `next` to the next block of its batch; in the first block of a batch also `below`
//!             (first block of the batch beneath it) and `count` (blocks in the batch).
//! Invariants  F1  A block is in at most one batch, a batch in at most one place: this stack, a heap, or the thread that popped it.
//!             F2  Only the thread that popped a batch reads or writes `next` and `count`; late poppers also read `below`.
//! ABA         A popper reads `head`, then `below` of the top block, then swaps `head`. If the block was popped and pushed again
//!             in between, `below` may be stale; but every push counts up `pushes`, so the swap fails, unless exactly a
//!             multiple of 2^26 pushes of this class happened inside that window and left the same block on top. At 10 ns a push
//!             that is a popper preempted for 0.67 s or a multiple of it, hit to within one push, while the others keep to this
//!             one class: accepted, and far rarer in fact, for heaps push batches of up to 128 blocks.
//! Late reads  The late popper's read of `below` may hit a block that its new owner fills with plain stores. The value is
//!             discarded (the swap fails). Rust's memory model does not cover such a read, as with any seqlock. It is an aligned
//!             8-byte load of mapped memory, and nothing else is relied on.
//! Orderings   O1  push's swap (Release) pairs with pop's load (Acquire): the popper sees all of the batch's links.
//! Loom        Loom's atomics are objects that must not be overwritten. So there the links stand before the block and are made once.

use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::{Acquire, Relaxed, Release};

/// The words of a free block. Outside loom they are the first bytes of the block itself.
pub(crate) struct Links {
    pub(crate) next: AtomicU64,
    below: AtomicU64,
    pub(crate) count: AtomicU64,
}

#[cfg(loom)]
impl Links {
    pub(crate) fn new() -> Self {
        Links { next: AtomicU64::new(0), below: AtomicU64::new(0), count: AtomicU64::new(0) }
    }
}

/// Bytes that a block needs beside its payload: none, except under loom.
pub(crate) const LINK_BYTES: u64 =
    if cfg!(loom) { size_of::<Links>().next_multiple_of(64) as u64 } else { 0 };

/// A stack of batches. It has a line of its own, so that lanes that refill different classes share none.
#[repr(C, align(64))]
pub(crate) struct FreeList {
    head: AtomicU64,
}

/// Blocks start on multiples of this, which is what fits an offset of 4 TiB into 38 bits.
const UNIT: u64 = 16;
const OFFSET_BITS: u32 = 38;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;

/// The largest arena, in bytes.
pub(crate) const CAPACITY_MAX: u64 = UNIT << OFFSET_BITS;

impl FreeList {
    pub(crate) fn new() -> Self {
        FreeList { head: AtomicU64::new(0) }
    }

    /// Pushes a batch: `first` heads a list of `count` blocks that no other thread has (F1). `links_of`: the
    /// links of a block.
    pub(crate) fn push<'a>(&self, links_of: impl Fn(u64) -> &'a Links, first: u64, count: u64) {
        let links = links_of(first);
        // ORDERING: Relaxed, published by the swap (O1).
        links.count.store(count, Relaxed);
        // ORDERING: Relaxed, only a guess that the swap checks.
        let mut head = self.head.load(Relaxed);
        loop {
            // ORDERING: Relaxed, published by the swap (O1).
            links.below.store((head & OFFSET_MASK) * UNIT, Relaxed);
            let pushes = (head >> OFFSET_BITS).wrapping_add(1) << OFFSET_BITS;
            // ORDERING: Release, O1. A failure only yields the next guess.
            match self.head.compare_exchange_weak(head, pushes | (first / UNIT), Release, Relaxed) {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }

    /// Takes the top batch: its first block and its count.
    pub(crate) fn pop<'a>(&self, links_of: impl Fn(u64) -> &'a Links) -> Option<(u64, u64)> {
        // ORDERING: Acquire, O1.
        let mut head = self.head.load(Acquire);
        loop {
            let first = (head & OFFSET_MASK) * UNIT;
            if first == 0 {
                return None;
            }
            let links = links_of(first);
            // ORDERING: Relaxed, visible by O1 if it is current, discarded if it is not (Late reads).
            let below = links.below.load(Relaxed);
            let next = (head & !OFFSET_MASK) | ((below / UNIT) & OFFSET_MASK);
            // ORDERING: Acquire on both sides, O1: a success owns the links, a failure reads another batch's.
            // The swap keeps the release sequence of the pushes beneath it, as every read-modify-write does.
            match self.head.compare_exchange_weak(head, next, Acquire, Acquire) {
                // ORDERING: Relaxed, O1 and F2.
                Ok(_) => return Some((first, links.count.load(Relaxed))),
                Err(now) => head = now,
            }
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn each_push_makes_the_head_another_word() {
        let links = Links { next: AtomicU64::new(0), below: AtomicU64::new(0), count: AtomicU64::new(0) };
        let (links_of, block) = (|_| &links, 4096);
        let list = FreeList::new();
        for turn in 1..=3 {
            list.push(links_of, block, 1);
            assert_eq!(list.head.load(Relaxed), (turn << OFFSET_BITS) | (block / UNIT));
            assert_eq!((list.pop(links_of), list.pop(links_of)), (Some((block, 1)), None));
            assert_eq!(list.head.load(Relaxed), turn << OFFSET_BITS);
        }
        // After the last number comes 0.
        list.head.store(!OFFSET_MASK, Relaxed);
        list.push(links_of, block, 1);
        assert_eq!(list.head.load(Relaxed), block / UNIT);
    }
}
