//! Blocks that became live after the checkpoint, by an fsync: their segments are not given to logs before the next one, whatever the
//! checkpoint says of them.
//!
//! Crash order nothing is written over that the checkpoint or the chain of fsynced nodes needs, until a checkpoint makes both needless:
//!             logs leave the segments where such blocks lie, and the log of nodes the place where the chain begins. Summaries get
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
    /// No log is given these segments, and those that write there go on in others, the log of direct nodes in any case.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(crate) fn keep(&self, device: &Device, kept: &BTreeSet<Segno>) -> Result<()> {
        let mut state = self.state();
        for segno in kept {
            state.free.remove(*segno);
            // It is free after the next checkpoint, if nothing of it is live then.
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

    /// A block of data of a segment that is kept becomes live.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is live already, or lies among nodes.
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
            // Also one that holds nothing now: the checkpoint may have blocks there that this mount has taken away.
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
        Ok(())
    }

    /// The segment of a block, and which of its blocks it is.
    pub(crate) fn place_of(&self, addr: BlockAddr) -> (Segno, usize) {
        let at = addr.0.wrapping_sub(self.geometry.main.0);
        (Segno(at / SEGMENT_BLOCKS), (at % SEGMENT_BLOCKS) as usize)
    }
}
