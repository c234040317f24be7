//! An inode as the engine uses it: the layout of its slots, checked once.
//!
//! Invariants  I1  extra attributes, pointers (or inline content) and inline attributes lie in the slots, in this order and without
//!                 overlap.

use crate::format::{
    BLOCK_BYTES, EXTRA_ATTR_MAX_BYTES, ExtraAttr, INLINE_XATTR_SLOTS, INODE_POINTERS, InodeBlock, NodeBlock,
    advise_flag, feature, inline_flag, inode_flag,
};
use crate::ids::Nid;
use crate::node::block_map::pages_max;
use crate::node::inode_of;
use heddle_vfs::{Attr, Error, FileKind, Handle, Ino, OFFSET_MAX_BYTES, Result, Time};
use std::sync::Arc;
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// Number of the root directory on the media.
pub(crate) const ROOT: Nid = Nid(3);

const SLOT_BYTES: usize = 4;
/// Levels that a directory can have.
const DIR_LEVEL_MAX: u32 = 63;

/// The inode number that users see: the root is 1, as in every engine. Numbers 1 and 2 are no files here, and
/// 3 is shown as 1.
pub(crate) fn ino_of(nid: Nid) -> Ino {
    if nid == ROOT { Ino::ROOT } else { Ino(u64::from(nid.0)) }
}

/// The number on the media.
///
/// # Errors
/// [`Error::Stale`] for a number that no file can have.
pub(crate) fn nid_of(ino: Ino) -> Result<Nid> {
    match ino {
        Ino::ROOT => Ok(ROOT),
        Ino(0..=3) => Err(Error::Stale),
        Ino(number) => u32::try_from(number).map(Nid).map_err(|_| Error::Stale),
    }
}

/// Checks that the inode is the one that was opened.
pub(crate) fn check_same_inode(handle: &Handle, inode: &Inode) -> Result<()> {
    if u64::from(inode.block().generation.get()) == handle.token { Ok(()) } else { Err(Error::Stale) }
}

/// Kinds of changes to an inode, for the check of its flags.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Alteration {
    /// Bytes are overwritten or cut off.
    Content,
    /// Bytes are added behind EOF.
    Growth,
    /// Mode, owner, given times, attributes; a name of the inode is added or removed; an entry of the
    /// directory is removed.
    Attributes,
    /// An entry is added to the directory; times are set to the present.
    Addition,
}

/// A decoded inode.
#[derive(Clone)]
pub(crate) struct Inode {
    pub(crate) nid: Nid,
    pub(crate) kind: FileKind,
    pub(crate) size_bytes: u64,
    node: Arc<NodeBlock>,
    /// Number of slots of extra attributes.
    extra: usize,
    /// Number of slots of inline attributes.
    inline_xattrs: usize,
    has_crtime: bool,
}

impl Inode {
    /// Decodes a node as an inode, in a file system with these features.
    pub(crate) fn of(node: Arc<NodeBlock>, features: u32) -> Result<Inode> {
        let block = inode_of(&node);
        let nid = Nid(block.footer.ino.get());
        let wrong = |what: String| Err(Error::Corrupt(format!("inode {}: {what}", nid.0)));
        let Some(kind) = kind_of(block.mode.get()) else {
            return wrong(format!("mode {:o} has no valid file type", block.mode));
        };
        let size_bytes = block.size_bytes.get();
        if size_bytes > OFFSET_MAX_BYTES {
            return wrong(format!("a size of {size_bytes} bytes"));
        }
        let extra_bytes = if block.inline & inline_flag::EXTRA_ATTR != 0 {
            usize::from(u16::from_le_bytes([block.addr.as_bytes()[0], block.addr.as_bytes()[1]]))
        } else {
            0
        };
        if extra_bytes > EXTRA_ATTR_MAX_BYTES || !extra_bytes.is_multiple_of(SLOT_BYTES) {
            return wrong(format!("extra attributes of {extra_bytes} bytes"));
        }
        let has_crtime = features & feature::INODE_CRTIME != 0
            && extra_bytes >= std::mem::offset_of!(ExtraAttr, compressed_blocks);
        let extra = extra_bytes / SLOT_BYTES;
        let mut inode = Inode { nid, kind, size_bytes, node, extra, inline_xattrs: 0, has_crtime };
        inode.inline_xattrs = inode.find_inline_xattrs(features);
        if kind == FileKind::Directory && u32::from(inode.block().dir_level) > DIR_LEVEL_MAX {
            return wrong(format!("{} first buckets, as a power of two", inode.block().dir_level));
        }
        match kind {
            FileKind::Directory if inode.has(inline_flag::DATA) => {
                return wrong("a directory with inline bytes".into());
            }
            FileKind::Directory => {}
            _ if inode.has(inline_flag::DENTRY) => {
                return wrong("inline entries, and it is no directory".into());
            }
            _ => {}
        }
        // The empty slot before inline content counts too.
        if inode.extra + inode.inline_xattrs + 1 >= INODE_POINTERS {
            return wrong(format!("inline attributes of {} slots", inode.inline_xattrs));
        }
        Ok(inode)
    }

    /// Number of slots at the end that hold no pointers.
    fn find_inline_xattrs(&self, features: u32) -> usize {
        if features & feature::FLEXIBLE_INLINE_XATTR != 0 && self.extra > 0 {
            return usize::from(self.extra_attr().inline_xattr_slots.get());
        }
        if self.has(inline_flag::XATTR | inline_flag::DENTRY) { INLINE_XATTR_SLOTS } else { 0 }
    }

    /// Returns true if it has one of these flags.
    pub(crate) fn has(&self, flags: u8) -> bool {
        self.block().inline & flags != 0
    }

    pub(crate) fn node(&self) -> &NodeBlock {
        &self.node
    }

    pub(crate) fn block(&self) -> &InodeBlock {
        inode_of(&self.node)
    }

    /// Its extra attributes; missing ones are zero.
    fn extra_attr(&self) -> ExtraAttr {
        let mut bytes = [0; EXTRA_ATTR_MAX_BYTES];
        let len = self.extra * SLOT_BYTES;
        bytes[..len].copy_from_slice(&self.block().addr.as_bytes()[..len]);
        ExtraAttr::read_from_bytes(&bytes).unwrap_or_else(|_| ExtraAttr::new_zeroed())
    }

    /// Returns true if its slots lead to blocks. They do not if they hold content, or a device's number.
    pub(crate) fn has_pointers(&self) -> bool {
        let kinds = [FileKind::Regular, FileKind::Directory, FileKind::Symlink];
        kinds.contains(&self.kind) && !self.has(inline_flag::DATA | inline_flag::DENTRY)
    }

    /// Returns true if its pages are in compressed clusters.
    pub(crate) fn is_compressed(&self) -> bool {
        self.block().flags.get() & inode_flag::COMPRESSED != 0 && self.kind == FileKind::Regular
    }

    /// Returns true if the mark of a compressed cluster counts as a block. It does not after the saved space
    /// was released.
    pub(crate) fn counts_cluster_marks(&self) -> bool {
        !self.has(inline_flag::COMPRESS_RELEASED)
    }

    /// Returns true if its content is inline, and would be with this size.
    pub(crate) fn keeps_inline(&self, size_bytes: u64) -> bool {
        let room = self.inline_content().len() as u64;
        self.has(inline_flag::DATA) && self.size_bytes.max(size_bytes) <= room
    }

    /// Checks that so many pages have room in its nodes.
    ///
    /// # Errors
    /// [`Error::FileTooBig`].
    pub(crate) fn check_room_to(&self, pages: u64) -> Result<()> {
        if pages <= pages_max(self.pointers()) { Ok(()) } else { Err(Error::FileTooBig) }
    }

    /// The largest size that its nodes can map.
    pub(crate) fn size_max_bytes(&self) -> u64 {
        pages_max(self.pointers()).saturating_mul(BLOCK_BYTES as u64).min(OFFSET_MAX_BYTES)
    }

    /// Index of the slot of the first pointer.
    pub(crate) fn first_pointer(&self) -> usize {
        self.extra
    }

    /// Number of pointers in the inode.
    pub(crate) fn pointers(&self) -> usize {
        INODE_POINTERS - self.extra - self.inline_xattrs
    }

    /// The bytes of inline data or entries: all pointer slots but the first.
    pub(crate) fn inline_content(&self) -> &[u8] {
        let start = (self.extra + 1) * SLOT_BYTES;
        &self.block().addr.as_bytes()[start..(INODE_POINTERS - self.inline_xattrs) * SLOT_BYTES]
    }

    /// The same bytes in this inode's block, for a change.
    pub(crate) fn inline_content_mut<'a>(&self, block: &'a mut InodeBlock) -> &'a mut [u8] {
        let start = (self.extra + 1) * SLOT_BYTES;
        &mut block.addr.as_mut_bytes()[start..(INODE_POINTERS - self.inline_xattrs) * SLOT_BYTES]
    }

    /// Number of slots at the end that hold no pointers.
    pub(crate) fn inline_xattr_slots(&self) -> usize {
        self.inline_xattrs
    }

    /// The bytes of inline attributes.
    pub(crate) fn inline_xattr_bytes(&self) -> &[u8] {
        let slots = if self.has(inline_flag::XATTR) { self.inline_xattrs } else { 0 };
        &self.block().addr.as_bytes()[(INODE_POINTERS - slots) * SLOT_BYTES..]
    }

    /// The same bytes in this inode's block, for a change.
    pub(crate) fn inline_xattr_bytes_mut<'a>(&self, block: &'a mut InodeBlock) -> &'a mut [u8] {
        let slots = if self.has(inline_flag::XATTR) { self.inline_xattrs } else { 0 };
        &mut block.addr.as_mut_bytes()[(INODE_POINTERS - slots) * SLOT_BYTES..]
    }

    /// Refuses inodes that this engine cannot read.
    ///
    /// # Errors
    /// [`Error::NotSupported`].
    pub(crate) fn check_readable(&self) -> Result<()> {
        let block = self.block();
        if block.advise & advise_flag::ENCRYPT != 0 {
            return Err(Error::NotSupported(
                "encrypted files: mount the image with Linux, which has the key",
            ));
        }
        if self.is_compressed() {
            return Err(Error::NotSupported("compressed files: mount the image with Linux"));
        }
        if block.flags.get() & inode_flag::CASEFOLD != 0 && self.kind == FileKind::Directory {
            return Err(Error::NotSupported("directories that ignore case: mount the image with Linux"));
        }
        Ok(())
    }

    /// Refuses changes that the flags of an inode forbid, even for root. All changing calls check this
    /// (docs/f2fs.md lists them).
    ///
    /// # Errors
    /// [`Error::NotPermitted`].
    pub(crate) fn check_allowed(&self, alteration: Alteration) -> Result<()> {
        let block = self.block();
        let is_fixed = block.flags.get() & inode_flag::IMMUTABLE != 0;
        let only_grows = block.flags.get() & inode_flag::APPEND_ONLY != 0;
        let is_sealed = block.advise & advise_flag::VERITY != 0;
        let refused = match alteration {
            Alteration::Content => is_fixed || only_grows || is_sealed,
            Alteration::Growth => is_fixed || is_sealed,
            Alteration::Attributes => is_fixed || only_grows,
            Alteration::Addition => is_fixed,
        };
        if refused { Err(Error::NotPermitted) } else { Ok(()) }
    }

    /// The attributes for `stat`.
    pub(crate) fn attr(&self) -> Attr {
        let block = self.block();
        let time = |secs: u64, nanos: u32| Time::from_parts(secs as i64, nanos.min(999_999_999));
        let ctime = time(block.ctime.get(), block.ctime_ns.get());
        let extra = self.extra_attr();
        Attr {
            ino: ino_of(self.nid),
            generation: u64::from(block.generation.get()),
            kind: self.kind,
            perm: block.mode.get() & 0o7777,
            nlink: block.links.get(),
            uid: block.uid.get(),
            gid: block.gid.get(),
            rdev: self.rdev(),
            size_bytes: self.size_bytes,
            // Only the media counts the inode itself as a block.
            blocks_512: block.blocks.get().saturating_sub(1).saturating_mul(8),
            atime: time(block.atime.get(), block.atime_ns.get()),
            mtime: time(block.mtime.get(), block.mtime_ns.get()),
            ctime,
            crtime: if self.has_crtime { time(extra.crtime.get(), extra.crtime_ns.get()) } else { ctime },
        }
    }

    /// Device number: in the first slot in the old form (8 bits each of major and minor), otherwise in the
    /// second in the new form.
    fn rdev(&self) -> u32 {
        if !matches!(self.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            return 0;
        }
        let slot = |n: usize| self.block().addr[self.extra + n].get();
        if slot(0) != 0 { slot(0) & 0xffff } else { slot(1) }
    }
}

fn kind_of(mode: u16) -> Option<FileKind> {
    let bits = u32::from(mode) & 0o170_000;
    (1..=7).filter_map(FileKind::from_raw).find(|kind| kind.mode_bits() == bits)
}

#[cfg(test)]
mod tests;
