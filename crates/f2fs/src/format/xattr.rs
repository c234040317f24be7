//! Extended attributes: one buffer, the inline area of the inode and then the attribute node, of which entries may straddle the seam.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First word of the buffer.
pub const XATTR_MAGIC: u32 = 0xf2f5_2011;

/// The start of the buffer.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct XattrHeader {
    /// [`XATTR_MAGIC`]; anything else: there are none.
    pub magic: U32,
    /// 1.
    pub references: U32,
    /// Nothing.
    pub reserved: [U32; 4],
}

/// An attribute; its name and value follow, then zeros up to a multiple of four bytes. One of all zeros ends the list.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct XattrEntry {
    /// Stands for the name's beginning.
    pub prefix: u8,
    /// Bytes of the rest of the name.
    pub name_bytes: u8,
    /// Bytes of the value.
    pub value_bytes: U16,
}

/// What [`XattrEntry::prefix`] may be.
pub mod xattr_prefix {
    /// `user.`
    pub const USER: u8 = 1;
    /// `system.posix_acl_access`, the whole name.
    pub const ACL_ACCESS: u8 = 2;
    /// `system.posix_acl_default`, the whole name.
    pub const ACL_DEFAULT: u8 = 3;
    /// `trusted.`
    pub const TRUSTED: u8 = 4;
    /// `security.`
    pub const SECURITY: u8 = 6;
}

const _: () = {
    assert!(size_of::<XattrHeader>() == 24);
    assert!(size_of::<XattrEntry>() == 4);
};
