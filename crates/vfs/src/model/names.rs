//! Names of the model: look up, make, link, unlink, rename.

use super::State;
use super::content::Content;
use super::inode::{Body, Directory, Entry, Inode};
use crate::xattr::Xattrs;
use crate::{
    Attr, Cred, Error, FileKind, Handle, Ino, Name, NewNode, OpenFlags, Permission, RenameMode, Result, Time,
    XattrName,
};

/// Longest target of a symbolic link, as Linux' `PATH_MAX` less its NUL.
const TARGET_MAX_BYTES: usize = 4095;

impl State {
    pub(super) fn lookup(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<Attr> {
        let entry = self.search(cred, parent, name)?.ok_or(Error::NotFound)?;
        Ok(self.inode(entry.ino)?.attr())
    }

    /// The entry of that name, if the directory may be searched.
    fn search(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<Option<Entry>> {
        let parent = self.inode(parent)?;
        let directory = parent.dir()?;
        parent.check(cred, Permission::EXECUTE)?;
        Ok(directory.entries.get(name.bytes()).copied())
    }

    /// May this name come to this directory?
    fn may_add(&self, cred: &Cred, parent: Ino, name: Name<'_>) -> Result<()> {
        if self.search(cred, parent, name)?.is_some() {
            return Err(Error::Exists);
        }
        self.may_add_absent(cred, parent)
    }

    fn may_add_absent(&self, cred: &Cred, parent: Ino) -> Result<()> {
        let parent = self.inode(parent)?;
        if parent.nlink == 0 {
            return Err(Error::NotFound);
        }
        parent.check(cred, Permission::WRITE_EXECUTE)
    }

    /// May this entry leave this directory?
    fn may_remove(&self, cred: &Cred, parent: Ino, entry: Entry) -> Result<()> {
        let parent = self.inode(parent)?;
        parent.check(cred, Permission::WRITE_EXECUTE)?;
        let sticky = parent.perm & 0o1000 != 0;
        if sticky && !parent.owned_by(cred) && !self.inode(entry.ino)?.owned_by(cred) {
            return Err(Error::NotPermitted);
        }
        Ok(())
    }

    pub(super) fn make(
        &mut self,
        cred: &Cred,
        parent: Ino,
        name: Name<'_>,
        node: NewNode<'_>,
        now: Time,
    ) -> Result<Attr> {
        if node.kind == FileKind::Symlink && node.target.is_empty() {
            return Err(Error::NotFound);
        }
        if node.target.len() > TARGET_MAX_BYTES {
            return Err(Error::NameTooLong);
        }
        self.may_add(cred, parent, name)?;
        let device = matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice);
        if device && !cred.is_root() {
            return Err(Error::NotPermitted);
        }
        let ino = self.add_inode(cred, parent, &node, now)?;
        self.enter(parent, name, ino, now)?;
        Ok(self.inode(ino)?.attr())
    }

    pub(super) fn create(
        &mut self,
        cred: &Cred,
        parent: Ino,
        name: Name<'_>,
        perm: u16,
        flags: OpenFlags,
        now: Time,
    ) -> Result<(Attr, Handle)> {
        let node = NewNode { kind: FileKind::Regular, perm, rdev: 0, target: &[] };
        let attr = self.make(cred, parent, name, node, now)?;
        Ok((attr, self.hand_out(attr.ino, flags)?))
    }

    pub(super) fn tmpfile(
        &mut self,
        cred: &Cred,
        dir: Ino,
        perm: u16,
        flags: OpenFlags,
        linkable: bool,
        now: Time,
    ) -> Result<(Attr, Handle)> {
        if !flags.write {
            return Err(Error::InvalidArgument("a file without a name is opened for writing"));
        }
        let above = self.inode(dir)?;
        above.dir()?;
        if above.nlink == 0 {
            return Err(Error::NotFound);
        }
        above.check(cred, Permission::WRITE_EXECUTE)?;
        let node = NewNode { kind: FileKind::Regular, perm, rdev: 0, target: &[] };
        let ino = self.add_inode(cred, dir, &node, now)?;
        let inode = self.inode_mut(ino)?;
        (inode.nlink, inode.linkable) = (0, linkable);
        let attr = inode.attr();
        Ok((attr, self.hand_out(ino, flags)?))
    }

    fn add_inode(&mut self, cred: &Cred, parent: Ino, node: &NewNode<'_>, now: Time) -> Result<Ino> {
        let above = self.inode(parent)?;
        let inherits_group = above.perm & 0o2000 != 0;
        let gid = if inherits_group { above.gid } else { cred.gid };
        let ino = Ino(self.next_ino);
        let default = above.xattrs.acl(XattrName::ACL_DEFAULT);
        let (mut perm, xattrs) = Xattrs::for_new(default.as_ref(), cred, node.kind, node.perm & 0o7777);
        let body = match node.kind {
            FileKind::Regular => Body::File(Content::default()),
            FileKind::Directory => Body::Directory(Directory::new(parent)),
            FileKind::Symlink => Body::Symlink(node.target.to_vec()),
            special => Body::Special(special),
        };
        match node.kind {
            FileKind::Directory if inherits_group => perm |= 0o2000,
            FileKind::Directory | FileKind::Symlink => {}
            _ if node.perm & 0o2010 == 0o2010 && !cred.is_root() && !cred.in_group(gid) => perm &= !0o2000,
            _ => {}
        }
        let mut inode = Inode::new(ino, body, perm, cred.uid, gid, now);
        inode.xattrs = xattrs;
        if matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice) {
            inode.rdev = node.rdev;
        }
        self.next_ino += 1;
        self.inodes.insert(ino, inode);
        Ok(ino)
    }

    /// Puts an inode under a free name; a directory gets its `..`.
    fn enter(&mut self, parent: Ino, name: Name<'_>, ino: Ino, now: Time) -> Result<()> {
        let kind = self.inode(ino)?.kind();
        if kind == FileKind::Directory {
            self.inode_mut(ino)?.dir_mut()?.parent = parent;
            self.inode_mut(parent)?.nlink += 1;
        }
        let above = self.inode_mut(parent)?;
        above.dir_mut()?.insert(name.bytes(), ino, kind);
        above.modified(now);
        Ok(())
    }

    /// Takes a name away without touching the inode's link count.
    fn leave(&mut self, parent: Ino, name: Name<'_>, now: Time) -> Result<()> {
        let above = self.inode_mut(parent)?;
        let gone = above.dir_mut()?.entries.remove(name.bytes());
        if gone.is_some_and(|entry| entry.kind == FileKind::Directory) {
            above.nlink -= 1;
        }
        above.modified(now);
        Ok(())
    }

    /// An inode has lost a name (a directory its only one).
    fn lose_link(&mut self, ino: Ino, now: Time) -> Result<()> {
        let inode = self.inode_mut(ino)?;
        inode.nlink = if inode.kind() == FileKind::Directory { 0 } else { inode.nlink - 1 };
        inode.ctime = now;
        self.drop_if_unused(ino);
        Ok(())
    }

    pub(super) fn link(
        &mut self,
        cred: &Cred,
        ino: Ino,
        parent: Ino,
        name: Name<'_>,
        now: Time,
    ) -> Result<Attr> {
        self.may_add(cred, parent, name)?;
        let inode = self.inode_mut(ino)?;
        if inode.kind() == FileKind::Directory {
            return Err(Error::NotPermitted);
        }
        if inode.nlink == 0 && !inode.linkable {
            return Err(Error::NotFound);
        }
        inode.linkable = false;
        inode.nlink = inode.nlink.checked_add(1).ok_or(Error::TooManyLinks)?;
        inode.ctime = now;
        self.enter(parent, name, ino, now)?;
        Ok(self.inode(ino)?.attr())
    }

    pub(super) fn unlink(&mut self, cred: &Cred, parent: Ino, name: Name<'_>, now: Time) -> Result<()> {
        let entry = self.search(cred, parent, name)?.ok_or(Error::NotFound)?;
        self.may_remove(cred, parent, entry)?;
        if entry.kind == FileKind::Directory {
            return Err(Error::IsDirectory);
        }
        self.leave(parent, name, now)?;
        self.lose_link(entry.ino, now)
    }

    pub(super) fn rmdir(&mut self, cred: &Cred, parent: Ino, name: Name<'_>, now: Time) -> Result<()> {
        let entry = self.search(cred, parent, name)?.ok_or(Error::NotFound)?;
        self.may_remove(cred, parent, entry)?;
        if !self.inode(entry.ino)?.dir()?.entries.is_empty() {
            return Err(Error::NotEmpty);
        }
        self.leave(parent, name, now)?;
        self.lose_link(entry.ino, now)
    }

    pub(super) fn rename(
        &mut self,
        cred: &Cred,
        from: (Ino, Name<'_>),
        to: (Ino, Name<'_>),
        mode: RenameMode,
        now: Time,
    ) -> Result<()> {
        let old = self.search(cred, from.0, from.1);
        let target = self.search(cred, to.0, to.1);
        let (old, target) = (old?, target?);
        let old = old.ok_or(Error::NotFound)?;
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            _ => {}
        }
        self.check_loops(from.0, to.0, old, target, mode)?;
        if target.is_some_and(|target| target.ino == old.ino) {
            return Ok(());
        }
        self.may_move(cred, from.0, to.0, old, target, mode)?;

        self.leave(from.0, from.1, now)?;
        if let Some(target) = target {
            self.leave(to.0, to.1, now)?;
            match mode {
                RenameMode::Exchange => {
                    self.enter(from.0, from.1, target.ino, now)?;
                    self.inode_mut(target.ino)?.ctime = now;
                }
                _ => self.lose_link(target.ino, now)?,
            }
        }
        self.enter(to.0, to.1, old.ino, now)?;
        self.inode_mut(old.ino)?.ctime = now;
        Ok(())
    }

    /// No directory goes below itself, and none is replaced by what is below it.
    fn check_loops(
        &self,
        from: Ino,
        to: Ino,
        old: Entry,
        target: Option<Entry>,
        mode: RenameMode,
    ) -> Result<()> {
        if self.is_at_or_above(old.ino, to)? {
            return Err(Error::InvalidArgument("a directory cannot be moved below itself"));
        }
        match target {
            Some(target) if self.is_at_or_above(target.ino, from)? => Err(match mode {
                RenameMode::Exchange => Error::InvalidArgument("a directory cannot be moved below itself"),
                _ => Error::NotEmpty,
            }),
            _ => Ok(()),
        }
    }

    fn is_at_or_above(&self, ino: Ino, mut dir: Ino) -> Result<bool> {
        loop {
            if dir == ino {
                return Ok(true);
            }
            let Some(inode) = self.inodes.get(&dir).filter(|_| dir != Ino::ROOT) else { return Ok(false) };
            dir = inode.dir()?.parent;
        }
    }

    fn may_move(
        &self,
        cred: &Cred,
        from: Ino,
        to: Ino,
        old: Entry,
        target: Option<Entry>,
        mode: RenameMode,
    ) -> Result<()> {
        self.may_remove(cred, from, old)?;
        let old_is_dir = old.kind == FileKind::Directory;
        match target {
            None => self.may_add_absent(cred, to)?,
            Some(target) => {
                self.may_remove(cred, to, target)?;
                let target_is_dir = target.kind == FileKind::Directory;
                match (mode, old_is_dir, target_is_dir) {
                    (RenameMode::Exchange, ..) => {}
                    (_, true, false) => return Err(Error::NotDirectory),
                    (_, false, true) => return Err(Error::IsDirectory),
                    _ => {}
                }
            }
        }
        if from != to {
            if old_is_dir {
                self.inode(old.ino)?.check(cred, Permission::WRITE)?;
            }
            if let Some(target) =
                target.filter(|t| mode == RenameMode::Exchange && t.kind == FileKind::Directory)
            {
                self.inode(target.ino)?.check(cred, Permission::WRITE)?;
            }
        }
        match target {
            Some(target) if mode != RenameMode::Exchange && target.kind == FileKind::Directory => {
                let empty = self.inode(target.ino)?.dir()?.entries.is_empty();
                if empty { Ok(()) } else { Err(Error::NotEmpty) }
            }
            _ => Ok(()),
        }
    }
}
