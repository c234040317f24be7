//! Images that mkfs.f2fs and sload.f2fs have made are read as they were meant.

mod common;

use common::{Image, Source};
use heddle_f2fs::{F2fs, OpenError, Variant, is_f2fs};
use heddle_vfs::path::{resolve, resolve_nofollow};
use heddle_vfs::{Cred, Error, FileSystem, Ino, Name, OpenFlags, SeekTarget};
use std::os::unix::fs::FileExt;

/// What images are made with: as it comes, and with all that a phone's image has.
const KINDS: [&[&str]; 5] = [
    &[],
    &["-i"],
    &["-s", "4"],
    &["-O", "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum,lost_found"],
    &["-O", "extra_attr,quota,project_quota,verity,encrypt,compression,casefold", "-C", "utf8"],
];

#[test]
fn every_file_of_a_loaded_tree_is_there_with_its_bytes() {
    let (all, small) = (Source::new(), Source::of_small_files());
    for kind in KINDS {
        let source = if kind.iter().any(|option| option.contains("extra_attr")) { &small } else { &all };
        let Some(image) = Image::of(source, kind) else { return };
        let fs = F2fs::open(&image.path).unwrap_or_else(|e| panic!("{kind:?}: {e}"));
        source.compare(&fs, kind);
        assert_eq!(fs.survey().problems, Vec::<String>::new(), "{kind:?}");
        let info = fs.info();
        assert!(info.clean && !info.needs_fsck && info.fsynced_inodes == 0, "{kind:?}: {info:?}");
        let statfs = fs.statfs().unwrap();
        assert!(
            statfs.blocks_free > 0 && statfs.blocks_free < statfs.blocks_total - 1500,
            "{kind:?}: {statfs:?}"
        );
        assert!(info.inodes > 1500 && info.nodes >= info.inodes, "{kind:?}: {info:?}");
    }
}

#[test]
fn a_directory_is_listed_from_any_place_once_and_whole() {
    let source = Source::new();
    let Some(image) = Image::of(&source, &[]) else { return };
    let fs = F2fs::open(&image.path).unwrap();
    let dir = resolve(&fs, &Cred::root(), "/many").unwrap();
    let handle = fs.open(&Cred::root(), dir.ino, OpenFlags::READ).unwrap();
    let (mut all, mut places) = (Vec::new(), Vec::new());
    fs.each_entry(&handle, Default::default(), &mut |entry| {
        all.push(entry.name.bytes().to_vec());
        places.push(entry.next);
        true
    })
    .unwrap();
    for at in [0, 1, all.len() / 2, all.len() - 1] {
        let mut rest = Vec::new();
        fs.each_entry(&handle, places[at], &mut |entry| {
            rest.push(entry.name.bytes().to_vec());
            true
        })
        .unwrap();
        assert_eq!(rest, all[at + 1..]);
    }
    fs.release(handle);
}

#[test]
fn links_parents_and_missing_names_are_what_they_are_everywhere() {
    let source = Source::new();
    let Some(image) = Image::of(&source, &[]) else { return };
    let fs = F2fs::open(&image.path).unwrap();
    let root = Cred::root();
    let deep = resolve(&fs, &root, "/a/b/c").unwrap();
    assert_eq!(fs.parent(deep.ino), resolve(&fs, &root, "/a/b").map(|attr| attr.ino));
    assert_eq!(fs.parent(Ino::ROOT), Ok(Ino::ROOT));
    assert_eq!(resolve(&fs, &root, "/link"), resolve(&fs, &root, "/a/b/c/file"));
    assert_eq!(resolve(&fs, &root, "/no such name"), Err(Error::NotFound));
    assert_eq!(resolve(&fs, &root, "/a/b/c/file/x"), Err(Error::NotDirectory));
    let link = resolve_nofollow(&fs, &root, "/long link").unwrap();
    assert_eq!(fs.readlink(link.ino).unwrap().len(), 4000);
    assert_eq!(fs.getattr(Ino(2)), Err(Error::Stale));
    assert_eq!(fs.getattr(Ino(1 << 40)), Err(Error::Stale));
}

#[test]
fn nothing_is_changed_and_every_change_says_why_not() {
    let source = Source::new();
    let Some(image) = Image::of(&source, &[]) else { return };
    let fs = F2fs::open(&image.path).unwrap();
    let (root, name) = (Cred::root(), Name::new(b"new").unwrap());
    let file = resolve(&fs, &root, "/a/b/c/file").unwrap();
    assert_eq!(fs.open(&root, file.ino, OpenFlags::READ_WRITE).unwrap_err(), Error::ReadOnly);
    assert_eq!(fs.create(&root, Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap_err(), Error::ReadOnly);
    assert_eq!(fs.unlink(&root, Ino::ROOT, Name::new(b"link").unwrap()), Err(Error::ReadOnly));
    let handle = fs.open(&root, file.ino, OpenFlags::READ).unwrap();
    assert_eq!(fs.write(&handle, 0, b"x"), Err(Error::BadHandle));
    fs.release(handle);
}

#[test]
fn holes_are_told_from_data() {
    let source = Source::new();
    let Some(image) = Image::of(&source, &[]) else { return };
    let fs = F2fs::open(&image.path).unwrap();
    let file = resolve(&fs, &Cred::root(), "/large").unwrap();
    let handle = fs.open(&Cred::root(), file.ino, OpenFlags::READ).unwrap();
    assert_eq!(fs.seek(&handle, SeekTarget::Data, 5), Ok(5));
    assert_eq!(fs.seek(&handle, SeekTarget::Hole, 5), Ok(file.size_bytes));
    assert_eq!(fs.seek(&handle, SeekTarget::Data, file.size_bytes), Err(Error::NoSuchOffset));
    fs.release(handle);
}

#[test]
fn rights_are_checked() {
    let source = Source::new();
    let Some(image) = Image::of(&source, &[]) else { return };
    let fs = F2fs::open(&image.path).unwrap();
    let user = Cred { uid: 4711, gid: 4711, groups: Vec::new(), umask: 0 };
    let secret = resolve(&fs, &Cred::root(), "/secret").unwrap();
    assert_eq!(fs.open(&user, secret.ino, OpenFlags::READ).unwrap_err(), Error::AccessDenied);
    assert_eq!(resolve(&fs, &user, "/closed/inside").unwrap_err(), Error::AccessDenied);
    assert!(resolve(&fs, &user, "/a/b/c/file").is_ok());
}

#[test]
fn what_is_no_image_is_refused_with_words() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("zeros");
    let file = std::fs::File::create(&path).unwrap();
    file.set_len(8 << 20).unwrap();
    // By a reader, and as each system.
    let refuses = |path: &std::path::Path, words: &str| {
        let as_system = [Variant::F2fs, Variant::RangeLock].map(|variant| F2fs::open_as(path, variant).err());
        for refused in as_system.into_iter().chain([F2fs::open(path).err()]) {
            let refused = refused.expect("it is refused");
            assert!(refused.to_string().contains(words), "{refused}");
        }
    };
    refuses(&path, "not an F2FS image");
    let pipe = dir.path().join("pipe");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    assert!(!is_f2fs(&path) && !is_f2fs(&pipe) && !is_f2fs(dir.path()));
    assert!(matches!(F2fs::open(&dir.path().join("none")).err().unwrap(), OpenError::System { .. }));
    let source = Source::new();
    let Some(image) = Image::of(&source, &[]) else { return };
    let file = std::fs::File::options().read(true).write(true).open(&image.path).unwrap();
    let len = file.metadata().unwrap().len();
    file.set_len(len - (4 << 20)).unwrap();
    refuses(&image.path, "it was cut short");
    file.set_len(len).unwrap();
    // One copy of the superblock is enough; with neither it is nothing.
    file.write_all_at(&[0; 4096], 0).unwrap();
    assert!(F2fs::open(&image.path).is_ok());
    file.write_all_at(&[0; 4096], 4096).unwrap();
    refuses(&image.path, "not an F2FS image");
}

#[test]
fn the_older_checkpoint_counts_when_the_newer_one_is_torn() {
    let source = Source::new();
    let Some(image) = Image::of(&source, &[]) else { return };
    let fs = F2fs::open(&image.path).unwrap();
    let (info, newest) = (fs.info(), fs.info().checkpoint_version);
    drop(fs);
    let file = std::fs::File::options().read(true).write(true).open(&image.path).unwrap();
    let first = u64::from(info.geometry.checkpoint.0) * 4096;
    let packs = [first, first + (2 << 20)];
    let version = |pack| {
        let mut head = [0; 8];
        file.read_exact_at(&mut head, pack).unwrap();
        u64::from_le_bytes(head)
    };
    let tear = |pack| file.write_all_at(&[0xff; 64], pack + 512).unwrap();
    let (newer, older) =
        if version(packs[0]) == newest { (packs[0], packs[1]) } else { (packs[1], packs[0]) };
    let expected = version(older);
    tear(newer);
    assert_eq!(F2fs::open(&image.path).unwrap().info().checkpoint_version, expected);
    tear(older);
    let refused = F2fs::open(&image.path).err().unwrap();
    assert!(matches!(refused, OpenError::Damaged { .. }), "{refused}");
    assert!(refused.to_string().contains("checksum is wrong"), "{refused}");
}

#[test]
fn features_that_are_not_known_are_refused() {
    let source = Source::new();
    let Some(image) = Image::of(&source, &[]) else { return };
    let file = std::fs::File::options().read(true).write(true).open(&image.path).unwrap();
    for copy in [0, 4096] {
        file.write_all_at(&0x8000_4002_u32.to_le_bytes(), copy + 1024 + 2180).unwrap();
    }
    let refused = F2fs::open(&image.path).err().unwrap().to_string();
    assert!(refused.contains("blkzoned, ro, 0x80000000"), "{refused}");
}
