//! What is read from media and from callers, piece by piece.
//!
//! Promises    whatever the bytes, no panic; what is read, written again, reads as the same.

use super::Target;
use heddle_nvmfs::format::blob::{
    Kind, decode, encode, map_of_words, words_of_map, words_of_xattrs, xattrs_of_words,
};
use heddle_nvmfs::format::extent_list;
use heddle_nvmfs::format::inode::{FoundInode, InodeBase};
use heddle_nvmfs::format::page::{PageHeader, SLOTS};
use heddle_nvmfs::format::pointer::{self, PointerLocation, Target as To};
use heddle_nvmfs::format::record::{FoundRecord, Record, decode_plain_write, is_later_line, parse};
use heddle_nvmfs::format::superblock::{FoundSuperblock, SUPERBLOCK_BYTES, Superblock};
use heddle_nvmfs::format::word::{Line, WRITTEN};
use heddle_nvmfs::ids::{BlockNo, InodeId};
use heddle_vfs::acl::Acl;
use heddle_vfs::{Ino, Name, XattrName};

pub struct Decoders;

const SEED: u32 = 0x1234_5678;
const HOME: InodeId = InodeId { ino: Ino(5), generation: 6 };
const AT: BlockNo = BlockNo(77);
/// Bytes of an input that begins with an access list.
const ACL: &[u8] = b"\x02\x00\x00\x00\x01\x00\x06\x00\xff\xff\xff\xff\x04\x00\x04\x00\xff\xff\xff\xff\x20\x00\x04\x00\xff\xff\xff\xff";

impl Target for Decoders {
    fn seeds(&self) -> Vec<Vec<u8>> {
        let mut seeds: Vec<Vec<u8>> = (0..9).map(|kind| [&[kind][..], &[0; 64]].concat()).collect();
        seeds.push([&[0], ACL].concat());
        seeds.push([&[1], &b"\x06\x03\x00\x00user.aabc"[..]].concat());
        seeds.extend((1..8).map(|kind| forged_line(kind << 32 | 1 << 58)));
        seeds
    }

    fn words(&self) -> &[&str] {
        &["user.", "trusted.", "security.", "system.posix_acl_access", "HEDDLE\0", "\0\0\0\0\0\0\0\0"]
    }

    fn run(&mut self, input: &[u8]) -> Result<u64, String> {
        let Some((which, bytes)) = input.split_first() else { return Ok(0) };
        let words: Vec<u64> = bytes.chunks(8).map(word_of).collect();
        let word = |i: usize| words.get(i).copied().unwrap_or_default();
        let same = |same: bool, what: &str| {
            if same { Ok(1) } else { Err(format!("{what}: written, it reads as something else")) }
        };
        let said = match which % 9 {
            0 => match Acl::from_xattr(bytes) {
                Ok(Some(acl)) => {
                    let again = Acl::from_xattr(&acl.to_xattr());
                    same(again.is_ok_and(|again| again == Some(acl)), "an access list")?
                }
                Ok(None) => 2,
                Err(_) => 3,
            },
            1 => match xattrs_of_words(&words) {
                Some(xattrs) => {
                    same(xattrs_of_words(&words_of_xattrs(&xattrs)) == Some(xattrs), "attributes")?
                }
                None => u64::from(XattrName::new(bytes).is_ok()) << 1 | u64::from(Name::new(bytes).is_ok()),
            },
            2 => match map_of_words(&words) {
                Some(runs) => same(map_of_words(&words_of_map(&runs)) == Some(runs), "a map")?,
                None => 2,
            },
            3 => record(&words)?,
            4 => match PageHeader::decode(SEED, &line(&words, 0)) {
                Some(header) => {
                    same(PageHeader::decode(SEED, &header.encode(SEED)) == Some(header), "a page header")?
                }
                None => 2,
            },
            5 => match InodeBase::decode(SEED, Ino(word(1) & (WRITTEN - 1)), &line(&words, 0)) {
                FoundInode::Whole(base) => {
                    let again = InodeBase::decode(SEED, base.id.ino, &base.encode(SEED));
                    same(again == FoundInode::Whole(base), "an inode")?
                }
                found => format!("{found:?}").len() as u64,
            },
            6 => {
                let body = &words[..words.len().min(510)];
                let whole = encode(SEED, HOME, Kind::Map, AT, body, Some(BlockNo(1 + word(0) % 1000)));
                let read = decode(SEED, HOME, Kind::Map, AT, |i| whole.get(i).copied().unwrap_or_default());
                same(read.is_some_and(|read| read.0 == body), "a blob")?;
                u64::from(decode(SEED, HOME, Kind::Xattrs, AT, word).is_some())
            }
            7 => u64::from(extent_list::decode(SEED, HOME, AT, word).is_some()),
            _ => {
                let mut head = [0; SUPERBLOCK_BYTES];
                head.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
                let pointed = pointer::decode(SEED, HOME, PointerLocation::Tail, word(0)) == To::None;
                match Superblock::decode(&head) {
                    FoundSuperblock::Whole(_) => 4,
                    _ => u64::from(pointed),
                }
            }
        };
        Ok(said << 8 | u64::from(*which % 9))
    }
}

fn word_of(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn line(words: &[u64], n: usize) -> Line {
    std::array::from_fn(|i| words.get(8 * n + i).copied().unwrap_or_default())
}

/// A record's first line, without a checksum.
fn forged_line(head: u64) -> Vec<u8> {
    let words = [
        WRITTEN | head,
        WRITTEN | 3,
        WRITTEN | 1 << 40 | 9,
        WRITTEN | 4,
        WRITTEN | 1 << 6 | 1,
        WRITTEN | 1,
        WRITTEN | 1,
        WRITTEN,
    ];
    std::iter::once(3).chain(words.iter().flat_map(|word| word.to_le_bytes())).collect()
}

/// A page of these lines from slot 1 on; the first gets the checksum that it should have.
fn record(words: &[u64]) -> Result<u64, String> {
    let mut lines: Vec<Line> = (0..7).map(|n| line(words, n)).collect();
    let whole = |lines: &[Line]| {
        parse(SEED, HOME, 1, |slot| lines.get(slot as usize - 1).copied().unwrap_or_default())
    };
    let mut found = whole(&lines);
    if found == FoundRecord::Damaged {
        // The checksum is over the rest of the line: try what a forger would.
        lines[0][0] = lines[0][0] >> 32 << 32 | u64::from(sum_of(&lines[0]));
        found = whole(&lines);
    }
    let later = u64::from(is_later_line(SEED, 2, &lines[1])) << 1
        | u64::from(decode_plain_write(SEED, 1, &lines[0]).is_some());
    let FoundRecord::Whole { record, slots, txn, .. } = found else { return Ok(later << 4) };
    if slots > SLOTS {
        return Err(format!("a record of {slots} slots"));
    }
    let mut draft = record.draft(HOME, 1);
    let written = draft.seal(SEED, 1, txn, true).to_vec();
    match whole(&written) {
        FoundRecord::Whole { record: again, .. } if again == record => Ok(later << 8 | kind(&record) << 4),
        other => Err(format!("a record: {record:?}, written, reads as {other:?}")),
    }
}

fn kind(record: &Record) -> u64 {
    match record {
        Record::Write { .. } => 1,
        Record::Punch { .. } => 2,
        Record::Attributes(_) => 3,
        Record::Xattrs { .. } => 4,
        Record::Remap { .. } => 5,
        Record::Name { .. } => 6,
    }
}

/// The checksum of a first line in slot 1, as `format::record` says.
fn sum_of(line: &Line) -> u32 {
    let head = line[0] >> 32 << 32 | WRITTEN;
    heddle_nvmfs::format::word::crc(SEED, &[1, head, line[1], line[2], line[3], line[4], line[5], line[6]])
}
