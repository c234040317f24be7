//! From a page of a file to its pointer.
//!
//! The inode has the first pointers. Behind them come the pages of two direct nodes, of two indirect ones (nodes of
//! numbers of direct nodes) and of one double indirect one.

use crate::format::{NODE_POINTERS, node_flag};
use crate::ids::PageNo;

/// Pages of a direct node.
const DIRECT: u64 = NODE_POINTERS as u64;
/// Pages under an indirect node.
const INDIRECT: u64 = DIRECT * DIRECT;
/// Pages under the double indirect node.
const DOUBLE: u64 = INDIRECT * DIRECT;

/// The path from an inode to a pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// The inode's pointer to the first node of the path; `None`: the page's pointer is in the inode.
    pub(crate) root: Option<usize>,
    /// Indexes of the nodes to follow, from the top; only the first `depth` are used.
    pub(crate) inner: [usize; 2],
    pub(crate) depth: usize,
    /// Index of the pointer, in the inode or the direct node.
    pub(crate) slot: usize,
}

impl Route {
    /// Indexes in the indirect nodes on the path.
    pub(crate) fn steps(&self) -> &[usize] {
        &self.inner[..self.depth]
    }

    /// Number of pages from this one on under the node `level` steps from the top: all of them are holes if
    /// that node does not exist. Level 0 is the inode's own pointer to a node.
    pub(crate) fn pages_left_under(&self, level: usize) -> u64 {
        let [first, second] = self.inner.map(|index| index as u64);
        let slot = self.slot as u64;
        // Index of the page under the direct node, or under the node in question.
        match self.depth - level.min(self.depth) {
            0 => DIRECT - slot,
            1 => {
                let direct = if self.depth == 2 { second } else { first };
                INDIRECT - direct * DIRECT - slot
            }
            _ => DOUBLE - first * INDIRECT - second * DIRECT - slot,
        }
    }
}

/// The path to a page of a file whose inode has `own` pointers; `None` beyond the largest file.
pub(crate) fn route(page: PageNo, own: usize) -> Option<Route> {
    let mut rest = page.0;
    let mut under = |pages: u64| {
        let inside = rest < pages;
        if !inside {
            rest -= pages;
        }
        inside.then_some(rest)
    };
    if let Some(slot) = under(own as u64) {
        return Some(Route { root: None, inner: [0; 2], depth: 0, slot: slot as usize });
    }
    for root in 0..5 {
        let (pages, depth) = match root {
            0 | 1 => (DIRECT, 0),
            2 | 3 => (INDIRECT, 1),
            _ => (DOUBLE, 2),
        };
        if let Some(at) = under(pages) {
            let inner = match depth {
                0 => [0; 2],
                1 => [(at / DIRECT) as usize, 0],
                _ => [(at / INDIRECT) as usize, (at % INDIRECT / DIRECT) as usize],
            };
            return Some(Route { root: Some(root), inner, depth, slot: (at % DIRECT) as usize });
        }
    }
    None
}

/// The first page under the `root`-th node of an inode with `own` pointers, or the page behind the last one.
pub(crate) fn first_page_under(root: usize, own: usize) -> PageNo {
    let pages = [DIRECT, DIRECT, INDIRECT, INDIRECT, DOUBLE];
    PageNo(own as u64 + pages[..root.min(pages.len())].iter().sum::<u64>())
}

/// Most pages of a file whose inode has `own` pointers.
pub(crate) fn pages_max(own: usize) -> u64 {
    own as u64 + 2 * DIRECT + 2 * INDIRECT + DOUBLE
}

/// The role of a node, from its place in its file: the inode is 0, then come direct and indirect nodes, each
/// followed by those under it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NodeRole {
    Inode,
    /// Its first page.
    Direct(PageNo),
    Indirect,
    Xattrs,
}

impl NodeRole {
    /// The role of a place in a file whose inode has `own` pointers; `None`: there is no such place.
    pub(crate) fn of(place: u32, own: usize) -> Option<NodeRole> {
        let behind = |indirect: u64, direct: u64| {
            NodeRole::Direct(PageNo(own as u64 + 2 * DIRECT + indirect * INDIRECT + direct * DIRECT))
        };
        let (first, second, double) = (3, 4 + DIRECT, 5 + 2 * DIRECT);
        Some(match u64::from(place) {
            0 => NodeRole::Inode,
            n @ (1 | 2) => NodeRole::Direct(PageNo(own as u64 + (n - 1) * DIRECT)),
            _ if place == node_flag::XATTR_PLACE => NodeRole::Xattrs,
            n if n == first || n == second || n == double => NodeRole::Indirect,
            n if n < second => behind(0, n - first - 1),
            n if n < double => behind(1, n - second - 1),
            n => {
                let (indirect, direct) = ((n - double - 1) / (DIRECT + 1), (n - double - 1) % (DIRECT + 1));
                match direct.checked_sub(1) {
                    _ if indirect >= DIRECT => return None,
                    None => NodeRole::Indirect,
                    Some(direct) => behind(2 + indirect, direct),
                }
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(page: u64) -> Route {
        route(PageNo(page), 873).unwrap()
    }

    #[test]
    fn each_kind_of_node_begins_where_the_one_before_ends() {
        let first = |root, depth| Route { root, inner: [0; 2], depth, slot: 0 };
        let mut page = 873;
        assert_eq!((at(0), at(872).slot), (first(None, 0), 872));
        for (root, depth, pages) in
            [(0, 0, DIRECT), (1, 0, DIRECT), (2, 1, INDIRECT), (3, 1, INDIRECT), (4, 2, DOUBLE)]
        {
            assert_eq!(at(page), first(Some(root), depth), "page {page}");
            let last = at(page + pages - 1);
            assert_eq!((last.root, last.slot), (Some(root), NODE_POINTERS - 1));
            assert!(last.steps().iter().all(|index| *index == NODE_POINTERS - 1));
            page += pages;
        }
        assert_eq!(route(PageNo(page), 873), None);
    }

    #[test]
    fn a_missing_node_hides_all_pages_behind_it() {
        assert_eq!(at(873).pages_left_under(0), DIRECT);
        assert_eq!(at(873 + 17).pages_left_under(0), DIRECT - 17);
        let indirect = 873 + 2 * DIRECT;
        assert_eq!(at(indirect + DIRECT + 5).pages_left_under(0), INDIRECT - DIRECT - 5);
        assert_eq!(at(indirect + DIRECT + 5).pages_left_under(1), DIRECT - 5);
        let double = indirect + 2 * INDIRECT + 3 * INDIRECT + 2 * DIRECT + 1;
        assert_eq!(at(double).inner, [3, 2]);
        assert_eq!(at(double).pages_left_under(0), DOUBLE - 3 * INDIRECT - 2 * DIRECT - 1);
        assert_eq!(at(double).pages_left_under(1), INDIRECT - 2 * DIRECT - 1);
        assert_eq!(at(double).pages_left_under(2), DIRECT - 1);
    }
}
