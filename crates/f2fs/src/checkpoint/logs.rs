//! State that only a writer needs: which copies of SIT blocks are valid, the SIT's journal, and the owners of
//! blocks in open segments.
//!
//! The pack has summaries of data, one block for each log or compacted. It has summaries of nodes only if an
//! unmount wrote it; otherwise they are in the footers of the nodes themselves.

use super::Checkpoint;
use crate::device::Device;
use crate::format::{
    BLOCK_BYTES, Block, JOURNAL_BYTES, NodeBlock, SEGMENT_BLOCKS, SIT_JOURNAL_ENTRIES, SUMMARY_OF_DATA,
    SUMMARY_OF_NODES, SitEntry, SitJournal, SummaryBlock, SummaryEntry, checkpoint_flag,
};
use crate::ids::Segno;
use crate::segments::{Logs, OpenLog};
use crate::superblock::Geometry;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Hot, warm and cold.
const LOGS_OF_A_KIND: usize = 3;
/// Bytes of a block that compacted summaries use.
const COMPACT_BYTES: usize = 4091;
/// `alloc_type` of a log that fills gaps of a segment.
const INTO_GAPS: u8 = 1;

impl Checkpoint {
    /// Reads the state.
    pub(crate) fn logs(&self, device: &Device, geometry: &Geometry) -> Result<Logs, String> {
        let sit_bitmap = self.sit_bitmap.clone();
        let head = &self.head;
        let segments = head.data_segment[..LOGS_OF_A_KIND].iter().chain(&head.node_segment[..LOGS_OF_A_KIND]);
        let offsets = head.data_offset[..LOGS_OF_A_KIND].iter().chain(&head.node_offset[..LOGS_OF_A_KIND]);
        let places =
            segments.map(|segment| Segno(segment.get())).zip(offsets.map(|next| u32::from(next.get())));
        let is_wrong =
            |(segment, next): &(Segno, u32)| segment.0 >= geometry.main_segments || *next >= SEGMENT_BLOCKS;
        if let Some((segment, next)) = places.clone().find(is_wrong) {
            return Err(format!("a log is said to be open at block {next} of segment {}", segment.0));
        }
        let (data, sit_changes) = self.data_summaries(device)?;
        let summaries = data.into_iter().chain(self.node_summaries(device, geometry)?);
        let open = places.zip(summaries).map(|((segment, next), summary)| OpenLog { segment, next, summary });
        Ok(Logs { sit_bitmap, sit_changes, open: open.collect() })
    }

    fn pack_block(&self, device: &Device, index: u32) -> Result<Box<Block>, String> {
        if index >= self.head.pack_blocks.get() {
            return Err(format!("block {index} of a pack of {} is asked for", self.head.pack_blocks));
        }
        device.block(self.start.plus(index)).map_err(|error| error.to_string())
    }

    /// Blocks of the pack from `index` on, one for each log.
    fn summaries_at(&self, device: &Device, index: u32) -> Result<Vec<Box<SummaryBlock>>, String> {
        let block = |n| self.pack_block(device, index.saturating_add(n));
        (0..LOGS_OF_A_KIND as u32).map(|n| block(n).map(|block| summary_of(&block))).collect()
    }

    /// Summaries of the data logs, and the SIT's journal.
    #[expect(clippy::type_complexity, reason = "two answers of one read")]
    fn data_summaries(
        &self,
        device: &Device,
    ) -> Result<(Vec<Box<SummaryBlock>>, Vec<(Segno, SitEntry)>), String> {
        let start = self.head.summaries_start.get();
        if self.has(checkpoint_flag::COMPACT_SUMMARIES) {
            let first = self.pack_block(device, start)?;
            let changes = sit_changes(&first[JOURNAL_BYTES..2 * JOURNAL_BYTES])?;
            return Ok((self.compacted(device, start)?, changes));
        }
        let logs = self.summaries_at(device, start)?;
        let changes = sit_changes(&logs[LOGS_OF_A_KIND - 1].journal)?;
        Ok((logs, changes))
    }

    /// Compacted summaries: seven bytes an entry, one log after the other; no entry crosses the end of a
    /// block.
    fn compacted(&self, device: &Device, start: u32) -> Result<Vec<Box<SummaryBlock>>, String> {
        let (mut index, mut block, mut at) = (start, self.pack_block(device, start)?, 2 * JOURNAL_BYTES);
        let mut logs = Vec::new();
        for log in 0..LOGS_OF_A_KIND {
            let mut summary = Box::new(SummaryBlock::new_zeroed());
            summary.kind = SUMMARY_OF_DATA;
            let gaps = self.head.alloc_type[log] == INTO_GAPS;
            let count =
                if gaps { SEGMENT_BLOCKS as usize } else { usize::from(self.head.data_offset[log].get()) };
            for entry in summary.entries.iter_mut().take(count) {
                if at + size_of::<SummaryEntry>() > COMPACT_BYTES {
                    index += 1;
                    (block, at) = (self.pack_block(device, index)?, 0);
                }
                let bytes = &block[at..at + size_of::<SummaryEntry>()];
                *entry = SummaryEntry::read_from_bytes(bytes).map_err(|error| error.to_string())?;
                at += size_of::<SummaryEntry>();
            }
            logs.push(summary);
        }
        Ok(logs)
    }

    fn node_summaries(&self, device: &Device, geometry: &Geometry) -> Result<Vec<Box<SummaryBlock>>, String> {
        if self.has(checkpoint_flag::UNMOUNTED | checkpoint_flag::FASTBOOT) {
            // They are stored before the tail.
            return self
                .summaries_at(device, self.head.pack_blocks.get().saturating_sub(1 + LOGS_OF_A_KIND as u32));
        }
        let mut logs = Vec::new();
        for log in 0..LOGS_OF_A_KIND {
            let segment = self.head.node_segment[log].get();
            let mut summary = Box::new(SummaryBlock::new_zeroed());
            summary.kind = SUMMARY_OF_NODES;
            // All of them are read: a log that filled gaps has live blocks anywhere. Entries of dead blocks
            // do not matter.
            let mut blocks = vec![0; BLOCK_BYTES * SEGMENT_BLOCKS as usize];
            let first = geometry.main.plus(segment.saturating_mul(SEGMENT_BLOCKS));
            device.read(first, 0, &mut blocks).map_err(|error| error.to_string())?;
            for (entry, block) in summary.entries.iter_mut().zip(blocks.chunks(BLOCK_BYTES)) {
                let node = NodeBlock::ref_from_bytes(block).map_err(|error| error.to_string())?;
                entry.nid = node.footer.nid;
            }
            logs.push(summary);
        }
        Ok(logs)
    }
}

fn summary_of(block: &Block) -> Box<SummaryBlock> {
    let mut summary = Box::new(SummaryBlock::new_zeroed());
    summary.as_mut_bytes().copy_from_slice(block);
    summary
}

fn sit_changes(bytes: &[u8]) -> Result<Vec<(Segno, SitEntry)>, String> {
    let journal = SitJournal::read_from_bytes(bytes).map_err(|error| error.to_string())?;
    let count = usize::from(journal.count.get());
    if count > SIT_JOURNAL_ENTRIES {
        return Err(format!("a journal of {count} segments where {SIT_JOURNAL_ENTRIES} fit"));
    }
    Ok(journal.changes[..count].iter().map(|change| (Segno(change.segno.get()), change.entry)).collect())
}
