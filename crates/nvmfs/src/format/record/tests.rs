//! Records that a program could have written wrongly: their checksums are right, and they are damage.

use super::super::fields;
use super::super::word::all_written;
use super::*;

const HOME: InodeId = InodeId { ino: Ino(7), generation: 99 };
const SEED: u32 = 0x1234_5678;
const SLOT: u32 = 5;

fn write() -> Record {
    Record::Write {
        page: PageNo(3),
        pages: 2,
        blocks: Blocks::At(BlockNo(77)),
        end_in_last_page: 4096,
        version: Version(8),
        mtime: Time(1),
        change_count: 4,
    }
}

fn punch() -> Record {
    Record::Punch { page: PageNo(3), pages: 2, version: Version(8), mtime: Time(1), change_count: 4 }
}

fn entry(dir: InodeId, name: &[u8]) -> Record {
    Record::Name {
        dir,
        removed: false,
        child: InodeId { ino: Ino(12), generation: 5 },
        kind: FileKind::Regular,
        name: NameBuf::new(name),
        version: Version(8),
        mtime: Time(1),
        change_count: 4,
    }
}

fn sealed(record: &Record, slot: u32) -> Vec<Line> {
    let txn = Txn { first: slot, slots: record.slots_in(HOME) };
    record.draft(HOME, 3).seal(SEED, slot, txn, true).to_vec()
}

/// The record with these fields of its first line changed, and a right checksum.
fn forged(record: &Record, slot: u32, values: &[(Field, u64)]) -> Vec<Line> {
    let mut lines = sealed(record, slot);
    let first = &mut lines[0];
    for (field, value) in values {
        first[field.word] = first[field.word] & !field.mask() | value << field.shift;
    }
    let head = first[0] & !0xffff_ffff;
    let words = [u64::from(slot), head, first[1], first[2], first[3], first[4], first[5], first[6]];
    first[0] = head | u64::from(crc(SEED, &words));
    lines
}

fn found(lines: &[Line], slot: u32) -> FoundRecord {
    parse(SEED, HOME, slot, |s| lines.get((s - slot) as usize).copied().unwrap_or([0; 8]))
}

fn is_whole(record: &Record, values: &[(Field, u64)]) -> bool {
    match found(&forged(record, SLOT, values), SLOT) {
        FoundRecord::Whole { .. } => true,
        FoundRecord::Damaged => false,
        other => panic!("{record:?} with {values:?}: {other:?}"),
    }
}

#[test]
fn pages_end_within_what_a_file_can_have() {
    const END: u64 = 1 << 36;
    for (page, pages, end_in_last_page, wanted) in [
        (0, 1, 1, true),
        (0, 0, 1, false),
        (END - 5, 5, 0, true),
        (END - 5, 6, 0, false),
        (END - 1, (1 << 20) - 1, 1, false),
        (2, 3, 4096, true),
        (2, 3, 4097, false),
        (2, 3, 8191, false),
    ] {
        let values = [(write::PAGE, page), (write::PAGES, pages), (write::END, end_in_last_page)];
        assert_eq!(is_whole(&write(), &values), wanted, "{page}, {pages}, {end_in_last_page}");
    }
    for (page, pages, wanted) in [
        (0, END, true),
        (1, END, false),
        (2, END - 2, true),
        (0, 0, false),
        (END - 1, 1, true),
        (END - 1, 2, false),
    ] {
        let values = [(punch::PAGE, page), (punch::PAGES, pages)];
        assert_eq!(is_whole(&punch(), &values), wanted, "{page}, {pages}");
    }
}

#[test]
fn versions_and_change_counts_stay_below_their_limits() {
    let (limit, counts) = (1 << 47, 1 << 49);
    for (version, wanted) in [(0, false), (1, true), (limit - 1, true), (limit, false)] {
        assert_eq!(is_whole(&write(), &[(write::VERSION, version)]), wanted, "{version}");
        assert_eq!(is_whole(&punch(), &[(punch::VERSION, version)]), wanted, "{version}");
    }
    for (count, wanted) in [(0, true), (counts - 1, true), (counts, false), (counts + 1, false)] {
        assert_eq!(is_whole(&write(), &[(write::CHANGE_COUNT, count)]), wanted, "{count}");
        assert_eq!(is_whole(&entry(HOME, b"a"), &[(entry::CHANGE_COUNT, count)]), wanted, "{count}");
    }
}

#[test]
fn flags_and_bits_that_a_kind_does_not_have_are_damage() {
    for (flags, wanted) in [(0, true), (1, true), (2, true), (3, false), (4, false), (8, false), (33, false)]
    {
        assert_eq!(is_whole(&write(), &[(f::FLAGS, flags)]), wanted, "{flags}");
    }
    for flags in 1..64 {
        assert!(!is_whole(&punch(), &[(f::FLAGS, flags)]), "{flags}");
    }
    for kind in (0..64).filter(|kind| !(1..=7).contains(kind)) {
        assert!(!is_whole(&punch(), &[(f::KIND, kind)]), "{kind}");
    }
    let bit = |word, shift| (Field { name: "a bit outside", word, shift, bits: 1 }, 1);
    for outside in [bit(1, 49), bit(2, 60), bit(4, 12), bit(6, 50), bit(6, 61)] {
        assert!(!is_whole(&write(), &[outside]), "{outside:?}");
    }
    // A name's first seven bytes stand where another directory's record has its number, of more bits.
    assert!(is_whole(&entry(HOME, b"seven.."), &[]));
    for shift in 56..62 {
        assert!(!is_whole(&entry(HOME, b"seven.."), &[bit(6, shift)]), "{shift}");
    }
}

#[test]
fn a_record_has_one_to_seven_lines_within_its_page() {
    for (slots, wanted) in [(0, false), (1, true), (8, false), (15, false)] {
        assert_eq!(is_whole(&write(), &[(f::SLOTS, slots)]), wanted, "{slots}");
    }
    let two = entry(HOME, b"ten bytes.");
    for (slot, wanted) in [(1, true), (62, true), (63, false)] {
        let is = matches!(found(&sealed(&two, slot), slot), FoundRecord::Whole { slots: 2, .. });
        assert_eq!(is, wanted, "{slot}");
        assert!(is || found(&sealed(&two, slot), slot) == FoundRecord::Damaged, "{slot}");
    }
    assert!(matches!(found(&sealed(&write(), 63), 63), FoundRecord::Whole { slots: 1, .. }));
    let behind = write().draft(HOME, 3).seal(SEED, 64, Txn { first: 63, slots: 1 }, true).to_vec();
    assert_eq!(found(&behind, 64), FoundRecord::Damaged, "behind the page");
}

/// The table in this module's header says where the bytes of a name stand.
#[test]
fn a_name_fills_its_lines_seven_bytes_a_word_in_order() {
    let stranger = InodeId { ino: Ino(8), generation: 3 };
    for len in [1, 6, 7, 8, 14, 36, 42, 43, 49, 50, 56, 57, 99, 105, 106, 154, 155, 248, 255] {
        let name: Vec<u8> = (0..len).map(|n| n as u8 + 1).collect();
        for (dir, skipped) in [(HOME, 0), (stranger, 2)] {
            let lines = sealed(&entry(dir, &name), SLOT);
            let later = lines[1..].iter().flat_map(|line| &line[..7]);
            let words: Vec<u64> =
                [&lines[0][6]].into_iter().chain(later).map(|word| word & !WRITTEN).collect();
            let bytes: Vec<u8> =
                words[skipped..].iter().flat_map(|word| word.to_le_bytes()[..7].to_vec()).collect();
            assert_eq!(bytes[..name.len()], name, "{len} bytes");
            assert!(bytes[name.len()..].iter().all(|byte| *byte == 0), "{len} bytes");
            let wanted = (skipped + name.len().div_ceil(7)).saturating_sub(1).div_ceil(7) + 1;
            assert_eq!(lines.len(), wanted, "{len} bytes");
        }
    }
    assert_eq!(format!("{:?}", NameBuf::new(b"it's")), "\"it's\"");
}

#[test]
fn only_a_sealed_line_behind_the_first_is_a_later_one() {
    let lines = sealed(&entry(HOME, &[b'x'; 100]), SLOT);
    assert!(lines.len() > 2);
    for (n, line) in lines.iter().enumerate().skip(1) {
        let slot = SLOT + n as u32;
        assert!(is_later_line(SEED, slot, line), "line {n}");
        assert!(!is_later_line(SEED, slot + 1, line) && !is_later_line(SEED + 1, slot, line), "line {n}");
        for bit in 0..512 {
            let mut bad = *line;
            bad[bit / 64] ^= 1 << (bit % 64);
            assert!(!is_later_line(SEED, slot, &bad), "bit {bit} of line {n}");
        }
    }
    assert!(!is_later_line(SEED, SLOT, &lines[0]));
    // Lines with a right checksum: the number of the first line, and a word that was never written.
    let seal = |mut line: Line, number: u64| {
        let head = 0x15 << 32 | number << 38;
        let words = [u64::from(SLOT), head, line[0], line[1], line[2], line[3], line[4], line[5], line[6]];
        line[7] = WRITTEN | head | u64::from(crc(SEED, &words));
        line
    };
    let written = [WRITTEN | 5; 8];
    assert!(is_later_line(SEED, SLOT, &seal(written, 1)) && is_later_line(SEED, SLOT, &seal(written, 6)));
    assert!(!is_later_line(SEED, SLOT, &seal(written, 0)), "it is no later line");
    let mut unwritten = written;
    unwritten[2] = 5;
    assert!(!all_written(&unwritten) && !is_later_line(SEED, SLOT, &seal(unwritten, 1)));
    assert_eq!(fields::later::LINE.shift, 38);
}

#[test]
fn the_short_way_reads_nothing_but_a_whole_plain_write() {
    let line = sealed(&write(), SLOT)[0];
    let plain = PlainWrite {
        page: PageNo(3),
        pages: 2,
        end_in_last_page: 4096,
        version: Version(8),
        change_count: 4,
    };
    assert_eq!(decode_plain_write(SEED, SLOT, &line), Some(plain));
    let refused = |line: &Line| decode_plain_write(SEED, SLOT, line).is_none();
    assert!(decode_plain_write(SEED, SLOT + 1, &line).is_none());
    for bit in 0..512 {
        let mut bad = line;
        bad[bit / 64] ^= 1 << (bit % 64);
        assert!(refused(&bad), "bit {bit}");
    }
    for word in 0..8 {
        let mut torn = line;
        torn[word] = 0;
        assert!(refused(&torn), "word {word}");
    }
    for other in [punch(), entry(HOME, b"a"), entry(HOME, &[b'x'; 50])] {
        assert!(refused(&sealed(&other, SLOT)[0]), "{other:?}");
    }
    for values in [(f::FLAGS, 1), (f::FLAGS, 2), (f::SLOTS, 2), (write::PAGES, 0)] {
        assert!(refused(&forged(&write(), SLOT, &[values])[0]), "{values:?}");
    }
}
