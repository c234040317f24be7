//! The extent list: the blocks of one large write whose extents do not fit a transaction.
//!
//! | word | content | guards against |
//! |------|---------|----------------|
//! | 0 | crc:32 · extents:10, payload of a word; the checksum covers words 1 to the last extent | a torn list |
//! | 1 | pointer to the next block of the list (see `pointer`) | |
//! | 2… | block:40 · count:22, payload of a word | |

use super::fields::list as f;
use super::pointer::{self, PointerLocation, Target};
use super::word::{crc, word};
use crate::ids::{BlockNo, Extent, InodeId};

/// Extents in one block.
pub const EXTENTS_A_BLOCK: usize = 510;
/// Most blocks of one extent: a longer one is split.
pub const EXTENT_BLOCKS_MAX: u64 = (1 << 22) - 1;

/// The words of one block of a list of `owner`, stored in `at`.
///
/// At most [`EXTENTS_A_BLOCK`] extents.
pub fn encode(seed: u32, owner: InodeId, at: BlockNo, extents: &[Extent], next: Option<BlockNo>) -> Vec<u64> {
    let mut words = Vec::with_capacity(2 + extents.len());
    words.push(0);
    words.push(next.map_or(0, |n| pointer::encode(seed, owner, PointerLocation::ExtentList(at), n)));
    words.extend(extents.iter().map(|e| word(f::BLOCK.put(e.block.0) | f::BLOCKS.put(e.count))));
    let sum = crc(crc(seed, &[at.0, owner.ino.0, owner.generation]), &words[1..]);
    words[0] = word(f::CRC.put(u64::from(sum)) | f::COUNT.put(extents.len() as u64));
    words
}

/// Reads one block back: its extents and the next block. `None` if the block is torn or damaged.
pub fn decode(
    seed: u32,
    owner: InodeId,
    at: BlockNo,
    word_at: impl Fn(usize) -> u64,
) -> Option<(Vec<Extent>, Option<BlockNo>)> {
    let head = word_at(0);
    let count = f::COUNT.of(head) as usize;
    if count > EXTENTS_A_BLOCK {
        return None;
    }
    let body: Vec<u64> = (1..2 + count).map(word_at).collect();
    let sum = crc(crc(seed, &[at.0, owner.ino.0, owner.generation]), &body);
    if head != word(f::CRC.put(u64::from(sum)) | f::COUNT.put(count as u64)) {
        return None;
    }
    let next = match pointer::decode(seed, owner, PointerLocation::ExtentList(at), body[0]) {
        Target::None => None,
        Target::At(block) => Some(block),
        Target::Bad => return None,
    };
    let extents =
        body[1..].iter().map(|w| Extent { block: BlockNo(f::BLOCK.of(*w)), count: f::BLOCKS.of(*w) });
    Some((extents.collect(), next))
}
