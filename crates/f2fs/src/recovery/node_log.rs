//! Recovery of a node log, when its image is opened. Nodes get the state of their newest records, and the
//! dependent structures are updated: the node table, the live blocks with their owners, and the counts. Then
//! the image is folded.
//!
//! For each node the base's version and the newest one are compared, pointer by pointer. A block that only
//! the older one leads to is freed; one that only the newer one leads to becomes live. A freed node counts as
//! one without pointers.
//!
//! Invariants  N1  until the fold is valid, no block of the base or the log, or that they lead to, is overwritten: after a crash,
//!                 recovery begins again.

use crate::format::{NatEntry, NodeBlock, SummaryEntry};
use crate::ids::{BlockAddr, Nid, Segno};
use crate::image::Media;
use crate::inode::Inode;
use crate::mounted::F2fs;
use crate::node::block_map::NodeRole;
use crate::node::{inode_of, pointers_of};
use crate::node_log::{Found, Newest};
use heddle_vfs::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use zerocopy::little_endian::{U16, U32};

/// The updates to be made.
#[derive(Default)]
struct Changes {
    /// Blocks that are not live any more, with the pointers that led to them.
    freed: BTreeMap<BlockAddr, (Nid, usize)>,
    nodes_freed: Vec<BlockAddr>,
    /// Blocks that have become live, and their owners.
    live: BTreeMap<BlockAddr, SummaryEntry>,
    /// Changes of the counts.
    blocks: i64,
    /// Changes in the number of marks of compressed clusters, by inode. They count as blocks, unless the
    /// inode has released the space that compression saved.
    marks: BTreeMap<Nid, i64>,
    given_back: BTreeSet<Nid>,
    nodes: i64,
    inodes: i64,
    /// Inodes without a name.
    nameless: Vec<Nid>,
}

/// The block pointers of a node, at their indexes.
struct Pointers(Vec<U32>);

impl F2fs {
    /// Applies the records. No call is inside, and a fold follows.
    pub(crate) fn take_in_log(&self, found: &Found) -> Result<()> {
        if found.is_empty() {
            return Ok(());
        }
        let media = &self.media;
        let mut changes = Changes::default();
        for (nid, newest) in &found.nodes {
            media.compare(*nid, newest, &mut changes)?;
        }
        let counted = changes.marks.iter().filter(|(ino, _)| !changes.given_back.contains(ino));
        changes.blocks += counted.map(|(_, marks)| marks).sum::<i64>();
        media.take_in(&changes)?;
        let change = media.alone()?;
        for nid in found.named() {
            let inode = media.inode(nid)?;
            if inode.block().links.get() > 0 {
                self.name_again(&change, nid, inode.block())?;
            }
        }
        for nid in changes.nameless {
            change.end(nid)?;
        }
        Ok(())
    }
}

impl Media {
    fn compare(&self, nid: Nid, newest: &Newest, changes: &mut Changes) -> Result<()> {
        let base = self.nodes.nat.find(&self.device, nid)?;
        let addr = BlockAddr(base.addr.get());
        let old = if addr.is_block() {
            Some(self.nodes.on_device(&self.device, &self.geometry, nid, addr)?)
        } else {
            None
        };
        if let Some(node) = old.as_ref().filter(|node| node.footer.nid == node.footer.ino)
            && !Inode::of(Arc::clone(node), self.features)?.counts_cluster_marks()
        {
            changes.given_back.insert(nid);
        }
        let place = match (newest.deleted, addr.is_block()) {
            (true, _) => BlockAddr::NULL,
            // The fold assigns another block, and frees this one.
            (false, true) => addr,
            (false, false) => BlockAddr::NEW,
        };
        let ino = if newest.deleted { Nid::NONE } else { newest.ino };
        let entry = NatEntry { version: newest.version, ino: U32::new(ino.0), addr: U32::new(place.0) };
        self.nodes.nat.change(vec![(nid, entry)]);
        let new = if newest.deleted {
            changes.nodes_freed.extend(old.as_ref().map(|_| addr));
            self.nodes.forget(nid);
            None
        } else {
            self.nodes.located(nid, newest.place);
            self.nodes.any(&self.device, &self.geometry, nid)?
        };
        let is_inode = |node: &Option<Arc<NodeBlock>>| {
            i64::from(node.as_ref().is_some_and(|node| node.footer.nid == node.footer.ino))
        };
        let node_change = i64::from(new.is_some()) - i64::from(old.is_some());
        changes.nodes += node_change;
        changes.blocks += node_change;
        changes.inodes += is_inode(&new) - is_inode(&old);
        if let Some(node) = new.as_ref().filter(|node| node.footer.nid == node.footer.ino)
            && inode_of(node).links.get() == 0
        {
            changes.nameless.push(nid);
        }
        let (old, new) = (self.pointers(old)?, self.pointers(new)?);
        changes.add_marks(newest.ino, &old, &new);
        changes.add(self, nid, newest.version, &old, &new)
    }

    fn pointers(&self, node: Option<Arc<NodeBlock>>) -> Result<Pointers> {
        let Some(node) = node else { return Ok(Pointers(Vec::new())) };
        if node.footer.nid == node.footer.ino {
            let inode = Inode::of(node, self.features)?;
            let all = if inode.has_pointers() { inode.pointers() } else { 0 };
            return Ok(Pointers(inode.block().addr[inode.first_pointer()..][..all].to_vec()));
        }
        Ok(match NodeRole::of(node.footer.place(), 0) {
            Some(NodeRole::Direct(_)) => Pointers(pointers_of(&node).pointers.to_vec()),
            Some(NodeRole::Indirect | NodeRole::Xattrs) => Pointers(Vec::new()),
            Some(NodeRole::Inode) | None => {
                return Err(wrong(Nid(node.footer.nid.get()), "has a place that no node has"));
            }
        })
    }

    fn take_in(&self, changes: &Changes) -> Result<()> {
        let space = self.space()?;
        space.recount(changes.blocks, changes.nodes, changes.inodes)?;
        let kept: BTreeSet<Segno> =
            changes.live.keys().map(|addr| space.segments.place_of(*addr).0).collect();
        space.segments.keep(&self.device, &kept)?;
        for addr in &changes.nodes_freed {
            space.segments.release(*addr)?;
        }
        for (addr, (holder, slot)) in &changes.freed {
            self.release_data(*addr, *holder, *slot)?;
        }
        for (addr, entry) in &changes.live {
            space.segments.adopt(&self.device, *addr, *entry)?;
        }
        Ok(())
    }
}

impl Changes {
    fn add_marks(&mut self, ino: Nid, old: &Pointers, new: &Pointers) {
        let count = |pointers: &Pointers| {
            pointers.0.iter().filter(|pointer| pointer.get() == BlockAddr::COMPRESSED.0).count() as i64
        };
        let more = count(new) - count(old);
        if more != 0 {
            *self.marks.entry(ino).or_default() += more;
        }
    }

    fn add(&mut self, media: &Media, nid: Nid, version: u8, old: &Pointers, new: &Pointers) -> Result<()> {
        let at = |pointers: &Pointers, slot: usize| BlockAddr(pointers.0.get(slot).map_or(0, |p| p.get()));
        for slot in 0..old.0.len().max(new.0.len()) {
            let (old, new) = (at(old, slot), at(new, slot));
            let is_counted = |addr| addr != BlockAddr::NULL && addr != BlockAddr::COMPRESSED;
            self.blocks += i64::from(is_counted(new)) - i64::from(is_counted(old));
            if old == new {
                continue;
            }
            if old.is_block() {
                self.freed.insert(old, (nid, slot));
            }
            if new.is_block() {
                if !media.geometry.in_main(new) {
                    return Err(wrong(nid, "leads to a block outside the main area"));
                }
                let entry = SummaryEntry { nid: U32::new(nid.0), version, slot: U16::new(slot as u16) };
                if self.live.insert(new, entry).is_some() {
                    return Err(wrong(nid, "leads to a block that another one leads to"));
                }
            }
        }
        Ok(())
    }
}

fn wrong(nid: Nid, what: &str) -> Error {
    Error::Corrupt(format!("the node log: node {} {what}", nid.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::write::tests::{OWN, Scene};
    use crate::format::{NODE_POINTERS, node_flag};
    use crate::inode::nid_of;
    use zerocopy::FromZeros;

    const NEW: u32 = BlockAddr::NEW.0;
    const MARK: u32 = BlockAddr::COMPRESSED.0;

    fn pointers(addrs: &[u32]) -> Pointers {
        Pointers(addrs.iter().map(|addr| U32::new(*addr)).collect())
    }

    #[test]
    fn each_pointer_that_changed_frees_or_takes_its_block() {
        let scene = Scene::new();
        let media = &scene.fs.media;
        let (main, end) = (media.geometry.main.0, media.geometry.main.0 + media.geometry.main_segments * 512);
        let (a, b) = (main, end - 1);
        for (old, new, count, freed, live) in [
            (0, 0, 0, None, None),
            (0, NEW, 1, None, None),
            (0, a, 1, None, Some(a)),
            (0, MARK, 0, None, None),
            (NEW, 0, -1, None, None),
            (NEW, b, 0, None, Some(b)),
            (a, a, 0, None, None),
            (a, b, 0, Some(a), Some(b)),
            (a, 0, -1, Some(a), None),
            (a, NEW, 0, Some(a), None),
            (a, MARK, -1, Some(a), None),
            (MARK, b, 1, None, Some(b)),
            (MARK, NEW, 1, None, None),
        ] {
            // In the third slot; a list that ends before it has none there.
            let full = |addr: u32| if addr == 0 { pointers(&[NEW]) } else { pointers(&[NEW, 0, addr]) };
            let mut changes = Changes { blocks: 5, ..Changes::default() };
            changes.add(media, Nid(70), 3, &full(old), &full(new)).unwrap();
            assert_eq!(changes.blocks, 5 + count, "{old:#x} to {new:#x}");
            let gone: Vec<_> = changes.freed.into_iter().collect();
            assert_eq!(
                gone,
                freed.map(|addr| (BlockAddr(addr), (Nid(70), 2))).into_iter().collect::<Vec<_>>()
            );
            let taken: Vec<_> = changes.live.into_iter().collect();
            let entry = SummaryEntry { nid: U32::new(70), version: 3, slot: U16::new(2) };
            assert_eq!(taken, live.map(|addr| (BlockAddr(addr), entry)).into_iter().collect::<Vec<_>>());
        }
        let refused = |new: &[u32], text: &str| {
            let done = Changes::default().add(media, Nid(70), 3, &pointers(&[]), &pointers(new));
            assert!(matches!(&done, Err(Error::Corrupt(why)) if why.contains(text)), "{done:?}");
        };
        refused(&[main - 1], "outside the main area");
        refused(&[end], "outside the main area");
        refused(&[a, a], "another one leads to");
    }

    #[test]
    fn marks_of_clusters_are_counted_by_their_file() {
        let mut changes = Changes::default();
        let marks = |changes: &Changes, ino: u32| changes.marks.get(&Nid(ino)).copied();
        changes.add_marks(Nid(5), &pointers(&[MARK, 0, NEW]), &pointers(&[9, MARK]));
        assert_eq!(marks(&changes, 5), None, "as many as before");
        changes.add_marks(Nid(5), &pointers(&[MARK, MARK, MARK]), &pointers(&[0, MARK]));
        changes.add_marks(Nid(6), &pointers(&[]), &pointers(&[MARK, MARK, MARK]));
        assert_eq!((marks(&changes, 5), marks(&changes, 6)), (Some(-2), Some(3)));
        changes.add_marks(Nid(5), &pointers(&[]), &pointers(&[MARK, MARK, MARK]));
        assert_eq!(marks(&changes, 5), Some(1));
    }

    #[test]
    fn inodes_and_direct_nodes_have_pointers_and_no_others() {
        let scene = Scene::new();
        let (file, inline) = (scene.whole("file", 2), scene.inline("inline", 9));
        let count =
            |node: NodeBlock| scene.fs.media.pointers(Some(Arc::new(node))).map(|pointers| pointers.0.len());
        let of = |handle| scene.inode(handle).node().clone();
        assert_eq!((count(of(&file)), count(of(&inline))), (Ok(OWN as usize), Ok(0)));
        assert_eq!(scene.fs.media.pointers(None).map(|pointers| pointers.0.len()), Ok(0));
        let at = |place: u32| {
            let mut node = NodeBlock::new_zeroed();
            (node.footer.nid, node.footer.ino) = (9000.into(), nid_of(file.ino).unwrap().0.into());
            node.footer.flag.set(place << node_flag::BITS);
            count(node)
        };
        // Direct nodes are at 1 and 2. Those at 3, 1022, 2041 and 2042 lead to other nodes.
        for (place, all) in
            [(1, 1018), (2, 1018), (3, 0), (4, 1018), (1022, 0), (1023, 1018), (2041, 0), (2042, 0)]
        {
            assert_eq!(at(place), Ok(all), "{place}");
        }
        assert_eq!((at(node_flag::XATTR_PLACE), NODE_POINTERS), (Ok(0), 1018));
        for place in [0, 2042 + 1018 * 1019] {
            assert!(matches!(at(place), Err(Error::Corrupt(_))), "{place}");
        }
    }
}
