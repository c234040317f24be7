//! Attributes, changed: all of a call or nothing.

use crate::inode::{Inode, nid_of};
use crate::make::{now, set_time};
use crate::volume::F2fs;
use heddle_vfs::{Attr, Cred, Error, FileKind, Handle, Ino, Permission, Result, SetAttr, SetTime, Time};

fn owns(cred: &Cred, attr: &Attr) -> bool {
    cred.is_root() || cred.uid == attr.uid
}

/// Set-user and, where the group may execute, set-group: what a change of owner or content takes away.
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
        regular(inode)?;
        if handle.is_none() { self.check(inode, cred, Permission::WRITE) } else { Ok(()) }
    }

    pub(crate) fn set_attributes(
        &self,
        cred: &Cred,
        ino: Ino,
        handle: Option<&Handle>,
        set: &SetAttr,
    ) -> Result<Attr> {
        let _inside = self.changing()?;
        let nid = nid_of(ino)?;
        let _locked = self.guards.alone(&[nid]);
        if let Some(handle) = handle
            && handle.ino != ino
        {
            return Err(Error::BadHandle);
        }
        let inode = self.media.inode(nid)?;
        may_set_owner(&inode.attr(), cred, set)?;
        self.may_set_times(&inode, cred, set)?;
        if set.size_bytes.is_some() {
            self.may_set_size(&inode, cred, handle)?;
        }
        if set == &SetAttr::default() {
            return Ok(inode.attr());
        }
        self.watched(|| {
            if let Some(size) = set.size_bytes {
                self.media.resize(nid, size)?;
            }
            self.apply(&inode, cred, set, now())?;
            Ok(self.media.inode(nid)?.attr())
        })
    }

    fn apply(&self, inode: &Inode, cred: &Cred, set: &SetAttr, now: Time) -> Result<()> {
        let attr = inode.attr();
        let mut perm = attr.perm;
        if set.size_bytes.is_some() && !cred.is_root() {
            perm = without_set_id(perm);
        }
        let gid = set.gid.unwrap_or(attr.gid);
        if (set.uid.is_some() || set.gid.is_some()) && inode.kind != FileKind::Directory {
            perm = without_set_id(perm);
        }
        if let Some(wanted) = set.perm {
            perm = wanted & 0o7777;
            if !cred.is_root() && !cred.in_group(gid) {
                perm &= !0o2000;
            }
            let mut xattrs = self.media.xattrs(inode)?;
            if xattrs.follow_mode(perm) {
                self.media.set_xattrs(&self.media.inode(inode.nid)?, &xattrs)?;
            }
        }
        let pick = |time| match time {
            SetTime::Now => now,
            SetTime::At(time) => time,
        };
        self.media.change_inode(inode.nid, |block| {
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

    /// The content has changed; without privilege set-id bits go.
    pub(crate) fn modified(&self, inode: &Inode, keeps_set_id: bool) -> Result<()> {
        let now = now();
        let attr = inode.attr();
        // Often it was changed at this tick before: then its node, which all that change the file share, is left alone.
        if keeps_set_id && (attr.mtime, attr.ctime) == (now, now) {
            return Ok(());
        }
        self.media.change_inode(inode.nid, |block| {
            if !keeps_set_id {
                block.mode.set(without_set_id(block.mode.get()));
            }
            set_time(&mut block.mtime, &mut block.mtime_ns, now);
            set_time(&mut block.ctime, &mut block.ctime_ns, now);
        })
    }
}

/// Refuses what has no bytes to change.
pub(crate) fn regular(inode: &Inode) -> Result<()> {
    match inode.kind {
        FileKind::Regular => Ok(()),
        FileKind::Directory => Err(Error::IsDirectory),
        _ => Err(Error::InvalidArgument("not a regular file")),
    }
}
