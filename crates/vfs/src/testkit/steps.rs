//! Steps of a test: the call, its caller and its result, in a form that compares two file systems.

use std::collections::BTreeMap;

use super::time_if_set_by_test;
use crate::{
    Attr, Cookie, Cred, FileKind, FileSystem, Handle, Name, NewNode, OpenFlags, RangeOp, RenameMode, Result,
    SeekTarget, SetAttr, SetTime, SetXattr, Time, XattrName, path,
};

/// Which calls are made: an engine that lacks some takes them out with [`Calls::without`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Calls(u32);

impl Calls {
    /// Everything.
    pub const ALL: Calls = Calls(u32::MAX);
    /// Nothing but files in the root: create, open, read, write, unlink.
    pub const NONE: Calls = Calls(0);
    /// Hard links.
    pub const LINK: Calls = Calls(1 << 0);
    /// Symbolic links.
    pub const SYMLINK: Calls = Calls(1 << 1);
    /// Renames of every mode but exchange.
    pub const RENAME: Calls = Calls(1 << 2);
    /// Renames that exchange.
    pub const EXCHANGE: Calls = Calls(1 << 3);
    /// Pipes, and regular files made without opening them.
    pub const SPECIAL: Calls = Calls(1 << 4);
    /// Changes of mode, owner and times.
    pub const ATTRIBUTES: Calls = Calls(1 << 5);
    /// Calls by others than root.
    pub const USERS: Calls = Calls(1 << 6);
    /// Appends.
    pub const APPEND: Calls = Calls(1 << 7);
    /// Size changes.
    pub const TRUNCATE: Calls = Calls(1 << 8);
    /// Preallocation.
    pub const ALLOCATE: Calls = Calls(1 << 9);
    /// Holes punched.
    pub const PUNCH: Calls = Calls(1 << 10);
    /// Ranges zeroed.
    pub const ZERO: Calls = Calls(1 << 11);
    /// Ranges cut out and inserted.
    pub const SHIFT: Calls = Calls(1 << 12);
    /// Search for data and holes.
    pub const SEEK: Calls = Calls(1 << 13);
    /// Modes with set-id bits: not for an engine that takes them away on every write.
    pub const SET_ID: Calls = Calls(1 << 15);
    /// Directories below the root.
    pub const DIRECTORIES: Calls = Calls(1 << 14);
    /// Extended attributes.
    pub const XATTR: Calls = Calls(1 << 16);
    /// Attributes of more than a page.
    pub const LARGE_XATTR: Calls = Calls(1 << 17);
    /// Access control lists.
    pub const ACL: Calls = Calls(1 << 18);
    /// Files without a name, and giving them one.
    pub const TMPFILE: Calls = Calls(1 << 19);
    /// Copies between files.
    pub const COPY: Calls = Calls(1 << 20);

    /// These and those.
    pub const fn with(self, those: Calls) -> Calls {
        Calls(self.0 | those.0)
    }

    /// These, less those.
    pub const fn without(self, those: Calls) -> Calls {
        Calls(self.0 & !those.0)
    }

    pub(super) fn has(self, one: Calls) -> bool {
        self.0 & one.0 != 0
    }
}

/// The caller.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Who {
    /// User 0.
    Root,
    /// User and group 1000.
    User,
    /// User and group 1001, also in group 1000.
    Friend,
}

impl Who {
    /// The credentials.
    pub fn cred(self) -> Cred {
        match self {
            Who::Root => Cred::root(),
            Who::User => Cred { uid: 1000, gid: 1000, groups: vec![], umask: 0 },
            Who::Friend => Cred { uid: 1001, gid: 1001, groups: vec![1000], umask: 0o027 },
        }
    }
}

/// A call. `file` picks one of the files open at that time, whatever its value.
#[derive(Clone, PartialEq, Debug)]
#[allow(missing_docs)]
pub enum Act {
    Make {
        path: String,
        kind: FileKind,
        perm: u16,
    },
    Symlink {
        path: String,
        target: String,
    },
    Create {
        path: String,
        perm: u16,
        flags: OpenFlags,
    },
    Open {
        path: String,
        flags: OpenFlags,
    },
    Release {
        file: usize,
    },
    Link {
        from: String,
        to: String,
    },
    Unlink {
        path: String,
    },
    Rmdir {
        path: String,
    },
    Rename {
        from: String,
        to: String,
        mode: RenameMode,
    },
    Write {
        file: usize,
        offset: u64,
        len: usize,
        fill: u8,
    },
    Append {
        file: usize,
        len: usize,
        fill: u8,
    },
    Read {
        file: usize,
        offset: u64,
        len: usize,
    },
    Truncate {
        path: String,
        size_bytes: u64,
    },
    TruncateOpen {
        file: usize,
        size_bytes: u64,
    },
    Fallocate {
        file: usize,
        op: RangeOp,
        offset: u64,
        len_bytes: u64,
    },
    Seek {
        file: usize,
        target: SeekTarget,
        offset: u64,
    },
    Fsync {
        file: usize,
    },
    /// `to` picks the file that is written.
    CopyRange {
        file: usize,
        offset: u64,
        to: usize,
        offset_to: u64,
        len_bytes: u64,
    },
    TmpFile {
        path: String,
        perm: u16,
        flags: OpenFlags,
        linkable: bool,
    },
    LinkOpen {
        file: usize,
        to: String,
    },
    SetXattr {
        path: String,
        name: String,
        value: Vec<u8>,
        how: SetXattr,
    },
    GetXattr {
        path: String,
        name: String,
    },
    ListXattrs {
        path: String,
    },
    RemoveXattr {
        path: String,
        name: String,
    },
    SetMode {
        path: String,
        perm: u16,
    },
    SetOwner {
        path: String,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    SetTimes {
        path: String,
        atime: Option<SetTime>,
        mtime: Option<SetTime>,
    },
    Stat {
        path: String,
    },
    ReadDir {
        path: String,
    },
    ReadLink {
        path: String,
    },
    /// All files are closed; then the engine is taken down and brought up again.
    Remount,
}

/// A call and its caller.
#[derive(Clone, PartialEq, Debug)]
pub struct Step {
    /// The caller.
    pub who: Who,
    /// What.
    pub act: Act,
}

/// What came back.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It worked.
    Done,
    /// It could not be tried: no file is open, or too many are.
    Skipped,
    /// Attributes.
    Stat(Stat),
    /// Bytes read, or a link's target.
    Bytes(Vec<u8>),
    /// Bytes written, or an offset.
    Number(u64),
    /// Entries of a directory.
    Entries(BTreeMap<Vec<u8>, FileKind>),
    /// The errno.
    Failed(i32),
}

/// The attributes two file systems must agree on.
#[derive(Clone, PartialEq, Eq, Debug)]
#[allow(missing_docs)]
pub struct Stat {
    pub kind: FileKind,
    pub perm: u16,
    pub nlink: u32,
    pub uid: u32,
    pub gid: u32,
    pub size_bytes: u64,
    pub mtime: Option<Time>,
}

impl From<Attr> for Stat {
    fn from(attr: Attr) -> Stat {
        let size_bytes = if attr.kind == FileKind::Directory { 0 } else { attr.size_bytes };
        let Attr { kind, perm, nlink, uid, gid, mtime, .. } = attr;
        Stat { kind, perm, nlink, uid, gid, size_bytes, mtime: time_if_set_by_test(mtime) }
    }
}

/// The files a run holds open.
#[derive(Default)]
pub struct OpenFiles(Vec<Handle>);

impl OpenFiles {
    const MAX: usize = 8;

    /// The file that `file` of an [`Act`] means.
    pub fn get(&self, file: usize) -> Option<&Handle> {
        self.0.get(file % self.0.len().max(1))
    }

    /// Closes all.
    pub fn close_all(&mut self, fs: &dyn FileSystem) {
        for handle in self.0.drain(..) {
            fs.release(handle);
        }
    }

    fn keep(&mut self, handle: Handle) -> Outcome {
        self.0.push(handle);
        Outcome::Done
    }
}

/// The bytes a [`Act::Write`] writes: they depend on the place in the file, so that shifted data is noticed.
pub(super) fn pattern(fill: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| fill.wrapping_add((at % 251) as u8) | 1).collect()
}

/// Carries out a step; [`Act::Remount`] only closes the files, the rest is the caller's.
pub fn play(fs: &dyn FileSystem, open: &mut OpenFiles, step: &Step) -> Outcome {
    attempt(fs, open, &step.who.cred(), &step.act).unwrap_or_else(|error| Outcome::Failed(error.errno()))
}

fn attempt(fs: &dyn FileSystem, open: &mut OpenFiles, cred: &Cred, act: &Act) -> Result<Outcome> {
    match act {
        Act::Create { .. } | Act::Open { .. } | Act::TmpFile { .. } if open.0.len() >= OpenFiles::MAX => {
            Ok(Outcome::Skipped)
        }
        Act::TmpFile { path, perm, flags, linkable } => {
            let dir = path::resolve(fs, cred, path)?.ino;
            Ok(open.keep(fs.tmpfile(cred, dir, *perm, *flags, *linkable)?.1))
        }
        Act::Create { path, perm, flags } => {
            let (parent, name) = path::resolve_parent(fs, cred, path)?;
            Ok(open.keep(fs.create(cred, parent, name, *perm, *flags)?.1))
        }
        Act::Open { path, flags } => {
            let ino = path::resolve(fs, cred, path)?.ino;
            Ok(open.keep(fs.open(cred, ino, *flags)?))
        }
        Act::Release { .. } if open.0.is_empty() => Ok(Outcome::Skipped),
        Act::Release { file } => {
            let handle = open.0.swap_remove(file % open.0.len());
            fs.release(handle);
            Ok(Outcome::Done)
        }
        Act::Remount => {
            open.close_all(fs);
            Ok(Outcome::Done)
        }
        _ => match on_open_file(fs, open, cred, act) {
            Some(outcome) => outcome,
            None => on_name(fs, cred, act),
        },
    }
}

/// Calls on an open file; `None` if the act is none of them.
fn on_open_file(fs: &dyn FileSystem, open: &OpenFiles, cred: &Cred, act: &Act) -> Option<Result<Outcome>> {
    let file = match act {
        Act::Write { file, .. } | Act::Append { file, .. } | Act::Read { file, .. } => *file,
        Act::TruncateOpen { file, .. } | Act::Fallocate { file, .. } => *file,
        Act::Seek { file, .. } | Act::Fsync { file } => *file,
        Act::CopyRange { file, .. } | Act::LinkOpen { file, .. } => *file,
        _ => return None,
    };
    let Some(handle) = open.get(file) else { return Some(Ok(Outcome::Skipped)) };
    Some(match act {
        Act::Write { offset, len, fill, .. } => {
            fs.write(handle, *offset, &pattern(*fill, *len)).map(|written| Outcome::Number(written as u64))
        }
        Act::Append { len, fill, .. } => fs.append(handle, &pattern(*fill, *len)).map(Outcome::Number),
        Act::Read { offset, len, .. } => {
            let mut buf = vec![0xee; *len];
            fs.read(handle, *offset, &mut buf).map(|read| {
                buf.truncate(read);
                Outcome::Bytes(buf)
            })
        }
        Act::TruncateOpen { size_bytes, .. } => {
            let set = SetAttr { size_bytes: Some(*size_bytes), ..SetAttr::default() };
            fs.setattr(cred, handle.ino, Some(handle), &set).map(|attr| Outcome::Stat(attr.into()))
        }
        Act::Fallocate { op, offset, len_bytes, .. } => {
            fs.fallocate(handle, *op, *offset, *len_bytes).map(|()| Outcome::Done)
        }
        Act::CopyRange { offset, to, offset_to, len_bytes, .. } => match open.get(*to) {
            Some(to) => fs.copy_range(handle, *offset, to, *offset_to, *len_bytes).map(Outcome::Number),
            None => Ok(Outcome::Skipped),
        },
        Act::LinkOpen { to, .. } => path::resolve_parent(fs, cred, to)
            .and_then(|(dir, name)| fs.link(cred, handle.ino, dir, name))
            .map(|attr| Outcome::Stat(attr.into())),
        Act::Seek { target, offset, .. } => fs.seek(handle, *target, *offset).map(Outcome::Number),
        _ => fs.fsync(handle, false).map(|()| Outcome::Done),
    })
}

fn on_name(fs: &dyn FileSystem, cred: &Cred, act: &Act) -> Result<Outcome> {
    let parent = |path| path::resolve_parent(fs, cred, path);
    let make = |path, node| {
        let (dir, name): (_, Name<'_>) = parent(path)?;
        fs.make(cred, dir, name, node).map(|attr| Outcome::Stat(attr.into()))
    };
    let set = |path: &String, set: SetAttr| {
        let ino = path::resolve_nofollow(fs, cred, path)?.ino;
        fs.setattr(cred, ino, None, &set).map(|attr| Outcome::Stat(attr.into()))
    };
    match act {
        Act::Make { path, kind, perm } => {
            make(path, NewNode { kind: *kind, perm: *perm, rdev: 0, target: &[] })
        }
        Act::Symlink { path, target } => {
            make(path, NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: target.as_bytes() })
        }
        Act::Link { from, to } => {
            let ino = path::resolve_nofollow(fs, cred, from)?.ino;
            let (dir, name) = parent(to)?;
            fs.link(cred, ino, dir, name).map(|attr| Outcome::Stat(attr.into()))
        }
        Act::Unlink { path } => {
            parent(path).and_then(|(dir, name)| fs.unlink(cred, dir, name)).map(|()| Outcome::Done)
        }
        Act::Rmdir { path } => {
            parent(path).and_then(|(dir, name)| fs.rmdir(cred, dir, name)).map(|()| Outcome::Done)
        }
        Act::Rename { from, to, mode } => {
            let ((dir, name), (new_dir, new_name)) = (parent(from)?, parent(to)?);
            fs.rename(cred, dir, name, new_dir, new_name, *mode).map(|()| Outcome::Done)
        }
        Act::Truncate { path, size_bytes } => {
            set(path, SetAttr { size_bytes: Some(*size_bytes), ..SetAttr::default() })
        }
        Act::SetMode { path, perm } => set(path, SetAttr { perm: Some(*perm), ..SetAttr::default() }),
        Act::SetOwner { path, uid, gid } => set(path, SetAttr { uid: *uid, gid: *gid, ..SetAttr::default() }),
        Act::SetTimes { path, atime, mtime } => {
            set(path, SetAttr { atime: *atime, mtime: *mtime, ..SetAttr::default() })
        }
        Act::SetXattr { .. } | Act::GetXattr { .. } | Act::ListXattrs { .. } | Act::RemoveXattr { .. } => {
            on_xattr(fs, cred, act)
        }
        Act::Stat { path } => path::resolve(fs, cred, path).map(|attr| Outcome::Stat(attr.into())),
        Act::ReadLink { path } => {
            let ino = path::resolve_nofollow(fs, cred, path)?.ino;
            fs.readlink(ino).map(Outcome::Bytes)
        }
        Act::ReadDir { path } => {
            let handle = fs.open(cred, path::resolve(fs, cred, path)?.ino, OpenFlags::READ)?;
            let mut entries = BTreeMap::new();
            let read = fs.each_entry(&handle, Cookie::default(), &mut |entry| {
                entries.insert(entry.name.bytes().to_vec(), entry.kind);
                true
            });
            fs.release(handle);
            read.map(|()| Outcome::Entries(entries))
        }
        _ => Ok(Outcome::Skipped),
    }
}

fn on_xattr(fs: &dyn FileSystem, cred: &Cred, act: &Act) -> Result<Outcome> {
    let ino = |path: &String| path::resolve_nofollow(fs, cred, path).map(|attr| attr.ino);
    match act {
        Act::SetXattr { path, name, value, how } => fs
            .setxattr(cred, ino(path)?, XattrName::new(name.as_bytes())?, value, *how)
            .map(|()| Outcome::Done),
        Act::GetXattr { path, name } => {
            fs.getxattr(cred, ino(path)?, XattrName::new(name.as_bytes())?).map(Outcome::Bytes)
        }
        Act::RemoveXattr { path, name } => {
            fs.removexattr(cred, ino(path)?, XattrName::new(name.as_bytes())?).map(|()| Outcome::Done)
        }
        Act::ListXattrs { path } => {
            let list = fs.listxattr(cred, ino(path)?)?;
            // Linux lists them in an order of its own.
            let mut names: Vec<&[u8]> = list.split(|byte| *byte == 0).collect();
            names.sort();
            Ok(Outcome::Bytes(names.join(&0)))
        }
        _ => Ok(Outcome::Skipped),
    }
}
