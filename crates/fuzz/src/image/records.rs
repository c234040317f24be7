//! Forged records.

use super::edit::{Wish, block_of, value};
use super::sites::Sites;
use heddle_nvmfs::format::record::{Attributes, Blocks, NameBuf, Record};
use heddle_nvmfs::ids::{BlockNo, InodeId, PageNo, Version};
use heddle_vfs::{FileKind, Ino, Time};

/// The record with one field changed.
pub fn forged_record(sites: &Sites, record: Record, wish: &Wish) -> Record {
    let number = |bits: u32| value(sites, wish, bits);
    let field = wish.field % 8;
    let mut record = record;
    match &mut record {
        Record::Write { page, pages, blocks, end_in_last_page, version, change_count, .. } => match field {
            0 => *page = PageNo(number(36)),
            1 => *pages = number(20),
            2 => *blocks = Blocks::At(block_of(sites, wish)),
            3 => *blocks = Blocks::Unwritten(block_of(sites, wish)),
            4 => *blocks = Blocks::List(block_of(sites, wish)),
            5 => *end_in_last_page = number(13) as u32,
            6 => *version = Version(number(48)),
            _ => *change_count = number(50),
        },
        Record::Punch { page, pages, version, change_count, .. } => match field % 4 {
            0 => *page = PageNo(number(36)),
            1 => *pages = number(37),
            2 => *version = Version(number(48)),
            _ => *change_count = number(50),
        },
        Record::Attributes(state) => match field % 6 {
            0 => state.size = number(49),
            1 => state.perm = number(12) as u16,
            2 => state.change_count = number(50),
            3 => state.uid = number(32) as u32,
            4 => state.mtime = Time(number(64) as i64),
            _ => state.ctime = Time(number(64) as i64),
        },
        Record::Xattrs { blob, change_count, .. } => match field % 2 {
            0 => *blob = Some(block_of(sites, wish)).filter(|block| block.0 != 0),
            _ => *change_count = number(50),
        },
        Record::Remap { page, blob, version, change_count, .. } => match field % 4 {
            0 => *page = PageNo(number(36)),
            1 => *blob = Some(block_of(sites, wish)).filter(|block| block.0 != 0),
            2 => *version = Version(number(48)),
            _ => *change_count = number(50),
        },
        Record::Name { dir, removed, child, kind, name, version, change_count, .. } => match field {
            0 => *dir = InodeId { ino: Ino(number(40)), generation: u64::from(wish.number % 4) },
            1 => *removed = !*removed,
            2 => child.ino = Ino(number(40)),
            3 => child.generation = number(62),
            4 => *kind = FileKind::from_raw(number(4) as u8).unwrap_or(FileKind::Directory),
            5 => *name = a_name(wish),
            6 => *version = Version(number(48)),
            _ => *change_count = number(50),
        },
    }
    record
}

/// Names with bytes that names must not have, too.
fn a_name(wish: &Wish) -> NameBuf {
    let bytes = wish.value.to_le_bytes();
    match wish.number % 6 {
        0 => NameBuf::new(b""),
        1 => NameBuf::new(b".."),
        2 => NameBuf::new(b"a/b"),
        3 => NameBuf::new(&bytes.repeat(32)),
        4 => NameBuf::new(b"a"),
        _ => NameBuf::new(&bytes[..1 + (wish.number / 6) as usize % 8]),
    }
}

/// A record of any kind.
pub fn invented(sites: &Sites, home: InodeId, wish: &Wish) -> Record {
    let number = |bits: u32| value(sites, wish, bits);
    let version = Version(u64::from(wish.number >> 16));
    let change_count = u64::from(wish.number >> 8 & 0xff);
    let page = PageNo(u64::from(wish.number & 0xff));
    let mtime = Time(0);
    match wish.field % 8 {
        0 => Record::Write {
            page,
            pages: 1 + change_count % 8,
            blocks: Blocks::At(block_of(sites, wish)),
            end_in_last_page: 4096,
            version,
            mtime,
            change_count,
        },
        1 => Record::Write {
            page: PageNo(number(36)),
            pages: 1,
            blocks: Blocks::List(BlockNo(u64::from(wish.number & 0x3ff))),
            end_in_last_page: 0,
            version,
            mtime,
            change_count,
        },
        2 => Record::Punch { page, pages: number(37), version, mtime, change_count },
        3 => Record::Attributes(Attributes {
            size: number(49),
            perm: 0o755,
            uid: 0,
            gid: 0,
            mtime,
            ctime: mtime,
            atime: mtime,
            change_count: u64::from(wish.number),
        }),
        4 => Record::Xattrs { blob: Some(block_of(sites, wish)).filter(|b| b.0 != 0), change_count, mtime },
        5 => Record::Remap {
            page,
            blob: Some(block_of(sites, wish)).filter(|b| b.0 != 0),
            version,
            mtime,
            change_count,
        },
        _ => Record::Name {
            dir: if wish.how & 0x40 == 0 {
                home
            } else {
                InodeId { ino: Ino(page.0), generation: change_count }
            },
            removed: wish.how & 0x20 != 0,
            child: InodeId { ino: Ino(number(40)), generation: change_count },
            kind: FileKind::from_raw((wish.number & 7) as u8).unwrap_or(FileKind::Regular),
            name: a_name(wish),
            version,
            mtime,
            change_count,
        },
    }
}
