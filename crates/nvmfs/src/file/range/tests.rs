//! Holes: found, filled, and left alone when a writer was quicker.

use super::*;
use crate::upkeep::clean;
use crate::volume::bench::Bench;
use heddle_vfs::FileSystem;
use heddle_vfs::short::Short;

const PAGE: u64 = 4096;

fn allocated(bench: &Bench) -> u64 {
    bench.fs.getattr(bench.file.ino).unwrap().blocks_512 / 8
}

/// Pages 64 to 127 lie in a leaf that does not exist, and so do those behind 191.
#[test]
fn a_search_finds_holes_without_cells() {
    let bench = Bench::new();
    bench.write(0, 1, 4 * PAGE);
    bench.write(63 * PAGE, 1, PAGE);
    bench.write(140 * PAGE, 1, 2 * PAGE);
    bench.fs.resize(&bench.file, 300 * PAGE + 10).unwrap();
    let found =
        |target, page: u64| range_seek(&bench, target, page * PAGE + 7).map(|at| (at / PAGE, at % PAGE));
    for (from, hole, data) in [
        (0, (4, 0), Some((0, 7))),
        (3, (4, 0), Some((3, 7))),
        (4, (4, 7), Some((63, 0))),
        (30, (30, 7), Some((63, 0))),
        (63, (64, 0), Some((63, 7))),
        (66, (66, 7), Some((140, 0))),
        (130, (130, 7), Some((140, 0))),
        (140, (142, 0), Some((140, 7))),
        (141, (142, 0), Some((141, 7))),
        (150, (150, 7), None),
        (250, (250, 7), None),
        (300, (300, 7), None),
    ] {
        assert_eq!(found(SeekTarget::Hole, from), Ok(hole), "a hole from {from} on");
        assert_eq!(found(SeekTarget::Data, from), data.ok_or(Error::NoSuchOffset), "data from {from} on");
    }
    bench.fs.resize(&bench.file, 142 * PAGE).unwrap();
    assert_eq!(found(SeekTarget::Hole, 141), Ok((142, 0)), "the end of the file");
    assert_eq!(found(SeekTarget::Hole, 142), Err(Error::NoSuchOffset));
}

fn range_seek(bench: &Bench, target: SeekTarget, offset: u64) -> Result<u64> {
    seek(bench.core(), bench.inode(), target, offset)
}

#[test]
fn the_first_run_of_holes_ends_at_a_block_or_the_end() {
    let bench = Bench::new();
    for page in [1, 2, 5] {
        bench.write(page * PAGE, 1, PAGE);
    }
    let found = |first, end| {
        let (run, next) = first_hole(bench.core(), bench.inode(), PageNo(first), PageNo(end));
        (run.map(|(page, pages)| (page.0, pages)), next.0)
    };
    assert_eq!(found(0, 9), (Some((0, 1)), 1));
    assert_eq!(found(1, 9), (Some((3, 2)), 5));
    assert_eq!(found(1, 4), (Some((3, 1)), 4));
    assert_eq!(found(5, 9), (Some((6, 3)), 9));
    assert_eq!(found(1, 3), (None, 3));
    assert_eq!(holes(bench.core(), bench.inode(), PageNo(0), PageNo(9)), 6);
}

#[test]
fn a_page_that_was_written_meanwhile_is_not_given_another_block() {
    let bench = Bench::new();
    bench.write(PAGE, 7, PAGE);
    let core = bench.core();
    let mut extents = Vec::new();
    let mut guard = bench.guard();
    assert!(take_blocks(core.free_map(), &core.region, guard.own, 4, Purpose::Data, &mut extents));
    let mut maps = |first, end| {
        let blocks = [Extent { block: extents[0].block, count: end - first }];
        map_holes(core, &mut guard, bench.inode(), &blocks, (PageNo(first), PageNo(end)))
    };
    assert_eq!([maps(0, 3), maps(1, 2)], [Ok(false), Ok(false)]);
    assert_eq!((allocated(&bench), bench.read(PAGE, PAGE)), (1, vec![7; PAGE as usize]));
    assert_eq!(maps(2, 5), Ok(true));
    assert_eq!((allocated(&bench), bench.size()), (4, 2 * PAGE));
}

/// The power is cut before the attribute record that ends the call. Scattered blocks have a record each.
#[test]
fn an_allocation_that_is_cut_off_leaves_the_size() {
    let bench = Bench::new();
    bench.write(0, 7, 10);
    let core = bench.core();
    let mut taken = Vec::new();
    let mut guard = bench.guard();
    assert!(take_blocks(core.free_map(), &core.region, guard.own, 5, Purpose::Data, &mut taken));
    let scattered = [0, 2, 4].map(|n| Extent { block: block_at(&taken, n), count: 1 });
    let mapped = map_holes(core, &mut guard, bench.inode(), &scattered, (PageNo(2), PageNo(5)));
    assert_eq!(mapped, Ok(true));
    drop(guard);
    let bench = bench.mounted_again();
    assert_eq!((allocated(&bench), bench.size(), bench.read(0, 100)), (4, 10, vec![7; 10]));
}

#[test]
fn blocks_for_mapped_stores_end_with_the_file() {
    let bench = Bench::new();
    bench.fs.resize(&bench.file, 2 * PAGE + 10).unwrap();
    let give = |start: u64, end: u64| {
        let span = Span { start: start * PAGE, end: end * PAGE };
        give_blocks(bench.core(), &mut bench.guard(), bench.inode(), span, clean::between).unwrap();
        allocated(&bench)
    };
    assert_eq!([give(5, 9), give(1, 2), give(0, 9)], [0, 1, 3]);
}

#[test]
fn an_allocation_is_a_change_of_the_file() {
    use heddle_vfs::{SetAttr, Time};
    let bench = Bench::new();
    let old = SetAttr { mtime: Some(SetTime::At(Time(1_000_000_000_000_000_000))), ..SetAttr::default() };
    for keep_size in [true, false] {
        let before = bench.fs.setattr(&heddle_vfs::short::root(), bench.file.ino, None, &old).unwrap();
        bench.fs.fallocate(&bench.file, RangeOp::Allocate { keep_size }, 0, PAGE).unwrap();
        let after = bench.fs.getattr(bench.file.ino).unwrap();
        assert!(after.mtime > before.mtime && after.mtime == after.ctime, "{after:?}");
    }
}
