//! The inode slot: 128 bytes, two lines; 32 slots in a chunk, which is one block.
//!
//! Line 0 is written once, when the inode is made, and never changes: later attributes are records in the
//! inode's log.
//!
//! | word | payload | guards against |
//! |------|---------|----------------|
//! | 0 | crc:32 · kind:4 · perm:12 | a torn or foreign slot |
//! | 1 | ino | a slot written to the wrong place |
//! | 2 | generation | a name that meant an earlier inode |
//! | 3 | uid:32 | |
//! | 4 | gid:32 | |
//! | 5 | rdev:32 | |
//! | 6 | creation time in ns | |
//! | 7 | 0 | |
//!
//! Line 1 holds pointers (see `pointer`), each stored in place when its target is durable. Words 0 to 5 are
//! heads of chains, word 6 is the block with further heads, word 7 the tail (variant `nova`).

use super::fields::inode as f;
use super::word::{Line, Shape, all_written, crc, payload, shape, time_of, time_payload, word};
use crate::ids::InodeId;
use heddle_vfs::{FileKind, Ino, Time};

/// Bytes of a slot.
pub const INODE_BYTES: u64 = 128;
/// Inodes of a chunk (under loom, where each atomic is an object, as many as models need).
pub const CHUNK_INODES: u64 = if cfg!(loom) { 3 } else { 4096 / INODE_BYTES };
/// Heads of chains in the slot itself.
pub const HEADS_INLINE: u32 = 6;
/// Heads of chains in the block of further heads.
pub const HEADS_IN_BLOCK: u32 = 512;
/// Word of line 1 that points to the block of further heads.
pub const HEAD_BLOCK_WORD: u64 = 6;
/// Word of line 1 that holds the tail.
pub const TAIL_WORD: u64 = 7;

/// Line 0 of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InodeBase {
    /// Number and generation.
    pub id: InodeId,
    /// Kind.
    pub kind: FileKind,
    /// Permission bits at creation.
    pub perm: u16,
    /// Owner at creation.
    pub uid: u32,
    /// Group at creation.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// Time of creation.
    pub crtime: Time,
}

/// The contents of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoundInode {
    /// Never used or freed.
    Blank,
    /// Half written: free, unless a name leads to it.
    Torn,
    /// Written and damaged: free, unless a name leads to it.
    Damaged,
    /// An inode.
    Whole(InodeBase),
}

impl InodeBase {
    /// Line 0.
    pub fn encode(&self, volume_seed: u32) -> Line {
        let mut line = [
            f::KIND.put(self.kind as u64) | f::PERM.put(u64::from(self.perm)),
            f::INO.put(self.id.ino.0),
            f::GENERATION.put(self.id.generation),
            f::UID.put(u64::from(self.uid)),
            f::GID.put(u64::from(self.gid)),
            f::RDEV.put(u64::from(self.rdev)),
            f::CRTIME.put(time_payload(self.crtime)),
            0,
        ]
        .map(word);
        line[0] |= u64::from(crc(volume_seed, &line));
        line
    }

    /// The inode number that this line contains; [`InodeBase::decode`] verifies it.
    pub fn number_said(line: &Line) -> Ino {
        Ino(f::INO.get(line))
    }

    /// Reads line 0 of the slot of inode `ino`.
    pub fn decode(volume_seed: u32, ino: Ino, line: &Line) -> FoundInode {
        match shape(line) {
            Shape::Blank => return FoundInode::Blank,
            Shape::Torn => return FoundInode::Torn,
            Shape::Full => {}
        }
        let mut body = *line;
        body[0] = word(payload(line[0]) & !f::CRC.mask());
        let kind = FileKind::from_raw(f::KIND.get(line) as u8);
        let (Some(kind), true) = (kind, f::CRC.get(line) == u64::from(crc(volume_seed, &body))) else {
            return FoundInode::Damaged;
        };
        // No inode has generation 0: in memory that is a slot without an inode.
        if f::INO.get(line) != ino.0 || f::GENERATION.get(line) == 0 || !all_written(line) {
            return FoundInode::Damaged;
        }
        FoundInode::Whole(InodeBase {
            id: InodeId { ino, generation: f::GENERATION.get(line) },
            kind,
            perm: f::PERM.get(line) as u16,
            uid: f::UID.get(line) as u32,
            gid: f::GID.get(line) as u32,
            rdev: f::RDEV.get(line) as u32,
            crtime: time_of(f::CRTIME.get(line)),
        })
    }
}
