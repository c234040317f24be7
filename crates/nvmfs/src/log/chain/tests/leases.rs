//! Which lane has which chain, within a call and between calls.

use super::super::append::next_slot;
use super::super::*;
use crate::volume::bench::Bench;
use heddle_vfs::short::Short;
use heddle_vfs::{Handle, Ino};
use std::collections::BTreeSet;
use std::ptr;
use std::time::Duration;

/// A lane that no thread of these tests has.
const ANOTHER: u16 = 9;

fn chains_in_use(core: &Core, inode: InodeRef<'_>) -> usize {
    existing(core, inode).count()
}

/// Of all numbers that fall to one place of the lane's memory, or to its neighbour.
#[test]
fn a_call_with_two_inodes_keeps_a_chain_of_each() {
    let bench = Bench::new();
    let core = bench.core();
    let files: Vec<Handle> = (0..40).map(|n| bench.fs.new_file(Ino::ROOT, &format!("{n}"))).collect();
    let inodes: Vec<_> = files.iter().map(|file| core.inode(file.ino).unwrap()).collect();
    for (one, other) in inodes.iter().flat_map(|one| inodes.iter().map(move |other| (one, other))) {
        let mut guard = bench.guard();
        let of = |guard: &mut LaneGuard<'_>, inode: &InodeRef<'_>| {
            ptr::from_ref(lease(core, guard, core.inode(inode.ino).unwrap()).unwrap())
        };
        let held = [of(&mut guard, one), of(&mut guard, other)];
        assert_eq!([of(&mut guard, one), of(&mut guard, other)], held, "{} and {}", one.ino.0, other.ino.0);
        for inode in [one, other] {
            let busy = existing(core, *inode).map(|chain| chain.is_busy_for(guard.id));
            assert_eq!(busy.collect::<Vec<_>>(), [true], "{} and {}", one.ino.0, other.ino.0);
        }
    }
    assert!(inodes.iter().all(|inode| chains_in_use(core, *inode) == 1));
}

#[test]
fn a_chain_that_is_let_go_is_free_for_other_lanes() {
    let bench = Bench::new();
    let core = bench.core();
    let one = bench.inode();
    let files: Vec<Handle> = (0..8).map(|n| bench.fs.new_file(Ino::ROOT, &format!("{n}"))).collect();
    let apart = files.iter().find(|file| !ways_of(one.ino).contains(&ways_of(file.ino)[0])).unwrap();
    let other = core.inode(apart.ino).unwrap();
    let is_free = |chain: &Chain| {
        let free = chain.claim(ANOTHER);
        if free {
            chain.unclaim();
        }
        free
    };
    let mut guard = bench.guard();
    let chains = [one, other].map(|inode| lease(core, &mut guard, inode).unwrap());
    let_go_of(core, guard.own, guard.id, one);
    assert_eq!(chains.map(is_free), [true, false]);
    assert_eq!(guard.own.chains_busy.count_ones(), 1, "the other one is busy");
    assert!(chains[1].is_busy_for(guard.id));
    drop(guard);
    let mut guard = bench.guard();
    assert!(!is_free(chains[1]), "it is kept from call to call");
    let_go_of(core, guard.own, guard.id, other);
    assert!(is_free(chains[1]));
    // One place still names an inode that had this slot before.
    assert!(ptr::eq(lease(core, &mut guard, one).unwrap(), chains[0]));
    let way = ways_of(one.ino).into_iter().find(|way| guard.own.chains[*way].ino == one.ino.0).unwrap();
    let held = guard.own.chains[way];
    guard.own.chains[way ^ 1] = HeldChain { generation: held.generation + 1, ..held };
    guard.own.chains_busy |= 1 << (way ^ 1);
    let_go(core, guard.own, guard.id, way ^ 1);
    assert!(chains[0].is_busy_for(guard.id), "its successor's chain stays");
    assert_eq!(guard.own.chains_busy, 1 << way);
    lease(core, &mut guard, other).unwrap();
    let_go_all(core, guard.own, guard.id);
    assert_eq!(chains.map(is_free), [true, true]);
    assert_eq!((guard.own.chains_busy, guard.own.chains.iter().all(|held| held.ino == 0)), (0, true));
}

#[test]
fn a_lane_whose_chain_was_taken_over_takes_another() {
    let bench = Bench::new();
    let (core, inode) = (bench.core(), bench.inode());
    let first = lease(core, &mut bench.guard(), inode).unwrap();
    assert!(first.claim_quiet(ANOTHER));
    let mut guard = bench.guard();
    assert!(next_slot(core, guard.own, guard.id, inode).is_none());
    let second = lease(core, &mut guard, inode).unwrap();
    assert!(!ptr::eq(first, second) && first.is_busy_for(ANOTHER) && second.is_busy_for(guard.id));
}

#[test]
fn each_number_of_a_chain_has_places_of_its_own() {
    let bench = Bench::new();
    let (core, inode) = (bench.core(), bench.inode());
    let guard = bench.guard();
    let chains = chains_of(core, guard.own, inode).unwrap();
    let numbers = HEADS_INLINE + HEADS_IN_BLOCK;
    assert_eq!(numbers, 518, "six in the slot, and a block of words");
    let slots: BTreeSet<usize> = (0..numbers)
        .map(|number| ptr::from_ref(slot_of(core, guard.own, chains, number).unwrap()) as usize)
        .collect();
    assert_eq!(slots.len(), 518);
    chains.head_block.store(1000, Release);
    for (number, at) in [(6, 0), (7, 8), (517, 4088)] {
        assert_eq!(head_pos(core, inode, chains, number), Pos(1000 * 4096 + at), "{number}");
    }
    chains.head_block.store(0, Release);
}

#[test]
fn with_every_chain_kept_a_lane_takes_over_a_quiet_one() {
    const QUIET: u32 = 77;
    let bench = Bench::new();
    let (core, inode) = (bench.core(), bench.inode());
    let mut guard = bench.guard();
    let chains = chains_of(core, guard.own, inode).unwrap();
    for number in 0..518 {
        // SAFETY: `own` is this thread's.
        let new = unsafe { guard.own.heap.alloc(&core.arena, Chain::new(number, ANOTHER)) }.unwrap();
        slot_of(core, guard.own, chains, number).unwrap().store(new, Release);
        if number == QUIET {
            core.arena.get(new).rest(ANOTHER);
        }
    }
    let taken = lease(core, &mut guard, inode).unwrap();
    assert_eq!((taken.number(), taken.is_busy_for(guard.id)), (QUIET, true));
}

#[test]
fn a_dead_user_of_a_chain_is_settled_when_others_have_waited() {
    let bench = Bench::new();
    let (core, inode) = (bench.core(), bench.inode());
    let settled = || core.root().settled.load(SeqCst);
    let held_up = |waited| users_held_up(core, inode, Duration::from_millis(waited));
    assert!(!held_up(0), "it has no chain");
    lease(core, &mut bench.guard(), inode).unwrap();
    assert!(!held_up(1000), "its chain is not busy");
    bench.dies_after(|| {
        let mut guard = bench.guard();
        lease(core, &mut guard, inode).unwrap();
        std::mem::forget(guard);
    });
    let before = settled();
    assert_eq!((held_up(0), settled()), (true, before), "it may be quick");
    assert_eq!((held_up(1000), settled()), (true, before + 1));
    assert!(!held_up(1000));
}
