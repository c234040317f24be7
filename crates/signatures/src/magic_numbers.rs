//! Formats that a magic number at a fixed position tells for certain.

use crate::Signature;
use crate::media_reader::MediaReader;

/// A magic number, and where the label is.
struct Magic {
    kind: &'static str,
    at: u64,
    bytes: &'static [u8],
    label: Option<(u64, usize)>,
}

const fn magic(kind: &'static str, at: u64, bytes: &'static [u8]) -> Magic {
    Magic { kind, at, bytes, label: None }
}

const fn labelled(kind: &'static str, at: u64, bytes: &'static [u8], label: (u64, usize)) -> Magic {
    Magic { kind, at, bytes, label: Some(label) }
}

/// From the beginning of the media.
const MAGICS: &[Magic] = &[
    labelled("xfs", 0, b"XFSB", (108, 12)),
    labelled("btrfs", 0x10040, b"_BHRfS_M", (0x1012b, 256)),
    magic("LUKS", 0, b"LUKS\xba\xbe"),
    magic("LUKS", 0x4000, b"SKUL\xba\xbe"),
    labelled("ISO 9660", 0x8001, b"CD001", (0x8028, 32)),
    magic("UDF", 0x8801, b"NSR0"),
    magic("UDF", 0x9001, b"NSR0"),
    labelled("vfat", 0x52, b"FAT32   ", (0x47, 11)),
    labelled("vfat", 0x36, b"FAT12   ", (0x2b, 11)),
    labelled("vfat", 0x36, b"FAT16   ", (0x2b, 11)),
    labelled("vfat", 0x36, b"FAT     ", (0x2b, 11)),
    magic("ntfs", 3, b"NTFS    "),
    magic("exfat", 3, b"EXFAT   "),
    magic("BitLocker", 3, b"-FVE-FS-"),
    magic("bcache", 4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    labelled(
        "bcachefs",
        4120,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
        (4168, 32),
    ),
    magic("squashfs", 0, b"hsqs"),
    magic("cramfs", 0, b"\x45\x3d\xcd\x28"),
    magic("erofs", 1024, b"\xe2\xe1\xf5\xe0"),
    magic("jfs", 0x8000, b"JFS1"),
    magic("reiserfs", 0x10034, b"ReIsErFs"),
    magic("reiserfs", 0x10034, b"ReIsEr2Fs"),
    magic("reiserfs", 0x10034, b"ReIsEr3Fs"),
    labelled("reiser4", 0x10000, b"ReIsEr4", (0x10024, 16)),
    magic("bfs", 0, b"\xce\xfa\xad\x1b"),
    magic("a partition table (SGI)", 0, b"\x0b\xe5\xa9\x41"),
    magic("gfs2", 0x10000, b"\x01\x16\x19\x70"),
    magic("ocfs2", 1024, b"OCFSV2"),
    magic("ocfs2", 2048, b"OCFSV2"),
    magic("ocfs2", 4096, b"OCFSV2"),
    magic("ocfs2", 8192, b"OCFSV2"),
    magic("apfs", 32, b"NXSB"),
    magic("Stratis", 516, b"!Stra0tis\x86\xff\x02^\x41rh"),
    magic("dm-integrity", 0, b"integrt\0"),
    magic("dm-verity", 0, b"verity\0\0"),
    magic("VDO", 0, b"dmvdo001"),
    magic("UBI", 0, b"UBI#"),
    magic("ubifs", 0, b"\x31\x18\x10\x06"),
    magic("qcow", 0, b"QFI\xfb"),
    magic("vmdk", 0, b"KDMV"),
    magic("an archive (tar)", 257, b"ustar"),
    magic("an SQLite database", 0, b"SQLite format 3\0"),
    magic("an ELF program", 0, b"\x7fELF"),
    magic("a heddle node log", 0, b"HEDDLENL"),
    magic("a heddle node log", 4096, b"HEDDLENL"),
];

/// Those that are there.
pub fn found(media: &MediaReader<'_>) -> Vec<Signature> {
    let there = MAGICS.iter().filter(|magic| media.has(magic.at, magic.bytes));
    there
        .map(|magic| Signature {
            kind: magic.kind,
            label: magic.label.and_then(|(at, len)| media.text(at, len)).filter(|text| text != "NO NAME"),
            magics: vec![(magic.at, magic.bytes.len() as u64)],
        })
        .collect()
}
