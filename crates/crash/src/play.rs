//! Runs operations on the engine and on the model.

use crate::op::{File, ListKind, Op};
use heddle_vfs::{
    Cred, Error, FileKind, FileSystem, Handle, NewNode, OpenFlags, RenameMode, Result, SetAttr, SetTime,
    SetXattr, Time, XattrName, path,
};
use std::collections::BTreeMap;

/// A file system, and the descriptors open on it.
pub struct Player<'a> {
    fs: &'a dyn FileSystem,
    open: BTreeMap<String, Handle>,
}

/// Byte `at` of the data that operation `number` of a workload writes (counted from 1, set-up included).
pub fn byte(number: usize, at: u64) -> u8 {
    (number as u64 * 37 + at % 251) as u8 | 1
}

fn data(number: usize, len: u64) -> Vec<u8> {
    (0..len).map(|at| byte(number, at)).collect()
}

impl<'a> Player<'a> {
    /// A player without open descriptors.
    pub fn new(fs: &'a dyn FileSystem) -> Player<'a> {
        Player { fs, open: BTreeMap::new() }
    }

    /// Closes all descriptors.
    pub fn close_all(&mut self) {
        for (_, handle) in std::mem::take(&mut self.open) {
            self.fs.release(handle);
        }
    }

    /// Runs operation `number`.
    ///
    /// # Errors
    /// Those of the file system; [`Error::BadHandle`] for a descriptor that is not open.
    pub fn play(&mut self, number: usize, op: &Op) -> Result<()> {
        let (fs, cred) = (self.fs, &Cred::root());
        match op {
            Op::Create { path } => {
                let (dir, name) = path::resolve_parent(fs, cred, path)?;
                fs.release(fs.create(cred, dir, name, 0o644, OpenFlags::READ_WRITE)?.1);
            }
            Op::Mkdir { path } => make(fs, path, FileKind::Directory, 0o755, b"")?,
            Op::Mknod { path, kind } => make(fs, path, *kind, 0o644, b"")?,
            Op::Tmpfile { dir, name } => {
                let dir = path::resolve(fs, cred, dir)?.ino;
                let handle = fs.tmpfile(cred, dir, 0o644, OpenFlags::READ_WRITE, true)?.1;
                if let Some(old) = self.open.insert(name.clone(), handle) {
                    fs.release(old);
                }
            }
            Op::Name { descriptor, path } => {
                let ino = self.open.get(descriptor).ok_or(Error::BadHandle)?.ino;
                let (dir, name) = path::resolve_parent(fs, cred, path)?;
                fs.link(cred, ino, dir, name)?;
            }
            Op::Symlink { target, path } => make(fs, path, FileKind::Symlink, 0o777, target.as_bytes())?,
            Op::Link { from, to } => {
                let ino = path::resolve_nofollow(fs, cred, from)?.ino;
                let (dir, name) = path::resolve_parent(fs, cred, to)?;
                fs.link(cred, ino, dir, name)?;
            }
            Op::Unlink { path } => {
                let (dir, name) = path::resolve_parent(fs, cred, path)?;
                fs.unlink(cred, dir, name)?;
            }
            Op::Rmdir { path } => {
                let (dir, name) = path::resolve_parent(fs, cred, path)?;
                fs.rmdir(cred, dir, name)?;
            }
            Op::Rename { from, to } => rename(fs, from, to, RenameMode::Replace)?,
            Op::Exchange { from, to } => rename(fs, from, to, RenameMode::Exchange)?,
            Op::Mode { path, perm } => set(fs, path, &SetAttr { perm: Some(*perm), ..SetAttr::default() })?,
            Op::Owner { path, uid, gid } => {
                set(fs, path, &SetAttr { uid: Some(*uid), gid: Some(*gid), ..SetAttr::default() })?;
            }
            Op::Times { path, secs } => {
                let at = Some(SetTime::At(Time::from_parts(i64::from(*secs), 7)));
                set(fs, path, &SetAttr { atime: at, mtime: at, ..SetAttr::default() })?;
            }
            Op::SetXattr { path, name, value } => {
                let ino = path::resolve_nofollow(fs, cred, path)?.ino;
                fs.setxattr(cred, ino, XattrName::new(name.as_bytes())?, value.as_bytes(), SetXattr::Any)?;
            }
            Op::RemoveXattr { path, name } => {
                let ino = path::resolve_nofollow(fs, cred, path)?.ino;
                fs.removexattr(cred, ino, XattrName::new(name.as_bytes())?)?;
            }
            Op::List { path, kind, list } => {
                let ino = path::resolve_nofollow(fs, cred, path)?.ino;
                let name = match kind {
                    ListKind::Access => XattrName::ACL_ACCESS,
                    ListKind::Default => XattrName::ACL_DEFAULT,
                };
                fs.setxattr(cred, ino, name, &list.to_xattr(), SetXattr::Any)?;
            }
            Op::Sync => fs.sync()?,
            Op::Open { path, name } => {
                let handle = fs.open(cred, path::resolve(fs, cred, path)?.ino, OpenFlags::READ_WRITE)?;
                if let Some(old) = self.open.insert(name.clone(), handle) {
                    fs.release(old);
                }
            }
            Op::Close { name } => fs.release(self.open.remove(name).ok_or(Error::BadHandle)?),
            Op::Remount => self.close_all(),
            Op::Write { file, .. }
            | Op::Append { file, .. }
            | Op::Truncate { file, .. }
            | Op::Fallocate { file, .. }
            | Op::Fsync { file } => self.on_file(file, number, op)?,
        }
        Ok(())
    }

    fn on_file(&self, file: &File, number: usize, op: &Op) -> Result<()> {
        match file {
            File::Descriptor(name) => {
                on_handle(self.fs, self.open.get(name).ok_or(Error::BadHandle)?, number, op)
            }
            File::Path(path) => {
                let cred = Cred::root();
                let handle =
                    self.fs.open(&cred, path::resolve(self.fs, &cred, path)?.ino, OpenFlags::READ_WRITE)?;
                let done = on_handle(self.fs, &handle, number, op);
                self.fs.release(handle);
                done
            }
        }
    }
}

fn on_handle(fs: &dyn FileSystem, handle: &Handle, number: usize, op: &Op) -> Result<()> {
    match op {
        Op::Write { offset, len, .. } => fs.write(handle, *offset, &data(number, *len)).map(drop),
        Op::Append { len, .. } => fs.append(handle, &data(number, *len)).map(drop),
        Op::Truncate { size, .. } => {
            let new = SetAttr { size_bytes: Some(*size), ..SetAttr::default() };
            fs.setattr(&Cred::root(), handle.ino, Some(handle), &new).map(drop)
        }
        Op::Fallocate { mode, offset, len, .. } => fs.fallocate(handle, *mode, *offset, *len),
        _ => fs.fsync(handle, false),
    }
}

fn make(fs: &dyn FileSystem, path: &str, kind: FileKind, perm: u16, target: &[u8]) -> Result<()> {
    let cred = Cred::root();
    let (dir, name) = path::resolve_parent(fs, &cred, path)?;
    let rdev = if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) { 0x103 } else { 0 };
    fs.make(&cred, dir, name, NewNode { kind, perm, rdev, target }).map(drop)
}

fn rename(fs: &dyn FileSystem, from: &str, to: &str, mode: RenameMode) -> Result<()> {
    let cred = Cred::root();
    let (dir, name) = path::resolve_parent(fs, &cred, from)?;
    let (new_dir, new_name) = path::resolve_parent(fs, &cred, to)?;
    fs.rename(&cred, dir, name, new_dir, new_name, mode)
}

fn set(fs: &dyn FileSystem, path: &str, new: &SetAttr) -> Result<()> {
    let cred = Cred::root();
    let ino = path::resolve_nofollow(fs, &cred, path)?.ino;
    fs.setattr(&cred, ino, None, new).map(drop)
}
