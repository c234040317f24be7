use super::repair_mark::{RepairId, RepairMark, RepairState};
use super::*;
use crate::device::Access;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use zerocopy::FromZeros;
use zerocopy::little_endian::{U32, U64};

const DEVICE_BLOCKS: u64 = 512 * 24;

/// Of 24 segments, of which 16 are of nodes and data: those from block 4096 on.
pub(crate) fn small() -> Geometry {
    Geometry {
        blocks: DEVICE_BLOCKS,
        segments_per_section: 1,
        checkpoint: BlockAddr(512),
        checkpoint_payload: 0,
        sit: BlockAddr(1536),
        sit_segments: 2,
        nat: BlockAddr(2560),
        nat_segments: 2,
        ssa: BlockAddr(3584),
        main: BlockAddr(4096),
        main_segments: 16,
    }
}

/// A device with room for [`small`] and a segment more.
pub(crate) fn small_device() -> (tempfile::NamedTempFile, Device) {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len((DEVICE_BLOCKS + 512) * BLOCK_BYTES as u64).unwrap();
    let device = Device::open(file.path(), Access::Write).unwrap();
    (file, device)
}

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

#[test]
fn areas_begin_behind_the_superblocks_and_end_before_the_marks() {
    // All of them moved, so that the checkpoints are at this block.
    let begins = |at: u32| {
        changed(|sb| {
            for start in
                [&mut sb.segment0, &mut sb.checkpoint, &mut sb.sit, &mut sb.nat, &mut sb.ssa, &mut sb.main]
            {
                start.set(start.get() - 512 + at);
            }
        })
    };
    assert_eq!([0, 1, 2, 3].map(|at| begins(at).is_ok()), [false, false, true, true]);
    // Two numbers mark what is no block, and one more is left out.
    let ends = |end: u64| {
        let mut sb = whole();
        let behind = (end % 512) as u32;
        for start in
            [&mut sb.segment0, &mut sb.checkpoint, &mut sb.sit, &mut sb.nat, &mut sb.ssa, &mut sb.main]
        {
            start.set(start.get() - 512 + behind);
        }
        sb.segments_main = U32::new(((end - u64::from(sb.main.get())) / 512) as u32);
        sb.blocks = U64::new(u64::MAX);
        geometry(&sb, u64::MAX).err().unwrap()
    };
    assert!(ends((1 << 32) - 3).contains("sizes"), "{}", ends((1 << 32) - 3));
    assert!(ends((1 << 32) - 2).contains("where no pointer leads"));
}

#[test]
fn a_main_area_is_as_large_as_its_tables_have_entries() {
    // With so many segments of the SIT and of summaries.
    let fits = |sit: u32, ssa: u32, main: u32| {
        let mut sb = whole();
        (sb.segments_sit, sb.segments_ssa, sb.segments_main) = (U32::new(sit), U32::new(ssa), U32::new(main));
        (sb.segments_per_section, sb.sections) = (U32::new(1), U32::new(main));
        sb.nat = U32::new(sb.sit.get() + 512 * sit);
        sb.ssa = U32::new(sb.nat.get() + 1024);
        sb.main = U32::new(sb.ssa.get() + 512 * ssa);
        sb.blocks = U64::new(1 << 31);
        geometry(&sb, 1 << 31).is_ok()
    };
    // A block of the SIT has 55 entries, and half of them are copies; one of summaries is for one segment.
    for (sit, ssa, main) in [(2, 99, 512 * 55), (4, 200, 2 * 512 * 55), (2, 1, 512), (2, 3, 3 * 512)] {
        assert!(fits(sit, ssa, main) && !fits(sit, ssa, main + 1), "{sit} {ssa} {main}");
    }
}

/// An image, and its device.
fn image() -> (tempfile::TempDir, Device) {
    let place = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = path_in(&place);
    File::create(&path).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
    crate::make_image(&path, "label", &|_, _| ()).unwrap();
    let device = Device::open(&path, Access::Write).unwrap();
    (place, device)
}

fn path_in(place: &tempfile::TempDir) -> PathBuf {
    place.path().join("image")
}

fn copies(device: &Device) -> [Block; 2] {
    [0, 1].map(|copy| *device.block(BlockAddr(copy)).unwrap())
}

fn damage(device: &Device, copy: u32) {
    let mut block = *device.block(BlockAddr(copy)).unwrap();
    block[SUPERBLOCK_OFFSET_BYTES] ^= 1;
    device.write(BlockAddr(copy), &block).unwrap();
}

#[test]
fn the_first_superblock_replaces_the_second_if_their_marks_differ() {
    for (changed, stays) in [([0, 0], true), ([1, 1], false)] {
        let (_place, device) = image();
        let [before, _] = copies(&device);
        rewrite(&device, changed, |found| found.node_log_mark = *b"a mark\0\0").unwrap();
        repair(&device).unwrap();
        let [first, second] = copies(&device);
        assert!(first == second && (first != before) == stays);
    }
}

#[test]
fn a_superblock_without_its_feature_gets_no_checksum() {
    let (_place, device) = image();
    rewrite(&device, [0, 1], |found| found.crc.set(7)).unwrap();
    assert_ne!(checked(&device, 0).unwrap().crc.get(), 7);
    for copy in 0..2 {
        let mut block = *device.block(BlockAddr(copy)).unwrap();
        let found = Superblock::mut_from_bytes(&mut block[SUPERBLOCK_OFFSET_BYTES..]).unwrap();
        found.feature.set(found.feature.get() & !feature::SUPERBLOCK_CHECKSUM);
        device.write(BlockAddr(copy), &block).unwrap();
    }
    rewrite(&device, [0, 1], |found| found.crc.set(7)).unwrap();
    assert_eq!(checked(&device, 0).unwrap().crc.get(), 7);
    // A damaged copy is left as it is.
    damage(&device, 1);
    let [_, before] = copies(&device);
    rewrite(&device, [0, 1], |found| found.crc.set(8)).unwrap();
    assert!(copies(&device)[1] == before && checked(&device, 0).unwrap().crc.get() == 8);
}

#[test]
fn superblocks_are_equal_but_for_marks_and_their_checksum() {
    let (_place, device) = image();
    let whole = copies(&device)[0];
    let is_equal = |change: &dyn Fn(&mut Superblock)| {
        let mut other = whole;
        change(Superblock::mut_from_bytes(&mut other[SUPERBLOCK_OFFSET_BYTES..]).unwrap());
        equal_but_for_marks([whole, other])
    };
    assert!(is_equal(&|_| ()));
    assert!(is_equal(&|found| {
        (found.repair_mark, found.node_log_mark) = (*b"HEDDLERB", *b"HEDDLERB");
        found.repair_id.set(7);
        found.crc.set(7);
    }));
    assert!(!is_equal(&|found| found.volume_name[0].set(7)));
    let mut other = whole;
    other[SUPERBLOCK_OFFSET_BYTES - 1] ^= 1;
    assert!(!equal_but_for_marks([whole, other]));
    assert!(is_whole(&whole) && !is_whole(&[0; BLOCK_BYTES]));
    other[SUPERBLOCK_OFFSET_BYTES + 100] ^= 1;
    assert!(!is_whole(&other));
}

/// What another program left before the first superblock's place, or in that of the second, is newer.
#[test]
fn another_format_counts_as_newer_where_mkfs_would_have_cleared() {
    type Mark = (usize, &'static [u8]);
    let marks: [(Mark, bool, bool); 6] = [
        ((0, b"XFSB"), true, true),
        ((516, b"!Stra0tis\x86\xff\x02^\x41rh"), true, true),
        ((4120, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"), true, true),
        ((4086, b"SWAPSPACE2"), false, true),
        ((8192, b"OCFSV2"), false, true),
        ((0x8001, b"CD001"), false, true),
    ];
    for ((at, bytes), is_refused, is_refused_without_first) in marks {
        for (is_first_gone, wanted) in [(false, is_refused), (true, is_refused_without_first)] {
            let (place, device) = image();
            drop(device);
            let file = File::options().write(true).open(path_in(&place)).unwrap();
            if is_first_gone {
                file.write_all_at(&[0; BLOCK_BYTES], 0).unwrap();
            }
            file.write_all_at(bytes, at as u64).unwrap();
            let refused = refuse_foreign(&Device::open(&path_in(&place), Access::Read).unwrap());
            assert_eq!(refused.is_err(), wanted, "{at}, {is_first_gone}");
            if let Err(OpenError::Foreign { at: told, .. }) = refused {
                assert_eq!(told, at as u64);
            }
        }
    }
}

#[test]
fn a_repair_that_either_superblock_says_is_half_done_is_half_done() {
    let mark = |id, state| Some(RepairMark { id: RepairId(id), state });
    let [begun, back, done] =
        [RepairState::UnderWay, RepairState::GoingBack, RepairState::Done].map(|state| mark(5, state));
    let cases = [
        (None, None, None),
        (begun, begun, begun),
        (None, begun, begun),
        (begun, None, begun),
        (done, back, back),
        (back, done, back),
        (done, None, done),
        (None, done, None),
        (done, mark(6, RepairState::Done), done),
    ];
    let (_place, device) = image();
    let put = |copy, mark: Option<RepairMark>| {
        let bytes = match mark.map(|mark| mark.state) {
            None => [0; 8],
            Some(RepairState::UnderWay) => *b"HEDDLERB",
            Some(RepairState::GoingBack) => *b"HEDDLERU",
            Some(RepairState::Done) => *b"HEDDLERD",
        };
        rewrite(&device, [copy, copy], |found| {
            found.repair_mark = bytes;
            found.repair_id.set(mark.map_or(0, |mark| mark.id.0));
        })
        .unwrap();
    };
    for (first, second, told) in cases {
        put(0, first);
        put(1, second);
        assert_eq!(repair_mark::read(&device), told, "{first:?}, {second:?}");
        if let Some(mark) = first {
            assert_eq!(repair_mark::is_on_all(&device, mark), first == second, "{first:?}, {second:?}");
        }
        assert_eq!(told.map(RepairMark::is_half), told.map(|mark| Some(mark) != done));
    }
    let mark = begun.unwrap();
    put(0, begun);
    damage(&device, 1);
    assert!(repair_mark::is_on_all(&device, mark), "a damaged copy says nothing");
    damage(&device, 0);
    assert!(!repair_mark::is_on_all(&device, mark), "nor do two of them");
    assert_eq!(repair_mark::read(&device), None);
}
