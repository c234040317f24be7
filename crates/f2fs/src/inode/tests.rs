use super::*;
use crate::format::BLOCK_BYTES;
use zerocopy::little_endian::{U16, U32, U64};

/// An inode of this mode, as `change` leaves it.
fn inode(mode: u32, features: u32, change: impl FnOnce(&mut InodeBlock)) -> Result<Inode> {
    let mut block = InodeBlock::new_zeroed();
    (block.mode, block.links) = (U16::new(mode as u16), U32::new(1));
    (block.footer.nid, block.footer.ino) = (U32::new(7), U32::new(7));
    change(&mut block);
    Inode::of(Arc::new(NodeBlock::read_from_bytes(block.as_bytes()).unwrap()), features)
}

fn file(change: impl FnOnce(&mut InodeBlock)) -> Result<Inode> {
    inode(libc::S_IFREG | 0o644, 0, change)
}

/// With extra attributes of so many bytes, and so many inline slots said there.
fn extra(block: &mut InodeBlock, bytes: u16, slots: u16) {
    block.inline |= inline_flag::EXTRA_ATTR;
    block.addr[0] = U32::new(u32::from(bytes) | u32::from(slots) << 16);
}

#[test]
fn numbers_of_files_are_seen_as_in_every_engine() {
    assert_eq!((nid_of(Ino::ROOT), ino_of(Nid(3)), ino_of(Nid(4))), (Ok(ROOT), Ino::ROOT, Ino(4)));
    assert_eq!([0, 2, 3].map(|n| nid_of(Ino(n))), [Err(Error::Stale), Err(Error::Stale), Err(Error::Stale)]);
    assert_eq!(nid_of(Ino(4)), Ok(Nid(4)));
    assert_eq!(nid_of(Ino(u64::from(u32::MAX))), Ok(Nid(u32::MAX)));
    assert_eq!(nid_of(Ino(1 << 32)), Err(Error::Stale));
}

#[test]
fn each_kind_of_file_is_told_by_its_mode_and_no_other() {
    for (mode, kind) in [
        (libc::S_IFREG, FileKind::Regular),
        (libc::S_IFDIR, FileKind::Directory),
        (libc::S_IFLNK, FileKind::Symlink),
        (libc::S_IFIFO, FileKind::Fifo),
        (libc::S_IFSOCK, FileKind::Socket),
        (libc::S_IFCHR, FileKind::CharDevice),
        (libc::S_IFBLK, FileKind::BlockDevice),
    ] {
        let it = inode(mode | 0o7777, 0, |_| ()).unwrap();
        assert_eq!((it.kind, it.attr().perm), (kind, 0o7777));
        let leads = matches!(kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink);
        assert_eq!(it.has_pointers(), leads, "{kind:?}");
    }
    for mode in [0, 0o030_000, 0o050_000, 0o110_000, 0o170_000] {
        assert!(inode(mode, 0, |_| ()).is_err(), "{mode:o}");
    }
}

#[test]
fn slots_are_shared_out_among_extra_attributes_pointers_and_inline_ones() {
    let plain = file(|_| ()).unwrap();
    assert_eq!((plain.first_pointer(), plain.pointers(), plain.inline_xattr_slots()), (0, 923, 0));
    assert_eq!((plain.inline_content().len(), plain.inline_xattr_bytes().len()), (922 * 4, 0));
    let inline = file(|block| block.inline = inline_flag::XATTR).unwrap();
    assert_eq!((inline.pointers(), inline.inline_xattr_bytes().len()), (873, 200));
    let entries = inode(libc::S_IFDIR, 0, |block| block.inline = inline_flag::DENTRY).unwrap();
    assert_eq!((entries.pointers(), entries.inline_xattr_bytes().len()), (873, 0), "kept free, and not used");
    let flexible = feature::FLEXIBLE_INLINE_XATTR;
    let it = inode(libc::S_IFREG, flexible, |block| extra(block, 24, 60)).unwrap();
    assert_eq!((it.first_pointer(), it.pointers(), it.inline_xattr_slots()), (6, 923 - 66, 60));
    assert_eq!(it.inline_content().len(), 4 * (923 - 66 - 1));
    let without = inode(libc::S_IFREG, 0, |block| extra(block, 24, 60)).unwrap();
    assert_eq!((without.first_pointer(), without.pointers()), (6, 917), "not of this file system");
    let no_extra = inode(libc::S_IFREG, flexible, |block| block.inline = inline_flag::XATTR).unwrap();
    assert_eq!(no_extra.inline_xattr_slots(), 50);
    let mut block = it.block().clone();
    it.inline_content_mut(&mut block).fill(0xff);
    let slots: Vec<bool> = block.addr.iter().map(|slot| slot.get() == u32::MAX).collect();
    assert!(slots[7..863].iter().all(|filled| *filled) && !slots[6] && !slots[863]);
    let mut block = inline.block().clone();
    inline.inline_xattr_bytes_mut(&mut block).fill(0xff);
    assert_eq!(block.addr.iter().position(|slot| slot.get() != 0), Some(873));
}

#[test]
fn what_no_inode_can_say_is_damage() {
    let fails = |done: Result<Inode>| matches!(done, Err(Error::Corrupt(_)));
    assert!(file(|block| block.size_bytes = U64::new(OFFSET_MAX_BYTES)).is_ok());
    assert!(fails(file(|block| block.size_bytes = U64::new(OFFSET_MAX_BYTES + 1))));
    assert!(file(|block| extra(block, 36, 0)).is_ok());
    for bytes in [37, 40, 34, 1] {
        assert!(fails(file(|block| extra(block, bytes, 0))), "{bytes} bytes");
    }
    let flexible = |slots| inode(libc::S_IFREG, feature::FLEXIBLE_INLINE_XATTR, |b| extra(b, 24, slots));
    assert!(flexible(923 - 6 - 2).is_ok());
    assert!(fails(flexible(923 - 6 - 1)) && fails(flexible(u16::MAX)));
    assert!(inode(libc::S_IFDIR, 0, |block| block.dir_level = 63).is_ok());
    assert!(fails(inode(libc::S_IFDIR, 0, |block| block.dir_level = 64)));
    assert!(file(|block| block.dir_level = 64).is_ok(), "it says nothing of a file");
    assert!(fails(inode(libc::S_IFDIR, 0, |block| block.inline = inline_flag::DATA)));
    assert!(fails(file(|block| block.inline = inline_flag::DENTRY)));
}

#[test]
fn inline_content_is_kept_while_it_fits() {
    let it = file(|block| (block.inline, block.size_bytes) = (inline_flag::DATA, U64::new(100))).unwrap();
    assert!(!it.has_pointers());
    assert!(it.keeps_inline(0) && it.keeps_inline(922 * 4) && !it.keeps_inline(922 * 4 + 1));
    assert!(!file(|_| ()).unwrap().keeps_inline(1));
    let grown = file(|block| (block.inline, block.size_bytes) = (inline_flag::DATA, U64::new(4000))).unwrap();
    assert!(!grown.keeps_inline(1), "it says more than it has room for");
    let most = pages_max(923);
    assert_eq!((it.check_room_to(most), it.check_room_to(most + 1)), (Ok(()), Err(Error::FileTooBig)));
}

#[test]
fn flags_refuse_each_what_they_forbid() {
    use Alteration::{Addition, Attributes, Content, Growth};
    let refused = |flags: u32, advise: u8| {
        let it = file(|block| (block.flags, block.advise) = (U32::new(flags), advise)).unwrap();
        [Content, Growth, Attributes, Addition].map(|what| it.check_allowed(what).is_err())
    };
    assert_eq!(refused(0, 0), [false; 4]);
    assert_eq!(refused(inode_flag::IMMUTABLE, 0), [true; 4]);
    assert_eq!(refused(inode_flag::APPEND_ONLY, 0), [true, false, true, false]);
    assert_eq!(refused(0, advise_flag::VERITY), [true, true, false, false]);
    let reads = |mode, flags: u32, advise| {
        inode(mode, 0, |block| (block.flags, block.advise) = (U32::new(flags), advise))
            .unwrap()
            .check_readable()
            .is_ok()
    };
    let (regular, dir) = (libc::S_IFREG, libc::S_IFDIR);
    assert!(reads(regular, inode_flag::CASEFOLD, 0) && reads(dir, inode_flag::COMPRESSED, 0));
    assert!(!reads(dir, inode_flag::CASEFOLD, 0) && !reads(regular, inode_flag::COMPRESSED, 0));
    assert!(!reads(regular, 0, advise_flag::ENCRYPT) && reads(regular, 0, advise_flag::VERITY));
    assert!(file(|_| ()).unwrap().counts_cluster_marks());
    assert!(!file(|block| block.inline = inline_flag::COMPRESS_RELEASED).unwrap().counts_cluster_marks());
}

#[test]
fn stat_tells_what_the_inode_says() {
    let features = feature::INODE_CRTIME | feature::EXTRA_ATTR;
    let fill = |block: &mut InodeBlock, bytes| {
        extra(block, bytes, 0);
        (block.addr[3], block.addr[5]) = (U32::new(11), U32::new(12));
        (block.uid, block.gid, block.links) = (U32::new(1), U32::new(2), U32::new(3));
        (block.size_bytes, block.blocks, block.generation) = (U64::new(4), U64::new(6), U32::new(7));
        (block.atime, block.mtime, block.ctime) = (U64::new(8), U64::new(-9_i64 as u64), U64::new(10));
        (block.atime_ns, block.mtime_ns, block.ctime_ns) = (U32::new(1), U32::new(u32::MAX), U32::new(3));
    };
    let attr = inode(libc::S_IFREG, features, |block| fill(block, 36)).unwrap().attr();
    assert_eq!((attr.uid, attr.gid, attr.nlink, attr.size_bytes, attr.generation), (1, 2, 3, 4, 7));
    assert_eq!(
        (attr.ino, attr.blocks_512, attr.rdev),
        (Ino(7), 40, 0),
        "the inode's own block is not counted"
    );
    let times = [attr.atime, attr.mtime, attr.ctime, attr.crtime].map(|time| (time.secs(), time.nanos()));
    assert_eq!(times, [(8, 1), (-9, 999_999_999), (10, 3), (11, 12)]);
    for (features, bytes) in [(features, 20), (0, 36)] {
        let attr = inode(libc::S_IFREG, features, |block| fill(block, bytes)).unwrap().attr();
        assert_eq!(attr.crtime, attr.ctime, "it says none");
    }
    let at_24 = inode(libc::S_IFREG, features, |block| fill(block, 24)).unwrap().attr();
    assert_eq!(at_24.crtime.secs(), 11, "it ends there");
    assert_eq!(file(|_| ()).unwrap().attr().blocks_512, 0);
    assert_eq!(BLOCK_BYTES, 8 * 512);
}

#[test]
fn a_devices_number_is_in_the_old_form_or_the_new_one() {
    let device = |mode, first: u32, second: u32| {
        let slots =
            |block: &mut InodeBlock| (block.addr[0], block.addr[1]) = (U32::new(first), U32::new(second));
        inode(mode, 0, slots).unwrap().attr().rdev
    };
    assert_eq!(device(libc::S_IFCHR, 0x1_0703, 9), 0x0703);
    assert_eq!(device(libc::S_IFBLK, 0, 0x0010_0701), 0x0010_0701);
    assert_eq!(device(libc::S_IFIFO, 5, 6), 0);
}
