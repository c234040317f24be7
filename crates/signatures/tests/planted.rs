//! Marks where the formats' own tools leave them: made by those that are installed, planted for the others.

use heddle_signatures::{Content, detect, wipe};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;

fn content_of(path: &Path) -> Content {
    let file = File::open(path).unwrap();
    detect(file.metadata().unwrap().len(), &|at, into| file.read_exact_at(into, at).unwrap())
}

fn content_of_bytes(bytes: &[u8]) -> Content {
    detect(bytes.len() as u64, &|at, into| into.copy_from_slice(&bytes[at as usize..][..into.len()]))
}

fn names(content: &Content) -> Vec<String> {
    match content {
        Content::Known(found) => found.iter().map(ToString::to_string).collect(),
        _ => Vec::new(),
    }
}

/// What a shell does to make a format on `$IMG`, of so many MiB, and what is found then.
const TOOLS: [(&str, u64, &str); 42] = [
    ("mkfs.ext4 -q -F -L mine $IMG", 16, "ext4 (label \"mine\")"),
    ("mkfs.ext3 -q -F -O ^64bit $IMG", 16, "ext3"),
    ("mkfs.ext2 -q -F $IMG", 16, "ext2"),
    ("mke2fs -q -F -O journal_dev $IMG", 16, "a journal of ext4"),
    ("mkfs.xfs -q -f -L mine $IMG", 320, "xfs (label \"mine\")"),
    ("mkfs.xfs -q -f -l logdev=$IMG,size=64m -d file,name=$IMG.data,size=320m", 64, "a log of xfs"),
    ("mkfs.btrfs -q -f -L mine $IMG", 128, "btrfs (label \"mine\")"),
    ("mkfs.f2fs -q -f -l mine $IMG", 64, "f2fs (label \"mine\")"),
    ("mkfs.vfat -n MINE $IMG", 16, "vfat (label \"MINE\")"),
    ("mkswap -q -L mine $IMG", 16, "swap (label \"mine\")"),
    ("mkswap -q -p 65536 $IMG", 16, "swap"),
    ("genisoimage -quiet -V MINE -o $IMG /etc/hostname", 0, "ISO 9660 (label \"MINE\")"),
    (
        "cryptsetup luksFormat -q --type luks2 --label mine --pbkdf-force-iterations 4 --pbkdf-memory 32 \
         --pbkdf-parallel 1 --key-file /etc/hostname $IMG",
        32,
        "LUKS (label \"mine\")",
    ),
    (
        "cryptsetup luksFormat -q --type luks1 --pbkdf-force-iterations 1000 --key-file /etc/hostname $IMG",
        32,
        "LUKS",
    ),
    ("truncate -s 1M $IMG.data && veritysetup format $IMG.data $IMG", 16, "dm-verity"),
    (
        "D=$(losetup -f --show $IMG) && { pvcreate -qq -y --config 'devices{scan=[\"/dev\"]}' $D; \
         DONE=$?; losetup -d $D; exit $DONE; }",
        16,
        "an LVM physical volume",
    ),
    ("sgdisk -n 1 $IMG", 16, "a partition table (GPT)"),
    ("sgdisk -n 1 $IMG && dd if=/dev/zero of=$IMG bs=1M count=1 conv=notrunc", 16, "a partition table (GPT)"),
    ("parted -s $IMG mklabel gpt", 16, "a partition table (GPT)"),
    ("parted -s $IMG mklabel msdos mkpart primary 1MiB 8MiB", 16, "a partition table (MBR)"),
    ("parted -s $IMG mklabel msdos", 16, "a partition table (MBR)"),
    ("parted -s $IMG mklabel sun", 16, "a partition table (Sun)"),
    ("parted -s $IMG mklabel mac", 16, "a partition table (Mac)"),
    ("parted -s $IMG mklabel dvh", 16, "a partition table (SGI)"),
    ("mkfs.ntfs -q -F $IMG", 16, "ntfs"),
    ("mkfs.exfat $IMG", 16, "exfat"),
    ("mkfs.nilfs2 -q -f $IMG", 192, "nilfs2"),
    ("mkfs.minix -1 $IMG", 16, "minix"),
    ("mkfs.minix -2 $IMG", 16, "minix"),
    ("mkfs.minix -3 $IMG", 16, "minix"),
    ("mkfs.bfs $IMG", 1, "bfs"),
    ("mkudffs $IMG", 16, "UDF"),
    ("mkfs.jfs -q $IMG", 16, "jfs"),
    ("mkreiserfs -q -f $IMG", 64, "reiserfs"),
    ("mkfs.reiser4 -y -f -L mine $IMG", 64, "reiser4 (label \"mine\")"),
    ("make-bcache -B $IMG", 16, "bcache"),
    ("yes | mkfs.ocfs2 -q -F -M local $IMG", 320, "ocfs2"),
    ("mkfs.gfs2 -q -O -p lock_nolock $IMG", 320, "gfs2"),
    ("mksquashfs /etc/hostname $IMG -quiet -no-progress", 0, "squashfs"),
    ("mkdir $IMG.dir && mkfs.cramfs $IMG.dir $IMG", 0, "cramfs"),
    ("mkdir $IMG.tree && mkfs.erofs $IMG $IMG.tree", 0, "erofs"),
    ("tar cf $IMG /etc/hostname", 0, "an archive (tar)"),
];

/// Also: nothing is found after a wipe, and the tools' own library agrees.
#[test]
fn what_the_formats_own_tools_made_is_named_and_wiped() {
    const NOT_FOUND: i32 = 127;
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("img");
    for (tool, mib, expected) in TOOLS {
        let _ = std::fs::remove_file(&image);
        if mib > 0 {
            File::create(&image).unwrap().set_len(mib * MIB).unwrap();
        }
        let mut command = Command::new("sh");
        command.args(["-c", tool]).env("IMG", &image).stdin(Stdio::null()).stdout(Stdio::null());
        command.env("PATH", format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap()));
        let said = command.output().unwrap();
        if !said.status.success() {
            let why = String::from_utf8_lossy(&said.stderr);
            let why = if said.status.code() == Some(NOT_FOUND) { "not installed" } else { why.trim_end() };
            eprintln!("SKIPPED, NOT TESTED: {tool}: {why}");
            continue;
        }
        let content = content_of(&image);
        let found = names(&content);
        assert!(found.iter().any(|name| name == expected), "{tool}: {found:?}, not {expected}");
        let file = File::options().write(true).open(&image).unwrap();
        wipe(&content, |at, zeros| file.write_all_at(zeros, at)).unwrap();
        assert!(!matches!(content_of(&image), Content::Known(_)), "{tool}: not wiped");
        if let Ok(left) = Command::new("/usr/sbin/wipefs").arg(&image).output() {
            let text = String::from_utf8_lossy(&left.stdout);
            assert_eq!(text.lines().skip(1).count(), 0, "{tool}: wipefs still sees: {text}");
        }
    }
}

/// Bytes, and where.
type Marks<'a> = &'a [(usize, &'a [u8])];

/// What needs devices, or tools that few have: bytes as the formats' documents place them.
#[test]
fn marks_of_raid_lvm_zfs_and_others_are_found_at_both_ends() {
    let len = 4 * MIB as usize + 4096 + 512;
    let raid = 0xa92b_4efc_u32.to_le_bytes();
    let version_1 = 1u32.to_le_bytes();
    let end = |back: usize| len - back;
    let plant = |magics: Marks<'_>| {
        let mut bytes = vec![0; len];
        magics.iter().for_each(|(at, mark)| bytes[*at..at + mark.len()].copy_from_slice(mark));
        content_of_bytes(&bytes)
    };
    let near_end = ((len / 512 - 16) & !7) * 512;
    let last_4k = (len / 4096 - 1) * 4096;
    let last_64k = (len & !0xffff) - 0x10000;
    let zfs = 0x00ba_b10c_u64.to_le_bytes();
    let cases: [(Marks<'_>, &str); 19] = [
        (&[(last_64k, &raid)], "a member of a Linux RAID (0.90)"),
        (&[(near_end, &raid), (near_end + 4, &version_1)], "a member of a Linux RAID (1.x)"),
        (&[(0, &raid), (4, &version_1)], "a member of a Linux RAID (1.x)"),
        (
            &[(4096, &raid), (4100, &version_1), (4128, b"host:0")],
            "a member of a Linux RAID (1.x) (label \"host:0\")",
        ),
        (&[(end(512), &[0xde, 0x11, 0xde, 0x11])], "a member of a firmware RAID"),
        (&[(end(1024), b"Intel Raid ISM Cfg Sig. 1.3.00")], "a member of a firmware RAID"),
        (&[(512, b"LABELONE"), (536, b"LVM2 001")], "an LVM physical volume"),
        (&[(last_4k, &[2]), (last_4k + 6, &[0x34, 0x34, 0, 4])], "nilfs2"),
        (&[(1024, b"\xfe\xed\xba\xbe"), (1035, &[2]), (1327, &[1])], "a log of xfs"),
        (&[(1080, &[0x53, 0xef]), (1120, &[8])], "a journal of ext4"),
        (&[(0x10000, b"ReIsEr4"), (0x10024, b"mine")], "reiser4 (label \"mine\")"),
        (&[(end(512), b"EFI PART")], "a partition table (GPT)"),
        (&[(end(4096), b"EFI PART")], "a partition table (GPT)"),
        (&[(4096, b"EFI PART")], "a partition table (GPT)"),
        (&[((len & !0x3ffff) - 0x40000 + 0x20000 + 3072, &zfs)], "a member of a ZFS pool"),
        (&[(last_4k, b"HEDDLE\x00\xf5")], "a heddle file system"),
        (&[(4096, b"HEDDLENL")], "a heddle node log"),
        (&[(0x1400, &0xf2f5_2010_u32.to_le_bytes())], "f2fs"),
        (&[(65536 - 10, b"SWAPSPACE2")], "swap"),
    ];
    for (magics, expected) in cases {
        assert_eq!(names(&plant(magics)), [expected], "{magics:x?}");
    }
    // A superblock that was smaller than its media says where its other copy is; that goes with a wipe.
    let blocks = 700u64.to_le_bytes();
    let smaller = plant(&[(0, b"HEDDLE\x00\xf5"), (40, &blocks), (699 * 4096, b"HEDDLE\x00\xf5")]);
    let Content::Known(found) = smaller else { panic!("nothing found") };
    assert_eq!(found[0].magics, [(0, 128), (699 * 4096, 128)]);
}

#[test]
fn zeros_are_blank_and_anything_else_is_not() {
    let mut bytes = vec![0; 3 * MIB as usize];
    assert_eq!(content_of_bytes(&bytes), Content::Blank);
    for at in [200 << 10, bytes.len() - 1] {
        bytes[at] = 1;
        assert_eq!(content_of_bytes(&bytes), Content::Unknown, "{at}");
        bytes[at] = 0;
    }
    for len in [0, 1, 100, 511, 4095] {
        assert_eq!(content_of_bytes(&vec![0; len]), Content::Blank);
    }
}

/// A label comes from whoever made the media, and goes to a terminal.
#[test]
fn a_label_cannot_write_to_the_terminal() {
    let mut bytes = vec![0; MIB as usize];
    bytes[..4].copy_from_slice(b"XFSB");
    bytes[108..115].copy_from_slice(b"\x1b[2Jx\"y");
    assert_eq!(names(&content_of_bytes(&bytes)), ["xfs (label \"\\u{1b}[2Jx\\\"y\")"]);
}

/// Sizes and counts on the media are anything.
#[test]
fn bytes_of_any_kind_are_looked_at_without_harm() {
    let mut state = 7u64;
    for len in [0usize, 3, 600, 5000, 70_000, 1_200_000] {
        let mut bytes = vec![0u8; len];
        for byte in &mut bytes {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            *byte = (state >> 33) as u8;
        }
        if len > 48 {
            bytes[..8].copy_from_slice(b"HEDDLE\x00\xf5");
            bytes[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        }
        let _ = content_of_bytes(&bytes);
    }
}
