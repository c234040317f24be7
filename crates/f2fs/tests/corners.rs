//! What images hold that others wrote, or that was damaged: flags, numbers and copies that contradict each other, each one put there.

#[path = "corners/believed.rs"]
mod believed;
mod common;
#[path = "corners/damaged_entries.rs"]
mod damaged_entries;
#[path = "corners/forge.rs"]
mod forge;
#[path = "corners/forged_names.rs"]
mod forged_names;
#[path = "corners/large_bitmaps.rs"]
mod large_bitmaps;
#[path = "corners/left_by_linux.rs"]
mod left_by_linux;
#[path = "corners/listing.rs"]
mod listing;
#[path = "corners/numbers.rs"]
mod numbers;
#[path = "corners/repaired.rs"]
mod repaired;
#[path = "corners/surveyed.rs"]
mod surveyed;
#[path = "corners/unreadable.rs"]
mod unreadable;

use common::{Image, fsck_is_clean, open_as, read};
use forge::Forge;
use heddle_f2fs::format::{CheckpointHead, NatJournal, advise_flag, inode_flag};
use heddle_f2fs::{BlockAddr, F2fs, Variant};
use heddle_vfs::{
    Cred, Error, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RangeOp, RenameMode, SetAttr,
    SetTime, SetXattr, Time, XattrName,
};
use std::path::Path;
use zerocopy::{FromZeros, IntoBytes};

const ROOT: Ino = Ino::ROOT;

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn create(fs: &F2fs, dir: Ino, text: &str) -> Handle {
    fs.create(&Cred::root(), dir, name(text), 0o644, OpenFlags::READ_WRITE).unwrap().1
}

fn make_dir(fs: &F2fs, text: &str) -> Ino {
    let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    fs.make(&Cred::root(), ROOT, name(text), node).unwrap().ino
}

fn mounted(image: &Image) -> F2fs {
    F2fs::open_for_writing(&image.path).unwrap()
}

fn refusal(image: &Image) -> String {
    F2fs::open_for_writing(&image.path).err().expect("it is refused").to_string()
}

/// An image with `file` (9000 bytes) and a directory with `inside`; their numbers.
fn small() -> Option<(Image, u32, u32)> {
    let image = Image::empty(64, &[])?;
    let fs = mounted(&image);
    let file = create(&fs, ROOT, "file");
    fs.write(&file, 0, &[5; 9000]).unwrap();
    let dir = make_dir(&fs, "dir");
    fs.release(create(&fs, dir, "inside"));
    let numbers = (file.ino.0 as u32, dir.0 as u32);
    fs.release(file);
    fs.unmount().unwrap();
    Some((image, numbers.0, numbers.1))
}

fn size(bytes: u64) -> SetAttr {
    SetAttr { size_bytes: Some(bytes), ..SetAttr::default() }
}

/// Every call that changes a file, by its name.
fn calls_on_file(fs: &F2fs, ino: Ino) -> Vec<(&'static str, Result<(), Error>)> {
    let root = Cred::root();
    let set = |set: SetAttr| fs.setattr(&root, ino, None, &set).map(drop);
    let user = XattrName::new(b"user.x").unwrap();
    let rename =
        |from: &str, to: &str| fs.rename(&root, ROOT, name(from), ROOT, name(to), RenameMode::Replace);
    let other = create(fs, ROOT, "other");
    fs.release(other);
    let time = Some(SetTime::At(Time::from_parts(7, 0)));
    vec![
        ("open", fs.open(&root, ino, OpenFlags::READ_WRITE).map(|handle| fs.release(handle))),
        ("open with O_TRUNC", {
            let flags = OpenFlags { truncate: true, ..OpenFlags::READ_WRITE };
            fs.open(&root, ino, flags).map(|handle| fs.release(handle))
        }),
        ("truncate", set(size(3))),
        ("extend", set(size(1 << 20))),
        ("chmod", set(SetAttr { perm: Some(0o600), ..SetAttr::default() })),
        ("chown", set(SetAttr { uid: Some(7), ..SetAttr::default() })),
        ("utimes", set(SetAttr { mtime: time, ..SetAttr::default() })),
        ("setxattr", fs.setxattr(&root, ino, user, b"1", SetXattr::Any)),
        ("removexattr", fs.removexattr(&root, ino, user)),
        ("link", fs.link(&root, ino, ROOT, name("link")).map(drop)),
        ("rename", rename("file", "moved")),
        ("rename over it", rename("other", "file")),
        ("exchange", fs.rename(&root, ROOT, name("other"), ROOT, name("file"), RenameMode::Exchange)),
        ("unlink", fs.unlink(&root, ROOT, name("file"))),
    ]
}

#[test]
fn an_immutable_file_is_changed_by_no_call() {
    let Some(small) = small() else { return };
    Variant::ALL.into_iter().for_each(|variant| stays_as_it_is(&small, variant));
}

fn stays_as_it_is((image, file, dir): &(Image, u32, u32), variant: Variant) {
    let (image, file, dir) = (Image::copy_of(image), *file, *dir);
    for ino in [file, dir] {
        Forge::of(&image.path).inode(ino, |inode| inode.flags.set(inode.flags.get() | inode_flag::IMMUTABLE));
    }
    let fs = common::open_as(&image.path, variant).unwrap();
    let (root, dir) = (Cred::root(), Ino(dir.into()));
    let now = SetAttr { mtime: Some(SetTime::Now), ..SetAttr::default() };
    assert_eq!(fs.setattr(&root, Ino(file.into()), None, &now).map(drop), Err(Error::NotPermitted));
    for (call, done) in calls_on_file(&fs, Ino(file.into())) {
        assert_eq!(done, Err(Error::NotPermitted), "{call}");
    }
    let in_dir = [
        fs.create(&root, dir, name("new"), 0o600, OpenFlags::WRITE).map(drop),
        fs.unlink(&root, dir, name("inside")),
        fs.rename(&root, dir, name("inside"), ROOT, name("out"), RenameMode::Replace),
        fs.rename(&root, ROOT, name("other"), dir, name("in"), RenameMode::Replace),
        fs.link(&root, fs.lookup(&root, ROOT, name("other")).unwrap().ino, dir, name("in")).map(drop),
        fs.tmpfile(&root, dir, 0o600, OpenFlags::READ_WRITE, true).map(drop),
        fs.rmdir(&root, ROOT, name("dir")),
    ];
    assert_eq!(in_dir, [const { Err(Error::NotPermitted) }; 7]);
    assert!(read(&fs, Path::new("/file")) == [5; 9000]);
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
}

#[test]
fn an_append_only_file_grows_and_nothing_else() {
    let Some(small) = small() else { return };
    Variant::ALL.into_iter().for_each(|variant| only_grows(&small, variant));
}

fn only_grows((image, file, dir): &(Image, u32, u32), variant: Variant) {
    let (image, file, dir) = (Image::copy_of(image), *file, *dir);
    for ino in [file, dir] {
        Forge::of(&image.path)
            .inode(ino, |inode| inode.flags.set(inode.flags.get() | inode_flag::APPEND_ONLY));
    }
    let fs = common::open_as(&image.path, variant).unwrap();
    let (root, ino, dir) = (Cred::root(), Ino(file.into()), Ino(dir.into()));
    for (call, done) in calls_on_file(&fs, ino) {
        assert_eq!(done, Err(Error::NotPermitted), "{call}");
    }
    let append = fs.open(&root, ino, OpenFlags { append: true, ..OpenFlags::READ_WRITE }).unwrap();
    fs.append(&append, b"more").unwrap();
    for done in [
        fs.write(&append, 0, b"over").map(drop),
        fs.setattr(&root, ino, Some(&append), &size(0)).map(drop),
        fs.fallocate(&append, RangeOp::Punch, 0, 4096),
        fs.fallocate(&append, RangeOp::Zero { keep_size: true }, 0, 4096),
        fs.fallocate(&append, RangeOp::Collapse, 0, 4096),
        fs.fallocate(&append, RangeOp::Insert, 0, 4096),
    ] {
        assert_eq!(done, Err(Error::NotPermitted));
    }
    fs.fallocate(&append, RangeOp::Allocate { keep_size: true }, 0, 100_000).unwrap();
    fs.release(append);
    assert!(read(&fs, Path::new("/file")) == [&[5; 9000][..], b"more"].concat());
    fs.release(create(&fs, dir, "new"));
    assert_eq!(fs.unlink(&root, dir, name("inside")), Err(Error::NotPermitted));
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
}

#[test]
fn a_sealed_file_keeps_its_bytes() {
    let Some((image, file, _)) = small() else { return };
    Forge::of(&image.path).inode(file, |inode| inode.advise |= advise_flag::VERITY);
    let fs = mounted(&image);
    let calls = calls_on_file(&fs, Ino(file.into()));
    let kept = ["open", "open with O_TRUNC", "truncate", "extend"];
    for (call, done) in calls {
        assert_eq!(done == Err(Error::NotPermitted), kept.contains(&call), "{call}: {done:?}");
    }
}

#[test]
fn a_size_that_no_node_leads_to_is_refused() {
    let image = Image::made(64);
    let fs = mounted(&image);
    let (root, file) = (Cred::root(), create(&fs, ROOT, "file"));
    let set = |bytes| fs.setattr(&root, file.ino, None, &size(bytes)).map(drop);
    // Own pointers are fewer where attributes stand in the inode.
    let most = (864 + 2 * 1018 + 2 * 1018 * 1018 + 1018 * 1018 * 1018) * 4096;
    assert_eq!(set(100 << 40), Err(Error::FileTooBig));
    assert_eq!(set(most + 1), Err(Error::FileTooBig));
    assert_eq!(fs.write(&file, most, b"x"), Err(Error::FileTooBig));
    assert_eq!(
        fs.fallocate(&file, RangeOp::Allocate { keep_size: true }, most - 1, 2),
        Err(Error::FileTooBig)
    );
    assert_eq!(fs.size_max_bytes(file.ino), Ok(most));
    set(most).unwrap();
    fs.write(&file, most - 1, b"x").unwrap();
    assert_eq!(fs.append(&file, b"x"), Err(Error::FileTooBig));
    assert!(!fs.has_failed());
    fs.release(file);
    fs.unmount().unwrap();
    if Image::has_tools() {
        fsck_is_clean(&image.path);
    }
}

/// Of a cluster of four pages the first one is a mark, the second one is what was left of all. The others are nothing, or reserved still.
fn compressed(variant: Variant, is_released: bool) -> Option<Image> {
    let image = Image::empty(64, &["-O", "extra_attr,compression"])?;
    let fs = common::open_as(&image.path, variant).unwrap();
    let file = create(&fs, ROOT, "file");
    if !is_released {
        fs.fallocate(&file, RangeOp::Allocate { keep_size: false }, 0, 4 * 4096).unwrap();
    }
    fs.write(&file, 4096, &[5; 4096]).unwrap();
    let number = file.ino.0 as u32;
    fs.release(file);
    fs.release(create(&fs, ROOT, "other"));
    fs.unmount().unwrap();
    drop(fs);
    Forge::of(&image.path).inode(number, |inode| {
        inode.flags.set(inode.flags.get() | inode_flag::COMPRESSED);
        if is_released {
            inode.inline |= heddle_f2fs::format::inline_flag::COMPRESS_RELEASED;
        }
        inode.size_bytes.set(4 * 4096);
        // Behind 36 bytes of attributes, in which the cluster's size is.
        inode.addr[9].set(BlockAddr::COMPRESSED.0);
        let attr = &mut inode.addr.as_mut_bytes()[..36];
        (attr[32], attr[33]) = (0, 2);
    });
    fsck_is_clean(&image.path);
    Some(image)
}

#[test]
fn blocks_that_compression_saved_and_gave_back_are_not_counted_twice() {
    let root = Cred::root();
    for (variant, is_released) in Variant::ALL.into_iter().flat_map(|v| [(v, true), (v, false)]) {
        for how in ["unlink", "replace", "kill"] {
            let Some(image) = compressed(variant, is_released) else { return };
            let fs = common::open_as(&image.path, variant).unwrap();
            let ino = fs.lookup(&root, ROOT, name("file")).unwrap().ino;
            let refused = fs.setattr(&root, ino, None, &size(0)).unwrap_err();
            assert!(matches!(refused, Error::NotSupported(_)), "{refused}");
            if how == "replace" {
                fs.rename(&root, ROOT, name("other"), ROOT, name("file"), RenameMode::Replace).unwrap();
            } else {
                fs.unlink(&root, ROOT, name("file")).unwrap();
            }
            // Taken in, where the log has it alone.
            if how == "kill" {
                fs.sync().unwrap();
                drop(fs);
                fsck_is_clean(&image.path);
                common::open_as(&image.path, variant).unwrap().unmount().unwrap();
            } else {
                fs.unmount().unwrap();
                drop(fs);
            }
            fsck_is_clean(&image.path);
            let fs = mounted(&image);
            assert_eq!(fs.lookup(&root, ROOT, name("file")).is_ok(), how == "replace", "{how}");
        }
    }
}

#[test]
fn a_survey_counts_the_blocks_of_a_compressed_file() {
    for is_released in [true, false] {
        let Some(image) = compressed(Variant::F2fs, is_released) else { return };
        let fs = F2fs::open(&image.path).unwrap();
        let (survey, info) = (fs.survey(), fs.info());
        assert_eq!((survey.problems, survey.inodes.len() as u32), (Vec::<String>::new(), info.inodes));
        assert_eq!(survey.unread, 1);
        assert_eq!(
            survey.inodes.iter().filter(|inode| (inode.blocks, inode.extents) == (1, 1)).count(),
            2,
            "the root, and the file"
        );
        // What compression saved is in use, as Linux counts it, until it is given back.
        assert_eq!(info.blocks_valid, 3 + 2 + if is_released { 0 } else { 3 });
    }
}

#[test]
fn a_node_number_beyond_the_table_in_the_journal_is_refused() {
    let Some((image, ..)) = small() else { return };
    for number in [0, 1 << 24, u32::MAX] {
        let copy = common::Image::copy_of(&image);
        Forge::of(&copy.path).nat_journal(|journal: &mut NatJournal| {
            journal.count.set(1);
            journal.changes[0] = FromZeros::new_zeroed();
            journal.changes[0].nid.set(number);
            journal.changes[0].entry.addr.set(1);
        });
        assert!(refusal(&copy).contains("its journal has a change of node"), "{}", refusal(&copy));
    }
}

#[test]
fn counts_that_cannot_be_are_refused() {
    let Some((image, ..)) = small() else { return };
    let wrong: [fn(&mut CheckpointHead); 4] = [
        |head| head.blocks_user.set(1 << 32),
        |head| head.blocks_valid.set(1 << 40),
        |head| head.nodes_valid.set(1 << 30),
        |head| head.inodes_valid.set(1 << 30),
    ];
    for change in wrong {
        let copy = common::Image::copy_of(&image);
        Forge::of(&copy.path).head(change);
        assert!(refusal(&copy).contains("its checkpoint counts"), "{}", refusal(&copy));
    }
}

#[test]
fn a_file_that_has_a_name_is_not_taken_for_an_orphan() {
    let Some((image, file, _)) = small() else { return };
    let fs = mounted(&image);
    let open = create(&fs, ROOT, "open");
    fs.unlink(&Cred::root(), ROOT, name("open")).unwrap();
    fs.sync().unwrap();
    let is_orphan = open.ino.0 as u32;
    drop(fs);
    for (number, why) in [(file, "link count is 1"), (1, "names inode 1"), (u32::MAX, "names inode")] {
        let copy = common::Image::copy_of(&image);
        Forge::of(&copy.path).orphans(|orphans| {
            assert_eq!((orphans.entries.get(), orphans.ino[0].get()), (1, is_orphan));
            orphans.ino[0].set(number);
        });
        assert!(refusal(&copy).contains(why), "{number}: {}", refusal(&copy));
    }
    mounted(&image).unmount().unwrap();
    fsck_is_clean(&image.path);
}

#[test]
fn a_superblock_that_is_damaged_becomes_what_the_other_one_is() {
    let Some((image, ..)) = small() else { return };
    let copies = |path: &Path| [0, 1].map(|copy| Forge::of(path).block(copy));
    let good = copies(&image.path);
    for copy in 0..2 {
        for at in [0_usize, 24, 72, 92, 88] {
            Forge::of(&image.path).change(copy, |block| block[1024 + at] ^= 0x40);
            let fs = mounted(&image);
            assert!(read(&fs, Path::new("/file")) == [5; 9000]);
            fs.unmount().unwrap();
            drop(fs);
            assert!(copies(&image.path) == good, "copy {copy}, byte {at}");
        }
    }
    fsck_is_clean(&image.path);
}

#[test]
fn a_damaged_summary_costs_its_segment_and_no_more() {
    let image = Image::made(128);
    let fs = mounted(&image);
    let file = create(&fs, ROOT, "file");
    let pages = 8000_u64;
    for page in 0..pages {
        fs.write(&file, page * 4096, &[page as u8; 4096]).unwrap();
    }
    // Every fourth page stays where it is, among gaps.
    fs.sync().unwrap();
    for page in (0..pages).filter(|page| page % 4 > 0) {
        fs.write(&file, page * 4096, &[page as u8; 4096]).unwrap();
    }
    fs.release(file);
    fs.unmount().unwrap();
    drop(fs);
    let forge = Forge::of(&image.path);
    let ssa = forge.superblock().ssa.get();
    // Numbers and slots of all segments with pages but a few.
    for segment in [6, 7, 8] {
        forge.change(ssa + segment, |block| {
            block[..512 * 7].iter_mut().step_by(7).for_each(|byte| *byte ^= 0x10)
        });
    }
    drop(forge);
    let fs = mounted(&image);
    let ballast = create(&fs, ROOT, "ballast");
    for _ in 0..20 {
        fs.append(&ballast, &[1; 1 << 20]).unwrap();
    }
    fs.release(ballast);
    let more = create(&fs, ROOT, "more");
    for n in 0..80_u64 {
        for page in 0..512 {
            fs.write(&more, (page * 7 + n) % 1500 * 4096, &[n as u8; 4096]).unwrap();
        }
        fs.sync().unwrap();
    }
    fs.release(more);
    assert!(!fs.left_uncleaned().is_empty() && !fs.has_failed(), "{:?}", fs.left_uncleaned());
    let bytes = read(&fs, Path::new("/file"));
    assert!((0..pages as usize).all(|page| bytes[page * 4096] == page as u8));
    fs.unmount().unwrap();
}

#[test]
fn chown_clears_set_id_bits_but_not_the_mandatory_lock_bit() {
    let image = Image::made(64);
    let fs = mounted(&image);
    let root = Cred::root();
    let nobody = SetAttr::default();
    for (set, from, to) in [
        (SetAttr { uid: Some(7), ..nobody }, 0o6755, 0o755),
        (SetAttr { gid: Some(7), ..nobody }, 0o6755, 0o755),
        (SetAttr { uid: Some(7), ..nobody }, 0o6745, 0o2745),
        (SetAttr { gid: Some(7), ..nobody }, 0o2644, 0o2644),
    ] {
        let file = create(&fs, ROOT, "file");
        fs.setattr(&root, file.ino, None, &SetAttr { perm: Some(from), ..nobody }).unwrap();
        assert_eq!(fs.setattr(&root, file.ino, None, &set).unwrap().perm, to, "{from:o}");
        fs.unlink(&root, ROOT, name("file")).unwrap();
        fs.release(file);
    }
}

/// A chain of which the inode alone says that the file was cut: what its direct node leads to behind the end is gone.
#[test]
fn pages_behind_an_end_that_was_fsynced_are_gone() {
    let Some(image) = Image::empty(64, &[]) else { return };
    let fs = mounted(&image);
    let root = Cred::root();
    let file = create(&fs, ROOT, "file");
    fs.write(&file, 0, &[1; 4096]).unwrap();
    fs.write(&file, 1000 * 4096, &[2; 8192]).unwrap();
    fs.sync().unwrap();
    let version = fs.info().checkpoint_version;
    fs.setattr(&root, file.ino, None, &size(950 * 4096)).unwrap();
    fs.fsync(&file, false).unwrap();
    assert_eq!(fs.info().checkpoint_version, version);
    let number = file.ino.0 as u32;
    fs.release(file);
    drop(fs);
    // The direct node of the chain is nobody's.
    Forge::of(&image.path).newest_node_of(number, |node| node.footer.ino.set(9000));
    let fs = mounted(&image);
    let file = fs.open(&root, Ino(number.into()), OpenFlags::READ_WRITE).unwrap();
    fs.setattr(&root, file.ino, None, &size(1002 * 4096)).unwrap();
    let bytes = read(&fs, Path::new("/file"));
    assert!(bytes[4096..].iter().all(|byte| *byte == 0));
    fs.release(file);
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
}

#[test]
fn numbers_of_a_directory_beyond_their_bounds_are_its_own_damage() {
    let Some((image, _, dir)) = small() else { return };
    Forge::of(&image.path).inode(dir, |inode| inode.dir_level = 200);
    let fs = mounted(&image);
    let found = fs.lookup(&Cred::root(), Ino(dir.into()), name("inside"));
    assert!(matches!(found, Err(Error::Corrupt(_))), "{found:?}");
    assert!(read(&fs, Path::new("/file")) == [5; 9000] && !fs.has_failed());
}

/// Linux cleans whole sections, and takes a mixed one for damage.
#[test]
fn the_segments_of_a_section_hold_data_or_nodes() {
    let Some(image) = Image::empty(256, &["-s", "4"]) else { return };
    let fs = mounted(&image);
    let mut random = 7_u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (random >> 33) % below
    };
    let file = create(&fs, ROOT, "file");
    let pages = fs.statfs().unwrap().blocks_available * 6 / 10;
    for n in 0..4 * pages {
        fs.write(&file, next(pages) * 4096, &[n as u8; 4096]).unwrap();
        if n % 16 == 0 {
            fs.release(create(&fs, ROOT, &format!("{n}")));
        }
    }
    fs.sync().unwrap();
    for (n, section) in fs.kinds_of_segments().chunks(4).enumerate() {
        let kinds: std::collections::BTreeSet<bool> = section.iter().flatten().copied().collect();
        assert!(kinds.len() < 2, "section {n}: {section:?}");
    }
    fs.release(file);
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
}

/// What was done is there after a kill.
#[test]
fn sync_and_dirsync_changes_survive_a_kill() {
    let options = [(true, false), (false, true), (false, false)];
    for (variant, (content, names)) in
        Variant::ALL.into_iter().flat_map(|system| options.map(|how| (system, how)))
    {
        let image = Image::made(64);
        let fs = common::open_as(&image.path, variant).unwrap();
        let root = Cred::root();
        fs.release(create(&fs, ROOT, "old"));
        fs.sync().unwrap();
        fs.set_sync(content, names);
        let file = create(&fs, ROOT, "file");
        let is_named = |fs: &F2fs, text: &str| fs.lookup(&root, ROOT, name(text)).is_ok();
        let now = || {
            let copy = Image::copy_of(&image);
            if variant.has_node_log() {
                std::fs::copy(image.path.with_extension("nvm"), copy.path.with_extension("nvm")).unwrap();
            }
            common::open_as(&copy.path, variant).unwrap()
        };
        assert_eq!(is_named(&now(), "file"), content || names, "{}", variant.name());
        fs.write(&file, 0, b"hello").unwrap();
        assert_eq!(is_named(&now(), "file") && read(&now(), Path::new("/file")) == b"hello", content);
        fs.setattr(&root, file.ino, None, &SetAttr { perm: Some(0o600), ..SetAttr::default() }).unwrap();
        let perm = now().lookup(&root, ROOT, name("file")).map(|attr| attr.perm);
        assert_eq!(perm == Ok(0o600), content);
        fs.rename(&root, ROOT, name("old"), ROOT, name("new"), RenameMode::Replace).unwrap();
        assert_eq!(is_named(&now(), "new"), content || names);
        fs.unlink(&root, ROOT, name("new")).unwrap();
        assert_eq!(is_named(&now(), "old") || is_named(&now(), "new"), !(content || names));
        fs.release(file);
    }
}

/// Each of these files has an inode that waits in memory, and nobody calls for a checkpoint.
#[test]
fn changed_nodes_wait_in_memory_up_to_a_limit_of_bytes() {
    const NODES_MAX: usize = (128 << 20) / 4096;
    for variant in [Variant::F2fs, Variant::NodeLog] {
        let image = Image::made(512);
        let fs = common::open_with_log_of(&image.path, variant, 64 << 20).unwrap();
        let mut most = 0;
        for n in 0..NODES_MAX as u64 + 2000 {
            fs.release(create(&fs, ROOT, &n.to_string()));
            if n % 500 == 0 {
                most = most.max(fs.changed_nodes());
            }
        }
        assert!((NODES_MAX - 1000..=NODES_MAX).contains(&most), "{most}");
        assert!(fs.changed_nodes() < 4000, "{}", fs.changed_nodes());
    }
}

/// The kernel opens a read-only device for writing.
#[test]
fn a_device_that_takes_no_writes_says_so() {
    let image = Image::made(64);
    let made = std::process::Command::new("losetup").args(["-r", "-f", "--show"]).arg(&image.path).output();
    let Some(made) = made.ok().filter(|made| made.status.success()) else {
        eprintln!("SKIPPED, NOT TESTED: no loop device can be had");
        return;
    };
    let device = String::from_utf8(made.stdout).unwrap().trim().to_owned();
    let refused = F2fs::open_for_writing(Path::new(&device)).err().map(|error| error.to_string());
    let read_only = F2fs::open(Path::new(&device)).is_ok();
    let protected = heddle_f2fs::is_write_protected(Path::new(&device));
    std::process::Command::new("losetup").args(["-d", &device]).status().unwrap();
    assert!(refused.unwrap().contains("write-protected"));
    assert!(read_only && protected && !heddle_f2fs::is_write_protected(&image.path));
}

/// The count of links has 32 bits, and an image may say that they are used up.
#[test]
fn links_are_refused_beyond_what_32_bits_count() {
    for variant in Variant::ALL {
        let image = Image::made(64);
        let fs = mounted(&image);
        let file = create(&fs, ROOT, "file");
        let ino = file.ino;
        fs.release(file);
        fs.unmount().unwrap();
        drop(fs);
        Forge::of(&image.path).inode(ino.0 as u32, |block| {
            block.links.set(u32::MAX - 1);
            believed::seal(&image, block);
        });
        let fs = open_as(&image.path, variant).unwrap();
        let link = |text: &str| fs.link(&Cred::root(), ino, ROOT, name(text)).map(|attr| attr.nlink);
        assert_eq!(link("the last"), Ok(u32::MAX), "{variant:?}");
        assert_eq!(link("one more"), Err(Error::TooManyLinks), "{variant:?}");
        assert_eq!(fs.lookup(&Cred::root(), ROOT, name("one more")), Err(Error::NotFound), "{variant:?}");
        fs.unlink(&Cred::root(), ROOT, name("the last")).unwrap();
        assert_eq!(link("another"), Ok(u32::MAX), "{variant:?}");
    }
}
