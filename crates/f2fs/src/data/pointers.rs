//! Changes of files' pointers: pages get a block address, and lose it.
//!
//! A page that is written gets its pointer at once, without a block yet ([`BlockAddr::NEW`]). So a write that
//! has got its space is not refused later. The page gets its block when it is written to the device.
//!
//! Invariants  P1  a pointer to a block, a reserved pointer, and a node each count as one block, in the inode and in the total.
//!             P2  the extent hint is emptied as soon as a pointer changes: it is optional, but must be correct.
//!
//! All functions here are called with the inode's lock held for writing, or while no call is inside.
//! Functions that take or free space belong to [`Change`]; functions that only write pages to the device need
//! no reservation.

use super::block_owner::Lead;
use crate::change::{Change, Lacking, Need};
use crate::format::{BLOCK_BYTES, NODE_POINTERS, NodeBlock, SummaryEntry, node_flag};
use crate::ids::{BlockAddr, Nid, PageNo};
use crate::image::Media;
use crate::inode::Inode;
use crate::node::block_map::{NodeRole, Route, route};
use crate::node::{inode_of_mut, pointers_of, pointers_of_mut};
use crate::node_log::Deleted;
use crate::planted::{Breach, breaks};
use crate::segments::Log;
use heddle_vfs::{Error, FileKind, Result};
use std::ops::Range;
use std::sync::Arc;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U16, U32};

/// Number of pages in memory at which a writer writes those of its file to the device.
pub(crate) const PAGES_MANY: usize = 1 << 14;

/// Pages written in one request, if their blocks are contiguous: 512 KiB.
const PIECE_PAGES: usize = 128;

/// The position of a pointer of a file.
#[derive(Clone, Copy, Debug)]
struct Slot {
    /// The node that holds it: the inode or a direct node.
    holder: Nid,
    /// Index among the holder's pointers.
    index: usize,
    /// Offset in the holder's block, in words from its first pointer.
    at: usize,
    addr: BlockAddr,
}

/// The place of a node in its file: the inode is 0, then come direct and indirect nodes, each followed by
/// those under it.
fn place_of(route: &Route, level: usize) -> u32 {
    let all = NODE_POINTERS as u32;
    let root = match route.root {
        Some(0) => 1,
        Some(1) => 2,
        Some(2) => 3,
        Some(3) => 4 + all,
        _ => 5 + 2 * all,
    };
    let [first, second] = route.inner.map(|index| index as u32);
    match (level, route.depth) {
        (0, _) => root,
        (1, 1) => root + 1 + first,
        (1, _) => root + 1 + first * (all + 1),
        _ => root + 1 + first * (all + 1) + 1 + second,
    }
}

impl Media {
    /// Changes the inode's count of blocks (P1). The count in a damaged inode may be anything.
    pub(crate) fn count_blocks(&self, nid: Nid, change: i64) -> Result<()> {
        self.change_inode(nid, |block| block.blocks.set(block.blocks.get().saturating_add_signed(change)))
    }

    /// Changes an inode.
    pub(crate) fn change_inode<R>(
        &self,
        nid: Nid,
        change: impl FnOnce(&mut crate::format::InodeBlock) -> R,
    ) -> Result<R> {
        self.nodes.change(&self.device, &self.geometry, nid, |node| change(inode_of_mut(node)))
    }

    /// The pointer of a page that has one.
    fn slot(&self, inode: &Inode, page: PageNo) -> Result<Slot> {
        let route = route(page, inode.pointers()).ok_or(Error::FileTooBig)?;
        let Some(root) = route.root else {
            let at = inode.first_pointer() + route.slot;
            let addr = BlockAddr(inode.block().addr[at].get());
            return Ok(Slot { holder: inode.nid, index: route.slot, at, addr });
        };
        let mut nid = Nid(inode.block().nid[root].get());
        for index in route.steps() {
            let node = self.nodes.get(&self.device, &self.geometry, nid, inode.nid)?;
            nid = Nid(pointers_of(&node).pointers[*index].get());
        }
        self.slot_in(inode, nid, route.slot)
    }

    fn slot_in(&self, inode: &Inode, nid: Nid, slot: usize) -> Result<Slot> {
        let node = self.nodes.get(&self.device, &self.geometry, nid, inode.nid)?;
        let addr = BlockAddr(pointers_of(&node).pointers[slot].get());
        Ok(Slot { holder: nid, index: slot, at: slot, addr })
    }

    /// What it takes to give all pages of a range their pointers.
    pub(crate) fn need_of_pages(&self, inode: &Inode, pages: Range<u64>) -> Result<Need> {
        let mut lacking = Lacking::default();
        self.add_lacking(inode, pages, &mut lacking)?;
        Ok(lacking.need())
    }

    /// Adds the pages of a range without a pointer, and their missing nodes.
    pub(crate) fn add_lacking(&self, inode: &Inode, pages: Range<u64>, lacking: &mut Lacking) -> Result<()> {
        let mut at = pages.start;
        while at < pages.end {
            let route = route(PageNo(at), inode.pointers()).ok_or(Error::FileTooBig)?;
            // The pages to which the same node points.
            let all = if route.root.is_none() { inode.pointers() } else { NODE_POINTERS };
            let here = ((all - route.slot) as u64).min(pages.end - at);
            lacking.pages += match self.pointers_at(inode, &route)? {
                Some(_) if breaks(Breach::AllocatedCostsAgain) => here,
                Some(pointers) => pointers[..here as usize].iter().filter(|p| p.get() == 0).count() as u64,
                None => {
                    self.add_lacking_nodes(inode, &route, lacking)?;
                    here
                }
            };
            at += here;
        }
        Ok(())
    }

    fn add_lacking_nodes(&self, inode: &Inode, route: &Route, lacking: &mut Lacking) -> Result<()> {
        let mut nid = route.root.map_or(Nid::NONE, |root| Nid(inode.block().nid[root].get()));
        for level in 0..=route.depth {
            if nid == Nid::NONE {
                lacking.nodes.insert(place_of(route, level));
            } else if level < route.depth {
                let node = self.nodes.get(&self.device, &self.geometry, nid, inode.nid)?;
                nid = Nid(pointers_of(&node).pointers[route.inner[level]].get());
            }
        }
        Ok(())
    }

    /// The pointers of a node, from that of a page on; `None`: the node does not exist.
    fn pointers_at(&self, inode: &Inode, route: &Route) -> Result<Option<Vec<U32>>> {
        let Some(root) = route.root else {
            let own = &inode.block().addr[inode.first_pointer()..][..inode.pointers()];
            // With inline content, no slot is a pointer yet.
            let is_pointer = inode.has_pointers();
            let pointer = |slot: &U32| if is_pointer { *slot } else { U32::ZERO };
            return Ok(Some(own[route.slot..].iter().map(pointer).collect()));
        };
        let mut nid = Nid(inode.block().nid[root].get());
        for index in route.steps() {
            if nid == Nid::NONE {
                return Ok(None);
            }
            let node = self.nodes.get(&self.device, &self.geometry, nid, inode.nid)?;
            nid = Nid(pointers_of(&node).pointers[*index].get());
        }
        if nid == Nid::NONE {
            return Ok(None);
        }
        let node = self.nodes.get(&self.device, &self.geometry, nid, inode.nid)?;
        Ok(Some(pointers_of(&node).pointers[route.slot..].to_vec()))
    }

    /// Sets a pointer of a node.
    pub(crate) fn set_pointer(&self, holder: Nid, at: usize, value: u32, is_inode: bool) -> Result<()> {
        self.nodes.change(&self.device, &self.geometry, holder, |node| {
            if is_inode {
                inode_of_mut(node).addr[at] = U32::new(value);
            } else {
                pointers_of_mut(node).pointers[at] = U32::new(value);
            }
        })
    }

    /// Empties the extent hint (P2).
    pub(crate) fn forget_hint(&self, inode: &Inode) -> Result<()> {
        if inode.block().extent.pages.get() == 0 {
            return Ok(());
        }
        self.change_inode(inode.nid, |block| block.extent = FromZeros::new_zeroed())
    }

    /// A writer writes its file's pages to the device when many pages are in memory.
    pub(crate) fn relieve(&self, nid: Nid) -> Result<()> {
        if self.pages.count() >= PAGES_MANY && self.write_pages(nid)? {
            self.space()?.since.spilled(nid);
        }
        Ok(())
    }

    /// Writes the pages of an inode to the device. Returns true if there were any.
    pub(crate) fn write_pages(&self, nid: Nid) -> Result<bool> {
        let pages = self.pages.of(nid);
        for piece in pages.chunks(PIECE_PAGES) {
            let mut bytes = Vec::with_capacity(piece.len() * BLOCK_BYTES);
            let copied = |page: &&PageNo| {
                self.pages.with(nid, **page, |block| bytes.extend_from_slice(block)).is_some()
            };
            let here: Vec<PageNo> = piece.iter().filter(copied).copied().collect();
            self.place_pages(nid, &here, &bytes)?;
        }
        Ok(!pages.is_empty())
    }

    /// Writes the bytes of pages that have their pointers to new blocks of the device: in one request, for
    /// any pages of the file, unless it crosses the end of a segment.
    pub(crate) fn place_pages(&self, nid: Nid, mut pages: &[PageNo], mut bytes: &[u8]) -> Result<()> {
        let segments = &self.space()?.segments;
        while !pages.is_empty() {
            let inode = self.inode(nid)?;
            let place = |page: &PageNo| {
                let slot = self.slot(&inode, *page)?;
                Ok((slot, self.summary_of(&slot)?))
            };
            let slots: Vec<(Slot, SummaryEntry)> = pages.iter().map(place).collect::<Result<_>>()?;
            let log = if inode.kind == FileKind::Directory { Log::HotData } else { Log::WarmData };
            let run = segments.allocate(&self.device, log, slots.iter().map(|(_, entry)| *entry))?;
            let (piece, rest) = bytes.split_at(run.blocks * BLOCK_BYTES);
            self.device.write(run.first, piece)?;
            self.forget_hint(&inode)?;
            for (n, (slot, _)) in slots[..run.blocks].iter().enumerate() {
                self.lead(nid, slot, run.first.plus(n as u32))?;
            }
            let (placed, left) = pages.split_at(run.blocks);
            for together in placed.chunk_by(|one, next| one.0 + 1 == next.0) {
                self.pages.drop_range(nid, together[0]..PageNo(together[0].0 + together.len() as u64));
            }
            (pages, bytes) = (left, rest);
        }
        Ok(())
    }

    fn summary_of(&self, slot: &Slot) -> Result<SummaryEntry> {
        let version = self.nodes.nat.find(&self.device, slot.holder)?.version;
        Ok(SummaryEntry { nid: U32::new(slot.holder.0), version, slot: U16::new(slot.index as u16) })
    }

    /// Sets a pointer of this inode to a block, and frees the old block. The hint is empty already (P2).
    fn lead(&self, nid: Nid, slot: &Slot, addr: BlockAddr) -> Result<()> {
        self.set_pointer(slot.holder, slot.at, addr.0, slot.holder == nid)?;
        if slot.addr.is_block() { self.release_data(slot.addr, slot.holder, slot.index) } else { Ok(()) }
    }
}

impl Change<'_> {
    /// Adds an empty node to an inode.
    pub(crate) fn new_node(&self, inode: &Inode, place: u32) -> Result<Nid> {
        let nid = self.take_node(Some(inode.nid))?;
        let mut node = NodeBlock::new_zeroed();
        let cold = if inode.kind == FileKind::Directory { 0 } else { node_flag::COLD };
        (node.footer.nid, node.footer.ino) = (U32::new(nid.0), U32::new(inode.nid.0));
        node.footer.flag = U32::new(place << node_flag::BITS | cold);
        self.nodes.add(nid, Arc::new(node));
        self.count_blocks(inode.nid, 1)?;
        Ok(nid)
    }

    /// Frees a node and its number.
    pub(crate) fn free_node(&self, nid: Nid, is_inode: bool) -> Result<()> {
        let entry = self.nodes.nat.free(&self.device, nid)?;
        self.nodes.forget(nid);
        let old = BlockAddr(entry.addr.get());
        if let Some(log) = &self.nodes.log {
            let gone = Deleted { nid, version: entry.version.wrapping_add(1) };
            log.free(Nid(entry.ino.get()), gone, old.is_block());
        }
        self.give_node(is_inode);
        self.space()?.segments.release_node(old)
    }

    /// The pointer of a page; all nodes that lead to it are made if they do not exist.
    fn make_slot(&self, inode: &Inode, page: PageNo) -> Result<Slot> {
        let route = route(page, inode.pointers()).ok_or(Error::FileTooBig)?;
        let Some(root) = route.root else { return self.slot(inode, page) };
        let mut nid = Nid(inode.block().nid[root].get());
        if nid == Nid::NONE {
            nid = self.new_node(inode, place_of(&route, 0))?;
            self.change_inode(inode.nid, |block| block.nid[root] = U32::new(nid.0))?;
        }
        for (level, index) in route.steps().iter().enumerate() {
            let node = self.nodes.get(&self.device, &self.geometry, nid, inode.nid)?;
            let mut child = Nid(pointers_of(&node).pointers[*index].get());
            if child == Nid::NONE {
                child = self.new_node(inode, place_of(&route, level + 1))?;
                self.set_pointer(nid, *index, child.0, false)?;
            }
            nid = child;
        }
        self.slot_in(inode, nid, route.slot)
    }

    /// Ensures that the page has a pointer. Returns true if it had none. The inode may have changed
    /// afterwards, so the caller reads it again.
    pub(crate) fn reserve(&self, nid: Nid, page: PageNo) -> Result<(BlockAddr, bool)> {
        let inode = self.inode(nid)?;
        let slot = self.make_slot(&inode, page)?;
        if slot.addr != BlockAddr::NULL {
            return Ok((slot.addr, false));
        }
        self.take_block()?;
        self.forget_hint(&inode)?;
        self.set_pointer(slot.holder, slot.at, BlockAddr::NEW.0, slot.holder == nid)?;
        self.count_blocks(nid, 1)?;
        Ok((BlockAddr::NEW, true))
    }

    /// Maps a page to the block that an fsynced node names: the block becomes live.
    pub(crate) fn adopt_page(&self, nid: Nid, page: PageNo, addr: BlockAddr) -> Result<()> {
        self.leave_adopted(addr)?;
        self.reserve(nid, page)?;
        let inode = self.inode(nid)?;
        let slot = self.slot(&inode, page)?;
        self.space()?.segments.adopt(&self.device, addr, self.summary_of(&slot)?)?;
        self.forget_hint(&inode)?;
        self.lead(nid, &slot, addr)?;
        self.pages.drop_range(nid, page..PageNo(page.0 + 1));
        Ok(())
    }

    /// Empties the pointer that an earlier fsync gave this block. Linux moves a block that no checkpoint has to
    /// another pointer, so that two fsyncs name it: the later one counts.
    fn leave_adopted(&self, addr: BlockAddr) -> Result<()> {
        let segments = &self.space()?.segments;
        if !segments.was_adopted(addr) {
            return Ok(());
        }
        let (_, entry) = segments.summary_entry(&self.device, addr)?;
        let Some(Lead { node, .. }) = self.lead_to(addr, entry)? else { return Ok(()) };
        let (inode, slot) = (self.inode(Nid(node.footer.ino.get()))?, u64::from(entry.slot.get()));
        let page = match NodeRole::of(node.footer.place(), inode.pointers()) {
            Some(NodeRole::Inode) => PageNo(slot),
            Some(NodeRole::Direct(first)) => PageNo(first.0 + slot),
            _ => return Ok(()),
        };
        // A node that its file does not lead to says nothing of the file's pages.
        if self.run_of_blocks(&inode, page)?.addr != addr {
            return Ok(());
        }
        self.punch_pages(inode.nid, page, PageNo(page.0 + 1))
    }

    /// Removes all pages from `first` on, with the nodes that lead only to them.
    pub(crate) fn cut_pages(&self, nid: Nid, first: PageNo) -> Result<()> {
        self.pages.drop_range(nid, first..PageNo(u64::MAX));
        let inode = self.inode(nid)?;
        if !inode.has_pointers() {
            return Ok(());
        }
        self.forget_hint(&inode)?;
        let (own, start) = (inode.pointers(), inode.first_pointer());
        let marks_count = inode.counts_cluster_marks();
        let mut freed = 0;
        let mut pointers = inode.block().addr;
        for index in first.0.min(own as u64) as usize..own {
            freed += self.drop_block(&mut pointers[start + index], (nid, index), marks_count)?;
        }
        let mut nids = inode.block().nid;
        let mut before = own as u64;
        for (root, child) in nids.iter_mut().enumerate() {
            let depth = [0, 0, 1, 1, 2][root];
            let pages = span(depth) * NODE_POINTERS as u64;
            let from = first.0.saturating_sub(before).min(pages);
            before += pages;
            if child.get() != 0 && from < pages {
                let (gone, blocks) = self.cut_node(&inode, Nid(child.get()), depth, from)?;
                freed += blocks;
                if gone {
                    *child = U32::new(0);
                }
            }
        }
        self.change_inode(nid, |block| {
            (block.addr, block.nid) = (pointers, nids);
            block.blocks.set(block.blocks.get().saturating_sub(freed));
        })
    }

    /// Removes all pages of a node from page `from` of it on. Returns whether the node itself was freed, and
    /// the number of freed blocks, including it.
    fn cut_node(&self, inode: &Inode, nid: Nid, depth: u32, from: u64) -> Result<(bool, u64)> {
        let ino = inode.nid;
        let node = self.nodes.get(&self.device, &self.geometry, nid, ino)?;
        let mut pointers = pointers_of(&node).pointers;
        drop(node);
        let (span, mut freed) = (span(depth), 0);
        let first = (from / span) as usize;
        for (index, pointer) in pointers.iter_mut().enumerate().skip(first) {
            if pointer.get() == 0 {
                continue;
            }
            if depth == 0 {
                freed += self.drop_block(pointer, (nid, index), inode.counts_cluster_marks())?;
                continue;
            }
            let below = if index == first { from % span } else { 0 };
            let (gone, blocks) = self.cut_node(inode, Nid(pointer.get()), depth - 1, below)?;
            freed += blocks;
            if gone {
                *pointer = U32::new(0);
            }
        }
        if from == 0 {
            self.space()?.since.nodes_went(ino);
            self.free_node(nid, false)?;
            return Ok((true, freed + 1));
        }
        self.nodes
            .change(&self.device, &self.geometry, nid, |node| pointers_of_mut(node).pointers = pointers)?;
        Ok((false, freed))
    }

    /// Empties a pointer. Returns 1 if it counted as a block: it had one, or had reserved one, or, with
    /// `marks_count`, marks a compressed cluster.
    fn drop_block(&self, pointer: &mut U32, (holder, index): (Nid, usize), marks_count: bool) -> Result<u64> {
        let addr = BlockAddr(pointer.get());
        if addr == BlockAddr::NULL {
            return Ok(0);
        }
        if addr.is_block() {
            self.release_data(addr, holder, index)?;
        }
        pointer.set(0);
        if addr == BlockAddr::COMPRESSED && !marks_count {
            return Ok(0);
        }
        self.give_blocks(1);
        Ok(1)
    }

    /// Makes pages that have their pointers read as zeros. They keep their space: each has a reserved block.
    pub(crate) fn zero_pages(&self, nid: Nid, from: PageNo, to: PageNo) -> Result<()> {
        self.pages.drop_range(nid, from..to);
        self.forget_hint(&self.inode(nid)?)?;
        for page in (from.0..to.0).map(PageNo) {
            let slot = self.slot(&self.inode(nid)?, page)?;
            if slot.addr.is_block() {
                self.lead(nid, &slot, BlockAddr::NEW)?;
            }
        }
        Ok(())
    }

    /// Turns pages into holes, and keeps the nodes.
    pub(crate) fn punch_pages(&self, nid: Nid, from: PageNo, to: PageNo) -> Result<()> {
        self.pages.drop_range(nid, from..to);
        self.forget_hint(&self.inode(nid)?)?;
        let mut page = from;
        while page < to {
            let inode = self.inode(nid)?;
            let hole = self.hole_pages_from(&inode, page)?;
            if hole > 0 {
                page = PageNo(page.0.saturating_add(hole));
                continue;
            }
            let slot = self.slot(&inode, page)?;
            let mut pointer = U32::new(slot.addr.0);
            let freed =
                self.drop_block(&mut pointer, (slot.holder, slot.index), inode.counts_cluster_marks())?;
            self.set_pointer(slot.holder, slot.at, 0, slot.holder == nid)?;
            self.count_blocks(nid, -(freed as i64))?;
            page = PageNo(page.0 + 1);
        }
        Ok(())
    }
}

/// Number of pages under a pointer of a node of this depth.
pub(crate) fn span(depth: u32) -> u64 {
    (NODE_POINTERS as u64).pow(depth)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_numbered_as_linux_numbers_them() {
        let at = |page: u64| route(PageNo(page), 873).unwrap();
        let (direct, indirect) = (1018, 1018 * 1018);
        assert_eq!(place_of(&at(873), 0), 1);
        assert_eq!(place_of(&at(873 + direct), 0), 2);
        let first = 873 + 2 * direct;
        assert_eq!((place_of(&at(first), 0), place_of(&at(first + 7 * direct), 1)), (3, 4 + 7));
        let second = first + indirect;
        assert_eq!((place_of(&at(second), 0), place_of(&at(second + direct), 1)), (4 + 1018, 5 + 1018 + 1));
        let double = second + indirect + 2 * indirect + 3 * direct;
        let places = [0, 1, 2].map(|level| place_of(&at(double), level));
        assert_eq!(places, [5 + 2036, 6 + 2036 + 2 * 1019, 6 + 2036 + 2 * 1019 + 1 + 3]);
    }

    #[test]
    fn a_nodes_number_in_its_file_says_its_pages_again() {
        use crate::node::block_map::{NodeRole, first_page_under, pages_max};
        let own = 873;
        let (direct, indirect) = (1018_u64, 1018 * 1018);
        let starts = [0, direct, 2 * direct, 2 * direct + indirect, 2 * (direct + indirect)];
        for (root, start) in starts.into_iter().enumerate() {
            assert_eq!(first_page_under(root, own), PageNo(own as u64 + start));
        }
        let end = pages_max(own);
        assert_eq!((first_page_under(5, own), first_page_under(9, own)), (PageNo(end), PageNo(end)));
        let pages = starts.into_iter().flat_map(|start| {
            [0, direct - 1, direct, 5 * direct, indirect - 1, indirect + 1, 7 * indirect + 3 * direct]
                .map(|n| start + n)
        });
        for page in pages.map(|page| page + own as u64).chain([end - 1]) {
            let route = route(PageNo(page), own).unwrap();
            let place = |level| NodeRole::of(place_of(&route, level), own);
            assert_eq!(
                place(route.depth),
                Some(NodeRole::Direct(PageNo(page - route.slot as u64))),
                "page {page}"
            );
            assert!((0..route.depth).all(|level| place(level) == Some(NodeRole::Indirect)), "page {page}");
        }
        assert_eq!(route(PageNo(end), own), None);
        assert_eq!(NodeRole::of(0, own), Some(NodeRole::Inode));
        assert_eq!(NodeRole::of(node_flag::XATTR_PLACE, own), Some(NodeRole::Xattrs));
        let last = 6 + 2 * 1018 + 1018 * 1019;
        assert!(NodeRole::of(last - 1, own).is_some() && NodeRole::of(last, own).is_none());
    }

    #[test]
    fn blocks_of_directories_and_files_go_to_logs_of_their_own() {
        use crate::data::write::tests::Scene;
        use crate::inode::{ROOT, nid_of};
        use heddle_vfs::FileSystem;
        let scene = Scene::new();
        let file = scene.whole("file", 2);
        scene.fs.sync().unwrap();
        let (media, nid) = (&scene.fs.media, nid_of(file.ino).unwrap());
        let segments = &media.space().unwrap().segments;
        let logs: Vec<u32> = segments.positions().0.iter().map(|at| at.segment.0).collect();
        let segment = |addr: BlockAddr| segments.place_of(addr).0.0;
        let home = |nid| segment(BlockAddr(media.nodes.nat.find(&media.device, nid).unwrap().addr.get()));
        let dir = media.inode(ROOT).unwrap();
        let entries = media.run_of_blocks(&dir, PageNo(0)).unwrap().addr;
        let found = [segment(entries), segment(scene.addr(&file, 1)), home(ROOT), home(nid)];
        assert_eq!(found, [logs[0], logs[1], logs[3], logs[4]]);
        let change = media.set_aside(Need { nodes: 2, ..Need::NONE }).unwrap();
        for (inode, flag) in [(dir, 7 << 3), (scene.inode(&file), 7 << 3 | node_flag::COLD)] {
            let (before, new) = (inode.attr().blocks_512, change.new_node(&inode, 7).unwrap());
            let node = media.nodes.get(&media.device, &media.geometry, new, inode.nid).unwrap();
            assert_eq!((node.footer.nid.get(), node.footer.flag.get()), (new.0, flag));
            assert_eq!(media.inode(inode.nid).unwrap().attr().blocks_512, before + 8);
        }
    }

    #[test]
    fn pages_far_apart_are_written_and_leave_memory() {
        use crate::data::write::tests::{OWN, Scene};
        use crate::inode::nid_of;
        let scene = Scene::new();
        let file = scene.file("file", &[0..2, 5..6, 9..10, OWN..OWN + 1]);
        let (media, nid) = (&scene.fs.media, nid_of(file.ino).unwrap());
        let (far, others) = (Nid(nid.0 + 500), media.pages.count() - 5);
        let all = |media: &Media| (media.pages.of(nid).len(), media.pages.count() - others);
        // Few pages stay in memory.
        media.relieve(nid).unwrap();
        assert_eq!(all(media), (5, 5));
        assert!(!media.space().unwrap().since.take_spilled(nid));
        let put = |n| media.pages.put(far, PageNo(n), Box::new([0; BLOCK_BYTES]));
        (others as u64 + 5..(1 << 14) - 1).for_each(put);
        media.relieve(nid).unwrap();
        assert_eq!((media.pages.of(nid).len(), media.pages.count()), (5, (1 << 14) - 1));
        put(0);
        media.relieve(nid).unwrap();
        assert_eq!((media.pages.of(nid).len(), media.pages.count()), (0, (1 << 14) - 5));
        assert!(media.space().unwrap().since.take_spilled(nid), "they are not durable yet");
        assert!([0, 1, 5, 9, OWN].iter().all(|page| scene.addr(&file, *page).is_block()));
        assert_eq!(media.write_pages(nid), Ok(false), "there are no more");
    }
}
