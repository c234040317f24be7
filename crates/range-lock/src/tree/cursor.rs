//! A walk over the places of ascending segments: one descent, then from leaf to leaf.

use heddle_arena::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use heddle_arena::sync::atomic::{AtomicU32, AtomicU64};
use heddle_arena::{Arena, Full, Ptr};

use super::{SrlTree, slot};
use crate::head::LockHead;

/// The place where a segment is locked.
pub(super) enum Found<'a> {
    /// By its own word: the first of these, which are those of the range in one leaf.
    Words(&'a [AtomicU32]),
    /// By the slot of an absent subtree that ends with segment `last`.
    Slot { slot: &'a AtomicU64, last: u64, covered: bool },
}

enum Child<'a> {
    Node(u64),
    Absent(Found<'a>),
}

/// The nodes it came by, so that neighbours are found without a descent. Node 0 is none.
pub(super) struct Cursor<'a> {
    tree: &'a SrlTree,
    arena: &'a Arena,
    head: &'a LockHead,
    parent: u64,
    parent_no: u64,
}

impl<'a> Cursor<'a> {
    #[inline]
    pub(super) fn new(tree: &'a SrlTree, arena: &'a Arena, head: &'a LockHead) -> Self {
        Cursor { tree, arena, head, parent: 0, parent_no: 0 }
    }

    /// The place of `segment` (and of those after it in the same leaf, up to `last`), growing the tree as needed. `open`: the range
    /// reaches from here to the end of the file, so absent subtrees within need not be grown.
    #[inline]
    pub(super) fn locate(&mut self, segment: u64, last: u64, open: bool) -> Result<Found<'a>, Full> {
        let leaf = match self.find_leaf(segment, last, open)? {
            Child::Node(node) => Ptr::from_raw(node),
            Child::Absent(place) => return Ok(place),
        };
        let level = self.tree.levels[self.tree.depth - 1];
        let index = level.index(segment);
        let count = (last - segment).min((1 << level.bits) - 1 - index as u64) as usize + 1;
        Ok(Found::Words(self.arena.slice(leaf.add(index), count)))
    }

    #[inline]
    fn find_leaf(&mut self, segment: u64, last: u64, open: bool) -> Result<Child<'a>, Full> {
        let depth = self.tree.depth;
        if depth == 1 {
            // ORDERING: Acquire, O1 of `tree`.
            return Ok(Child::Node(self.head.root.load(Acquire)));
        }
        let parent_no = self.parent_no_of(segment);
        if self.parent == 0 || self.parent_no != parent_no {
            let left =
                if self.parent != 0 && self.parent_no + 1 == parent_no { Some(self.link()) } else { None };
            // ORDERING: Acquire, O1 of `tree`.
            let mut node = left.map_or(0, |link| link.load(Acquire));
            if node == 0 {
                // ORDERING: Acquire, O1 of `tree`.
                node = self.head.root.load(Acquire);
                for level in 0..depth - 2 {
                    match self.child(node, level, segment, last, open)? {
                        Child::Node(child) => node = child,
                        absent => {
                            self.parent = 0;
                            return Ok(absent);
                        }
                    }
                }
                if let Some(link) = left {
                    // ORDERING: Release, O1 of `tree`: every walker stores the same.
                    link.store(node, Release);
                }
            }
            (self.parent, self.parent_no) = (node, parent_no);
        }
        self.child(self.parent, depth - 2, segment, last, open)
    }

    #[inline]
    fn child(&self, node: u64, level: usize, segment: u64, last: u64, open: bool) -> Result<Child<'a>, Full> {
        let index = self.tree.levels[level].index(segment);
        let slot: &AtomicU64 = self.arena.get(Ptr::from_raw(node).add(index));
        // ORDERING: Acquire, O1 of `tree`.
        let value = slot.load(Acquire);
        if slot::is_child(value) {
            return Ok(Child::Node(value));
        }
        let want = Want { level, segment, last, open };
        want.absent(self.tree, self.arena, self.head, slot, value)
    }

    fn parent_no_of(&self, segment: u64) -> u64 {
        match self.tree.depth {
            1 => 0,
            depth => {
                let parent = self.tree.levels[depth - 2];
                segment >> (parent.shift + parent.bits)
            }
        }
    }

    /// The link to the parent's right neighbour.
    fn link(&self) -> &'a AtomicU64 {
        let slots = self.tree.slots(self.tree.depth - 2);
        self.arena.get(Ptr::from_raw(self.parent).add(slots - 1))
    }
}

/// A request for an absent child. It is separate from the cursor, so that the cursor can live in registers.
struct Want {
    level: usize,
    segment: u64,
    last: u64,
    open: bool,
}

impl Want {
    #[cold]
    fn absent<'a>(
        self,
        tree: &SrlTree,
        arena: &Arena,
        head: &LockHead,
        slot: &'a AtomicU64,
        value: u64,
    ) -> Result<Child<'a>, Full> {
        let Want { level, segment, last, open } = self;
        let shift = tree.levels[level].shift;
        let first_below = segment >> shift << shift;
        let last_below = first_below + (1 << shift) - 1;
        let covered = open && segment == first_below && last_below <= last;
        if slot::is_locked(value) || covered {
            return Ok(Child::Absent(Found::Slot { slot, last: last_below, covered }));
        }
        let node = tree.new_node(arena, level + 1)?;
        // ORDERING: Release installs, Acquire on failure follows another's: O1 of `tree`. Acquire on success too: the slot may have been
        // a lock, and a thread that comes to the child through us must see its last holder's stores.
        match slot.compare_exchange(0, node, AcqRel, Acquire) {
            Ok(_) => {
                // ORDERING: Relaxed, a figure for people.
                head.bytes.fetch_add(tree.node_bytes(level + 1), Relaxed);
                Ok(Child::Node(node))
            }
            Err(other) => {
                // SAFETY: just made, and the exchange did not publish it (R1).
                unsafe { tree.free_node(arena, level + 1, node) };
                Ok(match slot::is_child(other) {
                    true => Child::Node(other),
                    false => Child::Absent(Found::Slot { slot, last: last_below, covered }),
                })
            }
        }
    }
}
