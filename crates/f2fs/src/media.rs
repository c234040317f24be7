//! What an open image consists of, and the two questions that everything else asks of it: which inode, and where is a page.

use crate::device::Device;
use crate::ids::{BlockAddr, Nid, PageNo};
use crate::inode::Inode;
use crate::map::route;
use crate::node::{Nodes, pointers_of};
use crate::superblock::Geometry;
use heddle_vfs::{Error, Result};
use zerocopy::little_endian::U32;

/// An open image.
pub(crate) struct Media {
    pub(crate) device: Device,
    pub(crate) geometry: Geometry,
    pub(crate) features: u32,
    pub(crate) nodes: Nodes,
}

/// Pages that follow each other in a file, in blocks that follow each other, or all of them without a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Run {
    /// Of the first page.
    pub(crate) addr: BlockAddr,
    pub(crate) pages: u64,
}

impl Media {
    /// The inode of this number.
    ///
    /// # Errors
    /// [`Error::Stale`] if there is none, [`Error::Corrupt`] if it makes no sense.
    pub(crate) fn inode(&self, nid: Nid) -> Result<Inode> {
        let node = self.nodes.inode(&self.device, &self.geometry, nid)?.ok_or(Error::Stale)?;
        Inode::of(node, self.features)
    }

    /// Where the page is, and how many that follow it are where they would be expected then; at least 1.
    pub(crate) fn run(&self, inode: &Inode, page: PageNo) -> Result<Run> {
        let hole = |pages| Ok(Run { addr: BlockAddr::NULL, pages });
        let Some(route) = route(page, inode.pointers()) else { return hole(u64::MAX) };
        let Some(root) = route.root else {
            let pointers = &inode.block().addr[inode.first_pointer()..][..inode.pointers()];
            return self.run_of(inode.nid, &pointers[route.slot..]);
        };
        let mut nid = Nid(inode.block().nid[root].get());
        if nid == Nid::NONE {
            return hole(route.pages_left_under(0));
        }
        let mut node = self.nodes.get(&self.device, &self.geometry, nid, inode.nid)?;
        for (level, index) in route.steps().iter().enumerate() {
            nid = Nid(pointers_of(&node).pointers[*index].get());
            if nid == Nid::NONE {
                return hole(route.pages_left_under(level + 1));
            }
            node = self.nodes.get(&self.device, &self.geometry, nid, inode.nid)?;
        }
        self.run_of(inode.nid, &pointers_of(&node).pointers[route.slot..])
    }

    /// How far the pointers go on as the first one begins.
    fn run_of(&self, nid: Nid, pointers: &[U32]) -> Result<Run> {
        let addr = BlockAddr(pointers.first().map_or(0, |pointer| pointer.get()));
        let wrong = |what: &str| Err(Error::Corrupt(format!("inode {}: a page {what}", nid.0)));
        if addr == BlockAddr::COMPRESSED {
            return wrong("is of a compressed cluster, and the file is not compressed");
        }
        if addr.is_block() && !self.geometry.in_main(addr) {
            return wrong(&format!("is at block {}, outside the main area", addr.0));
        }
        let follows = |(n, pointer): (usize, &U32)| {
            let expected = if addr.is_block() { addr.plus(n as u32) } else { addr };
            BlockAddr(pointer.get()) == expected && (!addr.is_block() || self.geometry.in_main(expected))
        };
        let pages = pointers.iter().enumerate().take_while(|next| follows(*next)).count() as u64;
        Ok(Run { addr, pages: pages.max(1) })
    }
}
