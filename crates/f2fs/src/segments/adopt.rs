//! Blocks that became live after the checkpoint, by an fsync: their segments are not given to logs before the
//! next checkpoint, even if the present one has them as free.
//!
//! Crash order no block that the checkpoint or the chain of fsynced nodes needs is overwritten until a checkpoint makes both unnecessary.
//!             Logs leave segments with such blocks, and the log of nodes leaves the place where the chain begins. Summaries get
//!             entries of blocks that are not live on the media yet, and lose none.

use super::{DATA_LOGS, LOGS_IN_ORDER, Log, Segments};
use crate::device::Device;
use crate::format::{SEGMENT_BLOCKS, SUMMARY_OF_DATA, SummaryBlock, SummaryEntry, bit_msb, set_bit_msb};
use crate::ids::{BlockAddr, Segno};
use crate::planted::{Breach, breaks};
use heddle_vfs::{Error, Result};
use std::collections::BTreeSet;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

impl Segments {
    /// Keeps these segments from all logs. Logs that write there continue in others; the log of direct nodes
    /// does so in any case.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn keep(&self, device: &Device, kept: &BTreeSet<Segno>) -> Result<()> {
        let mut state = self.state();
        for segno in kept {
            state.free.remove(*segno);
            // The segment is free after the next checkpoint, if it has no live block then.
            state.changed.insert(*segno);
        }
        for log in LOGS_IN_ORDER {
            if log == Log::WarmNode && breaks(Breach::ChainWrittenOver) {
                continue;
            }
            if log == Log::WarmNode || kept.contains(&state.logs[log as usize].segment) {
                self.close(device, &mut state, log)?;
            }
        }
        Ok(())
    }

    /// Makes a data block in a kept segment live.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is live already, or in a segment of nodes.
    pub(crate) fn adopt(&self, device: &Device, addr: BlockAddr, entry: SummaryEntry) -> Result<()> {
        let (segno, block) = self.place_of(addr);
        let mut state = self.state();
        let state = &mut *state;
        let wrong = |what| Err(Error::Corrupt(format!("block {} was fsynced, and {what}", addr.0)));
        let Some(slot) = state.table.get_mut(segno.0 as usize) else { return wrong("is in no segment") };
        if bit_msb(&slot.live, block) {
            return wrong("belongs to something else");
        }
        let place = self.summary_place(segno);
        let mut summary = if slot.kind >= DATA_LOGS as u8 && slot.count == 0 {
            slot.kind = Log::WarmData as u8;
            SummaryBlock::new_zeroed()
        } else if slot.kind < DATA_LOGS as u8 {
            // Also a segment without live blocks now: the checkpoint may have blocks there that this mount
            // has freed.
            let bytes = device.block(place)?;
            SummaryBlock::read_from_bytes(&bytes[..]).map_err(|error| Error::Corrupt(error.to_string()))?
        } else {
            return wrong("lies among nodes");
        };
        summary.kind = SUMMARY_OF_DATA;
        summary.entries[block] = entry;
        device.write(place, summary.as_bytes())?;
        self.forget_summary(segno);
        slot.count += 1;
        set_bit_msb(&mut slot.live, block, true);
        state.changed.insert(segno);
        state.adopted.insert(addr);
        Ok(())
    }

    /// Returns true if the block is live because it was adopted, and no checkpoint has it yet.
    pub(crate) fn was_adopted(&self, addr: BlockAddr) -> bool {
        self.is_live(addr) && self.state().adopted.contains(&addr)
    }

    /// The segment of a block, and the block's index in it.
    pub(crate) fn place_of(&self, addr: BlockAddr) -> (Segno, usize) {
        let at = addr.0.wrapping_sub(self.geometry.main.0);
        (Segno(at / SEGMENT_BLOCKS), (at % SEGMENT_BLOCKS) as usize)
    }
}
