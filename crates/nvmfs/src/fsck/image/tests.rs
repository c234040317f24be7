use super::super::tests::{IMAGE_BYTES, on_empty};
use super::*;
use crate::format::superblock::MOUNTS_MAX;
use heddle_pmem::Region;
use zerocopy::little_endian::U32;

/// The superblock of an image of so many blocks, mounted five times.
fn superblock(blocks: u64) -> Superblock {
    let layout = Layout::new(blocks);
    let of_empty = on_empty(|_, pass| pass.image.superblock);
    Superblock {
        sequence: U64::new(8),
        epoch: U64::new(4),
        blocks_total: U64::new(blocks),
        inode_dir_block: U64::new(layout.inode_dir.0),
        inode_dir_pointers: U64::new(layout.chunks_max),
        data_block: U64::new(layout.data.0),
        clean: U32::new(1),
        mounted_ns: U64::new(1_700_000_000_000_000_000),
        uuid: [7; 16],
        ..of_empty
    }
    .sealed()
}

#[test]
fn sizes_and_positions_of_a_superblock_fit_together() {
    let is_sane = |sb: Superblock| sane(&sb).is_some();
    let blocks_max = (1 << 40) - 1;
    for (blocks, wanted) in [
        (0, false),
        (1, false),
        (1023, false),
        (1024, true),
        (1025, true),
        (blocks_max, true),
        (1 << 40, false),
    ] {
        assert_eq!(is_sane(superblock(blocks)), wanted, "{blocks} blocks");
    }
    let sb = superblock(1024);
    let off = |value: U64| U64::new(value.get() + 1);
    for wrong in [
        Superblock { inode_dir_block: off(sb.inode_dir_block), ..sb },
        Superblock { inode_dir_pointers: off(sb.inode_dir_pointers), ..sb },
        Superblock { data_block: off(sb.data_block), ..sb },
        Superblock { variant: U32::new(99), ..sb },
    ] {
        assert!(!is_sane(wrong), "{wrong:?}");
    }
    let (layout, variant) = sane(&sb).unwrap();
    assert_eq!((layout, variant), (Layout::new(1024), Variant::Heddle));
}

#[test]
fn part_of_a_mount_or_unmount_is_told_from_other_damage() {
    let whole = superblock(1024);
    let torn = |sb: Superblock| half_written(sb.as_bytes().try_into().unwrap(), &whole);
    let crc = |bits: u32| U32::new(whole.crc.get() ^ bits);
    let (seven, nine, six, ten) = (U64::new(7), U64::new(9), U64::new(6), U64::new(10));
    for (why, is_torn, sb) in [
        ("the checksum, two bits", true, Superblock { crc: crc(0b11), ..whole }),
        ("the checksum, all of it", true, Superblock { crc: crc(u32::MAX), ..whole }),
        ("a flipped bit of the checksum", false, Superblock { crc: crc(0b100), ..whole }),
        ("one bit of the sequence", true, Superblock { sequence: nine, ..whole }),
        ("an older sequence", true, Superblock { sequence: seven, crc: crc(0b1011), ..whole }),
        ("one bit of the epoch", true, Superblock { epoch: U64::new(5), ..whole }),
        ("an older epoch", true, Superblock { epoch: U64::new(3), ..whole }),
        ("both counters", true, Superblock { epoch: U64::new(5), sequence: nine, ..whole }),
        ("when it was mounted", true, Superblock { mounted_ns: U64::new(12_345), ..whole }),
        ("a flipped bit: clean", false, Superblock { clean: U32::new(0), ..whole }),
        ("clean and checksum", true, Superblock { clean: U32::new(0), crc: crc(0b11), ..whole }),
        ("clean is no flag", false, Superblock { clean: U32::new(2), crc: crc(0b11), ..whole }),
        ("two writes on", false, Superblock { sequence: ten, crc: crc(0b11), ..whole }),
        ("two writes before", false, Superblock { sequence: six, crc: crc(0b11), ..whole }),
        ("two mounts on", false, Superblock { epoch: six, crc: crc(0b11), ..whole }),
        ("two mounts before", false, Superblock { epoch: U64::new(2), crc: crc(0b11), ..whole }),
        ("another identity", false, Superblock { uuid: [9; 16], sequence: nine, ..whole }),
        ("another size", false, Superblock { blocks_total: U64::new(2048), sequence: nine, ..whole }),
        ("another seed", false, Superblock { seed: U32::new(1), epoch: U64::new(5), ..whole }),
    ] {
        assert_eq!(torn(sb), is_torn, "{why}");
    }
}

/// Set and clear: the bits of the version, of both copies.
#[test]
fn one_flipped_bit_of_both_copies_is_found_either_way() {
    for bit in [0, 1, 2, 31] {
        let region = Region::anonymous(IMAGE_BYTES).unwrap();
        crate::format_region(&region, Variant::Heddle).unwrap();
        for block in [0, 1023] {
            let at = BlockNo(block).pos().plus(8);
            region.store_u64(at, region.load_u64(at) ^ 1 << bit);
        }
        let read = read("flipped", &Media::new(&region)).unwrap();
        let codes: Vec<Code> = read.issues.iter().map(|issue| issue.code).collect();
        assert_eq!(codes, [Code::SUPERBLOCK_BIT, Code::SUPERBLOCK_COPY, Code::SUPERBLOCK_COPY], "bit {bit}");
        assert_eq!(read.image.unwrap().superblock.version.get(), VERSION);
    }
}

#[test]
fn a_repair_counts_as_a_mount_behind_all_that_were_seen() {
    let image = on_empty(|_, pass| Image { superblock: superblock(1024), ..pass.image });
    let after = |seen| image.after_repair(77, seen).unwrap();
    for (seen, epoch) in [(0, 5), (3, 5), (4, 5), (5, 6), (9, 10), (MOUNTS_MAX - 1, MOUNTS_MAX)] {
        let sb = after(seen);
        assert_eq!((sb.epoch.get(), sb.sequence.get(), sb.repair.get()), (epoch, 9, 77), "{seen}");
        assert!(matches!(Superblock::decode(sb.as_bytes().try_into().unwrap()), FoundSuperblock::Whole(_)));
    }
    assert!(image.after_repair(77, MOUNTS_MAX).is_none());
}
