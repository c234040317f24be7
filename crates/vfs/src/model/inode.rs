//! An inode of the model: its attributes and what it holds.

use std::collections::BTreeMap;

use super::content::Content;
use crate::xattr::Xattrs;
use crate::{Attr, Cookie, Cred, Error, FileKind, Ino, Permission, Result, Time, XattrName};

pub(super) struct Inode {
    pub(super) ino: Ino,
    pub(super) perm: u16,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) rdev: u32,
    pub(super) nlink: u32,
    pub(super) openers: u32,
    pub(super) atime: Time,
    pub(super) mtime: Time,
    pub(super) ctime: Time,
    pub(super) crtime: Time,
    pub(super) xattrs: Xattrs,
    /// Made without a name, and may still get one.
    pub(super) linkable: bool,
    pub(super) body: Body,
}

pub(super) enum Body {
    File(Content),
    Directory(Directory),
    Symlink(Vec<u8>),
    Special(FileKind),
}

/// Entries by name; each keeps the cookie it got when it came, so that places stay valid.
pub(super) struct Directory {
    pub(super) parent: Ino,
    pub(super) entries: BTreeMap<Vec<u8>, Entry>,
    next_cookie: u64,
}

#[derive(Clone, Copy)]
pub(super) struct Entry {
    pub(super) ino: Ino,
    pub(super) kind: FileKind,
    pub(super) cookie: Cookie,
}

impl Inode {
    pub(super) fn new(ino: Ino, body: Body, perm: u16, uid: u32, gid: u32, now: Time) -> Inode {
        let nlink = if matches!(body, Body::Directory(_)) { 2 } else { 1 };
        Inode {
            ino,
            perm,
            uid,
            gid,
            rdev: 0,
            nlink,
            openers: 0,
            atime: now,
            mtime: now,
            ctime: now,
            crtime: now,
            xattrs: Xattrs::default(),
            linkable: false,
            body,
        }
    }

    pub(super) fn kind(&self) -> FileKind {
        match &self.body {
            Body::File(_) => FileKind::Regular,
            Body::Directory(_) => FileKind::Directory,
            Body::Symlink(_) => FileKind::Symlink,
            Body::Special(kind) => *kind,
        }
    }

    pub(super) fn attr(&self) -> Attr {
        let (size_bytes, blocks_512) = match &self.body {
            Body::File(content) => (content.size_bytes(), content.blocks_512()),
            Body::Directory(directory) => (directory.entries.len() as u64, 0),
            Body::Symlink(target) => (target.len() as u64, 0),
            Body::Special(_) => (0, 0),
        };
        Attr {
            ino: self.ino,
            generation: 1,
            kind: self.kind(),
            perm: self.perm,
            nlink: self.nlink,
            uid: self.uid,
            gid: self.gid,
            rdev: self.rdev,
            size_bytes,
            blocks_512,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            crtime: self.crtime,
        }
    }

    pub(super) fn check(&self, cred: &Cred, want: Permission) -> Result<()> {
        let acl = self.xattrs.acl(XattrName::ACL_ACCESS);
        cred.check_acl(self.kind(), self.perm, (self.uid, self.gid), acl.as_ref(), want)
    }

    pub(super) fn owned_by(&self, cred: &Cred) -> bool {
        cred.is_root() || cred.uid == self.uid
    }

    pub(super) fn dir(&self) -> Result<&Directory> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Error::NotDirectory),
        }
    }

    pub(super) fn dir_mut(&mut self) -> Result<&mut Directory> {
        match &mut self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(Error::NotDirectory),
        }
    }

    pub(super) fn content(&self) -> Result<&Content> {
        match &self.body {
            Body::File(content) => Ok(content),
            Body::Directory(_) => Err(Error::IsDirectory),
            _ => Err(Error::InvalidArgument("not a regular file")),
        }
    }

    pub(super) fn content_mut(&mut self) -> Result<&mut Content> {
        match &mut self.body {
            Body::File(content) => Ok(content),
            Body::Directory(_) => Err(Error::IsDirectory),
            _ => Err(Error::InvalidArgument("not a regular file")),
        }
    }

    pub(super) fn symlink_target(&self) -> Result<Vec<u8>> {
        match &self.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Error::InvalidArgument("not a symbolic link")),
        }
    }

    /// The content or the entries have changed.
    pub(super) fn modified(&mut self, now: Time) {
        self.mtime = now;
        self.ctime = now;
    }

    /// The set-id bits that a change of content or owner takes away from an executable.
    pub(super) fn drop_set_id_bits(&mut self) {
        self.perm &= !0o4000;
        if self.perm & 0o010 != 0 {
            self.perm &= !0o2000;
        }
    }
}

impl Directory {
    pub(super) fn new(parent: Ino) -> Directory {
        Directory { parent, entries: BTreeMap::new(), next_cookie: 1 }
    }

    pub(super) fn insert(&mut self, name: &[u8], ino: Ino, kind: FileKind) {
        let cookie = Cookie(self.next_cookie);
        self.next_cookie += 1;
        self.entries.insert(name.to_vec(), Entry { ino, kind, cookie });
    }
}
