//! Access control lists.

use super::{Mounts, before_and_after_a_remount, chmod, make, user};
use crate::acl::{Acl, Entry, Tag};
use crate::testkit::{Short, name, root};
use crate::{Cred, Error, FileKind, FileSystem, Ino, OpenFlags, Permission, SetXattr, XattrName};

/// The owner and user 5 may read and write, at most what `mask` says.
fn list(mask: u8) -> Vec<u8> {
    let entry = |tag, perm, id| Entry { tag, perm, id };
    let acl = Acl::new(vec![
        entry(Tag::Owner, 6, 0),
        entry(Tag::User, 6, 5),
        entry(Tag::OwningGroup, 0, 0),
        entry(Tag::Mask, mask, 0),
        entry(Tag::Others, 0, 0),
    ]);
    acl.unwrap().to_xattr()
}

fn set(fs: &dyn FileSystem, ino: Ino, which: XattrName<'_>, mask: u8) {
    fs.setxattr(&root(), ino, which, &list(mask), SetXattr::Any).unwrap();
}

/// acl(5): who may, and what chmod(2) makes of a list.
pub fn an_access_list_decides_and_follows_chmod(mounts: &dyn Mounts) {
    let (may, refused) = (Ok(()), Err(Error::AccessDenied));
    mounts.on(&|fs| {
        let ino = make(fs, &root(), Ino::ROOT, "f", FileKind::Regular, 0o600).unwrap().ino;
        assert_eq!(fs.access(&user(5), ino, Permission::READ), refused);
        set(fs, ino, XattrName::ACL_ACCESS, 6);
        assert_eq!(fs.getattr(ino).unwrap().perm, 0o660, "the group bits are the mask");
        assert_eq!(fs.access(&user(5), ino, Permission::WRITE), may);
        assert_eq!(fs.access(&user(6), ino, Permission::READ), refused);
        assert_eq!(chmod(fs, &root(), ino, 0o640), Ok(0o640));
    });
    mounts.on(&|fs| {
        let ino = fs.find(Ino::ROOT, "f").unwrap().ino;
        assert_eq!(fs.getxattr(&root(), ino, XattrName::ACL_ACCESS), Ok(list(4)));
        assert_eq!(fs.access(&user(5), ino, Permission::READ), may);
        assert_eq!(fs.access(&user(5), ino, Permission::WRITE), refused);
        assert_eq!(fs.open(&user(5), ino, OpenFlags::READ_WRITE).map(drop), refused);
        fs.removexattr(&root(), ino, XattrName::ACL_ACCESS).unwrap();
        assert_eq!(fs.access(&user(5), ino, Permission::READ), refused, "the owning group's bits again");
    });
}

/// acl(5), umask(2): what is made in a directory with a default list.
pub fn a_default_list_stands_in_the_umasks_place(mounts: &dyn Mounts) {
    let careful = Cred { umask: 0o077, ..root() };
    before_and_after_a_remount(
        mounts,
        |fs| {
            let dir = fs.new_dir(Ino::ROOT, "d");
            set(fs, dir, XattrName::ACL_DEFAULT, 6);
            make(fs, &careful, dir, "f", FileKind::Regular, 0o666).unwrap();
            let below = make(fs, &careful, dir, "e", FileKind::Directory, 0o777).unwrap().ino;
            let made = fs.create(&careful, below, name("g"), 0o640, OpenFlags::WRITE).unwrap();
            fs.release(made.1);
            make(fs, &careful, Ino::ROOT, "outside", FileKind::Regular, 0o666).unwrap();
        },
        |fs| {
            let dir = fs.find(Ino::ROOT, "d").unwrap().ino;
            let (file, below) = (fs.find(dir, "f").unwrap(), fs.find(dir, "e").unwrap());
            let deep = fs.find(below.ino, "g").unwrap();
            let outside = fs.find(Ino::ROOT, "outside").unwrap();
            let perms = [file, below, deep, outside].map(|attr| attr.perm);
            assert_eq!(perms, [0o660, 0o660, 0o640, 0o600]);
            let of = |ino, which| fs.getxattr(&root(), ino, which);
            assert_eq!(of(file.ino, XattrName::ACL_ACCESS), Ok(list(6)));
            assert_eq!(of(below.ino, XattrName::ACL_DEFAULT), Ok(list(6)));
            assert_eq!(of(deep.ino, XattrName::ACL_ACCESS), Ok(list(4)));
            assert_eq!(fs.access(&user(5), deep.ino, Permission::READ), Ok(()));
            assert_eq!(fs.access(&user(5), deep.ino, Permission::WRITE), Err(Error::AccessDenied));
            assert_eq!(of(outside.ino, XattrName::ACL_ACCESS), Err(Error::NoAttribute));
        },
    );
}
