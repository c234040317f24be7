//! Recovery of nodes that were fsynced after the last checkpoint, when an image is opened for writing.
//!
//! The nodes of the chain contain the final state of their files. Their pointers lead to blocks that the
//! checkpoint does not know, and that become live. Their inodes have sizes, owners and times, and new ones
//! their names. The files get that state by the usual changes; the nodes themselves are written anew. A
//! checkpoint ends it.
//!
//! Invariants  R1  until that checkpoint is valid, no block of the chain, or that it leads to, is overwritten: after a crash recovery
//!                 begins again (`segments/adopt.rs`).
//!             R2  the numbers of new inodes are taken before any other number is.
//!             R3  of one fsync the inode's form comes first, and its cut at the size: space behind the end, in nodes before it, stays.
//!                 Linux marks each node of an fsync. A marked one belongs to the next inode if that leads to it. If an indirect node
//!                 stands between, it is not certain: the form comes later, and that space may be lost. Old pages must not come back.
//!             R4  a direct node without its inode may extend the file: Linux leaves the inode out if the size ends with a written page.
//!             R5  a direct node that was to take the place of inline content counts only with an inode behind it: Linux writes both in
//!                 one fsync, which was cut off otherwise.
//! Source      F2FS paper (FAST '15) section 2.4.2.

use crate::change::Change;
use crate::format::{
    BLOCK_BYTES, ExtraAttr, InodeBlock, NodeBlock, advise_flag, feature, inline_flag, node_flag,
};
use crate::ids::{BlockAddr, Nid, PageNo, Segno};
use crate::image::Media;
use crate::inode::Inode;
use crate::mounted::F2fs;
use crate::node::block_map::{NodeRole, first_page_under};
use crate::node::{inode_of, inode_of_mut, pointers_of};
use crate::planted::{Breach, breaks};
use crate::recovery::fsynced::{Chain, Link};
use crate::times::now;
use heddle_vfs::{Error, FileKind, NAME_MAX_BYTES, Name, Result};
use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use zerocopy::little_endian::U32;
use zerocopy::{FromZeros, IntoBytes};

/// Number of nodes to which an inode points.
const ROOTS: usize = 5;
/// The slot of the project's number, in an inode with so many extra attributes.
const PROJECT_SLOT: usize = std::mem::offset_of!(ExtraAttr, project) / 4;

/// The directory has lost its entries since. Some of them may have other names now, which no fsync has recorded.
const IN_PLACE_OF_A_DIRECTORY: &str = "a file in place of a directory that has entries in the checkpoint: \
     Linux frees the directory, and leaves the inodes in it without names";

fn wrong(nid: Nid, what: &str) -> Error {
    Error::Corrupt(format!("inode {}: it was fsynced, and {what}", nid.0))
}

impl F2fs {
    /// Applies the chain. No call is inside.
    pub(crate) fn roll_forward(&self, chain: &Chain) -> Result<()> {
        if chain.0.is_empty() {
            return Ok(());
        }
        let media = &self.media;
        let mut kept = BTreeSet::new();
        for link in &chain.0 {
            media.add_segments_of(link, &mut kept)?;
        }
        media.space()?.segments.keep(&media.device, &kept)?;
        let change = media.alone()?;
        // R2.
        let mut born = BTreeSet::new();
        for link in &chain.0 {
            if link.is_made() && change.begin_again(&*media.node_at(link.addr)?)? {
                born.insert(link.ino());
            }
        }
        let (forms, last, mut formed) = (chain.forms(&media.device), chain.last_inodes(), HashMap::new());
        for (n, (link, form)) in chain.0.iter().zip(forms).enumerate() {
            // R3.
            if let Some(form) = form.filter(|form| formed.insert(link.ino(), *form) != Some(*form)) {
                self.take_in_form(&change, &chain.0[form])?;
            }
            let inode_follows = last.get(&link.ino()).is_some_and(|inode| *inode > n);
            let end = self.take_in(&change, link, born.contains(&link.ino()), inode_follows)?;
            // R4. An inode that follows sets the size.
            self.media.grow_to(link.ino(), end)?;
        }
        drop(change);
        // The device's own checkpoint: there is nothing behind the base of a log.
        self.fold(false)
    }

    /// The inode as it is now, if it is a file. It is none if it had no name any more when its inode was written.
    fn file_of(&self, link: &Link) -> Result<Option<Inode>> {
        match self.media.inode(link.ino()) {
            Err(Error::Stale) => Ok(None),
            found => Ok(Some(found?).filter(|now| now.kind == FileKind::Regular)),
        }
    }

    fn take_in_form(&self, change: &Change<'_>, link: &Link) -> Result<()> {
        match self.file_of(link)? {
            Some(now) => change.take_in_form(&change.said_by(&self.media.node_at(link.addr)?, &now)?, &now),
            None => Ok(()),
        }
    }

    /// Returns the end of the last page that got a block from a direct node.
    fn take_in(&self, change: &Change<'_>, link: &Link, is_new: bool, inode_follows: bool) -> Result<PageNo> {
        let (node, ino) = (self.media.node_at(link.addr)?, link.ino());
        let Some(now) = self.file_of(link)? else { return Ok(PageNo(0)) };
        match NodeRole::of(node.footer.place(), now.pointers()) {
            Some(NodeRole::Inode) => {
                change.take_in_inode(&node, &now)?;
                if is_new && link.is_made() {
                    self.name_again(change, ino, inode_of(&node))?;
                }
            }
            // R5.
            Some(NodeRole::Direct(_)) if !now.has_pointers() && !inode_follows => {}
            Some(NodeRole::Direct(first)) => {
                return change.take_in_pages(ino, first, &pointers_of(&node).pointers);
            }
            Some(NodeRole::Xattrs) => change.take_in_xattrs(ino, &node)?,
            Some(NodeRole::Indirect) => {}
            None => return Err(wrong(ino, "a node of it has a place that no file has")),
        }
        Ok(PageNo(0))
    }

    /// Adds the name of a file that was made after the checkpoint. If its directory does not exist any more,
    /// the file is freed.
    pub(crate) fn name_again(&self, change: &Change<'_>, ino: Nid, block: &InodeBlock) -> Result<()> {
        let media = &self.media;
        let name = &block.name[..(block.name_bytes.get() as usize).min(NAME_MAX_BYTES)];
        let name = Name::new(name).map_err(|_| wrong(ino, "has a name that none can have"))?.bytes();
        let child = (ino, FileKind::Regular);
        let above = match media.inode(Nid(block.parent.get())) {
            Ok(above) if above.kind == FileKind::Directory => above,
            Ok(_) | Err(Error::Stale) => return change.end(ino),
            Err(error) => return Err(error),
        };
        match media.look_up(&above, name)? {
            Some((nid, _)) if nid == ino => Ok(()),
            // The name led to another inode, which lost it before this one was made.
            Some(other) => {
                let was_dir = other.1 == FileKind::Directory;
                if was_dir && !media.is_empty_dir(&self.child_of(&above, other)?)? {
                    return Err(Error::NotSupported(IN_PLACE_OF_A_DIRECTORY));
                }
                change.point_entry(above.nid, name, ino, FileKind::Regular)?;
                self.touch_dir(above.nid, -i32::from(was_dir), now())?;
                self.lose_link(change, other, now())
            }
            None => self.enter(change, above.nid, name, child, now()),
        }
    }
}

impl Media {
    /// Extends a file to the end of a page that was fsynced without the inode. As in Linux, a file that keeps
    /// its size is not extended: its pages may lie beyond it.
    pub(crate) fn grow_to(&self, ino: Nid, end: PageNo) -> Result<()> {
        let Some(last) = end.0.checked_sub(1) else { return Ok(()) };
        let (inode, page_bytes) = (self.inode(ino)?, BLOCK_BYTES as u64);
        let keeps_size = inode.block().advise & advise_flag::KEEP_SIZE != 0;
        if keeps_size || !inode.has_pointers() || inode.size_bytes > last * page_bytes {
            return Ok(());
        }
        self.change_inode(ino, |block| block.size_bytes.set(end.0 * page_bytes))
    }

    fn node_at(&self, addr: BlockAddr) -> Result<Arc<NodeBlock>> {
        let mut node = Arc::new(NodeBlock::new_zeroed());
        if let Some(block) = Arc::get_mut(&mut node) {
            self.device.read(addr, 0, block.as_mut_bytes())?;
        }
        self.nodes.check(&node).map_err(|what| Error::Corrupt(format!("block {}: {what}", addr.0)))?;
        Ok(node)
    }

    /// Adds the segments of a node of the chain, and of the blocks that it leads to.
    fn add_segments_of(&self, link: &Link, kept: &mut BTreeSet<Segno>) -> Result<()> {
        let segments = &self.space()?.segments;
        let node = self.node_at(link.addr)?;
        let pointers: &[U32] = match NodeRole::of(node.footer.place(), 0) {
            Some(NodeRole::Inode) => &inode_of(&node).addr,
            Some(NodeRole::Direct(_)) => &pointers_of(&node).pointers,
            _ => &[],
        };
        // Some of these words of an inode are no pointers: segments that they happen to name are kept too,
        // until the checkpoint.
        let led = pointers.iter().map(|pointer| BlockAddr(pointer.get()));
        let blocks = led.filter(|addr| addr.is_block() && self.geometry.in_main(*addr));
        kept.extend(blocks.chain([link.addr]).map(|addr| segments.place_of(addr).0));
        Ok(())
    }
}

impl Change<'_> {
    /// Makes an empty inode without a name, if the checkpoint does not have it. Returns true if so.
    fn begin_again(&self, node: &NodeBlock) -> Result<bool> {
        let ino = Nid(node.footer.ino.get());
        match self.inode(ino) {
            Ok(_) => return Ok(false),
            Err(Error::Stale) => {}
            Err(error) => return Err(error),
        }
        let mut again = node.clone();
        let said = Inode::of(Arc::new(node.clone()), self.features)?;
        if said.kind != FileKind::Regular {
            return Ok(false);
        }
        self.nodes.nat.claim(&self.device, ino)?;
        self.take_block_of_node(true)?;
        let block = inode_of_mut(&mut again);
        let slots = said.first_pointer()..said.first_pointer() + said.pointers();
        block.addr[slots].fill(U32::new(0));
        block.inline &= !(inline_flag::DATA | inline_flag::DATA_EXIST);
        block.nid.fill(U32::new(0));
        (block.xattr_nid, block.links, block.blocks) = (U32::new(0), U32::new(1), 1.into());
        (block.size_bytes, block.extent) = (0.into(), FromZeros::new_zeroed());
        again.footer.flag.set(node_flag::COLD);
        self.nodes.add(ino, Arc::new(again));
        Ok(true)
    }

    /// The fsynced inode, which must be of the same file.
    fn said_by(&self, node: &Arc<NodeBlock>, now: &Inode) -> Result<Inode> {
        let said = Inode::of(Arc::clone(node), self.features)?;
        said.check_readable()?;
        let (ino, block) = (said.nid, said.block());
        if (said.kind, block.generation) != (now.kind, now.block().generation) {
            return Err(wrong(ino, "is another file in the checkpoint"));
        }
        if (said.first_pointer(), said.pointers()) != (now.first_pointer(), now.pointers()) {
            return Err(wrong(ino, "its attributes have another size in the checkpoint"));
        }
        Ok(said)
    }

    /// Gives the inode, which has its form, its fsynced state.
    fn take_in_inode(&self, node: &Arc<NodeBlock>, now: &Inode) -> Result<()> {
        let said = self.said_by(node, now)?;
        let (ino, block) = (said.nid, said.block());
        let area = now.inline_xattr_slots();
        let from = block.addr.len() - area;
        self.change_inode(ino, |inode| {
            (inode.mode, inode.advise, inode.flags) = (block.mode, block.advise, block.flags);
            inode.inline = inode.inline & !inline_flag::PINNED | block.inline & inline_flag::PINNED;
            (inode.uid, inode.gid, inode.size_bytes) = (block.uid, block.gid, block.size_bytes);
            (inode.atime, inode.atime_ns) = (block.atime, block.atime_ns);
            if !breaks(Breach::LatestTimeWins) || block.mtime.get() > inode.mtime.get() {
                (inode.mtime, inode.mtime_ns) = (block.mtime, block.mtime_ns);
            }
            (inode.ctime, inode.ctime_ns) = (block.ctime, block.ctime_ns);
            (inode.parent, inode.name_bytes, inode.name) = (block.parent, block.name_bytes, block.name);
            inode.addr[from..].copy_from_slice(&block.addr[from..]);
            if self.features & feature::PROJECT_QUOTA != 0 && said.first_pointer() > PROJECT_SLOT {
                inode.addr[PROJECT_SLOT] = block.addr[PROJECT_SLOT];
            }
        })?;
        if said.has_pointers() {
            self.take_in_pages(ino, PageNo(0), &block.addr[said.first_pointer()..][..said.pointers()])?;
        }
        Ok(())
    }

    /// Applies the form of the content, inline or in pages. Pages whose nodes were freed are removed.
    fn take_in_form(&self, said: &Inode, now: &Inode) -> Result<()> {
        let (ino, block) = (said.nid, said.block());
        let data = inline_flag::DATA | inline_flag::DATA_EXIST;
        if said.has(inline_flag::DATA) {
            if !now.has(inline_flag::DATA) {
                self.cut_pages(ino, PageNo(0))?;
            }
            return self.change_inode(ino, |inode| {
                inode.inline = inode.inline & !data | block.inline & data;
                said.inline_content_mut(inode).copy_from_slice(said.inline_content());
            });
        }
        if now.has(inline_flag::DATA) {
            return self.clear_inline(now, data);
        }
        for root in 0..ROOTS {
            if block.nid[root].get() == 0 && now.block().nid[root].get() != 0 {
                let pages =
                    first_page_under(root, now.pointers())..first_page_under(root + 1, now.pointers());
                self.punch_pages(ino, pages.start, pages.end)?;
            }
        }
        if said.size_bytes < now.size_bytes {
            self.cut_pages(ino, PageNo(said.size_bytes.div_ceil(BLOCK_BYTES as u64)))?;
        }
        let xattrs = Nid(now.block().xattr_nid.get());
        if block.xattr_nid.get() == 0 && xattrs != Nid::NONE {
            self.free_node(xattrs, false)?;
            self.count_blocks(ino, -1)?;
            self.change_inode(ino, |inode| inode.xattr_nid.set(0))?;
        }
        let fsynced = Nid(block.xattr_nid.get());
        if xattrs == Nid::NONE && fsynced != Nid::NONE && self.is_xattr_node(fsynced, ino) {
            // A whole checkpoint agrees; a damaged one has lost the node, and with it the file's attributes.
            self.change_inode(ino, |inode| inode.xattr_nid.set(fsynced.0))?;
        }
        Ok(())
    }

    /// Returns true if the checkpoint has this node, and it is the attribute node of `ino`.
    fn is_xattr_node(&self, nid: Nid, ino: Nid) -> bool {
        let found = self.nodes.any(&self.device, &self.geometry, nid).ok().flatten();
        found.is_some_and(|node| {
            node.footer.ino.get() == ino.0 && node.footer.place() == node_flag::XATTR_PLACE
        })
    }

    /// Maps pages to the blocks of these pointers. Returns the end of the last page that got another block.
    fn take_in_pages(&self, ino: Nid, first: PageNo, pointers: &[U32]) -> Result<PageNo> {
        let mut end = PageNo(0);
        for (n, pointer) in pointers.iter().enumerate() {
            let (page, said) = (PageNo(first.0.saturating_add(n as u64)), BlockAddr(pointer.get()));
            let inode = self.inode(ino)?;
            let is_hole = self.hole_pages_from(&inode, page)? > 0;
            let now = if is_hole { BlockAddr::NULL } else { self.run_of_blocks(&inode, page)?.addr };
            if now == said {
                continue;
            }
            match said {
                BlockAddr::COMPRESSED => return Err(wrong(ino, "is compressed")),
                BlockAddr::NULL | BlockAddr::NEW => {
                    self.punch_pages(ino, page, PageNo(page.0 + 1))?;
                    if said == BlockAddr::NEW {
                        self.reserve(ino, page)?;
                    }
                }
                addr if !self.geometry.in_main(addr) => {
                    return Err(wrong(ino, "has a page outside the main area"));
                }
                addr => {
                    self.adopt_page(ino, page, addr)?;
                    end = PageNo(page.0 + 1);
                }
            }
        }
        Ok(end)
    }

    fn take_in_xattrs(&self, ino: Nid, node: &NodeBlock) -> Result<()> {
        let inode = self.inode(ino)?;
        let mut nid = Nid(inode.block().xattr_nid.get());
        if nid == Nid::NONE {
            nid = self.new_node(&inode, node_flag::XATTR_PLACE)?;
            self.change_inode(ino, |block| block.xattr_nid.set(nid.0))?;
        }
        self.nodes.change(&self.device, &self.geometry, nid, |block| block.body = node.body)
    }
}

#[cfg(test)]
mod tests;
