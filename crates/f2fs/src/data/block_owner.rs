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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::write::tests::{OWN, Scene};
    use crate::inode::nid_of;
    use heddle_vfs::FileSystem;
    use zerocopy::little_endian::{U16, U32};

    #[test]
    fn a_block_is_freed_unless_another_pointer_leads_to_it() {
        let scene = Scene::new();
        let (file, other) = (scene.file("file", &[0..4, OWN..OWN + 2]), scene.whole("other", 1));
        scene.fs.sync().unwrap();
        let (media, nid) = (&scene.fs.media, nid_of(file.ino).unwrap());
        let segments = &media.space().unwrap().segments;
        let direct = Nid(scene.inode(&file).block().nid[0].get());
        let stranger = nid_of(other.ino).unwrap();
        let is_freed = |addr: BlockAddr, holder: Nid, index: usize| {
            let was = segments.is_live(addr);
            media.release_data(addr, holder, index).unwrap();
            was && !segments.is_live(addr)
        };
        let addrs = [0, 1, OWN, OWN + 1].map(|page| scene.addr(&file, page));
        // Pointers 0 and 1 of the inode, and 0 and 1 of its direct node.
        for (addr, holder, index) in [(addrs[0], nid, 0), (addrs[2], direct, 0)] {
            for (wrong, at) in [(stranger, index), (holder, index + 1), (stranger, 99)] {
                assert!(!is_freed(addr, wrong, at), "{wrong:?} does not lead to {addr:?}");
            }
            assert!(is_freed(addr, holder, index), "its own");
            assert!(!is_freed(addr, holder, index), "it is free");
        }
        // Nothing leads there any more, whoever says so.
        media.set_pointer(nid, 9 + 1, 0, true).unwrap();
        media.set_pointer(direct, 1, 0, false).unwrap();
        assert!(is_freed(addrs[1], stranger, 5) && is_freed(addrs[3], stranger, 5));
        for outside in [BlockAddr(1), BlockAddr(media.geometry.main.0 - 1), BlockAddr::NEW] {
            assert_eq!(media.release_data(outside, nid, 0), Ok(()), "no block of the main area");
        }
        // A node's, as long as the table leads to it.
        let home = BlockAddr(media.nodes.nat.find(&media.device, nid).unwrap().addr.get());
        assert!(segments.is_live_node(home) && !is_freed(home, nid, 0));
        media.nodes.nat.moved(&media.device, nid, BlockAddr(home.0 + 1)).unwrap();
        assert!(is_freed(home, nid, 0));
    }

    #[test]
    fn a_summary_leads_to_the_pointer_that_it_names() {
        let scene = Scene::new();
        let (file, inline) = (scene.file("file", &[0..4, OWN..OWN + 2]), scene.inline("inline", 100));
        scene.fs.sync().unwrap();
        let media = &scene.fs.media;
        let (nid, direct) = (nid_of(file.ino).unwrap(), scene.inode(&file).block().nid[0].get());
        let lead = |addr: BlockAddr, nid: u32, slot: u16| {
            let entry = SummaryEntry { nid: U32::new(nid), version: 0, slot: U16::new(slot) };
            media.lead_to(addr, entry).unwrap().map(|lead| (lead.node.footer.nid.get(), lead.at))
        };
        let (third, far) = (scene.addr(&file, 3), scene.addr(&file, OWN + 1));
        assert_eq!(lead(third, nid.0, 3), Some((nid.0, 9 + 3)), "behind its extra attributes");
        assert_eq!(lead(far, direct, 1), Some((direct, 1)));
        for (nid, slot) in [(nid.0, 2), (nid.0, 12), (nid.0, u16::MAX), (direct, 3), (9000, 3)] {
            assert_eq!(lead(third, nid, slot), None, "pointer {slot} of {nid}");
        }
        // Bytes of a file are no pointers.
        let number = nid_of(inline.ino).unwrap();
        media.set_pointer(number, 9 + 5, third.0, true).unwrap();
        assert_eq!(lead(third, number.0, 5), None);
    }
}
