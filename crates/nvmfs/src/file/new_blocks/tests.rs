use super::*;
use crate::ids::add_extent;

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
    assert_eq!([0, 1, 16, 17, 510, 511].map(|count| list_blocks(&many(count))), [0, 0, 0, 1, 1, 2]);
    assert_eq!(list_blocks(&[of(5, WRITE_PAGES_MAX)]), 0);
    assert_eq!(list_blocks(&[of(5, WRITE_PAGES_MAX + 1)]), 1, "longer than a record says");
    assert_eq!(list_blocks(&[of(5, EXTENT_BLOCKS_MAX * 510)]), 1);
    assert_eq!(list_blocks(&[of(5, EXTENT_BLOCKS_MAX * 510 + 1)]), 2);
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
