//! Reads the inode directory, the chunks, and the slots in them.

use super::catalogue::Code;
use super::claims::Use;
use super::mend;
use super::pass::{Location, Pass};
use crate::format::inode::{CHUNK_INODES, FoundInode, INODE_BYTES, InodeBase};
use crate::format::layout::{INODE_DIRECTORY, chunk_of, inode_pos};
use crate::format::pointer::{self, PointerLocation, Target};
use crate::format::word::{Line, WRITTEN};
use crate::ids::{BlockNo, InodeId};
use heddle_pmem::{BLOCK_BYTES, LINE_BYTES, Pos};
use heddle_vfs::{FileKind, Ino, Time};
use std::collections::{BTreeMap, BTreeSet};

/// All slots.
#[derive(Default)]
pub struct Slots {
    /// Chunks by number.
    pub chunks: BTreeMap<u64, BlockNo>,
    /// Inodes.
    pub bases: BTreeMap<Ino, InodeBase>,
    /// Slots that hold neither an inode nor zeros.
    pub broken: BTreeSet<Ino>,
    /// Chunks with contents in their slots, but no whole inode.
    pub unproven: BTreeSet<u64>,
    /// Blocks that hold slots of a chunk, by its number, ascending; searched once.
    shown: Option<BTreeMap<u64, Vec<BlockNo>>>,
}

impl Slots {
    /// Position of an inode's slot.
    pub fn pos(&self, ino: Ino) -> Option<Pos> {
        let (chunk, index) = chunk_of(ino);
        self.chunks.get(&chunk).map(|block| inode_pos(*block, index))
    }

    /// The inode that a name leads to, if its slot holds it.
    pub fn get(&self, id: InodeId) -> Option<&InodeBase> {
        self.bases.get(&id.ino).filter(|b| b.id == id)
    }

    /// A slot that is free and blank.
    pub fn blank(&self, pass: &Pass<'_>) -> Option<Ino> {
        let of_chunk = |n: &u64| (0..CHUNK_INODES).zip(std::iter::repeat(n * CHUNK_INODES));
        let inodes = self.chunks.keys().flat_map(of_chunk).map(|(index, first)| Ino(first + index));
        inodes.skip_while(|ino| *ino <= Ino::ROOT).find(|ino| {
            self.pos(*ino)
                .is_some_and(|at| (0..INODE_BYTES / 8).all(|i| pass.media.word(at.plus(i * 8)) == 0))
        })
    }
}

/// The root inode as `mkfs` makes it.
const ROOT: InodeId = InodeId { ino: Ino::ROOT, generation: 1 };

/// Reads all chunks.
pub fn read(pass: &mut Pass<'_>) {
    for n in 0..pass.image.layout.chunks_max {
        if let Some(block) = chunk(pass, n) {
            pass.slots.chunks.insert(n, block);
            pass.claim(block, 1, Use::Chunk(n));
            for index in 0..CHUNK_INODES {
                slot(pass, Ino(n * CHUNK_INODES + index), inode_pos(block, index));
            }
        }
    }
    overlapping(pass);
    directory_rest(pass);
    let root = pass.slots.bases.get(&Ino::ROOT);
    if root.is_none_or(|b| b.kind != FileKind::Directory) {
        pass.issue(Code::ROOT_LOST, Location::ino(Ino::ROOT), "no directory stands there");
        if let Some(at) = pass.slots.pos(Ino::ROOT) {
            make_anew(pass, at, ROOT, FileKind::Directory, 0o755, Time(0));
        }
    }
}

/// Handles chunks that share a block: pointers with correct checks, at least one of them forged. The chunk
/// that is proven by its slots keeps the block, else the first one. No other chunk there is read or repaired
/// before the forged pointer is gone.
fn overlapping(pass: &mut Pass<'_>) {
    let mut all: Vec<(BlockNo, u64)> = pass.slots.chunks.iter().map(|(n, block)| (*block, *n)).collect();
    all.sort_unstable();
    for pair in all.windows(2) {
        let [(low, a), (high, b)] = pair else { continue };
        if low < high {
            continue;
        }
        let proven = |n: &u64| looks_like(pass, *n, *high, false);
        let loser = if proven(b) && !proven(a) { *a } else { *b };
        not_there(pass, loser);
    }
}

/// Reports a pointer whose target is not the chunk.
pub fn not_there(pass: &mut Pass<'_>, n: u64) {
    let at = pass.image.layout.chunk_pointer(n);
    let location = Location::block(BlockNo(at.0 / BLOCK_BYTES as u64));
    pass.issue(Code::CHUNK_LOST, location, format!("the pointer to chunk {n} leads to another structure"));
    pass.fixes.lies.push((at, vec![0]));
}

/// Stores a slot for an inode that is known only by its name.
pub fn make_anew(pass: &mut Pass<'_>, at: Pos, id: InodeId, kind: FileKind, perm: u16, crtime: Time) {
    let base = InodeBase { id, kind, perm, uid: 0, gid: 0, rdev: 0, crtime };
    let line = base.encode(pass.image.seed);
    pass.anew(at, line.to_vec());
}

fn directory_rest(pass: &mut Pass<'_>) {
    let layout = pass.image.layout;
    let (from, to) = (layout.chunk_pointer(layout.chunks_max), layout.data.pos());
    let words = (to.0 - from.0) / 8;
    if (0..words).any(|i| pass.media.word(from.plus(i * 8)) != 0) {
        let block = BlockNo(from.0 / BLOCK_BYTES as u64);
        pass.issue(Code::DIRECTORY_REST, Location::block(block), "behind the last pointer");
        pass.exact(from, vec![0; words as usize]);
    }
}

/// The chunk that pointer `n` leads to, after mending the pointer if needed.
fn chunk(pass: &mut Pass<'_>, n: u64) -> Option<BlockNo> {
    let (seed, layout) = (pass.image.seed, pass.image.layout);
    let at = layout.chunk_pointer(n);
    let raw = pass.media.word(at);
    let decode = |raw| pointer::decode(seed, INODE_DIRECTORY, PointerLocation::InodeChunk(n), raw);
    let location = Location::block(BlockNo(at.0 / BLOCK_BYTES as u64));
    match decode(raw) {
        Target::None => return None,
        // The root's chunk is never blank.
        Target::At(block) if layout.holds(block, 1) && looks_like(pass, n, block, n != 0) => {
            return Some(block);
        }
        Target::At(block) if layout.holds(block, 1) => {
            // All its slots may be damaged. So the pointer is believed, unless a block elsewhere is proven to
            // be the chunk, or (`claims`) this block is proven to have another use.
            let Some(found) = search(pass, n) else {
                pass.slots.unproven.insert(n);
                return Some(block);
            };
            let what = format!("chunk {n} is at block {}, its pointer leads to block {}", found.0, block.0);
            pass.issue(Code::CHUNK_OUTSIDE, location, what);
            pass.exact(
                at,
                vec![pointer::encode(seed, INODE_DIRECTORY, PointerLocation::InodeChunk(n), found)],
            );
            return Some(found);
        }
        Target::At(block) => {
            let what = format!("the pointer to chunk {n} leads to block {}", block.0);
            pass.issue(Code::CHUNK_OUTSIDE, location, what);
        }
        Target::Bad => pass.issue(Code::CHUNK_POINTER, location, format!("the pointer to chunk {n}")),
    }
    let fits = |block| layout.holds(block, 1) && looks_like(pass, n, block, true);
    let mended = match mend::pointer(raw, decode, fits) {
        Some(0) | None => search(pass, n)
            .map(|block| pointer::encode(seed, INODE_DIRECTORY, PointerLocation::InodeChunk(n), block))
            .or(mend::was_blank(&[raw]).then_some(0)),
        found => found,
    };
    match mended {
        Some(raw) => {
            pass.exact(at, vec![raw]);
            if let Target::At(block) = decode(raw) { Some(block) } else { None }
        }
        None => {
            pass.issue(Code::CHUNK_LOST, location, format!("no block looks like chunk {n}"));
            pass.names_lost = true;
            pass.anew(at, vec![0]);
            None
        }
    }
}

/// Returns true if this block holds slots of chunk `n`. `blank`: a chunk without inodes is accepted too.
fn looks_like(pass: &Pass<'_>, n: u64, block: BlockNo, blank: bool) -> bool {
    let mut empty = blank;
    for index in 0..CHUNK_INODES {
        let line = pass.media.line(inode_pos(block, index));
        match InodeBase::decode(pass.image.seed, Ino(n * CHUNK_INODES + index), &line) {
            FoundInode::Whole(_) => return true,
            FoundInode::Blank => {}
            _ => empty = false,
        }
    }
    empty
}

/// Slots contain their numbers, so a chunk can be found without its pointer.
fn search(pass: &mut Pass<'_>, n: u64) -> Option<BlockNo> {
    if !pass.may_mend() {
        return None;
    }
    if pass.slots.shown.is_none() {
        pass.slots.shown = Some(chunks_shown(pass));
    }
    let taken = |block: &BlockNo| pass.slots.chunks.values().any(|other| other == block);
    pass.slots.shown.as_ref()?.get(&n)?.iter().copied().find(|block| !taken(block))
}

/// All blocks of the image that hold an inode in its slot. Each block is read once: a page of the inode
/// directory has pointers to 512 chunks.
fn chunks_shown(pass: &Pass<'_>) -> BTreeMap<u64, Vec<BlockNo>> {
    let mut shown: BTreeMap<u64, Vec<BlockNo>> = BTreeMap::new();
    let layout = pass.image.layout;
    for block in (layout.data.0..layout.last().0).map(BlockNo) {
        let chunk = (0..CHUNK_INODES).find_map(|index| {
            let line = pass.media.line(inode_pos(block, index));
            let ino = InodeBase::number_said(&line);
            let whole = matches!(InodeBase::decode(pass.image.seed, ino, &line), FoundInode::Whole(_));
            Some(chunk_of(ino)).filter(|(_, at)| whole && *at == index).map(|(chunk, _)| chunk)
        });
        if let Some(chunk) = chunk {
            shown.entry(chunk).or_default().push(block);
        }
    }
    shown
}

fn slot(pass: &mut Pass<'_>, ino: Ino, at: Pos) {
    let line = pass.media.line(at);
    let found = InodeBase::decode(pass.image.seed, ino, &line);
    let location = Location::of(ino, BlockNo(at.0 / BLOCK_BYTES as u64));
    if ino.0 == 0 {
        return nobody(pass, location, at);
    }
    match found {
        FoundInode::Whole(base) => {
            pass.slots.bases.insert(ino, base);
        }
        FoundInode::Blank => blank(pass, location, at),
        FoundInode::Torn | FoundInode::Damaged if mend::was_blank(&line) => {
            pass.issue(Code::SLOT_BIT, location, "one bit in a free slot");
            pass.exact(at, vec![0; 8]);
        }
        FoundInode::Torn if honestly_torn(&line) => {
            pass.slots.broken.insert(ino);
            let code = if pass.clean() { Code::SLOT_TORN_CLEAN } else { Code::SLOT_TORN };
            pass.issue(code, location, "some of its words are missing");
            if pass.clean() {
                pass.fixes.sweep.push((at, vec![0; INODE_BYTES as usize / 8]));
            }
        }
        _ => damaged(pass, ino, location, at, &line),
    }
}

fn damaged(pass: &mut Pass<'_>, ino: Ino, location: Location, at: Pos, line: &Line) {
    let mended = if pass.may_mend() { mend::slot(pass.image.seed, ino, line) } else { None };
    match mended {
        Some((line, base)) => {
            pass.issue(Code::SLOT_BIT, location, "one bit of the slot");
            pass.exact(at, line.to_vec());
            pass.slots.bases.insert(ino, base);
        }
        None => {
            pass.slots.broken.insert(ino);
            pass.issue(Code::SLOT_GARBAGE, location, "its checksum is wrong");
            pass.fixes.sweep.push((at, vec![0; INODE_BYTES as usize / 8]));
        }
    }
}

/// A power cut loses words; it does not change other words.
fn honestly_torn(line: &Line) -> bool {
    line.iter().all(|w| *w == 0 || *w & WRITTEN == WRITTEN)
}

fn nobody(pass: &mut Pass<'_>, location: Location, at: Pos) {
    if (0..INODE_BYTES / 8).any(|i| pass.media.word(at.plus(i * 8)) != 0) {
        pass.issue(Code::SLOT_OF_NOBODY, location, "something stands in its slot");
        pass.exact(at, vec![0; INODE_BYTES as usize / 8]);
    }
}

/// A slot whose first line is blank has no pointers, except after a power cut.
fn blank(pass: &mut Pass<'_>, location: Location, at: Pos) {
    let at = at.plus(LINE_BYTES as u64);
    let pointers = pass.media.line(at);
    if pointers == [0; 8] {
        return;
    }
    if let Some(ino) = location.ino {
        pass.slots.broken.insert(ino);
    }
    if mend::was_blank(&pointers) {
        pass.issue(Code::SLOT_BIT, location, "one bit in a free slot");
        pass.exact(at, vec![0; 8]);
    } else if pass.clean() {
        pass.issue(Code::SLOT_TORN_CLEAN, location, "pointers in a slot whose first line is missing");
        pass.fixes.sweep.push((at, vec![0; 8]));
    } else {
        pass.issue(Code::SLOT_TORN, location, "pointers in a slot whose first line is missing");
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
