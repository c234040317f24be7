//! The page index of an inode: page number -> cell.
//!
//! State       Four cells in the inode itself, for pages 0 to 3; beyond them a radix tree that grows on demand: leaves of
//!             64 cells, interior nodes of 512 children (8 and 2 under loom). `root` is the offset of the topmost node, its height in the
//!             low six bits (1: a leaf), 0: no tree.
//! Invariants  I1  a node once linked stays until the inode dies; so a cell that was found stays valid while the inode
//!                 is open, and no walk meets a detached leaf (docs/protocol.md D16).
//!             I2  the tree of height h covers pages [0, 64 * 512^(h-1)).
//! Orderings   O1  a node is linked by a CAS (Release) after it is zeroed; walkers load links with Acquire.
//! Source      radix tree grown by CAS: SRL paper Algorithm 1; small first cells: docs/protocol.md P3.

use crate::ids::PageNo;
use crate::state::cell::Cell;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::{Arena, Full, Ptr};
use std::sync::atomic::Ordering::{AcqRel, Acquire};

/// Cells in the inode.
pub const INLINE_CELLS: usize = 4;
const LEAF_BITS: u32 = if cfg!(loom) { 3 } else { 6 };
const NODE_BITS: u32 = if cfg!(loom) { 1 } else { 9 };
/// Cells of a leaf.
const LEAF_CELLS: usize = 1 << LEAF_BITS;
const NODE_CHILDREN: usize = 1 << NODE_BITS;
const HEIGHT_MASK: u64 = 63;
/// Largest height, that of a tree that covers all pages of the largest file.
const HEIGHT_MAX: u64 = 2 + (64 - LEAF_BITS as u64) / NODE_BITS as u64;
/// A walk through this many bytes of nodes does not ask the kernel yet how much memory the arena has.
const SEEN_FREE_BYTES: u64 = 1 << 20;

/// An inode's index: a view of the cells and the root that lie in the inode.
#[derive(Clone, Copy, Debug)]
pub struct Index<'a> {
    /// Cells of the first pages.
    pub inline: &'a [Cell; INLINE_CELLS],
    /// Root of the tree.
    pub root: &'a AtomicU64,
}

/// Consecutive cells that are adjacent in memory.
#[derive(Clone, Copy, Debug)]
pub struct Run<'a> {
    /// Page of the first cell.
    pub page: PageNo,
    /// The cells.
    pub cells: &'a [Cell],
}

/// The iterator of [`Index::runs`]; it skips holes without leaves.
///
/// # Panics
/// If nodes form a circle, which an attached process can cause: when a walk has seen more nodes than
/// the arena has memory for.
pub struct Runs<'a> {
    index: Index<'a>,
    arena: &'a Arena,
    page: PageNo,
    end: PageNo,
    seen_bytes: u64,
    max_bytes: u64,
}

impl Runs<'_> {
    /// Counts the memory of a leaf, or of an empty link.
    fn see(&mut self, bytes: usize) {
        self.seen_bytes += bytes as u64;
        if self.seen_bytes > self.max_bytes {
            self.max_bytes = self.arena.touched_bytes() + SEEN_FREE_BYTES;
            assert!(self.seen_bytes <= self.max_bytes, "nodes of an index lie in a circle");
        }
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = Run<'a>;

    fn next(&mut self) -> Option<Run<'a>> {
        while self.page < self.end {
            let page = self.page;
            if let Some(run) = self.index.find(self.arena, page) {
                self.see(size_of::<[Cell; LEAF_CELLS]>());
                let len = run.cells.len().min((self.end.0 - page.0) as usize);
                self.page = PageNo(page.0 + len as u64);
                return Some(Run { page, cells: &run.cells[..len] });
            }
            self.see(size_of::<AtomicU64>());
            self.page = self.index.skip_absent(self.arena, page)?;
        }
        None
    }
}

fn covered(height: u64) -> u64 {
    1 << (LEAF_BITS + NODE_BITS * (height as u32 - 1)).min(63)
}

fn child_slot(page: PageNo, height: u64) -> usize {
    (page.0 >> (LEAF_BITS + NODE_BITS * (height as u32 - 2))) as usize & (NODE_CHILDREN - 1)
}

impl<'a> Index<'a> {
    /// The cells from `page` to the end of its leaf, or `None` if the leaf does not exist.
    pub fn find(self, arena: &'a Arena, page: PageNo) -> Option<Run<'a>> {
        if page.0 < INLINE_CELLS as u64 {
            return Some(Run { page, cells: &self.inline[page.0 as usize..] });
        }
        // ORDERING: Acquire, O1.
        let root = self.root.load(Acquire);
        let mut height = root & HEIGHT_MASK;
        if height == 0 || page.0 >= covered(height) {
            return None;
        }
        let mut node = root & !HEIGHT_MASK;
        while height > 1 {
            let children: &[AtomicU64] = arena.slice(Ptr::from_raw(node), NODE_CHILDREN);
            // ORDERING: Acquire, O1.
            node = children[child_slot(page, height)].load(Acquire);
            if node == 0 {
                return None;
            }
            height -= 1;
        }
        Some(leaf_run(arena, node, page))
    }

    /// As [`Index::find`], but creates the leaf if it does not exist.
    pub fn grow(self, arena: &'a Arena, page: PageNo) -> Result<Run<'a>, Full> {
        if let Some(run) = self.find(arena, page) {
            return Ok(run);
        }
        let root = self.raise_to(arena, page)?;
        let mut height = root & HEIGHT_MASK;
        let mut node = root & !HEIGHT_MASK;
        while height > 1 {
            let children: &[AtomicU64] = arena.slice(Ptr::from_raw(node), NODE_CHILDREN);
            node = self.child_or_new(arena, &children[child_slot(page, height)], height - 1)?;
            height -= 1;
        }
        Ok(leaf_run(arena, node, page))
    }

    /// Makes the tree high enough for `page`; returns its root.
    fn raise_to(self, arena: &Arena, page: PageNo) -> Result<u64, Full> {
        loop {
            // ORDERING: Acquire, O1.
            let root = self.root.load(Acquire);
            let height = root & HEIGHT_MASK;
            if height > 0 && page.0 < covered(height) {
                return Ok(root);
            }
            let new = new_node(arena, height + 1)?;
            if height > 0 {
                let children: &[AtomicU64] = arena.slice(Ptr::from_raw(new), NODE_CHILDREN);
                // ORDERING: Release, O1: the CAS below publishes it.
                children[0].store(root & !HEIGHT_MASK, std::sync::atomic::Ordering::Release);
            }
            // ORDERING: AcqRel, O1.
            if self.root.compare_exchange(root, new | (height + 1), AcqRel, Acquire).is_err() {
                free_node(arena, new, height + 1);
            }
        }
    }

    fn child_or_new(self, arena: &Arena, link: &AtomicU64, height: u64) -> Result<u64, Full> {
        // ORDERING: Acquire, O1.
        let child = link.load(Acquire);
        if child != 0 {
            return Ok(child);
        }
        let new = new_node(arena, height)?;
        // ORDERING: AcqRel and Acquire, O1: the loser uses the winner's node.
        match link.compare_exchange(0, new, AcqRel, Acquire) {
            Ok(_) => Ok(new),
            Err(winner) => {
                free_node(arena, new, height);
                Ok(winner)
            }
        }
    }

    /// Existing cells of `[first, end)`, run by run.
    pub fn runs(self, arena: &'a Arena, first: PageNo, end: PageNo) -> Runs<'a> {
        Runs { index: self, arena, page: first, end, seen_bytes: 0, max_bytes: SEEN_FREE_BYTES }
    }

    /// Called when `page` has no leaf: the first page after the absent subtree, or `None` beyond the tree.
    fn skip_absent(self, arena: &Arena, page: PageNo) -> Option<PageNo> {
        // ORDERING: Acquire, O1.
        let root = self.root.load(Acquire);
        let mut height = root & HEIGHT_MASK;
        if height == 0 || page.0 >= covered(height) {
            return None;
        }
        let mut node = root & !HEIGHT_MASK;
        while height > 1 {
            let children: &[AtomicU64] = arena.slice(Ptr::from_raw(node), NODE_CHILDREN);
            // ORDERING: Acquire, O1.
            node = children[child_slot(page, height)].load(Acquire);
            height -= 1;
            if node == 0 {
                let span = covered(height);
                return Some(PageNo((page.0 / span + 1) * span));
            }
        }
        Some(page)
    }

    /// Frees every node. Only for an inode that no thread can reach any more.
    pub fn clear(self, arena: &Arena) {
        for cell in self.inline {
            cell.set(crate::state::cell::Map::HOLE, crate::ids::Version(0));
        }
        // ORDERING: AcqRel, only this caller uses the nodes.
        let root = self.root.swap(0, AcqRel);
        if root != 0 {
            // A tree with more nodes than the arena has room for is damaged.
            let mut left = arena.capacity_bytes() / size_of::<[Cell; LEAF_CELLS]>() as u64;
            free_subtree(arena, root & !HEIGHT_MASK, (root & HEIGHT_MASK).min(HEIGHT_MAX), &mut left);
        }
    }
}

fn leaf_run(arena: &Arena, leaf: u64, page: PageNo) -> Run<'_> {
    let cells: &[Cell] = arena.slice(Ptr::from_raw(leaf), LEAF_CELLS);
    Run { page, cells: &cells[page.0 as usize & (LEAF_CELLS - 1)..] }
}

fn new_node(arena: &Arena, height: u64) -> Result<u64, Full> {
    match height {
        1 => Ok(arena.alloc_zeroed::<Cell>(LEAF_CELLS)?.raw()),
        _ => Ok(arena.alloc_zeroed::<AtomicU64>(NODE_CHILDREN)?.raw()),
    }
}

fn free_node(arena: &Arena, node: u64, height: u64) {
    // SAFETY: the node was allocated by `new_node` with this height and is not, or no longer, linked.
    unsafe {
        match height {
            1 => arena.free(Ptr::<Cell>::from_raw(node), LEAF_CELLS),
            _ => arena.free(Ptr::<AtomicU64>::from_raw(node), NODE_CHILDREN),
        }
    }
}

fn free_subtree(arena: &Arena, node: u64, height: u64, left: &mut u64) {
    *left = left.checked_sub(1).expect("nodes of an index lie in a circle");
    if height > 1 {
        let children: &[AtomicU64] = arena.slice(Ptr::from_raw(node), NODE_CHILDREN);
        for child in children {
            // ORDERING: Acquire, O1.
            match child.load(Acquire) {
                0 => {}
                child => free_subtree(arena, child, height - 1, left),
            }
        }
    }
    free_node(arena, node, height);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::ids::{BlockNo, Version};
    use crate::state::cell::Map;
    use heddle_arena::Zeroed;
    use std::sync::atomic::Ordering::SeqCst;

    struct Home {
        arena: Arena,
        inline: [Cell; INLINE_CELLS],
        root: AtomicU64,
    }

    impl Home {
        fn new() -> Home {
            let arena = Arena::private(64 << 20).unwrap();
            Home { arena, inline: std::array::from_fn(|_| Cell::zeroed()), root: AtomicU64::new(0) }
        }

        fn index(&self) -> Index<'_> {
            Index { inline: &self.inline, root: &self.root }
        }

        fn put(&self, page: u64) {
            let run = self.index().grow(&self.arena, PageNo(page)).unwrap();
            assert_eq!(run.page, PageNo(page));
            run.cells[0].set(Map::data(BlockNo(page + 1)), Version(1));
        }

        fn get(&self, page: u64) -> Option<u64> {
            let run = self.index().find(&self.arena, PageNo(page))?;
            run.cells[0].map().block().map(|block| block.0)
        }
    }

    /// First pages of leaves, of nodes of each height, and the last page of all.
    const PAGES: [u64; 9] = [0, 3, 4, 63, 64, 64 * 512 - 1, 64 * 512, 64 * 512 * 512 + 70, (1 << 36) - 1];

    #[test]
    fn every_page_has_one_cell_however_high_the_tree_grows() {
        let home = Home::new();
        for (n, page) in PAGES.into_iter().enumerate() {
            assert!(page < 4 || home.get(page).is_none(), "page {page}");
            home.put(page);
            for (m, other) in PAGES.into_iter().enumerate() {
                let wanted = (m <= n).then_some(other + 1);
                assert_eq!(home.get(other), wanted, "page {other} behind {page}");
            }
        }
        let height = home.root.load(SeqCst) & HEIGHT_MASK;
        assert_eq!((height, covered(1), covered(2), covered(height) > 1 << 35), (5, 64, 64 * 512, true));
        assert_eq!(home.index().find(&home.arena, PageNo(3)).unwrap().cells.len(), 1);
        assert_eq!(home.index().find(&home.arena, PageNo(70)).unwrap().cells.len(), 58);
    }

    #[test]
    fn a_walk_meets_each_cell_that_is_there_once() {
        let home = Home::new();
        PAGES.iter().for_each(|page| home.put(*page));
        let walk = |first, end| -> Vec<u64> {
            let runs = home.index().runs(&home.arena, PageNo(first), PageNo(end));
            runs.flat_map(|run| (run.page.0..).zip(run.cells))
                .filter_map(|(page, cell)| cell.map().block().map(|block| (page, block.0)))
                .map(|(page, block)| {
                    assert_eq!(block, page + 1);
                    page
                })
                .collect()
        };
        assert_eq!(walk(0, 1 << 36), PAGES);
        assert_eq!(walk(4, 64 * 512), PAGES[2..6]);
        assert_eq!(walk(65, 64 * 512 - 1), [0; 0]);
        assert_eq!(walk(3, 4), [3]);
        assert_eq!(walk(1 << 35, (1 << 36) - 1), [0; 0]);
        let empty = Home::new();
        assert_eq!(
            empty.index().runs(&empty.arena, PageNo(0), PageNo(1 << 36)).count(),
            1,
            "the inode's own cells"
        );
    }

    /// Its leaves are nearly all of the arena's memory.
    #[test]
    fn a_long_walk_is_no_circle() {
        let home = Home { arena: Arena::shared(64 << 20).unwrap(), ..Home::new() };
        (1..4000).for_each(|leaf| home.put(leaf * 64));
        let runs = home.index().runs(&home.arena, PageNo(0), PageNo(1 << 36));
        assert_eq!(runs.count(), 4001, "the first leaf, and the inode's own cells");
    }

    /// A leaf has pages of six bits of the number, each node nine bits more.
    #[test]
    fn the_highest_tree_has_a_place_for_each_page_number() {
        let height = (1..).find(|height| 6 + 9 * (height - 1) >= 64);
        assert_eq!(height, Some(HEIGHT_MAX));
    }

    #[test]
    fn a_cleared_index_gives_all_its_memory_back() {
        let home = Home::new();
        let mut used = 0;
        for round in 0..20 {
            PAGES.iter().for_each(|page| home.put(*page));
            home.index().clear(&home.arena);
            assert!(PAGES.iter().all(|page| home.get(*page).is_none()) && home.root.load(SeqCst) == 0);
            let now = home.arena.used_bytes();
            assert!(round == 0 || now == used, "round {round}: {now} bytes, before {used}");
            used = now;
        }
    }
}
