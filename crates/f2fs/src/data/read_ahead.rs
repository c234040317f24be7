//! Reads all that a change will need before its first step. If a node or a page cannot be read then, only the
//! call fails. In the middle of the change the same error would end all changes to the image.
//!
//! All functions here are called with the lock of the inode, or of the pages of the range, held for writing.

use super::pointers::span;
use super::write::PAGE;
use crate::format::NODE_POINTERS;
use crate::ids::{Nid, Nids, PageNo};
use crate::image::Media;
use crate::inode::Inode;
use crate::node::pointers_of;
use heddle_vfs::{Error, Result};
use std::ops::Range;

/// Depths of the nodes to which an inode points.
const DEPTHS: [u32; 5] = [0, 0, 1, 1, 2];

impl Media {
    /// Checks that the existing nodes of a range can be read, and that none of them occurs twice: a second
    /// visit would find it empty. Returns their numbers.
    pub(crate) fn check_nodes(&self, inode: &Inode, pages: Range<u64>) -> Result<Nids> {
        let (mut first, mut met) = (inode.pointers() as u64, Nids::default());
        if !inode.has_pointers() {
            return Ok(met);
        }
        for (nid, depth) in inode.block().nid.iter().zip(DEPTHS) {
            let count = span(depth) * NODE_POINTERS as u64;
            let below = pages.start.saturating_sub(first)..pages.end.saturating_sub(first).min(count);
            self.check_node(inode, Nid(nid.get()), depth, below, &mut met)?;
            first += count;
        }
        Ok(met)
    }

    /// `pages`: relative to this node.
    fn check_node(
        &self,
        inode: &Inode,
        nid: Nid,
        depth: u32,
        pages: Range<u64>,
        met: &mut Nids,
    ) -> Result<()> {
        if nid == Nid::NONE || pages.is_empty() {
            return Ok(());
        }
        let node = self.nodes.get(&self.device, &self.geometry, nid, inode.nid)?;
        if !met.insert(nid) {
            return Err(in_two_places(inode, nid));
        }
        if depth == 0 {
            return Ok(());
        }
        let span = span(depth);
        for index in pages.start / span..pages.end.div_ceil(span) {
            let begin = index * span;
            let below = pages.start.saturating_sub(begin)..(pages.end - begin).min(span);
            let child = Nid(pointers_of(&node).pointers[index as usize].get());
            self.check_node(inode, child, depth - 1, below, met)?;
        }
        Ok(())
    }

    /// Checks that the pages which a change of these bytes covers in part can be read.
    pub(crate) fn check_edges(&self, inode: &Inode, offset: u64, end: u64) -> Result<()> {
        for edge in [offset, end].into_iter().filter(|edge| !edge.is_multiple_of(PAGE)) {
            if inode.has_pointers() {
                self.with_page(inode, PageNo(edge / PAGE), |_| ())?;
            }
        }
        Ok(())
    }

    /// Checks that all parts of an inode which loses its last name can be read. Returns the numbers of its other nodes.
    pub(crate) fn check_end(&self, inode: &Inode) -> Result<Nids> {
        let mut met = self.check_nodes(inode, 0..u64::MAX)?;
        let xattrs = Nid(inode.block().xattr_nid.get());
        if xattrs != Nid::NONE {
            self.nodes.get(&self.device, &self.geometry, xattrs, inode.nid)?;
            if !met.insert(xattrs) {
                return Err(in_two_places(inode, xattrs));
            }
        }
        Ok(met)
    }
}

fn in_two_places(inode: &Inode, nid: Nid) -> Error {
    Error::Corrupt(format!("inode {}: node {} is in two places", inode.nid.0, nid.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::write::tests::{NODE, OWN, Scene};
    use crate::device::Faults;
    use heddle_vfs::{FileSystem, SetXattr, XattrName};

    /// Where the pages of the first indirect node begin, and those of the double indirect one.
    const INDIRECT: u64 = OWN + 2 * NODE;
    const DOUBLE: u64 = INDIRECT + 2 * NODE * NODE;

    #[test]
    fn the_nodes_of_a_range_are_looked_at_and_no_others() {
        let scene = Scene::new();
        let deep = DOUBLE + 3 * NODE * NODE + 2 * NODE + 1;
        let starts = [0, OWN, OWN + NODE, INDIRECT, INDIRECT + 5 * NODE, deep];
        let file = scene.file("file", &starts.map(|page| page..page + 1));
        let inode = scene.inode(&file);
        let count = |pages: Range<u64>| scene.fs.media.check_nodes(&inode, pages).unwrap().len();
        let fifth = INDIRECT + 5 * NODE;
        for (pages, nodes) in [
            (0..OWN, 0),
            (OWN - 1..OWN + 1, 1),
            (OWN..OWN + NODE, 1),
            (OWN + NODE - 1..OWN + NODE + 1, 2),
            (OWN + 5..OWN + 5, 0),
            (INDIRECT..INDIRECT + 1, 2),
            (INDIRECT - 1..INDIRECT, 1),
            (INDIRECT + NODE..fifth, 1),
            (fifth - 1..fifth + 1, 2),
            (fifth + NODE - 1..fifth + NODE, 2),
            (fifth + NODE..fifth + NODE + 1, 1),
            (INDIRECT + NODE - 1..fifth + 1, 3),
            (INDIRECT + NODE * NODE..DOUBLE, 0),
            (DOUBLE..DOUBLE + 1, 1),
            (deep..deep + 1, 3),
            (deep - 1 - NODE..deep - NODE, 2),
            (deep + NODE..deep + NODE + 1, 2),
            (deep + NODE * NODE..deep + NODE * NODE + 1, 1),
            (0..u64::MAX, 1 + 1 + 3 + 3),
        ] {
            assert_eq!(count(pages.clone()), nodes, "{pages:?}");
        }
        let inline = scene.inode(&scene.inline("inline", 9));
        assert!(scene.fs.media.check_nodes(&inline, 0..u64::MAX).unwrap().is_empty());
        // The second direct node is the first one again, in a damaged inode.
        let twice = scene.inode_as(&file, |block| block.nid[1] = block.nid[0]);
        let check = |pages| scene.fs.media.check_nodes(&twice, pages).map(|met| met.len());
        assert_eq!(check(OWN..OWN + NODE), Ok(1));
        assert!(matches!(check(OWN..OWN + NODE + 1), Err(Error::Corrupt(_))));
    }

    #[test]
    fn pages_that_are_changed_in_part_must_be_readable() {
        let scene = Scene::new();
        let file = scene.whole("file", 3);
        scene.fs.sync().unwrap();
        let (media, inode, addr) = (&scene.fs.media, scene.inode(&file), scene.addr(&file, 1).0);
        *media.device.faults.lock().unwrap() = Faults { unreadable: [addr, addr + 1], ..Faults::default() };
        for (from, end, is_ok) in [
            (PAGE, 2 * PAGE, true),
            (0, PAGE, true),
            (5, 2 * PAGE, true),
            (0, PAGE + 5, false),
            (PAGE + 5, 3 * PAGE, false),
            (2 * PAGE - 1, 3 * PAGE, false),
            (2 * PAGE + 1, 3 * PAGE - 1, true),
        ] {
            let done = media.check_edges(&inode, from, end);
            assert!(
                if is_ok { done == Ok(()) } else { matches!(done, Err(Error::Io(_))) },
                "{from} to {end}"
            );
        }
    }

    #[test]
    fn an_inode_ends_with_all_its_nodes_once() {
        let scene = Scene::new();
        let file = scene.file("file", &[0..1, OWN..OWN + 1]);
        let nodes = |inode: &Inode| scene.fs.media.check_end(inode).map(|met| met.len());
        assert_eq!(nodes(&scene.inode(&file)), Ok(1));
        let name = XattrName::new(b"user.a").unwrap();
        scene.fs.setxattr(&heddle_vfs::Cred::root(), file.ino, name, &[1; 1000], SetXattr::Any).unwrap();
        let inode = scene.inode(&file);
        assert_eq!(nodes(&inode), Ok(2));
        let twice = scene.inode_as(&file, |block| block.xattr_nid = block.nid[0]);
        assert!(matches!(nodes(&twice), Err(Error::Corrupt(_))));
        let none = scene.inode_as(&file, |block| block.xattr_nid.set(9000));
        assert!(matches!(nodes(&none), Err(Error::Corrupt(_))));
    }
}
