//! Runs of pages that a shift moves, and a shift whose holder died.

use super::*;
use crate::volume::bench::Bench;
use heddle_vfs::{FileSystem, RangeOp};

const PAGE: u64 = 4096;

fn run(page: u64, block: u64, count: u64, unwritten: bool) -> MapRun {
    MapRun { page: PageNo(page), blocks: Extent { block: BlockNo(block), count }, unwritten }
}

#[test]
fn pages_that_move_are_one_run_where_all_of_it_goes_on() {
    let mut plan = Plan { runs: Vec::new(), cut: Vec::new(), blocks_cut: 0 };
    for (page, block, unwritten) in [
        (3, 100, false),
        (4, 101, false),
        // Another block, another page, another state.
        (5, 103, false),
        (7, 104, false),
        (8, 105, true),
        (9, 106, true),
        (10, 50, true),
    ] {
        plan.add(PageNo(page), BlockNo(block), unwritten);
    }
    let wanted = [
        run(3, 100, 2, false),
        run(5, 103, 1, false),
        run(7, 104, 1, false),
        run(8, 105, 2, true),
        run(10, 50, 1, true),
    ];
    assert_eq!(plan.runs, wanted);
    // A record says up to 2^20 - 1 pages.
    let most = (1 << 20) - 1;
    plan.runs = vec![run(0, 100, most - 1, false)];
    plan.add(PageNo(most - 1), BlockNo(100 + most - 1), false);
    plan.add(PageNo(most), BlockNo(100 + most), false);
    assert_eq!(plan.runs, [run(0, 100, most, false), run(most, 100 + most, 1, false)]);
}

#[test]
fn a_page_is_where_its_run_says_and_else_a_hole() {
    let runs = [run(3, 100, 2, false), run(5, 200, 1, true), run(9, 50, 3, false)];
    let data = |block| Map::data(BlockNo(block));
    let wanted = [
        (0, Map::HOLE),
        (2, Map::HOLE),
        (3, data(100)),
        (4, data(101)),
        (5, Map::unwritten(BlockNo(200))),
        (6, Map::HOLE),
        (8, Map::HOLE),
        (9, data(50)),
        (10, data(51)),
        (11, data(52)),
        (12, Map::HOLE),
    ];
    for (page, map) in wanted {
        assert_eq!(map_in(&runs, PageNo(page)), map, "page {page}");
    }
    assert_eq!(map_in(&[], PageNo(0)), Map::HOLE);
}

/// Each block of the image may be a run.
#[test]
fn a_map_has_at_most_as_many_runs_as_the_image_blocks() {
    let bench = Bench::new();
    let (core, owner) = (bench.core(), bench.inode().id());
    assert_eq!(core.layout.blocks_total, 2048);
    let guard = bench.guard();
    // Nine blocks have 255 runs each.
    for (count, is_read) in [(1, true), (2048, true), (9 * 255, true), (9 * 255 + 1, false)] {
        let runs: Vec<MapRun> = (0..count).map(|n| run(2 * n, 1, 1, false)).collect();
        let words = words_of_map(&runs);
        let blob = blob::write_unfenced(core, guard.own, owner, Kind::Map, &words, Purpose::Data).unwrap();
        let read = read_map(core, owner, blob.first());
        assert_eq!(read.map(|(runs, _)| runs), is_read.then_some(runs), "{count} runs");
    }
}

#[test]
fn a_collapse_gives_the_blocks_back_that_it_cuts_out() {
    let bench = Bench::new();
    bench.write(0, 1, 10 * PAGE);
    let blocks = || bench.inode().volatile.blocks_counted();
    let before = (blocks(), bench.free());
    bench.fs.fallocate(&bench.file, RangeOp::Collapse, PAGE, 4 * PAGE).unwrap();
    assert_eq!(before.0 - blocks(), 4);
    // The list of pages that moved takes one.
    assert_eq!(bench.free(), before.1 + 4 - 1);
    bench.fs.fallocate(&bench.file, RangeOp::Insert, PAGE, 4 * PAGE).unwrap();
    assert_eq!((blocks(), bench.size()), (6, 10 * PAGE));
}

/// It had published no page, all others are not its own.
#[test]
fn cells_of_a_dead_shift_get_their_maps_and_others_stay() {
    const DEAD: u16 = 9;
    let bench = Bench::new();
    let (core, inode) = (bench.core(), bench.inode());
    let before = [(0, 90), (1, 99), (2, 100), (3, 101), (4, 102), (5, 103), (6, 200), (7, 300)];
    inode.volatile.index().grow(&core.arena, PageNo(8)).unwrap();
    for (page, block) in before {
        bench.cell(page).set(Map::data(BlockNo(block)), Version(3));
        // Page 0 lies before the range, nobody holds page 6, and another lane page 7.
        match page {
            0 | 6 => {}
            7 => _ = bench.cell(page).try_lock(DEAD + 1).unwrap(),
            _ => _ = bench.cell(page).try_lock(DEAD).unwrap(),
        }
    }
    inode.volatile.count_blocks(8);
    // Blocks 100 and 101 move down by a page, and 103 by two.
    let runs = [run(1, 100, 2, false), run(3, 103, 1, true)];
    let mut replaced = Vec::new();
    roll_forward(core, DEAD, inode, PageNo(1), Version(7), &runs, &mut replaced);
    let found = [0, 1, 2, 3, 4, 5, 6, 7].map(|page| {
        let held = bench.cell(page).lock_version();
        (bench.cell(page).map(), held.version().0, held.locked())
    });
    let data = |block| Map::data(BlockNo(block));
    let wanted = [
        (data(90), 3, false),
        (data(100), 7, false),
        (data(101), 7, false),
        (Map::unwritten(BlockNo(103)), 7, false),
        (Map::HOLE, 7, false),
        (Map::HOLE, 7, false),
        (data(200), 3, false),
        (data(300), 3, true),
    ];
    assert_eq!(found, wanted);
    let cut: Vec<_> = replaced.iter().map(|extent| (extent.block.0, extent.count)).collect();
    assert_eq!((cut, inode.volatile.blocks_counted()), (vec![(99, 1), (102, 1)], 6));
    (0..8).for_each(|page| bench.cell(page).set(Map::HOLE, Version(7)));
}
