//! The valid checkpoint: the newer of the two packs that are whole.
//!
//! Invariants  C1  a pack counts only if its head and tail have correct checksums and the same version.
//!             C2  the version bitmaps have a bit for every block of SIT and NAT. They are in the head; if it has no room for both,
//!                 one is in the payload behind it (`bitmaps_at`).
//!             C3  the version of a new checkpoint differs from that of every block that the other pack may have kept: a new head never
//!                 matches an old tail.
//!             C4  its counts are possible for the main area, or no writer opens it: no read depends on them. Journals and orphan blocks
//!                 name only nodes of the table.
//! Source      Linux `Documentation/filesystems/f2fs.rst`, "Checkpoint".

pub(crate) mod commit;

mod logs;
#[cfg(test)]
mod tests;
pub(crate) mod write;

use crate::checksum::{SEED, checksum};
use crate::device::Device;
use crate::error::OpenError;
use crate::format::{
    BLOCK_BYTES, Block, CheckpointHead, JOURNAL_BYTES, NAT_JOURNAL_ENTRIES, NatEntry, NatJournal,
    ORPHANS_PER_BLOCK, OrphanBlock, SEGMENT_BLOCKS, SummaryBlock, checkpoint_flag,
};
use crate::ids::{BlockAddr, Nid};
use crate::inode::ROOT;
use crate::node_log::CheckpointId;
use crate::superblock::Geometry;
use heddle_vfs::Error;
use std::ops::Range;
use zerocopy::{FromBytes, IntoBytes};

/// Offset of the bitmaps in the head.
const BITMAPS_OFFSET_BYTES: usize = size_of::<CheckpointHead>();
/// Largest possible offset of a checksum.
const CHECKSUM_OFFSET_MAX: usize = BLOCK_BYTES - 4;
/// The bit of the low word of a node's version that a checkpoint inverts. fsck.f2fs may say later that the low
/// word alone counts (`NO_CRC_RECOVERY`).
pub(crate) const NO_CHAIN_LOW: u64 = 1 << 31;

/// A checkpoint.
pub(crate) struct Checkpoint {
    pub(crate) head: CheckpointHead,
    /// Its own checksum, which nodes written after it carry.
    pub(crate) crc: u32,
    /// First block of its pack.
    start: BlockAddr,
    /// The increment of the next one's version (C3): in a pack that is not whole, head or tail may have the
    /// version after this one.
    step: u64,
    /// Which copy of each block of the SIT is valid.
    sit_bitmap: Vec<u8>,
    /// Which copy of each block of the NAT is valid.
    pub(crate) nat_bitmap: Vec<u8>,
    /// Changes of the NAT that are not in the table yet.
    pub(crate) nat_changes: Vec<(Nid, NatEntry)>,
    /// Inodes without a name that were open.
    pub(crate) orphans: Vec<Nid>,
    /// Impossible counts (C4).
    pub(crate) contradiction: Option<String>,
}

/// A whole pack.
struct Pack {
    start: BlockAddr,
    head: CheckpointHead,
    crc: u32,
    block: Box<Block>,
}

impl Checkpoint {
    /// The version field of nodes written after it: its version, and its checksum if the checkpoint says so.
    pub(crate) fn node_version(&self) -> u64 {
        let crc = if self.has(checkpoint_flag::CRC_RECOVERY) { u64::from(self.crc) << 32 } else { 0 };
        self.head.version.get() | crc
    }

    /// The version field of nodes that the next checkpoint writes. Such nodes may fill a gap in the chain of
    /// nodes that were fsynced after this one, which ends at the gap: their version is that of no chain, neither as
    /// a whole nor by its low word.
    pub(crate) fn version_of_no_chain(&self) -> u64 {
        self.node_version() ^ (1 << 63 | NO_CHAIN_LOW)
    }

    /// Its identity.
    pub(crate) fn identity(&self) -> CheckpointId {
        CheckpointId { version: self.head.version.get(), crc: self.crc }
    }

    /// The state that an image's first checkpoint follows: no checkpoint, with this head.
    pub(crate) fn before_the_first(geometry: &Geometry, head: CheckpointHead) -> Checkpoint {
        Checkpoint {
            head,
            crc: 0,
            // Chosen so that the first checkpoint is written to the first pack.
            start: geometry.checkpoint.plus(SEGMENT_BLOCKS),
            step: 1,
            sit_bitmap: Vec::new(),
            nat_bitmap: Vec::new(),
            nat_changes: Vec::new(),
            orphans: Vec::new(),
            contradiction: None,
        }
    }

    /// Returns true if it has this flag.
    pub(crate) fn has(&self, flag: u32) -> bool {
        self.head.flags.get() & flag != 0
    }

    /// The blocks that [`Checkpoint::without_flags`] changes, in this order: its tail, and its head.
    pub(crate) fn blocks_with_flags(&self) -> [BlockAddr; 2] {
        [self.start.plus(self.head.pack_blocks.get() - 1), self.start]
    }

    /// Clears flags of it on the device, first in its tail, then in its head. At each instant both are whole
    /// and of one version.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::Corrupt`].
    pub(crate) fn without_flags(&self, device: &Device, flags: u32) -> Result<(), Error> {
        for addr in self.blocks_with_flags() {
            let (mut block, mut head, _) = half(device, addr).map_err(Error::Corrupt)?;
            head.flags.set(head.flags.get() & !flags);
            let fixed = head.as_bytes();
            block[..fixed.len()].copy_from_slice(fixed);
            seal(&mut block, head.checksum_offset.get() as usize);
            device.write(addr, &block[..])?;
            device.flush()?;
        }
        Ok(())
    }

    /// Reads the valid checkpoint.
    pub(crate) fn read(device: &Device, geometry: &Geometry) -> Result<Checkpoint, OpenError> {
        let damaged = |what: String| OpenError::Damaged { image: device.path().into(), what };
        let starts = [geometry.checkpoint, geometry.checkpoint.plus(SEGMENT_BLOCKS)];
        let packs = starts.map(|start| pack(device, start));
        let step = if packs.iter().all(Result::is_ok) { 1 } else { 2 };
        let newest = match packs {
            [Ok(first), Ok(second)] => {
                // Versions wrap around. f2fs-tools leave two packs of one version, and use the first.
                let ahead = second.head.version.get().wrapping_sub(first.head.version.get()) as i64;
                if ahead > 0 { second } else { first }
            }
            [Ok(only), Err(_)] | [Err(_), Ok(only)] => only,
            [Err(first), Err(second)] => {
                return Err(damaged(format!(
                    "no checkpoint is whole (the first: {first}; the second: {second})"
                )));
            }
        };
        newest.read_on(device, geometry, step).map_err(damaged)
    }
}

fn pack(device: &Device, start: BlockAddr) -> Result<Pack, String> {
    let (block, head, crc) = half(device, start)?;
    let blocks = head.pack_blocks.get();
    if !(3..=SEGMENT_BLOCKS).contains(&blocks) {
        return Err(format!("it is said to have {blocks} blocks"));
    }
    let (_, tail, _) = half(device, start.plus(blocks - 1)).map_err(|why| format!("its tail: {why}"))?;
    if tail.version != head.version {
        return Err(format!("head and tail are of checkpoints {} and {}", head.version, tail.version));
    }
    Ok(Pack { start, head, crc, block })
}

/// Checks a head or a tail by itself.
fn half(device: &Device, addr: BlockAddr) -> Result<(Box<Block>, CheckpointHead, u32), String> {
    let block = device.block(addr).map_err(|error| error.to_string())?;
    let (head, _) = CheckpointHead::read_from_prefix(&block[..]).map_err(|error| error.to_string())?;
    let at = head.checksum_offset.get() as usize;
    if !(BITMAPS_OFFSET_BYTES..=CHECKSUM_OFFSET_MAX).contains(&at) {
        return Err(format!("its checksum is said to be at byte {at}"));
    }
    let (stored, crc) = (word(&block[..], at), crc_of(&block, at));
    if crc != stored {
        return Err("its checksum is wrong".into());
    }
    Ok((block, head, crc))
}

/// Checksum of a head or tail; it is stored at this offset.
fn crc_of(block: &Block, at: usize) -> u32 {
    checksum(checksum(SEED, &block[..at]), &block[at + 4..])
}

/// Stores the checksum.
fn seal(block: &mut Block, at: usize) -> u32 {
    let crc = crc_of(block, at);
    block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    crc
}

fn word(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word))
}

/// Positions of the bitmaps of SIT and NAT, of these sizes, in the head and the payload blocks taken as one
/// piece; `None` if they do not fit.
fn bitmaps_at(head: &CheckpointHead, payload: u32, [sit, nat]: [usize; 2]) -> Option<[Range<usize>; 2]> {
    let (first, end) = (BITMAPS_OFFSET_BYTES, (1 + payload as usize) * BLOCK_BYTES);
    let is_large = head.flags.get() & checkpoint_flag::LARGE_NAT_BITMAP != 0;
    let (sit_start, nat_start, end) = match (is_large, payload) {
        // The checksum is before them, and the SIT's bitmap behind the NAT's.
        (true, _) => (first + 4 + nat, first + 4, end),
        (false, 0) => (first, first + sit, CHECKSUM_OFFSET_MAX),
        (false, _) if first + nat > CHECKSUM_OFFSET_MAX => return None,
        (false, _) => (BLOCK_BYTES, first, end),
    };
    let places = [sit_start..sit_start + sit, nat_start..nat_start + nat];
    places.iter().all(|place| place.end <= end).then_some(places)
}

impl Pack {
    fn read_on(self, device: &Device, geometry: &Geometry, step: u64) -> Result<Checkpoint, String> {
        let [sit_bitmap, nat_bitmap] = self.bitmaps(device, geometry)?;
        let contradiction = self.check_counts(geometry).err();
        let nat_changes = self.nat_changes(device, geometry)?;
        let orphans = self.orphans(device, geometry)?;
        let Pack { start, head, crc, .. } = self;
        Ok(Checkpoint { head, crc, start, step, sit_bitmap, nat_bitmap, nat_changes, orphans, contradiction })
    }

    fn has(&self, flag: u32) -> bool {
        self.head.flags.get() & flag != 0
    }

    /// Checks C4.
    fn check_counts(&self, geometry: &Geometry) -> Result<(), String> {
        let head = &self.head;
        let main = u64::from(geometry.main_segments) * u64::from(SEGMENT_BLOCKS);
        let (user, valid) = (head.blocks_user.get(), head.blocks_valid.get());
        let (nodes, inodes) = (u64::from(head.nodes_valid.get()), u64::from(head.inodes_valid.get()));
        if user > main || valid > main || nodes > valid || inodes > nodes {
            return Err(format!(
                "its checkpoint counts {valid} blocks, {nodes} nodes, {inodes} inodes, users may have {user} blocks, and there are {main}"
            ));
        }
        Ok(())
    }

    /// The bitmaps of SIT and NAT (C2).
    fn bitmaps(&self, device: &Device, geometry: &Geometry) -> Result<[Vec<u8>; 2], String> {
        let of_blocks = |segments: u32| (segments / 2 * SEGMENT_BLOCKS / 8) as usize;
        let (sit, nat) = (of_blocks(geometry.sit_segments), of_blocks(geometry.nat_segments));
        let said = (self.head.sit_bitmap_bytes.get() as usize, self.head.nat_bitmap_bytes.get() as usize);
        if said != (sit, nat) {
            return Err(format!("bitmaps of {said:?} bytes where the tables need {:?}", (sit, nat)));
        }
        let at = self.head.checksum_offset.get() as usize;
        if self.has(checkpoint_flag::LARGE_NAT_BITMAP) && at != BITMAPS_OFFSET_BYTES {
            return Err(format!(
                "its checksum is at byte {at} and not before its bitmaps, as f2fs-tools before 1.13 had it"
            ));
        }
        let places = bitmaps_at(&self.head, geometry.checkpoint_payload, [sit, nat])
            .ok_or_else(|| format!("bitmaps of {said:?} bytes that do not fit"))?;
        let mut bytes = self.block.to_vec();
        for index in 1..=geometry.checkpoint_payload {
            bytes.extend(&self.block(device, index)?[..]);
        }
        Ok(places.map(|place| bytes[place].to_vec()))
    }

    /// A block of the pack.
    fn block(&self, device: &Device, index: u32) -> Result<Box<Block>, String> {
        if index >= self.head.pack_blocks.get() {
            return Err(format!("block {index} of a pack of {} is asked for", self.head.pack_blocks));
        }
        device.block(self.start.plus(index)).map_err(|error| error.to_string())
    }

    /// The changes in the NAT's journal: in the summary of the hot data log, or at the start of compacted
    /// ones.
    fn nat_changes(&self, device: &Device, geometry: &Geometry) -> Result<Vec<(Nid, NatEntry)>, String> {
        let block = self.block(device, self.head.summaries_start.get())?;
        let at = match self.has(checkpoint_flag::COMPACT_SUMMARIES) {
            true => 0,
            false => std::mem::offset_of!(SummaryBlock, journal),
        };
        let bytes = &block[at..at + JOURNAL_BYTES];
        let journal = NatJournal::read_from_bytes(bytes).map_err(|error| error.to_string())?;
        let count = usize::from(journal.count.get());
        if count > NAT_JOURNAL_ENTRIES {
            return Err(format!("a journal of {count} changes where {NAT_JOURNAL_ENTRIES} fit"));
        }
        let changes = journal.changes[..count].iter().map(|change| (Nid(change.nid.get()), change.entry));
        changes
            .map(|(nid, entry)| match nid.0 {
                // A checkpoint will write the entry to its place in the table.
                number if number == 0 || number >= geometry.nids() => {
                    Err(format!("its journal has a change of node {number} of {}", geometry.nids()))
                }
                _ => Ok((nid, entry)),
            })
            .collect()
    }

    fn orphans(&self, device: &Device, geometry: &Geometry) -> Result<Vec<Nid>, String> {
        if !self.has(checkpoint_flag::ORPHANS) {
            return Ok(Vec::new());
        }
        let mut orphans = Vec::new();
        for index in 1 + geometry.checkpoint_payload..self.head.summaries_start.get() {
            let block = self.block(device, index)?;
            let found = OrphanBlock::read_from_bytes(&block[..]).map_err(|error| error.to_string())?;
            let count = found.entries.get() as usize;
            if count > ORPHANS_PER_BLOCK {
                return Err(format!("an orphan block of {count} inodes where {ORPHANS_PER_BLOCK} fit"));
            }
            for ino in &found.ino[..count] {
                let nid = Nid(ino.get());
                if nid <= ROOT || nid.0 >= geometry.nids() {
                    return Err(format!("an orphan block names inode {} of {}", nid.0, geometry.nids()));
                }
                orphans.push(nid);
            }
        }
        Ok(orphans)
    }
}
