//! What a repair by another program has taken away, read from the image as it was before, as far as anything can be made of it.
//!
//! State       the image overlaid with the undo file's old blocks: its state before the repair, at the last checkpoint with the fsyncs
//!             since.
//! Invariants  B1  counts and checksums of lost inodes are not trusted. The fsync chain is checked by checksum; `i_blocks` and `i_links`
//!                 serve as hints. An inode whose mode has no valid type is treated as a regular file. A pointer that leads outside the
//!                 main area, or to no node, is a hole, and counted. A block that cannot be read is an error, because its bytes may
//!                 still be there; only `forms` then omits a form.
//!             B2  each node is walked through once a file, so that a circle of nodes ends.
//!             B3  a node is looked for among those changed by fsyncs, then in the NAT's block, then among live node blocks that no NAT
//!                 entry leads to (`lost/stray.rs`).
//!             B4  if an inode contradicts itself, each reading of it is saved ([`LostForm`]): nothing is guessed.
//!
//! An unlinked inode on the checkpoint's orphan list was removed by its user: it is not lost.

mod since;
mod stray;

use crate::checkpoint::Checkpoint;
use crate::checksum::inode_seed;
use crate::data::pointers::span;
use crate::device::Device;
use crate::error::OpenError;
use crate::format::{BLOCK_BYTES, EXTRA_ATTR_MAX_BYTES, NodeBlock, advise_flag, feature, inline_flag};
use crate::ids::{BlockAddr, Nid, Nids};
use crate::image::Media;
use crate::inode::Inode;
use crate::nat::Nat;
use crate::node::block_map::first_page_under;
use crate::node::{Nodes, inode_of_mut, pointers_of};
use crate::pages::dirty_pages::Pages;
use crate::recovery::fsynced::{Chain, Fsynced};
use crate::superblock;
use heddle_vfs::{Error, FileKind, OFFSET_MAX_BYTES, Result, Time};
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, OnceLock};
use stray::Stray;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, IntoBytes};

/// Blocks that are read in one piece: 512 KiB.
const PIECE_BLOCKS: usize = 128;
const BLOCK: u64 = BLOCK_BYTES as u64;
/// Blocks that an inode with inline content can count: its own, and that of its attributes.
const BLOCKS_INLINE: u64 = 2;

/// What can be saved of a lost inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LostKind {
    /// Bytes. An inode whose mode has no valid type is treated as a regular file.
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

/// An inode that the repair removed, or whose content it changed.
#[derive(Clone, Debug)]
pub struct LostInode {
    /// Its number on the media.
    pub ino: u32,
    /// What can be saved of it.
    pub kind: LostKind,
    /// The name that it says to have: any bytes.
    pub name: Vec<u8>,
    /// Permission bits as on the media, with set-uid, set-gid and sticky, which a saved copy does not get.
    pub perm: u16,
    /// Its owner.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// When its content was changed.
    pub mtime: Time,
    /// Its path, or `inode N`, if the inode still exists: then the repair only changed its content.
    pub path: Option<String>,
}

/// What was read of a lost inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct LostContent {
    /// Holes at the end included.
    pub size_bytes: u64,
    /// Pointers and nodes that lead nowhere: what they led to reads as a hole.
    pub missing: u64,
}

/// An inode whose impossible fields were replaced, so that it can be read.
struct ReadableInode {
    inode: Inode,
    /// Its mode had no valid type, or it contradicted itself: its size is believed only if it ends in the last block.
    is_doubtful: bool,
}

impl ReadableInode {
    /// Where its content ends, if that is known before its blocks are.
    fn end(&self) -> Option<u64> {
        let inode = &self.inode;
        let has_end = matches!(inode.kind, FileKind::Regular | FileKind::Symlink) && !is_encoded(inode);
        let is_sure = has_end && !self.is_doubtful && inode.size_bytes <= inode.size_max_bytes();
        is_sure.then_some(inode.size_bytes)
    }

    /// Where its content ends, if its last block ends at `end_of_last_block`.
    fn end_given_last_block(&self, end_of_last_block: u64) -> u64 {
        let size = self.inode.size_bytes.min(self.inode.size_max_bytes());
        let is_in_last = size.div_ceil(BLOCK) * BLOCK == end_of_last_block && !is_encoded(&self.inode);
        self.end().unwrap_or(if is_in_last { size } else { size.max(end_of_last_block) })
    }

    /// The same inode, if it were a file of blocks.
    fn as_blocks(&self, features: u32) -> io::Result<ReadableInode> {
        let mut node = self.inode.node().clone();
        let block = inode_of_mut(&mut node);
        block.inline &= !(inline_flag::DATA | inline_flag::DATA_EXIST | inline_flag::DENTRY);
        block.mode.set((FileKind::Regular.mode_bits() | u32::from(block.mode.get()) & 0o777) as u16);
        let inode = Inode::of(Arc::new(node), features).map_err(io::Error::other)?;
        Ok(ReadableInode { inode, is_doubtful: true })
    }

    /// Its inline bytes up to its size; all of them if that size is not credible.
    fn inline(&self) -> &[u8] {
        let (content, size) = (self.inode.inline_content(), self.inode.size_bytes);
        let is_right = (u64::from(self.is_doubtful)..=content.len() as u64).contains(&size);
        if is_right { &content[..size as usize] } else { content }
    }
}

/// One reading of a lost inode. An inode that contradicts itself has several, and the right one is not known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum LostForm {
    /// What it says to be.
    AsSaid,
    /// The blocks that its pointers lead to, one after the other.
    Blocks,
    /// The bytes that lie in the inode itself.
    Inline,
}

/// See the module.
pub struct Lost {
    media: Media,
    checkpoint: Checkpoint,
    orphans: Nids,
    /// The superblock's quota files. No name leads to them, but they are not lost.
    quota_inodes: Nids,
    inodes: BTreeMap<Nid, LostInode>,
    /// Paths of inodes that are there, and have other attributes now.
    changed_attributes: Vec<String>,
    stray: OnceLock<Stray>,
}

impl Lost {
    /// An image as a mount would show it: its last checkpoint and the fsyncs since. `since` fills in the lost inodes.
    ///
    /// # Errors
    /// [`OpenError::System`] if a block cannot be read; others if nothing can be made of the image.
    pub(crate) fn open(device: Device) -> std::result::Result<Lost, OpenError> {
        let (superblock, geometry) = superblock::read(&device)?;
        let mut checkpoint = Checkpoint::read(&device, &geometry)?;
        let features = superblock.feature.get();
        let (bitmap, changes) =
            (std::mem::take(&mut checkpoint.nat_bitmap), std::mem::take(&mut checkpoint.nat_changes));
        let nat = || Nat::new(&geometry, bitmap.clone(), changes.clone());
        // A torn node ends the chain: its checksum tells.
        let seed = (features & feature::INODE_CHECKSUM != 0).then(|| inode_seed(&superblock.uuid));
        let chain = Chain::read(&device, &geometry, &checkpoint, &Nodes::new(nat(), seed, None));
        let nodes = Nodes::new(nat(), None, None);
        let named = chain.named_inodes(&device);
        let fsynced = Fsynced::of_known(&chain, &device, &nodes.nat, features, &|ino| named.contains(&ino));
        let grown = chain.grown(&device, &nodes.nat);
        nodes.nat.change(fsynced.nodes);
        let media = Media {
            device,
            geometry,
            features,
            nodes,
            pages: Pages::new(),
            space: None,
            names: fsynced.names,
        };
        media.connect_fsynced(&chain, &grown)?;
        let orphans = checkpoint.orphans.iter().copied().collect();
        let has_quota = features & feature::QUOTA_INO != 0;
        let quota = superblock.quota_ino.iter().filter(|_| has_quota).map(|ino| Nid(ino.get()));
        let quota_inodes = quota.collect();
        Ok(Lost {
            media,
            checkpoint,
            orphans,
            quota_inodes,
            inodes: BTreeMap::new(),
            changed_attributes: Vec::new(),
            stray: OnceLock::new(),
        })
    }

    /// Paths of files and directories that are not lost, and have another owner or group, or other permissions or extended attributes now.
    pub fn changed_attributes(&self) -> &[String] {
        &self.changed_attributes
    }

    /// The lost inodes in ascending inode number.
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
        // If the listing fails, the remaining lost inodes are saved at the top level.
        if let Ok(ReadableInode { inode, .. }) = self.inode_in_form(ino, LostForm::AsSaid) {
            let _ = self.media.list(&inode, 0, &mut add);
        }
        names
    }

    /// The readings of the inode `ino` that are to be saved; the first is what it says to be. If its blocks cannot be read, the form
    /// [`LostForm::Blocks`] is omitted.
    ///
    /// # Errors
    /// The inode cannot be read.
    pub fn forms(&self, ino: u32) -> io::Result<Vec<LostForm>> {
        let ReadableInode { inode, .. } = self.inode_in_form(ino, LostForm::AsSaid)?;
        let block = inode.block();
        let room = inode.inline_content().len() as u64;
        let has_nodes = block.nid.iter().any(|nid| nid.get() != 0) || block.blocks.get() > BLOCKS_INLINE;
        let has_blocks = match inode.kind {
            FileKind::Regular | FileKind::Directory | FileKind::Symlink => {
                let is_inline = inode.has(inline_flag::DATA | inline_flag::DENTRY);
                let reserved = block.addr[inode.first_pointer()].get();
                is_inline && (has_nodes || reserved != 0 || inode.size_bytes > room)
            }
            _ => has_nodes || inode.size_bytes > 0,
        };
        let is_no_dir =
            || inode.kind == FileKind::Directory && inode.has_pointers() && !self.is_listed(&inode);
        let mut forms = vec![LostForm::AsSaid];
        if (has_blocks || is_no_dir()) && self.blocks(ino, LostForm::Blocks).is_ok_and(|blocks| blocks > 0) {
            forms.push(LostForm::Blocks);
        }
        let own = || &block.addr[inode.first_pointer()..][..inode.pointers()];
        let leads_nowhere =
            |pointer: &U32| BlockAddr(pointer.get()).is_block() && !self.is_in_main_area(pointer);
        let may_be_inline = match inode.kind {
            FileKind::Regular | FileKind::Symlink => inode.has_pointers(),
            kind => kind != FileKind::Directory && inode.size_bytes > 0,
        };
        if may_be_inline && inode.size_bytes <= room && own().iter().any(leads_nowhere) {
            forms.push(LostForm::Inline);
        }
        Ok(forms)
    }

    /// Returns true if the listing has a dot entry and no damage.
    fn is_listed(&self, dir: &Inode) -> bool {
        let mut has_dots = false;
        let listed = self.media.list_all(dir, 1, &mut |entry| {
            has_dots |= entry.is_dots();
            Ok(())
        });
        has_dots && listed.is_ok_and(|damage| damage.is_empty())
    }

    /// Blocks that a copy of the inode `ino` takes.
    ///
    /// # Errors
    /// A block that cannot be read.
    pub fn blocks(&self, ino: u32, form: LostForm) -> io::Result<u64> {
        let found = self.inode_in_form(ino, form)?;
        if form == LostForm::Inline || !found.inode.has_pointers() {
            return Ok(1);
        }
        let end = found.end().map_or(u64::MAX, |end| end.div_ceil(BLOCK));
        let mut blocks = 0;
        self.walk(&found.inode, &mut |first, pointers| {
            let here = end.saturating_sub(first).min(pointers.len() as u64) as usize;
            blocks += pointers[..here].iter().filter(|pointer| self.is_in_main_area(pointer)).count() as u64;
            Ok(())
        })?;
        Ok(blocks)
    }

    /// Gives the bytes of the inode `ino` to `emit_bytes`, with their offsets, piece by piece and without holes. Emitted blocks are whole:
    /// bytes may lie beyond the returned size.
    ///
    /// # Errors
    /// A block that cannot be read, and those of `emit_bytes`.
    pub fn read(
        &self,
        ino: u32,
        form: LostForm,
        emit_bytes: &mut dyn FnMut(u64, &[u8]) -> io::Result<()>,
    ) -> io::Result<LostContent> {
        let found = self.inode_in_form(ino, form)?;
        let inode = &found.inode;
        if form == LostForm::Inline || inode.has(inline_flag::DATA | inline_flag::DENTRY) {
            let content = if form == LostForm::Inline { inode.inline_content() } else { found.inline() };
            // If DATA_EXIST is not set, a file's inline bytes were never written.
            if form == LostForm::Inline || inode.has(inline_flag::DATA_EXIST | inline_flag::DENTRY) {
                emit_bytes(0, content)?;
            }
            return Ok(LostContent { size_bytes: content.len() as u64, missing: 0 });
        }
        if !inode.has_pointers() {
            return Ok(LostContent::default());
        }
        let (mut end_of_last_block, mut holes, mut buf) = (0, 0, vec![0; PIECE_BLOCKS * BLOCK_BYTES]);
        let end = found.end().unwrap_or(u64::MAX);
        let nodes = self.walk(inode, &mut |first, pointers| {
            let mut n = 0;
            while n < pointers.len() {
                let (addr, at) = (BlockAddr(pointers[n].get()), (first + n as u64) * BLOCK);
                if at >= end {
                    break;
                }
                let follows = |(k, pointer): &(usize, &U32)| {
                    pointer.get() == addr.plus(*k as u32).0 && self.is_in_main_area(pointer)
                };
                let run = pointers[n..].iter().take(PIECE_BLOCKS).enumerate().take_while(follows).count();
                if run == 0 {
                    holes += u64::from(addr.is_block());
                    n += 1;
                    continue;
                }
                let bytes = &mut buf[..run * BLOCK_BYTES];
                self.media.device.read(addr, 0, bytes).map_err(io::Error::other)?;
                emit_bytes(at, bytes)?;
                (n, end_of_last_block) = (n + run, at + (run * BLOCK_BYTES) as u64);
            }
            Ok(())
        })?;
        Ok(LostContent { size_bytes: found.end_given_last_block(end_of_last_block), missing: nodes + holes })
    }

    fn add_one(&mut self, nid: Nid) -> Result<()> {
        let Some(ReadableInode { inode, .. }) = self.find_inode(nid)? else { return Ok(()) };
        let block = inode.block();
        if self.orphans.contains(&nid) && block.links.get() == 0 {
            return Ok(());
        }
        let kind = self.kind_of(&inode);
        let len = (block.name_bytes.get() as usize).min(block.name.len());
        let (attr, name) = (inode.attr(), block.name[..len].to_vec());
        let (ino, perm, uid, gid, mtime) = (nid.0, attr.perm, attr.uid, attr.gid, attr.mtime);
        self.inodes.insert(nid, LostInode { ino, kind, name, perm, uid, gid, mtime, path: None });
        Ok(())
    }

    fn kind_of(&self, inode: &Inode) -> LostKind {
        match inode.kind {
            FileKind::Directory if inode.check_readable().is_ok() => LostKind::Directory,
            FileKind::Regular | FileKind::Symlink | FileKind::Directory if is_encoded(inode) => {
                LostKind::Encoded
            }
            FileKind::Regular | FileKind::Directory => LostKind::File,
            FileKind::Symlink => LostKind::Symlink,
            kind => LostKind::Special(kind, inode.attr().rdev),
        }
    }

    /// The inode `ino`, to be read in this form.
    fn inode_in_form(&self, ino: u32, form: LostForm) -> io::Result<ReadableInode> {
        let found = self.find_inode(Nid(ino)).and_then(|found| found.ok_or(Error::Stale));
        let found = found.map_err(io::Error::other)?;
        if form == LostForm::AsSaid { Ok(found) } else { found.as_blocks(self.media.features) }
    }

    /// The inode of this number, with impossible fields replaced; `None`: there is none, or nothing in it.
    fn find_inode(&self, nid: Nid) -> Result<Option<ReadableInode>> {
        let node = self.find_node(nid, nid)?;
        node.map(|node| made_readable(Arc::unwrap_or_clone(node), nid, self.media.features)).transpose()
    }

    /// A node of an inode. Looks at nodes changed by fsyncs, then at the NAT's block, then among live node blocks that no NAT entry leads
    /// to. If no footer names the node, takes the NAT's block if nothing contradicts that.
    fn find_node(&self, nid: Nid, ino: Nid) -> Result<Option<Arc<NodeBlock>>> {
        let Media { device, geometry, nodes, .. } = &self.media;
        if let Some(made) = nodes.changed_node(nid) {
            return Ok((made.now.footer.ino.get() == ino.0).then_some(made.now));
        }
        let entry = match nodes.nat.find(device, nid) {
            Err(Error::Corrupt(_)) => return Ok(None),
            found => found?,
        };
        let addr = BlockAddr(entry.addr.get());
        let here = if geometry.in_main(addr) { Some(self.node_at(addr)?) } else { None };
        let says_so =
            |node: &Arc<NodeBlock>| (node.footer.nid.get(), node.footer.ino.get()) == (nid.0, ino.0);
        if let Some(node) = here.as_ref().filter(|node| says_so(node)) {
            return Ok(Some(Arc::clone(node)));
        }
        if let Some(addr) = self.stray()?.find(nid, ino) {
            return self.node_at(addr).map(Some);
        }
        // The NAT may be right, and the footer damaged.
        let is_anothers = |node: &Arc<NodeBlock>| {
            let other = Nid(node.footer.nid.get());
            other != nid && nodes.nat.find(device, other).is_ok_and(|found| found.addr == entry.addr)
        };
        let is_it = |node: &Arc<NodeBlock>| {
            entry.ino.get() == ino.0 && node.as_bytes().iter().any(|byte| *byte != 0) && !is_anothers(node)
        };
        Ok(here.filter(is_it))
    }

    fn node_at(&self, addr: BlockAddr) -> Result<Arc<NodeBlock>> {
        let block = self.media.device.block(addr)?;
        let node = NodeBlock::read_from_bytes(&block[..]);
        node.map(Arc::new).map_err(|error| Error::Corrupt(error.to_string()))
    }

    fn stray(&self) -> Result<&Stray> {
        if let Some(stray) = self.stray.get() {
            return Ok(stray);
        }
        let found = Stray::find_all(&self.media, &self.checkpoint)?;
        Ok(self.stray.get_or_init(|| found))
    }

    fn is_in_main_area(&self, pointer: &U32) -> bool {
        let addr = BlockAddr(pointer.get());
        addr.is_block() && self.media.geometry.in_main(addr)
    }

    /// Gives all pointers to `visit_pointers`, with the page of the first of each piece. Returns how many nodes lead nowhere.
    fn walk(
        &self,
        inode: &Inode,
        visit_pointers: &mut dyn FnMut(u64, &[U32]) -> io::Result<()>,
    ) -> io::Result<u64> {
        let own = &inode.block().addr[inode.first_pointer()..][..inode.pointers()];
        visit_pointers(0, own)?;
        let (mut seen, mut missing) = (Nids::default(), 0);
        for (root, child) in inode.block().nid.iter().enumerate() {
            let first = first_page_under(root, inode.pointers()).0;
            let place = (Nid(child.get()), [0, 0, 1, 1, 2][root], first);
            missing += self.walk_node(inode.nid, place, &mut seen, visit_pointers)?;
        }
        Ok(missing)
    }

    fn walk_node(
        &self,
        ino: Nid,
        (nid, depth, first): (Nid, u32, u64),
        seen: &mut Nids,
        visit_pointers: &mut dyn FnMut(u64, &[U32]) -> io::Result<()>,
    ) -> io::Result<u64> {
        if nid == Nid::NONE {
            return Ok(0);
        }
        let node = match (nid != ino && seen.insert(nid)).then(|| self.find_node(nid, ino)) {
            Some(Ok(Some(node))) => node,
            Some(Err(error)) => return Err(io::Error::other(error)),
            _ => return Ok(1),
        };
        let pointers = &pointers_of(&node).pointers;
        if depth == 0 {
            visit_pointers(first, pointers)?;
            return Ok(0);
        }
        let mut missing = 0;
        for (n, child) in pointers.iter().enumerate() {
            let place = (Nid(child.get()), depth - 1, first + n as u64 * span(depth));
            missing += self.walk_node(ino, place, seen, visit_pointers)?;
        }
        Ok(missing)
    }
}

/// Returns true if its blocks are compressed or encrypted.
fn is_encoded(inode: &Inode) -> bool {
    inode.is_compressed() || inode.block().advise & advise_flag::ENCRYPT != 0
}

/// Replaces impossible fields of an inode. An inode that cannot be read as it is becomes a file of the bytes that it leads to.
fn made_readable(mut node: NodeBlock, nid: Nid, features: u32) -> Result<ReadableInode> {
    let block = inode_of_mut(&mut node);
    (block.footer.nid, block.footer.ino) = (U32::new(nid.0), U32::new(nid.0));
    let of = |node: &NodeBlock| Inode::of(Arc::new(node.clone()), features);
    if let Ok(inode) = of(&node) {
        return Ok(ReadableInode { inode, is_doubtful: false });
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
        return Ok(ReadableInode { inode, is_doubtful: true });
    }
    // The first word of `addr` has two 16-bit fields: bytes of extra attributes, slots of inline attributes.
    let sizes = &mut inode_of_mut(&mut node).addr.as_mut_bytes()[..4];
    sizes.copy_from_slice(&[EXTRA_ATTR_MAX_BYTES as u8, 0, 0, 0]);
    Ok(ReadableInode { inode: of(&node)?, is_doubtful: true })
}

#[cfg(test)]
mod tests;
