//! The engine behind the interface: reading. Every change is [`Error::ReadOnly`].

use crate::inode::{Inode, ino_of, nid_of};
use crate::media::Media;
use crate::volume::F2fs;
use heddle_vfs::xattr::{Subject, may_get};
use heddle_vfs::{
    Attr, Cookie, Cred, DirEntry, Error, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags,
    Permission, RangeOp, RenameMode, Result, SeekTarget, SetAttr, SetXattr, StatFs, XattrName,
};

impl F2fs {
    fn inode(&self, ino: Ino) -> Result<Inode> {
        self.media.inode(nid_of(ino)?)
    }

    /// A directory that the caller may search.
    fn directory(&self, cred: &Cred, ino: Ino) -> Result<Inode> {
        let dir = self.inode(ino)?;
        if dir.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        self.check(&dir, cred, Permission::EXECUTE)?;
        Ok(dir)
    }

    fn check(&self, inode: &Inode, cred: &Cred, want: Permission) -> Result<()> {
        let attr = inode.attr();
        // A list is looked for only where it could decide.
        let list = !cred.is_root() && cred.uid != attr.uid && attr.perm & 0o070 != 0;
        let acl = if list { self.media.xattrs(inode)?.acl(XattrName::ACL_ACCESS) } else { None };
        cred.check_acl(attr.kind, attr.perm, (attr.uid, attr.gid), acl.as_ref(), want)
    }

    fn named(&self, cred: &Cred, parent: Ino, name: &[u8]) -> Result<Inode> {
        let dir = self.directory(cred, parent)?;
        let (nid, _) = self.media.look_up(&dir, name)?.ok_or(Error::NotFound)?;
        self.child(&dir, nid)
    }

    /// The inode that an entry names.
    fn child(&self, dir: &Inode, nid: crate::ids::Nid) -> Result<Inode> {
        self.media.inode(nid).map_err(|error| match error {
            Error::Stale => {
                Error::Corrupt(format!("directory {} names inode {}, which is free", dir.nid.0, nid.0))
            }
            other => other,
        })
    }

    /// An open file that may be read.
    fn opened(&self, handle: &Handle) -> Result<Inode> {
        let inode = self.inode(handle.ino)?;
        if u64::from(inode.block().generation.get()) == handle.token { Ok(inode) } else { Err(Error::Stale) }
    }
}

/// Free numbers, as far as blocks are left for them.
fn statfs(media: &Media, head: &crate::format::CheckpointHead) -> StatFs {
    let blocks_free = head.blocks_user.get().saturating_sub(head.blocks_valid.get());
    // The first three numbers, and number 0, are no files.
    let numbers = u64::from(media.geometry.nids()).saturating_sub(4);
    let inodes = u64::from(head.inodes_valid.get());
    let inodes_free = numbers.saturating_sub(u64::from(head.nodes_valid.get())).min(blocks_free);
    StatFs {
        block_size_bytes: crate::format::BLOCK_BYTES as u32,
        blocks_total: head.blocks_user.get(),
        blocks_free,
        blocks_available: blocks_free,
        inodes_total: inodes + inodes_free,
        inodes_free,
        name_max_bytes: heddle_vfs::NAME_MAX_BYTES as u32,
    }
}

impl FileSystem for F2fs {
    fn statfs(&self) -> Result<StatFs> {
        Ok(statfs(&self.media, &self.checkpoint.head))
    }

    fn lookup(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<Attr> {
        self.named(cred, parent, name.bytes()).map(|inode| inode.attr())
    }

    fn step(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<(Ino, FileKind)> {
        let dir = self.directory(cred, parent)?;
        let (nid, kind) = self.media.look_up(&dir, name.bytes())?.ok_or(Error::NotFound)?;
        Ok((ino_of(nid), kind))
    }

    fn parent(&self, dir: Ino) -> Result<Ino> {
        self.named(&Cred::root(), dir, b"..").map(|above| ino_of(above.nid))
    }

    fn getattr(&self, ino: Ino) -> Result<Attr> {
        self.inode(ino).map(|inode| inode.attr())
    }

    fn access(&self, cred: &Cred, ino: Ino, want: Permission) -> Result<()> {
        self.check(&self.inode(ino)?, cred, want)
    }

    fn readlink(&self, ino: Ino) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        if inode.kind != FileKind::Symlink {
            return Err(Error::InvalidArgument("not a symbolic link"));
        }
        // Paths are shorter than a block.
        let mut target = vec![0; inode.size_bytes.min(crate::format::BLOCK_BYTES as u64) as usize];
        let len = self.media.read(&inode, 0, &mut target)?;
        target.truncate(len);
        Ok(target)
    }

    fn open(&self, cred: &Cred, ino: Ino, flags: OpenFlags) -> Result<Handle> {
        let inode = self.inode(ino)?;
        match inode.kind {
            FileKind::Directory if flags.write || flags.truncate => return Err(Error::IsDirectory),
            FileKind::Regular | FileKind::Directory => {}
            FileKind::Symlink => return Err(Error::Loop),
            _ => return Err(Error::InvalidArgument("devices, pipes and sockets are opened by the kernel")),
        }
        if flags.write || flags.truncate {
            return Err(Error::ReadOnly);
        }
        inode.readable()?;
        let want = if flags.read { Permission::READ } else { Permission(0) };
        self.check(&inode, cred, want)?;
        Ok(Handle { ino, flags, token: u64::from(inode.block().generation.get()) })
    }

    fn release(&self, _handle: Handle) {}

    fn read(&self, handle: &Handle, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inode = self.opened(handle)?;
        match inode.kind {
            FileKind::Directory => Err(Error::IsDirectory),
            _ if !handle.flags.read => Err(Error::BadHandle),
            _ => self.media.read(&inode, offset, buf),
        }
    }

    fn seek(&self, handle: &Handle, target: SeekTarget, offset: u64) -> Result<u64> {
        self.media.seek(&self.opened(handle)?, target, offset)
    }

    fn readdir(
        &self,
        handle: &Handle,
        from: Cookie,
        emit: &mut dyn FnMut(DirEntry<'_>) -> bool,
    ) -> Result<()> {
        let dir = self.opened(handle)?;
        if dir.kind != FileKind::Directory {
            return Err(Error::NotDirectory);
        }
        self.media.list(&dir, from.0, &mut |entry| {
            if entry.is_dots() {
                return Ok(false);
            }
            let name = Name::new(entry.name).map_err(|_| {
                Error::Corrupt(format!(
                    "directory {}: entry {} has a name that none can have",
                    dir.nid.0, entry.place
                ))
            })?;
            let next = Cookie(entry.place + 1);
            Ok(!emit(DirEntry { ino: ino_of(entry.nid), kind: entry.kind, name, next }))
        })
    }

    fn getxattr(&self, cred: &Cred, ino: Ino, name: XattrName<'_>) -> Result<Vec<u8>> {
        let inode = self.inode(ino)?;
        let attr = inode.attr();
        let check = |want| self.check(&inode, cred, want);
        let subject =
            Subject { kind: attr.kind, perm: attr.perm, owner: (attr.uid, attr.gid), check: &check };
        may_get(subject, cred, name)?;
        self.media.xattrs(&inode)?.get(name).map(<[u8]>::to_vec)
    }

    fn listxattr(&self, cred: &Cred, ino: Ino) -> Result<Vec<u8>> {
        Ok(self.media.xattrs(&self.inode(ino)?)?.list(cred))
    }

    fn fsync(&self, handle: &Handle, _data_only: bool) -> Result<()> {
        self.opened(handle).map(|_| ())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn setattr(&self, _: &Cred, _: Ino, _: Option<&Handle>, _: &SetAttr) -> Result<Attr> {
        Err(Error::ReadOnly)
    }

    fn make(&self, _: &Cred, _: Ino, _: Name<'_>, _: NewNode<'_>) -> Result<Attr> {
        Err(Error::ReadOnly)
    }

    fn create(&self, _: &Cred, _: Ino, _: Name<'_>, _: u16, _: OpenFlags) -> Result<(Attr, Handle)> {
        Err(Error::ReadOnly)
    }

    fn link(&self, _: &Cred, _: Ino, _: Ino, _: Name<'_>) -> Result<Attr> {
        Err(Error::ReadOnly)
    }

    fn unlink(&self, _: &Cred, _: Ino, _: Name<'_>) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn rmdir(&self, _: &Cred, _: Ino, _: Name<'_>) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn rename(&self, _: &Cred, _: Ino, _: Name<'_>, _: Ino, _: Name<'_>, _: RenameMode) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn write(&self, _: &Handle, _: u64, _: &[u8]) -> Result<usize> {
        Err(Error::BadHandle)
    }

    fn append(&self, _: &Handle, _: &[u8]) -> Result<u64> {
        Err(Error::BadHandle)
    }

    fn fallocate(&self, _: &Handle, _: RangeOp, _: u64, _: u64) -> Result<()> {
        Err(Error::BadHandle)
    }

    fn setxattr(&self, _: &Cred, _: Ino, _: XattrName<'_>, _: &[u8], _: SetXattr) -> Result<()> {
        Err(Error::ReadOnly)
    }

    fn removexattr(&self, _: &Cred, _: Ino, _: XattrName<'_>) -> Result<()> {
        Err(Error::ReadOnly)
    }
}
