//! The interval-tree range lock: every holder and every waiter is a node of one balanced tree, under ONE mutex.
//!
//! State       `LockHead::root`: a treap of [`Node`]s keyed by start, each with the largest end beneath it (`interval/treap.rs`).
//!             `LockHead::word`: the mutex. `LockHead::spare`: nodes to use again, chained by `left`.
//! Invariants  T1  Tree, spare list and all fields but `blockings` are touched only under the mutex (hence Relaxed throughout).
//!             T2  `blockings` of a node is the number of nodes in the tree that overlap it, conflict with it (not both readers) and
//!                 were inserted before it. A node with 0 holds its range.
//!             T3  A node that leaves the tree was a holder, so every conflicting overlap left is younger and counted it: it takes one
//!                 off each.
//! Fairness    By T2 a reader queues after a writer that waits: nobody starves and nothing needs to age. Both modes are the same: the
//!             paper's waiters sleep too.
//! Limits      The mutex serialises range checks, and readers too (SRL III-C): that is what the paper shows.
//! Orderings   O1  The last `blockings` decrement (SeqCst) pairs with the waiter's SeqCst load; the mutex (Acquire / SeqCst) with itself.
//! Memory      128 bytes a node, one for each holder and waiter; kept for reuse until the file is closed.
//! Source      SRL III-A, Fig. 4; pNOVA 3.1.

mod treap;

use std::ops::Range;

use heddle_arena::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use heddle_arena::sync::spin_hint;
use heddle_arena::{Arena, Full, Ptr};

use crate::geometry::{BadGeometry, Geometry, Segments};
use crate::head::{Access, Held, LockHead};
use crate::{Error, RangeLock};
use treap::{Node, Treap};

const FREE: u32 = 0;
const TAKEN: u32 = 1;
/// Turns before a thread that meets the mutex taken goes to sleep.
const SPINS: u32 = if cfg!(loom) { 0 } else { 100 };

/// An interval tree of holders and waiters.
#[derive(Clone, Copy, Debug)]
pub struct IntervalTree {
    segments: Segments,
}

impl IntervalTree {
    /// A tree whose intervals are of whole segments.
    pub fn new(geometry: &Geometry) -> Result<Self, BadGeometry> {
        Ok(IntervalTree { segments: geometry.segments()? })
    }
}

impl RangeLock for IntervalTree {
    fn init(&self, _: &Arena, _: &LockHead) -> Result<(), Full> {
        Ok(())
    }

    fn acquire(
        &self,
        arena: &Arena,
        head: &LockHead,
        bytes: Range<u64>,
        access: Access,
    ) -> Result<Held, Error> {
        let (first, last) = self.segments.of(&bytes)?;
        let guard = Guard::lock(arena, head);
        let node = guard.new_node(first, last, access)?;
        let mut tree = guard.tree();
        let mut count = 0;
        tree.for_each_overlap(first, last, |other| count += other.conflicts(access) as u32);
        let me = arena.get(node);
        // The last user of the node held its range in the end: 0 is there (T2), and its line stays unwritten.
        if count != 0 {
            // ORDERING: Relaxed, published by the mutex.
            me.blockings.store(count, Relaxed);
        }
        tree.insert(node);
        guard.keep(tree);
        drop(guard);
        if count != 0 {
            arena.parking().wait(me.key(arena), || me.blockings.load(SeqCst) != 0, None);
        }
        Ok(Held { first, last, place: node.raw(), access })
    }

    fn release(&self, arena: &Arena, head: &LockHead, held: Held) {
        let node = Ptr::from_raw(held.place);
        let guard = Guard::lock(arena, head);
        let mut tree = guard.tree();
        tree.remove(node);
        tree.for_each_overlap(held.first, held.last, |other| {
            if other.conflicts(held.access) && other.blockings.fetch_sub(1, SeqCst) == 1 {
                arena.parking().wake(other.key(arena));
            }
        });
        guard.keep(tree);
        guard.keep_spare(node);
    }

    unsafe fn last_close(&self, arena: &Arena, head: &LockHead) {
        let guard = Guard::lock(arena, head);
        while let Some(node) = guard.take_spare() {
            // SAFETY: allocated by `new_node`, out of tree and spare list; a late waker only computes its address.
            unsafe { arena.free(node, 1) };
            // ORDERING: Relaxed, T1.
            head.bytes.fetch_sub(size_of::<Node>() as u64, Relaxed);
        }
    }

    unsafe fn destroy(&self, arena: &Arena, head: &LockHead) {
        // SAFETY: passed on.
        unsafe { self.last_close(arena, head) };
        // ORDERING: Relaxed, nobody else is here (caller).
        head.inserted.store(0, Relaxed);
    }

    fn memory_bytes(&self, _: &Arena, head: &LockHead) -> u64 {
        // ORDERING: Relaxed, a figure for people.
        head.bytes.load(Relaxed)
    }

    fn name(&self) -> &'static str {
        "interval"
    }
}

/// The mutex over a file's tree, held.
struct Guard<'a> {
    arena: &'a Arena,
    head: &'a LockHead,
}

impl<'a> Guard<'a> {
    fn lock(arena: &'a Arena, head: &'a LockHead) -> Guard<'a> {
        let mutex = &head.word;
        // ORDERING: Acquire, pairs with the SeqCst store in `drop` (T1). A failure decides nothing.
        let take = || mutex.compare_exchange(FREE, TAKEN, Acquire, Relaxed).is_ok();
        let mut turns = 0;
        while !take() {
            turns += 1;
            if turns <= SPINS {
                spin_hint();
            } else {
                arena.parking().wait(arena.offset_of(mutex).raw(), || mutex.load(SeqCst) != FREE, None);
            }
        }
        Guard { arena, head }
    }

    fn tree(&self) -> Treap<'a> {
        // ORDERING: Relaxed, T1.
        Treap::new(self.arena, Ptr::from_raw(self.head.root.load(Relaxed)))
    }

    fn keep(&self, tree: Treap<'a>) {
        // ORDERING: Relaxed, T1.
        self.head.root.store(tree.root().raw(), Relaxed);
    }

    fn new_node(&self, first: u64, last: u64, access: Access) -> Result<Ptr<Node>, Full> {
        let node = match self.take_spare() {
            Some(node) => node,
            None => {
                let node = self.arena.alloc_zeroed::<Node>(1)?;
                // ORDERING: Relaxed, T1.
                self.head.bytes.fetch_add(size_of::<Node>() as u64, Relaxed);
                node
            }
        };
        // ORDERING: Relaxed, T1.
        let nth = self.head.inserted.load(Relaxed).wrapping_add(1);
        // ORDERING: Relaxed, T1.
        self.head.inserted.store(nth, Relaxed);
        self.arena.get(node).reset(first, last, access, priority(nth));
        Ok(node)
    }

    fn take_spare(&self) -> Option<Ptr<Node>> {
        // ORDERING: Relaxed, T1.
        let node = Ptr::<Node>::from_raw(self.head.spare.load(Relaxed));
        let next = self.arena.try_get(node)?.next_spare();
        // ORDERING: Relaxed, T1.
        self.head.spare.store(next.raw(), Relaxed);
        Some(node)
    }

    fn keep_spare(&self, node: Ptr<Node>) {
        // ORDERING: Relaxed, T1.
        self.arena.get(node).set_next_spare(Ptr::from_raw(self.head.spare.load(Relaxed)));
        // ORDERING: Relaxed, T1.
        self.head.spare.store(node.raw(), Relaxed);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        self.head.word.store(FREE, SeqCst);
        self.arena.parking().wake(self.arena.offset_of(&self.head.word).raw());
    }
}

/// A number that looks random, for the treap's balance: the finaliser of splitmix64.
fn priority(nth: u64) -> u64 {
    let mut x = nth.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(all(test, not(loom)))]
mod tests;
