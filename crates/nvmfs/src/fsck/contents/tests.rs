use super::super::tests::{codes, id, on_empty, on_empty_of, store};
use super::*;
use crate::ids::Version;
use crate::variant::Variant;
use heddle_pmem::Region;

const PLACE: Location = Location { ino: Some(Ino(7)), block: Some(BlockNo(900)), slot: Some(3) };

fn xattrs(change_count: u64, blob: u64) -> Entry {
    let record = Record::Xattrs { blob: Some(BlockNo(blob)), change_count, mtime: Time(1) };
    Entry { block: BlockNo(900), slot: change_count as u32, record }
}

#[test]
fn of_several_sets_of_attributes_the_last_one_counts() {
    let attached = |entries: &[(u64, u64)]| {
        let mut attached = None;
        entries.iter().for_each(|(count, blob)| attach(&mut attached, &xattrs(*count, *blob), Ino(7)));
        attached.map(|(count, blob, _, location): (u64, Option<BlockNo>, Time, Location)| {
            (count, blob.unwrap().0, location.slot)
        })
    };
    assert_eq!(attached(&[]), None);
    assert_eq!(attached(&[(3, 500), (5, 501), (4, 502)]), Some((5, 501, Some(5))));
    assert_eq!(attached(&[(5, 501), (3, 500)]), Some((5, 501, Some(5))));
    // As a mount has it.
    assert_eq!(attached(&[(5, 501), (5, 502)]), Some((5, 501, Some(5))));
    let mut none = None;
    let punch =
        Record::Punch { page: PageNo(0), pages: 1, version: Version(1), mtime: Time(1), change_count: 9 };
    attach(&mut none, &Entry { record: punch, ..xattrs(1, 2) }, Ino(7));
    assert!(none.is_none());
}

/// Blobs of attributes in consecutive blocks from `first` on, each of so many words. The last one leads to
/// `last`.
fn blobs(region: &Region, seed: u32, first: u64, sizes: &[usize], last: Option<u64>) {
    for (n, size) in sizes.iter().enumerate() {
        let at = first + n as u64;
        let next = if n + 1 < sizes.len() { Some(at + 1) } else { last };
        let body: Vec<u64> = (0..*size as u64).map(|word| at << 20 | word).collect();
        let words = blob::encode(seed, id(7), Kind::Xattrs, BlockNo(at), &body, next.map(BlockNo));
        store(region, BlockNo(at).pos(), &words);
    }
}

fn read_words(pass: &mut Pass<'_>, first: u64) -> Option<Vec<u64>> {
    let mut claims = ListClaims::default();
    words(pass, id(7), PLACE, Kind::Xattrs, BlockNo(first), &mut claims)
}

#[test]
fn a_blob_is_read_through_all_of_its_blocks() {
    on_empty(|region, pass| {
        let (seed, before) = (pass.image.seed, pass.claims.all.len());
        blobs(region, seed, 500, &[510, 3], None);
        let wanted: Vec<u64> = (0..510).map(|n| 500 << 20 | n).chain((0..3).map(|n| 501 << 20 | n)).collect();
        assert_eq!(read_words(pass, 500), Some(wanted));
        let claimed: Vec<u64> = pass.claims.all[before..].iter().map(|claim| claim.block.0).collect();
        assert_eq!((claimed, codes(pass)), (vec![500, 501], vec![]));
    });
}

#[test]
fn a_blob_that_leads_outside_or_back_is_not_whole() {
    on_empty(|region, pass| {
        let seed = pass.image.seed;
        for last in [0, 1, 1023, 1024, (1 << 40) - 1] {
            blobs(region, seed, 500, &[5, 5], Some(last).filter(|last| *last != 0));
            assert_eq!(read_words(pass, 500).is_some(), last == 0, "to block {last}");
        }
        for last in [500, 501] {
            blobs(region, seed, 500, &[5, 5], Some(last));
            assert_eq!(read_words(pass, 500), None, "back to block {last}");
        }
        for first in [0, 1, 1023, 1024, 1 << 39] {
            assert_eq!(read_words(pass, first), None, "from block {first}");
        }
    });
}

/// Four bytes before each name of at least one, a mebibyte in all: no set takes more blocks.
#[test]
fn a_blob_of_attributes_has_at_most_1286_blocks() {
    on_empty_of(Variant::Heddle, 8 << 20, |region, pass| {
        for (blocks, wanted) in [(1285, true), (1286, true), (1287, false), (1300, false)] {
            blobs(region, pass.image.seed, 500, &vec![1; blocks], None);
            let is = read_words(pass, 500).map(|words| words.len());
            assert_eq!(is, wanted.then_some(blocks), "{blocks} blocks");
        }
    });
}

/// Lists in consecutive blocks from block 500 on.
fn lists(region: &Region, seed: u32, parts: &[&[(u64, u64)]], last: Option<u64>) {
    for (n, part) in parts.iter().enumerate() {
        let at = 500 + n as u64;
        let next = if n + 1 < parts.len() { Some(at + 1) } else { last };
        let extents: Vec<Extent> =
            part.iter().map(|(block, count)| Extent { block: BlockNo(*block), count: *count }).collect();
        let words = extent_list::encode(seed, id(7), BlockNo(at), &extents, next.map(BlockNo));
        store(region, BlockNo(at).pos(), &words);
    }
}

/// Extents, and issues with their places.
type ListRead = (Option<Vec<(u64, u64)>>, Vec<(Code, Location)>);

/// What a list of block 500 says of so many pages, and the issues with their places.
fn read_list(pass: &mut Pass<'_>, pages: u64) -> ListRead {
    let mut claims = ListClaims::default();
    let read = list(pass, id(7), PLACE, (BlockNo(500), pages), &mut claims);
    let issues = std::mem::take(&mut pass.issues);
    let read = read.map(|extents| extents.iter().map(|e| (e.block.0, e.count)).collect());
    (read, issues.iter().map(|issue| (issue.code, issue.location)).collect())
}

#[test]
fn an_extent_list_is_read_through_all_of_its_blocks() {
    on_empty(|region, pass| {
        let parts: [&[(u64, u64)]; 3] = [&[(600, 2), (700, 1)], &[(800, 4)], &[(820, 3)]];
        lists(region, pass.image.seed, &parts, None);
        let wanted = Some(vec![(600, 2), (700, 1), (800, 4), (820, 3)]);
        assert_eq!(read_list(pass, 10), (wanted, vec![]));
        for pages in [0, 1, 3, 6, 7, 9, 11] {
            assert_eq!(read_list(pass, pages), (None, vec![(Code::LIST_LENGTH, PLACE)]), "{pages} pages");
        }
    });
}

/// The issue names the block of the list, not the record that leads to it.
#[test]
fn a_list_that_leads_outside_or_back_is_lost() {
    let of = |block: u64| Location { ino: Some(Ino(7)), block: Some(BlockNo(block)), slot: None };
    on_empty(|region, pass| {
        let seed = pass.image.seed;
        for last in [1, 1023, 1024, 500, 501] {
            lists(region, seed, &[&[(600, 2)], &[(800, 4)]], Some(last));
            assert_eq!(read_list(pass, 10), (None, vec![(Code::LIST, of(last))]), "to block {last}");
        }
        // One bit, and two.
        lists(region, seed, &[&[(600, 2)], &[(800, 4)]], None);
        let at = BlockNo(501).pos().plus(16);
        region.store_u64(at, region.load_u64(at) ^ 1 << 20);
        let (read, issues) = read_list(pass, 6);
        assert_eq!((read, issues), (Some(vec![(600, 2), (800, 4)]), vec![(Code::LIST_BIT, of(501))]));
        assert_eq!(pass.fixes.exact.pop().map(|fix| fix.0), Some(at));
        region.store_u64(at, region.load_u64(at) ^ 1 << 30);
        assert_eq!(read_list(pass, 6), (None, vec![(Code::LIST, of(501))]));
    });
}

#[test]
fn a_block_that_two_lists_name_is_claimed_once() {
    on_empty(|_, pass| {
        let before = pass.claims.all.len();
        let mut claims = ListClaims::default();
        for block in [500, 501] {
            claims.claim(pass, BlockNo(block), Use::List(id(7)), (Code::LIST, PLACE));
        }
        assert!(!claims.again && pass.issues.is_empty());
        claims.claim(pass, BlockNo(500), Use::List(id(7)), (Code::LIST, PLACE));
        assert!(claims.again);
        assert_eq!((codes(pass), pass.claims.all.len() - before), (vec![Code::LIST.0], 2));
    });
}

#[test]
fn a_map_begins_where_its_record_says() {
    on_empty(|region, pass| {
        let runs =
            [MapRun { page: PageNo(5), blocks: Extent { block: BlockNo(600), count: 2 }, unwritten: false }];
        let (seed, body) = (pass.image.seed, blob::words_of_map(&runs));
        let words = blob::encode(seed, id(7), Kind::Map, BlockNo(500), &body, None);
        store(region, BlockNo(500).pos(), &words);
        for (page, wanted) in [(0, true), (5, true), (6, false), (9, false)] {
            let mut claims = ListClaims::default();
            let is = map(pass, id(7), PLACE, (PageNo(page), Some(BlockNo(500))), &mut claims);
            assert_eq!(is, wanted.then(|| runs.to_vec()), "page {page}");
        }
        assert_eq!(codes(pass), [Code::MAP.0; 2]);
        let mut claims = ListClaims::default();
        assert_eq!(map(pass, id(7), PLACE, (PageNo(0), None), &mut claims), Some(vec![]));
    });
}
