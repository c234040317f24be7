//! Changes of attributes in the model: all of a call or nothing.

use super::State;
use super::content::end_of;
use super::inode::Inode;
use crate::{Attr, Cred, Error, FileKind, Handle, Ino, Permission, Result, SetAttr, SetTime, Time};

impl State {
    pub(super) fn setattr(
        &mut self,
        cred: &Cred,
        ino: Ino,
        handle: Option<&Handle>,
        set: &SetAttr,
        now: Time,
    ) -> Result<Attr> {
        if let Some(handle) = handle
            && self.opened(handle)? != ino
        {
            return Err(Error::BadHandle);
        }
        let inode = self.inode_mut(ino)?;
        may_set_owner(inode, cred, set)?;
        may_set_times(inode, cred, set)?;
        if let Some(size_bytes) = set.size_bytes {
            may_set_size(inode, cred, handle, size_bytes)?;
        }
        apply(inode, cred, set, now)?;
        Ok(inode.attr())
    }
}

fn may_set_owner(inode: &Inode, cred: &Cred, set: &SetAttr) -> Result<()> {
    if set.perm.is_some() {
        if inode.kind() == FileKind::Symlink {
            return Err(Error::NotSupported("the mode of a symbolic link"));
        }
        if !inode.owned_by(cred) {
            return Err(Error::NotPermitted);
        }
    }
    if set.uid.is_some_and(|uid| !cred.is_root() && (uid != inode.uid || !inode.owned_by(cred))) {
        return Err(Error::NotPermitted);
    }
    let group_allowed =
        |gid| cred.is_root() || inode.owned_by(cred) && (gid == inode.gid || cred.in_group(gid));
    if set.gid.is_some_and(|gid| !group_allowed(gid)) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Only the owner sets times; but a user who may write may set both to the present.
fn may_set_times(inode: &Inode, cred: &Cred, set: &SetAttr) -> Result<()> {
    let given = |time| matches!(time, Some(SetTime::At(_)));
    match (set.atime, set.mtime) {
        _ if inode.owned_by(cred) => Ok(()),
        (None, None) => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) => inode.check(cred, Permission::WRITE),
        // A change of size brings the present time with it and has its own check, which an open handle may pass.
        (atime, mtime) if set.size_bytes.is_some() && !given(atime) && !given(mtime) => Ok(()),
        _ => Err(Error::NotPermitted),
    }
}

fn may_set_size(inode: &Inode, cred: &Cred, handle: Option<&Handle>, size_bytes: u64) -> Result<()> {
    if handle.is_some_and(|handle| !handle.flags.write) {
        return Err(Error::InvalidArgument("the file is not open for writing"));
    }
    inode.content()?;
    if handle.is_none() {
        inode.check(cred, Permission::WRITE)?;
    }
    end_of(size_bytes, 0).map(|_| ())
}

fn apply(inode: &mut Inode, cred: &Cred, set: &SetAttr, now: Time) -> Result<()> {
    if let Some(size_bytes) = set.size_bytes {
        inode.content_mut()?.set_size(size_bytes)?;
        inode.mtime = now;
        if !cred.is_root() {
            inode.drop_set_id_bits();
        }
    }
    if set.uid.is_some() || set.gid.is_some() {
        inode.uid = set.uid.unwrap_or(inode.uid);
        inode.gid = set.gid.unwrap_or(inode.gid);
        if inode.kind() != FileKind::Directory {
            inode.drop_set_id_bits();
        }
    }
    if let Some(perm) = set.perm {
        inode.perm = perm & 0o7777;
        if !cred.is_root() && !cred.in_group(inode.gid) {
            inode.perm &= !0o2000;
        }
        inode.xattrs.follow_mode(inode.perm);
    }
    let pick = |time| match time {
        SetTime::Now => now,
        SetTime::At(time) => time,
    };
    inode.atime = set.atime.map_or(inode.atime, pick);
    inode.mtime = set.mtime.map_or(inode.mtime, pick);
    inode.ctime = now;
    Ok(())
}
