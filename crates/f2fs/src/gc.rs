//! Cleaning: the live blocks of a segment are written elsewhere, so that the segment is free after the next
//! checkpoint.
//!
//! Segments with the fewest live blocks come first (greedy). Nodes are only marked as changed: the checkpoint
//! writes them. For a data block the summary names the pointer that leads to it. If that pointer leads
//! elsewhere, the summary is of an earlier use of the block.
//!
//! Segments with a page of a pinned file are left alone.
//!
//! Cleaning runs exclusively, as a checkpoint does.

use crate::data::block_owner::Lead;
use crate::format::{Block, NodeBlock, SummaryEntry, inline_flag};
use crate::ids::{BlockAddr, Nid, Segno};
use crate::image::Media;
use crate::segments::Log;
use heddle_vfs::{Error, Result};
use zerocopy::FromBytes;

impl Media {
    /// Moves the live blocks of a segment away. A segment with a live block of unknown owner, or of a pinned
    /// file, is left alone, and not cleaned again.
    ///
    /// # Errors
    /// Those of a move that has begun.
    pub(crate) fn clean(&self, segno: Segno) -> Result<()> {
        let segments = &self.space()?.segments;
        let found = segments.contents(&self.device, segno).and_then(|(are_nodes, contents)| {
            let live = contents.into_iter();
            live.map(|(addr, entry)| self.live_in(are_nodes, addr, entry)).collect::<Result<Vec<Live>>>()
        });
        match found {
            Ok(live) if live.iter().any(|live| matches!(live, Live::Pinned)) => {
                segments.leave_out(segno, None);
                Ok(())
            }
            Ok(live) => live.into_iter().try_for_each(|live| self.move_away(live)),
            Err(error) => {
                segments.leave_out(segno, Some(error.to_string()));
                Ok(())
            }
        }
    }

    /// The owner of a live block, according to its summary and verified.
    fn live_in(&self, is_node: bool, addr: BlockAddr, entry: SummaryEntry) -> Result<Live> {
        let found = if is_node { self.node_at_home(addr, entry) } else { self.page_at_home(addr, entry) };
        found?.ok_or_else(|| {
            Error::Corrupt(format!(
                "block {} is live, and its summary says it belongs to node {}, which does not lead to it",
                addr.0, entry.nid
            ))
        })
    }

    /// The node of a block: the one in the summary, or, if that is damaged, the one in the block itself.
    fn node_at_home(&self, addr: BlockAddr, entry: SummaryEntry) -> Result<Option<Live>> {
        let is_at_home = |nid: Nid| {
            let found = self.nodes.nat.find(&self.device, nid);
            found.is_ok_and(|found| found.addr.get() == addr.0)
        };
        let said = Nid(entry.nid.get());
        if is_at_home(said) {
            self.nodes.any(&self.device, &self.geometry, said)?;
            return Ok(Some(Live::Node(said)));
        }
        let block = self.device.block(addr)?;
        let node =
            NodeBlock::ref_from_bytes(&block[..]).map_err(|error| Error::Corrupt(error.to_string()))?;
        let says = Nid(node.footer.nid.get());
        if !is_at_home(says) {
            return Ok(None);
        }
        // Verified first, because a move must not fail after it has begun.
        self.nodes.any(&self.device, &self.geometry, says)?;
        Ok(Some(Live::Node(says)))
    }

    fn page_at_home(&self, addr: BlockAddr, entry: SummaryEntry) -> Result<Option<Live>> {
        let Some(Lead { node, at }) = self.lead_to(addr, entry)? else { return Ok(None) };
        let (holder, owner) = (Nid(entry.nid.get()), Nid(node.footer.ino.get()));
        if self.inode(owner)?.has(inline_flag::PINNED) {
            return Ok(Some(Live::Pinned));
        }
        Ok(Some(Live::Page { addr, holder, at, owner, entry, block: self.device.block(addr)? }))
    }

    fn move_away(&self, live: Live) -> Result<()> {
        match live {
            Live::Pinned => Ok(()),
            Live::Node(nid) => self.nodes.change(&self.device, &self.geometry, nid, |_| ()),
            Live::Page { addr, holder, at, owner, entry, block } => {
                let segments = &self.space()?.segments;
                let new = segments.allocate(&self.device, Log::ColdData, std::iter::once(entry))?.first;
                self.device.write(new, &block[..])?;
                self.forget_hint(&self.inode(owner)?)?;
                self.set_pointer(holder, at, new.0, owner == holder)?;
                segments.release(addr)
            }
        }
    }
}

/// A live block of a segment, and the pointer to it.
enum Live {
    Pinned,
    Node(Nid),
    Page { addr: BlockAddr, holder: Nid, at: usize, owner: Nid, entry: SummaryEntry, block: Box<Block> },
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::write::tests::Scene;
    use crate::format::BLOCK_BYTES;
    use crate::inode::nid_of;
    use crate::segments::room::Prefer;
    use heddle_vfs::short::Short;
    use heddle_vfs::{FileSystem, Ino, RangeOp};
    use std::collections::BTreeSet;

    #[test]
    fn pages_of_a_cleaned_segment_are_elsewhere_and_the_same() {
        let scene = Scene::new();
        // More than a segment, under the inode and under nodes.
        let file = scene.whole("file", 1600);
        scene.fs.sync().unwrap();
        let (media, segments) = (&scene.fs.media, &scene.fs.media.space().unwrap().segments);
        let before = media.space().unwrap().counts();
        for page in [5, 1100] {
            let segno = segments.place_of(scene.addr(&file, page)).0;
            let live = segments.contents(&media.device, segno).unwrap().1.len();
            assert!(live > 400, "{live} blocks of {segno:?}");
            media.clean(segno).unwrap();
            assert!(segments.contents(&media.device, segno).unwrap().1.is_empty());
            assert!(segments.place_of(scene.addr(&file, page)).0 != segno);
        }
        assert_eq!((segments.left_out(), media.space().unwrap().counts()), (vec![], before));
        scene.fs.sync().unwrap();
        assert!(scene.fs.read_vec(&file, 0, 1600 * BLOCK_BYTES) == vec![7; 1600 * BLOCK_BYTES]);
    }

    #[test]
    fn pages_of_a_pinned_file_stay_where_they_are() {
        let scene = Scene::new();
        let (file, other) = (scene.whole("file", 700), scene.whole("other", 1600));
        scene.fs.sync().unwrap();
        let (media, segments) = (&scene.fs.media, &scene.fs.media.space().unwrap().segments);
        media.change_inode(nid_of(file.ino).unwrap(), |block| block.inline |= inline_flag::PINNED).unwrap();
        let before: Vec<BlockAddr> = (0..700).map(|page| scene.addr(&file, page)).collect();
        let homes: BTreeSet<Segno> = before.iter().map(|addr| segments.place_of(*addr).0).collect();
        let open: Vec<Segno> = segments.positions().0.iter().map(|at| at.segment).collect();
        for segno in homes.iter().filter(|segno| !open.contains(segno)) {
            media.clean(*segno).unwrap();
        }
        assert!((0..700).all(|page| scene.addr(&file, page) == before[page as usize]));
        // One of them has pages of the other file, too: it is no victim any more.
        for page in (0..1600).step_by(2) {
            scene.fs.fallocate(&other, RangeOp::Punch, page * 4096, 4096).unwrap();
        }
        scene.fs.sync().unwrap();
        let victims = segments.victims(100, Prefer::Emptiest);
        assert!(!victims.is_empty() && victims.iter().all(|segno| !homes.contains(segno)), "{victims:?}");
        assert_eq!(segments.left_out(), [], "that is no damage");
    }

    #[test]
    fn nodes_of_a_cleaned_segment_are_written_again_whatever_its_summary_says() {
        let scene = Scene::new();
        let inos: Vec<Ino> = (0..700)
            .map(|n| {
                let file = scene.fs.new_file(Ino::ROOT, &n.to_string());
                let ino = file.ino;
                scene.fs.release(file);
                ino
            })
            .collect();
        scene.fs.sync().unwrap();
        let (media, segments) = (&scene.fs.media, &scene.fs.media.space().unwrap().segments);
        let home = |ino: Ino| {
            let nid = nid_of(ino).unwrap();
            segments.place_of(BlockAddr(media.nodes.nat.find(&media.device, nid).unwrap().addr.get())).0
        };
        let full = |but: Option<Segno>| {
            let open: Vec<Segno> = segments.positions().0.iter().map(|at| at.segment).collect();
            inos.iter().map(|ino| home(*ino)).find(|segno| !open.contains(segno) && Some(*segno) != but)
        };
        for is_damaged in [false, true] {
            let segno = full(None).unwrap();
            if is_damaged {
                let summary = BlockAddr(media.geometry.ssa.0 + segno.0);
                media.device.write(summary, &[0; BLOCK_BYTES]).unwrap();
            }
            let live = segments.contents(&media.device, segno).unwrap().1.len();
            media.clean(segno).unwrap();
            assert_eq!((media.nodes.changed(), segments.left_out()), (live, vec![]));
            scene.fs.sync().unwrap();
            assert!(live > 100 && inos.iter().all(|ino| home(*ino) != segno));
        }
        // A block of nobody's cannot be moved.
        let segno = full(None).unwrap();
        let lost = inos.iter().find(|ino| home(**ino) == segno).unwrap();
        let lost = nid_of(*lost).unwrap();
        media.nodes.nat.moved(&media.device, lost, BlockAddr(media.geometry.main.0)).unwrap();
        media.clean(segno).unwrap();
        let left: Vec<Segno> = segments.left_out().into_iter().map(|(segno, _)| segno).collect();
        assert_eq!((left, media.nodes.changed()), (vec![segno], 0));
    }
}
