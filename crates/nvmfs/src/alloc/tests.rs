//! What a lane keeps of the blocks that it takes and frees. Of 1024 blocks a lane keeps four. The reserve are
//! the last 34 before block 1023.

use super::*;
use crate::format::layout::Layout;
use crate::state::free_map::new_map;
use crate::state::lane::Lane;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::{Arena, Ptr, Zeroed};
use heddle_pmem::CrashPoint;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;

/// A lane, and a map of which no block is free.
struct Home {
    arena: Arena,
    at: Ptr<AtomicU64>,
    lanes: AtomicU64,
    layout: Layout,
    region: Region,
    fences: Arc<AtomicUsize>,
    lane: Box<Lane>,
}

impl Home {
    fn new() -> Home {
        let (arena, layout) = (Arena::private(8 << 20).unwrap(), Layout::new(1024));
        let at = new_map(&arena, &layout).unwrap();
        let (region, power) = Region::simulated(layout.bytes());
        let fences = Arc::new(AtomicUsize::new(0));
        let count = fences.clone();
        power.on_fence(Box::new(move |_: &CrashPoint<'_>| _ = count.fetch_add(1, SeqCst)));
        let lane = Box::new(Lane::zeroed());
        Home { arena, at, lanes: AtomicU64::new(1), layout, region, fences, lane }
    }

    fn map(&self) -> FreeMap<'_> {
        FreeMap::new(&self.arena, self.at, &self.layout, &self.lanes)
    }

    #[allow(clippy::mut_from_ref)]
    fn own(&self) -> &mut LaneLocal {
        // SAFETY: one thread, which has one reference.
        unsafe { self.lane.own() }
    }

    /// Blocks in limbo and magazine, free blocks, fences.
    fn seen(&self, own: &LaneLocal) -> (u64, usize, u64, usize) {
        (own.limbo.blocks(), own.magazine.len(), self.map().count(), self.fences.load(SeqCst))
    }
}

fn of(block: u64, count: u64) -> Extent {
    Extent { block: BlockNo(block), count }
}

/// Four times as many as a lane keeps wait. After the fence it keeps single ones.
#[test]
fn freed_blocks_wait_for_a_fence_as_long_as_they_are_few() {
    let home = Home::new();
    let own = home.own();
    let mut free = |extent| {
        free_later(home.map(), &home.region, own, extent);
        home.seen(own)
    };
    (2..17).for_each(|block| assert_eq!(free(of(block, 1)), (block - 1, 0, 0, 0)));
    assert_eq!(free(of(17, 1)), (16, 0, 0, 0));
    assert_eq!(free(of(18, 1)), (0, 4, 13, 1), "the seventeenth");
    assert_eq!(free(of(30, 4)), (4, 4, 13, 1));
    assert_eq!(free(of(40, 5)), (0, 4, 22, 2), "a long extent does not wait");
}

#[test]
fn a_lane_keeps_nothing_while_space_is_scarce() {
    let home = Home::new();
    let (map, own) = (home.map(), home.own());
    assert!(!map.take(&mut own.cursor, 2000, Purpose::Data, &mut Vec::new()) && map.scarce());
    free_later(map, &home.region, own, of(50, 1));
    assert_eq!(home.seen(own), (0, 0, 1, 1));
    assert!(own.limbo.push(of(52, 1)));
    release_limbo(map, own);
    assert_eq!(home.seen(own), (0, 0, 2, 1));
}

#[test]
fn a_lane_keeps_single_blocks_that_are_none_of_the_reserve() {
    let home = Home::new();
    let own = home.own();
    for extent in [of(988, 1), of(989, 1), of(600, 2)] {
        assert!(own.limbo.push(extent));
    }
    release_limbo(home.map(), own);
    assert_eq!(home.seen(own), (0, 1, 3, 0));
    assert_eq!(own.magazine.pop(), Some(BlockNo(988)));
    assert!([of(989, 1), of(600, 2)].iter().all(|extent| home.map().claim(*extent)));
}

#[test]
fn blocks_are_taken_several_at_once_and_handed_out_singly() {
    let home = Home::new();
    let (map, own) = (home.map(), home.own());
    map.give(of(2, 1021));
    let mut take = || take_block(map, &home.region, own, Purpose::Data);
    assert_eq!((take(), take()), (Some(BlockNo(2)), Some(BlockNo(3))));
    assert_eq!(home.seen(own), (0, 2, 1017, 0));
    let mut out = vec![of(1, 1)];
    assert!(take_blocks(map, &home.region, own, 1, Purpose::Data, &mut out));
    assert_eq!(out, [of(1, 1), of(4, 1)]);
    assert!(take_blocks(map, &home.region, own, 3, Purpose::Data, &mut out));
    assert_eq!((out.len(), home.seen(own)), (3, (0, 1, 1014, 0)));
    return_unused(map, &out[1..]);
    assert_eq!(map.count(), 1018);
}

#[test]
fn a_lane_that_finds_no_block_uses_what_it_has_freed() {
    for (limbo, magazine, count, purpose) in
        [(1, 0, 1, Purpose::Regain), (0, 2, 2, Purpose::Regain), (2, 0, 2, Purpose::Regain)]
    {
        let home = Home::new();
        let (map, own) = (home.map(), home.own());
        (0..limbo).for_each(|n| assert!(own.limbo.push(of(100 + n, 1))));
        (0..magazine).for_each(|n| assert!(own.magazine.push(BlockNo(200 + n))));
        let mut out = Vec::new();
        assert!(take_blocks(map, &home.region, own, count, purpose, &mut out), "{limbo}, {magazine}");
        assert_eq!(out.iter().map(|extent| extent.count).sum::<u64>(), count);
        assert_eq!(home.seen(own), (0, 0, 0, 1), "{limbo}, {magazine}");
        assert!(!take_blocks(map, &home.region, own, count, purpose, &mut Vec::new()));
        assert_eq!(home.seen(own), (0, 0, 0, 1), "there is nothing to wait for");
    }
}
