use super::*;
use crate::format::InodeBlock;
use crate::inode::nid_of;
use heddle_vfs::{FileSystem, Name, NewNode, OpenFlags, SetXattr, XattrName};

/// A file system in memory, with a file of user 5 and group 6.
fn with_file(perm: u16, work: impl FnOnce(&F2fs, Ino)) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = place.path().join("image");
    std::fs::File::create(&path).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
    crate::make_image(&path, "", &|_, _| ()).unwrap();
    let fs = F2fs::open_for_writing(&path).unwrap();
    let (root, name) = (Cred::root(), Name::new(b"file").unwrap());
    let node = NewNode { kind: FileKind::Regular, perm: 0o600, rdev: 0, target: &[] };
    let ino = fs.make(&root, Ino::ROOT, name, node).unwrap().ino;
    let owner = SetAttr { uid: Some(5), gid: Some(6), ..SetAttr::default() };
    fs.setattr(&root, ino, None, &owner).unwrap();
    fs.setattr(&root, ino, None, &SetAttr { perm: Some(perm), ..SetAttr::default() }).unwrap();
    work(&fs, ino);
}

fn user(uid: u32, groups: &[u32]) -> Cred {
    Cred { uid, gid: 99, groups: groups.to_vec(), umask: 0 }
}

/// chown(2): the owner keeps the owner, and gives the file to a group of his; only root does more.
#[test]
fn owner_and_group_are_set_by_whom_posix_names() {
    let (root, owner, member, other) = (Cred::root(), user(5, &[7]), user(8, &[6, 7]), user(8, &[]));
    // The caller, the new owner and the new group; whether he may.
    let cases = [
        (&root, Some(8), Some(8), true),
        (&owner, Some(5), None, true),
        (&owner, Some(8), None, false),
        (&owner, None, Some(6), true),
        (&owner, None, Some(7), true),
        (&owner, None, Some(8), false),
        (&owner, Some(5), Some(7), true),
        (&owner, Some(5), Some(8), false),
        (&member, Some(5), None, false),
        (&member, None, Some(6), false),
        (&member, None, Some(7), false),
        (&other, Some(8), None, false),
        (&other, None, None, true),
    ];
    with_file(0o666, |fs, ino| {
        let attr = fs.getattr(ino).unwrap();
        for (cred, uid, gid, may) in cases {
            let set = SetAttr { uid, gid, ..SetAttr::default() };
            let wanted = if may { Ok(()) } else { Err(Error::NotPermitted) };
            assert_eq!(may_set_owner(&attr, cred, &set), wanted, "{cred:?}: {uid:?} {gid:?}");
        }
        let chmod = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        let may = [&root, &owner, &member, &other].map(|cred| may_set_owner(&attr, cred, &chmod).is_ok());
        assert_eq!(may, [true, true, false, false]);
    });
}

/// utimensat(2): a writer sets both times to the present, and the owner to any.
#[test]
fn times_are_set_by_whom_posix_names() {
    let (now, given) = (Some(SetTime::Now), Some(SetTime::At(Time(7))));
    let (owner, other) = (user(5, &[]), user(8, &[]));
    // The times, and the size that the call sets; whether another who may write may do that.
    let cases = [
        (None, None, None, true),
        (now, now, None, true),
        (now, None, None, false),
        (None, now, None, false),
        (given, now, None, false),
        (now, given, None, false),
        (given, given, None, false),
        // A truncation through the kernel comes with the time.
        (None, now, Some(3), true),
        (now, None, Some(3), true),
        (given, None, Some(3), false),
        (None, given, Some(3), false),
        (given, given, Some(3), false),
    ];
    for perm in [0o666, 0o644] {
        with_file(perm, |fs, ino| {
            for (atime, mtime, size_bytes, may) in cases {
                let set = SetAttr { atime, mtime, size_bytes, ..SetAttr::default() };
                let done = |cred: &Cred| fs.setattr(cred, ino, None, &set).map(drop);
                let what = format!("{perm:o}: {atime:?} {mtime:?} {size_bytes:?}");
                assert_eq!(done(&owner), Ok(()), "{what}");
                let needs_write = now == atime && now == mtime || size_bytes.is_some();
                let refused = if may { Error::AccessDenied } else { Error::NotPermitted };
                let may = may && (perm == 0o666 || !needs_write);
                assert_eq!(done(&other), if may { Ok(()) } else { Err(refused) }, "{what}");
            }
        });
    }
}

/// chmod(2): set-group-id stays only for root, and for a member of the file's group.
#[test]
fn a_stranger_to_the_group_sets_no_group_id_bit() {
    let cases = [
        (Cred::root(), 0o6755, 0o6755),
        (user(5, &[6]), 0o6755, 0o6755),
        (user(5, &[7]), 0o6755, 0o4755),
        (user(5, &[]), 0o1777, 0o1777),
        // Of the type nothing is set.
        (user(5, &[6]), 0o170_644, 0o644),
    ];
    with_file(0o600, |fs, ino| {
        for (cred, perm, wanted) in cases {
            let set = SetAttr { perm: Some(perm), ..SetAttr::default() };
            let attr = fs.setattr(&cred, ino, None, &set).unwrap();
            assert_eq!((attr.perm, attr.kind), (wanted, FileKind::Regular), "{cred:?}");
        }
        // The group that the same call gives it counts.
        let both = SetAttr { perm: Some(0o2755), gid: Some(7), ..SetAttr::default() };
        assert_eq!(fs.setattr(&user(5, &[7]), ino, None, &both).unwrap().perm, 0o2755);
    });
}

/// ftruncate(2): EINVAL through a file that is not open for writing, whatever its mode says since.
#[test]
fn a_file_is_cut_through_a_handle_that_was_opened_for_writing() {
    with_file(0o666, |fs, ino| {
        let (other, cut) = (user(8, &[]), SetAttr { size_bytes: Some(1), ..SetAttr::default() });
        let [reads, writes] =
            [OpenFlags::READ, OpenFlags::WRITE].map(|flags| fs.open(&other, ino, flags).unwrap());
        fs.write(&writes, 0, b"bytes").unwrap();
        let hidden = SetAttr { perm: Some(0), ..SetAttr::default() };
        fs.setattr(&Cred::root(), ino, None, &hidden).unwrap();
        let done =
            |handle: Option<&Handle>| fs.setattr(&other, ino, handle, &cut).map(|attr| attr.size_bytes);
        assert!(matches!(done(Some(&reads)), Err(Error::InvalidArgument(_))));
        assert_eq!(done(None), Err(Error::AccessDenied));
        assert_eq!(done(Some(&writes)), Ok(1));
        assert_eq!(fs.setattr(&other, Ino::ROOT, Some(&writes), &cut), Err(Error::BadHandle));
        // What is open for writing alone is not read, nor the other way round.
        assert_eq!(fs.read(&writes, 0, &mut [0]), Err(Error::BadHandle));
        assert_eq!(fs.write(&reads, 0, b"x"), Err(Error::BadHandle));
        assert_eq!(
            (fs.write(&reads, 0, b""), fs.append(&reads, b"")),
            (Err(Error::BadHandle), Err(Error::BadHandle))
        );
        fs.release(reads);
        fs.release(writes);
        let dir = fs.open(&Cred::root(), Ino::ROOT, OpenFlags::READ).unwrap();
        assert_eq!(fs.read(&dir, 0, &mut [0]), Err(Error::IsDirectory));
        fs.release(dir);
    });
}

/// The access list decides for neither root nor the owner, nor where its mask is empty.
#[test]
fn damaged_attributes_hinder_only_whom_a_list_may_decide_for() {
    with_file(0o604, |fs, ino| {
        let user_x = XattrName::new(b"user.x").unwrap();
        fs.setxattr(&Cred::root(), ino, user_x, b"value", SetXattr::Any).unwrap();
        // The first attribute, behind the header: a name of 250 bytes.
        let damage = |block: &mut InodeBlock| block.addr[923 - 50 + 6].set(0xff00_fa01);
        fs.media.change_inode(nid_of(ino).unwrap(), damage).unwrap();
        let may = |cred: &Cred| fs.access(cred, ino, Permission::READ);
        assert_eq!([Cred::root(), user(5, &[]), user(8, &[])].map(|cred| may(&cred)), [const { Ok(()) }; 3]);
        fs.media.change_inode(nid_of(ino).unwrap(), |block| block.mode.set(0o100_664)).unwrap();
        assert_eq!([Cred::root(), user(5, &[])].map(|cred| may(&cred)), [const { Ok(()) }; 2]);
        assert!(matches!(may(&user(8, &[])), Err(Error::Corrupt(_))));
    });
}
