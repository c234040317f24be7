//! The blob: words that do not fit a record, in a chain of blocks that one record names.
//!
//! | word | content | guards against |
//! |------|---------|----------------|
//! | 0 | crc:32 · words:10, payload of a word; the checksum covers kind, place, owner and all words that follow | a damaged block, one of another kind, inode or place |
//! | 1 | pointer to the next block (see `pointer`) | |
//! | 2… | plain words, of 64 bits | |
//!
//! | kind | words |
//! |------|-------|
//! | attributes | for each, one after the other without gaps, padded at the end: name bytes:8 · value bytes:24, name, value |
//! | map | two for each run: page:36 · unwritten:1 (bit 36); block:40 · pages:22 |
//!
//! A blob is durable before its record is written, so it is never torn.

use super::fields::{blob as f, run, xattr};
use super::pointer::{self, PointerLocation, Target};
use super::word::{crc, word};
use crate::ids::{BlockNo, Extent, InodeId, PageNo};
use heddle_vfs::XattrName;
use heddle_vfs::xattr::{XATTR_TOTAL_MAX_BYTES, Xattrs};

/// Words in one block.
pub const WORDS_A_BLOCK: usize = 510;
/// Most pages of one run; as many as a write record can have.
pub const RUN_PAGES_MAX: u64 = super::record::WRITE_PAGES_MAX;
/// Words of one run.
pub const WORDS_A_RUN: usize = 2;
/// Bytes before each attribute's name.
const HEAD_BYTES: usize = 4;
/// Most blocks of the attributes of an inode, since each name has at least one byte.
pub const XATTR_BLOCKS_MAX: usize = (XATTR_TOTAL_MAX_BYTES * (1 + HEAD_BYTES)).div_ceil(WORDS_A_BLOCK * 8);

/// The contents of a blob.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Kind {
    /// Extended attributes.
    Xattrs,
    /// Runs of pages.
    Map,
}

impl Kind {
    fn next_of(self, at: BlockNo) -> PointerLocation {
        match self {
            Kind::Xattrs => PointerLocation::Xattrs(at),
            Kind::Map => PointerLocation::Map(at),
        }
    }
}

fn seed_of(seed: u32, owner: InodeId, kind: Kind, at: BlockNo) -> u32 {
    crc(seed, &[kind as u64, at.0, owner.ino.0, owner.generation])
}

/// One block of a blob of `owner`, stored in `at`: at most [`WORDS_A_BLOCK`] words.
pub fn encode(
    seed: u32,
    owner: InodeId,
    kind: Kind,
    at: BlockNo,
    body: &[u64],
    next: Option<BlockNo>,
) -> Vec<u64> {
    let mut words = Vec::with_capacity(2 + body.len());
    words.push(0);
    words.push(next.map_or(0, |n| pointer::encode(seed, owner, kind.next_of(at), n)));
    words.extend(body);
    let sum = crc(seed_of(seed, owner, kind, at), &words[1..]);
    words[0] = word(f::CRC.put(u64::from(sum)) | f::COUNT.put(body.len() as u64));
    words
}

/// Reads one block back: its words and the next block. `None` if the block is torn or damaged.
pub fn decode(
    seed: u32,
    owner: InodeId,
    kind: Kind,
    at: BlockNo,
    word_at: impl Fn(usize) -> u64,
) -> Option<(Vec<u64>, Option<BlockNo>)> {
    let head = word_at(0);
    let count = f::COUNT.of(head) as usize;
    if count > WORDS_A_BLOCK {
        return None;
    }
    let mut body: Vec<u64> = (1..2 + count).map(word_at).collect();
    let sum = crc(seed_of(seed, owner, kind, at), &body);
    if head != word(f::CRC.put(u64::from(sum)) | f::COUNT.put(count as u64)) {
        return None;
    }
    let next = match pointer::decode(seed, owner, kind.next_of(at), body[0]) {
        Target::None => None,
        Target::At(block) => Some(block),
        Target::Bad => return None,
    };
    body.remove(0);
    Some((body, next))
}

/// The words of a set of attributes.
pub fn words_of_xattrs(xattrs: &Xattrs) -> Vec<u64> {
    let mut bytes = Vec::new();
    for (name, value) in xattrs.iter() {
        let head = xattr::NAME_BYTES.put(name.len() as u64) | xattr::VALUE_BYTES.put(value.len() as u64);
        bytes.extend((head as u32).to_le_bytes());
        bytes.extend(name);
        bytes.extend(value);
    }
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    let word = |chunk: &[u8]| chunk.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte));
    bytes.chunks(8).map(word).collect()
}

/// Reads [`words_of_xattrs`] back; `None` if they are inconsistent.
pub fn xattrs_of_words(words: &[u64]) -> Option<Xattrs> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let (mut xattrs, mut rest) = (Xattrs::default(), &bytes[..]);
    while let Some((head, behind)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let head = u64::from(u32::from_le_bytes(*head));
        if head == 0 {
            break;
        }
        let (name, behind) = behind.split_at_checked(xattr::NAME_BYTES.of(head) as usize)?;
        let (value, behind) = behind.split_at_checked(xattr::VALUE_BYTES.of(head) as usize)?;
        xattrs.put(XattrName::new(name).ok()?, value.to_vec()).ok()?;
        rest = behind;
    }
    rest.iter().all(|byte| *byte == 0).then_some(xattrs)
}

/// Pages that lie in consecutive blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MapRun {
    /// First page.
    pub page: PageNo,
    /// The blocks, at most [`RUN_PAGES_MAX`].
    pub blocks: Extent,
    /// Allocated, never written.
    pub unwritten: bool,
}

/// The words of a map.
pub fn words_of_map(runs: &[MapRun]) -> Vec<u64> {
    let words = |of: &MapRun| {
        [
            run::PAGE.put(of.page.0) | run::UNWRITTEN.put(u64::from(of.unwritten)),
            run::BLOCK.put(of.blocks.block.0) | run::PAGES.put(of.blocks.count),
        ]
    };
    runs.iter().flat_map(words).collect()
}

/// Reads [`words_of_map`] back: runs in ascending order that do not overlap; `None` if they are inconsistent.
pub fn map_of_words(words: &[u64]) -> Option<Vec<MapRun>> {
    let mut runs = Vec::with_capacity(words.len() / WORDS_A_RUN);
    let mut from = 0;
    for pair in words.chunks(WORDS_A_RUN) {
        let [first, second] = *pair else { return None };
        let page = PageNo(run::PAGE.of(first));
        let blocks = Extent { block: BlockNo(run::BLOCK.of(second)), count: run::PAGES.of(second) };
        let end = page.0 + blocks.count;
        if page.0 < from || blocks.count == 0 || end > PageNo::END.0 {
            return None;
        }
        runs.push(MapRun { page, blocks, unwritten: run::UNWRITTEN.of(first) != 0 });
        from = end;
    }
    Some(runs)
}
