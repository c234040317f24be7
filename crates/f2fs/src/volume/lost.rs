//! What a repair by another program would take away: inodes that no name leads to, read as far as anything can be made of them.
//!
//! State       the node table as it was when this was made, in memory: what a repair changes of the table later hides nothing here.
//! Invariants  B1  nothing is believed that is not needed. Counts and checksums are not looked at. An inode of no kind is a file. A pointer
//!                 or node that cannot be is a hole, and counted. A block that cannot be read is an error: its bytes may still be there.
//!             B2  each node is walked through once a file, so that a circle of nodes ends.
//!
//! An inode without a name on the checkpoint's list of orphans was removed by its user while it was open: it is not lost, but gone.

use crate::checkpoint::Checkpoint;
use crate::data::pointers::span;
use crate::device::{Access, Device};
use crate::error::OpenError;
use crate::format::{
    BLOCK_BYTES, EXTRA_ATTR_MAX_BYTES, NatEntry, NodeBlock, advise_flag, feature, inline_flag,
};
use crate::ids::{BlockAddr, Nid, Nids};
use crate::image::Media;
use crate::inode::{Inode, ROOT};
use crate::nat::Nat;
use crate::node::block_map::first_page_under;
use crate::node::{Nodes, inode_of_mut, pointers_of};
use crate::pages::dirty_pages::Pages;
use crate::superblock;
use heddle_vfs::{Error, FileKind, OFFSET_MAX_BYTES, Result, Time};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// Blocks that are read in one piece: 512 KiB.
const PIECE_BLOCKS: usize = 128;
const BLOCK: u64 = BLOCK_BYTES as u64;

/// What can be saved of a lost inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostKind {
    /// Bytes; so is what is of no kind of file.
    File,
    /// Bytes that were encrypted or compressed, as they are on the device.
    Encoded,
    /// Names.
    Directory,
    /// A target.
    Symlink,
    /// Nothing but what it is: a device of this number, a pipe or a socket.
    Special(FileKind, u32),
}

/// An inode that a repair would take away.
#[derive(Clone, Debug)]
pub struct LostInode {
    /// Its number on the media.
    pub ino: u32,
    /// What can be saved of it.
    pub kind: LostKind,
    /// The name that it says to have: any bytes.
    pub name: Vec<u8>,
    /// Permission bits, with those that change the user.
    pub perm: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When its content was changed.
    pub mtime: Time,
}

/// What was read of a lost inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LostContent {
    /// Holes at the end included.
    pub size_bytes: u64,
    /// Pointers and nodes that lead nowhere: what they led to reads as a hole.
    pub missing: u64,
}

/// An inode that was made sense of.
struct Tamed {
    inode: Inode,
    /// It was of no kind, or contradicted itself: its size is believed only if it ends in the last block.
    is_doubtful: bool,
}

impl Tamed {
    /// Where its content ends, if that is known before its blocks are.
    fn end(&self) -> Option<u64> {
        let inode = &self.inode;
        let has_end = matches!(inode.kind, FileKind::Regular | FileKind::Symlink) && !is_encoded(inode);
        let is_sure = has_end && !self.is_doubtful && inode.size_bytes <= inode.size_max_bytes();
        is_sure.then_some(inode.size_bytes)
    }

    /// The same, of one whose last block ends there.
    fn end_in(&self, behind_last: u64) -> u64 {
        let size = self.inode.size_bytes.min(self.inode.size_max_bytes());
        let is_in_last = size.div_ceil(BLOCK) * BLOCK == behind_last && !is_encoded(&self.inode);
        self.end().unwrap_or(if is_in_last { size } else { size.max(behind_last) })
    }

    /// Its inline bytes, as far as its size says.
    fn inline(&self) -> &[u8] {
        let (content, size) = (self.inode.inline_content(), self.inode.size_bytes);
        let is_right = (u64::from(self.is_doubtful)..=content.len() as u64).contains(&size);
        if is_right { &content[..size as usize] } else { content }
    }
}

/// See the module.
pub struct Lost {
    media: Media,
    orphans: Nids,
    inodes: BTreeMap<Nid, LostInode>,
}

impl Lost {
    /// All inodes of an image that no good name leads to: none of the right kind, in a directory that the root leads to. If a directory
    /// cannot be listed, because it ignores case or is encrypted, none is known to have no name, and only [`Lost::add`] adds some.
    ///
    /// # Errors
    /// [`OpenError::System`] if a block cannot be read; others if nothing can be made of the image.
    pub fn find(path: &Path) -> std::result::Result<Lost, OpenError> {
        let unread = |error: Error| {
            let source = io::Error::other(error);
            OpenError::System { image: path.into(), what: "read all of", source }
        };
        // The repair of a file would not notice a mount. That of a device opens it exclusively itself.
        let is_device = path.metadata().is_ok_and(|meta| meta.file_type().is_block_device());
        let device = Device::open(path, if is_device { Access::Read } else { Access::Write })?;
        if !is_device {
            let what = "keep the lock of";
            device.share_lock().map_err(|source| OpenError::System { image: path.into(), what, source })?;
        }
        let (superblock, geometry) = superblock::read(&device)?;
        let checkpoint = Checkpoint::read(&device, &geometry)?;
        let nat = Nat::new(&geometry, checkpoint.nat_bitmap, checkpoint.nat_changes);
        let used = nat.used(&device).map_err(unread)?;
        nat.change(used.clone());
        let features = superblock.feature.get();
        let nodes = Nodes::new(nat, None, None);
        let (pages, names) = (Pages::new(), HashMap::new());
        let media = Media { device, geometry, features, nodes, pages, space: None, names };
        let orphans = checkpoint.orphans.into_iter().collect();
        let mut lost = Lost { media, orphans, inodes: BTreeMap::new() };
        if let Some(mut named) = lost.named() {
            if features & feature::QUOTA_INO != 0 {
                named.extend(superblock.quota_ino.iter().map(|ino| Nid(ino.get())));
            }
            let is_inode = |(nid, entry): &(Nid, NatEntry)| entry.ino.get() == nid.0 && *nid >= ROOT;
            for (nid, _) in used.into_iter().filter(is_inode).filter(|(nid, _)| !named.contains(nid)) {
                lost.add_one(nid).map_err(unread)?;
            }
        }
        Ok(lost)
    }

    /// Adds inodes that will be taken away all the same, among nodes of these numbers.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn add(&mut self, numbers: &[u32]) -> Result<()> {
        let nids = numbers.iter().map(|number| Nid(*number)).filter(|nid| *nid >= ROOT);
        nids.into_iter().try_for_each(|nid| self.add_one(nid))
    }

    /// By number.
    pub fn inodes(&self) -> impl Iterator<Item = &LostInode> {
        self.inodes.values()
    }

    /// The names in a lost directory that lead to lost inodes.
    pub fn names(&self, ino: u32) -> Vec<(Vec<u8>, u32)> {
        let mut names = Vec::new();
        let mut add = |entry: crate::dir::Entry<'_>| {
            if !entry.is_dots() && self.inodes.contains_key(&entry.nid) {
                names.push((entry.name.to_vec(), entry.nid.0));
            }
            Ok(false)
        };
        // An inode whose name cannot be read is saved by its number.
        if let Ok(Tamed { inode, .. }) = self.found(ino) {
            let _ = self.media.list(&inode, 0, &mut add);
        }
        names
    }

    /// Blocks that a copy of it takes.
    ///
    /// # Errors
    /// A block that cannot be read.
    pub fn blocks(&self, ino: u32) -> io::Result<u64> {
        let found = self.found(ino)?;
        if !found.inode.has_pointers() {
            return Ok(1);
        }
        let end = found.end().map_or(u64::MAX, |end| end.div_ceil(BLOCK));
        let mut blocks = 0;
        self.walk(&found.inode, &mut |first, pointers| {
            let here = end.saturating_sub(first).min(pointers.len() as u64) as usize;
            blocks += pointers[..here].iter().filter(|pointer| self.is_there(pointer)).count() as u64;
            Ok(())
        })?;
        Ok(blocks)
    }

    /// Gives its bytes to `emit`, with their offsets, piece by piece and without holes. Some may lie behind the end that is returned.
    ///
    /// # Errors
    /// A block that cannot be read, and those of `emit`.
    pub fn read(
        &self,
        ino: u32,
        emit: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<LostContent> {
        let found = self.found(ino)?;
        let inode = &found.inode;
        if inode.has(inline_flag::DATA | inline_flag::DENTRY) {
            let content = found.inline();
            // Without the flag bytes of a file were never written.
            if inode.has(inline_flag::DATA_EXIST | inline_flag::DENTRY) {
                emit(0, content)?;
            }
            return Ok(LostContent { size_bytes: content.len() as u64, missing: 0 });
        }
        if !inode.has_pointers() {
            return Ok(LostContent::default());
        }
        let (mut behind_last, mut holes, mut buf) = (0, 0, vec![0; PIECE_BLOCKS * BLOCK_BYTES]);
        let end = found.end().unwrap_or(u64::MAX);
        let nodes = self.walk(inode, &mut |first, pointers| {
            let mut n = 0;
            while n < pointers.len() {
                let (addr, at) = (BlockAddr(pointers[n].get()), (first + n as u64) * BLOCK);
                if at >= end {
                    break;
                }
                let follows = |(k, pointer): &(usize, &U32)| {
                    pointer.get() == addr.plus(*k as u32).0 && self.is_there(pointer)
                };
                let run = pointers[n..].iter().take(PIECE_BLOCKS).enumerate().take_while(follows).count();
                if run == 0 {
                    holes += u64::from(addr.is_block());
                    n += 1;
                    continue;
                }
                let bytes = &mut buf[..run * BLOCK_BYTES];
                self.media.device.read(addr, 0, bytes).map_err(io::Error::other)?;
                emit(at, bytes)?;
                (n, behind_last) = (n + run, at + (run * BLOCK_BYTES) as u64);
            }
            Ok(())
        })?;
        Ok(LostContent { size_bytes: found.end_in(behind_last), missing: nodes + holes })
    }

    /// What names lead to, the root included; `None`: not all directories can be listed.
    fn named(&self) -> Option<Nids> {
        let is_dir = |nid| self.media.inode(nid).is_ok_and(|inode| inode.kind == FileKind::Directory);
        let mut next: Vec<Nid> = [ROOT].into_iter().filter(|root| is_dir(*root)).collect();
        let mut named: Nids = next.iter().copied().collect();
        while let Some(nid) = next.pop() {
            let Ok(dir) = self.media.inode(nid) else { continue };
            let mut found = Vec::new();
            let listed = self.media.list(&dir, 0, &mut |entry| {
                if !entry.is_dots() && !named.contains(&entry.nid) {
                    found.push((entry.nid, entry.kind));
                }
                Ok(false)
            });
            // What stands behind other damage may have no name any more.
            if let Err(Error::NotSupported(_)) = listed {
                return None;
            }
            for (nid, kind) in found {
                if self.media.inode(nid).is_ok_and(|inode| inode.kind == kind) && named.insert(nid) {
                    next.extend((kind == FileKind::Directory).then_some(nid));
                }
            }
        }
        Some(named)
    }

    fn add_one(&mut self, nid: Nid) -> Result<()> {
        let Some(Tamed { inode, .. }) = self.find_inode(nid)? else { return Ok(()) };
        let block = inode.block();
        if self.orphans.contains(&nid) && block.links.get() == 0 {
            return Ok(());
        }
        let kind = match inode.kind {
            FileKind::Directory if inode.readable().is_ok() => LostKind::Directory,
            FileKind::Regular | FileKind::Symlink | FileKind::Directory if is_encoded(&inode) => {
                LostKind::Encoded
            }
            FileKind::Regular | FileKind::Directory => LostKind::File,
            FileKind::Symlink => LostKind::Symlink,
            kind => LostKind::Special(kind, inode.attr().rdev),
        };
        let len = (block.name_bytes.get() as usize).min(block.name.len());
        let (attr, name) = (inode.attr(), block.name[..len].to_vec());
        let (ino, perm, uid, gid, mtime) = (nid.0, attr.perm, attr.uid, attr.gid, attr.mtime);
        self.inodes.insert(nid, LostInode { ino, kind, name, perm, uid, gid, mtime });
        Ok(())
    }

    /// An inode that was found.
    fn found(&self, ino: u32) -> io::Result<Tamed> {
        self.find_inode(Nid(ino)).and_then(|found| found.ok_or(Error::Stale)).map_err(io::Error::other)
    }

    /// The inode of this number, made sense of; `None`: there is none, or nothing in it.
    fn find_inode(&self, nid: Nid) -> Result<Option<Tamed>> {
        let Media { device, geometry, nodes, features, .. } = &self.media;
        let entry = match nodes.nat.find(device, nid) {
            Err(Error::Corrupt(_)) => return Ok(None),
            found => found?,
        };
        let addr = BlockAddr(entry.addr.get());
        if !geometry.in_main(addr) {
            return Ok(None);
        }
        let block = device.block(addr)?;
        let Ok(node) = NodeBlock::read_from_bytes(&block[..]) else { return Ok(None) };
        let footer = &node.footer;
        let says_so = (footer.nid.get(), footer.ino.get()) == (nid.0, nid.0);
        let is_anothers = || {
            let other = Nid(footer.nid.get());
            other != nid && nodes.nat.find(device, other).is_ok_and(|found| found.addr == entry.addr)
        };
        // The table may be right, and the footer damaged.
        let is_inode =
            says_so || entry.ino.get() == nid.0 && block.iter().any(|byte| *byte != 0) && !is_anothers();
        if !is_inode {
            return Ok(None);
        }
        tamed(node, nid, *features).map(Some)
    }

    fn is_there(&self, pointer: &U32) -> bool {
        let addr = BlockAddr(pointer.get());
        addr.is_block() && self.media.geometry.in_main(addr)
    }

    /// Gives all pointers to `emit`, with the page of the first of each piece; how many nodes lead nowhere.
    fn walk(&self, inode: &Inode, emit: &mut dyn FnMut(u64, &[U32]) -> io::Result<()>) -> io::Result<u64> {
        let own = &inode.block().addr[inode.first_pointer()..][..inode.pointers()];
        emit(0, own)?;
        let (mut seen, mut missing) = (Nids::default(), 0);
        for (root, child) in inode.block().nid.iter().enumerate() {
            let first = first_page_under(root, inode.pointers()).0;
            let place = (Nid(child.get()), [0, 0, 1, 1, 2][root], first);
            missing += self.walk_node(inode.nid, place, &mut seen, emit)?;
        }
        Ok(missing)
    }

    fn walk_node(
        &self,
        ino: Nid,
        (nid, depth, first): (Nid, u32, u64),
        seen: &mut Nids,
        emit: &mut dyn FnMut(u64, &[U32]) -> io::Result<()>,
    ) -> io::Result<u64> {
        if nid == Nid::NONE {
            return Ok(0);
        }
        let Media { device, geometry, nodes, .. } = &self.media;
        let node = match seen.insert(nid).then(|| nodes.get(device, geometry, nid, ino)) {
            Some(Ok(node)) => node,
            Some(Err(error @ Error::Io(_))) => return Err(io::Error::other(error)),
            _ => return Ok(1),
        };
        let pointers = &pointers_of(&node).pointers;
        if depth == 0 {
            emit(first, pointers)?;
            return Ok(0);
        }
        let mut missing = 0;
        for (n, child) in pointers.iter().enumerate() {
            let place = (Nid(child.get()), depth - 1, first + n as u64 * span(depth));
            missing += self.walk_node(ino, place, seen, emit)?;
        }
        Ok(missing)
    }
}

/// Do its blocks say nothing byte by byte?
fn is_encoded(inode: &Inode) -> bool {
    inode.is_compressed() || inode.block().advise & advise_flag::ENCRYPT != 0
}

/// Makes sense of an inode. One that cannot be made sense of as it is becomes a file of the bytes that it leads to.
fn tamed(mut node: NodeBlock, nid: Nid, features: u32) -> Result<Tamed> {
    let block = inode_of_mut(&mut node);
    (block.footer.nid, block.footer.ino) = (U32::new(nid.0), U32::new(nid.0));
    let of = |node: &NodeBlock| Inode::of(Arc::new(node.clone()), features);
    if let Ok(inode) = of(&node) {
        return Ok(Tamed { inode, is_doubtful: false });
    }
    let block = inode_of_mut(&mut node);
    let perm = u32::from(block.mode.get()) & 0o777;
    block.mode.set((FileKind::Regular.mode_bits() | perm) as u16);
    if block.inline & inline_flag::DENTRY != 0 {
        block.inline = block.inline & !inline_flag::DENTRY | inline_flag::DATA | inline_flag::DATA_EXIST;
    }
    if block.size_bytes.get() > OFFSET_MAX_BYTES {
        block.size_bytes.set(0);
    }
    if let Ok(inode) = of(&node) {
        return Ok(Tamed { inode, is_doubtful: true });
    }
    // The first two halves of a word are the bytes of extra attributes, and the slots of inline ones.
    let sizes = &mut inode_of_mut(&mut node).addr.as_mut_bytes()[..4];
    sizes.copy_from_slice(&[EXTRA_ATTR_MAX_BYTES as u8, 0, 0, 0]);
    Ok(Tamed { inode: of(&node)?, is_doubtful: true })
}
