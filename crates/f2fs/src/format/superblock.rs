//! The superblock: two copies, in blocks 0 and 1, each 1024 bytes into its block.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Offset of a superblock in its block.
pub const SUPERBLOCK_OFFSET_BYTES: usize = 1024;
/// First word of a superblock.
pub const MAGIC: u32 = 0xf2f5_2010;

/// Bits of [`Superblock::feature`].
pub mod feature {
    /// Files may be encrypted.
    pub const ENCRYPT: u32 = 0x1;
    /// On a zoned device.
    pub const ZONED: u32 = 0x2;
    /// Files may be written atomically.
    pub const ATOMIC_WRITE: u32 = 0x4;
    /// Inodes have attributes beyond the first layout.
    pub const EXTRA_ATTR: u32 = 0x8;
    /// Project quotas.
    pub const PROJECT_QUOTA: u32 = 0x10;
    /// Inodes carry a checksum.
    pub const INODE_CHECKSUM: u32 = 0x20;
    /// Inodes store the size of their inline attributes.
    pub const FLEXIBLE_INLINE_XATTR: u32 = 0x40;
    /// The superblock names the inodes of quota files.
    pub const QUOTA_INO: u32 = 0x80;
    /// Inodes store their time of creation.
    pub const INODE_CRTIME: u32 = 0x100;
    /// fsck has a lost+found directory.
    pub const LOST_FOUND: u32 = 0x200;
    /// Files may be verified by the kernel.
    pub const VERITY: u32 = 0x400;
    /// The superblock has a checksum.
    pub const SUPERBLOCK_CHECKSUM: u32 = 0x800;
    /// Directories may ignore case.
    pub const CASEFOLD: u32 = 0x1000;
    /// Files may be compressed.
    pub const COMPRESSION: u32 = 0x2000;
    /// Made to be read only.
    pub const READ_ONLY: u32 = 0x4000;

    /// Names of all bits that have one, for messages.
    pub const NAMES: [(u32, &str); 15] = [
        (ENCRYPT, "encrypt"),
        (ZONED, "blkzoned"),
        (ATOMIC_WRITE, "atomic_write"),
        (EXTRA_ATTR, "extra_attr"),
        (PROJECT_QUOTA, "project_quota"),
        (INODE_CHECKSUM, "inode_checksum"),
        (FLEXIBLE_INLINE_XATTR, "flexible_inline_xattr"),
        (QUOTA_INO, "quota"),
        (INODE_CRTIME, "inode_crtime"),
        (LOST_FOUND, "lost_found"),
        (VERITY, "verity"),
        (SUPERBLOCK_CHECKSUM, "sb_checksum"),
        (CASEFOLD, "casefold"),
        (COMPRESSION, "compression"),
        (READ_ONLY, "ro"),
    ];
}

/// A further device of the file system.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct DeviceRecord {
    /// Path when the image was made; empty: no device.
    pub path: [u8; 64],
    /// Segments on it.
    pub segments: U32,
}

/// The mark in the superblock of an image that a repair has begun to change.
pub const REPAIR_BEGUN: [u8; 8] = *b"HEDDLERB";
/// The mark of an image whose old bytes are being restored.
pub const REPAIR_UNDONE: [u8; 8] = *b"HEDDLERU";
/// The mark of an image that no mount of heddle has written since its last repair.
pub const REPAIR_DONE: [u8; 8] = *b"HEDDLERD";

/// The superblock: 3072 bytes.
///
/// | offset | field | guards against |
/// |--------|-------|----------------|
/// | 0      | magic | taking anything else for F2FS |
/// | 44..96 | counts and places of the areas | reading one area as another: they must follow each other without a gap |
/// | 2180   | feature | misreading what a later Linux wrote: unknown bits are refused |
/// | 3036   | repair_id | going back with the undo file of another repair |
/// | 3044   | repair_mark | using an image that a repair has left half done |
/// | 3052   | node_log_pairing | using an image with another node log than its own |
/// | 3060   | node_log_mark | using an image without its node log |
/// | 3068   | crc   | damage, where the feature is on |
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
#[expect(missing_docs, reason = "fields of the structure in Linux' include/linux/f2fs_fs.h, in its order")]
pub struct Superblock {
    pub magic: U32,
    pub major: U16,
    pub minor: U16,
    pub log_sector_bytes: U32,
    pub log_sectors_per_block: U32,
    pub log_block_bytes: U32,
    pub log_blocks_per_segment: U32,
    pub segments_per_section: U32,
    pub sections_per_zone: U32,
    pub checksum_offset: U32,
    pub blocks: U64,
    pub sections: U32,
    pub segments: U32,
    pub segments_checkpoint: U32,
    pub segments_sit: U32,
    pub segments_nat: U32,
    pub segments_ssa: U32,
    pub segments_main: U32,
    pub segment0: U32,
    pub checkpoint: U32,
    pub sit: U32,
    pub nat: U32,
    pub ssa: U32,
    pub main: U32,
    pub root_ino: U32,
    pub node_ino: U32,
    pub meta_ino: U32,
    pub uuid: [u8; 16],
    pub volume_name: [U16; 512],
    pub extensions: U32,
    pub extension: [[u8; 8]; 64],
    pub checkpoint_payload: U32,
    pub version: [u8; 256],
    pub init_version: [u8; 256],
    pub feature: U32,
    pub encryption_level: u8,
    pub encryption_salt: [u8; 16],
    pub devices: [DeviceRecord; 8],
    pub quota_ino: [U32; 3],
    pub hot_extensions: u8,
    pub encoding: U16,
    pub encoding_flags: U16,
    pub reserved: [u8; 274],
    /// Unused by Linux, which keeps it. If `repair_mark` is set: the number of the repair, as in its undo file.
    pub repair_id: U64,
    /// Unused by Linux, which keeps it. [`REPAIR_BEGUN`] while a repair is under way, [`REPAIR_UNDONE`] while it is
    /// taken back, [`REPAIR_DONE`] from its end until heddle writes the image again.
    pub repair_mark: [u8; 8],
    /// Unused by Linux, which keeps it. If `node_log_mark` is set: the pairing number, as in the head of that log.
    pub node_log_pairing: U64,
    /// Unused by Linux, which keeps it. [`LOG_MARK`](super::LOG_MARK) while a node log may be newer than the
    /// image.
    pub node_log_mark: [u8; 8],
    pub crc: U32,
}

const _: () = {
    assert!(size_of::<Superblock>() == 3072);
    assert!(std::mem::offset_of!(Superblock, segment0) == 72);
    assert!(std::mem::offset_of!(Superblock, uuid) == 108);
    assert!(std::mem::offset_of!(Superblock, checkpoint_payload) == 1664);
    assert!(std::mem::offset_of!(Superblock, feature) == 2180);
    assert!(std::mem::offset_of!(Superblock, quota_ino) == 2745);
    assert!(std::mem::offset_of!(Superblock, repair_id) == 3036);
    assert!(std::mem::offset_of!(Superblock, node_log_pairing) == 3052);
    assert!(std::mem::offset_of!(Superblock, crc) == 3068);
};
