//! Formats whose mark is short, lies at the end, or may be at several places: each is told by a function.

use crate::Signature;
use crate::media_reader::MediaReader;

const SECTOR: u64 = 512;
const BLOCK: u64 = 4096;

/// Those that are there.
pub fn found(media: &MediaReader<'_>) -> Vec<Signature> {
    let detectors: [fn(&MediaReader<'_>) -> Option<Signature>; 19] = [
        heddle,
        f2fs,
        ext,
        ext_journal,
        xfs_log,
        swap,
        lvm,
        luks2,
        raid_0_90,
        raid_1,
        raid_of_firmware,
        gpt,
        mbr,
        sun,
        mac,
        zfs,
        nilfs2,
        hfs_plus,
        minix,
    ];
    detectors.iter().filter_map(|kind| kind(media)).collect()
}

fn signature(kind: &'static str, magics: Vec<(u64, u64)>) -> Option<Signature> {
    (!magics.is_empty()).then_some(Signature { kind, label: None, magics })
}

/// The first block, the last one, and the last one of an image smaller than its media, which the first block tells.
fn heddle(media: &MediaReader<'_>) -> Option<Signature> {
    const MAGIC: &[u8] = b"HEDDLE\x00\xf5";
    const BLOCKS_TOTAL: u64 = 40;
    const SUPERBLOCK_BYTES: u64 = 128;
    let mut places = vec![0, media.before_end(media.len_bytes % BLOCK + BLOCK)];
    if media.has(0, MAGIC) {
        let last = media.u64(BLOCKS_TOTAL).checked_sub(1).and_then(|block| block.checked_mul(BLOCK));
        places.extend(last.filter(|at| *at < media.len_bytes && !places.contains(at)));
    }
    let there = places.into_iter().filter(|at| media.has(*at, MAGIC));
    signature("a heddle file system", there.map(|at| (at, SUPERBLOCK_BYTES)).collect())
}

fn f2fs(media: &MediaReader<'_>) -> Option<Signature> {
    const MAGIC: u32 = 0xf2f5_2010;
    let copies: Vec<u64> = [0x400, 0x1400].into_iter().filter(|at| media.u32(*at) == MAGIC).collect();
    let label = copies.first().and_then(|at| media.text_utf16(at + 0x7c, 512));
    Some(Signature { label, ..signature("f2fs", copies.into_iter().map(|at| (at, 4)).collect())? })
}

/// Its mark has two bytes: the sizes behind it must be possible too.
fn ext(media: &MediaReader<'_>) -> Option<Signature> {
    let superblock = 0x400;
    let is_one = media.has(superblock + 0x38, &[0x53, 0xef])
        && media.u32(superblock) != 0
        && media.u32(superblock + 0x18) <= 6
        && media.u32(superblock + 0x4c) <= 1;
    if !is_one {
        return None;
    }
    const HAS_JOURNAL: u32 = 0x4;
    /// Extents, 64 bits, flexible groups: none of them is in ext3.
    const OF_EXT4: u32 = 0x40 | 0x80 | 0x200;
    let kind = match (media.u32(superblock + 0x5c), media.u32(superblock + 0x60)) {
        (_, incompatible) if incompatible & OF_EXT4 != 0 => "ext4",
        (compatible, _) if compatible & HAS_JOURNAL != 0 => "ext3",
        _ => "ext2",
    };
    let label = media.text(superblock + 0x78, 16);
    Some(Signature { label, ..signature(kind, vec![(superblock + 0x38, 2)])? })
}

/// On media of its own: a superblock that counts no inodes.
fn ext_journal(media: &MediaReader<'_>) -> Option<Signature> {
    const IS_JOURNAL: u32 = 0x8;
    let superblock = 0x400;
    let is_one =
        media.has(superblock + 0x38, &[0x53, 0xef]) && media.u32(superblock + 0x60) & IS_JOURNAL != 0;
    signature("a journal of ext4", Vec::from_iter(is_one.then_some((superblock + 0x38, 2))))
}

/// On media of its own, a ring: a record begins in some sector of the first ones. Its version and the format of its words are small.
fn xfs_log(media: &MediaReader<'_>) -> Option<Signature> {
    const MAGIC: [u8; 4] = 0xfeed_babe_u32.to_be_bytes();
    const LOOKED_AT_BYTES: u64 = 256 << 10;
    let is_record = |at: &u64| {
        let word = |offset| u32::from_be_bytes(media.at(at + offset));
        media.has(*at, &MAGIC) && (1..=3).contains(&word(8)) && (1..=3).contains(&word(300))
    };
    let sectors = (0..LOOKED_AT_BYTES).step_by(SECTOR as usize);
    signature("a log of xfs", sectors.filter(is_record).map(|at| (at, 4)).collect())
}

/// At the end of the first page, whatever a page is.
fn swap(media: &MediaReader<'_>) -> Option<Signature> {
    const MAGICS: [&[u8]; 5] = [b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND\0", b"ULSUSPEND\0", b"LINHIB0001"];
    let ends = [4096, 8192, 16384, 32768, 65536].map(|page: u64| page - 10);
    let there = ends.into_iter().filter(|at| MAGICS.iter().any(|magic| media.has(*at, magic)));
    let found = signature("swap", there.map(|at| (at, 10)).collect())?;
    Some(Signature { label: media.text(1052, 16), ..found })
}

/// In one of the first four sectors.
fn lvm(media: &MediaReader<'_>) -> Option<Signature> {
    let sectors = (0..4).map(|sector| sector * SECTOR);
    let there = sectors.filter(|at| media.has(*at, b"LABELONE") && media.has(at + 24, b"LVM2 001"));
    signature("an LVM physical volume", there.map(|at| (at, 8)).collect())
}

/// The second header lies behind the first one's area of text, whose sizes are fixed.
fn luks2(media: &MediaReader<'_>) -> Option<Signature> {
    let sizes = (15..23).map(|log| 1u64 << log);
    let magics: Vec<_> = sizes.filter(|at| media.has(*at, b"SKUL\xba\xbe")).map(|at| (at, 6)).collect();
    let first = media.has(0, b"LUKS\xba\xbe\0\x02");
    let label = first.then(|| media.text(24, 48)).flatten();
    (first || !magics.is_empty()).then_some(Signature { kind: "LUKS", label, magics })
}

const RAID_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();

/// In the last whole 64 KiB, in the byte order of the machine that made it.
fn raid_0_90(media: &MediaReader<'_>) -> Option<Signature> {
    const UNIT: u64 = 64 << 10;
    let at = (media.len_bytes & !(UNIT - 1)).checked_sub(UNIT)?;
    let mut turned = RAID_MAGIC;
    turned.reverse();
    let is_one = [RAID_MAGIC, turned].iter().any(|magic| media.has(at, magic)) && media.u32(at + 4) == 0;
    signature("a member of a Linux RAID (0.90)", Vec::from_iter(is_one.then_some((at, 4))))
}

/// 1.0 near the end, 1.1 at the beginning, 1.2 a block behind it.
fn raid_1(media: &MediaReader<'_>) -> Option<Signature> {
    let near_end = (media.len_bytes / SECTOR).checked_sub(16).map(|sector| (sector & !7) * SECTOR);
    let places = [Some(0), Some(BLOCK), near_end].into_iter().flatten();
    let there: Vec<u64> = places.filter(|at| media.has(*at, &RAID_MAGIC) && media.u32(at + 4) == 1).collect();
    let label = there.first().and_then(|at| media.text(at + 32, 32));
    let magics = there.into_iter().map(|at| (at, 4)).collect();
    Some(Signature { label, ..signature("a member of a Linux RAID (1.x)", magics)? })
}

/// In the last sector (DDF) or the one before it (Intel): what firmware, and `mdadm` for it, tells of the disk.
fn raid_of_firmware(media: &MediaReader<'_>) -> Option<Signature> {
    let magics: [(u64, &[u8]); 2] =
        [(SECTOR, &[0xde, 0x11, 0xde, 0x11]), (2 * SECTOR, b"Intel Raid ISM Cfg Sig. ")];
    let places = magics.map(|(back, mark)| (media.before_end(media.len_bytes % SECTOR + back), mark));
    let there = places.into_iter().filter(|(at, mark)| media.has(*at, mark));
    signature("a member of a firmware RAID", there.map(|(at, mark)| (at, mark.len() as u64)).collect())
}

/// The second sector and the last one, of either size.
fn gpt(media: &MediaReader<'_>) -> Option<Signature> {
    let places = [SECTOR, BLOCK, media.before_end(SECTOR), media.before_end(BLOCK)];
    let there = places.into_iter().filter(|at| media.has(*at, b"EFI PART"));
    signature("a partition table (GPT)", there.map(|at| (at, 8)).collect())
}

/// Boot sectors of file systems end with the same two bytes: a table has a partition, and says of each only whether it is booted. One
/// without partitions has the disk's number, and no jump over the fields of a file system.
fn mbr(media: &MediaReader<'_>) -> Option<Signature> {
    const TABLE: u64 = 446;
    let entries: [[u8; 16]; 4] = std::array::from_fn(|n| media.at(TABLE + n as u64 * 16));
    let has_partition = entries.iter().any(|entry| entry[4] != 0 && entry[12..] != [0; 4]);
    let [jump] = media.at(0);
    let is_empty = entries == [[0; 16]; 4] && media.u32(440) != 0 && !matches!(jump, 0xeb | 0xe9);
    let is_table = media.has(510, &[0x55, 0xaa])
        && entries.iter().all(|entry| entry[0] & 0x7f == 0)
        && (has_partition || is_empty);
    signature("a partition table (MBR)", Vec::from_iter(is_table.then_some((510, 2))))
}

/// Two bytes at the end of the first sector, whose words cancel each other out.
fn sun(media: &MediaReader<'_>) -> Option<Signature> {
    let sector: [u8; SECTOR as usize] = media.at(0);
    let sum = sector.chunks_exact(2).fold([0, 0], |sum, word| [sum[0] ^ word[0], sum[1] ^ word[1]]);
    let is_one = media.has(508, &[0xda, 0xbe]) && sum == [0, 0];
    signature("a partition table (Sun)", Vec::from_iter(is_one.then_some((508, 2))))
}

/// The first block tells the size of blocks, the second one has the first partition.
fn mac(media: &MediaReader<'_>) -> Option<Signature> {
    let block = u64::from(u16::from_be_bytes(media.at(2)));
    let is_one = media.has(0, b"ER") && block.is_power_of_two() && block >= SECTOR && media.has(block, b"PM");
    signature("a partition table (Mac)", if is_one { vec![(0, 2), (block, 2)] } else { Vec::new() })
}

/// Two labels at each end, each with a ring of roots of its newest states.
fn zfs(media: &MediaReader<'_>) -> Option<Signature> {
    const LABEL: u64 = 256 << 10;
    const MAGIC: u64 = 0x00ba_b10c;
    let whole = media.len_bytes & !(LABEL - 1);
    let ends = [2 * LABEL, LABEL].into_iter().filter_map(|back| whole.checked_sub(back));
    let labels = [0, LABEL].into_iter().chain(ends);
    let roots = labels.flat_map(|label| (0..128).map(move |n| label + (128 << 10) + n * 1024));
    let is_root = |at: &u64| [MAGIC, MAGIC.swap_bytes()].contains(&media.u64(*at));
    signature("a member of a ZFS pool", roots.filter(is_root).map(|at| (at, 8)).collect())
}

/// The second superblock is in the last whole block.
fn nilfs2(media: &MediaReader<'_>) -> Option<Signature> {
    // Two bytes alone: the revision before them is 2, and the size of a superblock fits one.
    let is_one = |superblock: &u64| {
        let size = u16::from_le_bytes(media.at(superblock + 8));
        media.has(superblock + 6, &[0x34, 0x34])
            && media.u32(*superblock) == 2
            && (256..=1024).contains(&size)
    };
    let last = (media.len_bytes / BLOCK).checked_sub(1).map(|block| block * BLOCK);
    let there = [Some(1024), last].into_iter().flatten().filter(is_one);
    signature("nilfs2", there.map(|superblock| (superblock + 6, 2)).collect())
}

fn hfs_plus(media: &MediaReader<'_>) -> Option<Signature> {
    let is_one = media.has(1024, b"H+\0\x04") || media.has(1024, b"HX\0\x05");
    signature("hfsplus", Vec::from_iter(is_one.then_some((1024, 4))))
}

/// Two bytes alone, which differ by version, length of names and byte order: both maps have a block at least, and zones few.
fn minix(media: &MediaReader<'_>) -> Option<Signature> {
    const OLD: [u16; 4] = [0x137f, 0x138f, 0x2468, 0x2478];
    const NEW: u16 = 0x4d5a;
    const SHIFT_MAX: u16 = 4;
    let superblock = 1024;
    let is_one = |at: u64, magics: &[u16], maps: [u64; 2], shift: u64| {
        [u16::from_le_bytes, u16::from_be_bytes].iter().any(|read| {
            let word = |offset| read(media.at(superblock + offset));
            magics.contains(&word(at)) && maps.iter().all(|map| word(*map) > 0) && word(shift) <= SHIFT_MAX
        })
    };
    let places = [(16, is_one(16, &OLD, [4, 6], 10)), (24, is_one(24, &[NEW], [6, 8], 12))];
    let there = places.into_iter().filter(|(_, is_one)| *is_one);
    signature("minix", there.map(|(at, _)| (superblock + at, 2)).collect())
}
