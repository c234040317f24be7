use std::collections::HashSet;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use crate::*;

mod corners;
#[cfg(not(shuttle))]
mod holds;
#[cfg(not(shuttle))]
mod pages;

shared! {
    struct Pair { a: AtomicU64, b: [AtomicU32; 2] }
}

fn arena() -> Arena {
    Arena::private(64 << 20).unwrap()
}

#[test]
fn what_one_mapping_writes_another_reads_at_another_address() {
    let here = Arena::shared(1 << 20).unwrap();
    let there = here.map_again().unwrap();
    let numbers = here.alloc_slice(1000, |i| AtomicU64::new(i as u64)).unwrap();
    here.set_root(numbers);
    let seen = there.slice(there.root::<AtomicU64>(), 1000);
    assert_ne!(seen.as_ptr(), here.slice(numbers, 1000).as_ptr());
    assert!(seen.iter().enumerate().all(|(i, n)| n.load(Relaxed) == i as u64));
    let more = there.alloc(AtomicU64::new(7)).unwrap();
    assert_eq!(here.get(more).load(Relaxed), 7);
    assert_eq!(there.offset_of(there.get(more)), more);
}

#[test]
fn pages_others_touched_are_mapped_at_once_without_new_memory() {
    const WORDS: usize = 1 << 20;
    let here = Arena::shared(64 << 20).unwrap();
    let words = here.alloc_zeroed::<AtomicU64>(WORDS).unwrap();
    let touch = |arena: &Arena| {
        // A word of each page, in two places, far from each other.
        let far = (0..WORDS / 8).chain(WORDS / 2..WORDS * 5 / 8);
        far.step_by(512).for_each(|at| arena.slice(words, WORDS)[at].store(1, Relaxed));
    };
    touch(&here);
    let there = here.map_again().unwrap();
    let blocks = || rustix::fs::fstat(here.fd().unwrap()).unwrap().st_blocks;
    let before = blocks();
    there.map_present();
    assert_eq!(blocks(), before);
    let faults = || {
        // SAFETY: plain numbers, for which zero is valid; a live local.
        unsafe {
            let mut usage: libc::rusage = std::mem::zeroed();
            libc::getrusage(libc::RUSAGE_THREAD, &mut usage);
            usage.ru_minflt
        }
    };
    let before = faults();
    touch(&there);
    assert_eq!(faults(), before, "pages were not mapped");
    Arena::private(1 << 20).unwrap().map_present();
}

#[test]
fn another_file_is_not_taken_for_an_arena() {
    let fd = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, 1 << 20).unwrap();
    let is_refused = matches!(
        Arena::attach(fd.try_clone().unwrap()),
        Err(MapError::Existing { capacity_bytes: 0x10_0000, .. })
    );
    assert!(is_refused, "not sealed");
    rustix::fs::fcntl_add_seals(&fd, rustix::fs::SealFlags::SHRINK).unwrap();
    assert!(matches!(Arena::attach(fd), Err(MapError::Foreign)));
}

#[test]
fn offsets_that_name_nothing_are_refused() {
    let arena = arena();
    let one = arena.alloc(0u64).unwrap();
    for raw in
        [0, 8, one.raw() + 1, arena.capacity_bytes() - 4, arena.capacity_bytes(), u64::MAX, u64::MAX - 7]
    {
        assert!(arena.try_get(Ptr::<u64>::from_raw(raw)).is_none(), "{raw:#x}");
    }
    assert!(std::panic::catch_unwind(|| arena.get(Ptr::<u64>::NULL)).is_err());
    assert!(std::panic::catch_unwind(|| arena.slice(one, usize::MAX)).is_err());
}

#[test]
fn freed_memory_is_used_again_and_zero_when_asked_for() {
    let arena = arena();
    for n in [1usize, 3, 100, 5000, 20_000, 500_000] {
        let first = arena.alloc_slice(n, |_| AtomicU64::new(u64::MAX)).unwrap();
        // SAFETY: allocated above, with n, not used any more.
        unsafe { arena.free(first, n) };
        let used = arena.used_bytes();
        let again = arena.alloc_zeroed::<AtomicU64>(n).unwrap();
        assert_eq!((again, arena.used_bytes()), (first, used), "{n}");
        assert!(arena.slice(again, n).iter().all(|w| w.load(Relaxed) == 0), "{n}");
    }
}

#[test]
fn blocks_of_a_line_or_more_start_on_a_line() {
    let arena = arena();
    for n in 8..300 {
        assert_eq!(arena.alloc_zeroed::<u64>(n).unwrap().raw() % 64, 0);
    }
    assert_eq!(arena.alloc_zeroed::<u64>(10_000).unwrap().raw() % 4096, 0);
}

#[test]
fn a_full_arena_says_so_and_serves_again_after_a_free() {
    let arena = Arena::private(1 << 20).unwrap();
    let mut all = Vec::new();
    let full = loop {
        match arena.alloc_zeroed::<[u64; 128]>(1) {
            Ok(block) => all.push(block),
            Err(full) => break full,
        }
    };
    assert_eq!(full, Full { wanted_bytes: 1024, capacity_bytes: 1 << 20 });
    assert!(all.len() > 900, "{} KiB of 1024 used", all.len());
    // SAFETY: allocated above, with 1, not used any more.
    unsafe { arena.free(all[5], 1) };
    assert_eq!(arena.alloc_zeroed::<[u64; 128]>(1), Ok(all[5]));
    assert!(arena.alloc_zeroed::<u64>(usize::MAX / 8).is_err());
}

/// Allocates and frees from several threads, each block stamped while it is held: a block in two hands loses its stamp.
fn hammer(
    arena: &Arena,
    alloc: impl Fn(usize, u64) -> Ptr<Pair> + Sync,
    free: impl Fn(usize, Ptr<Pair>) + Sync,
) {
    let barrier = Barrier::new(4);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (alloc, free, barrier) = (&alloc, &free, &barrier);
            scope.spawn(move || {
                barrier.wait();
                let mut held = Vec::new();
                for turn in 0..20_000u64 {
                    let stamp = (thread as u64) << 32 | turn | 1 << 60;
                    held.push((alloc(thread, stamp), stamp));
                    if turn % 3 == 0 || held.len() > 100 {
                        let (block, stamp) = held.swap_remove(turn as usize * 7 % held.len());
                        assert_eq!(arena.get(block).a.swap(0, Relaxed), stamp);
                        free(thread, block);
                    }
                }
                let unique: HashSet<u64> = held.iter().map(|(p, _)| p.raw()).collect();
                assert_eq!(unique.len(), held.len());
                held.into_iter().for_each(|(block, stamp)| {
                    assert_eq!(arena.get(block).a.load(Relaxed), stamp);
                    free(thread, block);
                });
            });
        }
    });
}

fn pair(stamp: u64) -> Pair {
    Pair { a: AtomicU64::new(stamp), b: Zeroed::zeroed() }
}

#[test]
fn no_block_is_handed_out_twice() {
    let arena = arena();
    // SAFETY: `hammer` frees what it allocated, once.
    hammer(&arena, |_, stamp| arena.alloc(pair(stamp)).unwrap(), |_, block| unsafe { arena.free(block, 1) });
    assert!(arena.used_bytes() < 1 << 20, "{} bytes for 400 live blocks", arena.used_bytes());
}

#[test]
fn heaps_hand_no_block_out_twice() {
    let arena = arena();
    let heaps = arena.alloc_zeroed::<Heap>(4).unwrap();
    let heap = |thread| &arena.slice(heaps, 4)[thread];
    hammer(
        &arena,
        // SAFETY: thread i uses heap i alone.
        |thread, stamp| unsafe { heap(thread).alloc(&arena, pair(stamp)).unwrap() },
        // SAFETY: as above, and `hammer` frees what it allocated, once.
        |thread, block| unsafe { heap(thread).free(&arena, block, 1) },
    );
}

#[test]
fn a_flushed_heap_leaves_its_blocks_to_others() {
    let arena = arena();
    let heap = arena.get(arena.alloc_zeroed::<Heap>(1).unwrap());
    // SAFETY: one thread, so one owner; each freed once.
    unsafe {
        let blocks: Vec<_> = (0..32).map(|i| heap.alloc(&arena, pair(i)).unwrap()).collect();
        blocks.into_iter().for_each(|block| heap.free(&arena, block, 1));
        heap.flush(&arena);
    }
    let used = arena.used_bytes();
    let blocks: HashSet<u64> = (0..32).map(|i| arena.alloc(pair(i)).unwrap().raw()).collect();
    assert_eq!((blocks.len(), arena.used_bytes()), (32, used));
}

#[test]
fn one_lane_may_free_what_another_allocated() {
    let arena = arena();
    let [giver, taker] = [(); 2].map(|_| arena.alloc_zeroed::<Heap>(1).unwrap());
    for round in 0..10_000 {
        // SAFETY: one thread, so one owner; freed once.
        unsafe {
            let block = arena.get(giver).alloc(&arena, pair(round)).unwrap();
            arena.get(taker).free(&arena, block, 1);
        }
    }
    assert!(arena.used_bytes() < 1 << 20, "blocks flow back: {}", arena.used_bytes());
}

#[test]
fn a_waiter_sleeps_until_it_is_woken() {
    let arena = arena();
    let word = arena.alloc(AtomicU32::new(1)).unwrap();
    let start = Instant::now();
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            arena.parking().wait(
                word.raw(),
                || arena.get(word).load(SeqCst) == 1,
                Some(Duration::from_secs(60)),
            )
        });
        std::thread::sleep(Duration::from_millis(20));
        arena.get(word).store(0, SeqCst);
        arena.parking().wake(word.raw());
        assert_eq!(waiter.join().unwrap(), Waited::Unblocked);
    });
    assert!(start.elapsed() < Duration::from_secs(30));
    let waited = arena.parking().wait(word.raw(), || true, Some(Duration::from_millis(5)));
    assert_eq!(waited, Waited::TimedOut);
}

#[test]
fn a_waiter_is_woken_through_another_mapping() {
    let here = Arena::shared(1 << 20).unwrap();
    let there = here.map_again().unwrap();
    let word = here.alloc(AtomicU32::new(0)).unwrap();
    let long = Some(Duration::from_secs(60));
    let start = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for turn in 0..1000 {
                here.parking().wait(word.raw(), || here.get(word).load(SeqCst) == 2 * turn, long);
                here.get(word).fetch_add(1, SeqCst);
                here.parking().wake(word.raw());
            }
        });
        for turn in 0..1000 {
            there.get(word).fetch_add(1, SeqCst);
            there.parking().wake(word.raw());
            there.parking().wait(word.raw(), || there.get(word).load(SeqCst) == 2 * turn + 1, long);
        }
    });
    assert!(start.elapsed() < Duration::from_secs(60), "a wake-up was lost");
}

#[test]
fn lanes_are_exclusive_and_come_back() {
    let arena = Arena::shared(1 << 20).unwrap();
    let table = arena.get(LaneTable::create(&arena, 3).unwrap());
    let process_slot = table.take_process_slot(&arena).unwrap();
    let leases: Vec<Lease> = (0..3).map(|_| table.lease(&arena, &process_slot).unwrap()).collect();
    assert_eq!(leases.iter().map(|l| l.lane).collect::<HashSet<_>>().len(), 3);
    assert!(leases.iter().all(|l| !l.died && (1..=3).contains(&l.lane.0)));
    assert_eq!(table.lease(&arena, &process_slot), Err(NoLane { lanes: 3 }));
    table.release(&arena, leases[1]).unwrap();
    assert_eq!(table.release(&arena, leases[1]), Err(NotHolder { lane: leases[1].lane }));
    assert_eq!(table.lease(&arena, &process_slot), Ok(leases[1]));
    leases.iter().for_each(|l| table.release(&arena, *l).unwrap());
}

#[test]
fn a_thread_that_ends_with_a_lane_is_found_dead_once() {
    let arena = Arena::shared(1 << 20).unwrap();
    let table = arena.get(LaneTable::create(&arena, 1).unwrap());
    let process_slot = table.take_process_slot(&arena).unwrap();
    let _ = std::thread::scope(|s| s.spawn(|| table.lease(&arena, &process_slot).unwrap()).join().unwrap());
    let began = Instant::now();
    let lease = loop {
        // The kernel may need a moment after the join.
        match table.lease(&arena, &process_slot) {
            Ok(lease) => break lease,
            Err(_) => assert!(began.elapsed() < Duration::from_secs(10)),
        }
    };
    assert!(lease.died);
    table.release(&arena, lease).unwrap();
    let lease = table.lease_lane(&arena, LaneId(1), &process_slot).unwrap();
    assert!(!lease.died, "it was settled");
    table.release(&arena, lease).unwrap();
}

#[test]
fn settling_leaves_a_lane_to_the_new_thread_of_that_id() {
    let arena = Arena::shared(1 << 20).unwrap();
    let table = arena.get(LaneTable::create(&arena, 1).unwrap());
    let process_slot = table.take_process_slot(&arena).unwrap();
    let lease = table.lease(&arena, &process_slot).unwrap();
    let holder = table.holder(&arena, lease.lane).unwrap();
    let taken = std::thread::scope(|scope| {
        // Its first look was at the dead one.
        let mut looks = [true, false].into_iter();
        let (arena, process_slot) = (&arena, &process_slot);
        let late =
            move || table.lease_from(arena, lease.lane, holder, process_slot, || looks.next().unwrap());
        scope.spawn(late).join().unwrap()
    });
    assert_eq!(taken, None);
    assert_eq!(table.release(&arena, lease), Ok(()));
}

#[test]
fn a_parked_lane_is_its_processes_alone() {
    let here = Arena::shared(1 << 20).unwrap();
    let table = here.get(LaneTable::create(&here, 1).unwrap());
    let (mine, other) = (table.take_process_slot(&here).unwrap(), table.take_process_slot(&here).unwrap());
    let lease = table.lease(&here, &mine).unwrap();
    table.park(&here, lease, mine.tag()).unwrap();
    assert_eq!(table.unpark(&here, LaneId(1), &other), None);
    assert_eq!(table.lease(&here, &other), Err(NoLane { lanes: 1 }));
    let again = table.unpark(&here, LaneId(1), &mine).unwrap();
    assert!(!again.died);
    table.park(&here, again, mine.tag()).unwrap();
    mine.leave();
    assert!(table.lease(&here, &other).unwrap().died, "its process is gone");
}

/// What runs in a forked child: says how it goes in `state`.
fn in_child(arena: &Arena, state: &AtomicU32, work: impl FnOnce() -> bool) -> libc::pid_t {
    // SAFETY: the child makes calls that are safe after fork in a threaded process: no locks of ours, an allocator that stays usable.
    let child = unsafe { libc::fork() };
    if child == 0 {
        state.store(if work() { 1 } else { 2 }, SeqCst);
        futex_wake_all(state);
        loop {
            // SAFETY: waits for the signal that ends it.
            unsafe { libc::pause() };
        }
    }
    let _kept = arena;
    while state.load(SeqCst) == 0 {
        park::futex_wait(state, 0, Some(Duration::from_secs(1)));
    }
    child
}

fn kill_and_reap(child: libc::pid_t) {
    // SAFETY: our own child, reaped once.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
}

#[test]
fn a_killed_process_leaves_its_lane_to_be_settled() {
    let arena = Arena::shared(1 << 20).unwrap();
    let table = arena.get(LaneTable::create(&arena, 2).unwrap());
    let state = arena.get(arena.alloc(AtomicU32::new(0)).unwrap());
    let process_slot = table.take_process_slot(&arena).unwrap();
    let mine = table.lease(&arena, &process_slot).unwrap();
    let child = in_child(&arena, state, || {
        let own = table.take_process_slot(&arena).unwrap();
        table.lease(&arena, &own).is_ok_and(|l| l.lane != mine.lane && !l.died)
    });
    assert_eq!(state.load(SeqCst), 1, "a child leases its own lane");
    assert_eq!(table.lease(&arena, &process_slot), Err(NoLane { lanes: 2 }), "a living child keeps its lane");
    kill_and_reap(child);
    let dead = table.lease(&arena, &process_slot).unwrap();
    assert!(dead.died && dead.lane != mine.lane);
    table.release(&arena, dead).unwrap();
    table.release(&arena, mine).unwrap();
}

#[test]
fn a_process_of_another_pid_namespace_lives_without_descriptors() {
    let arena = Arena::shared(1 << 20).unwrap();
    let table = arena.get(LaneTable::create(&arena, 2).unwrap());
    let state = arena.get(arena.alloc(AtomicU32::new(0)).unwrap());
    let tag = arena.get(arena.alloc(crate::sync::atomic::AtomicU64::new(0)).unwrap());
    let process_slot = table.take_process_slot(&arena).unwrap();
    let mine = table.lease(&arena, &process_slot).unwrap();
    let child = in_child(&arena, state, || {
        // SAFETY: where it is not permitted the number space stays the same, which the test does not need.
        let _ = unsafe { libc::unshare(libc::CLONE_NEWPID) };
        // SAFETY: as above; the grandchild is number 1 of the new space, and ends with its parent.
        let grandchild = unsafe { libc::fork() };
        if grandchild != 0 {
            while tag.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            return true;
        }
        // SAFETY: a setting of this process.
        unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
        let own = table.take_process_slot(&arena).unwrap();
        let leased = table.lease(&arena, &own).is_ok();
        // SAFETY: nothing here needs a descriptor any more.
        unsafe { libc::syscall(libc::SYS_close_range, 3, u32::MAX, 0) };
        tag.store(if leased { own.tag().word() } else { 1 }, SeqCst);
        loop {
            // SAFETY: waits for the signal that ends it.
            unsafe { libc::pause() };
        }
    });
    let process = ProcessTag::from_word(tag.load(SeqCst));
    assert!(process.process_slot().is_some(), "the grandchild has no lane");
    assert!(!table.is_gone(&arena, process));
    assert_eq!(table.lease(&arena, &process_slot), Err(NoLane { lanes: 2 }), "it was declared dead");
    kill_and_reap(child);
    let began = Instant::now();
    while !table.is_gone(&arena, process) {
        assert!(began.elapsed() < Duration::from_secs(10), "it has ended, and nobody knows");
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(table.lease(&arena, &process_slot).unwrap().died);
    let _ = mine;
}

fn futex_wake_all(word: &AtomicU32) {
    park::futex_wake(word, u32::MAX);
}

#[test]
fn a_slice_ends_where_the_arena_ends() {
    let arena = arena();
    let last = Ptr::<u64>::from_raw(arena.capacity_bytes() - 64);
    assert_eq!(arena.try_slice(last, 8).map(<[u64]>::len), Some(8));
    for n in [9, 64, 512, 4096, arena.capacity_bytes() as usize / 8, usize::MAX / 8, usize::MAX] {
        assert!(arena.try_slice(last, n).is_none(), "{n}");
    }
}

/// Other users write to lists of free blocks: what they lead to is a block in the arena, or nobody follows them.
#[test]
fn scribbled_lists_of_free_blocks_lead_nowhere() {
    let end = arena().capacity_bytes();
    for at in [8, 16, 4096 - 32, end - 16, end, end + 4096, 1 << 40, u64::MAX - 15, u64::MAX] {
        let led = |scribble: &dyn Fn(&Arena, &Heap, Ptr<u64>), take: &dyn Fn(&Arena, &Heap)| {
            let (arena, heap) = (arena(), Heap::zeroed());
            let ptrs: Vec<_> = (0..300).map(|i| arena.alloc(i).unwrap()).collect();
            // SAFETY: allocated above, not used any more; the heap is this thread's.
            ptrs.iter().for_each(|ptr| unsafe { heap.free(&arena, *ptr, 1) });
            scribble(&arena, &heap, *ptrs.last().unwrap());
            (0..600).for_each(|_| take(&arena, &heap));
        };
        let caught = |led: &dyn Fn()| std::panic::catch_unwind(std::panic::AssertUnwindSafe(led)).is_err();
        // SAFETY: the heap is this thread's.
        let of_heap = |arena: &Arena, heap: &Heap| assert!(unsafe { heap.alloc(arena, 0u64) }.is_ok());
        let of_arena = |arena: &Arena, _: &Heap| assert!(arena.alloc(0u64).is_ok());
        let next = |arena: &Arena, _: &Heap, ptr: Ptr<u64>| arena.links(ptr.raw()).next.store(at, Relaxed);
        assert!(caught(&|| led(&next, &of_heap)), "{at:#x} in a heap");
        let listed = |arena: &Arena, heap: &Heap, ptr: Ptr<u64>| {
            // SAFETY: the heap is this thread's.
            unsafe { heap.flush(arena) };
            next(arena, heap, ptr);
        };
        assert!(caught(&|| led(&listed, &of_arena)), "{at:#x} in a list");
    }
}

#[test]
fn a_free_block_that_ends_outside_the_arena_is_none() {
    let (arena, heap) = (arena(), Heap::zeroed());
    // SAFETY: the heap is this thread's.
    let alloc = || unsafe { heap.alloc_slice(&arena, 512, |_| 0u64) };
    let ptrs = [alloc().unwrap(), alloc().unwrap()];
    // SAFETY: as above.
    unsafe { heap.flush(&arena) };
    // SAFETY: allocated above, not used any more.
    ptrs.iter().for_each(|ptr| unsafe { heap.free(&arena, *ptr, 512) });
    arena.links(ptrs[1].raw()).next.store(arena.capacity_bytes() - 64, Relaxed);
    assert_eq!(alloc().unwrap(), ptrs[1]);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(alloc)).is_err());
}

fn thread_cpu_time() -> Duration {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(spent.tv_sec as u64, spent.tv_nsec as u32)
}

#[test]
fn a_waiter_sleeps_and_leaves_the_processor_to_others() {
    let arena = arena();
    let table = arena.parking();
    let (began, spent) = (Instant::now(), thread_cpu_time());
    let waited = table.wait(1, || true, Some(Duration::from_millis(200)));
    assert!(matches!(waited, park::Waited::TimedOut) && began.elapsed() >= Duration::from_millis(200));
    let spent = thread_cpu_time() - spent;
    assert!(spent < Duration::from_millis(60), "{spent:?} of processor time in 200 ms");
}
