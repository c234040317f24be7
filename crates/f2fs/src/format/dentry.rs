//! Directory entries, in blocks of their own or inline.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Slots of a block of entries.
pub const DENTRY_SLOTS: usize = 214;
/// Bytes of a name that a slot holds; longer names take the slots that follow.
pub const DENTRY_NAME_BYTES: usize = 8;

/// An entry.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub struct Dentry {
    /// Hash of the name; 0 for `.` and `..`.
    pub hash: U32,
    /// The inode.
    pub ino: U32,
    /// Bytes of the name.
    pub name_bytes: U16,
    /// 1 file, 2 directory, 3 character device, 4 block device, 5 pipe, 6 socket, 7 symbolic link.
    pub kind: u8,
}

/// A block of entries. Only the entry of a name's first slot counts; all of its slots have their bit set.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct DentryBlock {
    /// One bit for each slot in use, the lowest of a byte first.
    pub bitmap: [u8; 27],
    /// Unused.
    pub reserved: [u8; 3],
    /// The entries.
    pub entries: [Dentry; DENTRY_SLOTS],
    /// Their names.
    pub names: [[u8; DENTRY_NAME_BYTES]; DENTRY_SLOTS],
}

const _: () = {
    assert!(size_of::<Dentry>() == 11);
    assert!(size_of::<DentryBlock>() == super::BLOCK_BYTES);
};
