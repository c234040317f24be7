//! Eight-byte pointers that certify themselves: one of the three kinds of words on media that are changed in place (docs/format-nvm.md,
//! golden rule 1).
//!
//! | bits    | field | guards against |
//! |---------|-------|----------------|
//! | 0..40   | block | 0: no target   |
//! | 40..64  | check | a stale or flipped pointer: over target, owner and slot, seeded with the image's uuid |
//!
//! A tail pointer (variant `nova`) spends six of the check's bits on the slot it points to.

use super::fields::{pointer as f, tail};
use super::word::crc;
use crate::ids::{BlockNo, InodeId};

/// The position at which a pointer is stored. It is part of the check, so that a pointer is not valid
/// anywhere else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PointerLocation {
    /// Head of a chain of an inode.
    Head(u32),
    /// Block that holds the further heads of an inode.
    HeadBlock,
    /// Next page of the log page in this block.
    Next(BlockNo),
    /// Tail of an inode's only chain.
    Tail,
    /// Inode chunk of this number.
    InodeChunk(u64),
    /// Next block of the extent list in this block.
    ExtentList(BlockNo),
    /// Next block of the blob of extended attributes, stored in this block.
    Xattrs(BlockNo),
    /// Next block of a remap record's blob, stored in this block.
    Map(BlockNo),
}

impl PointerLocation {
    fn words(self) -> [u64; 2] {
        match self {
            PointerLocation::Head(n) => [1, u64::from(n)],
            PointerLocation::HeadBlock => [2, 0],
            PointerLocation::Next(b) => [3, b.0],
            PointerLocation::Tail => [4, 0],
            PointerLocation::InodeChunk(n) => [5, n],
            PointerLocation::ExtentList(b) => [6, b.0],
            PointerLocation::Xattrs(b) => [7, b.0],
            PointerLocation::Map(b) => [8, b.0],
        }
    }
}

/// The result of decoding a pointer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Target<T> {
    /// No target yet.
    None,
    /// The target.
    At(T),
    /// The check is wrong: damage, or a pointer left by another owner.
    Bad,
}

fn check(seed: u32, owner: InodeId, place: PointerLocation, target: u64, bits: u32) -> u64 {
    let [kind, number] = place.words();
    u64::from(crc(seed, &[owner.ino.0, owner.generation, kind, number, target])) & ((1 << bits) - 1)
}

/// A pointer to `block`.
pub fn encode(seed: u32, owner: InodeId, place: PointerLocation, block: BlockNo) -> u64 {
    f::BLOCK.put(block.0) | f::CHECK.put(check(seed, owner, place, block.0, f::CHECK.bits))
}

/// Reads a pointer back.
pub fn decode(seed: u32, owner: InodeId, place: PointerLocation, raw: u64) -> Target<BlockNo> {
    let block = f::BLOCK.of(raw);
    match raw {
        0 => Target::None,
        _ if f::CHECK.of(raw) == check(seed, owner, place, block, f::CHECK.bits) && block != 0 => {
            Target::At(BlockNo(block))
        }
        _ => Target::Bad,
    }
}

/// A tail: records before slot `slot` (1 to 64) of log page `block`, and in all pages before it, count.
pub fn encode_tail(seed: u32, owner: InodeId, block: BlockNo, slot: u32) -> u64 {
    let target = tail::BLOCK.put(block.0) | tail::SLOT.put(u64::from(slot - 1));
    target | tail::CHECK.put(check(seed, owner, PointerLocation::Tail, target, tail::CHECK.bits))
}

/// Reads a tail back.
pub fn decode_tail(seed: u32, owner: InodeId, raw: u64) -> Target<(BlockNo, u32)> {
    let (block, target) = (tail::BLOCK.of(raw), raw & !tail::CHECK.mask());
    match raw {
        0 => Target::None,
        _ if tail::CHECK.of(raw) == check(seed, owner, PointerLocation::Tail, target, tail::CHECK.bits)
            && block != 0 =>
        {
            Target::At((BlockNo(block), tail::SLOT.of(raw) as u32 + 1))
        }
        _ => Target::Bad,
    }
}
