//! The owner of a data block, checked before the block is freed. In a damaged image a pointer may lead to a
//! block of another file. That file's data would be overwritten when the segment is used again.
//!
//! The summary of the block's segment says which pointer leads to it. If that is the pointer being cleared,
//! the block is freed. If it is another one, and that pointer does lead there, the block stays in use.
//! Otherwise the summary is old or damaged, and no pointer is known to use the block: it is freed. So it is if the summary cannot be read:
//! the segment's table and the pointer agree, and one lost block must not end all changes.

use crate::format::{NodeBlock, SummaryEntry};
use crate::ids::{BlockAddr, Nid};
use crate::image::Media;
use crate::inode::Inode;
use crate::node::pointers_of;
use crate::planted::{Breach, breaks_at_times};
use heddle_vfs::{Error, Result};
use std::sync::Arc;

/// The pointer to a data block that its summary names.
pub(crate) struct Lead {
    pub(crate) node: Arc<NodeBlock>,
    /// Offset in the node's block, in words from its first pointer.
    pub(crate) at: usize,
}

impl Media {
    /// Called when pointer `index` of this node does not lead to this block any more. Frees the block, unless
    /// it is not a block, is free already, or belongs to another pointer.
    pub(crate) fn release_data(&self, addr: BlockAddr, holder: Nid, index: usize) -> Result<()> {
        let segments = &self.space()?.segments;
        if !self.geometry.in_main(addr) || !segments.is_live(addr) || breaks_at_times(Breach::BlocksLost) {
            return Ok(());
        }
        let (is_node, entry) = match segments.summary_entry(&self.device, addr) {
            Err(Error::Io(_)) => return segments.release(addr),
            found => found?,
        };
        let is_own = !is_node && entry.nid.get() == holder.0 && usize::from(entry.slot.get()) == index;
        if is_own || !self.is_anothers(is_node, addr, entry) {
            return segments.release(addr);
        }
        Ok(())
    }

    /// Returns true if the owner that the summary names leads to the block. Returns false if the owner cannot
    /// be read: readers of it meet the same error.
    fn is_anothers(&self, is_node: bool, addr: BlockAddr, entry: SummaryEntry) -> bool {
        if is_node {
            let found = self.nodes.nat.find(&self.device, Nid(entry.nid.get()));
            return found.is_ok_and(|found| found.addr.get() == addr.0);
        }
        matches!(self.lead_to(addr, entry), Ok(Some(_)))
    }

    /// The pointer that a summary names, if it leads to this block.
    pub(crate) fn lead_to(&self, addr: BlockAddr, entry: SummaryEntry) -> Result<Option<Lead>> {
        let holder = Nid(entry.nid.get());
        let Some(node) = self.nodes.any(&self.device, &self.geometry, holder)? else { return Ok(None) };
        let is_inode = node.footer.ino.get() == holder.0;
        let inode = if is_inode { Some(Inode::of(node.clone(), self.features)?) } else { None };
        let at = usize::from(entry.slot.get()) + inode.as_ref().map_or(0, Inode::first_pointer);
        let pointer = match &inode {
            Some(inode) if !inode.has_pointers() => None,
            Some(inode) => inode.block().addr.get(at),
            None => pointers_of(&node).pointers.get(at),
        };
        let leads = pointer.map(|pointer| BlockAddr(pointer.get())) == Some(addr);
        Ok(leads.then_some(Lead { node, at }))
    }
}
