//! The owner of a block, from the summary of its segment: in memory for open segments, otherwise read and
//! cached.

use super::Segments;
use crate::device::Device;
use crate::format::{SummaryBlock, SummaryEntry, bit_msb};
use crate::ids::{BlockAddr, Segno};
use crate::planted::{Breach, breaks};
use heddle_vfs::{Error, Result};
use std::collections::HashMap;
use std::sync::PoisonError;
use zerocopy::FromBytes;

/// Number of cached summaries: 4 MiB, for segments of 2 GiB.
const KEPT_MAX: usize = 1024;

/// Cached summaries of segments that are not open.
pub(super) type Summaries = HashMap<Segno, Box<SummaryBlock>>;

impl Segments {
    /// Returns true if the block is in use.
    pub(crate) fn is_live(&self, addr: BlockAddr) -> bool {
        let (segno, block) = self.place_of(addr);
        self.state().table.get(segno.0 as usize).is_some_and(|segment| bit_msb(&segment.live, block))
    }

    /// Frees the old block of a node, if there is one. A damaged node table may have named a block that is
    /// not in use: then it is left alone.
    pub(crate) fn release_node(&self, addr: BlockAddr) -> Result<()> {
        let is_live = || self.is_live(addr) || breaks(Breach::DamageEndsAll);
        if addr.is_block() && is_live() { self.release(addr) } else { Ok(()) }
    }

    /// Number of live blocks in segments of nodes.
    pub(crate) fn live_nodes(&self) -> u64 {
        let state = self.state();
        let of_nodes = state.table.iter().filter(|segment| segment.kind >= super::DATA_LOGS as u8);
        of_nodes.map(|segment| u64::from(segment.count)).sum()
    }

    /// The owner of a live block; true: it is a node, by the segment's kind.
    pub(crate) fn summary_entry(&self, device: &Device, addr: BlockAddr) -> Result<(bool, SummaryEntry)> {
        let (segno, block) = self.place_of(addr);
        let state = self.state();
        let out_of = || Error::Corrupt(format!("block {} is in no segment", addr.0));
        let is_node = state.table.get(segno.0 as usize).ok_or_else(out_of)?.kind >= super::DATA_LOGS as u8;
        if let Some(open) = state.logs.iter().find(|log| log.segment == segno) {
            return Ok((is_node, open.summary.entries[block]));
        }
        // A segment with a live block is not opened, so its summary does not change.
        drop(state);
        let mut kept = self.summaries.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(summary) = kept.get(&segno) {
            return Ok((is_node, summary.entries[block]));
        }
        let bytes = device.block(self.summary_place(segno))?;
        let summary =
            SummaryBlock::read_from_bytes(&bytes[..]).map_err(|error| Error::Corrupt(error.to_string()))?;
        let entry = summary.entries[block];
        if kept.len() >= KEPT_MAX {
            kept.clear();
        }
        kept.insert(segno, Box::new(summary));
        Ok((is_node, entry))
    }

    /// Drops a cached summary, because the segment gets another one.
    pub(super) fn forget_summary(&self, segno: Segno) {
        self.summaries.lock().unwrap_or_else(PoisonError::into_inner).remove(&segno);
    }
}
