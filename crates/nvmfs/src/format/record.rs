//! Log records: what happened to an inode, one to seven lines each.
//!
//! | word | payload | guards against |
//! |------|---------|----------------|
//! | 0 | crc:32 of this line · kind:6 · flags:6 · lane:14 · slots:4 | torn or stale records: the checksum is seeded with image, inode, page use and slot |
//! | 1, 2 | what the kind says below | |
//! | 3 | version:48 | which of two records of a page or name came later |
//! | 4 | first slot of the transaction:6 · its slots:6 · of a name: generation of the directory's attributes:50 | half a transaction |
//! | 5 | mtime in ns | |
//! | 6 | generation of size and attributes; of a name: its first bytes | which of two sizes came later |
//! | 7 | the mark, over seed and slot | see below |
//!
//! | kind | word 1 | word 2 | further words |
//! |------|--------|--------|---------------|
//! | write | page:36 · end in last page:13 | block:40 · pages:20 | |
//! | punch | page:36 | pages:37 | |
//! | state | size:49 · perm:12 | uid:32 | gid, ctime, atime |
//! | entry | child's ino:40 · kind:4 · name bytes:8 | child's generation | directory's ino and generation if it is another one (`FOREIGN`), name, 7 bytes a word |
//! | removal | as entry | as entry | as entry |
//! | attributes | first block of the blob, 0: none are left | | |
//! | remap | page:36 | first block of the blob, 0: all holes | |
//!
//! Later lines carry seven words of payload; their word 7 is crc:32 · kind:6 (`LATER`) · which line of the record:4.
//!
//! The mark is the last word to be written where marks decide (`LogKind::CommitMark`), and is written with the rest
//! elsewhere. A transaction lies in one page; it counts only whole (protocol review D2).

use super::word::{Line, MARK, Shape, crc, field, marked, payload, shape, time_of, time_payload, word};
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
/// Bits of word 4 that say where the transaction lies.
const TXN_BITS: u32 = 12;

/// What a write record maps its pages to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Blocks {
    /// Consecutive blocks from here.
    At(BlockNo),
    /// Consecutive blocks that were allocated but never written: they read as zeros.
    Unwritten(BlockNo),
    /// The extents in the list that starts in this block.
    List(BlockNo),
}

/// Attributes of an inode at a generation. Later writes raise size and times.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
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
    /// Orders states; writes carry the one they saw.
    pub generation: u64,
}

/// A name inside a record. Boxed: records of data are many, and should be small.
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

/// What happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Pages `[page, page + pages)` are these blocks.
    Write {
        /// First page.
        page: PageNo,
        /// How many.
        pages: u64,
        /// Where their content is.
        blocks: Blocks,
        /// Valid bytes of the last page, 1 to 4096; 0: the size is not touched.
        end_in_last_page: u32,
        /// Orders it among the records of its pages.
        version: Version,
        /// When.
        mtime: Time,
        /// Generation of the size it saw.
        generation: u64,
    },
    /// Pages `[page, page + pages)` are a hole.
    Punch {
        /// First page.
        page: PageNo,
        /// How many.
        pages: u64,
        /// Orders it among the records of its pages.
        version: Version,
        /// When.
        mtime: Time,
        /// Generation of the size it saw.
        generation: u64,
    },
    /// Size and attributes.
    State(State),
    /// The extended attributes, all of them. The record comes with a state of the same generation.
    Xattrs {
        /// First block of the blob that holds them; `None`: there are none left.
        blob: Option<BlockNo>,
        /// Orders it among its like.
        generation: u64,
        /// When.
        mtime: Time,
    },
    /// Every page from `page` on is what a map says, and a hole where it says nothing.
    Remap {
        /// First page.
        page: PageNo,
        /// First block of the blob that holds the map; `None`: all are holes.
        blob: Option<BlockNo>,
        /// Orders it among the records of its pages.
        version: Version,
        /// When.
        mtime: Time,
        /// Generation of the size it saw.
        generation: u64,
    },
    /// A directory has this name (or, a removal, no longer).
    Name {
        /// The directory.
        dir: InodeId,
        /// True: the name is gone.
        removed: bool,
        /// What it names (or named).
        child: InodeId,
        /// Kind of the child.
        kind: FileKind,
        /// The name.
        name: NameBuf,
        /// Orders it among the records of this name.
        version: Version,
        /// When.
        mtime: Time,
        /// Generation of the directory's attributes that it saw: whether its time or theirs is the later one.
        generation: u64,
    },
}

/// Where the transaction of a record lies in its page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Txn {
    /// First slot.
    pub first: u32,
    /// How many slots in all.
    pub slots: u32,
}

/// A record as lines, not yet tied to a slot.
#[derive(Debug)]
pub struct Draft {
    lines: [Line; RECORD_SLOTS_MAX],
    slots: u32,
}

/// What was found in a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Found {
    /// Never written.
    Blank,
    /// Part of it never arrived.
    Torn,
    /// Written, then damaged.
    Damaged,
    /// A whole record.
    Whole {
        /// What it says.
        record: Record,
        /// How many slots it takes.
        slots: u32,
        /// Its transaction.
        txn: Txn,
        /// The mark: `None` if not there, else whether it is right.
        mark: Option<bool>,
    },
}

impl Record {
    /// Slots it takes at most: a name takes less in its own directory's log than in another's.
    pub fn slots_max(&self) -> u32 {
        self.slots(true)
    }

    /// Slots it takes in the log of `home`.
    pub fn slots_in(&self, home: InodeId) -> u32 {
        self.slots(matches!(self, Record::Name { dir, .. } if *dir != home))
    }

    fn slots(&self, foreign: bool) -> u32 {
        match self {
            Record::Write { .. } | Record::Punch { .. } | Record::Xattrs { .. } | Record::Remap { .. } => 1,
            Record::State(_) => 2,
            Record::Name { name, .. } => {
                slots_of_extra(if foreign { 2 } else { 0 } + name.bytes().len().div_ceil(NAME_BYTES_A_WORD))
            }
        }
    }

    /// Encodes it. `home` is the inode whose log it goes to, `lane` the lane that writes it.
    pub fn draft(&self, home: InodeId, lane: u16) -> Draft {
        let mut draft = Draft { lines: [[MARK; 8]; RECORD_SLOTS_MAX], slots: self.slots_in(home) };
        let (kind, flags) = match *self {
            Record::Write { page, pages, blocks, end_in_last_page, version, mtime, generation } => {
                let (block, flags) = match blocks {
                    Blocks::At(b) => (b, 0),
                    Blocks::Unwritten(b) => (b, FLAG_UNWRITTEN),
                    Blocks::List(b) => (b, FLAG_LIST),
                };
                draft.head(
                    page.0 | u64::from(end_in_last_page) << 36,
                    block.0 | pages << 40,
                    version.0,
                    mtime,
                );
                draft.extra(0, generation);
                (1, flags)
            }
            Record::Punch { page, pages, version, mtime, generation } => {
                draft.head(page.0, pages, version.0, mtime);
                draft.extra(0, generation);
                (2, 0)
            }
            Record::State(s) => {
                draft.head(s.size | u64::from(s.perm) << 49, u64::from(s.uid), 0, s.mtime);
                let extra = [s.generation, u64::from(s.gid), time_payload(s.ctime), time_payload(s.atime)];
                extra.into_iter().enumerate().for_each(|(i, w)| draft.extra(i, w));
                (3, 0)
            }
            Record::Xattrs { blob, generation, mtime } => {
                draft.head(blob.map_or(0, |b| b.0), 0, 0, mtime);
                draft.extra(0, generation);
                (6, 0)
            }
            Record::Remap { page, blob, version, mtime, generation } => {
                draft.head(page.0, blob.map_or(0, |b| b.0), version.0, mtime);
                draft.extra(0, generation);
                (7, 0)
            }
            Record::Name { dir, removed, child, kind, ref name, version, mtime, generation } => {
                let packed = child.ino.0 | (kind as u64) << 40 | (name.bytes().len() as u64) << 44;
                draft.head(packed, child.generation, version.0, mtime);
                draft.lines[0][4] = word(generation << TXN_BITS);
                let foreign = dir != home;
                let name_at = if foreign { 2 } else { 0 };
                if foreign {
                    draft.extra(0, dir.ino.0);
                    draft.extra(1, dir.generation);
                }
                for (i, chunk) in name.bytes().chunks(NAME_BYTES_A_WORD).enumerate() {
                    let mut le = [0; 8];
                    le[..chunk.len()].copy_from_slice(chunk);
                    draft.extra(name_at + i, u64::from_le_bytes(le));
                }
                (if removed { 5 } else { 4 }, if foreign { FLAG_FOREIGN } else { 0 })
            }
        };
        draft.lines[0][0] =
            word(kind << 32 | flags << 38 | u64::from(lane) << 44 | u64::from(draft.slots) << 58);
        draft
    }
}

fn slots_of_extra(words: usize) -> u32 {
    1 + words.saturating_sub(1).div_ceil(LATER_WORDS) as u32
}

/// The mark of the record in this slot.
pub fn mark(seed: u32, slot: u32) -> u64 {
    word(u64::from(crc(seed, &[u64::from(slot), MARK])))
}

impl Draft {
    /// Words 1, 2, 3 and 5.
    fn head(&mut self, one: u64, two: u64, version: u64, mtime: Time) {
        let line = &mut self.lines[0];
        (line[1], line[2], line[3], line[5]) =
            (word(one), word(two), word(version), word(time_payload(mtime)));
    }

    /// The `i`th further word: word 6, then the lines behind the first.
    fn extra(&mut self, i: usize, payload: u64) {
        match i {
            0 => self.lines[0][6] = word(payload),
            _ => self.lines[1 + (i - 1) / LATER_WORDS][(i - 1) % LATER_WORDS] = word(payload),
        }
    }

    /// Ties it to its slot and transaction, and gives the lines for the media; the mark is left out where it is stored later.
    pub fn seal(&mut self, seed: u32, slot: u32, txn: Txn, marked: bool) -> &[Line] {
        self.lines[0][4] = word(payload(self.lines[0][4]) | u64::from(txn.first) | u64::from(txn.slots) << 6);
        self.lines[0][0] |= u64::from(checksum(seed, slot, &self.lines[0]));
        self.lines[0][7] = if marked { mark(seed, slot) } else { 0 };
        for i in 1..self.slots {
            let line = &mut self.lines[i as usize];
            line[7] = later_word(seed, slot + i, i, line);
        }
        &self.lines[..self.slots as usize]
    }
}

/// Checksum of a first line.
fn checksum(seed: u32, slot: u32, line: &Line) -> u32 {
    let head = word(payload(line[0]) >> 32 << 32);
    crc(seed, &[u64::from(slot), head, line[1], line[2], line[3], line[4], line[5], line[6]])
}

/// Word 7 of the `i`th line of a record, which lies in `slot`.
fn later_word(seed: u32, slot: u32, i: u32, line: &Line) -> u64 {
    let head = LATER << 32 | u64::from(i) << 38;
    let sum =
        crc(seed, &[u64::from(slot), head, line[0], line[1], line[2], line[3], line[4], line[5], line[6]]);
    word(head | u64::from(sum))
}

/// Is this a whole later line of some record?
pub fn is_later_line(seed: u32, slot: u32, line: &Line) -> bool {
    let i = field(line[7], 38, 4) as u32;
    i != 0 && marked(line) && line[7] == later_word(seed, slot, i, line)
}

/// Reads the record that starts in `slot`; `line_at` gives the lines of the page.
pub fn parse(seed: u32, home: InodeId, slot: u32, line_at: impl Fn(u32) -> Line) -> Found {
    let first = line_at(slot);
    match (shape(&first[..7]), first[7]) {
        (Shape::Blank, 0) => return Found::Blank,
        (Shape::Full, _) => {}
        _ => return Found::Torn,
    }
    if !marked(&first[..7]) || field(first[0], 0, 32) != u64::from(checksum(seed, slot, &first)) {
        // A later line that lacks its word 7 looks like this, and no damage makes a word zero.
        return if first[7] == 0 { Found::Torn } else { Found::Damaged };
    }
    let slots = field(first[0], 58, 4) as u32;
    if slots == 0 || slots as usize > RECORD_SLOTS_MAX || slot + slots > super::page::SLOTS + 1 {
        return Found::Damaged;
    }
    let mut lines = [first; RECORD_SLOTS_MAX];
    for i in 1..slots {
        let line = line_at(slot + i);
        if shape(&line) != Shape::Full {
            return Found::Torn;
        }
        if !marked(&line) || line[7] != later_word(seed, slot + i, i, &line) {
            return Found::Damaged;
        }
        lines[i as usize] = line;
    }
    let txn = Txn { first: field(first[4], 0, 6) as u32, slots: field(first[4], 6, 6) as u32 };
    let mark = (first[7] != 0).then(|| first[7] == mark(seed, slot));
    match interpret(home, &lines[..slots as usize]) {
        Some(record) => Found::Whole { record, slots, txn, mark },
        None => Found::Damaged,
    }
}

/// A write record of one line, if that is what stands in `slot`, whole and marked: what cleaning meets most, without the rest of
/// [`parse`].
#[inline]
pub fn write_in(seed: u32, slot: u32, line: &Line) -> Option<WriteLine> {
    // Kind 1, no flags, one slot; a zero word fails the marks, a wrong one the checksum.
    let plain = line[0] >> 32 & 0xfff == 1 && field(line[0], 58, 4) == 1;
    let whole = plain && marked(line) && field(line[0], 0, 32) == u64::from(checksum(seed, slot, line));
    let pages = field(line[2], 40, 20);
    (whole && pages > 0 && line[7] == mark(seed, slot)).then(|| WriteLine {
        page: PageNo(field(line[1], 0, 36)),
        pages,
        end_in_last_page: field(line[1], 36, 13) as u32,
        version: Version(payload(line[3])),
        generation: payload(line[6]),
    })
}

/// The line of a marked write record that is a transaction of its own: what the shortest way of a write builds while its data is on
/// the way to the media.
#[inline]
pub fn write_line(seed: u32, slot: u32, lane: u16, write: &WriteLine, block: BlockNo, mtime: Time) -> Line {
    let mut line = [
        1 << 32 | u64::from(lane) << 44 | 1 << 58,
        write.page.0 | u64::from(write.end_in_last_page) << 36,
        block.0 | write.pages << 40,
        write.version.0,
        u64::from(slot) | 1 << 6,
        time_payload(mtime),
        write.generation,
        0,
    ]
    .map(word);
    line[0] |= u64::from(checksum(seed, slot, &line));
    line[7] = mark(seed, slot);
    line
}

/// A write record of one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WriteLine {
    /// First page.
    pub page: PageNo,
    /// How many.
    pub pages: u64,
    /// Valid bytes of the last page.
    pub end_in_last_page: u32,
    /// Orders it among the records of its pages.
    pub version: Version,
    /// Generation of the size it saw.
    pub generation: u64,
}

fn some_block(word: u64) -> Option<BlockNo> {
    Some(BlockNo(field(word, 0, 40))).filter(|block| block.0 != 0)
}

/// Fields of a record whose checksum is right; `None` if they make no sense all the same.
fn interpret(home: InodeId, lines: &[Line]) -> Option<Record> {
    let w = |i: usize| payload(lines[0][i]);
    let extra = |i: usize| match i {
        0 => Some(w(6)),
        _ => lines.get(1 + (i - 1) / LATER_WORDS).map(|line| payload(line[(i - 1) % LATER_WORDS])),
    };
    let flags = field(lines[0][0], 38, 6);
    let version = Version(w(3));
    let mtime = time_of(w(5));
    if version.0 >= Version::LIMIT {
        return None;
    }
    match field(lines[0][0], 32, 6) {
        1 => {
            let block = BlockNo(field(w(2), 0, 40));
            let (page, pages) = (PageNo(field(w(1), 0, 36)), field(w(2), 40, 20));
            let end_in_last_page = field(w(1), 36, 13) as u32;
            let blocks = match flags {
                0 => Blocks::At(block),
                FLAG_UNWRITTEN => Blocks::Unwritten(block),
                FLAG_LIST => Blocks::List(block),
                _ => return None,
            };
            let sane = pages > 0 && page.0 + pages <= PageNo::END.0 && end_in_last_page <= 4096;
            sane.then_some(Record::Write {
                page,
                pages,
                blocks,
                end_in_last_page,
                version,
                mtime,
                generation: w(6),
            })
        }
        2 => {
            let (page, pages) = (PageNo(field(w(1), 0, 36)), field(w(2), 0, 37));
            let sane = pages > 0 && page.0 + pages <= PageNo::END.0;
            sane.then_some(Record::Punch { page, pages, version, mtime, generation: w(6) })
        }
        3 => Some(Record::State(State {
            size: field(w(1), 0, 49),
            perm: field(w(1), 49, 12) as u16,
            uid: field(w(2), 0, 32) as u32,
            gid: extra(1)? as u32,
            mtime,
            ctime: time_of(extra(2)?),
            atime: time_of(extra(3)?),
            generation: w(6),
        })),
        6 => Some(Record::Xattrs { blob: some_block(w(1)), generation: w(6), mtime }),
        7 => {
            let page = PageNo(field(w(1), 0, 36));
            Some(Record::Remap { page, blob: some_block(w(2)), version, mtime, generation: w(6) })
        }
        kind @ (4 | 5) => {
            let child = InodeId { ino: Ino(field(w(1), 0, 40)), generation: w(2) };
            let foreign = flags == FLAG_FOREIGN;
            let dir = if foreign { InodeId { ino: Ino(extra(0)?), generation: extra(1)? } } else { home };
            let len = field(w(1), 44, 8) as usize;
            let mut bytes = [0; NAME_MAX_BYTES + NAME_BYTES_A_WORD];
            for (i, chunk) in
                bytes.chunks_mut(NAME_BYTES_A_WORD).enumerate().take(len.div_ceil(NAME_BYTES_A_WORD))
            {
                let le = extra(i + if foreign { 2 } else { 0 })?.to_le_bytes();
                let n = chunk.len();
                chunk.copy_from_slice(&le[..n]);
            }
            Some(Record::Name {
                dir,
                removed: kind == 5,
                child,
                kind: FileKind::from_raw(field(w(1), 40, 4) as u8)?,
                name: NameBuf::new(bytes.get(..len)?),
                version,
                mtime,
                generation: w(4) >> TXN_BITS,
            })
        }
        _ => None,
    }
}
