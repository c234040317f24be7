//! Images that Linux has written (`tests/guest/guest.c`, run by `cargo xtask linux-f2fs`) are read as they were meant:
//! by default the packed ones of this repository, else those in the directory `HEDDLE_LINUX_IMAGES`.

mod common;

use common::{listed, read, unpacked};
use heddle_f2fs::F2fs;
use heddle_vfs::path::{resolve, resolve_nofollow};
use heddle_vfs::{
    Attr, Cred, Error, FileKind, FileSystem, Name, OpenFlags, Permission, SeekTarget, Time, XattrName,
};
use std::collections::BTreeSet;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// The images, unpacked once, in memory.
struct Images(Vec<(&'static str, PathBuf, Option<File>)>);

fn images() -> &'static Images {
    static IMAGES: OnceLock<Images> = OnceLock::new();
    IMAGES.get_or_init(|| {
        let made = std::env::var_os("HEDDLE_LINUX_IMAGES").map(PathBuf::from);
        let image = |name| match &made {
            Some(dir) => (name, dir.join(name), None),
            None => {
                let file = unpacked(name);
                (name, format!("/proc/self/fd/{}", file.as_raw_fd()).into(), Some(file))
            }
        };
        Images(NAMES.map(image).into())
    })
}

impl Images {
    fn open(&self, name: &str) -> F2fs {
        let (_, path, _) = self.0.iter().find(|(known, ..)| *known == name).unwrap();
        F2fs::open(path).unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// Each of them in turn.
    fn each(&self, test: impl Fn(&F2fs)) {
        for name in NAMES {
            eprintln!("image {name}");
            test(&self.open(name));
        }
    }
}

/// Unmounted; the same with the features of a phone; reset after an fsync.
const NAMES: [&str; 3] = ["plain", "phone", "reset"];

/// Owner rw, user 1000 r, group r, mask rw, others nothing.
const LIST: [u8; 44] = [
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0, 0xe8, 3, 0, 0, 4, 0, 4, 0, 255, 255, 255, 255,
    16, 0, 6, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255, 255,
];

fn at(fs: &F2fs, path: &str) -> Attr {
    resolve_nofollow(fs, &Cred::root(), path).unwrap_or_else(|e| panic!("{path}: {e}"))
}

fn user(uid: u32) -> Cred {
    Cred { uid, gid: uid, groups: Vec::new(), umask: 0 }
}

#[test]
fn an_image_says_how_it_was_left() {
    let images = images();
    for name in ["plain", "phone"] {
        let info = images.open(name).info();
        assert!(info.clean && !info.needs_fsck && info.fsynced_inodes == 0, "{name}: {info:?}");
    }
    assert!(images.open("phone").info().feature_names.contains("inode_crtime"));
    let reset = images.open("reset");
    let info = reset.info();
    assert!(!info.clean && info.fsynced_inodes == 2, "{info:?}");
}

#[test]
fn a_survey_finds_nothing_wrong_in_what_linux_wrote() {
    images().each(|fs| assert_eq!(fs.survey().problems, Vec::<String>::new()));
}

#[test]
fn what_was_fsynced_before_the_reset_is_there() {
    let images = images();
    let fs = images.open("reset");
    assert!(read(&fs, Path::new("/cut")) == [&[b'S'; 4096][..], &[b'q'; 904]].concat());
    assert!(read(&fs, Path::new("/fresh")) == [b'F'; 100]);
    assert_eq!(at(&fs, "/fresh").nlink, 1);
    let mut names = listed(&fs, Path::new("/"));
    assert!(names.remove(&b"fresh"[..]));
    assert_eq!(names, listed(&images.open("plain"), Path::new("/")));
}

#[test]
fn attributes_inline_and_in_their_node_are_read() {
    images().each(|fs| {
        let (root, ino) = (Cred::root(), at(fs, "/attributes").ino);
        let get = |cred: &Cred, name: &str| fs.getxattr(cred, ino, XattrName::new(name.as_bytes()).unwrap());
        assert_eq!(get(&root, "user.small").unwrap(), b"value");
        assert_eq!(get(&root, "user.large").unwrap(), [b'L'; 3000]);
        assert_eq!(get(&root, "trusted.t").unwrap(), b"T");
        assert_eq!(get(&root, "security.s").unwrap(), b"");
        assert_eq!(get(&root, "user.gone"), Err(Error::NoAttribute));
        assert_eq!(get(&user(5), "trusted.t"), Err(Error::NoAttribute));
        let all = fs.listxattr(&root, ino).unwrap();
        assert_eq!(all, b"security.s\0trusted.t\0user.large\0user.small\0");
    });
}

#[test]
fn access_lists_decide() {
    images().each(|fs| {
        let (root, file) = (Cred::root(), at(fs, "/listed"));
        assert_eq!(fs.getxattr(&root, file.ino, XattrName::ACL_ACCESS).unwrap(), LIST);
        assert_eq!(file.perm, 0o660);
        assert_eq!(fs.access(&user(1000), file.ino, Permission::READ), Ok(()));
        assert_eq!(fs.access(&user(1000), file.ino, Permission::WRITE), Err(Error::AccessDenied));
        assert_eq!(fs.access(&user(1001), file.ino, Permission::READ), Err(Error::AccessDenied));
        assert_eq!(fs.getxattr(&root, at(fs, "/heirs").ino, XattrName::ACL_DEFAULT).unwrap(), LIST);
        assert_eq!(at(fs, "/heirs/heir").perm, 0o640);
        assert_eq!(fs.access(&user(1000), at(fs, "/heirs/heir").ino, Permission::READ), Ok(()));
    });
}

#[test]
fn a_sparse_file_has_its_bytes_under_every_kind_of_node() {
    images().each(|fs| {
        let file = at(fs, "/sparse");
        assert_eq!(file.size_bytes, (9 << 30) + 1);
        let handle = fs.open(&Cred::root(), file.ino, OpenFlags::READ).unwrap();
        let bytes = |offset: u64, len: usize| {
            let mut bytes = vec![0xee; len];
            let n = fs.read(&handle, offset, &mut bytes).unwrap();
            bytes.truncate(n);
            bytes
        };
        assert_eq!(bytes(0, 12), b"aaaaaaaaaa\0\0");
        assert_eq!(bytes((4 << 20) - 1, 4098), [&[0][..], &[b'b'; 4096], &[0]].concat());
        assert_eq!(bytes(100 << 20, 5001), [&[b'c'; 5000][..], &[0]].concat());
        assert_eq!(bytes((9 << 30) - 2, 10), b"\0\0d");
        let seek = |target, offset| fs.seek(&handle, target, offset);
        for (hole, data) in [(4096, 4 << 20), ((4 << 20) + 4096, 100 << 20), ((100 << 20) + 8192, 9 << 30)] {
            assert_eq!(seek(SeekTarget::Hole, hole - 4096), Ok(hole));
            assert_eq!(seek(SeekTarget::Data, hole), Ok(data));
        }
        assert_eq!(seek(SeekTarget::Hole, 9 << 30), Ok(file.size_bytes));
        fs.release(handle);
    });
}

#[test]
fn reserved_punched_cut_and_inline_content_is_right() {
    images().each(|fs| {
        let mut reserved = vec![0; 1 << 20];
        reserved[500_000..501_000].fill(b'r');
        assert!(read(fs, Path::new("/reserved")) == reserved);
        let mut punched = vec![b'p'; 64 << 10];
        punched[8192..16_384].fill(0);
        assert!(read(fs, Path::new("/punched")) == punched);
        assert!(read(fs, Path::new("/cut"))[4096..] == [b'q'; 904]);
        assert!(read(fs, Path::new("/inline")) == [b'i'; 3000]);
        assert!(read(fs, Path::new("/once inline")) == [[b'j'; 3000], [b'k'; 3000]].concat());
        assert!(read(fs, Path::new("/over and over")) == [b'A' + 199 % 26; 20_000]);
    });
}

#[test]
fn names_that_came_went_and_moved_are_as_they_were_last() {
    let name = |i: usize| format!("{i}-{}", "n".repeat(i % 240));
    let expected: BTreeSet<Vec<u8>> = (0..1000)
        .filter_map(|i| match i % 3 {
            0 => None,
            1 => Some(format!("moved {i}").into_bytes()),
            _ => Some(name(i).into_bytes()),
        })
        .collect();
    images().each(|fs| {
        assert_eq!(listed(fs, Path::new("/many")), expected);
        let dir = at(fs, "/many");
        for i in 0..1000 {
            let found = fs.lookup(&Cred::root(), dir.ino, Name::new(name(i).as_bytes()).unwrap());
            assert_eq!(found.is_ok(), i % 3 == 2, "{}", name(i));
        }
        let odd = [0xff; 255];
        assert!(resolve(fs, &Cred::root(), Path::new(std::ffi::OsStr::from_bytes(&odd))).is_ok());
        assert_eq!(at(fs, "/first").ino, at(fs, "/second").ino);
        assert_eq!(at(fs, "/first").nlink, 2);
    });
}

#[test]
fn kinds_owners_modes_and_times_are_kept() {
    images().each(|fs| {
        let kind = |path| (at(fs, path).kind, at(fs, path).perm, at(fs, path).rdev);
        assert_eq!(kind("/null"), (FileKind::CharDevice, 0o666, 0x103));
        // Linux' form of a device number: 12 bits of minor above and 8 below 12 of major.
        let large = (259 << 8) | (70_000 & 0xff) | ((70_000 & !0xff) << 12);
        assert_eq!(kind("/large device"), (FileKind::BlockDevice, 0o600, large));
        assert_eq!(kind("/pipe"), (FileKind::Fifo, 0o640, 0));
        assert_eq!(fs.readlink(at(fs, "/symbolic").ino).unwrap(), b"first");
        let set = at(fs, "/set");
        assert_eq!((set.perm, set.uid, set.gid), (0o7751, 12, 34));
        let first = at(fs, "/first");
        assert_eq!(first.mtime, Time::from_parts(1_000_000_000, 987_654_321));
        assert_eq!(first.atime, Time::from_parts(1, 2));
        assert!(first.crtime > first.mtime && first.crtime <= first.ctime);
    });
}
