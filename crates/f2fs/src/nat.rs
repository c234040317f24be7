//! Where a node is: the journal of the checkpoint, else the copy of the table's block that counts.
//!
//! The two copies of a block are in adjacent segments: blocks 0 to 511 of the table are at 0 to 511 or 512 to 1023, and so on.

use crate::device::Device;
use crate::format::{NAT_ENTRIES, NatBlock, NatEntry, SEGMENT_BLOCKS, bit_msb};
use crate::ids::{BlockAddr, Nid};
use crate::superblock::Geometry;
use heddle_vfs::{Error, Result};
use std::collections::HashMap;
use zerocopy::FromBytes;

/// The table, as of a checkpoint.
pub(crate) struct Nat {
    start: BlockAddr,
    nids: u32,
    bitmap: Vec<u8>,
    changes: HashMap<Nid, NatEntry>,
}

impl Nat {
    pub(crate) fn new(geometry: &Geometry, bitmap: Vec<u8>, changes: Vec<(Nid, NatEntry)>) -> Nat {
        Nat { start: geometry.nat, nids: geometry.nids(), bitmap, changes: changes.into_iter().collect() }
    }

    /// Takes changes in that are newer than the checkpoint.
    pub(crate) fn change(&mut self, newer: Vec<(Nid, NatEntry)>) {
        self.changes.extend(newer);
    }

    /// The entry of a node.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a number beyond the table.
    pub(crate) fn find(&self, device: &Device, nid: Nid) -> Result<NatEntry> {
        if let Some(changed) = self.changes.get(&nid) {
            return Ok(*changed);
        }
        if nid.0 >= self.nids {
            return Err(Error::Corrupt(format!("node {} of {} is asked for", nid.0, self.nids)));
        }
        let (block, entry) = (nid.0 / NAT_ENTRIES as u32, nid.0 as usize % NAT_ENTRIES);
        let bytes = device.block(self.place(block))?;
        let table =
            NatBlock::ref_from_bytes(&bytes[..]).map_err(|error| Error::Corrupt(error.to_string()))?;
        Ok(table.entries[entry])
    }

    /// Where the copy of the table's block `block` is that counts.
    fn place(&self, block: u32) -> BlockAddr {
        let (pair, within) = (block / SEGMENT_BLOCKS, block % SEGMENT_BLOCKS);
        let second = if bit_msb(&self.bitmap, block as usize) { SEGMENT_BLOCKS } else { 0 };
        self.start.plus(pair * 2 * SEGMENT_BLOCKS + second + within)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_of_a_block_are_a_segment_apart_and_pairs_follow_each_other() {
        let nat = Nat { start: BlockAddr(1000), nids: 0, bitmap: vec![0x40; 128], changes: HashMap::new() };
        // The bitmap says the second copy of every eighth block, from block 1 on.
        for (block, place) in [(0, 1000), (1, 1513), (2, 1002), (511, 1511), (512, 2024), (513, 2537)] {
            assert_eq!(nat.place(block), BlockAddr(place), "block {block}");
        }
    }
}
