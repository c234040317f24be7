//! Live nodes that the node table does not lead to: the table's entry may be damaged.

use super::PIECE_BLOCKS;
use crate::checkpoint::{Checkpoint, NO_CHAIN_LOW};
use crate::format::{BLOCK_BYTES, NodeBlock, SEGMENT_BLOCKS};
use crate::ids::{BlockAddr, ByNid, Nid};
use crate::image::Media;
use crate::inode::ROOT;
use crate::segments::Segments;
use heddle_vfs::Result;
use zerocopy::FromBytes;

/// Where they are.
pub(super) struct Stray {
    by_number: ByNid<Vec<Found>>,
    /// Version of the checkpoint.
    checkpoint: u64,
}

struct Found {
    addr: BlockAddr,
    ino: Nid,
    written: Written,
}

/// When a node was written: later is larger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Written {
    /// So many checkpoints after the present one. Only 31 bits of a version count: the bit above them is the
    /// field below, and the high word a checksum.
    after: i64,
    /// By a checkpoint of this engine, and not by an fsync before it.
    by_checkpoint: bool,
}

impl Written {
    fn of(said: u64, checkpoint: u64) -> Written {
        let after = (said.wrapping_sub(checkpoint) << 33) as i64 >> 33;
        let version = checkpoint.wrapping_add_signed(after);
        Written { after, by_checkpoint: (said ^ version) & NO_CHAIN_LOW != 0 }
    }
}

impl Stray {
    /// Reads all live blocks of nodes. If the segment table cannot be read, all blocks may be such.
    pub(super) fn find_all(media: &Media, checkpoint: &Checkpoint) -> Result<Stray> {
        let (device, geometry) = (&media.device, &media.geometry);
        let logs = checkpoint.logs(device, geometry);
        let segments = logs.and_then(|logs| Segments::read(device, geometry, logs)).ok();
        let mut stray = Stray { by_number: ByNid::default(), checkpoint: checkpoint.head.version.get() };
        let mut buf = vec![0; PIECE_BLOCKS * BLOCK_BYTES];
        let all = geometry.main_segments.saturating_mul(SEGMENT_BLOCKS);
        for at in (0..all).step_by(PIECE_BLOCKS) {
            let first = geometry.main.plus(at);
            let is_live =
                |addr: BlockAddr| segments.as_ref().is_none_or(|segments| segments.is_live_node(addr));
            if !(0..PIECE_BLOCKS as u32).any(|n| is_live(first.plus(n))) {
                continue;
            }
            device.read(first, 0, &mut buf)?;
            for (n, block) in buf.chunks_exact(BLOCK_BYTES).enumerate() {
                let addr = first.plus(n as u32);
                if let (true, Ok(node)) = (is_live(addr), NodeBlock::ref_from_bytes(block)) {
                    stray.add(media, addr, node);
                }
            }
        }
        Ok(stray)
    }

    fn add(&mut self, media: &Media, addr: BlockAddr, node: &NodeBlock) {
        let (nid, ino) = (Nid(node.footer.nid.get()), Nid(node.footer.ino.get()));
        let written = Written::of(node.footer.checkpoint_version.get(), self.checkpoint);
        let is_led_to = || {
            media.nodes.nat.find(&media.device, nid).is_ok_and(|entry| BlockAddr(entry.addr.get()) == addr)
        };
        if nid >= ROOT && nid.0 < media.geometry.nids() && ino >= ROOT && !is_led_to() {
            self.by_number.entry(nid).or_default().push(Found { addr, ino, written });
        }
    }

    /// The newest of this number and inode.
    pub(super) fn find(&self, nid: Nid, ino: Nid) -> Option<BlockAddr> {
        let of_inode = self.by_number.get(&nid)?.iter().filter(|found| found.ino == ino);
        of_inode.max_by_key(|found| found.written).map(|found| found.addr)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::write::tests::Scene;
    use zerocopy::FromZeros;

    #[test]
    fn the_newest_node_is_that_of_the_newest_checkpoint() {
        let scene = Scene::new();
        let newest_at = |checkpoint: u64, versions: [u64; 2]| {
            let mut stray = Stray { by_number: ByNid::default(), checkpoint };
            for (n, version) in (1..).zip(versions) {
                let mut node = NodeBlock::new_zeroed();
                (node.footer.nid, node.footer.ino) = (5000.into(), 5000.into());
                node.footer.checkpoint_version.set(version);
                stray.add(&scene.fs.media, BlockAddr(n), &node);
            }
            stray.find(Nid(5000), Nid(5000))
        };
        let (newest, checksum) = (|versions| newest_at(9, versions), 0xffff_0000 << 32);
        assert_eq!(newest([7 | checksum, 8 | 1 << 32]), Some(BlockAddr(2)));
        assert_eq!(newest([8 | 1 << 32, 7 | checksum]), Some(BlockAddr(1)));
        assert_eq!(newest([8, 7 | NO_CHAIN_LOW]), Some(BlockAddr(1)), "a checkpoint wrote it");
        for versions in [[8 | NO_CHAIN_LOW, 8 | checksum], [8 | checksum, 8 | NO_CHAIN_LOW]] {
            let by_checkpoint = 1 + u32::from(versions[1] & NO_CHAIN_LOW != 0);
            assert_eq!(newest(versions), Some(BlockAddr(by_checkpoint)), "it comes after the fsync");
        }
        // mkfs begins at any version of 31 bits.
        let (before, after) = (NO_CHAIN_LOW - 1, NO_CHAIN_LOW + 1);
        for versions in [[before, after], [before ^ NO_CHAIN_LOW, after], [before, after ^ NO_CHAIN_LOW]] {
            assert_eq!(newest_at(after + 1, versions), Some(BlockAddr(2)), "{versions:x?}");
        }
    }
}
