use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Memory of the free map of a region, all of it in use.
struct Home {
    arena: Arena,
    at: Ptr<AtomicU64>,
    lanes: AtomicU64,
    layout: Layout,
}

impl Home {
    fn new(blocks: u64) -> Home {
        let (arena, layout) = (Arena::private(8 << 20).unwrap(), Layout::new(blocks));
        let at = new_map(&arena, &layout).unwrap();
        Home { arena, at, lanes: AtomicU64::new(1), layout }
    }

    /// 1024 blocks, all of the data area free: 2 to 1022, of which the reserve has the last 34.
    fn free() -> Home {
        let home = Home::new(1024);
        home.map().give(of(2, 1021));
        home
    }

    fn map(&self) -> FreeMap<'_> {
        FreeMap::new(&self.arena, self.at, &self.layout, &self.lanes)
    }
}

fn of(block: u64, count: u64) -> Extent {
    Extent { block: BlockNo(block), count }
}

fn taken(map: FreeMap<'_>, cursor: &mut u64, want: u64, purpose: Purpose) -> Option<Vec<Extent>> {
    let mut out = vec![of(1, 1)];
    let done = map.take(cursor, want, purpose, &mut out);
    assert_eq!(out.remove(0), of(1, 1), "what was there stays");
    assert!(done || out.is_empty(), "on failure nothing is taken");
    done.then_some(out)
}

#[test]
fn a_run_is_the_first_that_is_long_enough_or_the_longest() {
    let cases = [
        (0, 1, None),
        (0b1110_0110, 1, Some((1, 1))),
        (0b1110_0110, 2, Some((1, 2))),
        (0b1110_0110, 3, Some((5, 3))),
        (0b1110_0110, 9, Some((5, 3))),
        (0b101, 2, Some((0, 1))),
        (1 << 63, 1, Some((63, 1))),
        (0b11 << 62 | 1, 2, Some((62, 2))),
        (0b11 << 62 | 1, 3, Some((62, 2))),
        (u64::MAX, 64, Some((0, 64))),
        (u64::MAX, 100, Some((0, 64))),
        (u64::MAX << 1, 64, Some((1, 63))),
    ];
    for (bits, want, found) in cases {
        assert_eq!(best_run(bits, want), found, "{want} of {bits:#b}");
    }
}

#[test]
fn blocks_are_given_claimed_and_counted_across_words() {
    let home = Home::free();
    let map = home.map();
    assert_eq!((map.count(), map.count_for_data()), (1021, 1021 - 34));
    assert!(map.claim(of(100, 130)));
    assert_eq!((map.count(), map.count_in(100, u64::MAX), map.count_in(230, u64::MAX)), (891, 793, 793));
    assert_eq!((map.count_in(99, u64::MAX), map.count_in(229, u64::MAX)), (794, 793));
    for extent in [of(100, 1), of(229, 1), of(99, 2), of(229, 2)] {
        assert!(!map.claim(extent), "{extent:?}");
    }
    // A claim that fails marks all of its blocks.
    assert_eq!(map.count(), 889);
    map.give(of(99, 132));
    assert_eq!(map.count(), 1021);
    assert!(catch_unwind(AssertUnwindSafe(|| map.give(of(127, 2)))).is_err(), "a block was freed twice");
    assert!(map.claim(of(128, 64)));
    map.give_if_used(of(120, 100));
    assert_eq!(map.count(), 1021);
    assert!(map.count_in(0, 70) < 200, "it counts no further than it has to");
}

#[test]
fn blocks_are_taken_in_as_few_pieces_as_there_are() {
    let home = Home::free();
    let (map, mut cursor) = (home.map(), 0);
    assert_eq!(taken(map, &mut cursor, 50, Purpose::Data), Some(vec![of(2, 50)]));
    assert_eq!((taken(map, &mut cursor, 20, Purpose::Data), cursor), (Some(vec![of(64, 20)]), 1));
    assert_eq!((taken(map, &mut cursor, 130, Purpose::Data), cursor), (Some(vec![of(128, 130)]), 4));
    assert_eq!(taken(map, &mut cursor, 1, Purpose::Data), Some(vec![of(258, 1)]), "from where it was last");
    assert_eq!(map.count(), 1021 - 201);
    // What is left of words 0, 1 and 4, and all behind that is no reserve.
    let rest = taken(map, &mut cursor, 786, Purpose::Data).unwrap();
    assert_eq!(rest.iter().map(|extent| extent.count).sum::<u64>(), 786);
    assert_eq!((map.count(), map.count_for_data(), map.scarce()), (34, 0, false));
    assert!(rest.iter().all(|extent| extent.block.0 + extent.count <= 989), "none of the reserve");
    assert_eq!((taken(map, &mut cursor, 1, Purpose::Data), map.scarce()), (None, true));
}

#[test]
fn crumbs_are_taken_when_nothing_else_is_left() {
    let home = Home::new(1024);
    let map = home.map();
    map.give(of(989, 34));
    (0..10).for_each(|n| map.give(of(10 * n + 5, 3)));
    let mut cursor = 0;
    let pieces = taken(map, &mut cursor, 30, Purpose::Data).unwrap();
    assert_eq!((pieces.len(), map.count()), (10, 34));
    pieces.iter().for_each(|extent| map.give(*extent));
    assert_eq!(taken(map, &mut cursor, 31, Purpose::Data), None);
    assert_eq!(map.count(), 64, "nothing is taken");
}

#[test]
fn each_purpose_leaves_its_part_of_the_reserve() {
    for (purpose, most) in
        [(Purpose::Data, 0), (Purpose::Replace, 17), (Purpose::Free, 26), (Purpose::Regain, 34)]
    {
        let home = Home::new(1024);
        let map = home.map();
        map.give(of(989, 34));
        assert_eq!(taken(map, &mut 7, most + 1, purpose), None, "{purpose:?}");
        assert!(map.scarce());
        if most > 0 {
            let pieces = taken(map, &mut 7, most, purpose).unwrap();
            assert_eq!(pieces.iter().map(|extent| extent.count).sum::<u64>(), most, "{purpose:?}");
            assert_eq!(taken(map, &mut 7, 1, purpose), None, "{purpose:?}");
        }
        // The number counts, not the place.
        map.give_if_used(of(2, 100));
        assert!(taken(map, &mut 7, most + 1, purpose).is_some(), "{purpose:?}");
    }
}

#[test]
fn space_is_scarce_until_much_has_come_back() {
    let home = Home::new(1024);
    let map = home.map();
    assert_eq!(taken(map, &mut 0, 1, Purpose::Regain), None);
    map.give(of(500, 97));
    assert!(map.scarce() && !map.has_plenty());
    map.give(of(700, 1));
    assert!(!map.scarce() && map.has_plenty(), "98: the reserve, and a sixteenth of the image");
}

#[test]
fn a_lane_keeps_few_blocks_of_a_small_image_or_among_many() {
    assert_eq!(
        [100, 1024, 30_000, 1 << 30].map(|blocks| reserve_blocks(&Layout::new(blocks))),
        [32, 34, 1000, 8704]
    );
    assert_eq!(reserve_start(&Layout::new(1024)), 989);
    let keep = |blocks, lanes: i64| {
        let home = Home::new(blocks);
        home.lanes.store(lanes as u64, Relaxed);
        home.map().keep_max() as u64
    };
    assert_eq!([keep(1024, 1), keep(1024, 16), keep(1024, 1000)], [4, 2, 1]);
    assert_eq!([keep(1 << 20, 1), keep(1 << 20, 1024), keep(1 << 20, -5)], [64, 32, 64]);
    assert_eq!(keep(16 << 9, 1), 16);
    let home = Home::new(1024);
    assert_eq!([988, 989].map(|block| home.map().may_be_kept(BlockNo(block))), [true, false]);
}

#[test]
fn blocks_that_stand_alone_are_all_taken() {
    let home = Home::new(1024);
    let map = home.map();
    map.give(of(989, 34));
    // 16 in one word, and 4 in the next.
    (0..20).for_each(|n| map.give(of(64 + 4 * n, 1)));
    let pieces = taken(map, &mut 0, 20, Purpose::Data).unwrap();
    assert_eq!(pieces, (0..20).map(|n| of(64 + 4 * n, 1)).collect::<Vec<_>>());
}

#[test]
fn a_piece_that_is_long_enough_is_the_last() {
    let home = Home::new(1024);
    let map = home.map();
    [of(2, 3), of(10, 20), of(989, 34)].iter().for_each(|extent| map.give(*extent));
    assert_eq!(taken(map, &mut 0, 3, Purpose::Data), Some(vec![of(2, 3)]));
    assert_eq!(taken(map, &mut 0, 20, Purpose::Data), Some(vec![of(10, 20)]));
}

/// A word for 64 blocks; two lines of eight words behind them.
#[test]
fn a_map_has_memory_for_all_of_its_words() {
    let arena = Arena::private(8 << 20).unwrap();
    for words in 16..200 {
        let layout = Layout::new(64 * words);
        let mut maps = [0; 2].map(|_| new_map(&arena, &layout).unwrap().raw());
        maps.sort_unstable();
        assert!(maps[1] - maps[0] >= (words + 16) * 8, "{words} words");
    }
}
