//! Formats that a few bytes at a fixed place tell for certain.

use crate::Holding;
use crate::bytes::Bytes;

/// A mark, and where the label is.
struct Mark {
    kind: &'static str,
    at: u64,
    bytes: &'static [u8],
    label: Option<(u64, usize)>,
}

const fn mark(kind: &'static str, at: u64, bytes: &'static [u8]) -> Mark {
    Mark { kind, at, bytes, label: None }
}

const fn labelled(kind: &'static str, at: u64, bytes: &'static [u8], label: (u64, usize)) -> Mark {
    Mark { kind, at, bytes, label: Some(label) }
}

/// From the beginning of the media.
const MARKS: &[Mark] = &[
    labelled("xfs", 0, b"XFSB", (108, 12)),
    labelled("btrfs", 0x10040, b"_BHRfS_M", (0x1012b, 256)),
    mark("LUKS", 0, b"LUKS\xba\xbe"),
    mark("LUKS", 0x4000, b"SKUL\xba\xbe"),
    labelled("ISO 9660", 0x8001, b"CD001", (0x8028, 32)),
    mark("UDF", 0x8801, b"NSR0"),
    mark("UDF", 0x9001, b"NSR0"),
    labelled("vfat", 0x52, b"FAT32   ", (0x47, 11)),
    labelled("vfat", 0x36, b"FAT12   ", (0x2b, 11)),
    labelled("vfat", 0x36, b"FAT16   ", (0x2b, 11)),
    labelled("vfat", 0x36, b"FAT     ", (0x2b, 11)),
    mark("ntfs", 3, b"NTFS    "),
    mark("exfat", 3, b"EXFAT   "),
    mark("BitLocker", 3, b"-FVE-FS-"),
    mark("bcache", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    labelled(
        "bcachefs",
        4120,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        (4168, 32),
    ),
    mark("squashfs", 0, b"hsqs"),
    mark("cramfs", 0, b"\x45\x3d\xcd\x28"),
    mark("erofs", 1024, b"\xe2\xe1\xf5\xe0"),
    mark("jfs", 0x8000, b"JFS1"),
    mark("reiserfs", 0x10034, b"ReIsErFs"),
    mark("reiserfs", 0x10034, b"ReIsEr2Fs"),
    mark("reiserfs", 0x10034, b"ReIsEr3Fs"),
    labelled("reiser4", 0x10000, b"ReIsEr4", (0x10024, 16)),
    mark("bfs", 0, b"\xce\xfa\xad\x1b"),
    mark("a partition table (SGI)", 0, b"\x0b\xe5\xa9\x41"),
    mark("gfs2", 0x10000, b"\x01\x16\x19\x70"),
    mark("ocfs2", 1024, b"OCFSV2"),
    mark("ocfs2", 2048, b"OCFSV2"),
    mark("ocfs2", 4096, b"OCFSV2"),
    mark("ocfs2", 8192, b"OCFSV2"),
    mark("apfs", 32, b"NXSB"),
    mark("Stratis", 516, b"!Stra0tis\x86\xff\x02^\x41rh"),
    mark("dm-integrity", 0, b"integrt\0"),
    mark("dm-verity", 0, b"verity\0\0"),
    mark("VDO", 0, b"dmvdo001"),
    mark("UBI", 0, b"UBI#"),
    mark("ubifs", 0, b"\x31\x18\x10\x06"),
    mark("qcow", 0, b"QFI\xfb"),
    mark("vmdk", 0, b"KDMV"),
    mark("an archive (tar)", 257, b"ustar"),
    mark("an SQLite database", 0, b"SQLite format 3\0"),
    mark("an ELF program", 0, b"\x7fELF"),
    mark("a heddle node log", 0, b"HEDDLENL"),
    mark("a heddle node log", 4096, b"HEDDLENL"),
];

/// Those that are there.
pub fn found(bytes: &Bytes<'_>) -> Vec<Holding> {
    let there = MARKS.iter().filter(|mark| bytes.has(mark.at, mark.bytes));
    there
        .map(|mark| Holding {
            kind: mark.kind,
            label: mark.label.and_then(|(at, len)| bytes.text(at, len)).filter(|text| text != "NO NAME"),
            marks: vec![(mark.at, mark.bytes.len() as u64)],
        })
        .collect()
}
