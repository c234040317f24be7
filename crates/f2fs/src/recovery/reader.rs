//! The way to fsynced pages of large files, for a reader.
//!
//! An fsync writes direct nodes and inodes alone. The place of a direct node in its file tells which indirect nodes lead to it. A writer
//! makes these anew (`roll_forward`). A reader gets them here, in memory: they are changed nodes, which stay, and which it never writes.
//!
//! State       as the chain of fsynced nodes says. An indirect node under a double indirect one has a number that no node has: the
//!             number that the writer gave it is not on the device. Only an indirect node that leads elsewhere is changed: one that an
//!             earlier checkpoint knows leads to its direct nodes already.
//!             An inode that its last fsync left out is changed if its direct nodes extend the file.
//! Limit       an image whose chain changes more than `MADE_MAX` of both is not read. A writer recovers it.

use crate::error::OpenError;
use crate::format::{NODE_POINTERS, NodeBlock, node_flag};
use crate::ids::{Nid, PageNo};
use crate::image::Media;
use crate::node::block_map::{NodeRole, route};
use crate::node::{pointers_of, pointers_of_mut};
use crate::recovery::fsynced::{Chain, Grown, Link};
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
    pub(crate) fn connect_fsynced(
        &self,
        chain: &Chain,
        grown: &[Grown],
    ) -> std::result::Result<(), OpenError> {
        let mut unused =
            Unused { end: Nid(self.geometry.nids()), chain: chain.0.iter().map(Link::nid).collect() };
        for link in &chain.0 {
            let _ = self.connect(link, &mut unused);
            self.check_made()?;
        }
        for node in grown {
            let _ = self.grow(node);
            self.check_made()?;
        }
        Ok(())
    }

    fn check_made(&self) -> std::result::Result<(), OpenError> {
        if self.nodes.changed() <= MADE_MAX {
            return Ok(());
        }
        let what = format!(
            "fsyncs since its last checkpoint that change more than {MADE_MAX} nodes besides: a mount for writing recovers them"
        );
        Err(OpenError::Unsupported { image: self.device.path().into(), what })
    }

    fn grow(&self, node: &Grown) -> Result<()> {
        let inode = self.inode(node.ino)?;
        let Some(NodeRole::Direct(first)) = NodeRole::of(node.place, inode.pointers()) else { return Ok(()) };
        let end = PageNo(first.0 + node.pointers);
        // A file with a page there leads to the node.
        let leads = inode.kind == FileKind::Regular && self.hole_pages_from(&inode, PageNo(end.0 - 1))? == 0;
        if leads { self.grow_to(node.ino, end) } else { Ok(()) }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::write::tests::{NODE, OWN, Scene};
    use crate::mounted::F2fs;
    use heddle_vfs::FileSystem;

    const INDIRECT: u64 = OWN + 2 * NODE;
    const DOUBLE: u64 = INDIRECT + 2 * NODE * NODE;

    fn chain(fs: &F2fs) -> Chain {
        let media = &fs.media;
        Chain::read(&media.device, &media.geometry, &fs.checkpoint_state().checkpoint, &media.nodes)
    }

    /// The image as a reader finds it after fsyncs of these pages of one file.
    fn reader(scene: Scene, pages: &[u64]) -> (F2fs, tempfile::TempDir) {
        let file = scene.file("file", &[]);
        scene.fs.sync().unwrap();
        for page in pages {
            scene.fs.write(&file, page * 4096, b"fsynced").unwrap();
            scene.fs.fsync(&file, false).unwrap();
        }
        let (path, place) = (scene.fs.media.device.path().to_owned(), scene.place);
        drop(scene.fs);
        (F2fs::open(&path).unwrap(), place)
    }

    /// As Linux numbers them: the indirect ones are 3, 1022 and 2041, the last one's follow each 1018 others.
    #[test]
    fn indirect_nodes_are_made_at_their_places() {
        for (page, places) in [
            (INDIRECT + 5 * NODE + 7, vec![3]),
            (INDIRECT + NODE * NODE + 9 * NODE, vec![1022]),
            (DOUBLE + 3 * NODE * NODE + 2 * NODE + 1, vec![2041, 2042 + 3 * 1019]),
            (DOUBLE, vec![2041, 2042]),
            (OWN + 1, vec![]),
        ] {
            let (fs, _place) = reader(Scene::new(), &[page]);
            let nodes = &fs.media.nodes;
            let mut found: Vec<(u32, u32, u32)> = nodes
                .all_changed()
                .into_iter()
                .map(|nid| {
                    let node = nodes.changed_node(nid).unwrap().now;
                    assert_eq!(node.footer.nid.get(), nid.0);
                    (node.footer.place(), node.footer.flag.get() & 7, node.footer.ino.get())
                })
                .collect();
            found.sort_unstable();
            let link = &chain(&fs).0[0];
            let wanted: Vec<_> =
                places.into_iter().map(|place| (place, node_flag::COLD, link.ino().0)).collect();
            assert_eq!(found, wanted, "page {page}");
        }
    }

    #[test]
    fn a_number_is_unused_if_neither_table_nor_chain_has_it() {
        let scene = Scene::new();
        let media = &scene.fs.media;
        let mut unused = Unused { end: Nid(5000), chain: HashSet::from([Nid(4999), Nid(4997)]) };
        media.nodes.add(Nid(4996), Arc::new(NodeBlock::new_zeroed()));
        let found = [(); 3].map(|()| media.take_unused(&mut unused).unwrap());
        assert_eq!(found, [4998, 4995, 4994].map(|nid| Some(Nid(nid))));
        unused.end = Nid(1);
        assert_eq!(media.take_unused(&mut unused), Ok(None), "0 is no number");
    }

    #[test]
    fn an_image_that_needs_too_many_nodes_is_not_read() {
        let (fs, _place) = reader(Scene::new(), &[OWN + 1]);
        let (media, chain) = (&fs.media, chain(&fs));
        let node = Arc::new(NodeBlock::new_zeroed());
        (0..16_384).for_each(|n| media.nodes.add(Nid(20_000 + n), Arc::clone(&node)));
        assert!(media.connect_fsynced(&chain, &[]).is_ok());
        media.nodes.add(Nid(10_000), node);
        let why = media.connect_fsynced(&chain, &[]).unwrap_err().to_string();
        assert!(why.contains("more than 16384 nodes"), "{why}");
    }
}
