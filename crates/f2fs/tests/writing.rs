//! Images that this engine has written are what they should be: to a model, to itself, and to fsck.f2fs.

mod common;

use common::{Image, Source, fsck_is_clean, listed, read};
use heddle_f2fs::F2fs;
use heddle_f2fs::checksum::{SEED, checksum};
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
    for kind in KINDS {
        if Image::empty(160, kind).is_none() {
            return;
        }
        let image: RefCell<Option<Image>> = RefCell::new(None);
        let make = || {
            let fresh = Image::empty(160, kind).unwrap();
            let fs = F2fs::open_for_writing(&fresh.path).unwrap();
            if kind.iter().any(|option| option.contains("lost_found")) {
                fs.rmdir(&Cred::root(), Ino::ROOT, name("lost+found")).unwrap();
            }
            let owner = SetAttr { uid: Some(0), gid: Some(0), perm: Some(0o755), ..SetAttr::default() };
            fs.setattr(&Cred::root(), Ino::ROOT, None, &owner).unwrap();
            image.replace(Some(fresh));
            fs
        };
        let mounts = RefCell::new(0);
        let remount = |fs: F2fs| {
            // By turns as after a power cut behind a sync, and as after an unmount.
            *mounts.borrow_mut() += 1;
            if *mounts.borrow() % 2 == 0 {
                fs.sync().unwrap()
            } else {
                fs.unmount().unwrap()
            }
            drop(fs);
            let image = image.borrow();
            let path = &image.as_ref().unwrap().path;
            fsck_is_clean(path);
            F2fs::open_for_writing(path).unwrap()
        };
        let cases = std::env::var("HEDDLE_MODEL_CASES").map_or(5, |text| text.parse().unwrap());
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
    let Some(image) = Image::empty(64, &[]) else { return };
    let fs = F2fs::open_for_writing(&image.path).unwrap();
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
fn a_full_image_refuses_and_loses_nothing_and_what_is_deleted_comes_back() {
    let Some(image) = Image::empty(64, &[]) else { return };
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let (kept, file) = create(&fs, Ino::ROOT, "kept");
    fs.write(&file, 0, &[7; 40_000]).unwrap();
    let (_, filler) = create(&fs, Ino::ROOT, "filler");
    let (mut written, available) = (0, fs.statfs().unwrap().blocks_available * 4096);
    let full = loop {
        match fs.append(&filler, &[9; 1 << 16]) {
            Ok(_) => written += 1 << 16,
            Err(error) => break error,
        }
    };
    assert_eq!(full, Error::NoSpace);
    assert_eq!(fs.getattr(filler.ino).unwrap().size_bytes, written, "all of a write or nothing");
    assert!(written > available / 20 * 19, "{written} bytes of {available}");
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
fn an_open_file_without_a_name_lives_on_and_is_ended_by_the_next_mount() {
    let Some(image) = Image::empty(64, &[]) else { return };
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let free = fs.statfs().unwrap().blocks_free;
    let (_, file) = create(&fs, Ino::ROOT, "open");
    fs.append(&file, &[1; 100_000]).unwrap();
    fs.unlink(&Cred::root(), Ino::ROOT, name("open")).unwrap();
    fs.sync().unwrap();
    fsck_is_clean(&image.path);
    assert_eq!(fs.append(&file, b"more"), Ok(100_000));
    // As after a kill: nothing more is written.
    drop(fs);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    assert_eq!(fs.getattr(file.ino), Err(Error::Stale));
    assert_eq!(fs.statfs().unwrap().blocks_free, free);
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
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

#[test]
fn an_image_that_was_fsynced_by_linux_and_not_unmounted_is_not_written() {
    let image = common::unpacked("reset");
    let path = format!("/proc/self/fd/{}", image.as_raw_fd());
    let Err(refused) = F2fs::open_for_writing(Path::new(&path)) else { panic!("it was opened") };
    assert!(refused.to_string().contains("read-only"), "{refused}");
    assert!(F2fs::open(Path::new(&path)).is_ok());
}
