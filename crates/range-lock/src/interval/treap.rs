//! A treap of intervals: a search tree by (start, address), a heap by a random priority, so its depth is logarithmic in expectation
//! whatever the order of arrival.
//!
//! Invariants  N1  Left of a node are smaller keys, right larger; priorities never grow downwards.
//!             N2  `max` is the largest `last` of the node and all beneath it.
//! Skip rules  (pNOVA 3.1) Everything right of a node that starts behind the interval is skipped, and every subtree whose `max` lies
//!             before it.
//! Everything here runs under the file's mutex (T1 of `interval`): all accesses are Relaxed.

// ORDERING: Relaxed throughout this file: every word of the tree is read and written under the tree's mutex.
use heddle_arena::sync::atomic::Ordering::Relaxed;
use heddle_arena::sync::atomic::{AtomicU32, AtomicU64};
use heddle_arena::{Arena, AtomicPtr, Ptr};

use crate::head::Access;

heddle_arena::shared! {
    /// One holder or waiter. Two lines, so that a waiter that polls disturbs no search.
    #[repr(align(64))]
    pub(super) struct Node {
        start: AtomicU64,
        last: AtomicU64,
        max: AtomicU64,
        priority: AtomicU64,
        left: AtomicPtr<Node>,
        right: AtomicPtr<Node>,
        writer: AtomicU64,
        padding: AtomicU64,
        /// Conflicting overlaps that came before (T2).
        pub(super) blockings: AtomicU32,
    }
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<Node>() == 128);

impl Node {
    pub(super) fn reset(&self, start: u64, last: u64, access: Access, priority: u64) {
        // ORDERING: Relaxed, under the mutex.
        self.start.store(start, Relaxed);
        self.last.store(last, Relaxed);
        self.max.store(last, Relaxed);
        self.priority.store(priority, Relaxed);
        self.left.store(Ptr::NULL, Relaxed);
        self.right.store(Ptr::NULL, Relaxed);
        self.writer.store((access == Access::Exclusive) as u64, Relaxed);
    }

    /// Would this one and one of `access` exclude each other?
    pub(super) fn conflicts(&self, access: Access) -> bool {
        // ORDERING: Relaxed, under the mutex.
        access == Access::Exclusive || self.writer.load(Relaxed) != 0
    }

    /// What its waiter parks on.
    pub(super) fn key(&self, arena: &Arena) -> u64 {
        arena.offset_of(&self.blockings).raw()
    }

    pub(super) fn next_spare(&self) -> Ptr<Node> {
        // ORDERING: Relaxed, under the mutex.
        self.left.load(Relaxed)
    }

    pub(super) fn set_next_spare(&self, next: Ptr<Node>) {
        // ORDERING: Relaxed, under the mutex.
        self.left.store(next, Relaxed);
    }
}

/// The tree of one file while its mutex is held.
pub(super) struct Treap<'a> {
    arena: &'a Arena,
    root: Ptr<Node>,
}

impl<'a> Treap<'a> {
    pub(super) fn new(arena: &'a Arena, root: Ptr<Node>) -> Self {
        Treap { arena, root }
    }

    pub(super) fn root(&self) -> Ptr<Node> {
        self.root
    }

    /// Inserts a node that `reset` has made.
    pub(super) fn insert(&mut self, node: Ptr<Node>) {
        self.root = self.insert_below(self.root, node);
    }

    /// Removes a node of the tree.
    pub(super) fn remove(&mut self, node: Ptr<Node>) {
        self.root = self.remove_below(self.root, node);
    }

    /// Calls `visit` for each interval that meets `[first, last]`, in order.
    pub(super) fn for_each_overlap(&self, first: u64, last: u64, mut visit: impl FnMut(&Node)) {
        self.visit_below(self.root, first, last, &mut visit);
    }

    fn visit_below(&self, at: Ptr<Node>, first: u64, last: u64, visit: &mut impl FnMut(&Node)) {
        // ORDERING: Relaxed, under the mutex; so everywhere below.
        if at.is_null() || self.node(at).max.load(Relaxed) < first {
            return;
        }
        let node = self.node(at);
        self.visit_below(node.left.load(Relaxed), first, last, visit);
        if node.start.load(Relaxed) > last {
            return;
        }
        if node.last.load(Relaxed) >= first {
            visit(node);
        }
        self.visit_below(node.right.load(Relaxed), first, last, visit);
    }

    fn insert_below(&self, at: Ptr<Node>, new: Ptr<Node>) -> Ptr<Node> {
        if at.is_null() {
            return new;
        }
        let (node, fresh) = (self.node(at), self.node(new));
        if fresh.priority.load(Relaxed) > node.priority.load(Relaxed) {
            let (left, right) = self.split(at, self.key(new));
            fresh.left.store(left, Relaxed);
            fresh.right.store(right, Relaxed);
            return self.mended(new);
        }
        let side = if self.key(new) < self.key(at) { &node.left } else { &node.right };
        side.store(self.insert_below(side.load(Relaxed), new), Relaxed);
        self.mended(at)
    }

    fn remove_below(&self, at: Ptr<Node>, gone: Ptr<Node>) -> Ptr<Node> {
        assert!(!at.is_null(), "only nodes of the tree are removed");
        let node = self.node(at);
        if at == gone {
            return self.merge(node.left.load(Relaxed), node.right.load(Relaxed));
        }
        let side = if self.key(gone) < self.key(at) { &node.left } else { &node.right };
        side.store(self.remove_below(side.load(Relaxed), gone), Relaxed);
        self.mended(at)
    }

    /// Cuts the subtree into the keys below `key` and the others.
    fn split(&self, at: Ptr<Node>, key: (u64, u64)) -> (Ptr<Node>, Ptr<Node>) {
        if at.is_null() {
            return (at, at);
        }
        let node = self.node(at);
        if self.key(at) < key {
            let (left, right) = self.split(node.right.load(Relaxed), key);
            node.right.store(left, Relaxed);
            (self.mended(at), right)
        } else {
            let (left, right) = self.split(node.left.load(Relaxed), key);
            node.left.store(right, Relaxed);
            (left, self.mended(at))
        }
    }

    /// Joins two subtrees, all keys of `a` below all of `b`.
    fn merge(&self, a: Ptr<Node>, b: Ptr<Node>) -> Ptr<Node> {
        if a.is_null() || b.is_null() {
            return if a.is_null() { b } else { a };
        }
        let (left, right) = (self.node(a), self.node(b));
        if left.priority.load(Relaxed) >= right.priority.load(Relaxed) {
            left.right.store(self.merge(left.right.load(Relaxed), b), Relaxed);
            self.mended(a)
        } else {
            right.left.store(self.merge(a, right.left.load(Relaxed)), Relaxed);
            self.mended(b)
        }
    }

    /// Restores N2 at a node whose children are right.
    fn mended(&self, at: Ptr<Node>) -> Ptr<Node> {
        let node = self.node(at);
        let beneath = |side: &AtomicPtr<Node>| {
            let child = side.load(Relaxed);
            if child.is_null() { 0 } else { self.node(child).max.load(Relaxed) }
        };
        let max = node.last.load(Relaxed).max(beneath(&node.left)).max(beneath(&node.right));
        node.max.store(max, Relaxed);
        at
    }

    fn key(&self, at: Ptr<Node>) -> (u64, u64) {
        (self.node(at).start.load(Relaxed), at.raw())
    }

    fn node(&self, at: Ptr<Node>) -> &'a Node {
        self.arena.get(at)
    }
}

#[cfg(test)]
impl Treap<'_> {
    /// Depth of the tree, having checked N1 and N2.
    pub(super) fn checked_depth(&self) -> usize {
        fn check(tree: &Treap, at: Ptr<Node>) -> (usize, u64) {
            if at.is_null() {
                return (0, 0);
            }
            let node = tree.node(at);
            let mut max = node.last.load(Relaxed);
            let mut depth = 0;
            for (side, child) in [node.left.load(Relaxed), node.right.load(Relaxed)].into_iter().enumerate() {
                if child.is_null() {
                    continue;
                }
                assert_eq!(tree.key(child) > tree.key(at), side == 1, "N1: order");
                assert!(tree.node(child).priority.load(Relaxed) <= node.priority.load(Relaxed), "N1: heap");
                let (below, below_max) = check(tree, child);
                (depth, max) = (depth.max(below), max.max(below_max));
            }
            assert_eq!(max, node.max.load(Relaxed), "N2");
            (depth + 1, max)
        }
        check(self, self.root).0
    }
}
