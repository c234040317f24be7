//! The node log in NVM: a head, twice, and behind it chunks of records. Nothing of it is Linux'. In prose: `docs/format-node-log.md`.

use super::BLOCK_BYTES;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// What a head begins with: "HEDDLENL".
pub const LOG_MAGIC: u64 = u64::from_le_bytes(*b"HEDDLENL");
/// What the superblock of an image says that may lack what a log has.
pub const LOG_MARK: [u8; 8] = *b"HEDDLENL";
/// The layout that is described here.
pub const LOG_FORMAT: u32 = 2;
/// Where the two heads are. The one with the larger sequence number counts.
pub const LOG_HEADS_BYTES: [u64; 2] = [0, BLOCK_BYTES as u64];
/// Where the first chunk begins.
pub const LOG_CHUNKS_BYTES: u64 = 2 * BLOCK_BYTES as u64;
/// Bytes of a chunk: records follow each other from its beginning, none reaches over its end.
pub const CHUNK_BYTES: u64 = 64 << 10;
/// A record begins at a multiple of this.
pub const LOG_LINE_BYTES: u64 = 64;

/// What [`LogHead::state`] may say.
pub mod log_state {
    /// No record counts: the image alone is everything.
    pub const CLEAN: u32 = 1;
    /// Records count, on top of the base.
    pub const ACTIVE: u32 = 2;
    /// As active, until the image's checkpoint is the next one: then no record counts any more.
    pub const FOLDING: u32 = 3;
}

/// What the log belongs to.
///
/// | field | guards against |
/// |-------|----------------|
/// | uuid  | the log of another image |
/// | base  | an image that was changed without its log |
/// | pairing | a copy of the image from before, or another log of the same image |
/// | generation | records of an earlier life of the region |
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct LogHead {
    /// [`LOG_MAGIC`].
    pub magic: U64,
    /// [`LOG_FORMAT`].
    pub format: U32,
    /// What records must bear to count.
    pub generation: U32,
    /// Of this head; the larger one counts.
    pub seq: U64,
    /// Identity of the image.
    pub uuid: [u8; 16],
    /// Bytes of the region.
    pub len_bytes: U64,
    /// Version of the checkpoint that the records extend.
    pub base_version: U64,
    /// The same checkpoint, when it is being replaced: the one that replaces it.
    pub next_version: U64,
    /// The image's mark has the same number, once records count.
    pub pairing: U64,
    /// Checksum of the checkpoint that the records extend.
    pub base_crc: U32,
    /// Checksum of the next one.
    pub next_crc: U32,
    /// One of [`log_state`].
    pub state: U32,
    /// CRC-32 of all before it.
    pub crc: U32,
}

/// What [`RecordHead::flags`] may say.
pub mod record_flag {
    /// The number is free.
    pub const DELETED: u8 = 0x1;
    /// The file is new since the last epoch: its name is to be made too.
    pub const NAMED: u8 = 0x2;
    /// The words are changes of a node of zeros, not of an earlier one.
    pub const WHOLE: u8 = 0x4;
    /// Of an epoch, not of an fsync.
    pub const EPOCH: u8 = 0x8;
}

/// A record: its head, then runs of words that differ from what the node was before.
///
/// A record counts if all `members` of its group are there. It is its own entry of the node table: number, inode, version and place.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RecordHead {
    /// CRC-32 of all behind it, payload included.
    pub crc: U32,
    /// As its log's.
    pub generation: U32,
    /// What it counts with; a larger one is a later one.
    pub group: U64,
    /// Records of the group.
    pub members: U32,
    /// The node.
    pub nid: U32,
    /// Its inode.
    pub ino: U32,
    /// Line of the record that it changes, from the region's beginning; 0: it changes the node that the base checkpoint has.
    pub before: U32,
    /// Bytes of runs.
    pub payload_bytes: U16,
    /// Bits of [`record_flag`].
    pub flags: u8,
    /// Version of the node's number in the node table.
    pub version: u8,
    /// Records that it needs, itself included.
    pub depth: u8,
    /// Zero.
    pub rest: [u8; 3],
}

/// Before each run of words: where in the node, and how many, in words of four bytes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Debug)]
#[repr(C)]
pub struct RunHead {
    /// First word.
    pub first: U16,
    /// Words, one at least.
    pub words: U16,
}

const _: () = {
    assert!(size_of::<LogHead>() == 88);
    assert!(size_of::<RecordHead>() == 40);
    assert!(size_of::<RunHead>() == 4);
};
