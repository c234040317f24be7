//! Layouts: what is written is read back, and every kind of damage is told apart.

use super::page::PageHeader;
use super::record::{
    Attributes, Blocks, FoundRecord, NameBuf, PlainWrite, Record, Txn, decode_plain_write,
    encode_plain_write, parse,
};
use super::word::{Line, crc};
use super::{blob, extent_list, inode, layout, page, pointer, word};
use crate::ids::{BlockNo, Extent, InodeId, PageNo, Version};
use heddle_vfs::xattr::Xattrs;
use heddle_vfs::{FileKind, Ino, Time, XattrName};

const HOME: InodeId = InodeId { ino: Ino(7), generation: 99 };
const SEED: u32 = 0x1234_5678;

fn samples() -> Vec<Record> {
    let version = Version(77);
    let mtime = Time(1_700_000_000_123_456_789);
    let child = InodeId { ino: Ino(12), generation: 1 << 61 };
    let name = |n: usize, dir: InodeId, removed: bool| Record::Name {
        dir,
        removed,
        child,
        kind: FileKind::Symlink,
        name: NameBuf::new(&vec![b'x'; n]),
        version,
        mtime,
        change_count: (1 << 49) - 1 - n as u64,
    };
    let stranger = InodeId { ino: Ino(8), generation: 3 };
    let mut all = vec![
        Record::Write {
            page: PageNo(PageNo::END.0 - 5),
            pages: 5,
            blocks: Blocks::At(BlockNo((1 << 40) - 1)),
            end_in_last_page: 4096,
            version,
            mtime,
            change_count: 5,
        },
        Record::Write {
            page: PageNo(0),
            pages: super::record::WRITE_PAGES_MAX,
            blocks: Blocks::List(BlockNo(9)),
            end_in_last_page: 1,
            version,
            mtime,
            change_count: 0,
        },
        Record::Punch { page: PageNo(0), pages: PageNo::END.0, version, mtime, change_count: 1 },
        Record::Attributes(Attributes {
            size: 1 << 48,
            perm: 0o7777,
            uid: u32::MAX,
            gid: u32::MAX,
            mtime,
            ctime: Time(0),
            atime: Time(-1_000_000_000),
            change_count: 9,
        }),
    ];
    for blob in [None, Some(BlockNo((1 << 40) - 1))] {
        all.push(Record::Xattrs { blob, change_count: (1 << 49) - 1, mtime });
        all.push(Record::Remap { page: PageNo(PageNo::END.0 - 1), blob, version, mtime, change_count: 3 });
    }
    for n in [1, 6, 7, 8, 62, 63, 64, 255] {
        all.extend([name(n, HOME, false), name(n, stranger, false), name(n, HOME, true)]);
    }
    all
}

fn sealed(record: &Record, slot: u32) -> Vec<Line> {
    let mut draft = record.draft(HOME, 3);
    let txn = Txn { first: slot, slots: record.slots_in(HOME) };
    draft.seal(SEED, slot, txn, true).to_vec()
}

fn read(lines: &[Line], slot: u32) -> FoundRecord {
    parse(SEED, HOME, slot, |s| lines.get((s - slot) as usize).copied().unwrap_or([0; 8]))
}

#[test]
fn every_record_is_read_back_as_it_was_written() {
    for record in samples() {
        let lines = sealed(&record, 5);
        assert_eq!(lines.len() as u32, record.slots_in(HOME));
        assert!(lines.len() as u32 <= record.slots_max());
        match read(&lines, 5) {
            FoundRecord::Whole { record: back, slots, mark, .. } => {
                assert_eq!(back, record);
                assert_eq!((slots as usize, mark), (lines.len(), Some(true)));
            }
            other => panic!("{record:?} was read as {other:?}"),
        }
    }
}

#[test]
fn the_short_way_builds_the_same_line_as_the_long_one() {
    let (version, mtime, change_count) = (Version(8), Time(1_700_000_000_000_000_001), 3);
    let write = PlainWrite { page: PageNo(5), pages: 1, end_in_last_page: 4096, version, change_count };
    let record = Record::Write {
        page: PageNo(5),
        pages: 1,
        blocks: Blocks::At(BlockNo(77)),
        end_in_last_page: 4096,
        version,
        mtime,
        change_count,
    };
    let long = record.draft(HOME, 9).seal(SEED, 12, Txn { first: 12, slots: 1 }, true).to_vec();
    let short = encode_plain_write(SEED, 12, 9, &write, BlockNo(77), mtime);
    assert_eq!(long, [short]);
    assert_eq!(decode_plain_write(SEED, 12, &short), Some(write));
}

#[test]
fn a_whole_record_of_what_can_be_no_name_is_damage() {
    let of = |bytes: &[u8]| Record::Name {
        dir: HOME,
        removed: false,
        child: InodeId { ino: Ino(9), generation: 4 },
        kind: FileKind::Regular,
        name: NameBuf::new(bytes),
        version: Version(7),
        mtime: Time(1),
        change_count: 2,
    };
    assert!(matches!(read(&sealed(&of(b"..."), 5), 5), FoundRecord::Whole { .. }));
    for bytes in [&b""[..], b".", b"..", b"a/b", b"nul\0"] {
        assert_eq!(read(&sealed(&of(bytes), 5), 5), FoundRecord::Damaged, "{bytes:?}");
    }
}

#[test]
fn a_record_in_another_slot_or_page_does_not_count() {
    for record in samples() {
        let lines = sealed(&record, 5);
        assert_eq!(
            parse(SEED, HOME, 6, |s| lines.get((s - 6) as usize).copied().unwrap_or([0; 8])),
            FoundRecord::Damaged
        );
        assert_eq!(
            parse(SEED + 1, HOME, 5, |s| lines.get((s - 5) as usize).copied().unwrap_or([0; 8])),
            FoundRecord::Damaged
        );
    }
}

#[test]
fn any_missing_word_is_torn() {
    for record in samples() {
        let lines = sealed(&record, 5);
        for at in 0..lines.len() * 8 {
            let mut cut = lines.clone();
            cut[at / 8][at % 8] = 0;
            match read(&cut, 5) {
                FoundRecord::Torn => {}
                // The mark alone is missing.
                FoundRecord::Whole { mark: None, .. } if at == 7 => {}
                other => panic!("word {at} of {record:?} missing: {other:?}"),
            }
        }
    }
}

#[test]
fn any_flipped_bit_is_damage() {
    for record in samples() {
        let lines = sealed(&record, 5);
        for bit in 0..lines.len() * 512 {
            let mut bad = lines.clone();
            bad[bit / 512][bit % 512 / 64] ^= 1 << (bit % 64);
            match read(&bad, 5) {
                FoundRecord::Damaged => {}
                FoundRecord::Whole { mark: Some(false), .. } if (448..512).contains(&bit) => {}
                other => panic!("bit {bit} of {record:?} flipped: {other:?}"),
            }
        }
    }
}

#[test]
fn headers_inodes_and_pointers_refuse_every_flipped_bit() {
    let header = PageHeader { owner: HOME, epoch: 4, lane: 6, serial: 1 << 40, chain: 2, era: 9 };
    let line = header.encode(SEED);
    assert_eq!(PageHeader::decode(SEED, &line), Some(header));
    let base = inode::InodeBase {
        id: HOME,
        kind: FileKind::Directory,
        perm: 0o1777,
        uid: 1,
        gid: 2,
        rdev: 3,
        crtime: Time(5),
    };
    let slot = base.encode(SEED);
    assert_eq!(inode::InodeBase::decode(SEED, HOME.ino, &slot), inode::FoundInode::Whole(base));
    for bit in 0..512 {
        let mut bad = line;
        bad[bit / 64] ^= 1 << (bit % 64);
        // Word 7, the next pointer, is not under the checksum.
        assert!(bit >= 448 || PageHeader::decode(SEED, &bad).is_none(), "bit {bit}");
        let mut bad = slot;
        bad[bit / 64] ^= 1 << (bit % 64);
        assert_eq!(inode::InodeBase::decode(SEED, HOME.ino, &bad), inode::FoundInode::Damaged, "bit {bit}");
    }
    let raw = pointer::encode(SEED, HOME, pointer::PointerLocation::Head(1), BlockNo(77));
    let tail = pointer::encode_tail(SEED, HOME, BlockNo(77), 64);
    assert_eq!(
        pointer::decode(SEED, HOME, pointer::PointerLocation::Head(1), raw),
        pointer::Target::At(BlockNo(77))
    );
    assert_eq!(pointer::decode_tail(SEED, HOME, tail), pointer::Target::At((BlockNo(77), 64)));
    for bit in 0..64 {
        assert_eq!(
            pointer::decode(SEED, HOME, pointer::PointerLocation::Head(1), raw ^ 1 << bit),
            pointer::Target::Bad
        );
        assert_eq!(pointer::decode_tail(SEED, HOME, tail ^ 1 << bit), pointer::Target::Bad);
    }
}

#[test]
fn the_checksum_is_the_same_with_and_without_the_instruction() {
    let words = [1, u64::MAX, 0, 0x0123_4567_89ab_cdef];
    let soft = words.iter().fold(7u32, |crc, w| !crc32c::crc32c_append(!crc, &w.to_le_bytes()));
    assert_eq!(crc(7, &words), soft);
}

#[test]
fn a_blob_reads_back_and_any_flipped_bit_is_noticed() {
    let mut xattrs = Xattrs::default();
    for (name, len) in [("user.a", 0), ("user.longer", 77), ("trusted.t", 900)] {
        xattrs.put(XattrName::new(name.as_bytes()).unwrap(), vec![0xa5; len]).unwrap();
    }
    let runs =
        [(0, 1, false), (1, 7, true), (99, blob::RUN_PAGES_MAX, false)].map(|(page, count, unwritten)| {
            let blocks = Extent { block: BlockNo((1 << 40) - 1 - count), count };
            blob::MapRun { page: PageNo(page), blocks, unwritten }
        });
    for (kind, body) in
        [(blob::Kind::Xattrs, blob::words_of_xattrs(&xattrs)), (blob::Kind::Map, blob::words_of_map(&runs))]
    {
        let at = BlockNo(1234);
        let words = blob::encode(SEED, HOME, kind, at, &body, Some(BlockNo(5)));
        let read = |words: &[u64], at: BlockNo, kind: blob::Kind| {
            blob::decode(SEED, HOME, kind, at, |i| words.get(i).copied().unwrap_or(0))
        };
        assert_eq!(read(&words, at, kind), Some((body.clone(), Some(BlockNo(5)))));
        assert_eq!(read(&words, BlockNo(1235), kind), None, "in another place");
        for bit in 0..words.len() * 64 {
            let mut flipped = words.clone();
            flipped[bit / 64] ^= 1 << (bit % 64);
            assert_eq!(read(&flipped, at, kind), None, "bit {bit}");
        }
    }
    assert_eq!(blob::xattrs_of_words(&blob::words_of_xattrs(&xattrs)), Some(xattrs));
    assert_eq!(blob::map_of_words(&blob::words_of_map(&runs)), Some(runs.to_vec()));
    let twice = [runs[1], runs[0]];
    assert_eq!(blob::map_of_words(&blob::words_of_map(&twice)), None, "out of order");
}

#[test]
fn runs_of_a_map_do_not_overlap_and_end_with_the_file() {
    const END: u64 = 1 << 36;
    let read = |runs: &[(u64, u64)]| {
        let runs: Vec<blob::MapRun> = runs
            .iter()
            .map(|(page, count)| {
                let blocks = Extent { block: BlockNo(9), count: *count };
                blob::MapRun { page: PageNo(*page), blocks, unwritten: false }
            })
            .collect();
        let is = blob::map_of_words(&blob::words_of_map(&runs));
        assert!(is.is_none() || is == Some(runs));
        is.is_some()
    };
    assert!(read(&[]) && read(&[(0, 5), (5, 1), (6, 9)]) && read(&[(2, 3), (5, 1)]));
    assert!(!read(&[(0, 5), (3, 1)]) && !read(&[(0, 5), (4, 1)]) && !read(&[(2, 3), (4, 3)]));
    assert!(!read(&[(4, 0)]) && !read(&[(0, 5), (5, 0)]));
    assert!(read(&[(END - 1, 1)]) && read(&[(END - 7, 7)]));
    assert!(!read(&[(END - 1, 2)]) && !read(&[(END - 7, 8)]) && !read(&[(END - 1, 1 << 20)]));
    assert_eq!(blob::map_of_words(&[1, 2, 3]), None, "half of a run");
}

#[test]
fn headers_of_the_last_mount_and_era_are_read() {
    let header = PageHeader { owner: HOME, epoch: 4, lane: 6, serial: 1, chain: 2, era: 9 };
    let is_read = |header: PageHeader| PageHeader::decode(SEED, &header.encode(SEED)) == Some(header);
    let epoch = |epoch| is_read(PageHeader { epoch, ..header });
    let era = |era| is_read(PageHeader { era, ..header });
    assert!(epoch(0) && epoch((1 << 22) - 1) && !epoch(1 << 22) && !epoch((1 << 22) + 1));
    assert!(era(0) && era(1 << 56) && !era((1 << 56) + 1) && !era(1 << 57));
}

/// docs/format-nvm.md has these numbers: images depend on them.
#[test]
fn limits_are_those_of_the_format() {
    assert_eq!(extent_list::EXTENT_BLOCKS_MAX, 4_194_303, "a count of 22 bits");
    assert_eq!(super::record::WRITE_PAGES_MAX, 1_048_575, "a count of 20 bits");
    // A mebibyte of names and values, four bytes before each name of at least one, in blocks of 510 words.
    assert_eq!(blob::XATTR_BLOCKS_MAX, 1286);
    assert_eq!(layout::REGION_BYTES_MIN, 4_194_304);
    assert_eq!((page::SLOTS, inode::INODE_BYTES), (63, 128));
    let largest = [Extent { block: BlockNo((1 << 40) - 1), count: 4_194_303 }];
    let words = extent_list::encode(SEED, HOME, BlockNo(3), &largest, None);
    let read = extent_list::decode(SEED, HOME, BlockNo(3), |i| words.get(i).copied().unwrap_or(0));
    assert_eq!(read, Some((largest.to_vec(), None)));
}

/// Fields are the whole list: what an encoder sets, some field covers.
#[test]
fn no_bit_is_written_outside_a_field() {
    use super::fields::{self, Field};
    let outside = |words: &[u64], fields: &[&[Field]]| {
        let covered = |word: usize| {
            let here = fields.iter().copied().flatten().filter(|field| field.word == word);
            here.fold(super::word::WRITTEN, |mask, field| mask | field.mask())
        };
        words.iter().enumerate().find(|(i, word)| **word & !covered(*i) != 0).map(|(i, _)| i)
    };
    for record in samples() {
        let kind = match &record {
            Record::Write { .. } => fields::write::ALL,
            Record::Punch { .. } => fields::punch::ALL,
            Record::Attributes(_) => fields::attributes::ALL,
            Record::Xattrs { .. } => fields::xattrs::ALL,
            Record::Remap { .. } => fields::remap::ALL,
            Record::Name { .. } => fields::entry::ALL,
        };
        let mut words = sealed(&record, 1).concat();
        let words_in_all = words.len();
        // Word 7 of each line but the first; the rest of a name lies behind its first word.
        (15..words_in_all).step_by(8).for_each(|at| words[at] &= !((1 << 42) - 1));
        if let Record::Name { dir, .. } = &record {
            words.truncate(if *dir == HOME { 7 } else { 10 });
        }
        let foreign: &[Field] = match &record {
            Record::Name { dir, .. } if *dir != HOME => fields::foreign::ALL,
            _ => &[],
        };
        assert_eq!(outside(&words, &[fields::record::ALL, kind, foreign]), None, "{record:?}");
    }
    let id = InodeId { ino: Ino(u64::MAX >> 2), generation: u64::MAX >> 2 };
    let base = inode::InodeBase {
        id,
        kind: FileKind::Symlink,
        perm: 0o7777,
        uid: u32::MAX,
        gid: u32::MAX,
        rdev: u32::MAX,
        crtime: Time(i64::MAX),
    };
    assert_eq!(outside(&base.encode(SEED), &[fields::inode::ALL]), None);
    let header = PageHeader {
        owner: id,
        epoch: u64::MAX >> 16,
        lane: (1 << 14) - 1,
        serial: u64::MAX >> 2,
        chain: u32::MAX,
        era: u64::MAX >> 2,
    };
    assert_eq!(outside(&header.encode(SEED), &[fields::page::ALL]), None);
    // Where one stands on another, both would change.
    for structure in fields::STRUCTURES {
        for (i, one) in structure.fields.iter().enumerate() {
            let apart = |other: &Field| one.word != other.word || one.mask() & other.mask() == 0;
            assert!(structure.fields[i + 1..].iter().all(apart), "{}: {}", structure.name, one.name);
        }
    }
}

#[test]
fn pointers_tails_and_lists_are_read_back_and_belong_to_one_place() {
    use pointer::{PointerLocation, Target, decode, decode_tail, encode, encode_tail};
    let block = BlockNo((1 << 40) - 1);
    let places = [
        PointerLocation::Head(0),
        PointerLocation::Head(1),
        PointerLocation::HeadBlock,
        PointerLocation::Next(BlockNo(1)),
        PointerLocation::Tail,
        PointerLocation::InodeChunk(1),
        PointerLocation::ExtentList(BlockNo(1)),
        PointerLocation::Xattrs(BlockNo(1)),
        PointerLocation::Map(BlockNo(1)),
    ];
    for (n, place) in places.into_iter().enumerate() {
        let raw = encode(SEED, HOME, place, block);
        assert_eq!(decode(SEED, HOME, place, raw), Target::At(block));
        for (m, other) in places.into_iter().enumerate() {
            assert_eq!(decode(SEED, HOME, other, raw) == Target::Bad, n != m, "{place:?} as {other:?}");
        }
        assert_eq!(decode(SEED, HOME, place, 0), Target::None);
        assert_eq!(decode(SEED, HOME, place, encode(SEED, HOME, place, BlockNo(0))), Target::Bad);
    }
    for slot in [1, 2, 63, 64] {
        assert_eq!(decode_tail(SEED, HOME, encode_tail(SEED, HOME, block, slot)), Target::At((block, slot)));
    }
    assert_eq!(decode_tail(SEED, HOME, 0), Target::None);
    assert_eq!(decode_tail(SEED, HOME, encode_tail(SEED, HOME, BlockNo(0), 1)), Target::Bad);
    assert_eq!(decode_tail(SEED + 1, HOME, encode_tail(SEED, HOME, block, 7)), Target::Bad);
    let extents: Vec<_> = (1..=510).map(|n| Extent { block: BlockNo(n * 7), count: n }).collect();
    for (count, next) in [(0, None), (1, Some(BlockNo(9))), (510, Some(block))] {
        let words = extent_list::encode(SEED, HOME, BlockNo(3), &extents[..count], next);
        let read = |at| extent_list::decode(SEED, HOME, at, |i| words.get(i).copied().unwrap_or(0));
        assert_eq!(read(BlockNo(3)), Some((extents[..count].to_vec(), next)));
        assert_eq!(read(BlockNo(4)), None, "it lies elsewhere");
    }
    let long = word::word(511 << 32);
    assert_eq!(extent_list::decode(SEED, HOME, BlockNo(3), |_| long), None, "more than a block holds");
}

#[test]
fn a_layout_says_where_things_are_and_which_blocks_are_data() {
    let small = layout::Layout::new(1024);
    assert_eq!((small.chunks_max, small.data, small.last()), (256, BlockNo(2), BlockNo(1023)));
    assert_eq!((small.bytes(), small.ino_end()), (4 << 20, Ino(256 * inode::CHUNK_INODES)));
    let larger = layout::Layout::new(2052);
    assert_eq!((larger.chunks_max, larger.data), (513, BlockNo(3)), "513 pointers need two blocks");
    assert_eq!((layout::Layout::new(2).chunks_max, layout::Layout::new(2048).data), (1, BlockNo(2)));
    let holds = |block, count| small.holds(BlockNo(block), count);
    assert!(holds(2, 1) && holds(2, 1021) && holds(1022, 1) && holds(1023, 0));
    assert!(!holds(1, 1) && !holds(2, 1022) && !holds(1022, 2) && !holds(1023, 1));
    assert!(!holds(2, u64::MAX) && !holds(1024, 0));
    assert_eq!(small.chunk_pointer(3), BlockNo(1).pos().plus(24));
    assert_eq!(layout::chunk_of(Ino(2 * inode::CHUNK_INODES + 1)), (2, 1));
    assert_eq!(layout::inode_pos(BlockNo(5), 3), BlockNo(5).pos().plus(3 * 128));
    assert_eq!(page::slot_pos(BlockNo(5), 63), BlockNo(5).pos().plus(63 * 64));
    assert_eq!(page::next_pos(BlockNo(5)), BlockNo(5).pos().plus(56));
}

#[test]
fn numbers_know_their_neighbours() {
    assert_eq!(BlockNo(3).pos(), heddle_pmem::Pos(3 * 4096));
    assert_eq!((BlockNo(3).plus(4), Version(6).next()), (BlockNo(7), Version(7)));
    assert_eq!([0, 4095, 4096].map(PageNo::of), [PageNo(0), PageNo(0), PageNo(1)]);
    assert_eq!([0, 1, 4096, 4097].map(PageNo::after), [PageNo(0), PageNo(1), PageNo(1), PageNo(2)]);
    assert_eq!((PageNo(3).offset(), PageNo::END.offset()), (3 * 4096, 1 << 48));
    assert_eq!(InodeId { ino: Ino(1), generation: 5 << 40 | 7 }.made_in(), 5);
}

#[test]
fn words_carry_marks_and_times_from_1960_to_2106() {
    use word::{PAYLOAD_MAX, Shape, all_written, field, payload, shape, time_of, time_payload};
    let one = word::word(5);
    assert_eq!((one, payload(one), payload(u64::MAX)), (0b11 << 62 | 5, 5, PAYLOAD_MAX));
    assert!(
        all_written(&[one, one])
            && !all_written(&[one, 5])
            && !all_written(&[1 << 63, one])
            && !all_written(&[one, 1 << 62])
    );
    assert_eq!(
        [&[0, 0][..], &[1, 0], &[0, 1], &[1, 2]].map(shape),
        [Shape::Blank, Shape::Torn, Shape::Torn, Shape::Full]
    );
    assert_eq!((field(0xabcd, 4, 8), field(u64::MAX, 60, 4), field(u64::MAX, 0, 1)), (0xbc, 15, 1));
    let base = -10 * 365 * 86_400 * 1_000_000_000_i64;
    for time in [base, -1, 0, 1, 1_700_000_000_123_456_789] {
        assert_eq!(time_of(word::word(time_payload(Time(time)))), Time(time));
    }
    assert_eq!(
        (time_payload(Time(base)), time_payload(Time(base - 1)), time_payload(Time(i64::MIN))),
        (0, 0, 0)
    );
    assert_eq!(time_payload(Time(i64::MAX)), PAYLOAD_MAX);
    assert_eq!(time_of(u64::MAX), Time(base + PAYLOAD_MAX as i64));
    assert_ne!(word::owner_seed(1, HOME), word::owner_seed(2, HOME));
    let other = InodeId { generation: HOME.generation + 1, ..HOME };
    assert_ne!(word::owner_seed(1, HOME), word::owner_seed(1, other));
}
