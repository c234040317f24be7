//! Selects the valid copy of the superblock.

use super::FsckError;
use super::catalogue::Code;
use super::media::{BLOCK_WORDS, Media};
use super::pass::{Issue, Location};
use crate::format::layout::{Layout, REGION_BYTES_MIN};
use crate::format::superblock::{Copies, FoundSuperblock, SUPERBLOCK_BYTES, Superblock, VERSION};
use crate::ids::BlockNo;
use crate::variant::{LogKind, Variant};
use heddle_pmem::{BLOCK_BYTES, Pos};
use zerocopy::little_endian::U64;
use zerocopy::{FromBytes, IntoBytes};

/// The image's parameters.
#[derive(Clone, Copy)]
pub struct Image {
    /// The selected copy.
    pub superblock: Superblock,
    /// The positions of structures.
    pub layout: Layout,
    /// Seed of every checksum.
    pub seed: u32,
    /// The variant that it was made as.
    pub variant: Variant,
    /// The kind of its logs.
    pub kind: LogKind,
    /// True if it was unmounted cleanly.
    pub clean: bool,
    /// The epoch of the last mount that wrote to it.
    pub epoch: u64,
}

/// The result of reading the superblock.
pub struct Read {
    /// `None`: the superblock is lost, and nothing more can be read.
    pub image: Option<Image>,
    /// The issues found.
    pub issues: Vec<Issue>,
    /// Words to store, known exactly.
    pub fixes: Vec<(Pos, Vec<u64>)>,
}

const WORDS: usize = SUPERBLOCK_BYTES / 8;

fn bytes_at(media: &Media<'_>, block: u64) -> [u8; SUPERBLOCK_BYTES] {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    for (i, chunk) in bytes.chunks_mut(8).enumerate() {
        chunk.copy_from_slice(&media.word(BlockNo(block).pos().plus(i as u64 * 8)).to_le_bytes());
    }
    bytes
}

/// The words of a superblock.
pub fn words_of(superblock: &Superblock) -> Vec<u64> {
    let bytes = superblock.as_bytes();
    bytes.chunks(8).map(|c| c.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))).collect()
}

/// Flips each bit in turn. Returns the copy that becomes valid, if one does.
fn one_bit(bytes: &[u8; SUPERBLOCK_BYTES]) -> Option<Superblock> {
    (0..SUPERBLOCK_BYTES * 8).find_map(|bit| {
        let mut tried = *bytes;
        tried[bit / 8] ^= 1 << (bit % 8);
        match Superblock::decode(&tried) {
            FoundSuperblock::Whole(sb) => Some(sb),
            _ => None,
        }
    })
}

fn sane(sb: &Superblock) -> Option<(Layout, Variant)> {
    let blocks = sb.blocks_total.get();
    if blocks < REGION_BYTES_MIN / BLOCK_BYTES as u64 || blocks >= 1 << BlockNo::BITS {
        return None;
    }
    let layout = Layout::new(blocks);
    let fits = sb.inode_dir_block.get() == layout.inode_dir.0
        && sb.inode_dir_pointers.get() == layout.chunks_max
        && sb.data_block.get() == layout.data.0;
    Variant::from_raw(sb.variant.get()).filter(|_| fits).map(|variant| (layout, variant))
}

/// Decodes a superblock at its position.
pub fn found(media: &Media<'_>, block: u64) -> FoundSuperblock {
    Superblock::decode(&bytes_at(media, block))
}

/// Both copies.
pub fn superblocks(media: &Media<'_>) -> Copies {
    Copies::read(media.blocks(), &|block| bytes_at(media, block))
}

/// Reads both copies.
///
/// # Errors
/// [`FsckError::NotAnImage`], [`FsckError::OtherVersion`].
pub fn read(name: &str, media: &Media<'_>) -> Result<Read, FsckError> {
    let both = superblocks(media);
    let places = [(0, both.first), (both.second_block, both.second)];
    let mut issues = Vec::new();
    let newest = match both.newest() {
        Some(sb) => sb,
        None => match mended(name, media, &places)? {
            Some((block, sb)) => {
                let what = "one flipped bit was found by the checksum; the other copy is damaged too";
                issues.push(issue(Code::SUPERBLOCK_BIT, block, what));
                sb
            }
            None => {
                issues.push(issue(Code::SUPERBLOCK_LOST, 0, "neither copy has the right checksum"));
                return Ok(Read { image: None, issues, fixes: Vec::new() });
            }
        },
    };
    let have = media.blocks();
    if newest.blocks_total.get() > have {
        let want = newest.blocks_total.get();
        let what = format!("the file system has {want} blocks of 4 KiB, the file {have}");
        issues.push(issue(Code::TRUNCATED, 0, &what));
        return Ok(Read { image: None, issues, fixes: Vec::new() });
    }
    let Some((layout, variant)) = sane(&newest) else {
        issues.push(issue(
            Code::SUPERBLOCK_NONSENSE,
            0,
            "size, inode directory, data area and variant do not fit",
        ));
        return Ok(Read { image: None, issues, fixes: Vec::new() });
    };
    if newest.mounted().is_none() {
        let what = format!("it has been mounted {} times", newest.epoch.get());
        issues.push(issue(Code::WORN_OUT, 0, &what));
    }
    let image = Image {
        superblock: newest,
        layout,
        seed: newest.seed(),
        variant,
        kind: variant.log(),
        clean: newest.clean.get() == 1,
        epoch: newest.epoch.get(),
    };
    let mut fixes = Vec::new();
    copies(media, &image, &mut issues, &mut fixes);
    Ok(Read { image: Some(image), issues, fixes })
}

fn issue(code: Code, block: u64, what: &str) -> Issue {
    Issue { code, location: Location::block(BlockNo(block)), what: what.to_owned() }
}

/// No copy is valid: returns one that becomes valid by flipping one bit.
fn mended(
    name: &str,
    media: &Media<'_>,
    places: &[(u64, FoundSuperblock)],
) -> Result<Option<(u64, Superblock)>, FsckError> {
    let by_bit = places.iter().find_map(|(block, _)| Some((*block, one_bit(&bytes_at(media, *block))?)));
    if by_bit.is_some() {
        return Ok(by_bit);
    }
    for (_, found) in places {
        match found {
            FoundSuperblock::OtherVersion(found) => {
                return Err(FsckError::OtherVersion {
                    image: name.to_owned(),
                    found: *found,
                    known: VERSION,
                });
            }
            FoundSuperblock::Damaged => return Ok(None),
            _ => {}
        }
    }
    let what = media.content();
    Err(FsckError::NotAnImage { image: name.to_owned(), what })
}

/// Compares both copies with the selected one, and the bytes behind them with zero.
fn copies(media: &Media<'_>, image: &Image, issues: &mut Vec<Issue>, fixes: &mut Vec<(Pos, Vec<u64>)>) {
    for (which, block) in [("first", 0), ("second", image.layout.last().0)] {
        let bytes = bytes_at(media, block);
        let right = words_of(&image.superblock);
        if bytes != image.superblock.as_bytes() {
            match Superblock::decode(&bytes) {
                FoundSuperblock::Whole(sb) if sb.uuid == image.superblock.uuid => {
                    let (old, new) = (sb.sequence.get(), image.superblock.sequence.get());
                    let what = format!("the {which} copy is number {old}, the other number {new}");
                    issues.push(issue(Code::SUPERBLOCK_BEHIND, block, &what));
                }
                _ if half_written(&bytes, &image.superblock) => {
                    issues.push(issue(Code::SUPERBLOCK_TORN, block, &format!("the {which} copy")));
                }
                _ => {
                    issues.push(issue(Code::SUPERBLOCK_COPY, block, &format!("the {which} copy")));
                    fixes.push((BlockNo(block).pos(), right));
                }
            }
        }
        let rest = BlockNo(block).pos().plus(SUPERBLOCK_BYTES as u64);
        if (0..BLOCK_WORDS - WORDS).any(|i| media.word(rest.plus(i as u64 * 8)) != 0) {
            issues.push(issue(Code::UNUSED_SPACE, block, &format!("behind the {which} copy")));
            fixes.push((rest, vec![0; BLOCK_WORDS - WORDS]));
        }
    }
    if !image.clean {
        issues.push(issue(Code::NOT_UNMOUNTED, 0, "the next mount recovers it"));
    }
}

/// Returns true if this copy is part old and part new, as a power cut during a mount or an unmount leaves it.
/// Then only fields that these change differ, the counters by at most one. A single differing bit elsewhere
/// is a flipped one.
fn half_written(bytes: &[u8; SUPERBLOCK_BYTES], whole: &Superblock) -> bool {
    let Ok(torn) = Superblock::read_from_bytes(bytes) else { return false };
    let changed = Superblock {
        crc: torn.crc,
        sequence: torn.sequence,
        epoch: torn.epoch,
        clean: torn.clean,
        mounted_ns: torn.mounted_ns,
        ..*whole
    };
    let near = |a: U64, b: U64| a.get().abs_diff(b.get()) <= 1;
    let differs = bytes.iter().zip(whole.as_bytes()).map(|(a, b)| (a ^ b).count_ones()).sum::<u32>();
    let counted = torn.sequence != whole.sequence || torn.epoch != whole.epoch;
    changed.as_bytes() == bytes
        && near(torn.sequence, whole.sequence)
        && near(torn.epoch, whole.epoch)
        && torn.clean.get() <= 1
        && (differs > 1 || counted)
}

impl Image {
    /// The superblock of the image after a repair. It counts one more mount, so that no state saved before
    /// the repair is used again. `None`: its counters are at their limit.
    pub fn after_repair(&self, repair: u64, epoch_seen: u64) -> Option<Superblock> {
        let seen = epoch_seen.saturating_sub(self.superblock.epoch.get());
        let next = self.superblock.next(1 + seen)?;
        Some(Superblock { repair: U64::new(repair), ..next }.sealed())
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
