//! Log records. Each is one change of an inode, in one to seven lines.
//!
//! | word | payload | serves |
//! |------|---------|----------------|
//! | 0 | crc:32 of this line · kind:6 · flags:6 · lane:14 · slots:4 | against torn and stale records: the checksum is seeded with image, inode, and the page's epoch, lane and serial (`PageHeader::record_seed`), and begins with the slot |
//! | 1, 2 | depend on the kind, see below | |
//! | 3 | version, below 2^47; none in attributes and xattrs | tells which of two records of a page or name came later |
//! | 4 | first slot of the transaction:6 · its slots:6 · of a name: change count of the directory:50 | against half a transaction; tells whether a foreign record still counts |
//! | 5 | mtime in ns | |
//! | 6 | change count; of a name: the first further word (see below) | tells which of two sizes came later |
//! | 7 | the commit mark: a checksum over the slot, with the same seed | see below |
//!
//! | kind | word 1 | word 2 | further words |
//! |------|--------|--------|---------------|
//! | write | page:36 · end in last page:13 | block:40, or first block of the extent list (`FLAG_LIST`), or blocks never written (`FLAG_UNWRITTEN`) · pages:20 | |
//! | punch | page:36 | pages:37 | |
//! | attributes | size:49 · perm:12 | uid:32 | gid, ctime, atime |
//! | entry | child's ino:40 · kind:4 · name bytes:8 | child's generation | directory's ino and generation if it is another one (`FLAG_FOREIGN`), name, 7 bytes a word |
//! | removal | as entry | as entry | as entry |
//! | xattrs | first block of the blob, 0: none are left | | |
//! | remap | page:36 | first block of the blob, 0: all holes | |
//!
//! Later lines carry seven words of payload; their word 7 is crc:32 · kind:6 (`LATER`) · index of the line in
//! the record:4.
//!
//! Every written word has its top two bits set. In a first line, other bits outside the fields are zero, else it is damage. So is a version
//! of 0, if the kind has a version.
//!
//! With `LogKind::CommitMark` only a transaction's last record gets a mark, stored after a fence. With other kinds of log each record's
//! mark is written with its other words. A transaction lies in one page; it counts only as a whole (docs/protocol.md D2).

mod parse;
mod plain_write;

pub use parse::{FoundRecord, is_later_line, parse};
pub use plain_write::{PlainWrite, decode_plain_write, encode_plain_write};

use super::fields::{Field, attributes, entry, foreign, later, punch, record as f, remap, write, xattrs};
use super::word::{Line, WRITTEN, crc, payload, time_payload, word};
use crate::ids::{BlockNo, InodeId, PageNo, Version};
use heddle_vfs::{FileKind, Ino, NAME_MAX_BYTES, Time};

/// Most lines of one record: a foreign entry of 255 bytes.
pub const RECORD_SLOTS_MAX: usize = 7;
/// Words of payload in a later line.
const LATER_WORDS: usize = 7;
/// Kind of a later line.
const LATER: u64 = 0x15;
/// Most pages of one write record.
pub const WRITE_PAGES_MAX: u64 = (1 << 20) - 1;

const FLAG_UNWRITTEN: u64 = 1;
const FLAG_LIST: u64 = 2;
const FLAG_FOREIGN: u64 = 4;
const NAME_BYTES_A_WORD: usize = 7;
/// Further words before the name in a record of another directory.
const FOREIGN_WORDS: usize = 2;

const WRITE: u64 = 1;
const PUNCH: u64 = 2;
const ATTRIBUTES: u64 = 3;
const ENTRY: u64 = 4;
const REMOVAL: u64 = 5;
const XATTRS: u64 = 6;
const REMAP: u64 = 7;

/// The blocks of a write record's pages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocks {
    /// Consecutive blocks from here.
    At(BlockNo),
    /// Consecutive blocks that were allocated but never written: they read as zeros.
    Unwritten(BlockNo),
    /// The extents in the list that starts in this block.
    List(BlockNo),
}

/// Attributes of an inode at a change count. Later writes may raise size and times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// Size in bytes.
    pub size: u64,
    /// Permission bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Last change of the content.
    pub mtime: Time,
    /// Last change of anything.
    pub ctime: Time,
    /// Last access.
    pub atime: Time,
    /// Orders sets of attributes; a write carries the change count of the set that it saw.
    pub change_count: u64,
}

/// A name inside a record. Boxed, because most records are of data, and should be small.
#[derive(Clone, PartialEq, Eq)]
pub struct NameBuf(Box<[u8]>);

impl NameBuf {
    /// Copies at most 255 bytes.
    pub fn new(name: &[u8]) -> NameBuf {
        NameBuf(name[..name.len().min(NAME_MAX_BYTES)].into())
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

impl std::fmt::Debug for NameBuf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", String::from_utf8_lossy(self.bytes()))
    }
}

/// The contents of a record.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Pages `[page, page + pages)` are mapped to these blocks.
    Write {
        /// First page.
        page: PageNo,
        /// Number of pages.
        pages: u64,
        /// The blocks of their content.
        blocks: Blocks,
        /// Number of valid bytes in the last page, 1 to 4096; 0: the size does not change.
        end_in_last_page: u32,
        /// Orders it among the records of its pages.
        version: Version,
        /// Time of the change.
        mtime: Time,
        /// Change count of the size that the write saw.
        change_count: u64,
    },
    /// Pages `[page, page + pages)` are a hole.
    Punch {
        /// First page.
        page: PageNo,
        /// Number of pages.
        pages: u64,
        /// Orders it among the records of its pages.
        version: Version,
        /// Time of the change.
        mtime: Time,
        /// Change count of the size that the punch saw.
        change_count: u64,
    },
    /// Size and attributes.
    Attributes(Attributes),
    /// The complete set of extended attributes. An attribute record with the same change count is in the same transaction.
    Xattrs {
        /// First block of the blob that holds them; `None`: no extended attributes are left.
        blob: Option<BlockNo>,
        /// Orders it among the records of extended attributes.
        change_count: u64,
        /// Time of the change.
        mtime: Time,
    },
    /// Every page from `page` on is as a map says, and a hole where the map has no run.
    Remap {
        /// First page.
        page: PageNo,
        /// First block of the blob that holds the map; `None`: all pages are holes.
        blob: Option<BlockNo>,
        /// Orders it among the records of its pages.
        version: Version,
        /// Time of the change.
        mtime: Time,
        /// Change count of the size that the change saw.
        change_count: u64,
    },
    /// A directory has this name, or, for a removal, has it no longer.
    Name {
        /// The directory.
        dir: InodeId,
        /// True: the name is removed.
        removed: bool,
        /// The inode of the name.
        child: InodeId,
        /// Kind of the child.
        kind: FileKind,
        /// The name.
        name: NameBuf,
        /// Orders it among the records of this name.
        version: Version,
        /// Time of the change.
        mtime: Time,
        /// Change count of the directory's attributes that the change saw. It tells whether this record or an
        /// attribute record has the directory's later mtime, and whether a foreign record still counts.
        change_count: u64,
    },
}

/// The position of a record's transaction in its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Txn {
    /// First slot.
    pub first: u32,
    /// Number of slots.
    pub slots: u32,
}

/// A record as lines, not yet tied to a slot.
#[derive(Debug)]
pub struct Draft {
    lines: [Line; RECORD_SLOTS_MAX],
    slots: u32,
}

impl Record {
    /// Most slots that it takes: a name takes fewer in its own directory's log than in another's.
    pub fn slots_max(&self) -> u32 {
        self.slots(true)
    }

    /// Number of slots that it takes in the log of `home`.
    pub fn slots_in(&self, home: InodeId) -> u32 {
        self.slots(matches!(self, Record::Name { dir, .. } if *dir != home))
    }

    fn slots(&self, foreign: bool) -> u32 {
        match self {
            Record::Write { .. } | Record::Punch { .. } | Record::Xattrs { .. } | Record::Remap { .. } => 1,
            Record::Attributes(_) => 2,
            Record::Name { name, .. } => {
                slots_of_extra(if foreign { 2 } else { 0 } + name.bytes().len().div_ceil(NAME_BYTES_A_WORD))
            }
        }
    }

    /// Encodes it. `home` is the inode whose log it goes to, `lane` the lane that writes it.
    pub fn draft(&self, home: InodeId, lane: u16) -> Draft {
        let mut draft = Draft { lines: [[WRITTEN; 8]; RECORD_SLOTS_MAX], slots: self.slots_in(home) };
        let (kind, flags) = match *self {
            Record::Write { page, pages, blocks, end_in_last_page, version, mtime, change_count } => {
                let (block, flags) = match blocks {
                    Blocks::At(b) => (b, 0),
                    Blocks::Unwritten(b) => (b, FLAG_UNWRITTEN),
                    Blocks::List(b) => (b, FLAG_LIST),
                };
                draft.set(write::PAGE, page.0);
                draft.set(write::END, u64::from(end_in_last_page));
                draft.set(write::BLOCK, block.0);
                draft.set(write::PAGES, pages);
                draft.set(write::VERSION, version.0);
                draft.set(write::CHANGE_COUNT, change_count);
                draft.set(f::MTIME, time_payload(mtime));
                (WRITE, flags)
            }
            Record::Punch { page, pages, version, mtime, change_count } => {
                draft.set(punch::PAGE, page.0);
                draft.set(punch::PAGES, pages);
                draft.set(punch::VERSION, version.0);
                draft.set(punch::CHANGE_COUNT, change_count);
                draft.set(f::MTIME, time_payload(mtime));
                (PUNCH, 0)
            }
            Record::Attributes(s) => {
                draft.set(attributes::SIZE, s.size);
                draft.set(attributes::PERM, u64::from(s.perm));
                draft.set(attributes::UID, u64::from(s.uid));
                draft.set(attributes::CHANGE_COUNT, s.change_count);
                draft.set(attributes::GID, u64::from(s.gid));
                draft.set(attributes::CTIME, time_payload(s.ctime));
                draft.set(attributes::ATIME, time_payload(s.atime));
                draft.set(f::MTIME, time_payload(s.mtime));
                (ATTRIBUTES, 0)
            }
            Record::Xattrs { blob, change_count, mtime } => {
                draft.set(xattrs::BLOB, blob.map_or(0, |b| b.0));
                draft.set(xattrs::CHANGE_COUNT, change_count);
                draft.set(f::MTIME, time_payload(mtime));
                (XATTRS, 0)
            }
            Record::Remap { page, blob, version, mtime, change_count } => {
                draft.set(remap::PAGE, page.0);
                draft.set(remap::BLOB, blob.map_or(0, |b| b.0));
                draft.set(remap::VERSION, version.0);
                draft.set(remap::CHANGE_COUNT, change_count);
                draft.set(f::MTIME, time_payload(mtime));
                (REMAP, 0)
            }
            Record::Name { dir, removed, child, kind, ref name, version, mtime, change_count } => {
                draft.set(entry::CHILD, child.ino.0);
                draft.set(entry::KIND, kind as u64);
                draft.set(entry::BYTES, name.bytes().len() as u64);
                draft.set(entry::CHILD_GENERATION, child.generation);
                draft.set(entry::VERSION, version.0);
                draft.set(entry::CHANGE_COUNT, change_count);
                draft.set(f::MTIME, time_payload(mtime));
                let other = dir != home;
                if other {
                    draft.set(foreign::DIR, dir.ino.0);
                    draft.set(foreign::DIR_GENERATION, dir.generation);
                }
                for (i, chunk) in name.bytes().chunks(NAME_BYTES_A_WORD).enumerate() {
                    let mut le = [0; 8];
                    le[..chunk.len()].copy_from_slice(chunk);
                    draft.set(name_field(other, i), u64::from_le_bytes(le));
                }
                (if removed { REMOVAL } else { ENTRY }, if other { FLAG_FOREIGN } else { 0 })
            }
        };
        draft.set(f::KIND, kind);
        draft.set(f::FLAGS, flags);
        draft.set(f::LANE, u64::from(lane));
        draft.set(f::SLOTS, u64::from(draft.slots));
        draft
    }
}

/// Position of the `i`th word of a name.
fn name_field(of_other: bool, i: usize) -> Field {
    let first = if of_other { foreign::NAME } else { entry::NAME };
    let further = if of_other { FOREIGN_WORDS + i } else { i };
    Field { word: further_word(further), ..first }
}

/// Index of the `i`th further word in a name record's lines: first word 6, then the words of later lines.
const fn further_word(i: usize) -> usize {
    match i {
        0 => 6,
        _ => 8 + (i - 1) / LATER_WORDS * 8 + (i - 1) % LATER_WORDS,
    }
}

// Asserts that the list of fields and this rule agree.
const _: () =
    assert!(entry::NAME.word == further_word(0) && foreign::NAME.word == further_word(FOREIGN_WORDS));

fn slots_of_extra(words: usize) -> u32 {
    1 + words.saturating_sub(1).div_ceil(LATER_WORDS) as u32
}

/// The word 0 by which one store turns a complete name record into a removal. The other words of the record stay.
pub fn removal_word(seed: u32, slot: u32, line: &Line) -> u64 {
    let mut gone = *line;
    gone[0] = word(payload(line[0]) & !(f::CRC.mask() | f::KIND.mask()) | f::KIND.put(REMOVAL));
    gone[0] | f::CRC.put(u64::from(checksum(seed, slot, &gone)))
}

/// The lane that wrote the record whose first line this is.
pub fn lane_of(line: &Line) -> u16 {
    f::LANE.get(line) as u16
}

/// The commit mark of the record in this slot.
pub fn commit_mark(seed: u32, slot: u32) -> u64 {
    word(u64::from(crc(seed, &[u64::from(slot), WRITTEN])))
}

impl Draft {
    /// Sets a field that is still zero.
    fn set(&mut self, field: Field, value: u64) {
        self.lines[field.word / 8][field.word % 8] |= word(field.put(value));
    }

    /// Binds it to its slot and transaction, and returns the lines for the media. Without `with_commit_mark`, that mark is left out. That
    /// of the transaction's last record is stored after a fence.
    pub fn seal(&mut self, seed: u32, slot: u32, txn: Txn, with_commit_mark: bool) -> &[Line] {
        self.set(f::TXN_FIRST, u64::from(txn.first));
        self.set(f::TXN_SLOTS, u64::from(txn.slots));
        self.lines[0][0] |= f::CRC.put(u64::from(checksum(seed, slot, &self.lines[0])));
        self.lines[0][7] = if with_commit_mark { commit_mark(seed, slot) } else { 0 };
        for i in 1..self.slots {
            let line = &mut self.lines[i as usize];
            line[7] = later_word(seed, slot + i, i, line);
        }
        &self.lines[..self.slots as usize]
    }
}

/// Checksum of a first line.
fn checksum(seed: u32, slot: u32, line: &Line) -> u32 {
    let head = word(payload(line[0]) & !f::CRC.mask());
    crc(seed, &[u64::from(slot), head, line[1], line[2], line[3], line[4], line[5], line[6]])
}

/// Word 7 of the `i`th line of a record, which lies in `slot`.
fn later_word(seed: u32, slot: u32, i: u32, line: &Line) -> u64 {
    let head = later::KIND.put(LATER) | later::LINE.put(u64::from(i));
    let sum =
        crc(seed, &[u64::from(slot), head, line[0], line[1], line[2], line[3], line[4], line[5], line[6]]);
    word(head | later::CRC.put(u64::from(sum)))
}

#[cfg(test)]
mod tests;
