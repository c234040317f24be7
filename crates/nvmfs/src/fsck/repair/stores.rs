//! Stores the blocks of a repair, or of the way back, so that a kill or a power cut half-way is seen.
//!
//! Crash order N1  each whole copy of the superblock says "half repaired", and by which repair, durably. If no copy is whole, those that
//!                 are to be stored say it.
//!             N2  all other blocks are durable.
//!             N3  the superblocks get their new bytes, or the old ones back: the mark goes.
//!             After a fence that failed nothing more is stored: the mark stays.

use crate::format::superblock::{Copies, FoundSuperblock, HALF_REPAIRED, SUPERBLOCK_BYTES, Superblock};
use crate::fsck::FsckError;
use crate::fsck::media::BLOCK_WORDS;
use crate::ids::BlockNo;
use heddle_pmem::{BLOCK_BYTES, Region};
use std::path::Path;
use zerocopy::IntoBytes;
use zerocopy::little_endian::{U32, U64};

fn copies(region: &Region) -> Copies {
    Copies::read(region.len_bytes() / BLOCK_BYTES as u64, &|block| {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        region.read(BlockNo(block).pos(), &mut bytes);
        bytes
    })
}

/// The number of a repair that was stopped half-way.
pub fn half_repaired(region: &Region) -> Option<u64> {
    copies(region).half_repaired()
}

/// The blocks of whole superblocks.
pub fn whole_superblocks(region: &Region) -> impl Iterator<Item = BlockNo> {
    copies(region).whole().map(|(block, _)| BlockNo(block))
}

/// Takes the mark away, and leaves everything else as it is. Returns false if there is none. `name` is for messages.
///
/// # Errors
/// [`FsckError::Foreign`], [`FsckError::Write`].
pub fn give_up_undo(name: &str, region: &Region) -> Result<bool, FsckError> {
    super::refuse_foreign(name, region)?;
    let mut has_mark = false;
    for (block, sb) in copies(region).whole().filter(|(_, sb)| sb.clean.get() == HALF_REPAIRED) {
        put_superblock(region, block, Superblock { clean: U32::new(0), ..sb }, "")?;
        has_mark = true;
    }
    Ok(has_mark)
}

fn put_superblock(region: &Region, block: u64, superblock: Superblock, way: &str) -> Result<(), FsckError> {
    region.nt_write(BlockNo(block).pos(), superblock.sealed().as_bytes());
    // PERSIST: one copy is whole while the other one is written.
    fence(region, way)
}

/// # Errors
/// [`FsckError::Write`] with this way back: nothing is stored any more.
fn fence(region: &Region, way: &str) -> Result<(), FsckError> {
    // PERSIST: the caller states the reason.
    region.fence();
    let Some(why) = region.failed() else { return Ok(()) };
    let image = region.path().map_or_else(|| "(memory)".into(), |path| path.display().to_string());
    Err(FsckError::Write { image, why: why.to_string(), way: way.to_owned() })
}

/// Stores blocks with their new words, durably, for this repair or its way back. `undo` is the undo file, for messages.
///
/// # Errors
/// [`FsckError::Write`].
pub fn store<'w>(
    region: &Region,
    repair: u64,
    blocks: impl Iterator<Item = (BlockNo, &'w [u64])> + Clone,
    undo: &Path,
) -> Result<(), FsckError> {
    let image = heddle_undo::shell_word(region.path().unwrap_or(Path::new("IMAGE")));
    let way = &format!(". To go back: heddle fsck --undo {} {image}", heddle_undo::shell_word(undo));
    let copies = copies(region);
    let by_it = |(block, sb)| (block, Superblock { repair: U64::new(repair), ..sb });
    let mut whole: Vec<(u64, Superblock)> = copies.whole().map(by_it).collect();
    if whole.is_empty() {
        let in_it = |(block, words)| Some((block, superblock_in(block, words)?));
        whole.extend(
            blocks.clone().filter_map(|(block, words): (BlockNo, &[u64])| in_it((block.0, words))).map(by_it),
        );
    }
    for (block, sb) in &whole {
        // PERSIST: N1.
        put_superblock(region, *block, Superblock { clean: U32::new(HALF_REPAIRED), ..*sb }, way)?;
    }
    // Where no copy is whole, the second one may lie elsewhere than the copies say.
    let is_superblock = |(block, words): (BlockNo, &[u64])| {
        [0, copies.second_block].contains(&block.0) || superblock_in(block.0, words).is_some()
    };
    blocks
        .clone()
        .filter(|store| !is_superblock(*store))
        .for_each(|(block, words)| put(region, block, words));
    // PERSIST: N2.
    fence(region, way)?;
    for (block, words) in blocks.clone().filter(|store| is_superblock(*store)) {
        put(region, block, words);
        // PERSIST: N3. One copy is whole while the other one is written.
        fence(region, way)?;
    }
    for (at, sb) in whole {
        if !blocks.clone().any(|(block, _)| block.0 == at) {
            let clean = if sb.clean.get() == HALF_REPAIRED { U32::new(0) } else { sb.clean };
            put_superblock(region, at, Superblock { clean, ..sb }, way)?;
        }
    }
    Ok(())
}

/// The superblock that a block's words are, if it belongs there.
fn superblock_in(block: u64, words: &[u64]) -> Option<Superblock> {
    let bytes: &[u8; SUPERBLOCK_BYTES] = words.as_bytes().first_chunk()?;
    match Superblock::decode(bytes) {
        FoundSuperblock::Whole(sb) if block == 0 || sb.blocks_total.get() == block + 1 => Some(sb),
        _ => None,
    }
}

/// Stores a block, without a fence.
fn put(region: &Region, block: BlockNo, words: &[u64]) {
    debug_assert_eq!(words.len(), BLOCK_WORDS);
    for (i, line) in words.chunks_exact(8).enumerate() {
        let line: [u64; 8] = std::array::from_fn(|w| line[w]);
        region.nt_line(block.pos().plus(i as u64 * 64), &line);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
