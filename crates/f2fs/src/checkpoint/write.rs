//! Writes a checkpoint into the invalid pack, its tail last.
//!
//! Crash order everything that the checkpoint names is durable before its tail is written: nodes, data, NAT, SIT, summaries, and the
//!             pack's other blocks. One flush is enough for all of it. Until the tail is durable, head and tail of this pack have
//!             different versions (C3), and the other pack counts. Nothing that the other pack names was overwritten (G2 of `segments`,
//!             and the invalid copies of NAT and SIT). So the head may become durable before the blocks that it names.

use super::{Checkpoint, bitmaps_at, seal};
use crate::device::Device;
use crate::format::{
    BLOCK_BYTES, Block, ORPHANS_PER_BLOCK, OrphanBlock, SEGMENT_BLOCKS, SummaryBlock, checkpoint_flag,
};
use crate::ids::Nid;
use crate::node_log::CheckpointId;
use crate::planted::{Breach, breaks};
use crate::segments::{DATA_LOGS, LOGS, LOGS_IN_ORDER, Position, kind_of_summary};
use crate::space::Counts;
use crate::superblock::Geometry;
use heddle_vfs::{Error, Result};
use zerocopy::{FromZeros, IntoBytes};

/// The contents of a new checkpoint.
pub(crate) struct Contents<'a> {
    pub(crate) counts: Counts,
    pub(crate) positions: &'a [Position],
    pub(crate) summaries: &'a mut [Box<SummaryBlock>],
    pub(crate) segments_free: u32,
    pub(crate) next_free_nid: Nid,
    pub(crate) sit_bitmap: &'a [u8],
    pub(crate) nat_bitmap: &'a [u8],
    /// Inodes without a name that are open.
    pub(crate) orphans: &'a [Nid],
    /// True at an unmount: the checkpoint includes the summaries of nodes.
    pub(crate) unmounts: bool,
    pub(crate) elapsed_secs: u64,
    /// Called with the identity of the checkpoint before it is valid.
    pub(crate) announce: &'a dyn Fn(CheckpointId) -> Result<()>,
}

/// Writes the checkpoint that follows `last`.
pub(crate) fn write(
    device: &Device,
    geometry: &Geometry,
    last: &Checkpoint,
    mut new: Contents<'_>,
) -> Result<Checkpoint> {
    let first = geometry.checkpoint;
    let start = if last.start == first { first.plus(SEGMENT_BLOCKS) } else { first };
    let mut middle = orphan_blocks(new.orphans);
    let summaries_start = 1 + geometry.checkpoint_payload + middle.len() as u32;
    middle.extend(summaries(&mut new));
    let pack_blocks = geometry.checkpoint_payload + middle.len() as u32 + 2;
    if pack_blocks > SEGMENT_BLOCKS {
        return Err(Error::Io(format!(
            "a checkpoint of {pack_blocks} blocks, which does not fit into a segment"
        )));
    }
    let mut head = last.head.clone();
    head.version.set(head.version.get().wrapping_add(last.step));
    fill(&mut head, &new);
    (head.pack_blocks, head.summaries_start) = (pack_blocks.into(), summaries_start.into());
    let (blocks, crc) = sealed(&head, geometry, &new)?;
    for (n, block) in blocks.iter().chain(&middle).enumerate() {
        device.write(start.plus(n as u32), &block[..])?;
    }
    if !breaks(Breach::FlushForgotten) {
        device.flush()?;
    }
    (new.announce)(CheckpointId { version: head.version.get(), crc })?;
    device.write(start.plus(pack_blocks - 1), &blocks[0][..])?;
    device.flush()?;
    Ok(Checkpoint {
        head,
        crc,
        start,
        step: 1,
        sit_bitmap: Vec::new(),
        nat_bitmap: Vec::new(),
        nat_changes: Vec::new(),
        orphans: new.orphans.to_vec(),
        contradiction: None,
    })
}

/// Most inodes without a name for which a pack has room, beside head, tail, payload and summaries.
pub(crate) fn orphans_max(geometry: &Geometry) -> usize {
    let others = 2 + LOGS + geometry.checkpoint_payload as usize;
    (SEGMENT_BLOCKS as usize).saturating_sub(others) * ORPHANS_PER_BLOCK
}

fn padded(bytes: &[u8]) -> Box<Block> {
    let mut block = Box::new([0; BLOCK_BYTES]);
    block[..bytes.len()].copy_from_slice(bytes);
    block
}

fn orphan_blocks(orphans: &[Nid]) -> Vec<Box<Block>> {
    let blocks = orphans.len().div_ceil(ORPHANS_PER_BLOCK);
    let mut all = Vec::new();
    for (n, piece) in orphans.chunks(ORPHANS_PER_BLOCK).enumerate() {
        let mut block = OrphanBlock::new_zeroed();
        for (slot, nid) in block.ino.iter_mut().zip(piece) {
            slot.set(nid.0);
        }
        (block.index, block.blocks) = ((n as u16 + 1).into(), (blocks as u16).into());
        block.entries.set(piece.len() as u32);
        all.push(padded(block.as_bytes()));
    }
    all
}

/// The summaries of data always; those of nodes only at an unmount, since their footers have the same
/// contents.
fn summaries(new: &mut Contents<'_>) -> Vec<Box<Block>> {
    let count = if new.unmounts { LOGS } else { DATA_LOGS };
    let mut all = Vec::new();
    for (log, summary) in LOGS_IN_ORDER.into_iter().zip(new.summaries.iter_mut()).take(count) {
        // Journals are empty: all changes are in the tables.
        summary.journal.fill(0);
        summary.kind = kind_of_summary(log);
        all.push(padded(summary.as_bytes()));
    }
    all
}

fn fill(head: &mut crate::format::CheckpointHead, new: &Contents<'_>) {
    head.blocks_valid.set(new.counts.blocks);
    head.nodes_valid.set(new.counts.nodes as u32);
    head.inodes_valid.set(new.counts.inodes as u32);
    head.segments_free.set(new.segments_free);
    head.next_free_nid.set(new.next_free_nid.0);
    head.elapsed_secs.set(head.elapsed_secs.get().wrapping_add(new.elapsed_secs));
    for (n, position) in new.positions[..DATA_LOGS].iter().enumerate() {
        head.data_segment[n].set(position.segment.0);
        head.data_offset[n].set(position.next as u16);
    }
    for (n, position) in new.positions[DATA_LOGS..].iter().enumerate() {
        head.node_segment[n].set(position.segment.0);
        head.node_offset[n].set(position.next as u16);
    }
    head.alloc_type.fill(0);
    let when = |is: bool, flag: u32| if is { flag } else { 0 };
    head.flags.set(
        (head.flags.get() & (checkpoint_flag::LARGE_NAT_BITMAP | checkpoint_flag::QUOTA_NEEDS_FSCK))
            | checkpoint_flag::CRC_RECOVERY
            | when(new.unmounts, checkpoint_flag::UNMOUNTED)
            | when(!new.orphans.is_empty(), checkpoint_flag::ORPHANS),
    );
}

/// The head, which is also the tail, the payload behind it, and the checksum of the head.
fn sealed(
    head: &crate::format::CheckpointHead,
    geometry: &Geometry,
    new: &Contents<'_>,
) -> Result<(Vec<Box<Block>>, u32)> {
    let bitmaps = [new.sit_bitmap, new.nat_bitmap];
    let places = bitmaps_at(head, geometry.checkpoint_payload, bitmaps.map(<[u8]>::len))
        .ok_or_else(|| Error::Io("the bitmaps of a checkpoint do not fit into it".into()))?;
    let mut bytes = vec![0; (1 + geometry.checkpoint_payload as usize) * BLOCK_BYTES];
    bytes[..size_of_val(head)].copy_from_slice(head.as_bytes());
    for (place, bitmap) in places.into_iter().zip(bitmaps) {
        bytes[place].copy_from_slice(bitmap);
    }
    let mut blocks: Vec<Box<Block>> = bytes.chunks(BLOCK_BYTES).map(padded).collect();
    let crc = seal(&mut blocks[0], head.checksum_offset.get() as usize);
    Ok((blocks, crc))
}
