//! The undo file of an NVM image (`heddle_undo` has its format). It is whole and durable before the repair changes a byte.

use super::FsckError;
use super::image::{self};
use super::media::Media;
use super::repair::{half_repaired, refuse_foreign, store};
use crate::format::superblock::{SUPERBLOCK_BYTES, Superblock};
use crate::ids::BlockNo;
use heddle_pmem::{BLOCK_BYTES, Region};
use heddle_undo::{Image, Undo, Writer};
use std::path::Path;
use zerocopy::{FromBytes, IntoBytes};

fn wrong(file: &Path, why: impl std::fmt::Display) -> FsckError {
    FsckError::Undo { file: file.display().to_string(), why: why.to_string() }
}

/// How to go back from a repair that was stopped half-way.
pub fn way_back(region: &Region, repair: u64) -> String {
    region.path().map_or_else(String::new, |image| heddle_undo::way_back(image, repair).0)
}

/// Writes the old bytes of `blocks` to a new file, durably.
///
/// # Errors
/// [`FsckError::Undo`]: it exists, or cannot be written.
pub fn save(
    path: &Path,
    region: &Region,
    of: Image,
    mut blocks: impl Iterator<Item = BlockNo>,
) -> Result<(), FsckError> {
    let created = Writer::create(path, of);
    let written = created.and_then(|mut undo| {
        let kept = blocks.try_for_each(|block| {
            let mut old = [0; BLOCK_BYTES];
            region.read(block.pos(), &mut old);
            undo.keep(block.0, &old)
        });
        let done = kept.and_then(|()| undo.finish(of.epochs, 0));
        if done.is_err() {
            // Nothing was changed: nobody needs a part of it.
            let _ = undo.remove();
        }
        done
    });
    written.map_err(|error| {
        let way = if error.kind() == std::io::ErrorKind::AlreadyExists {
            "name another one with --undo"
        } else {
            "choose a place for it with --undo"
        };
        wrong(path, format!("{error}; nothing was repaired: {way}"))
    })
}

/// Returns true if nobody needs this undo file: a repair of the image was killed before the file was whole, and had changed nothing.
pub fn is_needless(path: &Path, region: &Region) -> bool {
    let uuid = image::superblocks(&Media::new(region)).newest().map(|superblock| superblock.uuid);
    let Ok(undo) = Undo::open(path) else { return false };
    !undo.is_finished && Some(undo.image.uuid) == uuid && undo.is_left()
}

/// Restores the old bytes. Returns the number of blocks; 0: all of them are as they were.
///
/// # Errors
/// [`FsckError::Undo`]: the file is damaged, or of another image, or the image was mounted since.
/// [`FsckError::Foreign`], [`FsckError::Write`].
pub fn restore(path: &Path, region: &Region) -> Result<u64, FsckError> {
    let useless = |why: String| match region.path() {
        Some(image) => wrong(path, heddle_undo::useless(&why, image, half_repaired(region))),
        None => wrong(path, why),
    };
    let undo = Undo::open(path).map_err(useless)?;
    if !undo.is_finished {
        // It is written before the first change.
        return Err(wrong(
            path,
            "its repair was stopped before it changed anything: there is nothing to restore",
        ));
    }
    let have = region.len_bytes() / BLOCK_BYTES as u64;
    if undo.image.blocks != have {
        let of = undo.image.blocks;
        return Err(wrong(path, format!("it belongs to an image of {of} blocks, this one has {have}")));
    }
    let media = Media::new(region);
    let name = region.path().map_or_else(|| "(memory)".into(), |p| p.display().to_string());
    refuse_foreign(&name, region)?;
    let now = image::read(&name, &media)?.image;
    if now.is_some_and(|now| now.superblock.uuid != undo.image.uuid) {
        return Err(wrong(path, "it belongs to another image"));
    }
    // All of it is read before the first change.
    let old = OldBlocks::read(&undo, region).map_err(|error| wrong(path, error))?;
    let half = half_repaired(region);
    if half.is_none() && old.blocks.iter().all(|block| block.is_there) {
        return Ok(0);
    }
    if now.is_none() && !old.is_cut_mark(&media) && !is_right_behind(&undo.image, region) {
        return Err(wrong(
            path,
            "both superblocks of the image are damaged. What is left of them does not say that this repair was the last to change it. Old \
             blocks could overwrite newer ones. See: heddle fsck -n",
        ));
    }
    if let Some(now) = now {
        // Between repair and way back, or in the midst of either. Or a cut left part of a mark on one superblock, and nothing else.
        let is_its = half.unwrap_or(now.superblock.repair.get()) == undo.image.repair;
        let is_since = !undo.image.epochs.contains(&now.superblock.epoch.get());
        match (is_its || old.is_cut_mark(&media), half) {
            (true, _) if !is_since => {}
            (false, Some(_)) => {
                return Err(wrong(
                    path,
                    "another repair of the image was stopped half-way: its undo file is to be used first",
                ));
            }
            _ => {
                return Err(wrong(
                    path,
                    "the image was mounted or repaired since: old blocks would overwrite newer ones",
                ));
            }
        }
    }
    let blocks = old.blocks.iter().map(|block| (block.number, &block.words[..]));
    store(region, undo.image.repair, blocks, path)?;
    Ok(old.blocks.len() as u64)
}

/// Returns true if the rest of a damaged superblock has the number of the repair, and no mount since. The repair gave both copies its
/// number. No other image has it.
fn is_right_behind(of: &Image, region: &Region) -> bool {
    let says_so = |block: u64| {
        let mut bytes = [0; SUPERBLOCK_BYTES];
        region.read(BlockNo(block).pos(), &mut bytes);
        Superblock::read_from_bytes(&bytes)
            .is_ok_and(|sb| sb.repair.get() == of.repair && of.epochs.contains(&sb.epoch.get()))
    };
    [0, of.blocks.saturating_sub(1)].into_iter().any(says_so)
}

/// Returns true if some bits differ at most. Identities of two images differ in some sixty.
fn is_nearly(one: [u8; 16], other: [u8; 16]) -> bool {
    (u128::from_le_bytes(one) ^ u128::from_le_bytes(other)).count_ones() <= 8
}

/// The identity that a superblock of these words has.
fn uuid_in(words: &[u64]) -> Option<[u8; 16]> {
    let bytes: &[u8; SUPERBLOCK_BYTES] = words.as_bytes().first_chunk()?;
    Superblock::read_from_bytes(bytes).ok().map(|sb| sb.uuid)
}

/// A block of an undo file.
struct OldBlock {
    number: BlockNo,
    words: Vec<u64>,
    /// The image has these bytes.
    is_there: bool,
}

struct OldBlocks {
    uuid: [u8; 16],
    blocks: Vec<OldBlock>,
}

impl OldBlocks {
    fn read(undo: &Undo, region: &Region) -> std::io::Result<OldBlocks> {
        let (mut old, mut is) = ([0; BLOCK_BYTES], [0; BLOCK_BYTES]);
        let mut block = |(n, number): (usize, &u64)| {
            undo.read(n, &mut old)?;
            region.read(BlockNo(*number).pos(), &mut is);
            let words = old.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
            Ok(OldBlock { number: BlockNo(*number), words, is_there: is == old })
        };
        let blocks: std::io::Result<Vec<OldBlock>> =
            undo.blocks().iter().enumerate().map(&mut block).collect();
        Ok(OldBlocks { uuid: undo.image.uuid, blocks: blocks? })
    }

    /// Returns true if one superblock is as it was, and at most the other one is not. It must be whole if any is. A mount writes both
    /// before all else.
    fn is_cut_mark(&self, media: &Media<'_>) -> bool {
        let copies = image::superblocks(media);
        let is_superblock = |block: &OldBlock| [0, copies.second_block].contains(&block.number.0);
        let (superblocks, others): (Vec<_>, Vec<_>) =
            self.blocks.iter().partition(|block| is_superblock(block));
        let whole: Vec<u64> = copies.whole().map(|(block, _)| block).collect();
        // Without a whole copy nothing else tells whose image it is.
        let counts = |block: &&&OldBlock| match whole.is_empty() {
            true => uuid_in(&block.words).is_some_and(|uuid| is_nearly(uuid, self.uuid)),
            false => whole.contains(&block.number.0),
        };
        others.iter().all(|block| block.is_there)
            && superblocks.iter().filter(counts).any(|block| block.is_there)
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
