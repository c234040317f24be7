//! The undo file: the old content of the blocks that a repair has changed.
//!
//! | bytes | what |
//! |-------|------|
//! | 16 | `HEDDLE UNDO 2\n`, two NULs |
//! | 16 | uuid of the image |
//! | 8, 8, 8, 8 | its mount epoch before the repair and after it, its blocks, blocks in this file (little-endian, as all numbers here) |
//! | 4112 each | number of the block, its old bytes, crc32c of both, four NULs |
//! | 4 | crc32c of all before it |

use super::FsckError;
use super::image::{self};
use super::media::{BLOCK_WORDS, Media};
use super::repair::put_block;
use crate::ids::BlockNo;
use heddle_pmem::{BLOCK_BYTES, Region};
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

const MAGIC: &[u8; 16] = b"HEDDLE UNDO 2\n\0\0";
const HEAD_BYTES: usize = 64;
const ENTRY_BYTES: usize = 8 + BLOCK_BYTES + 8;

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
    blocks: impl Iterator<Item = BlockNo>,
) -> Result<(), FsckError> {
    let blocks: Vec<BlockNo> = blocks.collect();
    let mut bytes = Vec::with_capacity(HEAD_BYTES + blocks.len() * ENTRY_BYTES + 4);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&uuid);
    let image_blocks = region.len_bytes() / BLOCK_BYTES as u64;
    for number in [epochs[0], epochs[1], image_blocks, blocks.len() as u64] {
        bytes.extend_from_slice(&number.to_le_bytes());
    }
    for block in blocks {
        let from = bytes.len();
        bytes.extend_from_slice(&block.0.to_le_bytes());
        let mut old = vec![0; BLOCK_BYTES];
        region.read(block.pos(), &mut old);
        bytes.extend_from_slice(&old);
        let sum = crc32c::crc32c(&bytes[from..]);
        bytes.extend_from_slice(&u64::from(sum).to_le_bytes());
    }
    let sum = crc32c::crc32c(&bytes);
    bytes.extend_from_slice(&sum.to_le_bytes());
    let written = || -> std::io::Result<()> {
        // Only the owner may read it: it contains data of the image.
        let mut file = File::options().write(true).create_new(true).mode(0o600).open(path)?;
        file.write_all(&bytes)?;
        file.sync_all()?;
        let above = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(above)?.sync_all()
    };
    written().map_err(|error| {
        let way = if error.kind() == std::io::ErrorKind::AlreadyExists {
            "name another one with --undo"
        } else {
            "choose a place for it with --undo"
        };
        wrong(path, format!("{error}; nothing was repaired: {way}"))
    })
}

/// Reads regular files only: a FIFO waits for a writer, and a device may never end.
fn file_bytes(path: &Path) -> io::Result<Vec<u8>> {
    let mut file = File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is no file: name what a repair has kept"));
    }
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Restores the old bytes. Returns the number of blocks.
///
/// # Errors
/// [`FsckError::Undo`]: the file is damaged, or of another image, or the image was mounted since.
/// [`FsckError::Write`].
pub fn restore(path: &Path, region: &Region) -> Result<u64, FsckError> {
    let bytes = file_bytes(path).map_err(|error| wrong(path, error))?;
    let (uuid, epochs, entries) = parse(path, &bytes, region)?;
    let media = Media::new(region);
    let name = region.path().map_or_else(|| "(memory)".into(), |p| p.display().to_string());
    if let Some(now) = image::read(&name, &media)?.image {
        if now.superblock.uuid != uuid {
            return Err(wrong(path, "it belongs to another image"));
        }
        // Accepts the image after the repair, and before it: then an earlier undo, or the repair itself, was
        // interrupted.
        if !epochs.contains(&now.superblock.epoch.get()) {
            return Err(wrong(
                path,
                "the image was mounted or repaired since: old blocks would overwrite newer ones",
            ));
        }
    }
    for (block, words) in &entries {
        put_block(region, *block, words);
    }
    // PERSIST: the undo is durable when this returns.
    region.fence();
    match region.failed() {
        None => Ok(entries.len() as u64),
        Some(why) => Err(FsckError::Write { image: name, why: why.to_string() }),
    }
}

type Entries = Vec<(BlockNo, Vec<u64>)>;

fn number(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..at + 8)?.try_into().ok().map(u64::from_le_bytes)
}

fn parse(path: &Path, bytes: &[u8], region: &Region) -> Result<([u8; 16], [u64; 2], Entries), FsckError> {
    if bytes.get(..16) != Some(MAGIC) {
        return Err(wrong(path, "it is no undo file of heddle fsck"));
    }
    let damaged = || wrong(path, "it is cut short or damaged");
    let (body, sum) = bytes.split_at_checked(bytes.len() - 4).ok_or_else(damaged)?;
    if crc32c::crc32c(body).to_le_bytes() != *sum || body.len() < HEAD_BYTES {
        return Err(damaged());
    }
    let uuid = body[16..32].try_into().map_err(|_| damaged())?;
    let [before, after, blocks] = [32, 40, 48].map(|at| number(body, at)).map(|n| n.ok_or_else(damaged));
    let (epochs, blocks) = ([before?, after?], blocks?);
    let have = region.len_bytes() / BLOCK_BYTES as u64;
    if blocks != have {
        return Err(wrong(path, format!("it belongs to an image of {blocks} blocks, this one has {have}")));
    }
    let mut entries = Vec::new();
    for entry in body[HEAD_BYTES..].chunks(ENTRY_BYTES) {
        let block =
            number(entry, 0).filter(|b| *b < have && entry.len() == ENTRY_BYTES).ok_or_else(damaged)?;
        let words = (0..BLOCK_WORDS).map(|i| number(entry, 8 + i * 8).unwrap_or(0)).collect();
        entries.push((BlockNo(block), words));
    }
    Ok((uuid, epochs, entries))
}
