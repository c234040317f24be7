//! What was fsynced after the last checkpoint: nodes in the log of direct nodes, each leading to the next, for as
//! long as they say that they were written after this very checkpoint. Linux takes them in when it mounts the image
//! for writing; a reader of the checkpoint alone should know that there is more.
//!
//! Source      F2FS paper (FAST '15) section 2.4.2.

use crate::checkpoint::Checkpoint;
use crate::device::Device;
use crate::format::{NodeBlock, SEGMENT_BLOCKS, checkpoint_flag, node_flag};
use crate::ids::{BlockAddr, Nid};
use crate::superblock::Geometry;
use std::collections::BTreeSet;
use zerocopy::FromBytes;

/// Which log of nodes it is.
const WARM_NODES: usize = 1;

/// Inodes of which something was fsynced after the checkpoint.
pub(crate) fn inodes(device: &Device, geometry: &Geometry, checkpoint: &Checkpoint) -> BTreeSet<Nid> {
    let head = &checkpoint.head;
    let (segment, offset) = (head.node_segment[WARM_NODES].get(), head.node_offset[WARM_NODES].get());
    let mut found = BTreeSet::new();
    if segment >= geometry.main_segments {
        return found;
    }
    let mut addr = geometry.main.plus(segment * SEGMENT_BLOCKS + u32::from(offset));
    let mut seen = BTreeSet::new();
    // A damaged chain may be a circle.
    while geometry.in_main(addr) && seen.insert(addr) {
        let node = device.block(addr).ok().and_then(|block| NodeBlock::read_from_bytes(&block[..]).ok());
        let Some(node) = node.filter(|node| is_later(checkpoint, node.footer.checkpoint_version.get()))
        else {
            break;
        };
        if node.footer.flag.get() & node_flag::FSYNC != 0 {
            found.insert(Nid(node.footer.ino.get()));
        }
        addr = BlockAddr(node.footer.next.get());
    }
    found
}

/// Was a node that says this written after the checkpoint?
fn is_later(checkpoint: &Checkpoint, said: u64) -> bool {
    let version = checkpoint.head.version.get();
    if checkpoint.has(checkpoint_flag::NO_CRC_RECOVERY) {
        return said as u32 == version as u32;
    }
    let crc = if checkpoint.has(checkpoint_flag::CRC_RECOVERY) { u64::from(checkpoint.crc) << 32 } else { 0 };
    said == version | crc
}
