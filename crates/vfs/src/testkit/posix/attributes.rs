//! Owners, modes, times.

use super::{Mounts, before_and_after_a_remount, chmod, chown, make, user};
use crate::testkit::{Short, name, root};
use crate::{Cred, Error, FileKind, Ino, NewNode, OpenFlags, Permission, RenameMode, SetAttr, SetTime, Time};

/// unlink(2), rename(2): EPERM under the sticky bit.
pub fn in_a_sticky_directory_owners_alone_remove_and_rename(mounts: &dyn Mounts) {
    mounts.on(&|fs| {
        let dir = fs.new_dir(Ino::ROOT, "d");
        chmod(fs, &root(), dir, 0o1777).unwrap();
        make(fs, &user(5), dir, "of 5", FileKind::Regular, 0o666).unwrap();
        assert_eq!(fs.unlink(&user(6), dir, name("of 5")), Err(Error::NotPermitted));
        let moved = fs.rename(&user(6), dir, name("of 5"), dir, name("mine"), RenameMode::Replace);
        assert_eq!(moved, Err(Error::NotPermitted));
        make(fs, &user(6), dir, "of 6", FileKind::Regular, 0o666).unwrap();
        let over = fs.rename(&user(6), dir, name("of 6"), dir, name("of 5"), RenameMode::Replace);
        assert_eq!(over, Err(Error::NotPermitted), "replacing removes");
        chown(fs, &root(), dir, Some(6), None).unwrap();
        assert_eq!(fs.unlink(&user(6), dir, name("of 5")), Ok(()), "the directory's owner may");
    });
}

/// chmod(2), chown(2), truncate(2): which call clears set-user-id and set-group-id.
pub fn set_id_bits_go_with_a_truncation_or_a_new_owner(mounts: &dyn Mounts) {
    mounts.on(&|fs| {
        let truncate = |cred: &Cred, ino, handle| {
            let set = SetAttr { size_bytes: Some(1), ..SetAttr::default() };
            fs.setattr(cred, ino, handle, &set).unwrap().perm
        };
        let ino = make(fs, &user(5), Ino::ROOT, "f", FileKind::Regular, 0o777).map(|attr| attr.ino);
        assert_eq!(ino, Err(Error::AccessDenied), "the root directory is root's");
        let ino = make(fs, &root(), Ino::ROOT, "f", FileKind::Regular, 0o777).unwrap().ino;
        chown(fs, &root(), ino, Some(5), Some(5)).unwrap();
        assert_eq!(chmod(fs, &user(5), ino, 0o6777), Ok(0o6777));
        assert_eq!(truncate(&root(), ino, None), 0o6777, "root keeps them");
        assert_eq!(truncate(&user(5), ino, None), 0o777);
        // Set-group-id without execution by the group stays: it marked files for mandatory locking.
        chmod(fs, &user(5), ino, 0o2767).unwrap();
        assert_eq!(truncate(&user(5), ino, None), 0o2767);
        chmod(fs, &user(5), ino, 0o6777).unwrap();
        assert_eq!(chown(fs, &root(), ino, Some(7), None), Ok(0o777), "also when root gives it away");
        chmod(fs, &root(), ino, 0o6777).unwrap();
        fs.release(fs.open(&user(7), ino, OpenFlags { truncate: true, ..OpenFlags::READ_WRITE }).unwrap());
        assert_eq!(fs.getattr(ino).unwrap().perm, 0o777, "an open that truncates");
        let stranger = Cred { gid: 99, ..user(7) };
        assert_eq!(chmod(fs, &stranger, ino, 0o2755), Ok(0o755), "he is not in the file's group");
        let dir = fs.new_dir(Ino::ROOT, "d");
        chmod(fs, &root(), dir, 0o2755).unwrap();
        assert_eq!(chown(fs, &root(), dir, Some(7), Some(8)), Ok(0o2755), "directories keep them");
    });
}

/// credentials(7); and inode(7): what is made in a set-group-id directory gets the directory's group.
pub fn supplementary_groups_count_and_directories_hand_their_group_down(mounts: &dyn Mounts) {
    mounts.on(&|fs| {
        let dir = fs.new_dir(Ino::ROOT, "team");
        chown(fs, &root(), dir, None, Some(42)).unwrap();
        chmod(fs, &root(), dir, 0o2770).unwrap();
        let member = Cred { groups: vec![41, 42], ..user(5) };
        assert_eq!(
            make(fs, &user(5), dir, "f", FileKind::Regular, 0o666).map(|_| ()),
            Err(Error::AccessDenied)
        );
        let made = make(fs, &member, dir, "f", FileKind::Regular, 0o2775).unwrap();
        assert_eq!((made.uid, made.gid, made.perm), (5, 42, 0o2775));
        let below = make(fs, &member, dir, "d", FileKind::Directory, 0o755).unwrap();
        assert_eq!((below.gid, below.perm), (42, 0o2755));
        assert_eq!(fs.access(&Cred { gid: 42, ..user(6) }, made.ino, Permission::WRITE), Ok(()));
        assert_eq!(chown(fs, &member, made.ino, None, Some(41)), Ok(0o775), "to a group of his");
        assert_eq!(chown(fs, &member, made.ino, None, Some(40)), Err(Error::NotPermitted));
        assert_eq!(chown(fs, &member, made.ino, Some(6), None), Err(Error::NotPermitted));
    });
}

/// umask(2): it clears permission bits of new inodes; chmod(2) and symbolic links ignore it.
pub fn the_umask_clears_bits_of_what_is_made_alone(mounts: &dyn Mounts) {
    mounts.on(&|fs| {
        let careful = Cred { umask: 0o027, ..root() };
        let kinds = [FileKind::Regular, FileKind::Directory, FileKind::Fifo, FileKind::Socket];
        for (kind, text) in kinds.into_iter().zip(["f", "d", "p", "s"]) {
            assert_eq!(make(fs, &careful, Ino::ROOT, text, kind, 0o1777).unwrap().perm, 0o1750, "{kind:?}");
        }
        let ino = fs.find(Ino::ROOT, "f").unwrap().ino;
        assert_eq!(chmod(fs, &careful, ino, 0o777), Ok(0o777));
        let made = fs.create(&careful, Ino::ROOT, name("c"), 0o666, OpenFlags::READ_WRITE).unwrap();
        assert_eq!(made.0.perm, 0o640);
        fs.release(made.1);
        let node = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: b"f" };
        assert_eq!(fs.make(&careful, Ino::ROOT, name("l"), node).unwrap().perm, 0o777);
    });
}

/// chown(2) with -1 for owner and group.
pub fn chown_to_nobody_changes_ctime(mounts: &dyn Mounts) {
    mounts.on(&|fs| {
        let file = fs.new_file(Ino::ROOT, "f");
        let before = fs.getattr(file.ino).unwrap();
        let user = Cred { uid: 1000, gid: 1000, groups: vec![], umask: 0 };
        for cred in [root(), user] {
            let now = fs.getattr(file.ino).unwrap().ctime;
            let after = fs.setattr(&cred, file.ino, None, &SetAttr::default()).unwrap();
            assert!(after.ctime > now, "{cred:?}");
            assert_eq!((after.mtime, after.perm, after.uid), (before.mtime, before.perm, before.uid));
        }
        fs.release(file);
    });
}

/// utimensat(2).
pub fn times_are_kept_to_the_nanosecond_before_1970_too(mounts: &dyn Mounts) {
    let given = |time| Some(SetTime::At(time));
    let (early, late) = (Time::from_parts(-300_000_000, 123_456_789), Time::from_parts(3_900_000_000, 1));
    before_and_after_a_remount(
        mounts,
        |fs| {
            let ino = make(fs, &root(), Ino::ROOT, "f", FileKind::Regular, 0o666).unwrap().ino;
            let both = SetAttr { atime: given(late), mtime: given(early), ..SetAttr::default() };
            fs.setattr(&root(), ino, None, &both).unwrap();
            let one = SetAttr { atime: given(early), ..SetAttr::default() };
            assert_eq!(
                fs.setattr(&root(), ino, None, &one).unwrap().mtime,
                early,
                "the other is left as it is"
            );
            fs.setattr(&root(), ino, None, &both).unwrap();
            let now = SetAttr { atime: Some(SetTime::Now), mtime: Some(SetTime::Now), ..SetAttr::default() };
            assert_eq!(fs.setattr(&user(5), ino, None, &one).map(|_| ()), Err(Error::NotPermitted));
            let touched = make(fs, &root(), Ino::ROOT, "g", FileKind::Regular, 0o666).unwrap();
            let after = fs.setattr(&user(5), touched.ino, None, &now).unwrap();
            assert!(after.mtime > touched.mtime && after.ctime > touched.ctime, "who may write may touch");
        },
        |fs| {
            let attr = fs.find(Ino::ROOT, "f").unwrap();
            assert_eq!((attr.atime, attr.mtime), (late, early));
            assert_eq!((attr.mtime.secs(), attr.mtime.nanos()), (-300_000_000, 123_456_789));
        },
    );
}

/// inode(7): a write changes mtime and ctime. So two `stat` calls tell whether a write came between them.
pub fn writes_after_a_stat_have_a_later_mtime(mounts: &dyn Mounts) {
    mounts.on(&|fs| {
        let file = fs.new_file(Ino::ROOT, "f");
        let dir = fs.new_dir(Ino::ROOT, "d");
        for round in 0..300 {
            let before = fs.getattr(file.ino).unwrap();
            fs.write(&file, round * 100, b"changed").unwrap();
            let after = fs.getattr(file.ino).unwrap();
            assert!(after.mtime > before.mtime && after.ctime > before.ctime, "write {round}");
            let before = fs.getattr(dir).unwrap();
            fs.new_dir(dir, &format!("{round}"));
            let after = fs.getattr(dir).unwrap();
            assert!(after.mtime > before.mtime && after.ctime > before.ctime, "name {round}");
        }
        fs.release(file);
    });
}
