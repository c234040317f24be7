//! Extended attributes, access lists, times and copies through a mount, by the system calls of programs.

mod common;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};

use common::{chmod, model, sh, sh_as_user};
use heddle_vfs::acl::{Acl, Entry, Tag};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, Timespec, Timestamps, XattrFlags, getxattr, listxattr, removexattr, setxattr,
    utimensat,
};
use rustix::io::Errno;

fn value(path: &std::path::Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 65_536];
    getxattr(path, name, &mut value[..]).map(|len| value[..len].to_vec())
}

/// What user 1000 may do, at most what `mask` says.
fn list(mask: u8) -> Vec<u8> {
    let entry = |tag, perm, id| Entry { tag, perm, id };
    let acl = Acl::new(vec![
        entry(Tag::Owner, 6, 0),
        entry(Tag::User, 6, 1000),
        entry(Tag::OwningGroup, 0, 0),
        entry(Tag::Mask, mask, 0),
        entry(Tag::Others, 0, 0),
    ]);
    acl.unwrap().to_xattr()
}

#[test]
fn attributes_are_set_replaced_listed_and_removed() {
    let Some(mount) = model() else { return };
    let path = mount.path("f");
    std::fs::write(&path, "x").unwrap();
    let long = vec![7; 65_536];
    setxattr(&path, "user.long", &long, XattrFlags::CREATE).unwrap();
    setxattr(&path, "trusted.t", b"t", XattrFlags::empty()).unwrap();
    setxattr(&path, "security.s", b"", XattrFlags::empty()).unwrap();
    assert_eq!(setxattr(&path, "user.long", b"y", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(setxattr(&path, "user.new", b"y", XattrFlags::REPLACE), Err(Errno::NODATA));
    let both = XattrFlags::CREATE | XattrFlags::REPLACE;
    assert_eq!(setxattr(&path, "user.long", b"y", both), Err(Errno::EXIST), "as on tmpfs and ext4");
    assert_eq!(setxattr(&path, "user.new", b"y", both), Err(Errno::NODATA));
    assert_eq!(value(&path, "user.long"), Ok(long));
    assert_eq!(value(&path, "security.s"), Ok(vec![]));
    assert_eq!(getxattr(&path, "user.long", &mut [0; 10][..]), Err(Errno::RANGE));
    assert_eq!(setxattr(&path, "other.name", b"", XattrFlags::empty()), Err(Errno::OPNOTSUPP));
    let mut names = vec![0; 1000];
    let len = listxattr(&path, &mut names[..]).unwrap();
    assert_eq!(&names[..len], b"security.s\0trusted.t\0user.long\0");
    removexattr(&path, "user.long").unwrap();
    assert_eq!(
        (value(&path, "user.long"), removexattr(&path, "user.long")),
        (Err(Errno::NODATA), Err(Errno::NODATA))
    );
}

#[test]
fn an_access_list_decides_who_may_read_and_write() {
    let Some(mount) = model() else { return };
    let (dir, path) = (mount.mounted.dir(), mount.path("f"));
    sh(dir, "echo secret > f; chmod 600 f");
    assert!(!sh_as_user(dir, "cat f").status.success());
    setxattr(&path, "system.posix_acl_access", &list(6), XattrFlags::empty()).unwrap();
    assert_eq!(sh(dir, "stat -c %a f"), "660\n", "the group bits are the mask");
    assert!(sh_as_user(dir, "cat f && echo more >> f").status.success());
    chmod(&path, 0o640);
    assert_eq!(value(&path, "system.posix_acl_access"), Ok(list(4)));
    assert!(sh_as_user(dir, "cat f").status.success() && !sh_as_user(dir, "echo more >> f").status.success());
    removexattr(&path, "system.posix_acl_access").unwrap();
    assert!(!sh_as_user(dir, "cat f").status.success(), "the group bits are the owning group's again");
}

#[test]
fn a_default_list_is_handed_down_in_place_of_the_umask() {
    let Some(mount) = model() else { return };
    let dir = mount.mounted.dir();
    sh(dir, "mkdir d");
    setxattr(mount.path("d"), "system.posix_acl_default", &list(6), XattrFlags::empty()).unwrap();
    sh(dir, "umask 077; echo x > d/f; mkdir d/e; echo y > d/e/g; echo z > outside");
    assert_eq!(sh(dir, "stat -c %a d/f d/e d/e/g outside"), "660\n660\n660\n600\n");
    assert_eq!(value(&mount.path("d/f"), "system.posix_acl_access"), Ok(list(6)));
    assert_eq!(value(&mount.path("d/e"), "system.posix_acl_default"), Ok(list(6)));
    let refused = setxattr(mount.path("d/f"), "system.posix_acl_default", &list(6), XattrFlags::empty());
    assert_eq!(refused, Err(Errno::ACCESS));
}

#[test]
fn a_range_is_copied_inside_the_file_system() {
    let Some(mount) = model() else { return };
    let data: Vec<u8> = (0..3_000_000_u32).map(|i| (i % 251) as u8).collect();
    std::fs::write(mount.path("from"), &data).unwrap();
    let (from, to) = (File::open(mount.path("from")).unwrap(), File::create(mount.path("to")).unwrap());
    let (mut at, mut at_to) = (1000, 77);
    loop {
        let copied =
            rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut at_to), 1 << 30).unwrap();
        if copied == 0 {
            break;
        }
    }
    assert_eq!(std::fs::read(mount.path("to")).unwrap(), [&[0; 77], &data[1000..]].concat());
    let both = File::options().read(true).write(true).open(mount.path("from")).unwrap();
    let (mut at, mut at_to) = (0, 10);
    let overlapping = rustix::fs::copy_file_range(&both, Some(&mut at), &both, Some(&mut at_to), 100);
    assert_eq!(overlapping, Err(Errno::INVAL));
}

/// A time whose seconds have no opposite once ended a serving thread.
#[test]
fn crash_the_least_time_there_is() {
    let Some(mount) = model() else { return };
    let path = mount.path("f");
    std::fs::write(&path, "x").unwrap();
    for secs in [i64::MIN, i64::MAX, i64::MIN + 1, -1, 0] {
        for nanos in [0, 1, 999_999_999] {
            let time = Timespec { tv_sec: secs, tv_nsec: nanos };
            utimensat(
                CWD,
                &path,
                &Timestamps { last_access: time, last_modification: time },
                AtFlags::empty(),
            )
            .unwrap();
        }
    }
    for _ in 0..64 {
        assert_eq!(std::fs::read(&path).unwrap(), b"x", "every thread still serves");
    }
    let time = Timespec { tv_sec: -5, tv_nsec: 7 };
    utimensat(CWD, &path, &Timestamps { last_access: time, last_modification: time }, AtFlags::empty())
        .unwrap();
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!((meta.mtime(), meta.mtime_nsec()), (-5, 7));
}

/// The library that speaks to the kernel does not know the request; programs fall back to a name.
#[test]
fn a_file_without_a_name_is_not_supported_through_a_mount() {
    let Some(mount) = model() else { return };
    let made =
        rustix::fs::open(mount.mounted.dir(), OFlags::TMPFILE | OFlags::RDWR, Mode::from_raw_mode(0o600));
    assert_eq!(made.map(drop), Err(Errno::OPNOTSUPP));
}

/// Linux keeps these modes of fallocate from every FUSE file system.
#[test]
fn cutting_out_and_inserting_ranges_is_refused_by_the_kernel() {
    let Some(mount) = model() else { return };
    let file = File::options().read(true).write(true).create_new(true).open(mount.path("f")).unwrap();
    file.write_all_at(&[1; 8192], 0).unwrap();
    for mode in [rustix::fs::FallocateFlags::COLLAPSE_RANGE, rustix::fs::FallocateFlags::INSERT_RANGE] {
        assert_eq!(rustix::fs::fallocate(&file, mode, 0, 4096), Err(Errno::OPNOTSUPP));
    }
    assert_eq!(std::fs::read(mount.path("f")).unwrap(), [1; 8192]);
}
