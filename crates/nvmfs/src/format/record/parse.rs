//! Decoding records.

use super::super::page::SLOTS;
use super::super::word::{Line, Shape, WRITTEN, all_written, shape, time_of};
use super::*;
use crate::planted::{Breach, breaks};

/// The contents of a slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum FoundRecord {
    /// Never written.
    Blank,
    /// Part of it never arrived.
    Torn,
    /// Written, then damaged.
    Damaged,
    /// A whole record.
    Whole {
        /// The record.
        record: Record,
        /// Number of slots that it takes.
        slots: u32,
        /// Its transaction.
        txn: Txn,
        /// The commit mark: `None` if it is missing, else true if it is correct.
        mark: Option<bool>,
    },
}

/// Returns true if this is a whole later line of some record.
pub fn is_later_line(seed: u32, slot: u32, line: &Line) -> bool {
    let i = later::LINE.get(line) as u32;
    i != 0 && all_written(line) && line[7] == later_word(seed, slot, i, line)
}

/// Decodes the record that starts in `slot`; `line_at` returns the lines of the page.
pub fn parse(seed: u32, home: InodeId, slot: u32, line_at: impl Fn(u32) -> Line) -> FoundRecord {
    let first = line_at(slot);
    match (shape(&first[..7]), first[7]) {
        (Shape::Blank, 0) => return FoundRecord::Blank,
        (Shape::Full, _) => {}
        _ => return FoundRecord::Torn,
    }
    if !all_written(&first[..7])
        || f::CRC.get(&first) != u64::from(checksum(seed, slot, &first)) && !breaks(Breach::RecordsBelieved)
    {
        // This is a later line without its word 7. Damage never makes a word zero.
        return if first[7] == 0 { FoundRecord::Torn } else { FoundRecord::Damaged };
    }
    let slots = f::SLOTS.get(&first) as u32;
    if slots == 0 || slots as usize > RECORD_SLOTS_MAX || slot + slots > SLOTS + 1 {
        return FoundRecord::Damaged;
    }
    let mut lines = [first; RECORD_SLOTS_MAX];
    for i in 1..slots {
        let line = line_at(slot + i);
        if shape(&line) != Shape::Full {
            return FoundRecord::Torn;
        }
        if !all_written(&line) || line[7] != later_word(seed, slot + i, i, &line) {
            return FoundRecord::Damaged;
        }
        lines[i as usize] = line;
    }
    let txn = Txn { first: f::TXN_FIRST.get(&first) as u32, slots: f::TXN_SLOTS.get(&first) as u32 };
    let mark = (first[7] != 0).then(|| first[7] == commit_mark(seed, slot));
    match interpret(home, lines[..slots as usize].as_flattened()) {
        Some(record) => FoundRecord::Whole { record, slots, txn, mark },
        None => FoundRecord::Damaged,
    }
}

/// Bits of the first seven words.
type Bits = [u64; 7];

/// The bits of these fields.
const fn bits_of(lists: [&[Field]; 3]) -> Bits {
    let (mut bits, mut list) = ([0; 7], 0);
    while list < lists.len() {
        let mut i = 0;
        while i < lists[list].len() {
            let field = lists[list][i];
            if field.word < bits.len() {
                bits[field.word] |= field.mask();
            }
            i += 1;
        }
        list += 1;
    }
    bits
}

const WRITE_BITS: Bits = bits_of([f::ALL, write::ALL, &[]]);
const PUNCH_BITS: Bits = bits_of([f::ALL, punch::ALL, &[]]);
const ATTRIBUTES_BITS: Bits = bits_of([f::ALL, attributes::ALL, &[]]);
const XATTRS_BITS: Bits = bits_of([f::ALL, xattrs::ALL, &[]]);
const REMAP_BITS: Bits = bits_of([f::ALL, remap::ALL, &[]]);
const NAME_BITS: Bits = bits_of([f::ALL, entry::ALL, &[]]);
const FOREIGN_BITS: Bits = bits_of([f::ALL, entry::ALL, foreign::ALL]);

/// Bits that a record of this kind may have, and its flags; `None`: there is no such kind.
fn known(kind: u64, flags: u64) -> Option<(&'static Bits, u64)> {
    Some(match kind {
        WRITE => (&WRITE_BITS, FLAG_UNWRITTEN | FLAG_LIST),
        PUNCH => (&PUNCH_BITS, 0),
        ATTRIBUTES => (&ATTRIBUTES_BITS, 0),
        XATTRS => (&XATTRS_BITS, 0),
        REMAP => (&REMAP_BITS, 0),
        ENTRY | REMOVAL if flags == FLAG_FOREIGN => (&FOREIGN_BITS, FLAG_FOREIGN),
        ENTRY | REMOVAL => (&NAME_BITS, 0),
        _ => return None,
    })
}

/// No inode is changed so often. After a larger number its later changes would run out of change counts (50
/// bits).
const CHANGE_COUNT_MAX: u64 = 1 << 49;

fn some_block(block: u64) -> Option<BlockNo> {
    Some(BlockNo(block)).filter(|block| block.0 != 0)
}

/// The fields of a record with correct checksums, its lines one after the other; `None` if they are
/// inconsistent.
fn interpret(home: InodeId, words: &[u64]) -> Option<Record> {
    let get = |field: Field| words.get(field.word).map(|word| field.of(*word));
    let time = |field: Field| get(field).map(time_of);
    let flags = get(f::FLAGS)?;
    let mtime = time(f::MTIME)?;
    let version = |field: Field| get(field).map(Version).filter(|v| (1..Version::LIMIT).contains(&v.0));
    let change_count = |field: Field| get(field).filter(|g| *g < CHANGE_COUNT_MAX);
    let kind = get(f::KIND)?;
    let (bits, flags_known) = known(kind, flags)?;
    if words.iter().zip(bits).any(|(word, bits)| word & !(bits | WRITTEN) != 0) || flags & !flags_known != 0 {
        return None;
    }
    match kind {
        WRITE => {
            let (page, pages) = (PageNo(get(write::PAGE)?), get(write::PAGES)?);
            let block = BlockNo(get(write::BLOCK)?);
            let end_in_last_page = get(write::END)? as u32;
            let blocks = match flags {
                0 => Blocks::At(block),
                FLAG_UNWRITTEN => Blocks::Unwritten(block),
                FLAG_LIST => Blocks::List(block),
                _ => return None,
            };
            let sane = pages > 0 && page.0 + pages <= PageNo::END.0 && end_in_last_page <= 4096;
            let (version, change_count) = (version(write::VERSION)?, change_count(write::CHANGE_COUNT)?);
            sane.then_some(Record::Write {
                page,
                pages,
                blocks,
                end_in_last_page,
                version,
                mtime,
                change_count,
            })
        }
        PUNCH => {
            let (page, pages) = (PageNo(get(punch::PAGE)?), get(punch::PAGES)?);
            let sane = pages > 0 && page.0 + pages <= PageNo::END.0;
            let (version, change_count) = (version(punch::VERSION)?, change_count(punch::CHANGE_COUNT)?);
            sane.then_some(Record::Punch { page, pages, version, mtime, change_count })
        }
        ATTRIBUTES => Some(Record::Attributes(Attributes {
            size: get(attributes::SIZE)?,
            perm: get(attributes::PERM)? as u16,
            uid: get(attributes::UID)? as u32,
            gid: get(attributes::GID)? as u32,
            mtime,
            ctime: time(attributes::CTIME)?,
            atime: time(attributes::ATIME)?,
            change_count: change_count(attributes::CHANGE_COUNT)?,
        })),
        XATTRS => {
            let blob = some_block(get(xattrs::BLOB)?);
            Some(Record::Xattrs { blob, change_count: change_count(xattrs::CHANGE_COUNT)?, mtime })
        }
        REMAP => Some(Record::Remap {
            page: PageNo(get(remap::PAGE)?),
            blob: some_block(get(remap::BLOB)?),
            version: version(remap::VERSION)?,
            mtime,
            change_count: change_count(remap::CHANGE_COUNT)?,
        }),
        ENTRY | REMOVAL => {
            let child = InodeId { ino: Ino(get(entry::CHILD)?), generation: get(entry::CHILD_GENERATION)? };
            let other = flags == FLAG_FOREIGN;
            let dir = match other {
                true => InodeId { ino: Ino(get(foreign::DIR)?), generation: get(foreign::DIR_GENERATION)? },
                false => home,
            };
            let len = get(entry::BYTES)? as usize;
            let mut bytes = [0; NAME_MAX_BYTES + NAME_BYTES_A_WORD];
            for (i, chunk) in
                bytes.chunks_mut(NAME_BYTES_A_WORD).enumerate().take(len.div_ceil(NAME_BYTES_A_WORD))
            {
                let le = get(name_field(other, i))?.to_le_bytes();
                let n = chunk.len();
                chunk.copy_from_slice(&le[..n]);
            }
            Some(Record::Name {
                dir,
                removed: kind == REMOVAL,
                child,
                kind: FileKind::from_raw(get(entry::KIND)? as u8)?,
                name: NameBuf::new(heddle_vfs::Name::new(bytes.get(..len)?).ok()?.bytes()),
                version: version(entry::VERSION)?,
                mtime,
                change_count: change_count(entry::CHANGE_COUNT)?,
            })
        }
        _ => None,
    }
}
