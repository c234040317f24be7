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
