use super::*;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U32, U64};

const DEVICE_BLOCKS: u64 = 512 * 24;

/// Of 24 segments: superblocks, two of checkpoints, two of SIT, two of NAT, one of SSA, and 16 of nodes and data.
fn whole() -> Superblock {
    let mut sb = Superblock::new_zeroed();
    sb.magic = U32::new(MAGIC);
    (sb.log_block_bytes, sb.log_blocks_per_segment) = (U32::new(12), U32::new(9));
    (sb.segments_per_section, sb.sections) = (U32::new(2), U32::new(8));
    (sb.blocks, sb.segments) = (U64::new(DEVICE_BLOCKS), U32::new(23));
    (sb.segments_checkpoint, sb.segments_sit) = (U32::new(2), U32::new(2));
    (sb.segments_nat, sb.segments_ssa, sb.segments_main) = (U32::new(2), U32::new(1), U32::new(16));
    let at = |segment: u32| U32::new(512 * segment);
    (sb.segment0, sb.checkpoint, sb.sit, sb.nat, sb.ssa, sb.main) =
        (at(1), at(1), at(3), at(5), at(7), at(8));
    (sb.node_ino, sb.meta_ino, sb.root_ino) = (U32::new(1), U32::new(2), U32::new(3));
    sb
}

fn changed(change: impl FnOnce(&mut Superblock)) -> Result<Geometry, String> {
    let mut sb = whole();
    change(&mut sb);
    geometry(&sb, DEVICE_BLOCKS)
}

#[test]
fn areas_that_follow_each_other_within_the_device_are_believed() {
    let found = geometry(&whole(), DEVICE_BLOCKS).unwrap();
    assert_eq!((found.blocks, found.segments_per_section, found.main_segments), (DEVICE_BLOCKS, 2, 16));
    assert!(geometry(&whole(), DEVICE_BLOCKS + 1).is_ok(), "a device may be larger");
    assert!(geometry(&whole(), DEVICE_BLOCKS - 1).is_err(), "it was cut short");
    assert!(changed(|sb| sb.blocks = U64::new(DEVICE_BLOCKS - 1)).is_err());
    type Change = fn(&mut Superblock);
    let wrong: [(&str, Change); 10] = [
        ("root", |sb| sb.root_ino = U32::new(4)),
        ("checkpoint", |sb| sb.checkpoint = U32::new(511)),
        ("first segment", |sb| sb.segment0 = U32::new(0)),
        ("SIT", |sb| sb.segments_sit = U32::new(3)),
        ("NAT", |sb| sb.nat = U32::new(512 * 6)),
        ("SSA", |sb| sb.segments_ssa = U32::new(2)),
        ("main area", |sb| sb.segments_main = U32::new(17)),
        ("sections", |sb| sb.sections = U32::new(7)),
        ("no segments of a section", |sb| (sb.segments_per_section, sb.sections) = (U32::ZERO, U32::ZERO)),
        ("payload", |sb| sb.checkpoint_payload = U32::new(512)),
    ];
    for (what, change) in wrong {
        assert!(changed(change).is_err(), "{what}");
    }
    assert!(changed(|sb| sb.checkpoint_payload = U32::new(511)).is_ok());
    assert!(changed(|sb| (sb.segments_per_section, sb.sections) = (U32::new(16), U32::new(1))).is_ok());
}

#[test]
fn areas_of_odd_or_no_size_are_refused() {
    // Each still follows the one before without a gap.
    let moved = |from: u32, by: i32| {
        move |at: &mut U32| {
            if at.get() > 512 * from {
                at.set(at.get().wrapping_add_signed(512 * by));
            }
        }
    };
    let shift = |sb: &mut Superblock, from: u32, by: i32| {
        for at in [&mut sb.sit, &mut sb.nat, &mut sb.ssa, &mut sb.main] {
            moved(from, by)(at);
        }
        sb.segments_main = U32::new(sb.segments_main.get().wrapping_add_signed(-by));
        (sb.segments_per_section, sb.sections) = (U32::new(1), sb.segments_main);
    };
    assert!(changed(|sb| shift(sb, 99, 0)).is_ok());
    for (what, from, by) in
        [("checkpoints", 1, 1), ("SIT", 3, 1), ("SIT", 3, -1), ("NAT", 5, 1), ("NAT", 5, -2), ("SSA", 7, -1)]
    {
        let result = changed(|sb| {
            let segments = match from {
                1 => &mut sb.segments_checkpoint,
                3 => &mut sb.segments_sit,
                5 => &mut sb.segments_nat,
                _ => &mut sb.segments_ssa,
            };
            segments.set(segments.get().wrapping_add_signed(by));
            shift(sb, from, by);
        });
        assert_eq!(result.err().as_deref(), Some("the sizes of its areas do not match"), "{what} {by}");
    }
    let more = changed(|sb| {
        sb.segments_sit = U32::new(4);
        shift(sb, 3, 2);
    });
    assert_eq!(more.map(|found| (found.sit_segments, found.main_segments)), Ok((4, 14)));
    let none = changed(|sb| {
        (sb.segments_main, sb.sections) = (U32::ZERO, U32::ZERO);
        sb.blocks = U64::new(512 * 8);
    });
    assert!(none.is_err(), "no main area");
}

#[test]
fn no_area_reaches_where_no_pointer_leads() {
    let large = |blocks: u64| {
        let mut sb = whole();
        let main = ((blocks - 512 * 8) / 512) as u32;
        (sb.segments_main, sb.segments_per_section, sb.sections) =
            (U32::new(main), U32::new(main), U32::new(1));
        sb.blocks = U64::new(u64::MAX);
        geometry(&sb, u64::MAX).err().unwrap()
    };
    assert!(large(1 << 32).contains("where no pointer leads"), "{}", large(1 << 32));
    assert!(
        large((1 << 32) - 512).contains("sizes"),
        "SIT and SSA are too small: {}",
        large((1 << 32) - 512)
    );
}

#[test]
fn blocks_of_the_main_area_and_numbers_of_nodes_are_counted() {
    let found = geometry(&whole(), DEVICE_BLOCKS).unwrap();
    let inside = [0, 4095, 4096, 512 * 24 - 1, 512 * 24, u32::MAX].map(|at| found.in_main(BlockAddr(at)));
    assert_eq!(inside, [false, false, true, true, false, false]);
    assert_eq!(found.nids(), 512 * 455);
    assert_eq!(Geometry { nat_segments: u32::MAX, ..found }.nids(), u32::MAX);
}

#[test]
fn a_superblock_is_known_by_its_first_word_and_its_checksum() {
    assert_eq!(check(&whole()), Ok(()));
    let mut other = whole();
    other.magic = U32::new(MAGIC ^ 1);
    assert!(check(&other).unwrap_err().contains("first word"));
    let mut summed = whole();
    summed.feature = U32::new(feature::SUPERBLOCK_CHECKSUM);
    assert!(check(&summed).unwrap_err().contains("at byte 0"));
    summed.checksum_offset = U32::new(3068);
    assert!(check(&summed).unwrap_err().contains("wrong"));
    summed.crc = U32::new(checksum(SEED, &summed.as_bytes()[..3068]));
    assert_eq!(check(&summed), Ok(()));
    summed.uuid[3] ^= 4;
    assert!(check(&summed).is_err());
}
