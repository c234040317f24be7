//! Images that this engine has written are what they should be: to a model, to itself, and to fsck.f2fs.

mod common;

use common::{Image, Source, fill, fsck_is_clean, listed, open_as, read};
use heddle_f2fs::checksum::{SEED, checksum};
use heddle_f2fs::{F2fs, Variant};
use heddle_vfs::path::resolve;
use heddle_vfs::testkit::{Calls, Differential, agrees_with_model};
use heddle_vfs::{
    Attr, Cred, Error, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RangeOp, RenameMode,
    SetAttr, SetXattr, XattrName,
};
use std::cell::RefCell;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

const KINDS: [&[&str]; 4] = [
    &[],
    &["-i"],
    &["-s", "2"],
    &["-O", "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum,lost_found"],
];

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn create(fs: &F2fs, dir: Ino, text: &str) -> (Attr, Handle) {
    fs.create(&Cred::root(), dir, name(text), 0o644, OpenFlags::READ_WRITE).unwrap()
}

fn make_dir(fs: &F2fs, dir: Ino, text: &str) -> Ino {
    let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    fs.make(&Cred::root(), dir, name(text), node).unwrap().ino
}

/// Random calls, with remounts, give what the model gives; fsck.f2fs finds nothing after any of the mounts.
#[test]
fn it_does_what_the_model_does() {
    let foreign =
        KINDS.map(Some).into_iter().filter(|kind| Image::empty(160, kind.unwrap_or_default()).is_some());
    for kind in foreign.chain([None]) {
        let image: RefCell<Option<Image>> = RefCell::new(None);
        let mounts = RefCell::new(0_usize);
        // As each system by turns, another one after each second mount, which was unmounted.
        let open = |path: &Path| open_as(path, Variant::ALL[mounts.borrow().div_ceil(2) % 4]).unwrap();
        let make = || {
            let fresh = kind.map_or_else(|| Image::made(160), |kind| Image::empty(160, kind).unwrap());
            let fs = open(&fresh.path);
            let kind = kind.unwrap_or_default();
            if kind.iter().any(|option| option.contains("lost_found")) {
                fs.rmdir(&Cred::root(), Ino::ROOT, name("lost+found")).unwrap();
            }
            let owner = SetAttr { uid: Some(0), gid: Some(0), perm: Some(0o755), ..SetAttr::default() };
            fs.setattr(&Cred::root(), Ino::ROOT, None, &owner).unwrap();
            image.replace(Some(fresh));
            fs
        };
        let remount = |fs: F2fs| {
            // By turns as after a power cut that follows a sync, and as after an unmount.
            *mounts.borrow_mut() += 1;
            if mounts.borrow().is_multiple_of(2) {
                fs.sync().unwrap()
            } else {
                fs.unmount().unwrap()
            }
            drop(fs);
            let image = image.borrow();
            let path = &image.as_ref().unwrap().path;
            if Image::has_tools() {
                fsck_is_clean(path);
            }
            open(path)
        };
        let cases = std::env::var("HEDDLE_MODEL_CASES").map_or(20, |text| text.parse().unwrap());
        let how = Differential { calls: Calls::ALL.without(Calls::LARGE_XATTR), cases, steps_max: 80 };
        agrees_with_model(how, make, Some(&remount));
    }
}

#[test]
fn files_under_every_kind_of_node_come_back_and_go() {
    let Some(image) = Image::empty(512, &[]) else { return };
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let (attr, file) = create(&fs, Ino::ROOT, "far");
    let free = fs.statfs().unwrap().blocks_free;
    // The inode's own pointers, both direct nodes, both indirect ones, and the double indirect one.
    let (direct, indirect) = (1018, 1018 * 1018);
    let pages = [
        0,
        872,
        873,
        873 + direct,
        873 + 2 * direct,
        873 + 2 * direct + indirect,
        873 + 2 * direct + 2 * indirect,
    ];
    let bytes = |page: u64| page.to_le_bytes().repeat(512);
    for page in pages {
        fs.write(&file, page * 4096, &bytes(page)).unwrap();
    }
    fs.release(file);
    fs.unmount().unwrap();
    drop(fs);
    fsck_is_clean(&image.path);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let file = fs.open(&Cred::root(), attr.ino, OpenFlags::READ_WRITE).unwrap();
    let mut back = vec![0; 4096];
    for page in pages {
        assert_eq!(fs.read(&file, page * 4096, &mut back), Ok(4096));
        assert_eq!(back, bytes(page), "page {page}");
        assert_eq!(fs.seek(&file, heddle_vfs::SeekTarget::Data, page * 4096), Ok(page * 4096));
    }
    let sized = |size| SetAttr { size_bytes: Some(size), ..SetAttr::default() };
    for page in pages.into_iter().rev() {
        fs.setattr(&Cred::root(), attr.ino, None, &sized(page * 4096)).unwrap();
        fs.sync().unwrap();
        fsck_is_clean(&image.path);
    }
    assert_eq!(fs.statfs().unwrap().blocks_free, free, "what was cut off is free");
    fs.release(file);
    fs.unlink(&Cred::root(), Ino::ROOT, name("far")).unwrap();
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
}

#[test]
fn a_tree_of_another_program_is_changed_and_keeps_the_rest() {
    let (all, small) = (Source::new(), Source::of_small_files());
    for kind in KINDS {
        let source = if kind.iter().any(|option| option.contains("extra_attr")) { &small } else { &all };
        let Some(image) = Image::of(source, kind) else { return };
        let fs = F2fs::open_for_writing(&image.path).unwrap();
        let root = Cred::root();
        let many = resolve(&fs, &root, "/many").unwrap().ino;
        let names = listed(&fs, Path::new("/many"));
        for text in names.iter().take(700) {
            fs.unlink(&root, many, Name::new(text).unwrap()).unwrap();
        }
        let other = make_dir(&fs, Ino::ROOT, "other");
        for n in 0..700 {
            let (_, file) = create(&fs, other, &format!("new {n}"));
            fs.append(&file, n.to_string().as_bytes()).unwrap();
            fs.release(file);
        }
        for text in names.iter().skip(700) {
            let text = Name::new(text).unwrap();
            fs.rename(&root, many, text, other, text, RenameMode::NoReplace).unwrap();
        }
        fs.rmdir(&root, Ino::ROOT, name("many")).unwrap();
        fs.unmount().unwrap();
        drop(fs);
        fsck_is_clean(&image.path);
        let fs = F2fs::open(&image.path).unwrap();
        assert_eq!(listed(&fs, Path::new("/other")).len(), names.len());
        assert_eq!(read(&fs, Path::new("/other/new 77")), b"77");
        let kept = names.iter().nth(701).unwrap();
        let path = Path::new("/other").join(std::str::from_utf8(kept).unwrap());
        assert!(read(&fs, &path).first().is_some_and(u8::is_ascii_digit));
        assert_eq!(read(&fs, Path::new("/a/b/c/file")), b"deep down");
    }
}

#[test]
fn a_small_image_is_overwritten_many_times_and_cleaned() {
    Variant::ALL.into_iter().for_each(overwritten_and_cleaned);
}

fn overwritten_and_cleaned(variant: Variant) {
    let Some(image) = Image::empty(64, &[]) else { return };
    let fs = open_as(&image.path, variant).unwrap();
    fs.set_discards(true);
    let files: Vec<_> = (0..8).map(|n| create(&fs, Ino::ROOT, &format!("file {n}")).1).collect();
    // Two thirds of it are in use; eight times as much is written, here and there.
    let pages = fs.statfs().unwrap().blocks_available * 2 / 3 / 8;
    let mut wanted = vec![0; (8 * pages) as usize];
    let mut random = 1_u64;
    for round in 1..=8 * 8 * pages {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (random >> 33) % (8 * pages);
        let file = &files[(at / pages) as usize];
        fs.write(file, at % pages * 4096, &round.to_le_bytes().repeat(512))
            .unwrap_or_else(|e| panic!("{round}: {e}"));
        wanted[at as usize] = round;
    }
    let check = |fs: &F2fs| {
        let mut back = vec![0; 4096];
        for (at, round) in wanted.iter().enumerate().filter(|(_, round)| **round > 0) {
            let at = at as u64;
            let attr = resolve(fs, &Cred::root(), format!("/file {}", at / pages)).unwrap();
            let file = fs.open(&Cred::root(), attr.ino, OpenFlags::READ).unwrap();
            fs.read(&file, at % pages * 4096, &mut back).unwrap();
            assert_eq!(back, round.to_le_bytes().repeat(512), "page {at}");
            fs.release(file);
        }
    };
    check(&fs);
    files.into_iter().for_each(|file| fs.release(file));
    fs.unmount().unwrap();
    drop(fs);
    fsck_is_clean(&image.path);
    check(&F2fs::open(&image.path).unwrap());
}

#[test]
fn a_full_image_loses_nothing_and_deletion_frees_space() {
    Variant::ALL.into_iter().for_each(filled_and_freed);
}

fn filled_and_freed(variant: Variant) {
    let Some(image) = Image::empty(64, &[]) else { return };
    let fs = open_as(&image.path, variant).unwrap();
    let (kept, file) = create(&fs, Ino::ROOT, "kept");
    fs.write(&file, 0, &[7; 40_000]).unwrap();
    let (_, filler) = create(&fs, Ino::ROOT, "filler");
    fill(&fs, &filler, 1 << 16);
    fs.sync().unwrap();
    fsck_is_clean(&image.path);
    fs.release(filler);
    fs.unlink(&Cred::root(), Ino::ROOT, name("filler")).unwrap();
    fs.fallocate(&file, RangeOp::Allocate { keep_size: true }, 0, 10 << 20).unwrap();
    fs.write(&file, 1 << 20, &[8; 100_000]).unwrap();
    fs.release(file);
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
    assert_eq!(fs.getattr(kept.ino).unwrap().size_bytes, (1 << 20) + 100_000);
}

#[test]
fn an_open_unlinked_file_lives_until_closed_or_the_next_mount() {
    for variant in Variant::ALL {
        let Some(image) = Image::empty(64, &[]) else { return };
        let fs = open_as(&image.path, variant).unwrap();
        let free = fs.statfs().unwrap().blocks_free;
        let (_, file) = create(&fs, Ino::ROOT, "open");
        fs.append(&file, &[1; 100_000]).unwrap();
        fs.unlink(&Cred::root(), Ino::ROOT, name("open")).unwrap();
        fs.sync().unwrap();
        // What a log has, fsck does not see.
        if !variant.has_node_log() {
            fsck_is_clean(&image.path);
        }
        assert_eq!(fs.append(&file, b"more"), Ok(100_000), "{variant:?}");
        let (_, closed) = create(&fs, Ino::ROOT, "closed");
        fs.append(&closed, &[2; 100_000]).unwrap();
        let before = fs.statfs().unwrap().blocks_free;
        fs.unlink(&Cred::root(), Ino::ROOT, name("closed")).unwrap();
        assert_eq!(fs.statfs().unwrap().blocks_free, before, "{variant:?}: it is open");
        let ino = closed.ino;
        fs.release(closed);
        assert_eq!(fs.getattr(ino), Err(Error::Stale), "{variant:?}");
        assert_eq!(fs.statfs().unwrap().blocks_free, before + 25 + 1, "{variant:?}: its pages and its inode");
        // As after a kill: nothing more is written.
        drop(fs);
        let fs = open_as(&image.path, variant).unwrap();
        assert_eq!(fs.getattr(file.ino), Err(Error::Stale), "{variant:?}");
        assert_eq!(fs.statfs().unwrap().blocks_free, free, "{variant:?}");
        fs.unmount().unwrap();
        drop(fs);
        fsck_is_clean(&image.path);
    }
}

#[test]
fn attributes_fill_inode_and_block_and_go_again() {
    for kind in KINDS {
        let Some(image) = Image::empty(160, kind) else { return };
        let fs = F2fs::open_for_writing(&image.path).unwrap();
        let (attr, file) = create(&fs, Ino::ROOT, "file");
        let set = |text: &str, value: &[u8]| {
            let name = XattrName::new(text.as_bytes()).unwrap();
            fs.setxattr(&Cred::root(), attr.ino, name, value, SetXattr::Any)
        };
        set("user.small", b"inline").unwrap();
        set("user.large", &[5; 3000]).unwrap();
        set("security.x", &[6; 700]).unwrap();
        assert_eq!(set("trusted.too much", &[7; 2000]), Err(Error::NoSpace));
        fs.unmount().unwrap();
        fsck_is_clean(&image.path);
        let again = F2fs::open(&image.path);
        assert!(again.is_err(), "it is held for writing");
        let get = |text: &str| fs.getxattr(&Cred::root(), attr.ino, XattrName::new(text.as_bytes()).unwrap());
        assert_eq!(get("user.large"), Ok(vec![5; 3000]));
        fs.removexattr(&Cred::root(), attr.ino, XattrName::new(b"user.large").unwrap()).unwrap();
        fs.removexattr(&Cred::root(), attr.ino, XattrName::new(b"security.x").unwrap()).unwrap();
        assert_eq!(get("user.small"), Ok(b"inline".to_vec()));
        fs.release(file);
        fs.unmount().unwrap();
        fsck_is_clean(&image.path);
    }
}

/// Linux' logs fill gaps where few segments are free: blocks before and behind the place where they write next are live.
#[test]
fn a_log_that_was_filling_gaps_goes_on_in_another_segment() {
    let Some(image) = Image::empty(64, &[]) else { return };
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let (_, file) = create(&fs, Ino::ROOT, "file");
    fs.write(&file, 0, &[3; 40 * 4096]).unwrap();
    fs.sync().unwrap();
    fs.fallocate(&file, RangeOp::Punch, 5 * 4096, 5 * 4096).unwrap();
    fs.release(file);
    fs.unmount().unwrap();
    let pack = u64::from(fs.info().geometry.checkpoint.0);
    drop(fs);
    // The log of warm data writes into gaps: into that of the file's fifth page next.
    let disk = File::options().read(true).write(true).open(&image.path).unwrap();
    let mut forged = 0;
    for first in [pack, pack + 512] {
        let mut head = [0; 4096];
        disk.read_exact_at(&mut head, first * 4096).unwrap();
        let blocks = u64::from(u32::from_le_bytes(head[136..140].try_into().unwrap()));
        if !(3..512).contains(&blocks) {
            continue;
        }
        let next = u16::from_le_bytes(head[118..120].try_into().unwrap());
        if next < 40 {
            continue;
        }
        head[118..120].copy_from_slice(&(next - 35).to_le_bytes());
        head[177] = 1;
        let crc = checksum(SEED, &head[..4092]);
        head[4092..].copy_from_slice(&crc.to_le_bytes());
        for at in [first, first + blocks - 1] {
            disk.write_all_at(&head, at * 4096).unwrap();
        }
        forged += 1;
    }
    assert!(forged > 0);
    fsck_is_clean(&image.path);
    let mut wanted = vec![3; 40 * 4096];
    wanted[5 * 4096..10 * 4096].fill(0);
    let whole = |fs: &F2fs| assert_eq!(read(fs, Path::new("/file")), wanted);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    whole(&fs);
    let (_, other) = create(&fs, Ino::ROOT, "other");
    fs.write(&other, 0, &[4; 70 * 4096]).unwrap();
    fs.release(other);
    fs.sync().unwrap();
    fsck_is_clean(&image.path);
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
    whole(&fs);
}

/// A call after which an fsync is a checkpoint, or one after which the file's nodes are enough.
type Change<'a> = (bool, &'a dyn Fn(&F2fs, &Handle));

#[test]
fn fsync_makes_a_checkpoint_only_where_nodes_do_not_suffice() {
    let Some(image) = Image::empty(160, &[]) else { return };
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let (root, dir) = (Cred::root(), make_dir(&fs, Ino::ROOT, "dir"));
    let (_, file) = create(&fs, dir, "file");
    fs.write(&file, 0, &[1; 10_000]).unwrap();
    let version = || fs.info().checkpoint_version;
    let before = version();
    fs.fsync(&file, false).unwrap();
    assert_eq!(version(), before + 1, "the first one of a mount");
    let rename = |fs: &F2fs, from: &str, to: &str| {
        fs.rename(&root, dir, name(from), dir, name(to), RenameMode::Replace).unwrap()
    };
    let size = |size| SetAttr { size_bytes: Some(size), ..SetAttr::default() };
    let changes: [Change<'_>; 10] = [
        (false, &|fs, file| _ = fs.write(file, 5000, &[2; 10_000]).unwrap()),
        (false, &|_, _| ()),
        (false, &|fs, file| _ = fs.setattr(&root, file.ino, None, &size(14_000)).unwrap()),
        (false, &|fs, file| _ = fs.write(file, 20 << 20, &[3; 10_000]).unwrap()),
        (true, &|fs, file| _ = fs.setattr(&root, file.ino, None, &size(15 << 20)).unwrap()),
        (true, &|fs, _| rename(fs, "file", "other")),
        (true, &|fs, file| {
            let name = XattrName::new(b"user.x").unwrap();
            fs.setxattr(&root, file.ino, name, b"value", SetXattr::Any).unwrap();
        }),
        (true, &|fs, file| _ = fs.link(&root, file.ino, Ino::ROOT, name("link")).unwrap()),
        (true, &|fs, file| _ = fs.append(file, b"of two names").unwrap()),
        (true, &|fs, _| fs.unlink(&root, Ino::ROOT, name("link")).unwrap()),
    ];
    for (n, (is_checkpoint, change)) in changes.iter().enumerate() {
        change(&fs, &file);
        let before = version();
        fs.fsync(&file, false).unwrap();
        assert_eq!(version() > before, *is_checkpoint, "change {n}");
    }
    let fresh = |is_checkpoint: bool, dir: Ino, text: &str| {
        let (_, new) = create(&fs, dir, text);
        fs.append(&new, text.as_bytes()).unwrap();
        let before = version();
        fs.fsync(&new, false).unwrap();
        assert_eq!(version() > before, is_checkpoint, "{text}");
        fs.release(new);
    };
    fresh(false, dir, "in a directory of the checkpoint");
    fs.unlink(&root, dir, name("other")).unwrap();
    fresh(false, dir, "where another name went");
    fresh(true, dir, "other");
    let new = make_dir(&fs, dir, "new");
    fresh(true, new, "in a new directory");
    fresh(false, new, "in one that is not new any more");
    fs.unmount().unwrap();
    fresh(false, new, "after an unmount");
    let before = version();
    fs.unmount().unwrap();
    assert_eq!(version(), before + 1, "an unmount leaves nothing to take in");
    let before = version();
    fs.append(&file, b"it has no name").unwrap();
    fs.fsync(&file, false).unwrap();
    assert_eq!(version(), before + 1);
    fs.release(file);
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
}

/// As after a kill: what was fsynced is there, under every kind of node, and what was not is as at the checkpoint.
#[test]
fn fsynced_files_without_a_checkpoint_are_recovered_by_the_mount() {
    for kind in KINDS {
        let Some(image) = Image::empty(160, kind) else { return };
        let fs = F2fs::open_for_writing(&image.path).unwrap();
        let root = Cred::root();
        let dir = make_dir(&fs, Ino::ROOT, "dir");
        let (_, old) = create(&fs, dir, "old");
        let (_, other) = create(&fs, dir, "other");
        fs.write(&other, 0, &[9; 5000]).unwrap();
        let mut wanted = vec![0; 13 << 20];
        let put = |wanted: &mut Vec<u8>, at: usize, value: u8, len: usize| {
            fs.write(&old, at as u64, &vec![value; len]).unwrap();
            wanted[at..at + len].fill(value);
        };
        // Under the inode, both direct nodes and an indirect one.
        for at in [0, 3_500_000, 7_000_000, 7_900_000, 12_500_000] {
            put(&mut wanted, at, 1, 9000);
        }
        fs.sync().unwrap();
        let version = fs.info().checkpoint_version;
        for (n, at) in [100, 4096, 3_504_000, 4_000_000, 7_890_000, 11_999_999].into_iter().enumerate() {
            put(&mut wanted, at, 2 + n as u8, 7000);
            if n % 2 == 1 {
                fs.fsync(&old, false).unwrap();
            }
        }
        fs.fallocate(&old, RangeOp::Punch, 3_500_000, 100_000).unwrap();
        wanted[3_500_000..3_600_000].fill(0);
        let set =
            SetAttr { perm: Some(0o4711), uid: Some(7), size_bytes: Some(13 << 20), ..SetAttr::default() };
        fs.setattr(&root, old.ino, None, &set).unwrap();
        fs.fsync(&old, true).unwrap();
        fs.write(&old, 0, &[77; 4096]).unwrap();
        let long = "n".repeat(255);
        let mut made = Vec::new();
        for (above, text) in [(Ino::ROOT, "fresh"), (dir, &long), (dir, "empty")] {
            let (attr, new) = create(&fs, above, text);
            if text != "empty" {
                fs.append(&new, &[5; 100_000]).unwrap();
                fs.write(&new, 5 << 20, b"far").unwrap();
            }
            fs.fsync(&new, false).unwrap();
            made.push((above, text, attr));
            fs.release(new);
        }
        fs.write(&other, 0, &[10; 5000]).unwrap();
        fs.release(create(&fs, dir, "never synced").1);
        fs.unlink(&root, dir, name("empty")).unwrap();
        assert_eq!(fs.info().checkpoint_version, version, "{kind:?}: no checkpoint");
        drop(fs);
        fsck_is_clean(&image.path);
        for times in ["rolled forward", "mounted again"] {
            let fs = F2fs::open_for_writing(&image.path).unwrap();
            assert_eq!(fs.info().fsynced_inodes, if times == "rolled forward" { 4 } else { 0 });
            assert!(read(&fs, Path::new("/dir/old")) == wanted, "{kind:?}, {times}");
            let attr = fs.lookup(&root, dir, name("old")).unwrap();
            assert_eq!((attr.perm, attr.uid, attr.nlink), (0o4711, 7, 1), "{kind:?}, {times}");
            assert!(read(&fs, Path::new("/dir/other")) == [9; 5000], "{kind:?}, {times}");
            for (above, text, attr) in &made {
                let found = fs.lookup(&root, *above, name(text)).unwrap();
                assert_eq!((found.ino, found.generation, found.nlink), (attr.ino, attr.generation, 1));
            }
            let content = read(&fs, Path::new("/fresh"));
            assert!(content.len() == (5 << 20) + 3 && content[..100_000] == [5; 100_000]);
            assert!(content[100_000..5 << 20].iter().all(|byte| *byte == 0) && content.ends_with(b"far"));
            assert_eq!(read(&fs, Path::new("/dir/empty")), b"");
            let names = listed(&fs, Path::new("/dir"));
            assert!(!names.contains(&b"never synced"[..]) && names.len() == 4, "{kind:?}, {times}");
            // As after a kill again: the mount itself has made it a checkpoint's.
            drop(fs);
            fsck_is_clean(&image.path);
        }
    }
}

/// No fsync writes indirect nodes.
#[test]
fn a_reader_finds_what_was_fsynced_under_indirect_nodes() {
    let ends: [&[u64]; 4] =
        [&[4 << 20, 9 << 20], &[9 << 20, 6 << 30], &[6 << 30, 1 << 40], &[1 << 40, (1 << 40) + (5 << 30)]];
    for (before, ends) in [false, true].into_iter().flat_map(|before| ends.map(|ends| (before, ends))) {
        let Some(image) = Image::empty(64, &[]) else { return };
        let fs = F2fs::open_for_writing(&image.path).unwrap();
        let (attr, file) = create(&fs, Ino::ROOT, "large");
        // The checkpoint has the nodes on the way, and not the last one.
        if before {
            fs.write(&file, ends[0], b"old").unwrap();
        }
        fs.sync().unwrap();
        for end in ends {
            fs.write(&file, end + (20 << 20), b"fsynced").unwrap();
            fs.fsync(&file, true).unwrap();
        }
        fs.release(file);
        drop(fs);
        fsck_is_clean(&image.path);
        let fs = F2fs::open(&image.path).unwrap();
        assert_eq!(fs.info().fsynced_inodes, 1);
        let file = fs.open(&Cred::root(), attr.ino, OpenFlags::READ).unwrap();
        let read = |at: u64| {
            let mut bytes = [0; 7];
            fs.read(&file, at, &mut bytes).map(|len| bytes[..len].to_vec())
        };
        // A mount asks for it every 30 seconds.
        fs.checkpoint_if_changed().unwrap();
        fs.sync().unwrap();
        for end in ends {
            assert_eq!(read(end + (20 << 20)), Ok(b"fsynced".to_vec()), "{before}, {end}");
            assert_eq!(read(end + (19 << 20)), Ok(vec![0; 7]), "{before}, {end}");
        }
        if before {
            assert_eq!(read(ends[0]).unwrap()[..3], *b"old");
        }
        fs.release(file);
        fs.unmount().unwrap();
    }
}

#[test]
fn an_image_linux_fsynced_without_unmount_keeps_what_was_fsynced() {
    // fsck.f2fs wants a path of its own.
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = place.path().join("reset");
    let image = common::unpacked("reset");
    std::fs::copy(format!("/proc/self/fd/{}", image.as_raw_fd()), &path).unwrap();
    let names = |fs: &F2fs| [listed(fs, Path::new("/")), listed(fs, Path::new("/many"))];
    let before = names(&F2fs::open(&path).unwrap());
    let check = |fsynced: u64| {
        let fs = F2fs::open_for_writing(&path).unwrap();
        assert_eq!(fs.info().fsynced_inodes, fsynced);
        assert!(names(&fs) == before);
        assert!(read(&fs, Path::new("/cut")) == [&[b'S'; 4096][..], &[b'q'; 904]].concat());
        assert!(read(&fs, Path::new("/fresh")) == [b'F'; 100]);
        assert!(read(&fs, Path::new("/over and over")) == [b'A' + 199 % 26; 20_000]);
        fs
    };
    drop(check(2));
    fsck_is_clean(&path);
    let fs = check(0);
    let (_, file) = create(&fs, Ino::ROOT, "ours");
    fs.append(&file, &[6; 10_000]).unwrap();
    fs.release(file);
    fs.unmount().unwrap();
    fsck_is_clean(&path);
}
