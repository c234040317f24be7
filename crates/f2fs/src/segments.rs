//! The main area: live blocks, the write position of each log, and free segments.
//!
//! State       one mutex over all of it (Linux' `sentry_lock`): a table of segments, six open ones with their summaries. Blocks are
//!             added at the end of a log, never into gaps.
//! Invariants  G1  a block is live from its allocation to its release; the count of a segment is the number of its bits.
//!             G2  a segment is given to a log only if no block of it is live, in memory and in the last checkpoint. So all blocks of the
//!                 checkpoint stay intact until the next one is valid.
//!             G3  a log always has a block left: it takes its next segment when it fills the present one.
//!             G4  the segments of a section hold only data, or only nodes: Linux cleans whole sections, and stops at a mixed one.
//! Crash order the summary of a full segment is written when the segment is closed; it counts only with the checkpoint that makes its
//!             blocks live. The SIT is written to the invalid copies.
//! Source      F2FS paper (FAST '15) sections 2.3 and 2.4.

pub(crate) mod room;

mod adopt;
mod summaries;
#[cfg(test)]
pub(crate) mod tests;

use crate::device::Device;
use crate::format::{
    SEGMENT_BLOCKS, SIT_COUNT_BITS, SIT_ENTRIES, SUMMARY_OF_DATA, SUMMARY_OF_NODES, SitBlock, SitEntry,
    SummaryBlock, SummaryEntry, bit_msb, set_bit_msb,
};
use crate::ids::{BlockAddr, Nid, Segno};
use crate::steps;
use crate::superblock::Geometry;
use heddle_vfs::{Error, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, MutexGuard, PoisonError};
use summaries::Summaries;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The log for a block, by how soon the block will change; the numbers are those of the media.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Log {
    /// Directory entries.
    HotData = 0,
    /// Files.
    WarmData = 1,
    /// Blocks moved by cleaning.
    ColdData = 2,
    /// Inodes and nodes of directories.
    HotNode = 3,
    /// Inodes and direct nodes of files.
    WarmNode = 4,
    /// Nodes of node numbers.
    ColdNode = 5,
}

/// Number of logs.
pub(crate) const LOGS: usize = 6;
/// Number of data logs.
pub(crate) const DATA_LOGS: usize = 3;

/// All logs, in the order of the media.
pub(crate) const LOGS_IN_ORDER: [Log; LOGS] =
    [Log::HotData, Log::WarmData, Log::ColdData, Log::HotNode, Log::WarmNode, Log::ColdNode];

/// An open segment.
pub(crate) struct OpenLog {
    pub(crate) segment: Segno,
    /// Index of the next block.
    pub(crate) next: u32,
    pub(crate) summary: Box<SummaryBlock>,
}

/// The checkpoint's state of the main area.
pub(crate) struct Logs {
    pub(crate) sit_bitmap: Vec<u8>,
    pub(crate) sit_changes: Vec<(Segno, SitEntry)>,
    /// Hot, warm and cold data, then nodes.
    pub(crate) open: Vec<OpenLog>,
}

/// A segment in memory.
#[derive(Clone)]
struct Segment {
    kind: u8,
    count: u16,
    live: [u8; 64],
    mtime: u64,
}

struct State {
    table: Vec<Segment>,
    logs: Vec<OpenLog>,
    free: Free,
    /// Segments changed since the last checkpoint.
    changed: BTreeSet<Segno>,
    bitmap: Vec<u8>,
    /// Blocks that recovery made live since the last checkpoint.
    adopted: BTreeSet<BlockAddr>,
    /// Segments that must not be cleaned, and the damage that is the reason, if any is.
    left_out: BTreeMap<Segno, Option<String>>,
}

/// Free segments, and the sections that consist only of free segments.
struct Free {
    all: BTreeSet<Segno>,
    per_section: u32,
    whole_sections: usize,
}

impl Free {
    fn new(per_section: u32) -> Free {
        Free { all: BTreeSet::new(), per_section, whole_sections: 0 }
    }

    fn in_whole_sections(&self) -> usize {
        self.whole_sections * self.per_section as usize
    }

    fn section_of(&self, segno: Segno) -> std::ops::Range<u32> {
        let first = segno.0 / self.per_section * self.per_section;
        first..first + self.per_section
    }

    fn first_of(&self, segno: Segno) -> Option<Segno> {
        let section = self.section_of(segno);
        self.all.range(Segno(section.start)..Segno(section.end)).next().copied()
    }

    fn is_whole(&self, segno: Segno) -> bool {
        let section = self.section_of(segno);
        self.all.range(Segno(section.start)..Segno(section.end)).count() == self.per_section as usize
    }

    /// Adds a segment. Returns false if it was free already.
    fn insert(&mut self, segno: Segno) -> bool {
        let is_new = self.all.insert(segno);
        self.whole_sections += usize::from(is_new && self.is_whole(segno));
        is_new
    }

    fn remove(&mut self, segno: Segno) {
        self.whole_sections -= usize::from(self.is_whole(segno));
        self.all.remove(&segno);
    }
}

/// The segments of the main area.
pub(crate) struct Segments {
    geometry: Geometry,
    state: Mutex<State>,
    summaries: Mutex<Summaries>,
}

/// Contiguous blocks of a log, live from now on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Run {
    pub(crate) first: BlockAddr,
    /// Number of blocks, at least one.
    pub(crate) blocks: usize,
    /// The log's next block.
    pub(crate) behind: BlockAddr,
}

/// A log's write position, for the head of a checkpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Position {
    pub(crate) segment: Segno,
    pub(crate) next: u32,
}

impl Segments {
    /// Reads the table of a checkpoint.
    pub(crate) fn read(
        device: &Device,
        geometry: &Geometry,
        logs: Logs,
    ) -> std::result::Result<Segments, String> {
        let mut table = Vec::with_capacity(geometry.main_segments as usize);
        for block in 0..geometry.main_segments.div_ceil(SIT_ENTRIES as u32) {
            let bytes =
                device.block(place(geometry, &logs.sit_bitmap, block, false)).map_err(|e| e.to_string())?;
            let entries = SitBlock::ref_from_bytes(&bytes[..]).map_err(|error| error.to_string())?;
            table.extend(entries.entries.iter().map(segment_of));
        }
        table.truncate(geometry.main_segments as usize);
        for (segno, entry) in &logs.sit_changes {
            let slot =
                table.get_mut(segno.0 as usize).ok_or_else(|| format!("a journal of segment {}", segno.0))?;
            *slot = segment_of(entry);
        }
        for (n, segment) in table.iter().enumerate() {
            let live: u32 = segment.live.iter().map(|byte| byte.count_ones()).sum();
            if live != u32::from(segment.count) {
                return Err(format!("segment {n} counts {} live blocks of {live}", segment.count));
            }
        }
        let open: BTreeSet<Segno> = logs.open.iter().map(|log| log.segment).collect();
        if open.len() != LOGS {
            return Err("two logs share a segment".into());
        }
        let empty = |(n, segment): (usize, &Segment)| (segment.count == 0).then_some(Segno(n as u32));
        let mut free = Free::new(geometry.segments_per_section);
        let all = table.iter().enumerate().filter_map(empty).filter(|segno| !open.contains(segno));
        all.for_each(|segno| _ = free.insert(segno));
        // Changes from the journal are in no block of the table yet, and the next checkpoint has an empty
        // journal.
        let changed = logs.sit_changes.iter().map(|(segno, _)| *segno).collect();
        let state = State {
            table,
            logs: logs.open,
            free,
            changed,
            bitmap: logs.sit_bitmap,
            adopted: BTreeSet::new(),
            left_out: BTreeMap::new(),
        };
        Ok(Segments { geometry: geometry.clone(), state: Mutex::new(state), summaries: Mutex::default() })
    }

    /// Linux fills gaps when few segments are free; here a log writes to its end. A log with live blocks
    /// behind its position takes another segment.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there is none.
    pub(crate) fn leave_gaps(&self, device: &Device) -> Result<()> {
        let mut state = self.state();
        for log in LOGS_IN_ORDER {
            let open = &state.logs[log as usize];
            let live = &state.table[open.segment.0 as usize].live;
            if (open.next..SEGMENT_BLOCKS).any(|block| bit_msb(live, block as usize)) {
                self.close(device, &mut state, log)?;
            }
        }
        Ok(())
    }

    /// Closes the open segment; the log continues in a free one.
    fn close(&self, device: &Device, state: &mut State, log: Log) -> Result<()> {
        // G3.
        let next = self.next_of(state, log).ok_or(Error::NoSpace)?;
        let open = &mut state.logs[log as usize];
        open.summary.kind = kind_of_summary(log);
        device.write(self.summary_place(open.segment), open.summary.as_bytes())?;
        self.forget_summary(open.segment);
        state.free.remove(next);
        state.changed.insert(open.segment);
        *open = OpenLog { segment: next, next: 0, summary: Box::new(SummaryBlock::new_zeroed()) };
        state.table[next.0 as usize].kind = log as u8;
        state.changed.insert(next);
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of segments that any log can take: those in wholly free sections.
    pub(crate) fn free(&self) -> usize {
        self.state().free.in_whole_sections()
    }

    /// The next segment of a log (G4): in its section, in one with segments of its kind only, or in a free
    /// one.
    fn next_of(&self, state: &State, log: Log) -> Option<Segno> {
        let free = &state.free;
        if free.per_section == 1 {
            return free.all.first().copied();
        }
        let are_nodes = log as usize >= DATA_LOGS;
        let own = free.first_of(state.logs[log as usize].segment);
        let fits = |segno: Segno| {
            let mut used = free.section_of(segno).filter(|n| !free.all.contains(&Segno(*n)));
            used.all(|n| (state.table[n as usize].kind >= DATA_LOGS as u8) == are_nodes)
        };
        let begun = || free.all.iter().copied().find(|segno| !free.is_whole(*segno) && fits(*segno));
        let whole = || free.all.iter().copied().find(|segno| free.is_whole(*segno));
        // An image with mixed sections may have no other segment left.
        own.filter(|segno| fits(*segno)).or_else(begun).or_else(whole).or_else(|| free.all.first().copied())
    }

    /// The next blocks of a log: as many of those requested as fit its segment. `entries`: their owners.
    ///
    /// # Errors
    /// [`Error::NoSpace`], with nothing taken, if the log fills its segment and none is free: callers ensure
    /// that some are.
    pub(crate) fn allocate(
        &self,
        device: &Device,
        log: Log,
        entries: impl ExactSizeIterator<Item = SummaryEntry>,
    ) -> Result<Run> {
        steps::take();
        let mut state = self.state();
        let state = &mut *state;
        let open = &mut state.logs[log as usize];
        let (segment, first) = (open.segment, open.next as usize);
        let blocks = entries.len().min(SEGMENT_BLOCKS as usize - first);
        open.summary.entries[first..first + blocks]
            .iter_mut()
            .zip(entries)
            .for_each(|(slot, entry)| *slot = entry);
        if first + blocks == SEGMENT_BLOCKS as usize {
            self.close(device, state, log)?;
        } else {
            open.next += blocks as u32;
        }
        let open = &state.logs[log as usize];
        let behind = address(&self.geometry, open.segment, open.next);
        let slot = &mut state.table[segment.0 as usize];
        (slot.kind, slot.mtime) = (log as u8, now_secs());
        slot.count += blocks as u16;
        (first..first + blocks).for_each(|block| set_bit_msb(&mut slot.live, block, true));
        state.changed.insert(segment);
        Ok(Run { first: address(&self.geometry, segment, first as u32), blocks, behind })
    }

    /// Frees a block. It can be reused only after a checkpoint (G2).
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it was not live.
    pub(crate) fn release(&self, addr: BlockAddr) -> Result<()> {
        let (segno, block) = self.place_of(addr);
        let mut state = self.state();
        match state.table.get_mut(segno.0 as usize) {
            Some(slot) if bit_msb(&slot.live, block) => {
                steps::take();
                slot.count -= 1;
                slot.mtime = now_secs();
                set_bit_msb(&mut slot.live, block, false);
                state.changed.insert(segno);
                Ok(())
            }
            _ => Err(Error::Corrupt(format!(
                "block {} is freed, and the segment table says it is free",
                addr.0
            ))),
        }
    }

    /// Writes the changes of the table to the invalid copies. Returns the bitmap that makes these copies
    /// valid.
    pub(crate) fn write(&self, device: &Device) -> Result<Vec<u8>> {
        let mut state = self.state();
        let blocks: BTreeSet<u32> = state.changed.iter().map(|segno| segno.0 / SIT_ENTRIES as u32).collect();
        for block in blocks {
            let mut out = SitBlock::new_zeroed();
            let first = block as usize * SIT_ENTRIES;
            for (entry, segment) in out.entries.iter_mut().zip(&state.table[first..]) {
                *entry = entry_of(segment);
            }
            device.write(place(&self.geometry, &state.bitmap, block, true), out.as_bytes())?;
            let other = !bit_msb(&state.bitmap, block as usize);
            set_bit_msb(&mut state.bitmap, block as usize, other);
        }
        Ok(state.bitmap.clone())
    }

    /// Called when the checkpoint is valid: blocks that it does not name can be reused. Returns the segments
    /// that were not free before, in runs.
    pub(crate) fn checkpointed(&self) -> Vec<(BlockAddr, u32)> {
        let mut state = self.state();
        let state = &mut *state;
        state.adopted.clear();
        let mut freed = std::mem::take(&mut state.changed);
        freed.retain(|segno| {
            let empty = state.table[segno.0 as usize].count == 0;
            empty && state.logs.iter().all(|log| log.segment != *segno) && state.free.insert(*segno)
        });
        let freed: Vec<Segno> = freed.into_iter().collect();
        let runs = freed.chunk_by(|one, next| one.0 + 1 == next.0);
        runs.map(|run| (address(&self.geometry, run[0], 0), run.len() as u32 * SEGMENT_BLOCKS)).collect()
    }

    /// The logs for a checkpoint: their positions, their summaries, and the number of free segments.
    pub(crate) fn positions(&self) -> (Vec<Position>, Vec<Box<SummaryBlock>>, u32) {
        let state = self.state();
        let positions =
            state.logs.iter().map(|log| Position { segment: log.segment, next: log.next }).collect();
        let summaries = state.logs.iter().map(|log| log.summary.clone()).collect();
        let is_open = |segno: usize| state.logs.iter().any(|log| log.segment.0 as usize == segno);
        let empty =
            state.table.iter().enumerate().filter(|(n, segment)| segment.count == 0 && !is_open(*n)).count();
        (positions, summaries, empty as u32)
    }

    /// Excludes a segment from cleaning, perhaps because of damage.
    pub(crate) fn leave_out(&self, segno: Segno, damage: Option<String>) {
        self.state().left_out.insert(segno, damage);
    }

    /// Returns true if it is a live block of a segment of nodes.
    pub(crate) fn is_live_node(&self, addr: BlockAddr) -> bool {
        let (segno, block) = self.place_of(addr);
        let state = self.state();
        let segment = state.table.get(segno.0 as usize);
        segment.is_some_and(|segment| segment.kind >= DATA_LOGS as u8 && bit_msb(&segment.live, block))
    }

    /// For each segment in use, in order: true if it holds nodes.
    #[cfg(feature = "testkit")]
    pub(crate) fn kinds(&self) -> Vec<Option<bool>> {
        let state = self.state();
        let used = |(n, segment): (usize, &Segment)| {
            let is_open = state.logs.iter().any(|log| log.segment.0 as usize == n);
            (segment.count > 0 || is_open).then_some(segment.kind >= DATA_LOGS as u8)
        };
        state.table.iter().enumerate().map(used).collect()
    }

    /// Segments excluded from cleaning because of damage.
    pub(crate) fn left_out(&self) -> Vec<(Segno, String)> {
        let state = self.state();
        state.left_out.iter().filter_map(|(segno, damage)| Some((*segno, damage.clone()?))).collect()
    }

    /// The live blocks of a closed segment and their owners; true: they are nodes.
    pub(crate) fn contents(
        &self,
        device: &Device,
        segno: Segno,
    ) -> Result<(bool, BTreeMap<BlockAddr, SummaryEntry>)> {
        let bytes = device.block(self.summary_place(segno))?;
        let summary =
            SummaryBlock::ref_from_bytes(&bytes[..]).map_err(|error| Error::Corrupt(error.to_string()))?;
        let state = self.state();
        let segment = &state.table[segno.0 as usize];
        let live = (0..SEGMENT_BLOCKS).filter(|block| bit_msb(&segment.live, *block as usize));
        let found = live.map(|n| (address(&self.geometry, segno, n), summary.entries[n as usize])).collect();
        Ok((segment.kind >= DATA_LOGS as u8, found))
    }

    fn summary_place(&self, segno: Segno) -> BlockAddr {
        self.geometry.ssa.plus(segno.0)
    }
}

/// The summary entry of a node's block.
pub(crate) fn of_node(nid: Nid) -> SummaryEntry {
    SummaryEntry { nid: U32::new(nid.0), version: 0, slot: U16::new(0) }
}

pub(crate) fn kind_of_summary(log: Log) -> u8 {
    if (log as usize) < DATA_LOGS { SUMMARY_OF_DATA } else { SUMMARY_OF_NODES }
}

fn address(geometry: &Geometry, segment: Segno, block: u32) -> BlockAddr {
    geometry.main.plus(segment.0 * SEGMENT_BLOCKS + block)
}

/// Position of a block of the table: the valid copy, or the other one.
fn place(geometry: &Geometry, bitmap: &[u8], block: u32, other: bool) -> BlockAddr {
    let half = geometry.sit_segments / 2 * SEGMENT_BLOCKS;
    let second = bit_msb(bitmap, block as usize) != other;
    geometry.sit.plus(block + if second { half } else { 0 })
}

fn segment_of(entry: &SitEntry) -> Segment {
    let word = entry.blocks.get();
    let (kind, count) = ((word >> SIT_COUNT_BITS) as u8, word & ((1 << SIT_COUNT_BITS) - 1));
    Segment { kind, count, live: entry.valid, mtime: entry.mtime.get() }
}

fn entry_of(segment: &Segment) -> SitEntry {
    let blocks = U16::new(u16::from(segment.kind) << SIT_COUNT_BITS | segment.count);
    SitEntry { blocks, valid: segment.live, mtime: U64::new(segment.mtime) }
}

fn now_secs() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
