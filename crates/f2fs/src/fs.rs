//! The engine as a `FileSystem`. On an image opened for reading, every change fails with [`Error::ReadOnly`].

mod attrs;
mod broken;
mod names;
mod partial_io;
mod unnamed;

use crate::allocation::set_time;
use crate::change::{Change, Need, pages_of};
use crate::data::direct_io::WritePath;
use crate::data::write::{end_of, keeping_size};
use crate::ids::Nid;
use crate::image::Media;
use crate::inode::{Alteration, Inode, check_same_inode, ino_of, nid_of};
use crate::mounted::F2fs;
use crate::planted::{Breach, breaks};
use crate::space::Counts;
use crate::times::now;
use attrs::check_regular;
use heddle_vfs::xattr::{Target, may_get};
use heddle_vfs::{
    Attr, Cookie, Cred, DirEntry, Error, FileKind, FileSystem, Handle, Ino, Listing, Name, NewNode,
    OpenFlags, Permission, RangeOp, RenameMode, Result, SeekTarget, SetAttr, SetXattr, StatFs, XattrName,
};
use std::sync::atomic::Ordering::Relaxed;

impl F2fs {
    /// A directory that the caller may search.
    pub(crate) fn directory(&self, cred: &Cred, nid: Nid) -> Result<Inode> {
        let dir = self.media.inode(nid)?;
        if dir.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        self.check(&dir, cred, Permission::EXECUTE)?;
        Ok(dir)
    }

    pub(crate) fn check(&self, inode: &Inode, cred: &Cred, want: Permission) -> Result<()> {
        if breaks(Breach::ModesUnchecked) {
            return Ok(());
        }
        let attr = inode.attr();
        // The access list is read only if it could change the result.
        let list = !cred.is_root() && cred.uid != attr.uid && attr.perm & 0o070 != 0;
        let list = list && !breaks(Breach::AclsUnchecked);
        let acl = if list { self.media.xattrs(inode)?.acl(XattrName::ACL_ACCESS) } else { None };
        cred.check_acl(attr.kind, attr.perm, (attr.uid, attr.gid), acl.as_ref(), want)
    }

    fn named(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Inode> {
        let _inside = self.inside();
        let parent = nid_of(parent)?;
        let _shared = self.guards.shared(parent);
        let dir = self.directory(cred, parent)?;
        let (nid, _) = self.media.look_up(&dir, name)?.ok_or(Error::NotFound)?;
        self.child(&dir, nid)
    }

    /// The inode of an entry.
    pub(crate) fn child(&self, dir: &Inode, nid: Nid) -> Result<Inode> {
        self.media.inode(nid).map_err(|error| match error {
            Error::Stale => {
                Error::Corrupt(format!("directory {} names inode {}, which is free", dir.nid.0, nid.0))
            }
            other => other,
        })
    }

    /// Runs a query on an inode.
    fn ask<R>(&self, ino: Ino, question: impl FnOnce(&Inode) -> Result<R>) -> Result<R> {
        let _inside = self.inside();
        let nid = nid_of(ino)?;
        let _shared = self.guards.shared(nid);
        question(&self.media.inode(nid)?)
    }

    /// Changes an inode that is locked exclusively. `look` returns the need, and data for `run`.
    pub(crate) fn alter<T, R>(
        &self,
        ino: Ino,
        first_guess: Need,
        look: impl Fn(&Inode) -> Result<(T, Need)>,
        run: impl FnOnce(&Change<'_>, &Inode, &T) -> Result<R>,
    ) -> Result<R> {
        let nid = nid_of(ino)?;
        let look = || {
            let locked = self.guards.alone(&[nid]);
            let inode = self.media.inode(nid)?;
            let (found, need) = look(&inode)?;
            Ok(((locked, inode, found), need))
        };
        self.change(first_guess, look, |change, (_, inode, found)| run(change, inode, found))
    }

    /// Changes the content of an open file. Its pages are written to the device if too many are in memory.
    pub(crate) fn alter_content<T, R>(
        &self,
        handle: &Handle,
        first_guess: Need,
        look: impl Fn(&Inode) -> Result<(T, Need)>,
        run: impl FnOnce(&Change<'_>, &Inode, &T) -> Result<R>,
    ) -> Result<R> {
        if !handle.flags.write {
            return Err(Error::BadHandle);
        }
        let look = |inode: &Inode| {
            check_same_inode(handle, inode)?;
            check_regular(inode)?;
            look(inode)
        };
        self.alter(handle.ino, first_guess, look, |change, inode, found| {
            let done = run(change, inode, found)?;
            self.modified(inode, true)?;
            self.media.relieve(inode.nid)?;
            Ok(done)
        })
    }

    /// Writes all of `buf` at the offset that `offset` computes from the inode.
    pub(crate) fn write_exclusive(
        &self,
        handle: &Handle,
        buf: &[u8],
        alteration: Alteration,
        offset: impl Fn(&Inode) -> u64,
    ) -> Result<u64> {
        let pages = Need::to_write((buf.len() / crate::format::BLOCK_BYTES) as u64 + 2);
        let look = |inode: &Inode| {
            inode.check_allowed(alteration)?;
            let offset = offset(inode);
            let end = end_of(offset, buf.len() as u64)?;
            if pages_of(offset, end).nth(1).is_some() {
                self.media.check_edges(inode, offset, end)?;
            }
            Ok((offset, self.media.need_to_write(inode, offset, end)? + pages))
        };
        let written = self.alter_content(handle, pages, look, |change, inode, offset| {
            let way = WritePath::of(handle.flags.direct, *offset, buf.len());
            change.write(inode.nid, *offset, buf, way).map(|()| *offset)
        });
        if breaks(Breach::FailedWriteGrows) && written == Err(Error::NoSpace) {
            self.grow_after_failed_write(handle, buf.len(), offset)?;
        }
        written
    }

    fn with_target<R>(&self, inode: &Inode, cred: &Cred, ask: impl FnOnce(Target<'_>) -> R) -> R {
        let attr = inode.attr();
        let check = |want| self.check(inode, cred, want);
        ask(Target { kind: attr.kind, perm: attr.perm, owner: (attr.uid, attr.gid), check: &check })
    }
}

/// A handle of an inode that is counted as open.
fn handle_of(inode: &Inode, flags: OpenFlags) -> Handle {
    Handle { ino: ino_of(inode.nid), flags, token: u64::from(inode.block().generation.get()) }
}

/// Free inode numbers, limited by the free blocks.
fn statfs(media: &Media, blocks_user: u64, counts: Counts) -> StatFs {
    let blocks_free = blocks_user.saturating_sub(counts.blocks);
    // Number 0 and the first three numbers are no files.
    let numbers = u64::from(media.geometry.nids()).saturating_sub(4);
    let inodes_free = numbers.saturating_sub(counts.nodes).min(blocks_free);
    StatFs {
        block_size_bytes: crate::format::BLOCK_BYTES as u32,
        blocks_total: blocks_user,
        blocks_free,
        blocks_available: blocks_free,
        inodes_total: counts.inodes + inodes_free,
        inodes_free,
        name_max_bytes: heddle_vfs::NAME_MAX_BYTES as u32,
    }
}

impl FileSystem for F2fs {
    fn statfs(&self) -> Result<StatFs> {
        let head = &self.checkpoint_state().checkpoint.head;
        let counts = match &self.media.space {
            Some(space) => space.counts(),
            None => Counts::of(head),
        };
        Ok(statfs(&self.media, self.media.geometry.at_most_main(head.blocks_user.get()), counts))
    }

    fn lookup(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<Attr> {
        self.named(cred, parent, name.bytes()).map(|inode| {
            self.stat_ticks.note(inode.nid);
            inode.attr()
        })
    }

    fn step(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<(Ino, FileKind)> {
        self.ask(parent, |_| {
            let dir = self.directory(cred, nid_of(parent)?)?;
            let (nid, kind) = self.media.look_up(&dir, name.bytes())?.ok_or(Error::NotFound)?;
            Ok((ino_of(nid), kind))
        })
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        self.named(&Cred::root(), dir, b"..").map(|above| ino_of(above.nid))
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.stat_ticks.note(nid_of(ino)?);
        self.ask(ino, |inode| Ok(inode.attr()))
    }

    fn access(&self, cred: &Cred, ino: Ino, want: Permission) -> Result<()> {
        self.ask(ino, |inode| self.check(inode, cred, want))
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        self.ask(ino, |inode| {
            if inode.kind != FileKind::Symlink {
                return Err(Error::InvalidArgument("not a symbolic link"));
            }
            // Targets are shorter than a block.
            let mut target = vec![0; inode.size_bytes.min(crate::format::BLOCK_BYTES as u64) as usize];
            let len = self.media.read(inode, 0, &mut target)?;
            target.truncate(len);
            Ok(target)
        })
    }

    fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let writes = flags.write || flags.truncate;
        let check = |inode: &Inode| {
            match inode.kind {
                FileKind::Directory if writes => return Err(Error::IsDirectory),
                FileKind::Regular | FileKind::Directory => {}
                FileKind::Symlink => return Err(Error::Loop),
                _ => {
                    return Err(Error::InvalidArgument(
                        "devices, pipes and sockets are opened by the kernel",
                    ));
                }
            }
            if writes {
                self.media.space()?;
                let grows = flags.append && !flags.truncate;
                inode.check_allowed(if grows { Alteration::Growth } else { Alteration::Content })?;
            }
            inode.check_readable()?;
            let read = if flags.read { Permission::READ.0 } else { 0 };
            let write = if writes { Permission::WRITE.0 } else { 0 };
            self.check(inode, cred, Permission(read | write))
        };
        if !flags.truncate {
            return self.ask(ino, |inode| {
                check(inode)?;
                self.opened.add(inode.nid, false);
                Ok(handle_of(inode, flags))
            });
        }
        let look = |inode: &Inode| {
            check(inode)?;
            Ok(((), self.media.need_to_resize(inode, 0)?))
        };
        let opened = self.alter(ino, Need::NONE, look, |change, inode, ()| {
            change.resize(inode.nid, 0)?;
            self.modified(inode, cred.is_root())?;
            self.opened.add(inode.nid, false);
            Ok(handle_of(inode, flags))
        })?;
        match self.after_change_through(&opened) {
            Ok(()) => Ok(opened),
            Err(error) => {
                self.release(opened);
                Err(error)
            }
        }
    }

    fn hold(&self, parent: Ino, name: Name<'_>) -> Result<Handle> {
        let (ino, _) = self.step(&Cred::root(), parent, name)?;
        self.ask(ino, |inode| {
            self.opened.add(inode.nid, false);
            Ok(handle_of(inode, OpenFlags::READ))
        })
    }

    fn release(&self, handle: Handle) {
        if let Ok(nid) = nid_of(handle.ino) {
            self.close(nid);
        }
    }

    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        if breaks(Breach::ReadsInTwo) {
            return self.read_in_two(handle, offset, buf);
        }
        self.read_range(handle, offset, buf)
    }

    /// Nothing is reserved: storing such a page would need a block of a free segment in any case.
    fn expect_stores(&self, handle: &Handle, offset: u64, len_bytes: u64) -> Result<()> {
        if breaks(Breach::MappedStoreUnchecked) {
            return Ok(());
        }
        self.ask(handle.ino, |inode| {
            check_same_inode(handle, inode)?;
            check_regular(inode)?;
            let end = inode.size_bytes.min(offset.saturating_add(len_bytes));
            if offset < end { self.check_space_for(inode, offset, end) } else { Ok(()) }
        })
    }

    fn seek(&self, handle: &Handle, target: SeekTarget, offset: u64) -> Result<u64> {
        self.ask(handle.ino, |inode| {
            check_same_inode(handle, inode)?;
            check_regular(inode)?;
            self.media.seek(inode, target, offset)
        })
    }

    fn readdir(&self, handle: &Handle, from: Cookie, listing: &mut Listing) -> Result<()> {
        self.ask(handle.ino, |dir| {
            check_same_inode(handle, dir)?;
            self.list(dir, from, listing)
        })
    }

    fn getxattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        self.ask(ino, |inode| {
            self.with_target(inode, cred, |target| may_get(target, cred, name))?;
            self.media.xattrs(inode)?.get(name).map(<[u8]>::to_vec)
        })
    }

    fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        self.ask(ino, |inode| Ok(self.media.xattrs(inode)?.list(cred)))
    }

    fn setxattr(
        &self,
        cred: &Cred,
        ino: Ino,
        name: XattrName<'_>,
        value: &[u8],
        how: SetXattr,
    ) -> Result<()> {
        let how = if breaks(Breach::XattrFlagsIgnored) { SetXattr::Any } else { how };
        if breaks(Breach::AttributesBlink) {
            let _ = self.removexattr(cred, ino, name);
        }
        let look = |inode: &Inode| {
            inode.check_allowed(Alteration::Attributes)?;
            let mut xattrs = self.media.xattrs(inode)?;
            let perm = self.with_target(inode, cred, |target| xattrs.set(target, cred, name, value, how))?;
            let need = self.media.need_of_xattrs(inode, &xattrs)?;
            Ok(((xattrs, perm), need))
        };
        self.alter(ino, Need::NONE, look, |change, inode, (xattrs, perm)| {
            change.set_xattrs(inode, xattrs)?;
            self.attributes_changed(inode.nid, *perm)
        })?;
        self.after_change()
    }

    fn removexattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<()> {
        let look = |inode: &Inode| {
            inode.check_allowed(Alteration::Attributes)?;
            let mut xattrs = self.media.xattrs(inode)?;
            self.with_target(inode, cred, |target| xattrs.remove(target, cred, name))?;
            let need = self.media.need_of_xattrs(inode, &xattrs)?;
            Ok((xattrs, need))
        };
        self.alter(ino, Need::NONE, look, |change, inode, xattrs| {
            change.set_xattrs(inode, xattrs)?;
            self.attributes_changed(inode.nid, None)
        })?;
        self.after_change()
    }

    fn fsync(&self, handle: &Handle, _data_only: bool) -> Result<()> {
        if self.media.space.is_none() {
            return self.ask(handle.ino, |inode| check_same_inode(handle, inode));
        }
        self.make_durable(handle)
    }

    fn sync(&self) -> Result<()> {
        if self.media.space.is_none() { Ok(()) } else { self.checkpoint() }
    }

    fn setattr(&self, cred: &Cred, ino: Ino, handle: Option<&Handle>, set: &SetAttr) -> Result<Attr> {
        let attr = self.set_attributes(cred, ino, handle, set)?;
        self.after_change().map(|()| attr)
    }

    fn make(&self, cred: &Cred, parent: Ino, name: Name<'_>, node: NewNode<'_>) -> Result<Attr> {
        let attr = self.make_named(cred, parent, name.bytes(), &node, |inode| inode.attr())?;
        self.after_name_change().map(|()| attr)
    }

    fn create(
        &self,
        cred: &Cred,
        parent: Ino,
        name: Name<'_>,
        perm: u16,
        flags: OpenFlags,
    ) -> Result<(Attr, Handle)> {
        let node = NewNode { kind: FileKind::Regular, perm, rdev: 0, target: &[] };
        let (attr, handle) = self.make_named(cred, parent, name.bytes(), &node, |inode| {
            self.opened.add(inode.nid, false);
            (inode.attr(), handle_of(inode, flags))
        })?;
        match self.after_name_change() {
            Ok(()) => Ok((attr, handle)),
            Err(error) => {
                self.release(handle);
                Err(error)
            }
        }
    }

    fn tmpfile(
        &self,
        cred: &Cred,
        dir: Ino,
        perm: u16,
        flags: OpenFlags,
        linkable: bool,
    ) -> Result<(Attr, Handle)> {
        if !flags.write {
            return Err(Error::InvalidArgument("a file without a name is opened for writing"));
        }
        let inode = self.make_nameless(cred, dir, perm, linkable)?;
        Ok((inode.attr(), handle_of(&inode, flags)))
    }

    fn link(&self, cred: &Cred, ino: Ino, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let inode = self.link_named(cred, ino, parent, name.bytes())?;
        self.after_name_change().map(|()| inode.attr())
    }

    fn unlink(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        self.unlink_named(cred, parent, name.bytes(), false)?;
        self.after_name_change()
    }

    fn rmdir(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        self.unlink_named(cred, parent, name.bytes(), true)?;
        self.after_name_change()
    }

    fn rename(
        &self,
        cred: &Cred,
        parent: Ino,
        name: Name<'_>,
        new_parent: Ino,
        new_name: Name<'_>,
        mode: RenameMode,
    ) -> Result<()> {
        if breaks(Breach::RenameInTwo) && mode == RenameMode::Replace {
            self.unlink_before_rename((parent, name), (new_parent, new_name))?;
        }
        self.rename_named(cred, (parent, name), (new_parent, new_name), mode)?;
        self.after_name_change()
    }

    fn write(&self, handle: &Handle, offset: u64, buf: &[u8]) -> Result<usize> {
        if buf.is_empty() {
            return self.ask(handle.ino, |inode| {
                check_same_inode(handle, inode)?;
                if handle.flags.write { Ok(0) } else { Err(Error::BadHandle) }
            });
        }
        let rest = if breaks(Breach::WritesInTwo) { self.write_half(handle, offset, buf)? } else { 0 };
        let len = rest + self.write_range(handle, offset + rest as u64, &buf[rest..])?;
        self.after_change_through(handle).map(|()| len)
    }

    fn append(&self, handle: &Handle, buf: &[u8]) -> Result<u64> {
        if buf.is_empty() {
            return self.ask(handle.ino, |inode| {
                check_same_inode(handle, inode)?;
                if handle.flags.write { Ok(inode.size_bytes) } else { Err(Error::BadHandle) }
            });
        }
        let before = breaks(Breach::AppendsAtOldEnd).then(|| self.old_end(handle)).transpose()?;
        let end = |inode: &Inode| before.unwrap_or(inode.size_bytes);
        let offset = self.write_exclusive(handle, buf, Alteration::Growth, end)?;
        self.after_change_through(handle).map(|()| offset)
    }

    fn size_max_bytes(&self, ino: Ino) -> Result<u64> {
        self.ask(ino, |inode| Ok(inode.size_max_bytes()))
    }

    fn fallocate(&self, handle: &Handle, op: RangeOp, offset: u64, len_bytes: u64) -> Result<()> {
        if len_bytes == 0 {
            return Err(Error::InvalidArgument("an empty range"));
        }
        let end = end_of(offset, len_bytes)?;
        if breaks(Breach::ShiftInTwo) && op == RangeOp::Collapse {
            self.punch_before_shift(handle, offset, end)?;
        }
        self.change_range(handle, op, offset, end)?;
        self.after_change_through(handle)
    }
}

impl F2fs {
    /// After a name was added or removed: makes that durable, if the mount demands it.
    fn after_name_change(&self) -> Result<()> {
        // ORDERING: Relaxed, set before the first call.
        if self.sync_names.load(Relaxed) { self.checkpoint() } else { Ok(()) }
    }

    /// The same after a change of attributes.
    fn after_change(&self) -> Result<()> {
        // ORDERING: Relaxed, set before the first call.
        if self.sync_content.load(Relaxed) { self.checkpoint() } else { Ok(()) }
    }

    /// The same after a change through an open file.
    fn after_change_through(&self, handle: &Handle) -> Result<()> {
        // ORDERING: Relaxed, set before the first call.
        if self.sync_content.load(Relaxed) { self.make_durable(handle) } else { Ok(()) }
    }

    /// Piece by piece: each piece leaves a consistent file, and has its own reservation.
    fn change_range(&self, handle: &Handle, op: RangeOp, offset: u64, end: u64) -> Result<()> {
        let alteration = match op {
            RangeOp::Allocate { .. } => Alteration::Growth,
            _ => Alteration::Content,
        };
        let mut at = offset;
        while at < end {
            let look = |inode: &Inode| {
                inode.check_allowed(alteration)?;
                if at == offset && matches!(op, RangeOp::Allocate { .. } | RangeOp::Zero { .. }) {
                    self.check_space_for(inode, offset, end)?;
                }
                let piece_end = self.media.piece_end(inode, op, at, end)?;
                // Only the last piece changes the size.
                let op = if piece_end < end { keeping_size(op) } else { op };
                Ok(((op, piece_end), self.media.need_of_range(inode, op, at, piece_end)?))
            };
            at = self.alter_content(handle, Need::NONE, look, |change, inode, (of_piece, piece_end)| {
                change.change_range(inode.nid, *of_piece, at, *piece_end)?;
                change.mark_kept_size(inode.nid, *of_piece, *piece_end).map(|()| *piece_end)
            })?;
        }
        Ok(())
    }

    /// Checked before anything is reserved: most impossible requests are mistakes.
    fn check_space_for(&self, inode: &Inode, offset: u64, end: u64) -> Result<()> {
        let pages = pages_of(offset, end);
        let space = self.media.space()?;
        inode.check_room_to(pages.end)?;
        let many = (pages.end - pages.start).saturating_sub(inode.block().blocks.get());
        if !inode.keeps_inline(end) && !space.has(many) {
            return Err(Error::NoSpace);
        }
        let need = self.media.need_to_write(inode, offset, end)?;
        if space.has(need.pages + need.nodes) { Ok(()) } else { Err(Error::NoSpace) }
    }

    fn list(&self, dir: &Inode, from: Cookie, listing: &mut Listing) -> Result<()> {
        if dir.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        listing.clear();
        let listed = self.media.list(dir, from.0, &mut |entry| {
            if entry.is_dots() {
                return Ok(false);
            }
            let (ino, kind, next) = (ino_of(entry.nid), entry.kind, Cookie(entry.next()));
            Ok(!listing.push(&DirEntry { ino, kind, name: Name::new(entry.name)?, next }))
        });
        // Readable entries come first; a listing that continues after them meets the damage again.
        if listing.is_empty() { listed } else { Ok(()) }
    }

    fn attributes_changed(&self, nid: Nid, perm: Option<u16>) -> Result<()> {
        let now = now();
        self.media.change_inode(nid, |block| {
            if let Some(perm) = perm {
                block.mode.set(block.mode.get() & !0o7777 | perm);
            }
            set_time(&mut block.ctime, &mut block.ctime_ns, now);
        })
    }
}
