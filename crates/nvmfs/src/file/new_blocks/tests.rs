use super::*;
use crate::file::blocks::read_list;
use crate::format::extent_list;
use crate::ids::add_extent;
use crate::volume::bench::Bench;

const PAGE: u64 = 4096;

fn of(block: u64, count: u64) -> Extent {
    Extent { block: BlockNo(block), count }
}

#[test]
fn a_span_knows_its_pages_and_those_it_covers_in_part() {
    let span = |start, end| Span { start, end };
    assert_eq!(Span::new(10, 5), span(10, 15));
    let cases = [
        (span(0, PAGE), 1, [None, None]),
        (span(0, 1), 1, [Some(0), None]),
        (span(PAGE - 1, PAGE), 1, [Some(0), None]),
        (span(1, PAGE - 1), 1, [Some(0), None]),
        (span(1, PAGE + 1), 2, [Some(0), Some(1)]),
        (span(PAGE, 3 * PAGE), 2, [None, None]),
        (span(PAGE, 3 * PAGE + 1), 3, [None, Some(3)]),
        (span(PAGE + 1, 3 * PAGE), 2, [Some(1), None]),
    ];
    for (it, pages, edges) in cases {
        assert_eq!((it.pages(), it.edges()), (pages, edges.map(|edge| edge.map(PageNo))), "{it:?}");
        assert_eq!((it.ragged_start(), it.ragged_end()), (it.start % PAGE != 0, it.end % PAGE != 0));
        assert_eq!(it.first().0 + pages, it.page_end().0);
    }
    let it = span(PAGE, 2 * PAGE + 100);
    assert_eq!(
        [0, 2 * PAGE + 100, 2 * PAGE + 101, 9 * PAGE].map(|size| it.end_in_last_page(size)),
        [100, 100, 101, 4096]
    );
    assert_eq!(span(0, PAGE).end_in_last_page(0), 4096);
}

#[test]
fn pages_are_found_in_their_extents() {
    let mut extents = Vec::new();
    [7, 8, 9, 20, 21, 30, 29].into_iter().for_each(|block| add_extent(&mut extents, BlockNo(block)));
    assert_eq!(extents, [of(7, 3), of(20, 2), of(30, 1), of(29, 1)]);
    let blocks: Vec<u64> = (0..7).map(|n| block_at(&extents, n).0).collect();
    assert_eq!(blocks, [7, 8, 9, 20, 21, 30, 29]);
}

#[test]
fn a_list_is_made_when_records_cannot_name_all_extents() {
    let many = |count: u64| (0..count).map(|n| of(10 * n, 1)).collect::<Vec<_>>();
    assert_eq!([0, 1, 16, 17, 510, 511].map(|count| list_block_count(&many(count))), [0, 0, 0, 1, 1, 2]);
    assert_eq!(list_block_count(&[of(5, WRITE_PAGES_MAX)]), 0);
    assert_eq!(list_block_count(&[of(5, WRITE_PAGES_MAX + 1)]), 1, "longer than a record says");
    assert_eq!(list_block_count(&[of(5, EXTENT_BLOCKS_MAX * 510)]), 1);
    assert_eq!(list_block_count(&[of(5, EXTENT_BLOCKS_MAX * 510 + 1)]), 2);
}

#[test]
fn a_write_has_a_record_an_extent_or_a_list() {
    let write = WriteRecords {
        page: PageNo(5),
        end_in_last_page: 100,
        version: Version(7),
        mtime: Time(8),
        change_count: 9,
        unwritten: false,
    };
    let record = |page, pages, blocks, end_in_last_page| Record::Write {
        page: PageNo(page),
        pages,
        blocks,
        end_in_last_page,
        version: Version(7),
        mtime: Time(8),
        change_count: 9,
    };
    let made = |write: &WriteRecords, list| {
        let mut out = Vec::new();
        write.make(&[of(20, 3), of(40, 1), of(50, 2)], list, &mut out);
        out
    };
    let each = |blocks: fn(BlockNo) -> Blocks| {
        let at = |block| blocks(BlockNo(block));
        vec![record(5, 3, at(20), 4096), record(8, 1, at(40), 4096), record(9, 2, at(50), 100)]
    };
    assert_eq!(made(&write, None), each(Blocks::At));
    assert_eq!(made(&write, Some(BlockNo(3))), [record(5, 6, Blocks::List(BlockNo(3)), 100)]);
    assert_eq!(made(&WriteRecords { unwritten: true, ..write }, None), each(Blocks::Unwritten));
}

/// Single blocks, none of which is beside another.
fn singles(count: u64) -> Vec<Extent> {
    (0..count).map(|n| of(1000 + 2 * n, 1)).collect()
}

fn pages_of(extents: &[Extent]) -> u64 {
    extents.iter().map(|e| e.count).sum()
}

#[test]
fn a_list_of_extents_is_read_back_as_it_was_written() {
    let bench = Bench::new();
    let (core, owner) = (bench.core(), bench.inode().id());
    let guard = bench.guard();
    assert!(write_list(core, guard.own, owner, &singles(16)).unwrap().is_none());
    let long = (1 << 22) - 1;
    let same = |extents: Vec<Extent>| (extents.clone(), extents);
    for (extents, pieces) in [
        same(singles(17)),
        same(singles(510)),
        same(singles(511)),
        same(singles(1021)),
        same(vec![of(5, long)]),
        (vec![of(5, long + 1)], vec![of(5, long), of(5 + long, 1)]),
        (
            vec![of(1, 1), of(5, 2 * long + 7)],
            vec![of(1, 1), of(5, long), of(5 + long, long), of(5 + 2 * long, 7)],
        ),
    ] {
        let list = write_list(core, guard.own, owner, &extents).unwrap().unwrap();
        let pages = pages_of(&extents);
        let read = read_list(core, owner, list.first, pages).unwrap();
        assert_eq!(read.extents, pieces);
        let blocks: Vec<BlockNo> = (0..pages_of(&list.blocks)).map(|n| block_at(&list.blocks, n)).collect();
        assert_eq!(read.blocks, blocks.iter().map(|block| of(block.0, 1)).collect::<Vec<_>>());
        assert_eq!(blocks.len(), pieces.len().div_ceil(510));
        for wrong in [pages - 1, pages + 1] {
            assert!(read_list(core, owner, list.first, wrong).is_none(), "{wrong} of {pages} pages");
        }
    }
}

#[test]
fn a_list_is_damaged_if_it_could_be_circular() {
    let bench = Bench::new();
    let (core, owner) = (bench.core(), bench.inode().id());
    let mut places = Vec::new();
    assert!(take_blocks(core.free_map(), &core.region, bench.guard().own, 2, Purpose::Data, &mut places));
    let [first, second] = [0, 1].map(|n| block_at(&places, n));
    let reads = |blocks: &[(BlockNo, &[Extent], Option<BlockNo>)], pages: u64| {
        for (at, extents, next) in blocks {
            let words = extent_list::encode(core.seed, owner, *at, extents, *next);
            (0..).zip(words).for_each(|(n, word)| core.region.store_u64(at.pos().plus(n * 8), word));
        }
        read_list(core, owner, first, pages).is_some()
    };
    let (full, one) = (singles(510), singles(1));
    assert!(reads(&[(first, &full, Some(second)), (second, &one, None)], 511));
    assert!(!reads(&[(first, &one, Some(second)), (second, &full, None)], 511), "one is not full");
    let mut empty = full.clone();
    empty[509].count = 0;
    assert!(!reads(&[(first, &empty, None)], 509), "an extent without blocks");
    let outside = BlockNo(core.layout.blocks_total);
    assert!(!reads(&[(first, &full, Some(outside))], 510), "it goes on outside the image");
    assert!(reads(&[(first, &full, None)], 510));
}

/// Eight blocks side by side, filled with this.
fn filled(bench: &Bench, byte: u8) -> BlockNo {
    let (core, mut places) = (bench.core(), Vec::new());
    assert!(take_blocks(core.free_map(), &core.region, bench.guard().own, 8, Purpose::Data, &mut places));
    assert_eq!(places.len(), 1, "a new image has them side by side");
    core.region.nt_write(places[0].block.pos(), &[byte; 8 * PAGE as usize]);
    places[0].block
}

fn eight(bench: &Bench, first: BlockNo) -> Vec<u8> {
    let mut bytes = vec![0; 8 * PAGE as usize];
    bench.core().region.read(first.pos(), &mut bytes);
    bytes
}

#[test]
fn bytes_go_to_their_places_in_the_blocks_and_to_no_others() {
    let bench = Bench::new();
    let first = filled(&bench, 0xee);
    let data: Vec<u8> = (0..2 * PAGE + 500).map(|n| (n % 251) as u8).collect();
    let span = Span::new(3 * PAGE + 100, data.len() as u64);
    copy_in(bench.core(), span, &[of(first.0, 1), of(first.0 + 2, 2)], &data).unwrap();
    let mut wanted = vec![0xee; 8 * PAGE as usize];
    let (page, beside) = (PAGE as usize, PAGE as usize - 100);
    wanted[100..page].copy_from_slice(&data[..beside]);
    wanted[2 * page..][..data.len() - beside].copy_from_slice(&data[beside..]);
    assert!(eight(&bench, first) == wanted);
}

#[test]
fn an_edge_gets_the_rest_of_its_page_and_nothing_beyond() {
    let bench = Bench::new();
    for (map, rest) in [(Map::HOLE, 0), (Map::unwritten(BlockNo(1000)), 0), (Map::data(BlockNo(1)), 0xaa)] {
        let (first, old) = (filled(&bench, 0xee), filled(&bench, 0xaa));
        let map = if map.content().is_some() { Map::data(old) } else { map };
        let extents = [of(first.0 + 1, 1), of(first.0 + 3, 1)];
        // Bytes 300 to 1000 of page 5, up to byte 50 of page 6.
        for (span, page) in [
            (Span { start: 5 * PAGE + 300, end: 5 * PAGE + 1000 }, 5),
            (Span { start: 5 * PAGE, end: 6 * PAGE + 50 }, 6),
        ] {
            fill_edge(bench.core(), span, &extents, PageNo(page), map).unwrap();
        }
        let mut wanted = vec![0xee; 8 * PAGE as usize];
        for (block, written) in [(1, 300..1000), (3, 0..50)] {
            let bytes = &mut wanted[block * PAGE as usize..][..PAGE as usize];
            bytes.fill(rest);
            bytes[written].fill(0xee);
        }
        assert!(eight(&bench, first) == wanted, "{map:?}");
    }
}

/// The lost line is the last one of an edge that stays, or the first one.
#[test]
fn an_edge_whose_old_bytes_are_lost_is_an_error() {
    use crate::region::Region;
    use crate::variant::Variant;
    use crate::volume::{MountOptions, format, mount};
    let (region, probe) = Region::probed(8 << 20);
    format(&region, Variant::Heddle).unwrap();
    let volume = mount(region, &MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }).unwrap();
    let fs = volume.fs();
    let last = fs.core.layout.last().0;
    let (to, old) = (last - 1, BlockNo(last - 3));
    let fill = |span: Span| fill_edge(&fs.core, span, &[of(to, 1)], PageNo(0), Map::data(old));
    let middle = Span { start: 128, end: 3968 };
    for (line, spans) in
        [(64, [middle, Span { start: 128, end: PAGE }]), (4032, [middle, Span { start: 0, end: 3968 }])]
    {
        probe.lose(old.pos().plus(line));
        for span in spans {
            assert!(matches!(fill(span), Err(Error::Io(_))), "{span:?} with byte {line} lost");
        }
        core_writes(&fs.core, old);
        assert_eq!(fill(middle), Ok(()));
    }
    // What the write replaces may be lost, and so may what lies behind the page.
    probe.lose(old.pos().plus(1024));
    probe.lose(old.plus(1).pos());
    assert_eq!(fill(middle), Ok(()));
    let said = crate::file::read::copy_page(&fs.core, Map::data(old), 1000, &mut [0; 100]).unwrap_err();
    assert!(said.to_string().contains(&format!("block {} ", old.0)), "{said}");
}

fn core_writes(core: &Core, block: BlockNo) {
    core.region.nt_write(block.pos(), &[0xaa; PAGE as usize]);
}
