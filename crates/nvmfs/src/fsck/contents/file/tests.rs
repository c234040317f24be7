use super::super::super::tests::{codes, id, on_empty, store};
use super::*;
use crate::format::record::NameBuf;
use crate::format::{blob, extent_list};
use heddle_pmem::Region;

const ID: u64 = 7;

fn birth(kind: FileKind) -> InodeBase {
    InodeBase { id: id(ID), kind, perm: 0o644, uid: 1, gid: 2, rdev: 0, crtime: Time(5) }
}

fn write(version: u64, page: u64, pages: u64, blocks: Blocks) -> Record {
    Record::Write {
        page: PageNo(page),
        pages,
        blocks,
        end_in_last_page: 4096,
        version: Version(version),
        mtime: Time(10 + version as i64),
        change_count: 1,
    }
}

fn at(block: u64) -> Blocks {
    Blocks::At(BlockNo(block))
}

fn punch(version: u64, page: u64, pages: u64) -> Record {
    Record::Punch { page: PageNo(page), pages, version: Version(version), mtime: Time(1), change_count: 1 }
}

fn attributes(change_count: u64, size: u64) -> Record {
    Record::Attributes(Attributes {
        size,
        perm: 0o640,
        uid: 0,
        gid: 0,
        mtime: Time(1),
        ctime: Time(1),
        atime: Time(1),
        change_count,
    })
}

fn log(records: &[Record]) -> Log {
    let entry = |(n, record): (usize, &Record)| Entry {
        block: BlockNo(900),
        slot: n as u32 + 1,
        record: record.clone(),
    };
    Log { records: records.iter().enumerate().map(entry).collect(), ..Log::default() }
}

/// First page, end, first block, unwritten.
type Piece = (u64, u64, Option<u64>, bool);

fn pieces(file: &File) -> Vec<Piece> {
    let piece = |(first, run): (&u64, &Run)| (*first, run.end, run.block.map(|b| b.0), run.unwritten);
    file.runs.iter().map(piece).collect()
}

/// The pieces with blocks, whether the log must be written anew, and the issues.
fn read(records: &[Record]) -> (Vec<Piece>, bool, Vec<u16>) {
    on_empty(|_, pass| {
        let file = File::of(pass, birth(FileKind::Regular), &log(records));
        let pieces = pieces(&file).into_iter().filter(|piece| piece.2.is_some()).collect();
        (pieces, file.damaged, codes(pass))
    })
}

#[test]
fn later_versions_cover_the_pages_of_earlier_ones() {
    let base = write(1, 2, 6, at(500));
    for (over, wanted) in [
        (write(2, 2, 6, at(600)), vec![(2, 8, Some(600), false)]),
        (write(2, 0, 2, at(600)), vec![(0, 2, Some(600), false), (2, 8, Some(500), false)]),
        (write(2, 8, 2, at(600)), vec![(2, 8, Some(500), false), (8, 10, Some(600), false)]),
        (
            write(2, 4, 2, at(600)),
            vec![(2, 4, Some(500), false), (4, 6, Some(600), false), (6, 8, Some(504), false)],
        ),
        (write(2, 1, 3, at(600)), vec![(1, 4, Some(600), false), (4, 8, Some(502), false)]),
        (punch(2, 3, 2), vec![(2, 3, Some(500), false), (5, 8, Some(503), false)]),
        (
            write(2, 7, 3, Blocks::Unwritten(BlockNo(600))),
            vec![(2, 7, Some(500), false), (7, 10, Some(600), true)],
        ),
        (write(1, 20, 1, at(600)), vec![(2, 8, Some(500), false), (20, 21, Some(600), false)]),
    ] {
        for records in [[base.clone(), over.clone()], [over.clone(), base.clone()]] {
            assert_eq!(read(&records), (wanted.clone(), false, vec![]), "{over:?}");
        }
    }
}

#[test]
fn two_records_of_one_version_agree_on_their_pages() {
    let base = write(3, 2, 6, at(500));
    let clash = vec![Code::VERSIONS_CLASH.0];
    for (again, wanted) in [
        (write(3, 2, 6, at(500)), vec![]),
        (write(3, 4, 2, at(502)), vec![]),
        (write(3, 7, 3, at(505)), vec![]),
        (punch(3, 2, 6), vec![]),
        (write(3, 2, 6, at(600)), clash.clone()),
        (write(3, 4, 2, at(500)), clash.clone()),
        (write(3, 7, 3, at(504)), clash.clone()),
        (write(3, 2, 6, Blocks::Unwritten(BlockNo(500))), clash.clone()),
    ] {
        let (_, damaged, codes) = read(&[base.clone(), again.clone()]);
        assert_eq!((damaged, &codes), (!wanted.is_empty(), &wanted), "{again:?}");
    }
    // Pieces that the first record left of itself: each is where the second one has it.
    let parts = [write(3, 4, 1, at(502)), write(3, 6, 1, at(504)), write(3, 2, 6, at(500))];
    assert_eq!(read(&parts), (vec![(2, 8, Some(500), false)], false, vec![]));
    // At one version, a tombstone comes before a write.
    assert_eq!(read(&[base.clone(), punch(3, 0, 9)]).0, [(2, 8, Some(500), false)]);
}

#[test]
fn pages_outside_the_data_area_are_a_hole_over_older_ones() {
    let outside = vec![Code::EXTENT_OUTSIDE.0];
    for block in [0, 1, 1022, 1 << 39] {
        let (pieces, damaged, codes) = read(&[write(1, 0, 9, at(500)), write(2, 3, 2, at(block))]);
        let wanted = vec![(0, 3, Some(500), false), (5, 9, Some(505), false)];
        assert_eq!((pieces, damaged, &codes), (wanted, true, &outside), "block {block}");
    }
    let last = write(2, 3, 2, at(1021));
    assert_eq!(read(&[last]), (vec![(3, 5, Some(1021), false)], false, vec![]));
}

/// A list of this inode in a block.
fn list_at(region: &Region, seed: u32, block: u64, extents: &[(u64, u64)]) -> Blocks {
    let extents: Vec<Extent> =
        extents.iter().map(|(block, count)| Extent { block: BlockNo(*block), count: *count }).collect();
    store(region, BlockNo(block).pos(), &extent_list::encode(seed, id(ID), BlockNo(block), &extents, None));
    Blocks::List(BlockNo(block))
}

#[test]
fn a_list_gives_each_page_its_block_or_a_hole() {
    on_empty(|region, pass| {
        let seed = pass.image.seed;
        let list = list_at(region, seed, 400, &[(600, 2), (700, 1), (650, 2)]);
        let base = write(1, 0, 20, at(500));
        let records = [base.clone(), write(2, 2, 5, list)];
        let file = File::of(pass, birth(FileKind::Regular), &log(&records));
        let around = |inner: Vec<Piece>| {
            let outer = [(0, 2, Some(500), false)].into_iter().chain(inner);
            outer.chain([(7, 20, Some(507), false)]).collect::<Vec<_>>()
        };
        let inner = vec![(2, 4, Some(600), false), (4, 5, Some(700), false), (5, 7, Some(650), false)];
        assert_eq!((pieces(&file), file.damaged), (around(inner), false));
        // Twice the same list, and one with two damaged bits.
        let twice = [write(1, 0, 5, list), write(2, 10, 5, list)];
        assert!(File::of(pass, birth(FileKind::Regular), &log(&twice)).damaged);
        assert_eq!(codes(pass), [Code::LIST.0]);
        region.store_u64(BlockNo(400).pos().plus(16), 7);
        let file = File::of(pass, birth(FileKind::Regular), &log(&records));
        assert_eq!((pieces(&file), file.damaged), (around(vec![(2, 7, None, false)]), true));
        assert_eq!(codes(pass), [Code::LIST.0; 2]);
    });
}

#[test]
fn a_list_named_twice_and_lost_attributes_are_both_damage() {
    on_empty(|region, pass| {
        let list = list_at(region, pass.image.seed, 400, &[(600, 1)]);
        let lost = Record::Xattrs { blob: Some(BlockNo(450)), change_count: 1, mtime: Time(1) };
        let twice = [write(1, 0, 1, list), write(2, 1, 1, list)];
        let is = |pass: &mut Pass<'_>, records: &[Record]| {
            let file = File::of(pass, birth(FileKind::Regular), &log(records));
            (file.damaged, file.is_narrowed, file.attributes().perm)
        };
        assert_eq!(is(pass, &twice[..1]), (false, false, 0o644));
        assert_eq!(is(pass, &twice), (true, false, 0o644));
        assert_eq!(
            is(pass, std::slice::from_ref(&lost)),
            (true, true, 0o600),
            "a lost access list may have narrowed it"
        );
        assert_eq!(is(pass, &[twice.to_vec(), vec![lost]].concat()), (true, true, 0o600));
    });
}

#[test]
fn records_that_a_kind_of_inode_does_not_have_are_misplaced() {
    let name = Record::Name {
        dir: id(ID),
        removed: false,
        child: id(9),
        kind: FileKind::Regular,
        name: NameBuf::new(b"a"),
        version: Version(1),
        mtime: Time(1),
        change_count: 1,
    };
    let remap =
        Record::Remap { page: PageNo(3), blob: None, version: Version(2), mtime: Time(1), change_count: 1 };
    let data = [write(1, 0, 1, at(500)), punch(2, 0, 1), remap];
    for kind in [FileKind::Regular, FileKind::Symlink, FileKind::Fifo, FileKind::Socket, FileKind::CharDevice]
    {
        let has_pages = matches!(kind, FileKind::Regular | FileKind::Symlink);
        for (record, fits) in data.iter().map(|record| (record, has_pages)).chain([(&name, false)]) {
            on_empty(|_, pass| {
                let file = File::of(pass, birth(kind), &log(std::slice::from_ref(record)));
                let misplaced = if fits { vec![] } else { vec![Code::RECORD_MISPLACED.0] };
                assert_eq!((file.damaged, codes(pass)), (!fits, misplaced), "{record:?} of a {kind:?}");
                assert_eq!(file.runs.is_empty(), !fits);
            });
        }
    }
}

#[test]
fn of_several_attribute_records_the_last_one_counts() {
    on_empty(|_, pass| {
        let size = |pass: &mut Pass<'_>, records: &[Record]| {
            File::of(pass, birth(FileKind::Regular), &log(records)).attributes().size
        };
        assert_eq!(size(pass, &[attributes(3, 30), attributes(5, 50), attributes(4, 40)]), 50);
        assert_eq!(size(pass, &[attributes(5, 50), attributes(3, 30)]), 50);
        // As a mount has it.
        assert_eq!(size(pass, &[attributes(5, 50), attributes(5, 51)]), 50);
        // A write that saw older attributes does not change their size, a later one does.
        assert_eq!(size(pass, &[attributes(2, 50), write(1, 0, 3, at(500))]), 50);
        assert_eq!(size(pass, &[attributes(1, 50), write(1, 0, 3, at(500))]), 3 * 4096);
        assert_eq!(size(pass, &[attributes(1, 50_000), write(1, 0, 3, at(500))]), 50_000);
        let open = Record::Write {
            page: PageNo(4),
            pages: 2,
            blocks: at(500),
            end_in_last_page: 9,
            version: Version(1),
            mtime: Time(1),
            change_count: 1,
        };
        assert_eq!(size(pass, &[open]), 5 * 4096 + 9);
    });
}

#[test]
fn pieces_that_follow_each_other_on_the_media_are_one_extent() {
    on_empty(|_, pass| {
        let mut extents =
            |records: &[Record]| File::of(pass, birth(FileKind::Regular), &log(records)).extents();
        assert_eq!(extents(&[]), (0, 0));
        assert_eq!(extents(&[write(1, 3, 4, at(500))]), (1, 4));
        assert_eq!(extents(&[write(1, 3, 4, at(500)), write(2, 7, 2, at(504))]), (1, 6));
        assert_eq!(extents(&[write(1, 3, 4, at(500)), write(2, 7, 2, at(505))]), (2, 6));
        assert_eq!(extents(&[write(1, 3, 4, at(500)), write(2, 8, 2, at(504))]), (2, 6), "a hole between");
        assert_eq!(extents(&[write(1, 3, 4, at(500)), write(2, 0, 3, at(497)), punch(3, 1, 1)]), (2, 6));
        let three = [write(1, 0, 2, at(500)), write(2, 2, 1, at(600)), write(3, 3, 3, at(601))];
        assert_eq!(extents(&three), (2, 6));
    });
}

#[test]
fn records_count_as_living_while_they_say_something() {
    let living = |records: &[Record]| {
        on_empty(|_, pass| {
            let log = log(records);
            File::of(pass, birth(FileKind::Regular), &log).living(&log)
        })
    };
    let base = write(1, 2, 6, at(500));
    assert_eq!(living(&[]), 0);
    assert_eq!(living(std::slice::from_ref(&base)), 1);
    assert_eq!(living(&[base.clone(), write(2, 2, 6, at(600))]), 1);
    assert_eq!(living(&[base.clone(), write(2, 2, 5, at(600))]), 2, "its last page");
    assert_eq!(living(&[base.clone(), write(2, 3, 5, at(600))]), 2, "its first page");
    assert_eq!(living(&[base.clone(), write(2, 0, 7, at(600)), write(3, 6, 9, at(700))]), 2);
    assert_eq!(living(&[write(1, 0, 2, at(500)), write(2, 2, 2, at(600)), write(3, 2, 2, at(700))]), 2);
    // Of one version: the one has pages, the other none any more.
    assert_eq!(living(&[write(1, 0, 2, at(500)), write(1, 2, 2, at(600)), write(2, 2, 2, at(700))]), 2);
    assert_eq!(living(&[base.clone(), punch(2, 2, 6)]), 0);
    assert_eq!(living(&[attributes(1, 5), attributes(3, 5), attributes(2, 5)]), 1);
    let remap = |version| Record::Remap {
        page: PageNo(3),
        blob: None,
        version: Version(version),
        mtime: Time(1),
        change_count: 1,
    };
    assert_eq!(living(&[base.clone(), remap(2)]), 2);
    assert_eq!(living(&[base, remap(2), remap(3)]), 2);
}

#[test]
fn the_last_record_of_extended_attributes_is_living() {
    on_empty(|region, pass| {
        let xattrs =
            |change_count, blob| Record::Xattrs { blob: Some(BlockNo(blob)), change_count, mtime: Time(1) };
        for block in [450, 451] {
            let words = blob::encode(pass.image.seed, id(ID), blob::Kind::Xattrs, BlockNo(block), &[], None);
            store(region, BlockNo(block).pos(), &words);
        }
        let log = log(&[xattrs(1, 450), xattrs(2, 451)]);
        let file = File::of(pass, birth(FileKind::Regular), &log);
        assert_eq!((file.living(&log), file.damaged), (1, false));
        assert_eq!(file.records()[1..], [xattrs(2, 451)], "a new log says the same");
    });
}

#[test]
fn a_new_log_has_runs_of_at_most_a_million_pages() {
    const MOST: u64 = (1 << 20) - 1;
    on_empty(|_, pass| {
        let mut file = File::of(pass, birth(FileKind::Regular), &log(&[attributes(4, 9)]));
        let run = |end, block: u64, unwritten| Run {
            end,
            block: Some(BlockNo(block)),
            unwritten,
            version: Version(3),
            mtime: Time(77),
        };
        file.runs.insert(5, run(5 + 2 * MOST + 7, 1000, false));
        file.runs.insert(1 << 30, run((1 << 30) + MOST, 9, true));
        file.runs.insert(1 << 31, Run { block: None, ..run((1 << 31) + 8, 9, true) });
        let records = file.records();
        assert_eq!(records[0], attributes(4, 9));
        let said: Vec<_> = records[1..]
            .iter()
            .map(|record| match record {
                Record::Write {
                    page,
                    pages,
                    blocks,
                    end_in_last_page: 0,
                    change_count: 4,
                    mtime: Time(1),
                    ..
                } => (page.0, *pages, *blocks),
                other => panic!("{other:?}"),
            })
            .collect();
        let wanted = [
            (5, MOST, at(1000)),
            (5 + MOST, MOST, at(1000 + MOST)),
            (5 + 2 * MOST, 7, at(1000 + 2 * MOST)),
            (1 << 30, MOST, Blocks::Unwritten(BlockNo(9))),
        ];
        assert_eq!(said, wanted);
    });
}

#[test]
fn a_symbolic_link_has_a_target_of_1_to_4095_bytes() {
    on_empty(|_, pass| {
        let mut is_lost =
            |kind, size| File::of(pass, birth(kind), &log(&[attributes(1, size)])).is_lost_link();
        for (size, wanted) in [(0, true), (1, false), (4095, false), (4096, true), (1 << 40, true)] {
            assert_eq!(is_lost(FileKind::Symlink, size), wanted, "{size}");
            assert!(!is_lost(FileKind::Regular, size), "{size}");
        }
    });
}
