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

#[cfg(test)]
mod tests {
    use super::*;

    /// Set-group-id without execution by the group marked files for mandatory locking.
    #[test]
    fn set_ids_go_but_for_a_group_that_may_not_execute() {
        for (perm, without) in [
            (0o4755, 0o755),
            (0o2755, 0o755),
            (0o6777, 0o777),
            (0o2745, 0o2745),
            (0o6745, 0o2745),
            (0o2010, 0o010),
            (0o1777, 0o1777),
            (0o7767, 0o3767),
            (0o644, 0o644),
        ] {
            assert_eq!(without_set_ids(perm), without, "{perm:o}");
        }
    }

    /// chown(2): root alone gives a file away; its owner gives it to groups of his.
    #[test]
    fn owners_change_groups_among_theirs_and_nobody_elses_files() {
        let cred = |uid| Cred { uid, gid: uid, groups: vec![7], umask: 0 };
        let (yes, no) = (Ok(()), Err(Error::NotPermitted));
        // Of a file of user 5 and group 9: the new owner and group, and who may: root, user 5, user 6.
        for (uid, gid, may) in [
            (None, None, [&yes, &yes, &yes]),
            (Some(5), None, [&yes, &yes, &no]),
            (Some(6), None, [&yes, &no, &no]),
            (None, Some(9), [&yes, &yes, &no]),
            (None, Some(5), [&yes, &yes, &no]),
            (None, Some(7), [&yes, &yes, &no]),
            (None, Some(6), [&yes, &no, &no]),
            (Some(5), Some(7), [&yes, &yes, &no]),
            (Some(5), Some(8), [&yes, &no, &no]),
            (Some(6), Some(7), [&yes, &no, &no]),
        ] {
            let set = SetAttr { uid, gid, ..SetAttr::default() };
            for (caller, may) in [0, 5, 6].into_iter().zip(may) {
                let owner = caller == 0 || caller == 5;
                let said = may_set_owner(&set, &cred(caller), FileKind::Regular, owner, 5, 9);
                assert_eq!(&said, may, "user {caller}: {uid:?} {gid:?}");
            }
        }
        let mode = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        let said = [5, 6].map(|uid| may_set_owner(&mode, &cred(uid), FileKind::Regular, uid == 5, 5, 9));
        assert_eq!(said, [yes, no]);
        let of_a_link = may_set_owner(&mode, &cred(0), FileKind::Symlink, true, 5, 9);
        assert!(matches!(of_a_link, Err(Error::NotSupported(_))));
    }
}
