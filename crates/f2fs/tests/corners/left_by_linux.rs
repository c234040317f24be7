//! Images in states that Linux leaves and this engine never does: no free segment, blocks written into gaps, flags.

use super::{ROOT, create, make_dir, mounted, name, refusal};
use crate::common::{Image, fsck_is_clean, listed, read};
use crate::forge::{Forge, version_of};
use heddle_f2fs::F2fs;
use heddle_f2fs::format::{InodeBlock, SitBlock, SummaryBlock, checkpoint_flag, inline_flag, node_flag};
use heddle_vfs::{
    Cred, Error, FileSystem, Handle, Ino, OpenFlags, RangeOp, SetAttr, SetTime, SetXattr, Time, XattrName,
};
use std::path::Path;
use zerocopy::{FromBytes, IntoBytes};

const PAGE: u64 = 4096;

/// Each segment but the six that are open, and these, has a live block, if it had none: nobody's.
fn fill_segments(image: &Image, but: &[u32]) {
    let forge = Forge::of(&image.path);
    let superblock = forge.superblock();
    let (_, head) = forge.pack();
    let open = head.node_segment[..3].iter().chain(&head.data_segment[..3]);
    let spared: Vec<u32> = open.map(|segno| segno.get()).chain(but.iter().copied()).collect();
    for addr in superblock.sit.get()..superblock.nat.get() {
        // Two copies of the table, each in half of the segments.
        let half = superblock.segments_sit.get() / 2 * 512;
        let first = (addr - superblock.sit.get()) % half * 55;
        forge.change(addr, |block| {
            let entries = &mut SitBlock::mut_from_bytes(block).unwrap().entries;
            for (n, entry) in (first..).zip(entries.iter_mut()) {
                let is_free = entry.blocks.get() & 0x3ff == 0;
                if n < superblock.segments_main.get() && is_free && !spared.contains(&n) {
                    entry.valid[63] |= 1;
                    entry.blocks.set(entry.blocks.get() + 1);
                }
            }
        });
    }
}

/// A file with these pages, which is open.
fn file_of(fs: &F2fs, text: &str, pages: u64, fill: u8) -> Handle {
    let file = create(fs, ROOT, text);
    for page in (0..pages).step_by(64) {
        let here = (pages - page).min(64);
        fs.write(&file, page * PAGE, &vec![fill; (here * PAGE) as usize]).unwrap();
    }
    file
}

/// Linux keeps times of F2FS in 64-bit seconds. Beyond our range they are shown as its ends, and stay what they are on the media.
#[test]
fn times_beyond_our_range_are_shown_as_its_ends_and_kept() {
    const YEAR_3000_SECS: u64 = 32_503_680_000;
    const YEAR_1300_SECS: u64 = (-21_142_560_000_i64) as u64;
    let Some((image, file, _)) = super::small() else { return };
    let forge = Forge::of(&image.path);
    forge.inode(file, |inode| {
        (inode.atime, inode.atime_ns) = (YEAR_3000_SECS.into(), 7.into());
        (inode.mtime, inode.mtime_ns) = (YEAR_1300_SECS.into(), 9.into());
        (inode.ctime, inode.ctime_ns) = (YEAR_1300_SECS.into(), 9.into());
    });
    let (root, path) = (Cred::root(), Path::new("/file"));
    let kept = || {
        let nodes = forge.nodes_of(file);
        let newest = nodes.iter().filter(|(_, node)| node.footer.nid.get() == file);
        let newest = newest.max_by_key(|(_, node)| version_of(node)).unwrap();
        let inode = InodeBlock::ref_from_bytes(newest.1.as_bytes()).unwrap();
        (inode.atime.get(), inode.atime_ns.get(), inode.mtime.get(), inode.mtime_ns.get())
    };
    let fs = mounted(&image);
    let attr = fs.lookup(&root, ROOT, name("file")).unwrap();
    assert_eq!((attr.atime, attr.mtime.secs()), (Time(i64::MAX), Time(i64::MIN).secs()));
    for set in [
        SetAttr { perm: Some(0o600), ..SetAttr::default() },
        SetAttr { uid: Some(7), gid: Some(8), ..SetAttr::default() },
    ] {
        fs.setattr(&root, attr.ino, None, &set).unwrap();
    }
    fs.link(&root, attr.ino, ROOT, name("again")).unwrap();
    fs.unlink(&root, ROOT, name("again")).unwrap();
    let xattr = XattrName::new(b"user.note").unwrap();
    fs.setxattr(&root, attr.ino, xattr, b"x", SetXattr::Any).unwrap();
    fs.unmount().unwrap();
    assert_eq!(kept(), (YEAR_3000_SECS, 7, YEAR_1300_SECS, 9));
    // One time is set, the other one is not.
    let early = SetAttr { mtime: Some(SetTime::At(Time(5))), ..SetAttr::default() };
    fs.setattr(&root, attr.ino, None, &early).unwrap();
    fs.unmount().unwrap();
    assert_eq!(kept(), (YEAR_3000_SECS, 7, 0, 5));
    drop(fs);
    // Nor does a write mind them, or lose what it does not set.
    forge.inode(file, |inode| {
        (inode.mtime, inode.mtime_ns) = (YEAR_1300_SECS.into(), 9.into());
        (inode.ctime, inode.ctime_ns) = (YEAR_1300_SECS.into(), 9.into());
    });
    let fs = mounted(&image);
    let file = fs.open(&root, attr.ino, OpenFlags::READ_WRITE).unwrap();
    fs.write(&file, 0, b"new").unwrap();
    fs.fsync(&file, false).unwrap();
    fs.release(file);
    fs.unmount().unwrap();
    let (atime, _, mtime, _) = kept();
    assert!(atime == YEAR_3000_SECS && (1_600_000_000..i64::MAX as u64).contains(&mtime), "{mtime}");
    assert_eq!(&read(&fs, path)[..4], b"new\x05");
}

/// The mount closed the log of nodes for what was fsynced, although nothing was, and was said to be damaged.
#[test]
fn an_image_without_a_free_segment_is_mounted_as_full() {
    let image = Image::made(64);
    let fs = mounted(&image);
    fs.release(file_of(&fs, "file", 10, 5));
    fs.unmount().unwrap();
    drop(fs);
    fill_segments(&image, &[]);
    let fs = mounted(&image);
    assert!(read(&fs, Path::new("/file")) == [5; 10 * PAGE as usize]);
    let made = fs.unlink(&Cred::root(), ROOT, name("file"));
    assert!(matches!(made, Ok(()) | Err(Error::NoSpace)), "{made:?}");
    assert!(!fs.has_failed());
    fs.unmount().unwrap();
    drop(fs);
    mounted(&image);
}

#[test]
fn what_was_fsynced_without_a_free_segment_can_be_read() {
    let image = Image::made(64);
    let fs = mounted(&image);
    let file = create(&fs, ROOT, "file");
    fs.sync().unwrap();
    let version = fs.info().checkpoint_version;
    fs.write(&file, 0, &[5; 9000]).unwrap();
    fs.fsync(&file, false).unwrap();
    assert_eq!(fs.info().checkpoint_version, version);
    fs.release(file);
    drop(fs);
    fill_segments(&image, &[]);
    let why = refusal(&image);
    assert!(why.contains("no space to recover them") && why.contains("-o ro"), "{why}");
    assert!(!why.contains("damaged"), "{why}");
    assert!(read(&F2fs::open(&image.path).unwrap(), Path::new("/file")) == [5; 9000]);
}

/// Linux writes what is fsynced into gaps of segments. If all else in one is of a file without a name, the mount takes that away first, but
/// a crash brings the checkpoint back, with all its blocks: their summaries are to be there.
#[test]
fn a_segment_that_empties_while_it_is_taken_in_keeps_its_summaries() {
    let image = Image::made(64);
    let fs = mounted(&image);
    let root = Cred::root();
    let new = create(&fs, ROOT, "new");
    // More than a segment, with gaps; then the log is elsewhere.
    let gone = file_of(&fs, "gone", 1100, 3);
    fs.sync().unwrap();
    for page in (0..1100).step_by(2) {
        fs.fallocate(&gone, RangeOp::Punch, page * PAGE, PAGE).unwrap();
    }
    fs.unlink(&root, ROOT, name("gone")).unwrap();
    fs.sync().unwrap();
    fs.write(&new, 0, &[5; PAGE as usize]).unwrap();
    fs.fsync(&new, false).unwrap();
    let (new_ino, gone_ino) = (new.ino.0 as u32, gone.ino.0 as u32);
    // Killed: neither is closed.
    drop((new, gone, fs));
    let forge = Forge::of(&image.path);
    let superblock = forge.superblock();
    let inode_of =
        |node: &heddle_f2fs::format::NodeBlock| InodeBlock::read_from_bytes(node.as_bytes()).unwrap();
    let newest = |ino: u32, wanted: &dyn Fn(&heddle_f2fs::format::NodeBlock) -> bool| {
        let nodes =
            forge.nodes_of(ino).into_iter().filter(|(_, node)| node.footer.nid.get() == ino && wanted(node));
        nodes.max_by_key(|(addr, node)| (version_of(node), *addr)).unwrap()
    };
    // A page of the one without a name, in the middle of its first whole segment, and the gap behind it.
    let (_, orphan) = newest(gone_ino, &|_| true);
    let kept = inode_of(&orphan).addr[9..].iter().map(|addr| addr.get()).find(|addr| {
        let at = addr.wrapping_sub(superblock.main.get());
        *addr > superblock.main.get() && at % 512 > 100 && at % 512 < 400
    });
    let kept = kept.unwrap();
    let gap = kept + 1;
    let (addr, chained) = newest(new_ino, &|node| node.footer.flag.get() & node_flag::FSYNC != 0);
    let mut inode = inode_of(&chained);
    let was = forge.block(inode.addr[9].get());
    assert!(was == [5; PAGE as usize]);
    forge.change(gap, |block| block.copy_from_slice(&was));
    inode.addr[9].set(gap);
    inode.extent = zerocopy::FromZeros::new_zeroed();
    crate::believed::seal(&image, &mut inode);
    forge.change(addr, |block| block.copy_from_slice(inode.as_bytes()));
    let segno = (gap - superblock.main.get()) / 512;
    let summary = || SummaryBlock::read_from_bytes(&forge.block(superblock.ssa.get() + segno)).unwrap();
    let entry = |addr: u32| summary().entries[((addr - superblock.main.get()) % 512) as usize].nid.get();
    let before = entry(kept);
    assert_eq!(before, gone_ino);
    let fs = mounted(&image);
    assert!(read(&fs, Path::new("/new")) == [5; PAGE as usize]);
    assert_eq!(fs.getattr(heddle_vfs::Ino(gone_ino.into())).unwrap_err(), Error::Stale);
    assert_eq!((entry(kept), entry(gap)), (before, new_ino));
    fs.unmount().unwrap();
    drop(fs);
    if Image::has_tools() {
        fsck_is_clean(&image.path);
    }
}

#[test]
fn flags_of_fsck_and_resize_stay_until_they_are_true() {
    let image = Image::made(64);
    let refused = [
        (checkpoint_flag::RESIZING, "resize"),
        (checkpoint_flag::DISABLED, "checkpoint=disable"),
        (checkpoint_flag::FSCK, "heddle fsck -y"),
        (checkpoint_flag::ERROR, "heddle fsck -y"),
    ];
    for (flag, word) in refused {
        let image = Image::copy_of(&image);
        Forge::of(&image.path).head(|head| head.flags.set(head.flags.get() | flag));
        let why = refusal(&image);
        assert!(why.contains(word) && why.contains("-o ro"), "{why}");
        F2fs::open(&image.path).unwrap();
        assert!(Forge::of(&image.path).pack().1.flags.get() & flag != 0);
    }
    let quota = checkpoint_flag::QUOTA_NEEDS_FSCK;
    Forge::of(&image.path).head(|head| head.flags.set(head.flags.get() | quota));
    for _ in 0..3 {
        let fs = mounted(&image);
        fs.release(create(&fs, ROOT, &format!("{}", fs.info().checkpoint_version)));
        fs.sync().unwrap();
        fs.unmount().unwrap();
        assert!(Forge::of(&image.path).pack().1.flags.get() & quota != 0);
    }
}

/// Old versions of sload.f2fs leave the flag out. The node went to a log in which recovery does not look.
#[test]
fn crash_an_fsync_of_nodes_without_the_cold_flag_was_lost() {
    // Of the inode, of a direct node, of both.
    for (inodes, nodes) in [(true, false), (false, true), (true, true)] {
        let image = Image::made(64);
        let fs = mounted(&image);
        let file = create(&fs, ROOT, "file");
        fs.write(&file, 0, &vec![5; 1000 * 4096]).unwrap();
        let ino = file.ino.0 as u32;
        fs.release(file);
        fs.unmount().unwrap();
        drop(fs);
        let forge = Forge::of(&image.path);
        for (addr, mut node) in forge.nodes_of(ino) {
            if if node.footer.nid.get() == ino { inodes } else { nodes } {
                node.footer.flag.set(node.footer.flag.get() & !node_flag::COLD);
                forge.change(addr, |block| block.copy_from_slice(node.as_bytes()));
            }
        }
        if inodes {
            forge.inode(ino, |block| super::believed::seal(&image, block));
        }
        drop(forge);
        let fs = mounted(&image);
        fs.release(create(&fs, ROOT, "other"));
        fs.sync().unwrap();
        let file = fs.open(&Cred::root(), Ino(ino.into()), OpenFlags::READ_WRITE).unwrap();
        fs.append(&file, &[6; 5000]).unwrap();
        fs.fsync(&file, false).unwrap();
        fs.release(file);
        drop(fs);
        let fs = mounted(&image);
        assert_eq!(fs.info().fsynced_inodes, 1);
        let wanted = [vec![5; 1000 * 4096], vec![6; 5000]].concat();
        assert!(read(&fs, Path::new("/file")) == wanted, "{inodes} {nodes}");
        fs.unmount().unwrap();
        drop(fs);
        fsck_is_clean(&image.path);
    }
}

/// The newest node of an inode, itself or another one, that is in the chain of what was fsynced.
fn chained(forge: &Forge, ino: u32, is_inode: bool) -> (u32, heddle_f2fs::format::NodeBlock) {
    let nodes = forge.nodes_of(ino).into_iter();
    let nodes = nodes.filter(|(_, node)| (node.footer.nid.get() == ino) == is_inode);
    nodes.max_by_key(|(addr, node)| (version_of(node), *addr)).unwrap()
}

/// Linux marks each node of an fsync: the direct node, too, that comes before this inode. Returns the inode's block.
fn mark_direct_node(forge: &Forge, ino: u32) -> u32 {
    let ((inode, _), (direct, mut node)) = (chained(forge, ino, true), chained(forge, ino, false));
    assert_eq!(node.footer.next.get(), inode);
    node.footer.flag.set(node.footer.flag.get() | node_flag::FSYNC);
    forge.change(direct, |block| block.copy_from_slice(node.as_bytes()));
    inode
}

/// Linux leaves the inode out of an fsync if the file ends with a page that it has written.
#[test]
fn an_append_that_was_fsynced_without_its_inode_is_recovered() {
    for keeps_size in [false, true] {
        let image = Image::made(64);
        let fs = mounted(&image);
        let file = file_of(&fs, "file", 1000, 5);
        if keeps_size {
            fs.fallocate(&file, RangeOp::Allocate { keep_size: true }, 1000 * PAGE, PAGE).unwrap();
        }
        fs.sync().unwrap();
        fs.write(&file, 1000 * PAGE, &[6; PAGE as usize]).unwrap();
        fs.fsync(&file, false).unwrap();
        let ino = file.ino.0 as u32;
        // Killed.
        drop((file, fs));
        let forge = Forge::of(&image.path);
        let inode = mark_direct_node(&forge, ino);
        forge.change(inode, |block| block.fill(0));
        let appended = if keeps_size { Vec::new() } else { vec![6; PAGE as usize] };
        let wanted = [vec![5; 1000 * PAGE as usize], appended].concat();
        let is_there = |fs: &F2fs, how: &str| {
            let found = read(fs, Path::new("/file"));
            assert!(found == wanted, "{how}, keeps its size: {keeps_size}: {} bytes", found.len());
        };
        is_there(&F2fs::open(&image.path).unwrap(), "read only");
        let fs = mounted(&image);
        assert_eq!(fs.info().fsynced_inodes, 1);
        is_there(&fs, "recovered");
        fs.unmount().unwrap();
        drop(fs);
        is_there(&F2fs::open(&image.path).unwrap(), "mounted again");
        fsck_is_clean(&image.path);
    }
}

/// Linux moves blocks that no checkpoint has from page to page (`FALLOC_FL_COLLAPSE_RANGE`). The image was said to be damaged.
#[test]
fn crash_blocks_that_two_fsyncs_name_were_said_to_be_damaged() {
    let image = Image::made(64);
    let fs = mounted(&image);
    fs.release(create(&fs, ROOT, "other"));
    fs.sync().unwrap();
    let file = create(&fs, ROOT, "file");
    for page in 0..10 {
        fs.write(&file, page * PAGE, &[page as u8 + 1; PAGE as usize]).unwrap();
    }
    fs.fsync(&file, false).unwrap();
    let ino = file.ino.0 as u32;
    let forge = Forge::of(&image.path);
    let first = InodeBlock::read_from_bytes(chained(&forge, ino, true).1.as_bytes()).unwrap();
    fs.write(&file, 0, b"again").unwrap();
    fs.fsync(&file, false).unwrap();
    // Killed.
    drop((file, fs));
    let (addr, second) = chained(&forge, ino, true);
    let mut inode = InodeBlock::read_from_bytes(second.as_bytes()).unwrap();
    assert_ne!(inode.addr[9], first.addr[9]);
    // Behind the extra attributes.
    inode.addr[9..18].copy_from_slice(&first.addr[10..19]);
    inode.addr[18].set(0);
    (inode.size_bytes, inode.blocks) = ((9 * PAGE).into(), 10.into());
    inode.extent = zerocopy::FromZeros::new_zeroed();
    crate::believed::seal(&image, &mut inode);
    forge.change(addr, |block| block.copy_from_slice(inode.as_bytes()));
    let is_there = |fs: &F2fs| {
        let found = read(fs, Path::new("/file"));
        let pages: Vec<u8> = found.chunks(PAGE as usize).map(|page| page[PAGE as usize / 2]).collect();
        assert_eq!((found.len() as u64, pages), (9 * PAGE, (2..=10).collect()));
    };
    is_there(&F2fs::open(&image.path).unwrap());
    let fs = mounted(&image);
    is_there(&fs);
    fs.unmount().unwrap();
    drop(fs);
    is_there(&F2fs::open(&image.path).unwrap());
    fsck_is_clean(&image.path);
}

/// The write that moves inline content to pages was being fsynced: the direct node reached the device, the inode perhaps not. The node was
/// attached to the inline file, and its blocks were never freed.
#[test]
fn crash_a_direct_node_without_its_inode_was_attached_to_inline_content() {
    for inode_is_lost in [true, false] {
        let image = Image::made(64);
        let fs = mounted(&image);
        let file = create(&fs, ROOT, "file");
        let ino = file.ino.0 as u32;
        fs.release(file);
        fs.unmount().unwrap();
        drop(fs);
        let forge = Forge::of(&image.path);
        forge.inode(ino, |inode| {
            inode.inline |= inline_flag::DATA | inline_flag::DATA_EXIST;
            inode.size_bytes.set(100);
            // Behind the extra attributes and the empty slot.
            inode.addr[10..35].fill(u32::from_le_bytes([7; 4]).into());
            super::believed::seal(&image, inode);
        });
        let fs = mounted(&image);
        fs.release(create(&fs, ROOT, "other"));
        fs.sync().unwrap();
        let counts = |fs: &F2fs| fs.statfs().map(|stat| (stat.blocks_free, stat.inodes_free)).unwrap();
        let before = counts(&fs);
        let file = fs.open(&Cred::root(), Ino(ino.into()), OpenFlags::READ_WRITE).unwrap();
        fs.write(&file, 900 * PAGE, &[6; PAGE as usize]).unwrap();
        fs.fsync(&file, false).unwrap();
        // Killed.
        drop((file, fs));
        let (inode, mut wanted) = (mark_direct_node(&forge, ino), vec![7; 100]);
        if inode_is_lost {
            forge.change(inode, |block| block.fill(0));
        } else {
            wanted.resize(900 * PAGE as usize, 0);
            wanted.resize(901 * PAGE as usize, 6);
        }
        let is_there = |fs: &F2fs| assert!(read(fs, Path::new("/file")) == wanted, "{inode_is_lost}");
        is_there(&F2fs::open(&image.path).unwrap());
        let fs = mounted(&image);
        is_there(&fs);
        fs.unmount().unwrap();
        fsck_is_clean(&image.path);
        fs.unlink(&Cred::root(), ROOT, name("file")).unwrap();
        fs.sync().unwrap();
        assert_eq!(counts(&fs), (before.0 + 1, before.1 + 1), "the inode alone was there before");
        fs.unmount().unwrap();
        drop(fs);
        fsck_is_clean(&image.path);
    }
}

/// `mkdir d; sync; rmdir d; echo x > d; fsync d`. The image was said to be damaged.
#[test]
fn crash_a_file_in_place_of_a_removed_directory_was_refused() {
    for has_entry in [false, true] {
        let image = Image::made(64);
        let fs = mounted(&image);
        let dir = make_dir(&fs, "d");
        if has_entry {
            fs.release(create(&fs, dir, "entry"));
        }
        fs.sync().unwrap();
        let file = create(&fs, ROOT, "f");
        fs.write(&file, 0, &[5; 5000]).unwrap();
        fs.fsync(&file, false).unwrap();
        let ino = file.ino.0 as u32;
        // Killed.
        drop((file, fs));
        let forge = Forge::of(&image.path);
        let (addr, node) = chained(&forge, ino, true);
        let mut inode = InodeBlock::read_from_bytes(node.as_bytes()).unwrap();
        assert_eq!(inode.footer.flag.get() & node_flag::DENTRY, node_flag::DENTRY);
        inode.name[0] = b'd';
        super::believed::seal(&image, &mut inode);
        forge.change(addr, |block| block.copy_from_slice(inode.as_bytes()));
        let is_there = |fs: &F2fs| {
            assert!(read(fs, Path::new("/d")) == [5; 5000]);
            assert_eq!(listed(fs, Path::new("/")).into_iter().collect::<Vec<_>>(), [b"d"]);
        };
        is_there(&F2fs::open(&image.path).unwrap());
        if has_entry {
            let why = refusal(&image);
            assert!(why.contains("a directory that has entries") && why.contains("-o ro"), "{why}");
            assert!(!why.contains("damaged"), "{why}");
            continue;
        }
        let fs = mounted(&image);
        is_there(&fs);
        assert_eq!((fs.getattr(ROOT).unwrap().nlink, fs.getattr(dir)), (2, Err(Error::Stale)));
        fs.unmount().unwrap();
        drop(fs);
        is_there(&F2fs::open(&image.path).unwrap());
        fsck_is_clean(&image.path);
    }
}

/// The node that has this space comes before the inode that cuts the file at its size.
#[test]
fn space_that_linux_fsynced_beyond_a_shortened_file_is_recovered() {
    let image = Image::made(64);
    let fs = mounted(&image);
    let file = file_of(&fs, "file", 1000, 5);
    fs.sync().unwrap();
    let size = SetAttr { size_bytes: Some(900 * PAGE), ..SetAttr::default() };
    fs.setattr(&Cred::root(), file.ino, Some(&file), &size).unwrap();
    fs.fallocate(&file, RangeOp::Allocate { keep_size: true }, 900 * PAGE, 50 * PAGE).unwrap();
    fs.fsync(&file, false).unwrap();
    let (ino, held) = (file.ino, fs.getattr(file.ino).unwrap().blocks_512);
    // Killed.
    drop((file, fs));
    mark_direct_node(&Forge::of(&image.path), ino.0 as u32);
    let fs = mounted(&image);
    assert_eq!((fs.info().fsynced_inodes, fs.getattr(ino).unwrap().blocks_512), (1, held));
    assert!(read(&fs, Path::new("/file")) == [5; 900 * PAGE as usize]);
    fs.unmount().unwrap();
    drop(fs);
    fsck_is_clean(&image.path);
}
