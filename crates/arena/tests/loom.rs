//! Every interleaving (and every weak-memory outcome loom knows) of the free list, the heaps and the parking table.
//! Run: RUSTFLAGS="--cfg loom" cargo test -p heddle-arena --release --test loom
#![cfg(loom)]

use heddle_arena::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use heddle_arena::sync::plant::{FaultCase, all_are_seen};
use heddle_arena::{Arena, Heap, LaneTable, Ptr, Waited, shared};
use loom::sync::Arc;
use loom::thread;

shared! {
    struct Thing { owner: AtomicU64, b: AtomicU64 }
}

fn model(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(f);
}

fn arena() -> Arc<Arena> {
    Arc::new(Arena::private(1 << 20).unwrap())
}

/// Takes a block, holds it, gives it back: two owners at once would see each other's mark.
fn hold(arena: &Arena, me: u64) {
    let block = arena.alloc(Thing { owner: AtomicU64::new(me), b: AtomicU64::new(0) }).unwrap();
    thread::yield_now();
    assert_eq!(arena.get(block).owner.load(Relaxed), me);
    // SAFETY: allocated above, not used any more.
    unsafe { arena.free(block, 1) };
}

#[test]
fn no_block_is_handed_out_twice() {
    model(3, || {
        let arena = arena();
        let threads: Vec<_> = (1..3)
            .map(|me| {
                let arena = arena.clone();
                thread::spawn(move || {
                    hold(&arena, me);
                    hold(&arena, me);
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        let [a, b] =
            [(); 2].map(|_| arena.alloc(Thing { owner: AtomicU64::new(0), b: AtomicU64::new(0) }).unwrap());
        assert_ne!(a, b);
    });
}

/// The classic: a popper stops between reading the top block and swapping it in; meanwhile both blocks are taken and the top one
/// comes back. Without the count of pushes its swap would succeed and put a block on the list that somebody holds.
#[test]
fn a_block_that_came_back_does_not_fool_a_late_popper() {
    model(3, || {
        let arena = arena();
        let marked = |me| Thing { owner: AtomicU64::new(me), b: AtomicU64::new(0) };
        let blocks = [(); 2].map(|_| arena.alloc(marked(0)).unwrap());
        // SAFETY: allocated above, not used any more. One by one, so that they lie on the list as two batches.
        blocks.into_iter().for_each(|block| unsafe { arena.free(block, 1) });
        let late = {
            let arena = arena.clone();
            thread::spawn(move || [1, 2].map(|me| (arena.alloc(marked(me)).unwrap(), me)))
        };
        let [top, held] = [3, 4].map(|me| arena.alloc(marked(me)).unwrap());
        // SAFETY: allocated above, not used any more.
        unsafe { arena.free(top, 1) };
        let late = late.join().unwrap();
        assert!(
            late.iter().all(|(block, me)| *block != held && arena.get(*block).owner.load(Relaxed) == *me)
        );
        assert_eq!(arena.get(held).owner.load(Relaxed), 4);
    });
}

#[test]
fn blocks_move_between_heaps_through_the_shared_list() {
    model(3, || {
        let arena = arena();
        let heaps = arena.alloc_zeroed::<Heap>(2).unwrap();
        let threads: Vec<_> = (0..2u64)
            .map(|me| {
                let arena = arena.clone();
                thread::spawn(move || {
                    let heap = &arena.slice(heaps, 2)[me as usize];
                    let make = |i| Thing { owner: AtomicU64::new(me), b: AtomicU64::new(i) };
                    // SAFETY: thread `me` owns heap `me`; each block freed once.
                    let blocks: [Ptr<Thing>; 3] =
                        [0, 1, 2].map(|i| unsafe { heap.alloc(&arena, make(i)).unwrap() });
                    for (i, block) in blocks.into_iter().enumerate() {
                        let thing = arena.get(block);
                        assert_eq!((thing.owner.load(Relaxed), thing.b.load(Relaxed)), (me, i as u64));
                        // SAFETY: as above.
                        unsafe { heap.free(&arena, block, 1) };
                    }
                    // SAFETY: as above.
                    unsafe { heap.flush(&arena) };
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn no_wake_up_is_lost() {
    loom::model(|| {
        let arena = arena();
        let word = arena.alloc(AtomicU32::new(1)).unwrap();
        let waiter = {
            let arena = arena.clone();
            thread::spawn(move || {
                arena.parking().wait(word.raw(), || arena.get(word).load(SeqCst) == 1, None)
            })
        };
        arena.get(word).store(0, SeqCst);
        arena.parking().wake(word.raw());
        assert_eq!(waiter.join().unwrap(), Waited::Unblocked);
    });
}

/// Two words in one bucket (here: under one key): the waker of one clears the bit of the other's waiter.
#[test]
fn no_wake_up_is_lost_when_two_words_share_a_bucket() {
    model(3, || {
        let arena = arena();
        let words = arena.alloc_slice(2, |_| AtomicU32::new(1)).unwrap();
        let threads: Vec<_> = [0, 1]
            .map(|i| {
                let (arena, word) = (arena.clone(), words.add(i));
                thread::spawn(move || arena.parking().wait(7, || arena.get(word).load(SeqCst) == 1, None))
            })
            .into();
        for i in 0..2 {
            arena.get(words.add(i)).store(0, SeqCst);
            arena.parking().wake(7);
        }
        threads.into_iter().for_each(|t| assert_eq!(t.join().unwrap(), Waited::Unblocked));
    });
}

/// Two wakers at once: the one whose swap fails may rely on the other.
#[test]
fn no_wake_up_is_lost_between_two_wakers() {
    model(3, || {
        let arena = arena();
        let word = arena.alloc(AtomicU32::new(2)).unwrap();
        let drop_one = move |arena: &Arena| {
            arena.get(word).fetch_sub(1, SeqCst);
            arena.parking().wake(word.raw());
        };
        let other = {
            let arena = arena.clone();
            thread::spawn(move || drop_one(&arena))
        };
        let waiter = {
            let arena = arena.clone();
            thread::spawn(move || {
                arena.parking().wait(word.raw(), || arena.get(word).load(SeqCst) != 0, None)
            })
        };
        drop_one(&arena);
        other.join().unwrap();
        waiter.join().unwrap();
    });
}

/// A thread has ended with its lane. Two others find that out; a new thread of that process gets the dead one's number, as the kernel may
/// give it, and the lane, when that was settled. What one of the two knows is old by then.
#[test]
fn a_reused_thread_id_does_not_lose_its_lane() {
    model(2, || {
        let arena = arena();
        let table = LaneTable::create(&arena, 1).unwrap();
        let process_slot = Arc::new(arena.get(table).take_process_slot(&arena).unwrap());
        let dead = arena.get(table).lease(&arena, &process_slot).unwrap();
        let holder = arena.get(table).holder(&arena, dead.lane).unwrap();
        // What is the holder's, and then a settler's; and whether there is a thread of that number.
        let record = Arc::new(loom::cell::UnsafeCell::new(0));
        let there = Arc::new(AtomicU64::new(0));
        let settlers: Vec<_> = (0..2)
            .map(|_| {
                let (arena, record, there) = (arena.clone(), record.clone(), there.clone());
                thread::spawn(move || {
                    let table = arena.get(table);
                    let process_slot = table.take_process_slot(&arena).unwrap();
                    let is_dead = || there.load(SeqCst) == 0;
                    if let Some(lease) = table.lease_from(&arena, dead.lane, holder, &process_slot, is_dead) {
                        // SAFETY: loom checks it.
                        record.with_mut(|record| unsafe { *record += 1 });
                        table.release(&arena, lease).unwrap();
                    }
                })
            })
            .collect();
        there.store(1, SeqCst);
        if let Ok(lease) = arena.get(table).lease(&arena, &process_slot) {
            // SAFETY: loom checks it.
            record.with_mut(|record| unsafe { *record += 1 });
            let _for_a_moment_another_had_it = arena.get(table).release(&arena, lease);
        }
        there.store(0, SeqCst);
        settlers.into_iter().for_each(|settler| settler.join().unwrap());
    });
}

macro_rules! lanes {
    ($($after:literal => $fault:literal;)*) => {
        &[$(FaultCase {
            test: "a_reused_thread_id_does_not_lose_its_lane",
            file: "arena/src/lanes.rs",
            source: include_str!("../src/lanes.rs"),
            after: $after,
            access: ".compare_exchange(",
            fault: $fault,
        }),*]
    };
}

/// A lane that changes hands unordered.
const PLANTS: &[FaultCase] = lanes! { "fn replace(" => "relaxed"; "fn give(" => "relaxed"; };

#[test]
fn every_planted_fault_is_seen() {
    all_are_seen(PLANTS, &[("HEDDLE_LOOM_MARKS", "0")]);
}
