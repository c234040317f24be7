//! A checkpoint pack: the state at one instant. Two packs are used in turn, in the first two segments of
//! their area.
//!
//! Order of a pack: head, payload, orphans, data summaries, node summaries (if unmounted cleanly), and a tail
//! equal to the head. The tail is written last and makes the pack valid.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bits of [`CheckpointHead::flags`].
pub mod checkpoint_flag {
    /// Written by an unmount: no fsync came after it.
    pub const UNMOUNTED: u32 = 0x1;
    /// The pack has orphan blocks.
    pub const ORPHANS: u32 = 0x2;
    /// Its summaries are compacted.
    pub const COMPACT_SUMMARIES: u32 = 0x4;
    /// The kernel met an error.
    pub const ERROR: u32 = 0x8;
    /// fsck is needed.
    pub const FSCK: u32 = 0x10;
    /// Written for a fast start: it has node summaries.
    pub const FASTBOOT: u32 = 0x20;
    /// Nodes carry the checkpoint's checksum beside its version.
    pub const CRC_RECOVERY: u32 = 0x40;
    /// Nodes written after it carry only its version.
    pub const NO_CRC_RECOVERY: u32 = 0x200;
    /// The version bitmaps are behind the checksum, the NAT's first.
    pub const LARGE_NAT_BITMAP: u32 = 0x400;
    /// fsck must recount quotas.
    pub const QUOTA_NEEDS_FSCK: u32 = 0x800;
    /// The kernel was told to make no checkpoints.
    pub const DISABLED: u32 = 0x1000;
    /// The file system is being made smaller.
    pub const RESIZING: u32 = 0x4000;
}

/// Number of logs of one kind that fit a checkpoint; three are used.
pub const LOGS_MAX: usize = 8;
/// Nodes in an orphan block.
pub const ORPHANS_PER_BLOCK: usize = 1020;

/// The fixed part of head and tail: 192 bytes. Version bitmaps and the checksum follow in the same block.
///
/// | offset | field | guards against |
/// |--------|-------|----------------|
/// | 0      | version | taking the older pack; a head and a tail of two checkpoints |
/// | 164    | checksum_offset | where the checksum over all before it is |
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
#[expect(missing_docs, reason = "fields of the structure in Linux' include/linux/f2fs_fs.h, in its order")]
pub struct CheckpointHead {
    pub version: U64,
    pub blocks_user: U64,
    pub blocks_valid: U64,
    pub segments_reserved: U32,
    pub segments_overprovision: U32,
    pub segments_free: U32,
    pub node_segment: [U32; LOGS_MAX],
    pub node_offset: [U16; LOGS_MAX],
    pub data_segment: [U32; LOGS_MAX],
    pub data_offset: [U16; LOGS_MAX],
    pub flags: U32,
    pub pack_blocks: U32,
    pub summaries_start: U32,
    pub nodes_valid: U32,
    pub inodes_valid: U32,
    pub next_free_nid: U32,
    pub sit_bitmap_bytes: U32,
    pub nat_bitmap_bytes: U32,
    pub checksum_offset: U32,
    pub elapsed_secs: U64,
    pub alloc_type: [u8; 16],
}

/// An orphan block: inodes without a name that were open at the checkpoint.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
#[expect(missing_docs, reason = "fields of the structure in Linux' include/linux/f2fs_fs.h, in its order")]
pub struct OrphanBlock {
    pub ino: [U32; ORPHANS_PER_BLOCK],
    pub reserved: U32,
    pub index: U16,
    pub blocks: U16,
    pub entries: U32,
    pub crc: U32,
}

const _: () = {
    assert!(size_of::<CheckpointHead>() == 192);
    assert!(std::mem::offset_of!(CheckpointHead, flags) == 132);
    assert!(std::mem::offset_of!(CheckpointHead, checksum_offset) == 164);
    assert!(size_of::<OrphanBlock>() == super::BLOCK_BYTES);
};
