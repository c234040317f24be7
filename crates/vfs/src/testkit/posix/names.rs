//! Names, links, special files, holes.

use super::{Mounts, before_and_after_a_remount, chmod, make, rename, user};
use crate::testkit::{Short, name, root};
use crate::{Cookie, Error, FileKind, Ino, Name, NewNode, OpenFlags, RenameMode, SeekTarget, path};
use std::collections::BTreeSet;

const PAGE: u64 = 4096;

/// lseek(2) and fallocate(2).
pub fn holes_are_found_after_every_kind_of_range_call(mounts: &dyn Mounts) {
    use crate::RangeOp::{Allocate, Collapse, Insert, Punch, Zero};
    mounts.on(&|fs| {
        let file = fs.new_file(Ino::ROOT, "f");
        let map = || -> String {
            let pages = fs.size(&file) / PAGE;
            let is_data = |page| fs.seek(&file, SeekTarget::Data, page * PAGE) == Ok(page * PAGE);
            let kind = |page: u64| {
                let hole = fs.seek(&file, SeekTarget::Hole, page * PAGE) == Ok(page * PAGE);
                assert_ne!(is_data(page), hole, "page {page} is one of both");
                if hole { '.' } else { '#' }
            };
            (0..pages).map(kind).collect()
        };
        let range = |op, from: u64, pages: u64| fs.fallocate(&file, op, from * PAGE, pages * PAGE).unwrap();
        fs.write(&file, 0, &[1; 6 * PAGE as usize]).unwrap();
        range(Punch, 1, 2);
        assert_eq!(map(), "#..###");
        range(Insert, 4, 3);
        assert_eq!(map(), "#..#...##");
        range(Collapse, 2, 3);
        assert_eq!(map(), "#...##");
        range(Zero { keep_size: true }, 0, 1);
        range(Allocate { keep_size: false }, 4, 6);
        assert_eq!(map(), "....##....", "what was allocated and never written is a hole");
        assert_eq!(fs.seek(&file, SeekTarget::Data, 1 << 40), Err(Error::NoSuchOffset));
        fs.release(file);
        let dir = fs.open(&root(), Ino::ROOT, OpenFlags::READ).unwrap();
        for target in [SeekTarget::Data, SeekTarget::Hole] {
            assert_eq!(fs.seek(&dir, target, 0), Err(Error::IsDirectory), "a directory has neither");
        }
        fs.release(dir);
    });
}

/// write(2), copy_file_range(2): fewer bytes than asked for where a file may grow by no more, then EFBIG.
pub fn a_write_across_the_largest_size_is_short_the_next_refused(mounts: &dyn Mounts) {
    mounts.on(&|fs| {
        let (file, from) = (fs.new_file(Ino::ROOT, "f"), fs.new_file(Ino::ROOT, "from"));
        let max = fs.size_max_bytes(file.ino).unwrap();
        let bytes: Vec<u8> = (0..20_000_u32).map(|n| n as u8 | 1).collect();
        fs.write(&from, 0, &bytes).unwrap();
        for room in [3, 4096, 5000, 12_288] {
            let resize = |size| fs.resize(&file, size).unwrap();
            let ends_with = |wanted: &[u8]| {
                assert_eq!(fs.size(&file), max);
                assert!(fs.read_vec(&file, max - wanted.len() as u64, wanted.len() + 9) == wanted);
                resize(0);
            };
            let (len, part) = (room as u64, &bytes[..room]);
            assert_eq!(fs.write(&file, max - len, &bytes), Ok(room));
            for at in [max, max + 1, u64::MAX - 7, u64::MAX] {
                assert_eq!(fs.write(&file, at, b"x"), Err(Error::FileTooBig), "{at:#x}");
            }
            assert_eq!(fs.append_part(&file, b"xy"), Err(Error::FileTooBig));
            ends_with(part);
            resize(max - len);
            assert_eq!(fs.append(&file, &bytes), Err(Error::FileTooBig), "all or nothing");
            assert_eq!(fs.append_part(&file, &bytes), Ok((max - len, room)));
            ends_with(part);
            assert_eq!(fs.copy_range(&from, 0, &file, max - len, 20_000), Ok(len));
            assert_eq!(fs.copy_range(&from, 0, &file, max, 20_000), Err(Error::FileTooBig));
            ends_with(part);
        }
        fs.release(file);
        fs.release(from);
    });
}

/// renameat2(2).
pub fn renames_refuse_to_replace_exchange_and_never_make_loops(mounts: &dyn Mounts) {
    before_and_after_a_remount(
        mounts,
        |fs| {
            let (a, b) = (fs.new_dir(Ino::ROOT, "a"), fs.new_dir(Ino::ROOT, "b"));
            fs.new_dir(a, "deep");
            fs.release(fs.new_file(b, "f"));
            let mode = RenameMode::NoReplace;
            assert_eq!(rename(fs, (b, "f"), (a, "deep"), mode), Err(Error::Exists));
            assert_eq!(rename(fs, (b, "f"), (b, "f"), mode), Err(Error::Exists));
            let mode = RenameMode::Exchange;
            assert_eq!(rename(fs, (b, "f"), (a, "none"), mode), Err(Error::NotFound));
            rename(fs, (b, "f"), (a, "deep"), mode).unwrap();
            let deep = fs.find(b, "f").unwrap().ino;
            for mode in [RenameMode::Replace, RenameMode::NoReplace] {
                assert!(matches!(
                    rename(fs, (Ino::ROOT, "b"), (deep, "x"), mode),
                    Err(Error::InvalidArgument(_))
                ));
            }
            let loops = rename(fs, (Ino::ROOT, "b"), (b, "f"), RenameMode::Exchange);
            assert!(matches!(loops, Err(Error::InvalidArgument(_))));
            assert_eq!(rename(fs, (b, "f"), (Ino::ROOT, "b"), RenameMode::Replace), Err(Error::NotEmpty));
        },
        |fs| {
            let dir = |text| fs.find(Ino::ROOT, text).unwrap();
            assert_eq!(fs.find(dir("a").ino, "deep").unwrap().kind, FileKind::Regular);
            let deep = fs.find(dir("b").ino, "f").unwrap();
            assert_eq!(
                (deep.kind, deep.nlink, dir("a").nlink, dir("b").nlink),
                (FileKind::Directory, 2, 2, 3)
            );
            assert_eq!(fs.parent(deep.ino), Ok(dir("b").ino));
        },
    );
}

/// mknod(2).
pub fn pipes_sockets_and_devices_are_made_named_and_linked(mounts: &dyn Mounts) {
    let device = (7 << 8) | 3;
    before_and_after_a_remount(
        mounts,
        |fs| {
            for (text, kind) in [("p", FileKind::Fifo), ("s", FileKind::Socket)] {
                assert_eq!(make(fs, &root(), Ino::ROOT, text, kind, 0o620).unwrap().kind, kind);
            }
            for (text, kind) in [("c", FileKind::CharDevice), ("b", FileKind::BlockDevice)] {
                let node = NewNode { kind, perm: 0o600, rdev: device, target: &[] };
                assert_eq!(fs.make(&root(), Ino::ROOT, name(text), node).unwrap().rdev, device);
            }
            chmod(fs, &root(), Ino::ROOT, 0o777).unwrap();
            let refused = make(fs, &user(5), Ino::ROOT, "mine", FileKind::CharDevice, 0o666);
            assert_eq!(refused.map(|_| ()), Err(Error::NotPermitted));
            make(fs, &user(5), Ino::ROOT, "mine", FileKind::Fifo, 0o666).unwrap();
            let ino = fs.find(Ino::ROOT, "p").unwrap().ino;
            fs.link(&root(), ino, Ino::ROOT, name("also p")).unwrap();
            assert!(matches!(fs.open(&root(), ino, OpenFlags::READ), Err(Error::InvalidArgument(_))));
        },
        |fs| {
            let find = |text| fs.find(Ino::ROOT, text).unwrap();
            assert_eq!((find("also p").ino, find("p").nlink, find("p").perm), (find("p").ino, 2, 0o620));
            assert_eq!((find("c").rdev, find("b").rdev, find("s").rdev), (device, device, 0));
            assert_eq!(find("b").kind, FileKind::BlockDevice);
        },
    );
}

/// path_resolution(7), readdir(3).
pub fn names_are_any_255_bytes_but_nul_and_slash(mounts: &dyn Mounts) {
    let names = || -> Vec<Vec<u8>> {
        let bytes = |from: u8| {
            (0..255).map(move |i: u8| from.wrapping_add(i)).map(|b| if b == 0 || b == b'/' { 1 } else { b })
        };
        (0..40)
            .map(|i: u8| bytes(i * 6).collect())
            .chain([vec![0xff; 255], b"...".to_vec(), b" ".to_vec()])
            .collect()
    };
    before_and_after_a_remount(
        mounts,
        |fs| {
            for bytes in names() {
                let node = NewNode { kind: FileKind::Fifo, perm: 0o600, rdev: 0, target: &[] };
                fs.make(&root(), Ino::ROOT, Name::new(&bytes).unwrap(), node).unwrap();
            }
        },
        |fs| {
            let dir = fs.open(&root(), Ino::ROOT, OpenFlags::READ).unwrap();
            let mut listed = BTreeSet::new();
            fs.each_entry(&dir, Cookie(0), &mut |entry| listed.insert(entry.name.bytes().to_vec())).unwrap();
            fs.release(dir);
            assert_eq!(listed, names().into_iter().collect());
        },
    );
    assert_eq!(Name::new(&[b'x'; 256]).err(), Some(Error::NameTooLong));
}

/// symlink(7).
pub fn a_path_goes_through_40_links_but_not_41_nor_loops(mounts: &dyn Mounts) {
    before_and_after_a_remount(
        mounts,
        |fs| {
            let link = |text: &str, target: &str| {
                let node =
                    NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: target.as_bytes() };
                fs.make(&root(), Ino::ROOT, name(text), node).unwrap();
            };
            fs.release(fs.new_file(Ino::ROOT, "0"));
            (1..=41).for_each(|i| link(&format!("{i}"), &format!("{}", i - 1)));
            link("round", "round");
            link("long", &"x/../".repeat(818));
        },
        |fs| {
            let wanted = fs.find(Ino::ROOT, "0").unwrap().ino;
            assert_eq!(path::resolve(fs, &root(), "/40").map(|attr| attr.ino), Ok(wanted));
            assert_eq!(path::resolve(fs, &root(), "/41").map(|attr| attr.ino), Err(Error::Loop));
            assert_eq!(path::resolve(fs, &root(), "/round").map(|attr| attr.ino), Err(Error::Loop));
            assert_eq!(path::resolve_nofollow(fs, &root(), "/41").unwrap().kind, FileKind::Symlink);
            let open = |text: &str, flags| path::open_path(fs, &root(), text, flags, 0o600);
            assert!(matches!(open("/1", libc::O_RDONLY | libc::O_NOFOLLOW), Err(Error::Loop)));
            assert!(matches!(open("/41", libc::O_RDONLY), Err(Error::Loop)));
            let handle = open("/3", libc::O_RDONLY).unwrap();
            assert_eq!(handle.ino, wanted);
            fs.release(handle);
            assert_eq!(fs.readlink(fs.find(Ino::ROOT, "long").unwrap().ino).unwrap().len(), 4090);
            let too_long = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: &[b'x'; 4096] };
            assert_eq!(fs.make(&root(), Ino::ROOT, name("l"), too_long).map(|_| ()), Err(Error::NameTooLong));
        },
    );
}
