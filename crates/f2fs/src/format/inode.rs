//! The inode block.

use super::NodeFooter;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Number of pointers of an inode without inline content.
pub const INODE_POINTERS: usize = 923;
/// Slots of inline attributes, if the inode does not say otherwise.
pub const INLINE_XATTR_SLOTS: usize = 50;
/// Most bytes of extra attributes.
pub const EXTRA_ATTR_MAX_BYTES: usize = 36;

/// Bits of [`InodeBlock::inline`].
pub mod inline_flag {
    /// The last slots hold attributes.
    pub const XATTR: u8 = 0x1;
    /// The slots hold the data.
    pub const DATA: u8 = 0x2;
    /// The slots hold the directory's entries.
    pub const DENTRY: u8 = 0x4;
    /// There is inline data.
    pub const DATA_EXIST: u8 = 0x8;
    /// The first slots hold extra attributes.
    pub const EXTRA_ATTR: u8 = 0x20;
    /// Programs use the numbers of the file's blocks: cleaning must not move them.
    pub const PINNED: u8 = 0x40;
    /// The space saved by compression was released.
    pub const COMPRESS_RELEASED: u8 = 0x80;
}

/// Bits of [`InodeBlock::advise`].
pub mod advise_flag {
    /// The name stored in the inode is not its only one.
    pub const LOST_PARENT: u8 = 0x2;
    /// The content is encrypted.
    pub const ENCRYPT: u8 = 0x4;
    /// Space beyond the end of the file is wanted: recovery does not extend the file over it.
    pub const KEEP_SIZE: u8 = 0x10;
    /// The content is sealed under a hash tree.
    pub const VERITY: u8 = 0x40;
}

/// Bits of [`InodeBlock::flags`].
pub mod inode_flag {
    /// The file is compressed.
    pub const COMPRESSED: u32 = 0x4;
    /// It must not be changed.
    pub const IMMUTABLE: u32 = 0x10;
    /// It may only grow.
    pub const APPEND_ONLY: u32 = 0x20;
    /// The directory ignores case.
    pub const CASEFOLD: u32 = 0x4000_0000;
}

/// A hint: a run of pages in contiguous blocks. It is optional, but must be correct if `pages` is not 0.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
#[expect(missing_docs, reason = "the names say it")]
pub struct ExtentHint {
    pub page: U32,
    pub addr: U32,
    pub pages: U32,
}

/// An inode: 4096 bytes with its footer.
///
/// The slots of `addr` hold, in this order: extra attributes, then pointers or one empty slot and inline content, then
/// inline attributes.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
#[expect(missing_docs, reason = "fields of the structure in Linux' include/linux/f2fs_fs.h, in its order")]
pub struct InodeBlock {
    pub mode: U16,
    pub advise: u8,
    pub inline: u8,
    pub uid: U32,
    pub gid: U32,
    pub links: U32,
    pub size_bytes: U64,
    pub blocks: U64,
    pub atime: U64,
    pub ctime: U64,
    pub mtime: U64,
    pub atime_ns: U32,
    pub ctime_ns: U32,
    pub mtime_ns: U32,
    pub generation: U32,
    /// Levels of hash buckets that a directory uses.
    pub depth: U32,
    pub xattr_nid: U32,
    pub flags: U32,
    /// Inode number of the directory that the one name of a file lies in.
    pub parent: U32,
    pub name_bytes: U32,
    pub name: [u8; 255],
    pub dir_level: u8,
    pub extent: ExtentHint,
    pub addr: [U32; INODE_POINTERS],
    pub nid: [U32; 5],
    pub footer: NodeFooter,
}

/// Extra attributes, as many as the inode has.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
#[expect(missing_docs, reason = "fields of the structure in Linux' include/linux/f2fs_fs.h, in its order")]
pub struct ExtraAttr {
    /// Bytes of the extra attributes that the inode has.
    pub extra_bytes: U16,
    /// Slots at the end of `addr` that inline extended attributes take.
    pub inline_xattr_slots: U16,
    /// Number for project quotas.
    pub project: U32,
    pub checksum: U32,
    pub crtime: U64,
    pub crtime_ns: U32,
    pub compressed_blocks: U64,
    pub compress_algorithm: u8,
    /// log2 of the pages of a compressed cluster.
    pub log_cluster: u8,
    pub compress_flag: U16,
}

/// Offset of its slots, and of its extra attributes, in the inode.
pub const SLOTS_OFFSET_BYTES: usize = 360;
/// Offset of its checksum in the inode.
pub const INODE_CHECKSUM_OFFSET_BYTES: usize = 368;

const _: () = {
    assert!(size_of::<InodeBlock>() == super::BLOCK_BYTES);
    assert!(std::mem::offset_of!(InodeBlock, name) == 92);
    assert!(std::mem::offset_of!(InodeBlock, addr) == SLOTS_OFFSET_BYTES);
    assert!(std::mem::offset_of!(InodeBlock, nid) == 4052);
    assert!(size_of::<ExtraAttr>() == EXTRA_ATTR_MAX_BYTES);
};
