//! The undo file of an NVM image (`heddle_undo` has its format). It is whole and durable before the repair changes a byte.

use super::FsckError;
use super::image::{self};
use super::media::Media;
use super::repair::{is_half_repaired, store};
use crate::ids::BlockNo;
use heddle_pmem::{BLOCK_BYTES, Region};
use heddle_undo::{Image, Undo, Writer};
use std::path::Path;

fn wrong(file: &Path, why: impl std::fmt::Display) -> FsckError {
    FsckError::Undo { file: file.display().to_string(), why: why.to_string() }
}

/// Writes the old bytes of `blocks` to a new file, durably.
///
/// # Errors
/// [`FsckError::Undo`]: it exists, or cannot be written.
pub fn save(
    path: &Path,
    region: &Region,
    uuid: [u8; 16],
    epochs: [u64; 2],
    mut blocks: impl Iterator<Item = BlockNo>,
) -> Result<(), FsckError> {
    let blocks_all = region.len_bytes() / BLOCK_BYTES as u64;
    let created = Writer::create(path, Image { uuid, epochs, blocks: blocks_all, repair: 0 });
    let written = created.and_then(|mut undo| {
        let kept = blocks.try_for_each(|block| {
            let mut old = [0; BLOCK_BYTES];
            region.read(block.pos(), &mut old);
            undo.keep(block.0, &old)
        });
        let done = kept.and_then(|()| undo.finish(epochs, 0));
        if done.is_err() {
            // Nothing was changed: nobody needs a part of it.
            let _ = std::fs::remove_file(path);
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

/// Restores the old bytes. Returns the number of blocks; 0: all of them are as they were.
///
/// # Errors
/// [`FsckError::Undo`]: the file is damaged, or of another image, or the image was mounted since.
/// [`FsckError::Write`].
pub fn restore(path: &Path, region: &Region) -> Result<u64, FsckError> {
    let undo = Undo::open(path).map_err(|why| wrong(path, why))?;
    if !undo.is_finished {
        // It is written before the first change.
        return Err(wrong(path, "it is cut short or damaged"));
    }
    let have = region.len_bytes() / BLOCK_BYTES as u64;
    if undo.image.blocks != have {
        let of = undo.image.blocks;
        return Err(wrong(path, format!("it belongs to an image of {of} blocks, this one has {have}")));
    }
    let media = Media::new(region);
    let name = region.path().map_or_else(|| "(memory)".into(), |p| p.display().to_string());
    if let Some(now) = image::read(&name, &media)?.image {
        if now.superblock.uuid != undo.image.uuid {
            return Err(wrong(path, "it belongs to another image"));
        }
        // Accepts the image after the repair, and before it: then an earlier undo, or the repair itself, was
        // interrupted.
        if !undo.image.epochs.contains(&now.superblock.epoch.get()) {
            return Err(wrong(
                path,
                "the image was mounted or repaired since: old blocks would overwrite newer ones",
            ));
        }
    }
    let (mut old, mut is, mut differs) = ([0; BLOCK_BYTES], [0; BLOCK_BYTES], is_half_repaired(region));
    // All of it is read before the first change.
    let mut blocks = Vec::new();
    for (n, block) in undo.blocks().iter().map(|block| BlockNo(*block)).enumerate() {
        undo.read(n, &mut old).map_err(|error| wrong(path, error))?;
        region.read(block.pos(), &mut is);
        differs |= is != old;
        let words: Vec<u64> = old.as_chunks().0.iter().map(|bytes| u64::from_le_bytes(*bytes)).collect();
        blocks.push((block, words));
    }
    if differs {
        store(region, blocks.iter().map(|(block, words)| (*block, &words[..])));
    }
    match region.failed() {
        None => Ok(if differs { blocks.len() as u64 } else { 0 }),
        Some(why) => Err(FsckError::Write { image: name, why: why.to_string() }),
    }
}
