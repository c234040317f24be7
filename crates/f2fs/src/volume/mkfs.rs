//! Makes an image: the positions of its areas, and a first checkpoint with an empty root.
//!
//! Crash order the superblocks are cleared first and written last: an interrupted mkfs leaves no valid file system.
//! Source      F2FS paper (FAST '15) section 2.1; Linux `Documentation/filesystems/f2fs.rst`, "On-disk Layout".

use crate::checkpoint::Checkpoint;
use crate::checkpoint::commit::CheckpointState;
use crate::checksum::{SEED, checksum, inode_seed};
use crate::device::{Access, Device};
use crate::error::OpenError;
use crate::format::{
    BLOCK_BYTES, Block, CheckpointHead, LOGS_MAX, MAGIC, NAT_ENTRIES, NatEntry, SEGMENT_BLOCKS,
    SIT_COUNT_BITS, SIT_ENTRIES, SUPERBLOCK_OFFSET_BYTES, SitEntry, SummaryBlock, Superblock, feature,
};
use crate::ids::{BlockAddr, Nid, Segno};
use crate::image::Media;
use crate::inode::ROOT;
use crate::nat::Nat;
use crate::node::Nodes;
use crate::pages::dirty_pages::Pages;
use crate::segments::{LOGS_IN_ORDER, Logs, OpenLog, Segments};
use crate::space::{Counts, Space};
use crate::superblock::{self, Geometry};
use heddle_signatures::Claim;
use heddle_vfs::Error;
use std::collections::{BTreeSet, HashMap};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Instant;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromZeros, IntoBytes};

/// The smallest image, in bytes; a quarter of it is for files.
pub const IMAGE_BYTES_MIN: u64 = 64 << 20;
/// The largest image, in bytes. Block numbers have 32 bits, and the last of them mean no block.
pub const IMAGE_BYTES_MAX: u64 = 15 << 40;
/// The longest label, in UTF-16 units.
pub const LABEL_UNITS_MAX: usize = 511;

/// Checksums wherever the format has them, and times of creation. Linux supports these features since 4.18. It reads the inodes that we
/// make with them since 5.6: earlier versions refuse more than 24 bytes of extra attributes.
const FEATURES: u32 =
    feature::EXTRA_ATTR | feature::INODE_CHECKSUM | feature::INODE_CRTIME | feature::SUPERBLOCK_CHECKSUM;

/// Segments of the checkpoint packs.
const CHECKPOINT_SEGMENTS: u32 = 2;
/// Bytes of version bitmaps that fit a checkpoint's head.
const BITMAPS_BYTES: u32 = (BLOCK_BYTES - size_of::<CheckpointHead>() - size_of::<u32>()) as u32;
/// Bytes of a version bitmap for each segment of a table, counting its two copies as one.
const BITMAP_BYTES_A_SEGMENT: u32 = SEGMENT_BLOCKS / 8;
/// Number of blocks cleared at a time.
const CLEARED_BLOCKS: u32 = 1024;

/// Sizes of the areas, in segments.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Areas {
    sit: u32,
    nat: u32,
    ssa: u32,
    main: u32,
    /// Number of blocks of a checkpoint pack for the SIT's bitmap, if its head has no room.
    payload: u32,
    /// Segments of the main area for cleaning alone.
    reserved: u32,
    /// Segments of the main area that users do not get, including the reserved ones.
    overprovision: u32,
}

impl Areas {
    /// The areas for so many segments behind the superblocks.
    fn of(total: u32) -> Areas {
        let tables = total - CHECKPOINT_SEGMENTS;
        let segments_of = |blocks: u32| blocks.div_ceil(SEGMENT_BLOCKS);
        let sit_copy = segments_of(tables.div_ceil(SIT_ENTRIES as u32));
        let sit_bitmap = sit_copy * BITMAP_BYTES_A_SEGMENT;
        // Both bitmaps are in the head, unless the SIT's would leave less than half of it to the NAT's.
        let payload =
            if sit_bitmap > BITMAPS_BYTES / 2 { sit_bitmap.div_ceil(BLOCK_BYTES as u32) } else { 0 };
        let room = if payload > 0 { BITMAPS_BYTES } else { BITMAPS_BYTES - sit_bitmap };
        let rest = tables - 2 * sit_copy;
        // A node number for each block, as far as the bitmap reaches.
        let numbers = u64::from(rest) * u64::from(SEGMENT_BLOCKS);
        let nat_blocks = numbers.div_ceil(NAT_ENTRIES as u64);
        let nat_copy =
            nat_blocks.div_ceil(SEGMENT_BLOCKS.into()).min((room / BITMAP_BYTES_A_SEGMENT).into()) as u32;
        let rest = rest - 2 * nat_copy;
        let ssa = segments_of(rest);
        let main = rest - ssa;
        let (reserved, overprovision) = kept(main);
        Areas { sit: 2 * sit_copy, nat: 2 * nat_copy, ssa, main, payload, reserved, overprovision }
    }

    /// Number of blocks for users.
    fn blocks_user(&self) -> u64 {
        u64::from(self.main - self.overprovision) * u64::from(SEGMENT_BLOCKS)
    }
}

/// Number of segments reserved for cleaning, and of those that users do not get, including the reserved ones.
/// The more segments are withheld, the emptier are the segments that cleaning finds. With a share `s`
/// withheld, a segment is at worst `1 - s` full, so cleaning `1 / s` of them frees one. So many are reserved,
/// twice, and six for the logs. The share that leaves users most is chosen.
fn kept(main: u32) -> (u32, u32) {
    let of_share = |ten_thousandth: u32| {
        let reserved = 2 * (10_000 / ten_thousandth + 1) + LOGS_IN_ORDER.len() as u32;
        let spare = main.checked_sub(reserved)?;
        Some((reserved, reserved + (u64::from(spare) * u64::from(ten_thousandth) / 10_000) as u32))
    };
    (1..6_000).filter_map(of_share).min_by_key(|(_, kept)| *kept).unwrap_or((main, main))
}

/// Makes an empty file system on the whole of a file or device, and overwrites its content. `label` is its
/// name, of up to 511 UTF-16 units; `progress` gets bytes done and to do. The root belongs to the caller's
/// user.
///
/// # Errors
/// [`OpenError`]: the image is in use, too small or too large, or cannot be written.
pub fn make_image(path: &Path, label: &str, progress: &dyn Fn(u64, u64)) -> Result<(), OpenError> {
    make_on(Device::open(path, Access::Write)?, path, label, progress)
}

/// The same, in a file or device that is open and locked already; `path` is its name in errors.
///
/// # Errors
/// As [`make_image`].
pub fn make_image_in(
    (file, claim): (File, Claim),
    path: &Path,
    label: &str,
    progress: &dyn Fn(u64, u64),
) -> Result<(), OpenError> {
    make_on(Device::of(file, claim, path)?, path, label, progress)
}

fn make_on(device: Device, path: &Path, label: &str, progress: &dyn Fn(u64, u64)) -> Result<(), OpenError> {
    let bytes = device.blocks() * BLOCK_BYTES as u64;
    if !(IMAGE_BYTES_MIN..=IMAGE_BYTES_MAX).contains(&bytes) {
        return Err(OpenError::Size { image: path.into(), bytes });
    }
    let failed = |error: Error| OpenError::Making { image: path.into(), why: error.to_string() };
    let made = superblock(device.blocks(), label).and_then(|superblock| make(device, &superblock, progress));
    made.map_err(failed)
}

fn make(device: Device, superblock: &Superblock, progress: &dyn Fn(u64, u64)) -> Result<(), Error> {
    let geometry = superblock::geometry(superblock, device.blocks()).map_err(Error::Corrupt)?;
    clear(&device, BlockAddr(0), 2, &|_| ())?;
    device.flush()?;
    let tables = geometry.ssa.0 - geometry.checkpoint.0;
    let bytes = |blocks: u32| u64::from(blocks) * BLOCK_BYTES as u64;
    clear(&device, geometry.checkpoint, tables, &|done| progress(bytes(done), bytes(tables)))?;
    let areas = Areas::of(superblock.segments.get());
    let media = empty(device, superblock, &geometry, &areas)?;
    media.alone()?.make_root()?;
    let checkpoint = Checkpoint::before_the_first(&geometry, head(superblock, &areas));
    let mut state = CheckpointState { checkpoint, orphans: BTreeSet::new(), since: Instant::now() };
    media.commit(&mut state, true)?;
    let mut block: Box<Block> = Box::new([0; BLOCK_BYTES]);
    block[SUPERBLOCK_OFFSET_BYTES..].copy_from_slice(superblock.as_bytes());
    for copy in 0..2 {
        media.device.write(BlockAddr(copy), &block[..])?;
    }
    media.device.flush()
}

fn clear(device: &Device, first: BlockAddr, blocks: u32, progress: &dyn Fn(u32)) -> Result<(), Error> {
    let zeros = vec![0; CLEARED_BLOCKS as usize * BLOCK_BYTES];
    for at in (0..blocks).step_by(CLEARED_BLOCKS as usize) {
        let len = CLEARED_BLOCKS.min(blocks - at) as usize * BLOCK_BYTES;
        device.write(first.plus(at), &zeros[..len])?;
        progress((at + CLEARED_BLOCKS).min(blocks));
    }
    Ok(())
}

/// The superblock for a device of so many blocks.
fn superblock(blocks: u64, label: &str) -> Result<Superblock, Error> {
    let segments = (blocks / u64::from(SEGMENT_BLOCKS) - 1) as u32;
    let areas = Areas::of(segments);
    let mut random = [0; 16];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut random))
        .map_err(|error| Error::Io(format!("no identity for the image: /dev/urandom: {error}")))?;
    // Blocks 0 and 1 are for superblocks; areas begin with the first whole segment behind them.
    let mut starts = [SEGMENT_BLOCKS; 5];
    for (n, area) in [CHECKPOINT_SEGMENTS, areas.sit, areas.nat, areas.ssa].into_iter().enumerate() {
        starts[n + 1] = starts[n] + area * SEGMENT_BLOCKS;
    }
    let mut made = Superblock {
        magic: U32::new(MAGIC),
        major: U16::new(1),
        minor: U16::new(16),
        log_sector_bytes: U32::new(9),
        log_sectors_per_block: U32::new(3),
        log_block_bytes: U32::new(12),
        log_blocks_per_segment: U32::new(9),
        segments_per_section: U32::new(1),
        sections_per_zone: U32::new(1),
        checksum_offset: U32::new(std::mem::offset_of!(Superblock, crc) as u32),
        blocks: U64::new(blocks),
        sections: U32::new(areas.main),
        segments: U32::new(segments),
        segments_checkpoint: U32::new(CHECKPOINT_SEGMENTS),
        segments_sit: U32::new(areas.sit),
        segments_nat: U32::new(areas.nat),
        segments_ssa: U32::new(areas.ssa),
        segments_main: U32::new(areas.main),
        segment0: U32::new(starts[0]),
        checkpoint: U32::new(starts[0]),
        sit: U32::new(starts[1]),
        nat: U32::new(starts[2]),
        ssa: U32::new(starts[3]),
        main: U32::new(starts[4]),
        root_ino: U32::new(3),
        node_ino: U32::new(1),
        meta_ino: U32::new(2),
        uuid: random,
        checkpoint_payload: U32::new(areas.payload),
        feature: U32::new(FEATURES),
        ..Superblock::new_zeroed()
    };
    // The last unit stays zero and ends the name. A longer name is cut behind a whole character.
    let mut rest = &mut made.volume_name[..LABEL_UNITS_MAX];
    for character in label.chars() {
        let Some((here, behind)) = rest.split_at_mut_checked(character.len_utf16()) else { break };
        let mut units = [0; 2];
        here.iter_mut().zip(character.encode_utf16(&mut units)).for_each(|(slot, unit)| slot.set(*unit));
        rest = behind;
    }
    let maker = concat!("heddle ", env!("CARGO_PKG_VERSION")).as_bytes();
    made.version[..maker.len()].copy_from_slice(maker);
    made.init_version[..maker.len()].copy_from_slice(maker);
    made.crc.set(checksum(SEED, &made.as_bytes()[..std::mem::offset_of!(Superblock, crc)]));
    Ok(made)
}

/// The head that the first checkpoint follows.
fn head(superblock: &Superblock, areas: &Areas) -> CheckpointHead {
    let random = u32::from_le_bytes(*superblock.uuid.first_chunk().unwrap_or(&[0; 4]));
    CheckpointHead {
        // A version that no node of an earlier file system carries.
        version: U64::new(u64::from(random >> 1)),
        blocks_user: U64::new(areas.blocks_user()),
        segments_reserved: U32::new(areas.reserved),
        segments_overprovision: U32::new(areas.overprovision),
        node_segment: [U32::new(u32::MAX); LOGS_MAX],
        data_segment: [U32::new(u32::MAX); LOGS_MAX],
        sit_bitmap_bytes: U32::new(bitmap_bytes(areas.sit)),
        nat_bitmap_bytes: U32::new(bitmap_bytes(areas.nat)),
        checksum_offset: U32::new((BLOCK_BYTES - size_of::<u32>()) as u32),
        ..CheckpointHead::new_zeroed()
    }
}

/// Bytes of the bitmap of a table with so many segments, both copies counted.
fn bitmap_bytes(segments: u32) -> u32 {
    segments / 2 * BITMAP_BYTES_A_SEGMENT
}

/// The state of an empty image.
fn empty(
    device: Device,
    superblock: &Superblock,
    geometry: &Geometry,
    areas: &Areas,
) -> Result<Media, Error> {
    let segments = Segments::read(&device, geometry, empty_logs(areas)).map_err(Error::Corrupt)?;
    // Numbers 1 and 2 are those of the tables, which are in no node.
    let own = |nid: Nid, addr: BlockAddr| {
        (nid, NatEntry { version: 0, ino: U32::new(nid.0), addr: U32::new(addr.0) })
    };
    let entries = vec![own(Nid(1), BlockAddr(1)), own(Nid(2), BlockAddr(1)), own(ROOT, BlockAddr::NEW)];
    let nat = Nat::new(geometry, vec![0; bitmap_bytes(areas.nat) as usize], entries);
    Ok(Media {
        device,
        geometry: geometry.clone(),
        features: FEATURES,
        nodes: Nodes::new(nat, Some(inode_seed(&superblock.uuid)), None),
        pages: Pages::new(),
        space: Some(Space::new(segments, areas.blocks_user(), Counts::default())),
        names: HashMap::new(),
    })
}

/// Each log has an empty segment of its own.
fn empty_logs(areas: &Areas) -> Logs {
    let open = LOGS_IN_ORDER.map(|log| OpenLog {
        segment: Segno(log as u32),
        next: 0,
        summary: Box::new(SummaryBlock::new_zeroed()),
    });
    let kinds = LOGS_IN_ORDER.map(|log| {
        let blocks = U16::new((log as u16) << SIT_COUNT_BITS);
        (Segno(log as u32), SitEntry { blocks, valid: [0; 64], mtime: U64::ZERO })
    });
    Logs {
        sit_bitmap: vec![0; bitmap_bytes(areas.sit) as usize],
        sit_changes: kinds.into(),
        open: open.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn areas_fit_at_every_size() {
        let small = (IMAGE_BYTES_MIN >> 20..1000).map(|mib| mib << 20);
        let large = (0..400).map(|n| (1 << 30) + n * (IMAGE_BYTES_MAX - (1 << 30)) / 399);
        for bytes in small.chain(large) {
            let blocks = bytes / BLOCK_BYTES as u64;
            let made = superblock(blocks, "").unwrap();
            let geometry = superblock::geometry(&made, blocks).unwrap_or_else(|why| panic!("{bytes}: {why}"));
            let areas = Areas::of(made.segments.get());
            assert_eq!(areas.main, geometry.main_segments);
            let (sit, nat) = (bitmap_bytes(areas.sit), bitmap_bytes(areas.nat));
            let in_head = if areas.payload > 0 { nat } else { sit + nat };
            assert!(in_head <= BITMAPS_BYTES, "{bytes}: {areas:?}");
            assert!(areas.payload == 0 || areas.payload * BLOCK_BYTES as u32 >= sit, "{bytes}: {areas:?}");
            // The rest behind the last segment is smaller than a segment.
            let end = u64::from(geometry.main.0) + u64::from(areas.main) * u64::from(SEGMENT_BLOCKS);
            assert!(end <= blocks && blocks - end < SEGMENT_BLOCKS.into(), "{bytes}");
            assert!(areas.reserved >= 8 && areas.overprovision > areas.reserved, "{bytes}: {areas:?}");
            assert!(areas.main > areas.overprovision, "{bytes}: {areas:?}");
        }
    }

    /// Computed apart from this code, by the sizes of bitmaps, entries and blocks that the format has.
    #[test]
    fn areas_of_each_size_are_what_the_format_gives_room_for() {
        // MiB; segments of SIT, NAT, SSA and main area; blocks of payload; segments reserved and withheld.
        let cases: [(u64, [u32; 7]); 6] = [
            (64, [2, 2, 1, 24, 0, 14, 16]),
            (1024, [2, 4, 1, 502, 0, 42, 67]),
            (70 << 10, [4, 116, 70, 35_647, 0, 284, 538]),
            (1 << 20, [38, 82, 1024, 523_141, 0, 1060, 2051]),
            (2 << 20, [76, 120, 2048, 1_046_329, 1, 1436, 2898]),
            (15 << 20, [560, 120, 15_359, 7_848_278, 5, 4008, 7930]),
        ];
        for (mib, [sit, nat, ssa, main, payload, reserved, overprovision]) in cases {
            let areas = Areas::of((mib / 2 - 1) as u32);
            let wanted = Areas { sit, nat, ssa, main, payload, reserved, overprovision };
            assert_eq!(areas, wanted, "{mib} MiB");
            assert_eq!(areas.blocks_user(), u64::from(main - overprovision) * 512);
        }
        // The version bitmaps of the SIT leave the head from 31 segments of a copy on.
        let payloads = [844_802, 844_803].map(|total| (Areas::of(total).sit, Areas::of(total).payload));
        assert_eq!(payloads, [(60, 0), (62, 1)]);
        let kept = [0, 9, 20, 27, 100, 1000, 1_000_000].map(kept);
        assert_eq!(kept[..4], [(0, 0), (9, 9), (12, 14), (14, 17)]);
        assert_eq!(kept[4..], [(22, 31), (56, 93), (1436, 2833)]);
    }

    #[test]
    fn a_superblock_has_what_linux_checks() {
        let made = superblock(16 << 10, "a").unwrap();
        let versions = (made.magic.get(), made.major.get(), made.minor.get());
        assert_eq!(versions, (0xf2f5_2010, 1, 16));
        let logs = [
            made.log_sector_bytes,
            made.log_sectors_per_block,
            made.log_block_bytes,
            made.log_blocks_per_segment,
        ];
        assert_eq!(logs.map(|log| log.get()), [9, 3, 12, 9]);
        assert_eq!((made.segments_per_section.get(), made.sections_per_zone.get()), (1, 1));
        assert_eq!([made.node_ino, made.meta_ino, made.root_ino].map(|ino| ino.get()), [1, 2, 3]);
        let starts = [made.segment0, made.checkpoint, made.sit, made.nat, made.ssa, made.main];
        assert_eq!(starts.map(|start| start.get()), [1, 1, 3, 5, 7, 8].map(|segment| segment * 512));
        let counts = [
            made.segments,
            made.segments_checkpoint,
            made.segments_sit,
            made.segments_nat,
            made.segments_ssa,
            made.segments_main,
            made.sections,
        ];
        assert_eq!(counts.map(|count| count.get()), [31, 2, 2, 2, 1, 24, 24]);
        assert_eq!((made.blocks.get(), made.checkpoint_payload.get()), (16 << 10, 0));
        // extra_attr, inode_checksum, inode_crtime, sb_chksum
        assert_eq!(made.feature.get(), 0x8 | 0x20 | 0x100 | 0x800);
        assert_eq!((made.checksum_offset.get(), made.volume_name[0].get()), (3068, u16::from(b'a')));
        assert!(made.uuid != [0; 16] && made.version.starts_with(b"heddle "));
        assert!(made.init_version == made.version);
        let head = head(&made, &Areas::of(31));
        let random = u32::from_le_bytes(made.uuid[..4].try_into().unwrap());
        assert_eq!(head.version.get(), u64::from(random / 2));
        assert_eq!((head.segments_reserved.get(), head.segments_overprovision.get()), (14, 16));
        assert_eq!((head.blocks_user.get(), head.checksum_offset.get()), (8 * 512, 4092));
        assert_eq!((head.sit_bitmap_bytes.get(), head.nat_bitmap_bytes.get()), (64, 64));
        let logs = head.node_segment.iter().chain(&head.data_segment);
        assert!(logs.into_iter().all(|segment| segment.get() == u32::MAX));
    }

    #[test]
    fn the_making_of_an_image_tells_how_far_it_is() {
        let place = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = place.path().join("image");
        let file = File::create(&path).unwrap();
        let told = std::cell::RefCell::new(Vec::new());
        for (bytes, is_made) in
            [(IMAGE_BYTES_MIN - 4096, false), (IMAGE_BYTES_MIN, true), (IMAGE_BYTES_MAX + 4096, false)]
        {
            file.set_len(bytes).unwrap();
            let made = make_image(&path, "", &|done, all| told.borrow_mut().push((done, all)));
            let is_size = matches!(made, Err(OpenError::Size { .. }));
            assert_eq!((made.is_ok(), is_size), (is_made, !is_made), "{bytes}");
        }
        // Of checkpoints, SIT and NAT, four MiB at a time.
        assert_eq!(told.take(), [(4 << 20, 12 << 20), (8 << 20, 12 << 20), (12 << 20, 12 << 20)]);
    }
}
