//! Changes of attributes: all of a call's or none.

use crate::allocation::set_time;
use crate::change::Need;
use crate::inode::{Alteration, Inode};
use crate::mounted::F2fs;
use crate::times::now;
use heddle_vfs::xattr::Xattrs;
use heddle_vfs::{Attr, Cred, Error, FileKind, Handle, Ino, Permission, Result, SetAttr, SetTime, Time};

fn owns(cred: &Cred, attr: &Attr) -> bool {
    cred.is_root() || cred.uid == attr.uid
}

/// The bits that a change of owner or content clears: set-user and, if the group may execute, set-group.
fn without_set_id(mode: u16) -> u16 {
    let group = if mode & 0o010 != 0 { 0o2000 } else { 0 };
    mode & !(0o4000 | group)
}

fn may_set_owner(attr: &Attr, cred: &Cred, set: &SetAttr) -> Result<()> {
    if set.perm.is_some() {
        if attr.kind == FileKind::Symlink {
            return Err(Error::NotSupported("the mode of a symbolic link"));
        }
        if !owns(cred, attr) {
            return Err(Error::NotPermitted);
        }
    }
    if set.uid.is_some_and(|uid| !cred.is_root() && (uid != attr.uid || !owns(cred, attr))) {
        return Err(Error::NotPermitted);
    }
    let group_allowed = |gid| cred.is_root() || owns(cred, attr) && (gid == attr.gid || cred.in_group(gid));
    if set.gid.is_some_and(|gid| !group_allowed(gid)) {
        return Err(Error::NotPermitted);
    }
    Ok(())
}

/// Checks the inode's flags.
fn check_flags(inode: &Inode, set: &SetAttr) -> Result<()> {
    let given = |time| matches!(time, Some(SetTime::At(_)));
    let attributes = set.perm.is_some() || set.uid.is_some() || set.gid.is_some();
    if set.size_bytes.is_some() {
        inode.check_allowed(Alteration::Content)?;
    }
    if attributes || given(set.atime) || given(set.mtime) {
        return inode.check_allowed(Alteration::Attributes);
    }
    if set.atime.is_some() || set.mtime.is_some() {
        inode.check_allowed(Alteration::Addition)
    } else {
        Ok(())
    }
}

impl F2fs {
    fn may_set_times(&self, inode: &Inode, cred: &Cred, set: &SetAttr) -> Result<()> {
        let given = |time| matches!(time, Some(SetTime::At(_)));
        match (set.atime, set.mtime) {
            _ if owns(cred, &inode.attr()) => Ok(()),
            (None, None) => Ok(()),
            (Some(SetTime::Now), Some(SetTime::Now)) => self.check(inode, cred, Permission::WRITE),
            // The present time comes with a change of size, which has its own check.
            (atime, mtime) if set.size_bytes.is_some() && !given(atime) && !given(mtime) => Ok(()),
            _ => Err(Error::NotPermitted),
        }
    }

    fn may_set_size(&self, inode: &Inode, cred: &Cred, handle: Option<&Handle>) -> Result<()> {
        if handle.is_some_and(|handle| !handle.flags.write) {
            return Err(Error::InvalidArgument("the file is not open for writing"));
        }
        check_regular(inode)?;
        if handle.is_none() { self.check(inode, cred, Permission::WRITE) } else { Ok(()) }
    }

    pub(crate) fn set_attributes(
        &self,
        cred: &Cred,
        ino: Ino,
        handle: Option<&Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        if handle.is_some_and(|handle| handle.ino != ino) {
            return Err(Error::BadHandle);
        }
        let look = |inode: &Inode| {
            check_flags(inode, set)?;
            may_set_owner(&inode.attr(), cred, set)?;
            self.may_set_times(inode, cred, set)?;
            let mut need = Need::NONE;
            if let Some(size) = set.size_bytes {
                self.may_set_size(inode, cred, handle)?;
                need = self.media.need_to_resize(inode, size)?;
            }
            let list = self.list_that_follows(inode, cred, set)?;
            if let Some(xattrs) = &list {
                need = need + self.media.need_of_xattrs(inode, xattrs)?;
            }
            Ok((list, need))
        };
        self.alter(ino, Need::NONE, look, |change, inode, list| {
            if let Some(size) = set.size_bytes {
                change.resize(inode.nid, size)?;
            }
            if let Some(xattrs) = list {
                change.set_xattrs(&self.media.inode(inode.nid)?, xattrs)?;
            }
            self.apply(inode, cred, set)?;
            Ok(self.media.inode(inode.nid)?.attr())
        })
    }

    /// The permissions after a call, without those that a change of owner, group or content clears.
    fn perm_after(&self, inode: &Inode, cred: &Cred, set: &SetAttr) -> u16 {
        let attr = inode.attr();
        let gid = set.gid.unwrap_or(attr.gid);
        if let Some(wanted) = set.perm {
            let perm = wanted & 0o7777;
            return if cred.is_root() || cred.in_group(gid) { perm } else { perm & !0o2000 };
        }
        let cut = set.size_bytes.is_some() && !cred.is_root();
        let given = (set.uid.is_some() || set.gid.is_some()) && inode.kind != FileKind::Directory;
        if cut || given { without_set_id(attr.perm) } else { attr.perm }
    }

    /// The attributes, if their access list changes with the mode.
    fn list_that_follows(&self, inode: &Inode, cred: &Cred, set: &SetAttr) -> Result<Option<Xattrs>> {
        if set.perm.is_none() {
            return Ok(None);
        }
        let mut xattrs = self.media.xattrs(inode)?;
        let perm = self.perm_after(inode, cred, set);
        Ok(xattrs.follow_mode(perm).then_some(xattrs))
    }

    fn apply(&self, inode: &Inode, cred: &Cred, set: &SetAttr) -> Result<()> {
        let attr = inode.attr();
        let perm = self.perm_after(inode, cred, set);
        let gid = set.gid.unwrap_or(attr.gid);
        self.media.change_inode(inode.nid, |block| {
            // Read here, after all earlier changes: so times never go back.
            let now = now();
            let pick = |time| match time {
                SetTime::Now => now,
                SetTime::At(time) => time,
            };
            block.mode.set(block.mode.get() & !0o7777 | perm);
            (block.uid, block.gid) = (set.uid.unwrap_or(attr.uid).into(), gid.into());
            if set.size_bytes.is_some() {
                set_time(&mut block.mtime, &mut block.mtime_ns, now);
            }
            if let Some(time) = set.atime {
                set_time(&mut block.atime, &mut block.atime_ns, pick(time));
            }
            if let Some(time) = set.mtime {
                set_time(&mut block.mtime, &mut block.mtime_ns, pick(time));
            }
            set_time(&mut block.ctime, &mut block.ctime_ns, now);
        })
    }

    /// Called when the content has changed: without privilege, set-id bits are cleared.
    pub(crate) fn modified(&self, inode: &Inode, keeps_set_id: bool) -> Result<()> {
        let attr = inode.attr();
        if keeps_set_id && self.stat_ticks.of_write(inode.nid, attr.mtime, attr.ctime).is_none() {
            return Ok(());
        }
        self.media.change_inode(inode.nid, |block| {
            // Read here, after earlier writers: so times never go back.
            if !keeps_set_id {
                block.mode.set(without_set_id(block.mode.get()));
            }
            let mtime = Time::from_parts(block.mtime.get() as i64, block.mtime_ns.get());
            let ctime = Time::from_parts(block.ctime.get() as i64, block.ctime_ns.get());
            let Some(now) = self.stat_ticks.of_write(inode.nid, mtime, ctime) else { return };
            set_time(&mut block.mtime, &mut block.mtime_ns, now);
            set_time(&mut block.ctime, &mut block.ctime_ns, now);
        })
    }
}

/// Refuses inodes without bytes.
pub(crate) fn check_regular(inode: &Inode) -> Result<()> {
    match inode.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Error::IsDirectory),
        _ => Err(Error::InvalidArgument("not a regular file")),
    }
}

#[cfg(test)]
mod tests;
