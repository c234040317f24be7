//! The log page: a header line and 63 slots of one line each.
//!
//! | word | payload | guards against |
//! |------|---------|----------------|
//! | 0    | crc:32 (words 0 without it, 1 to 6) · kind:6 | a torn or foreign header |
//! | 1    | ino | a page of another file |
//! | 2    | generation of the inode | a page of an earlier file of that number |
//! | 3    | mount epoch:48 · lane:14 | records of an earlier use of the block: with word 4 it seeds every record's checksum |
//! | 4    | serial of the page among those of its lane and epoch | the same |
//! | 5    | chain number | a page linked into the wrong chain |
//! | 6    | era: which of the inode's log pages, over all its chains, in the order of their making | dropping a tombstone too early: see `upkeep::garbage` |
//! | 7    | pointer to the next page (see `pointer`), stored later, in place, not under the checksum | |

use super::fields::page as f;
use super::superblock::MOUNTS_MAX;
use super::word::{Line, Shape, all_written, crc, owner_seed, payload, shape, word};
use crate::ids::{BlockNo, InodeId};
use crate::planted::{Bug, planted};
use heddle_pmem::{LINE_BYTES, Pos};

/// Slots for records in a page; slot 0 is the header.
pub const SLOTS: u32 = 63;

/// Limit for eras: far more log pages than an inode will ever have, and far below the field's limit, so that
/// there is always a next era.
pub const ERAS_MAX: u64 = 1 << 56;

const KIND: u64 = 0x2a;

/// Position of a slot of the log page in `block`.
pub fn slot_pos(block: BlockNo, slot: u32) -> Pos {
    debug_assert!(slot <= SLOTS);
    block.pos().plus(u64::from(slot) * LINE_BYTES as u64)
}

/// Position of the pointer to the next page.
pub fn next_pos(block: BlockNo) -> Pos {
    block.pos().plus(56)
}

/// The contents of a header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PageHeader {
    /// The inode the page logs.
    pub owner: InodeId,
    /// Mount epoch in which it was written.
    pub epoch: u64,
    /// Lane that wrote it.
    pub lane: u16,
    /// Its number among that lane's pages.
    pub serial: u64,
    /// Number of the chain in the inode.
    pub chain: u32,
    /// Its number among the inode's log pages, over all its chains, in the order in which they were made. Of
    /// two pages of different chains, no record in the later one is older than the records of the earlier
    /// page's predecessor.
    pub era: u64,
}

impl PageHeader {
    /// Seed of the checksums of the records in this page.
    pub fn record_seed(&self, volume_seed: u32) -> u32 {
        if planted(Bug::StaleMark) {
            return owner_seed(volume_seed, self.owner);
        }
        crc(owner_seed(volume_seed, self.owner), &[self.epoch, u64::from(self.lane), self.serial])
    }

    /// The header line, its next pointer empty.
    pub fn encode(&self, volume_seed: u32) -> Line {
        let mut line = [
            f::KIND.put(KIND),
            f::INO.put(self.owner.ino.0),
            f::GENERATION.put(self.owner.generation),
            f::EPOCH.put(self.epoch) | f::LANE.put(u64::from(self.lane)),
            f::SERIAL.put(self.serial),
            f::CHAIN.put(u64::from(self.chain)),
            f::ERA.put(self.era),
            0,
        ]
        .map(word);
        line[0] |= u64::from(crc(volume_seed, &line[..7]));
        line[7] = 0;
        line
    }

    /// Reads a header line; `None` if it is not a whole header.
    pub fn decode(volume_seed: u32, line: &Line) -> Option<PageHeader> {
        let mut body = [0; 7];
        body.copy_from_slice(&line[..7]);
        let stored = f::CRC.get(line);
        body[0] = word(payload(body[0]) & !f::CRC.mask());
        if shape(&line[..7]) != Shape::Full
            || !all_written(&line[..7])
            || stored != u64::from(crc(volume_seed, &body))
            || f::KIND.get(line) != KIND
            || f::EPOCH.get(line) > MOUNTS_MAX
            || f::ERA.get(line) > ERAS_MAX
        {
            return None;
        }
        Some(PageHeader {
            owner: InodeId { ino: heddle_vfs::Ino(f::INO.get(line)), generation: f::GENERATION.get(line) },
            epoch: f::EPOCH.get(line),
            lane: f::LANE.get(line) as u16,
            serial: f::SERIAL.get(line),
            chain: f::CHAIN.get(line) as u32,
            era: f::ERA.get(line),
        })
    }
}
