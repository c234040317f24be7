//! Who may open, remove, rename, make and change what, by the rules of POSIX and Linux: tables of callers.

use super::{MIB, flags, fresh};
use crate::fs::NvmFs;
use crate::variant::Variant;
use crate::volume::Volume;
use heddle_vfs::acl::{Acl, Entry, Tag};
use heddle_vfs::short::{Short, name, root};
use heddle_vfs::{
    Cred, Error, FileKind, FileSystem, Ino, NewNode, RenameMode, Result, SetAttr, SetTime, SetXattr, Time,
    XattrName,
};

fn user(uid: u32) -> Cred {
    Cred { uid, gid: uid, groups: Vec::new(), umask: 0 }
}

/// User 5, also in group 42.
fn member() -> Cred {
    Cred { groups: vec![41, 42], ..user(5) }
}

fn mounted() -> (Volume, NvmFs) {
    let volume = fresh(Variant::Heddle, 8 * MIB);
    let fs = volume.fs();
    (volume, fs)
}

fn set(fs: &NvmFs, ino: Ino, owner: (u32, u32), perm: u16) {
    let owner = SetAttr { uid: Some(owner.0), gid: Some(owner.1), ..SetAttr::default() };
    fs.setattr(&root(), ino, None, &owner).unwrap();
    fs.setattr(&root(), ino, None, &SetAttr { perm: Some(perm), ..SetAttr::default() }).unwrap();
}

fn dir(fs: &NvmFs, parent: Ino, text: &str, owner: (u32, u32), perm: u16) -> Ino {
    let ino = fs.new_dir(parent, text);
    set(fs, ino, owner, perm);
    ino
}

fn file(fs: &NvmFs, parent: Ino, text: &str, owner: (u32, u32), perm: u16) -> Ino {
    let handle = fs.new_file(parent, text);
    let ino = handle.ino;
    fs.release(handle);
    set(fs, ino, owner, perm);
    ino
}

fn make(fs: &NvmFs, cred: &Cred, parent: Ino, text: &str, kind: FileKind, perm: u16) -> Result<(u32, u16)> {
    let node = NewNode { kind, perm, rdev: 0, target: &[] };
    fs.make(cred, parent, name(text), node).map(|made| (made.gid, made.perm))
}

#[test]
fn reading_writing_and_truncating_need_their_permissions() {
    let (volume, fs) = mounted();
    let ino = file(&fs, Ino::ROOT, "f", (0, 0), 0o600);
    let may = |perm, flags| {
        set(&fs, ino, (0, 0), perm);
        fs.open(&user(5), ino, flags).map(|handle| fs.release(handle)).is_ok()
    };
    let asked = [(true, false, false), (false, true, false), (false, false, true), (true, true, false)];
    let asked = asked.into_iter().chain([(true, false, true)]).map(|(r, w, t)| flags(r, w, t));
    let said = |perm| asked.clone().map(|flags| may(perm, flags)).collect::<Vec<bool>>();
    assert_eq!(said(0o604), [true, false, false, false, false]);
    assert_eq!(said(0o602), [false, true, true, false, false]);
    assert_eq!(said(0o606), [true; 5]);
    assert_eq!(said(0o670), [false; 5]);
    volume.unmount();
}

/// unlink(2): under the sticky bit the owners of file and directory remove, and root.
#[test]
fn a_sticky_directory_asks_who_owns_what_others_do_not() {
    let (volume, fs) = mounted();
    let sticky = dir(&fs, Ino::ROOT, "sticky", (6, 6), 0o1777);
    let open = dir(&fs, Ino::ROOT, "open", (6, 6), 0o777);
    for (uid, may) in [(0, true), (5, true), (6, true), (7, false)] {
        for (parent, may) in [(sticky, may), (open, true)] {
            let text = format!("{uid}");
            make(&fs, &user(5), parent, &text, FileKind::Regular, 0o666).unwrap();
            let wanted = if may { Ok(()) } else { Err(Error::NotPermitted) };
            assert_eq!(fs.unlink(&user(uid), parent, name(&text)), wanted, "user {uid}");
        }
    }
    volume.unmount();
}

/// inode(7): and the kernel takes set-group-id from a program whose maker is not in the directory's group.
#[test]
fn what_is_made_in_a_set_group_id_directory_gets_its_group() {
    let (volume, fs) = mounted();
    let team = dir(&fs, Ino::ROOT, "team", (0, 42), 0o2777);
    let plain = dir(&fs, Ino::ROOT, "plain", (0, 0), 0o777);
    let (file, below, pipe) = (FileKind::Regular, FileKind::Directory, FileKind::Fifo);
    /// What is made, and the group and permissions that it gets.
    type Case = (Ino, Cred, FileKind, u16, (u32, u16));
    let cases: [Case; 13] = [
        (team, user(5), file, 0o2775, (42, 0o775)),
        (team, user(5), file, 0o6775, (42, 0o4775)),
        (team, user(5), pipe, 0o2775, (42, 0o775)),
        (team, user(5), file, 0o2765, (42, 0o2765)),
        (team, user(5), file, 0o775, (42, 0o775)),
        (team, member(), file, 0o2775, (42, 0o2775)),
        (team, root(), file, 0o2775, (42, 0o2775)),
        (team, user(5), below, 0o755, (42, 0o2755)),
        (team, user(5), below, 0o2775, (42, 0o2775)),
        (plain, user(5), file, 0o2775, (5, 0o2775)),
        (plain, user(5), below, 0o755, (5, 0o755)),
        (plain, user(5), below, 0o1777, (5, 0o1777)),
        (plain, root(), file, 0o170_644, (0, 0o644)),
    ];
    for (n, (parent, cred, kind, perm, wanted)) in cases.into_iter().enumerate() {
        let made = make(&fs, &cred, parent, &format!("{n}"), kind, perm);
        assert_eq!(made, Ok(wanted), "case {n}: {perm:o}");
    }
    volume.unmount();
}

/// mkdir(2), link(2): EEXIST comes before EACCES and EPERM.
#[test]
fn a_name_that_exists_is_told_before_a_missing_permission() {
    let (volume, fs) = mounted();
    let closed = dir(&fs, Ino::ROOT, "closed", (0, 0), 0o755);
    let ino = file(&fs, closed, "there", (0, 0), 0o644);
    for kind in [FileKind::Regular, FileKind::Directory, FileKind::CharDevice] {
        assert_eq!(make(&fs, &user(5), closed, "there", kind, 0o600), Err(Error::Exists), "{kind:?}");
        assert_eq!(make(&fs, &user(5), closed, "new", kind, 0o600), Err(Error::AccessDenied), "{kind:?}");
    }
    assert_eq!(fs.link(&user(5), ino, closed, name("there")).map(drop), Err(Error::Exists));
    assert_eq!(fs.link(&user(5), ino, closed, name("new")).map(drop), Err(Error::AccessDenied));
    volume.unmount();
}

/// rename(2): EACCES if a directory cannot be written whose `..` would change.
#[test]
fn a_directory_goes_elsewhere_only_if_it_can_be_written() {
    let (volume, fs) = mounted();
    let mine = (5, 5);
    let [p, q] = ["p", "q"].map(|text| dir(&fs, Ino::ROOT, text, mine, 0o755));
    let moved = dir(&fs, p, "d", mine, 0o555);
    let rename = |from: (Ino, &str), to: (Ino, &str), mode| {
        fs.rename(&user(5), from.0, name(from.1), to.0, name(to.1), mode)
    };
    let (replace, exchange) = (RenameMode::Replace, RenameMode::Exchange);
    assert_eq!(rename((p, "d"), (p, "e"), replace), Ok(()), "its parent stays");
    assert_eq!(rename((p, "e"), (q, "e"), replace), Err(Error::AccessDenied));
    let other = dir(&fs, q, "other", mine, 0o755);
    assert_eq!(rename((p, "e"), (q, "other"), exchange), Err(Error::AccessDenied), "the one");
    assert_eq!(rename((q, "other"), (p, "e"), exchange), Err(Error::AccessDenied), "or the other");
    set(&fs, moved, mine, 0o755);
    set(&fs, other, mine, 0o555);
    assert_eq!(rename((p, "e"), (q, "other"), replace), Ok(()), "what is replaced stays where it is");
    assert_eq!(fs.find(q, "other").map(|attr| attr.ino), Ok(moved));
    assert_eq!((fs.find(p, "e").map(drop), fs.parent(moved)), (Err(Error::NotFound), Ok(q)));
    file(&fs, p, "file", mine, 0o444);
    assert_eq!(rename((p, "file"), (q, "file"), replace), Ok(()), "a file has no `..`");
    volume.unmount();
}

/// rename(2), renameat2(2): ENOTEMPTY if the new name is a directory above the old one, EINVAL for an exchange.
#[test]
fn no_name_takes_the_place_of_a_directory_above_it() {
    let (volume, fs) = mounted();
    let above = fs.new_dir(Ino::ROOT, "above");
    let middle = fs.new_dir(above, "middle");
    fs.new_dir(middle, "low");
    fs.release(fs.new_file(middle, "file"));
    for text in ["low", "file"] {
        let rename = |mode| fs.rename(&root(), middle, name(text), Ino::ROOT, name("above"), mode);
        assert_eq!(rename(RenameMode::Replace), Err(Error::NotEmpty), "{text}");
        assert!(matches!(rename(RenameMode::Exchange), Err(Error::InvalidArgument(_))), "{text}");
        assert_eq!(rename(RenameMode::NoReplace), Err(Error::Exists), "{text}");
    }
    volume.unmount();
}

/// utimensat(2); with a size the times are part of the truncation.
#[test]
fn others_who_may_write_set_both_times_to_now() {
    let (volume, fs) = mounted();
    let ino = file(&fs, Ino::ROOT, "f", (1, 1), 0o666);
    let (now, then) = (Some(SetTime::Now), Some(SetTime::At(Time::from_parts(5, 0))));
    let refused = Err(Error::NotPermitted);
    let set_times = |uid, atime, mtime, size_bytes| {
        let times = SetAttr { atime, mtime, size_bytes, ..SetAttr::default() };
        fs.setattr(&user(uid), ino, None, &times).map(drop)
    };
    for (atime, mtime, alone, with_a_size) in [
        (None, None, Ok(()), Ok(())),
        (now, now, Ok(()), Ok(())),
        (now, None, refused.clone(), Ok(())),
        (None, now, refused.clone(), Ok(())),
        (then, None, refused.clone(), refused.clone()),
        (None, then, refused.clone(), refused.clone()),
        (then, now, refused.clone(), refused.clone()),
        (now, then, refused.clone(), refused.clone()),
        (then, then, refused.clone(), refused.clone()),
    ] {
        assert_eq!(set_times(5, atime, mtime, None), alone, "{atime:?} {mtime:?}");
        assert_eq!(set_times(5, atime, mtime, Some(1)), with_a_size, "{atime:?} {mtime:?}");
        assert_eq!(set_times(1, atime, mtime, None), Ok(()), "the owner");
    }
    set(&fs, ino, (1, 1), 0o644);
    assert_eq!(set_times(5, now, now, None), Err(Error::AccessDenied));
    assert_eq!(set_times(5, None, None, Some(1)), Err(Error::AccessDenied));
    volume.unmount();
}

/// chmod(2): a caller outside of the file's group cannot set set-group-id.
#[test]
fn set_group_id_is_set_by_root_and_members_of_the_group() {
    let (volume, fs) = mounted();
    let ino = file(&fs, Ino::ROOT, "f", (5, 42), 0o600);
    let chmod = |cred: &Cred, gid, perm| {
        set(&fs, ino, (5, 42), 0o600);
        let set = SetAttr { perm: Some(perm), gid, ..SetAttr::default() };
        fs.setattr(cred, ino, None, &set).map(|attr| (attr.gid, attr.perm))
    };
    assert_eq!(chmod(&root(), None, 0o2755), Ok((42, 0o2755)));
    assert_eq!(chmod(&member(), None, 0o6755), Ok((42, 0o6755)));
    assert_eq!(chmod(&user(5), None, 0o6755), Ok((42, 0o4755)));
    assert_eq!(chmod(&user(5), Some(5), 0o2755), Ok((5, 0o2755)), "it is his group from now on");
    assert_eq!(chmod(&user(6), None, 0o755), Err(Error::NotPermitted));
    assert_eq!(chmod(&root(), None, 0o170_644), Ok((42, 0o644)));
    volume.unmount();
}

#[test]
fn a_step_follows_the_access_list_of_the_directory() {
    let (volume, fs) = mounted();
    let parent = dir(&fs, Ino::ROOT, "d", (0, 0), 0o755);
    let ino = file(&fs, parent, "f", (0, 0), 0o644);
    let step = |uid, parent, text| fs.step(&user(uid), parent, name(text)).map(|(ino, _)| ino);
    assert_eq!((step(5, parent, "f"), step(6, parent, "f")), (Ok(ino), Ok(ino)));
    let entry = |tag, perm, id| Entry { tag, perm, id };
    let list = Acl::new(vec![
        entry(Tag::Owner, 7, 0),
        entry(Tag::User, 0, 5),
        entry(Tag::OwningGroup, 5, 0),
        entry(Tag::Mask, 5, 0),
        entry(Tag::Others, 5, 0),
    ]);
    let list = list.unwrap().to_xattr();
    fs.setxattr(&root(), parent, XattrName::ACL_ACCESS, &list, SetXattr::Any).unwrap();
    assert_eq!((step(5, parent, "f"), step(6, parent, "f")), (Err(Error::AccessDenied), Ok(ino)));
    assert_eq!(step(6, parent, "none"), Err(Error::NotFound));
    assert_eq!(step(6, ino, "f"), Err(Error::NotDirectory));
    fs.remove(parent, "f").unwrap();
    fs.rmdir(&root(), Ino::ROOT, name("d")).unwrap();
    assert_eq!(step(0, parent, "f"), Err(Error::Stale));
    volume.unmount();
}
