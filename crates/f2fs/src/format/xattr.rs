//! Extended attributes: one buffer, the inode's inline area and then the attribute node. An entry may cross
//! from one to the other.

use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First word of the buffer.
pub const XATTR_MAGIC: u32 = 0xf2f5_2011;

/// The start of the buffer.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct XattrHeader {
    /// [`XATTR_MAGIC`]; with any other value there are no attributes.
    pub magic: U32,
    /// 1.
    pub references: U32,
    /// Unused.
    pub reserved: [U32; 4],
}

/// An attribute; its name and value follow, then zeros up to a multiple of four bytes. An entry of zeros ends
/// the list.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct XattrEntry {
    /// Encodes the beginning of the name.
    pub prefix: u8,
    /// Length of the rest of the name, in bytes.
    pub name_bytes: u8,
    /// Length of the value, in bytes.
    pub value_bytes: U16,
}

/// Values of [`XattrEntry::prefix`].
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
