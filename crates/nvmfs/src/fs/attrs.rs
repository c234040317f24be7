//! Permission to change attributes, and their new values by the rules for set-id bits.

use crate::file::resize::{self, NewAttributes};
use crate::format::word::{time_of, time_payload};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::xattr::check;
use heddle_vfs::{Cred, Error, FileKind, Handle, Permission, Result, SetAttr, SetTime, Time};

/// The mode after the content or owner has changed: without set-user-id, and without set-group-id if the
/// group may execute the file.
pub fn without_set_ids(perm: u16) -> u16 {
    let group = if perm & 0o010 != 0 { 0o2000 } else { 0 };
    perm & !(0o4000 | group)
}

/// Truncates to zero, for `O_TRUNC`.
#[cold]
pub fn cut_to_nothing(
    core: &Core,
    cred: &Cred,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
) -> Result<()> {
    let _eof = inode.volatile.eof.lock();
    let perm = inode.volatile.kind_perm().map(|(_, p)| without_set_ids(p)).filter(|_| !cred.is_root());
    let new = NewAttributes { size: Some(0), perm, ..NewAttributes::default() };
    resize::set_attributes(core, guard, inode, &new)
}

/// Clamps a time to those the media can store, so that `stat` shows the same value before and after the next
/// mount.
fn sayable(set: SetTime) -> SetTime {
    match set {
        SetTime::Now => SetTime::Now,
        SetTime::At(at) => SetTime::At(time_of(time_payload(at))),
    }
}

fn time(set: SetTime) -> Time {
    match sayable(set) {
        SetTime::Now => crate::clock::exact(),
        SetTime::At(at) => at,
    }
}

/// Checks that the caller may set these attributes. Returns the values to set, by the rules for set-id bits.
pub fn checked(
    core: &Core,
    inode: InodeRef<'_>,
    cred: &Cred,
    handle: Option<&Handle>,
    set: &SetAttr,
) -> Result<NewAttributes> {
    let (kind, perm) = inode.volatile.kind_perm().ok_or(Error::Stale)?;
    let (uid, gid) = inode.volatile.owner();
    let owner = cred.is_root() || cred.uid == uid;
    may_set_owner(set, cred, kind, owner, uid, gid)?;
    may_set_times(core, inode, cred, set, owner)?;
    let mut new =
        NewAttributes { uid: set.uid, gid: set.gid, size: set.size_bytes, ..NewAttributes::default() };
    let mut bits = perm;
    if let Some(size) = set.size_bytes {
        may_set_size(core, inode, cred, kind, handle, size)?;
        if !cred.is_root() {
            bits = without_set_ids(bits);
        }
    }
    // For root too, as Linux.
    if (set.uid.is_some() || set.gid.is_some()) && kind != FileKind::Directory {
        bits = without_set_ids(bits);
    }
    if let Some(to) = set.perm {
        let foreign_group = !cred.is_root() && !cred.in_group(set.gid.unwrap_or(gid));
        bits = to & 0o7777 & if foreign_group { !0o2000 } else { !0 };
    }
    new.perm = (bits != perm || set.perm.is_some()).then_some(bits);
    (new.atime, new.mtime) = (set.atime.map(time), set.mtime.map(sayable));
    Ok(new)
}

fn may_set_owner(set: &SetAttr, cred: &Cred, kind: FileKind, owner: bool, uid: u32, gid: u32) -> Result<()> {
    if set.perm.is_some() {
        if kind == FileKind::Symlink {
            return Err(Error::NotSupported("the mode of a symbolic link"));
        }
        if !owner {
            return Err(Error::NotPermitted);
        }
    }
    let gives_away = set.uid.is_some_and(|to| to != uid || !owner);
    let joins = set.gid.is_some_and(|to| !owner || (to != gid && !cred.in_group(to)));
    if !cred.is_root() && (gives_away || joins) { Err(Error::NotPermitted) } else { Ok(()) }
}

/// A caller that may write may set both times to now; other changes require the owner. With a size the times
/// are part of the truncation.
fn may_set_times(core: &Core, inode: InodeRef<'_>, cred: &Cred, set: &SetAttr, owner: bool) -> Result<()> {
    let exact = |t: Option<SetTime>| matches!(t, Some(SetTime::At(_)));
    match (set.atime, set.mtime) {
        _ if owner => Ok(()),
        (None, None) => Ok(()),
        (Some(SetTime::Now), Some(SetTime::Now)) => check(core, inode, cred, Permission::WRITE),
        (atime, mtime) if set.size_bytes.is_some() && !exact(atime) && !exact(mtime) => Ok(()),
        _ => Err(Error::NotPermitted),
    }
}

fn may_set_size(
    core: &Core,
    inode: InodeRef<'_>,
    cred: &Cred,
    kind: FileKind,
    handle: Option<&Handle>,
    size: u64,
) -> Result<()> {
    if handle.is_some_and(|handle| !handle.flags.write) {
        return Err(Error::InvalidArgument("the file is not open for writing"));
    }
    match kind {
        FileKind::Regular => {}
        FileKind::Directory => return Err(Error::IsDirectory),
        _ => return Err(Error::InvalidArgument("only regular files have a size to set")),
    }
    if handle.is_none() {
        check(core, inode, cred, Permission::WRITE)?;
    }
    if size > core.file_bytes_max() { Err(Error::FileTooBig) } else { Ok(()) }
}
