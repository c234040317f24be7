//! The valid superblock, and the positions of the areas.
//!
//! Invariants  S1  the areas of a [`Geometry`] follow each other without a gap and end within the device.
//!             S2  SIT and SSA have an entry for every segment of the main area.

pub(crate) mod repair_mark;

use crate::checksum::{SEED, checksum};
use crate::device::Device;
use crate::error::{OpenError, feature_names};
use crate::format::{
    BLOCK_BYTES, Block, MAGIC, NAT_ENTRIES, SEGMENT_BLOCKS, SIT_ENTRIES, SUPERBLOCK_OFFSET_BYTES, Superblock,
    feature,
};
use crate::ids::BlockAddr;
use crate::planted::{Breach, breaks};
use heddle_signatures::Content;
use heddle_vfs::Error;
use zerocopy::{FromBytes, IntoBytes};

/// The name of F2FS among signatures.
const OWN: &str = "f2fs";
/// Features that the engine handles, or refuses file by file. An image with another feature is refused.
const SUPPORTED: u32 = feature::ENCRYPT
    | feature::ATOMIC_WRITE
    | feature::EXTRA_ATTR
    | feature::PROJECT_QUOTA
    | feature::INODE_CHECKSUM
    | feature::FLEXIBLE_INLINE_XATTR
    | feature::QUOTA_INO
    | feature::INODE_CRTIME
    | feature::LOST_FOUND
    | feature::VERITY
    | feature::SUPERBLOCK_CHECKSUM
    | feature::CASEFOLD
    | feature::COMPRESSION;

/// The positions of all areas.
#[derive(Clone, Debug)]
pub struct Geometry {
    /// Blocks of the file system.
    pub blocks: u64,
    /// Segments of a section, the unit of cleaning.
    pub segments_per_section: u32,
    /// First checkpoint pack; the second is a segment further.
    pub checkpoint: BlockAddr,
    /// Number of blocks of a pack that hold its version bitmaps, if its head has no room for them.
    pub checkpoint_payload: u32,
    /// Segment information table.
    pub sit: BlockAddr,
    /// Its segments, both copies.
    pub sit_segments: u32,
    /// Node address table.
    pub nat: BlockAddr,
    /// Its segments, both copies.
    pub nat_segments: u32,
    /// Segment summaries.
    pub ssa: BlockAddr,
    /// Nodes and data.
    pub main: BlockAddr,
    /// Segments of the main area.
    pub main_segments: u32,
}

impl Geometry {
    /// Returns true if this is a block of the main area.
    pub(crate) fn in_main(&self, addr: BlockAddr) -> bool {
        let end = u64::from(self.main.0) + u64::from(self.main_segments) * u64::from(SEGMENT_BLOCKS);
        addr >= self.main && u64::from(addr.0) < end
    }

    /// A checkpoint's count is not validated on a read-only open. So it is limited to the main area.
    pub(crate) fn at_most_main(&self, blocks: u64) -> u64 {
        blocks.min(u64::from(self.main_segments) * u64::from(SEGMENT_BLOCKS))
    }

    /// One more than the largest node number.
    pub(crate) fn nids(&self) -> u32 {
        (self.nat_segments / 2).saturating_mul(SEGMENT_BLOCKS).saturating_mul(NAT_ENTRIES as u32)
    }
}

/// Reads the first valid copy.
pub(crate) fn read(device: &Device) -> Result<(Superblock, Geometry), OpenError> {
    let image = || device.path().to_owned();
    let mut wrong = Vec::new();
    let mut damaged = None;
    for copy in 0..2 {
        match checked(device, copy) {
            Err(why) => wrong.push(format!("copy {} of the superblock: {why}", copy + 1)),
            Ok(found) => match geometry(&found, device.blocks()) {
                Ok(geometry) => {
                    refuse_unsupported(device, &found)?;
                    return Ok((found, geometry));
                }
                Err(what) => damaged = damaged.or(Some((found, what))),
            },
        }
    }
    match damaged {
        // An unsupported feature explains the bad geometry better than damage does.
        Some((found, what)) => {
            refuse_unsupported(device, &found)?;
            Err(OpenError::Damaged { image: image(), what })
        }
        None => Err(OpenError::NotF2fs { image: image(), why: wrong.join("; ") }),
    }
}

/// The uuid of the first copy that [`check`] accepts. Its geometry and features are not examined.
pub(crate) fn uuid(device: &Device) -> Option<[u8; 16]> {
    (0..2).find_map(|copy| checked(device, copy).ok()).map(|found| found.uuid)
}

/// Before this byte of a device, F2FS has nothing but its superblocks.
const UNUSED_BEFORE_BYTES: u64 = 1 << 20;

/// Refuses a device on which another format was made after the F2FS image. mkfs.f2fs clears the blocks of the superblocks: another
/// signature beside a superblock is newer. If the first superblock is gone, any other signature in the first MiB counts as newer.
///
/// # Errors
/// [`OpenError::Foreign`].
pub(crate) fn refuse_foreign(device: &Device) -> Result<(), OpenError> {
    let content = device.content();
    let Content::Known(found) = &content else { return Ok(()) };
    let (block, offset) = (BLOCK_BYTES as u64, SUPERBLOCK_OFFSET_BYTES as u64);
    let has_first =
        found.iter().any(|found| found.kind == OWN && found.magics.iter().any(|(at, _)| *at == offset));
    let is_newer = |at: u64| match has_first {
        true => at < 2 * block && at % block < offset,
        false => at < UNUSED_BEFORE_BYTES,
    };
    content.other_than(OWN, is_newer).map_or(Ok(()), |(other, at)| {
        Err(OpenError::Foreign { image: device.path().into(), what: other.to_string(), at })
    })
}

/// Returns true if a copy says that the file system has other devices, too.
pub(crate) fn has_other_devices(device: &Device) -> bool {
    (0..2).filter_map(|copy| checked(device, copy).ok()).any(|found| found.devices[0].path[0] != 0)
}

fn checked(device: &Device, copy: u32) -> Result<Superblock, String> {
    let block = device.block(BlockAddr(copy)).map_err(|error| error.to_string())?;
    found_in(&block)
}

/// Returns true if this block has a whole superblock.
pub(crate) fn is_whole(block: &Block) -> bool {
    found_in(block).is_ok()
}

fn found_in(block: &Block) -> Result<Superblock, String> {
    let bytes = &block[SUPERBLOCK_OFFSET_BYTES..];
    let (found, _) = Superblock::read_from_prefix(bytes).map_err(|error| error.to_string())?;
    check(&found)?;
    Ok(found)
}

/// Returns true if two blocks have the same superblock, but for marks of a node log or a repair.
pub(crate) fn equal_but_for_marks(mut blocks: [Block; 2]) -> bool {
    for block in &mut blocks {
        let bytes = &mut block[SUPERBLOCK_OFFSET_BYTES..][..size_of::<Superblock>()];
        if let Ok(found) = Superblock::mut_from_bytes(bytes) {
            (found.node_log_mark, found.repair_mark) = Default::default();
            (found.node_log_pairing, found.repair_id, found.crc) = Default::default();
        }
    }
    blocks[0] == blocks[1]
}

/// Makes the copies equal again. If one copy is damaged, the other replaces it. If their marks of a node log or a repair differ, the first
/// replaces the second: Linux reads the first.
pub(crate) fn repair(device: &Device) -> Result<(), Error> {
    let whole = |copy| {
        let found = checked(device, copy).ok()?;
        geometry(&found, device.blocks()).is_ok().then_some(found)
    };
    let marks = |found: &Superblock| {
        (found.node_log_mark, found.node_log_pairing, found.repair_mark, found.repair_id)
    };
    let (from, to) = match [0, 1].map(whole) {
        [Some(_), None] => (0, 1),
        [None, Some(_)] => (1, 0),
        [Some(first), Some(second)] if marks(&first) != marks(&second) => (0, 1),
        _ => return Ok(()),
    };
    device.begin_writing()?;
    let block = device.block(BlockAddr(from))?;
    device.write(BlockAddr(to), &block[..])?;
    device.flush()
}

/// Changes both copies, one after the other, in this order. Durable when this returns.
pub(crate) fn rewrite(
    device: &Device,
    order: [u32; 2],
    change: impl Fn(&mut Superblock),
) -> Result<(), Error> {
    device.begin_writing()?;
    rewrite_unprepared(device, order, change)
}

/// As [`rewrite`], for the [`Device`]'s preparation itself: it must not call `begin_writing`.
fn rewrite_unprepared(
    device: &Device,
    order: [u32; 2],
    change: impl Fn(&mut Superblock),
) -> Result<(), Error> {
    for copy in order {
        let mut block = device.block(BlockAddr(copy))?;
        let bytes = &mut block[SUPERBLOCK_OFFSET_BYTES..][..size_of::<Superblock>()];
        // A damaged copy is left alone: no reader uses it.
        if let Ok(found) = Superblock::mut_from_bytes(bytes)
            && check(found).is_ok()
        {
            change(found);
            if found.feature.get() & feature::SUPERBLOCK_CHECKSUM != 0 {
                let at = std::mem::offset_of!(Superblock, crc);
                let crc = checksum(SEED, &found.as_bytes()[..at]);
                found.crc.set(crc);
            }
            device.write_unprepared(BlockAddr(copy), &block[..])?;
            device.flush()?;
        }
    }
    Ok(())
}

/// Checks that it is a valid superblock.
fn check(found: &Superblock) -> Result<(), String> {
    let magic = found.magic.get();
    if magic != MAGIC && !breaks(Breach::MagicUnchecked) {
        return Err(format!("its first word is {magic:#x}, not {MAGIC:#x}"));
    }
    if found.feature.get() & feature::SUPERBLOCK_CHECKSUM != 0 {
        let at = std::mem::offset_of!(Superblock, crc);
        if found.checksum_offset.get() as usize != at {
            return Err(format!("its checksum is said to be at byte {}", found.checksum_offset.get()));
        }
        if checksum(SEED, &found.as_bytes()[..at]) != found.crc.get() {
            return Err("its checksum is wrong".into());
        }
    }
    Ok(())
}

fn refuse_unsupported(device: &Device, found: &Superblock) -> Result<(), OpenError> {
    let unsupported = |what: String| Err(OpenError::Unsupported { image: device.path().into(), what });
    let others = found.feature.get() & !SUPPORTED;
    if others != 0 {
        return unsupported(format!("features {}", feature_names(others)));
    }
    if found.devices[0].path[0] != 0 {
        return unsupported("more than one device".into());
    }
    let (block, segment) = (found.log_block_bytes.get(), found.log_blocks_per_segment.get());
    if (block, segment) != (12, 9) {
        return unsupported(format!(
            "blocks of 2^{block} bytes, segments of 2^{segment} blocks (it reads 2^12 and 2^9)"
        ));
    }
    Ok(())
}

/// The positions of the areas, if they are possible.
pub(crate) fn geometry(found: &Superblock, device_blocks: u64) -> Result<Geometry, String> {
    let inodes = (found.node_ino.get(), found.meta_ino.get(), found.root_ino.get());
    if inodes != (1, 2, 3) {
        return Err(format!("the superblock's inodes are {inodes:?}, not 1, 2 and 3"));
    }
    let geometry = Geometry {
        blocks: found.blocks.get(),
        segments_per_section: found.segments_per_section.get(),
        checkpoint: BlockAddr(found.checkpoint.get()),
        checkpoint_payload: found.checkpoint_payload.get(),
        sit: BlockAddr(found.sit.get()),
        sit_segments: found.segments_sit.get(),
        nat: BlockAddr(found.nat.get()),
        nat_segments: found.segments_nat.get(),
        ssa: BlockAddr(found.ssa.get()),
        main: BlockAddr(found.main.get()),
        main_segments: found.segments_main.get(),
    };
    let areas = [
        ("the checkpoints", geometry.checkpoint, found.segments_checkpoint.get(), geometry.sit),
        ("the SIT", geometry.sit, geometry.sit_segments, geometry.nat),
        ("the NAT", geometry.nat, geometry.nat_segments, geometry.ssa),
        ("the SSA", geometry.ssa, found.segments_ssa.get(), geometry.main),
    ];
    for (area, start, segments, next) in areas {
        if u64::from(start.0) + u64::from(segments) * u64::from(SEGMENT_BLOCKS) != u64::from(next.0) {
            return Err(format!(
                "{area}, {segments} segments from block {}, do not end at block {}",
                start.0, next.0
            ));
        }
    }
    let main_blocks = u64::from(geometry.main_segments) * u64::from(SEGMENT_BLOCKS);
    let end = u64::from(geometry.main.0) + main_blocks;
    // The two largest pointer values mark NEW and COMPRESSED. The limit leaves out one block more.
    if end > u64::from(u32::MAX - 2) {
        return Err(format!("the main area ends at block {end}, where no pointer leads"));
    }
    if geometry.checkpoint.0 < 2 || end > geometry.blocks || geometry.blocks > device_blocks {
        return Err(format!(
            "the main area ends at block {end} of {}, the device at {device_blocks}: it was cut short, or the superblock is wrong",
            geometry.blocks
        ));
    }
    let (sit, nat) = (geometry.sit_segments, geometry.nat_segments);
    let sit_room = u64::from(sit / 2) * u64::from(SEGMENT_BLOCKS) * SIT_ENTRIES as u64;
    let ssa_room = u64::from(found.segments_ssa.get()) * u64::from(SEGMENT_BLOCKS);
    let main = u64::from(geometry.main_segments);
    let sizes_fit = found.segments_checkpoint.get() == 2
        && found.segment0 == found.checkpoint
        && sit.is_multiple_of(2)
        && nat.is_multiple_of(2)
        && nat > 0
        && main > 0
        && sit_room >= main
        && ssa_room >= main
        && geometry.checkpoint_payload < SEGMENT_BLOCKS
        && geometry.segments_per_section > 0
        && u64::from(geometry.segments_per_section) * u64::from(found.sections.get()) == main;
    if !sizes_fit {
        return Err("the sizes of its areas do not match".into());
    }
    Ok(geometry)
}

#[cfg(test)]
pub(crate) mod tests;
