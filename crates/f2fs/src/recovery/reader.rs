//! The way to fsynced pages of large files, for a reader.
//!
//! An fsync writes direct nodes and inodes alone. The place of a direct node in its file tells which indirect nodes lead to it. A writer
//! makes these anew (`roll_forward`). A reader gets them here, in memory: they are changed nodes, which stay, and which it never writes.
//!
//! State       as the chain of fsynced nodes says. An indirect node under a double indirect one has a number that no node has: the
//!             number that the writer gave it is not on the device. Only an indirect node that leads elsewhere is changed: one that an
//!             earlier checkpoint knows leads to its direct nodes already.
//! Limit       an image whose chain makes more than `MADE_MAX` of them is not read. A writer recovers it.

use crate::error::OpenError;
use crate::format::{NODE_POINTERS, NodeBlock, node_flag};
use crate::ids::Nid;
use crate::image::Media;
use crate::node::block_map::{NodeRole, route};
use crate::node::{pointers_of, pointers_of_mut};
use crate::recovery::fsynced::{Chain, Link};
use heddle_vfs::{FileKind, Result};
use std::collections::HashSet;
use std::sync::Arc;
use zerocopy::FromZeros;
use zerocopy::little_endian::U32;

/// Nodes in memory: 64 MiB.
const MADE_MAX: usize = 1 << 14;

/// Numbers for nodes that are in memory alone.
struct Unused {
    /// The numbers from this one on were looked at.
    end: Nid,
    /// Nodes of the chain.
    chain: HashSet<Nid>,
}

impl Media {
    /// Makes the direct nodes of the chain reachable from their inodes. Damage in the way is left: the call that
    /// reads there reports it.
    ///
    /// # Errors
    /// [`OpenError::Unsupported`]: that takes more memory than there should be need for.
    pub(crate) fn connect_fsynced(&self, chain: &Chain) -> std::result::Result<(), OpenError> {
        let mut unused =
            Unused { end: Nid(self.geometry.nids()), chain: chain.0.iter().map(Link::nid).collect() };
        for link in &chain.0 {
            let _ = self.connect(link, &mut unused);
            if self.nodes.changed() > MADE_MAX {
                let what = format!(
                    "fsyncs since its last checkpoint that make more than {MADE_MAX} indirect nodes: a mount for writing recovers them"
                );
                return Err(OpenError::Unsupported { image: self.device.path().into(), what });
            }
        }
        Ok(())
    }

    fn connect(&self, link: &Link, unused: &mut Unused) -> Result<()> {
        let inode = self.inode(link.ino())?;
        let own = inode.pointers();
        let Some(NodeRole::Direct(first)) = NodeRole::of(link.place(), own) else { return Ok(()) };
        let Some(way) = route(first, own) else { return Ok(()) };
        let top = way.root.map_or(Nid::NONE, |root| Nid(inode.block().nid[root].get()));
        // Without such a node the file was cut off after this fsync, and fsynced again.
        if inode.kind != FileKind::Regular || top == Nid::NONE {
            return Ok(());
        }
        let above = match *way.steps() {
            [] => return Ok(()),
            [direct] => {
                self.make_if_free(top, inode.nid, link.place() - 1 - direct as u32)?;
                (top, direct)
            }
            [indirect, direct, ..] => {
                let place = link.place() - 1 - direct as u32;
                self.make_if_free(top, inode.nid, place - 1 - (indirect * (NODE_POINTERS + 1)) as u32)?;
                let node = self.nodes.get(&self.device, &self.geometry, top, inode.nid)?;
                let mut middle = Nid(pointers_of(&node).pointers[indirect].get());
                if middle == Nid::NONE {
                    let Some(made) = self.take_unused(unused)? else { return Ok(()) };
                    middle = made;
                    self.point(top, indirect, middle)?;
                }
                self.make_if_free(middle, inode.nid, place)?;
                (middle, direct)
            }
        };
        let node = self.nodes.get(&self.device, &self.geometry, above.0, inode.nid)?;
        if pointers_of(&node).pointers[above.1].get() == link.nid().0 {
            return Ok(());
        }
        self.point(above.0, above.1, link.nid())
    }

    fn point(&self, above: Nid, slot: usize, nid: Nid) -> Result<()> {
        let set = |node: &mut NodeBlock| pointers_of_mut(node).pointers[slot].set(nid.0);
        self.nodes.change(&self.device, &self.geometry, above, set)
    }

    /// An indirect node that has been made since the checkpoint.
    fn make_if_free(&self, nid: Nid, ino: Nid, place: u32) -> Result<()> {
        if self.nodes.any(&self.device, &self.geometry, nid)?.is_none() {
            let mut node = NodeBlock::new_zeroed();
            (node.footer.nid, node.footer.ino) = (U32::new(nid.0), U32::new(ino.0));
            node.footer.flag = U32::new(place << node_flag::BITS | node_flag::COLD);
            self.nodes.add(nid, Arc::new(node));
        }
        Ok(())
    }

    /// The largest number that no node has.
    fn take_unused(&self, unused: &mut Unused) -> Result<Option<Nid>> {
        while let Some(number) = unused.end.0.checked_sub(1).filter(|number| *number > 0) {
            unused.end = Nid(number);
            let is_free = !unused.chain.contains(&unused.end)
                && self.nodes.any(&self.device, &self.geometry, unused.end)?.is_none();
            if is_free {
                return Ok(Some(unused.end));
            }
        }
        Ok(None)
    }
}
