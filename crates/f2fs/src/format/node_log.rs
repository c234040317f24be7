//! The node log in NVM: a head, twice, and behind it chunks of records. It is not part of Linux' format.
//! Described in `docs/format-node-log.md`.

use super::BLOCK_BYTES;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The magic of a head: "HEDDLENL".
pub const LOG_MAGIC: u64 = u64::from_le_bytes(*b"HEDDLENL");
/// The mark in the superblock of an image whose node log may be newer than the image.
pub const LOG_MARK: [u8; 8] = *b"HEDDLENL";
/// The version of this layout.
pub const LOG_FORMAT: u32 = 2;
/// Offsets of the two heads. The one with the larger sequence number counts.
pub const LOG_HEADS_BYTES: [u64; 2] = [0, BLOCK_BYTES as u64];
/// Offset of the first chunk.
pub const LOG_CHUNKS_BYTES: u64 = 2 * BLOCK_BYTES as u64;
/// Bytes of a chunk. Records follow each other from its start; no record crosses its end.
pub const CHUNK_BYTES: u64 = 64 << 10;
/// A record begins at a multiple of this.
pub const LOG_LINE_BYTES: u64 = 64;

/// Values of [`LogHead::state`].
pub mod log_state {
    /// No record counts: the image alone is the file system.
    pub const CLEAN: u32 = 1;
    /// Records count, in addition to the base.
    pub const ACTIVE: u32 = 2;
    /// As active, until the image's checkpoint is the next one: then no record counts any more.
    pub const FOLDING: u32 = 3;
}

/// The head: which image the log belongs to.
///
/// | field | guards against |
/// |-------|----------------|
/// | uuid  | the log of another image |
/// | base  | an image that was changed without its log |
/// | pairing | a copy of the image from before, or another log of the same image |
/// | generation | records of an earlier use of the region |
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct LogHead {
    /// [`LOG_MAGIC`].
    pub magic: U64,
    /// [`LOG_FORMAT`].
    pub format: U32,
    /// The generation of records that count.
    pub generation: U32,
    /// Sequence number of this head; the larger one counts.
    pub seq: U64,
    /// The image's UUID.
    pub uuid: [u8; 16],
    /// Bytes of the region.
    pub len_bytes: U64,
    /// Version of the checkpoint that the records extend.
    pub base_version: U64,
    /// While that checkpoint is being replaced: the version of the next one.
    pub next_version: U64,
    /// The pairing number; the image's mark has the same one, once records count.
    pub pairing: U64,
    /// Checksum of the checkpoint that the records extend.
    pub base_crc: U32,
    /// Checksum of the next one.
    pub next_crc: U32,
    /// One of [`log_state`].
    pub state: U32,
    /// CRC-32 of all earlier bytes.
    pub crc: U32,
}

/// Bits of [`RecordHead::flags`].
pub mod record_flag {
    /// The node number is free.
    pub const DELETED: u8 = 0x1;
    /// The file is new since the last log checkpoint: its name must be recovered too.
    pub const NAMED: u8 = 0x2;
    /// The words are changes to a node of zeros, not to an earlier node.
    pub const WHOLE: u8 = 0x4;
    /// The record belongs to a log checkpoint, not to an fsync.
    pub const LOG_CHECKPOINT: u8 = 0x8;
}

/// A record: its head, then runs of words that differ from the node's last state.
///
/// A record counts if all `members` of its group are present. It is also its own entry of the node table:
/// number, inode, version and position.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RecordHead {
    /// CRC-32 of all bytes behind it, including the payload.
    pub crc: U32,
    /// The generation of its log.
    pub generation: U32,
    /// Number of its group; a larger one is later.
    pub group: U64,
    /// Number of records in the group.
    pub members: U32,
    /// The node's number.
    pub nid: U32,
    /// The node's inode.
    pub ino: U32,
    /// Line of the record that it changes, from the region's start; 0: it changes the base checkpoint's node.
    pub before: U32,
    /// Bytes of runs.
    pub payload_bytes: U16,
    /// Bits of [`record_flag`].
    pub flags: u8,
    /// Version of the node's number, as in the node table.
    pub version: u8,
    /// Number of records that are needed to read the node, including this one.
    pub depth: u8,
    /// Zero.
    pub rest: [u8; 3],
}

/// Before each run of words: its position in the node and its length, in words of four bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RunHead {
    /// First word.
    pub first: U16,
    /// Number of words, at least one.
    pub words: U16,
}

const _: () = {
    assert!(size_of::<LogHead>() == 88);
    assert!(size_of::<RecordHead>() == 40);
    assert!(size_of::<RunHead>() == 4);
};
