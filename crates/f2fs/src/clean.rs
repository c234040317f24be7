//! Cleaning: the live blocks of a segment are written elsewhere, so that the segment is free after the next checkpoint.
//!
//! Segments with the fewest live blocks go first (greedy). Nodes are only marked as changed: the checkpoint writes them. Of a block of
//! data the summary says which pointer leads to it; if that leads elsewhere the summary is of the block's earlier life.
//!
//! It has the file system to itself, as a checkpoint has.
//!
//! Source      F2FS paper (FAST '15) section 2.3.

use crate::format::SummaryEntry;
use crate::ids::{BlockAddr, Nid, Segno};
use crate::inode::Inode;
use crate::media::Media;
use crate::node::pointers_of;
use crate::segments::Log;
use heddle_vfs::{Error, Result};

impl Media {
    /// Moves what is live in a segment away.
    pub(crate) fn clean(&self, segno: Segno) -> Result<()> {
        let (nodes, contents) = self.space()?.segments.contents(&self.device, segno)?;
        for (addr, entry) in contents {
            let moved = if nodes { self.move_node(addr, entry)? } else { self.move_data(addr, entry)? };
            if !moved {
                return Err(Error::Corrupt(format!(
                    "block {} is live, and its summary says it belongs to node {}, which does not lead to it",
                    addr.0, entry.nid
                )));
            }
        }
        Ok(())
    }

    fn move_node(&self, addr: BlockAddr, entry: SummaryEntry) -> Result<bool> {
        let nid = Nid(entry.nid.get());
        if BlockAddr(self.nodes.nat.find(&self.device, nid)?.addr.get()) != addr {
            return Ok(false);
        }
        self.nodes.change(&self.device, &self.geometry, nid, |_| ())?;
        Ok(true)
    }

    fn move_data(&self, addr: BlockAddr, entry: SummaryEntry) -> Result<bool> {
        let holder = Nid(entry.nid.get());
        let Some(node) = self.nodes.any(&self.device, &self.geometry, holder)? else { return Ok(false) };
        let is_inode = node.footer.ino.get() == holder.0;
        let inode = if is_inode { Some(Inode::of(node.clone(), self.features)?) } else { None };
        let at = usize::from(entry.slot.get()) + inode.as_ref().map_or(0, Inode::first_pointer);
        let pointer = match &inode {
            Some(inode) if !inode.has_pointers() => None,
            Some(inode) => inode.block().addr.get(at),
            None => pointers_of(&node).pointers.get(at),
        };
        if pointer.map(|pointer| BlockAddr(pointer.get())) != Some(addr) {
            return Ok(false);
        }
        let owner = self.inode(Nid(node.footer.ino.get()))?;
        let block = self.device.block(addr)?;
        let segments = &self.space()?.segments;
        let new = segments.allocate(&self.device, Log::ColdData, std::iter::once(entry))?.first;
        self.device.write(new, &block[..])?;
        self.forget_hint(&owner)?;
        self.set_pointer(holder, at, new.0, is_inode)?;
        segments.release(addr)?;
        Ok(true)
    }
}
