//! Sizes at their limits, words that others have scribbled over, and what the process is told.

use std::cell::Cell;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use crate::class::{self, Class};
use crate::lanes::look_first_at;
use crate::*;

#[test]
fn an_arena_has_room_for_its_header_and_offsets_for_its_end() {
    let refused = |bytes| Arena::private(bytes).err();
    let Some(MapError::Size { capacity_bytes: 4096, min_bytes }) = refused(4096) else {
        panic!("{:?}", refused(4096))
    };
    assert!(matches!(refused(min_bytes as usize - 4096), Some(MapError::Size { .. })));
    let smallest = Arena::private(min_bytes as usize).unwrap();
    assert_eq!((smallest.capacity_bytes(), smallest.used_bytes()), (min_bytes, min_bytes / 2));
    assert!(matches!(refused((4 << 40) + 1), Some(MapError::Size { .. })), "4 TiB is the end");
    let odd = Arena::private(min_bytes as usize + 1).unwrap();
    assert_eq!(odd.capacity_bytes(), min_bytes + 4096);
}

#[test]
fn an_arena_is_used_to_its_last_byte() {
    let arena = Arena::private(1 << 20).unwrap();
    let room = arena.capacity_bytes() - arena.used_bytes();
    let blocks = (0..).take_while(|_| arena.alloc_zeroed::<[u64; 128]>(1).is_ok()).count();
    assert_eq!((blocks as u64, arena.used_bytes()), (room / 1024, arena.capacity_bytes()));
}

#[test]
fn an_arena_of_another_version_or_size_is_foreign() {
    let here = Arena::shared(1 << 20).unwrap();
    let file = File::from(here.fd().unwrap().try_clone_to_owned().unwrap());
    let is_foreign = || matches!(here.map_again(), Err(MapError::Foreign));
    let mut magic = [0; 8];
    file.read_exact_at(&mut magic, 0).unwrap();
    file.write_all_at(&[1; 8], 0).unwrap();
    assert!(is_foreign(), "another version");
    file.write_all_at(&magic, 0).unwrap();
    file.write_all_at(&(1u64 << 21).to_ne_bytes(), 8).unwrap();
    assert!(is_foreign(), "another size");
    file.write_all_at(&(1u64 << 20).to_ne_bytes(), 8).unwrap();
    assert!(!is_foreign());
    let short = sealed(4096);
    short.write_all_at(&magic, 0).unwrap();
    short.write_all_at(&4096u64.to_ne_bytes(), 8).unwrap();
    assert!(matches!(Arena::attach(OwnedFd::from(short)), Err(MapError::Foreign)), "no room for a header");
    assert!(matches!(Arena::private(1 << 20).unwrap().map_again(), Err(MapError::Private)));
}

pub(super) fn sealed(bytes: u64) -> File {
    let fd = rustix::fs::memfd_create("x", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&fd, bytes).unwrap();
    rustix::fs::fcntl_add_seals(&fd, rustix::fs::SealFlags::SHRINK).unwrap();
    fd.into()
}

#[test]
fn a_shared_arena_begins_where_a_huge_page_may() {
    let arena = Arena::shared(3 << 20).unwrap();
    let one = arena.alloc(0u64).unwrap();
    let base = std::ptr::from_ref(arena.get(one)).addr() - one.raw() as usize;
    assert_eq!(base % (2 << 20), 0);
}

#[test]
fn what_an_arena_takes_is_told() {
    let (private, shared) = (Arena::private(4 << 20).unwrap(), Arena::shared(4 << 20).unwrap());
    assert!(private.is_private() && private.fd().is_none());
    assert!(!shared.is_private() && shared.fd().is_some());
    assert_eq!(private.touched_bytes(), 4 << 20, "nobody knows better");
    let before = shared.touched_bytes();
    assert!((4096..=2 << 20).contains(&before), "{before}");
    shared.alloc_slice(128 << 10, |i| i as u64).unwrap();
    assert!((before + (1 << 20)..=before + (3 << 20)).contains(&shared.touched_bytes()));
}

#[test]
fn what_lies_elsewhere_has_no_offset() {
    let arena = Arena::private(1 << 20).unwrap();
    let outside = AtomicU64::new(0);
    assert!(catch_unwind(AssertUnwindSafe(|| arena.offset_of(&outside))).is_err());
    let inside = arena.alloc_slice(3, |_| 0u64).unwrap();
    assert_eq!(arena.offset_of(&arena.slice(inside, 3)[2]), inside.add(2));
    assert_eq!(
        (inside.add(2).raw(), inside.is_null(), Ptr::<u64>::NULL.is_null()),
        (inside.raw() + 16, false, true)
    );
}

#[test]
fn zeroed_blocks_of_every_size_are_zero_on_both_kinds_of_memory() {
    for arena in [Arena::private(32 << 20).unwrap(), Arena::shared(32 << 20).unwrap()] {
        let heap = Heap::zeroed();
        for size in [4, 6, 8, 16, 24, 100, 1000, 8192, 9000, 200_000] {
            let is_zero =
                |ptr| arena.slice::<AtomicU64>(ptr, size).iter().all(|word| word.load(Relaxed) == 0);
            let first = arena.alloc_zeroed::<AtomicU64>(size).unwrap();
            assert!(is_zero(first), "{size} fresh words");
            let dirty = arena.alloc_slice(size, |_| AtomicU64::new(u64::MAX)).unwrap();
            // SAFETY: one thread, so one owner; allocated above, each freed once.
            unsafe {
                heap.free(&arena, dirty, size);
                let again = heap.alloc_zeroed::<AtomicU64>(&arena, size).unwrap();
                assert!(is_zero(again), "{size} words that were used");
                heap.free(&arena, again, size);
                let filled = heap.alloc_slice(&arena, size, |i| AtomicU64::new(i as u64)).unwrap();
                assert!(
                    arena.slice(filled, size).iter().enumerate().all(|(i, w)| w.load(Relaxed) == i as u64)
                );
            }
        }
    }
}

#[test]
fn small_blocks_come_in_batches_and_large_ones_alone() {
    let class = |bytes| Class::of(bytes).unwrap();
    let batches = [32, 48, 128, 1024, 6144, 8192, 16384, 65536, 1 << 20].map(|bytes| class(bytes).batch());
    assert_eq!(batches, [128, 128, 128, 16, 2, 2, 1, 1, 1]);
    assert_eq!([32, 48, 64, 65536, 65537].map(|bytes| class(bytes).align()), [32, 16, 64, 64, 4096]);
    assert!(class(65536).is_small() && !class(65537).is_small());
    assert_eq!(class(65536).index() + 1, class::SMALL);
    assert_eq!((class(1 << 42).index() + 1, Class::of((1 << 42) + 1)), (class::COUNT, None));
}

/// The words of a heap: for each class the loaded list, its count, and the spare one.
pub(super) fn words_of(heap: &Heap) -> &[AtomicU64] {
    const _: () = assert!(size_of::<Heap>() == 24 * class::SMALL);
    // SAFETY: words of 64 bits, all of them atomic.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(heap).cast(), 3 * class::SMALL) }
}

#[test]
fn a_heap_of_a_dead_owner_keeps_what_can_be_a_list() {
    const LINE: usize = 2;
    let arena = Arena::private(4 << 20).unwrap();
    let heap = Heap::zeroed();
    let [loaded, count, spare] = [0, 1, 2].map(|n| &words_of(&heap)[3 * LINE + n]);
    let full = Class::of(64).unwrap().batch();
    let fill = || {
        // SAFETY: one thread, so one owner.
        let alloc = || unsafe { heap.alloc(&arena, [0u64; 8]) }.unwrap();
        let blocks: Vec<_> = (0..2 * full).map(|_| alloc()).collect();
        // SAFETY: as above; each was allocated here, and is freed once.
        blocks.into_iter().for_each(|block| unsafe { heap.free(&arena, block, 1) });
    };
    // SAFETY: as above.
    let drop_implausible_lists = || unsafe { heap.drop_implausible_lists(&arena) };
    let seen = || (loaded.load(Relaxed), count.load(Relaxed), spare.load(Relaxed));
    fill();
    let whole = seen();
    assert_eq!((whole.1, whole.2 != 0), (full, true));
    drop_implausible_lists();
    assert_eq!(seen(), whole, "nothing was scribbled over");
    for (at, many) in [
        (whole.0, full + 1),
        (whole.0, u64::MAX),
        (whole.0 + 8, 1),
        (8, 1),
        (64, 1),
        (arena.used_bytes() - 32, 1),
        (arena.used_bytes(), 1),
        (u64::MAX - 63, 1),
    ] {
        loaded.store(at, Relaxed);
        count.store(many, Relaxed);
        drop_implausible_lists();
        assert_eq!(seen(), (0, 0, whole.2), "{many} from {at:#x}");
    }
    let last = arena.used_bytes() - 64;
    loaded.store(last, Relaxed);
    count.store(1, Relaxed);
    drop_implausible_lists();
    assert_eq!(seen(), (last, 1, whole.2), "the last block may be one");
    // The second block of the spare list leads out of the arena.
    arena.get(Ptr::<AtomicU64>::from_raw(whole.2)).store(arena.capacity_bytes(), Relaxed);
    drop_implausible_lists();
    assert_eq!(seen(), (last, 1, 0));
}

#[test]
fn a_scribbled_end_of_what_is_used_is_not_believed() {
    let arena = Arena::shared(1 << 20).unwrap();
    let file = File::from(arena.fd().unwrap().try_clone_to_owned().unwrap());
    let top = (0..64).map(|n| 8 * n).find(|at| {
        let mut word = [0; 8];
        file.read_exact_at(&mut word, *at).unwrap();
        u64::from_ne_bytes(word) == arena.used_bytes()
    });
    let top = top.unwrap();
    for scribble in [0u64, 64, 4096] {
        file.write_all_at(&scribble.to_ne_bytes(), top).unwrap();
        assert!(catch_unwind(AssertUnwindSafe(|| arena.alloc(1u64))).is_err(), "{scribble} is in the header");
    }
    for scribble in [arena.capacity_bytes(), u64::MAX - 63, u64::MAX] {
        file.write_all_at(&scribble.to_ne_bytes(), top).unwrap();
        assert!(arena.alloc(1u64).is_err(), "{scribble:#x}");
    }
}

#[test]
fn a_descriptor_closed_behind_the_arenas_back_is_left_alone() {
    let arena = Arena::shared(1 << 20).unwrap();
    let number = arena.fd().unwrap().as_raw_fd();
    let other = tempfile();
    // SAFETY: the number is the arena's, which does not use it any more.
    assert_eq!(unsafe { libc::dup2(other.as_raw_fd(), number) }, number);
    assert!(arena.fd().is_none(), "it is another file");
    let table = arena.get(LaneTable::create(&arena, 1).unwrap());
    assert!(table.take_process_slot(&arena).is_err(), "nobody could see whether the process lives");
    assert!(matches!(arena.map_again(), Err(MapError::Private)));
    assert_eq!(arena.touched_bytes(), arena.capacity_bytes());
    drop(arena);
    // SAFETY: a question.
    assert_ne!(unsafe { libc::fcntl(number, libc::F_GETFD) }, -1, "not the arena's to close");
    // SAFETY: made above, and closed once.
    unsafe { libc::close(number) };
    let arena = Arena::shared(1 << 20).unwrap();
    let file = File::from(arena.fd().unwrap().try_clone_to_owned().unwrap());
    let number = arena.fd().unwrap().as_raw_fd();
    let inode = file.metadata().unwrap().ino();
    drop(arena);
    let still = std::fs::metadata(format!("/proc/self/fd/{number}")).is_ok_and(|found| found.ino() == inode);
    assert!(!still, "its own descriptor is closed with it");
}

fn tempfile() -> File {
    rustix::fs::memfd_create("other", rustix::fs::MemfdFlags::empty()).unwrap().into()
}

thread_local! {
    static LISTENS: Cell<bool> = const { Cell::new(false) };
}
static TOLD: Mutex<Vec<watch::MemoryUse>> = Mutex::new(Vec::new());

fn note(what: &watch::MemoryUse) {
    if LISTENS.get() {
        TOLD.lock().unwrap().push(*what);
    }
}

#[test]
fn a_watcher_is_told_what_each_block_is_for() {
    watch::set_watcher(note);
    watch::set_watcher(|_| panic!("the first one stays"));
    LISTENS.set(true);
    let arena = Arena::private(1 << 20).unwrap();
    let pair = arena.alloc_slice(2, |_| [0u64; 3]).unwrap();
    watch::report_use(64, 10, "elsewhere");
    LISTENS.set(false);
    assert!(watch::is_on());
    let told = TOLD.lock().unwrap();
    let base = std::ptr::from_ref(arena.get(pair)).addr() - pair.raw() as usize;
    let known = |what: &watch::MemoryUse| {
        (what.address.wrapping_sub(base), what.bytes, what.element_bytes, what.background)
    };
    let of = |part: &str| told.iter().find(|it| it.what.contains(part)).map(known);
    assert_eq!(of("arena: free block"), Some((0, 1 << 20, 1 << 20, true)));
    assert_eq!(of("[u64; 3]"), Some((pair.raw() as usize, 48, 24, false)));
    assert_eq!(of("elsewhere"), Some((64usize.wrapping_sub(base), 10, 10, false)));
    for part in ["Top", "FreeList", "ParkingTable"] {
        assert!(of(part).is_some_and(|(at, ..)| at < pair.raw() as usize), "{part}");
    }
    assert!(told.iter().filter(|it| it.what == "[u64; 3]").all(|it| it.site.file().contains("corners")));
}

#[test]
fn a_tag_says_seat_and_generation_and_garbage_says_nobody() {
    let arena = Arena::shared(1 << 20).unwrap();
    let table = arena.get(LaneTable::create(&arena, 2).unwrap());
    assert_eq!((table.len(), table.is_empty()), (2, false));
    let (one, two) = (table.take_process_slot(&arena).unwrap(), table.take_process_slot(&arena).unwrap());
    let (first, second) = (one.tag(), two.tag());
    assert_ne!(first.process_slot(), second.process_slot());
    assert_eq!(
        second.process_slot(),
        first.process_slot().map(|process_slot| (process_slot + 1) % process_slots::PROCESS_SLOTS)
    );
    assert_eq!(ProcessTag::from_word(first.word() | 12345), first, "a thread's number is no part of it");
    assert!(one.is_the_callers());
    assert!(!table.is_gone(&arena, first) && !table.is_gone(&arena, second));
    for garbage in [0, u64::MAX, 1 << 33, u64::from(process_slots::PROCESS_SLOTS + 1) << 22] {
        assert_eq!(ProcessTag::from_word(garbage).process_slot(), None, "{garbage:#x}");
        assert!(table.is_gone(&arena, ProcessTag::from_word(garbage)), "{garbage:#x}");
    }
    assert_eq!(
        ProcessTag::from_word(u64::from(process_slots::PROCESS_SLOTS) << 22).process_slot(),
        Some(process_slots::PROCESS_SLOTS - 1)
    );
    one.leave();
    assert!(table.is_gone(&arena, first) && !table.is_gone(&arena, second));
    let again = table.take_process_slot(&arena).unwrap();
    assert_eq!(again.tag().process_slot(), first.process_slot());
    assert_ne!(again.tag(), first, "of a later generation");
    assert!(table.is_gone(&arena, first) && !table.is_gone(&arena, again.tag()));
    again.leave();
    two.leave();
}

#[test]
fn a_thread_is_lost_only_when_it_has_ended() {
    let arena = Arena::shared(1 << 20).unwrap();
    let table = arena.get(LaneTable::create(&arena, 3).unwrap());
    let process_slot = table.take_process_slot(&arena).unwrap();
    let lease = table.lease(&arena, &process_slot).unwrap();
    let holder = table.holder(&arena, lease.lane).unwrap();
    // SAFETY: a question.
    assert_eq!((holder.process(), holder.thread() as i32), (process_slot.tag(), unsafe { libc::gettid() }));
    assert!(!process_slot.thread_has_ended(holder.thread()) && !table.is_dead(&arena, holder, &process_slot));
    // SAFETY: as above.
    let ended = std::thread::spawn(|| unsafe { libc::gettid() }).join().unwrap();
    let began = Instant::now();
    while !process_slot.thread_has_ended(ended as u32) {
        assert!(began.elapsed() < Duration::from_secs(10), "it has ended, and nobody knows");
    }
    table.park(&arena, lease, process_slot.tag()).unwrap();
    let parked = table.holder(&arena, lease.lane).unwrap();
    assert_eq!((parked.thread(), table.is_dead(&arena, parked, &process_slot)), (0, false));
    let other = (1..=3).map(LaneId).find(|lane| *lane != lease.lane).unwrap();
    assert_eq!(table.holder(&arena, other), None);
    let (stranger, leaves) =
        (table.take_process_slot(&arena).unwrap(), table.take_process_slot(&arena).unwrap());
    assert!(!table.is_dead(&arena, parked, &stranger), "its process lives");
    let theirs = table.lease_lane(&arena, other, &leaves).unwrap();
    table.park(&arena, theirs, leaves.tag()).unwrap();
    let theirs = table.holder(&arena, other).unwrap();
    leaves.leave();
    assert!(table.is_dead(&arena, theirs, &process_slot));
}

#[test]
fn a_thread_looks_first_where_it_found_its_last_lane() {
    let arena = Arena::shared(1 << 20).unwrap();
    let table = arena.get(LaneTable::create(&arena, 8).unwrap());
    let process_slot = table.take_process_slot(&arena).unwrap();
    look_first_at(6);
    let leases: Vec<Lease> = (0..8).map(|_| table.lease(&arena, &process_slot).unwrap()).collect();
    assert_eq!(leases.iter().map(|lease| lease.lane.0).collect::<Vec<_>>(), [7, 8, 1, 2, 3, 4, 5, 6]);
    assert_eq!(LaneId(8).index(), 7);
    for at in [3, 5] {
        table.release(&arena, leases[at]).unwrap();
    }
    let lanes = [(); 2].map(|()| table.lease(&arena, &process_slot).unwrap().lane.0);
    assert_eq!(lanes, [2, 4], "from the last one on, around");
    for n in [0, 1 << 14] {
        assert!(catch_unwind(AssertUnwindSafe(|| LaneTable::create(&arena, n))).is_err(), "{n} lanes");
    }
}

#[test]
fn a_question_about_a_holder_is_heard_once_while_it_holds() {
    let arena = Arena::shared(1 << 20).unwrap();
    let table = arena.get(LaneTable::create(&arena, 2).unwrap());
    let process_slot = table.take_process_slot(&arena).unwrap();
    let lease = table.lease(&arena, &process_slot).unwrap();
    let holder = table.holder(&arena, lease.lane).unwrap();
    assert_eq!(table.take_check_request(&arena, lease.lane), None);
    table.request_check(&arena, lease.lane, holder);
    assert_eq!(table.take_check_request(&arena, lease.lane), Some(holder));
    assert_eq!(table.take_check_request(&arena, lease.lane), None, "it was heard");
    table.request_check(&arena, lease.lane, holder);
    table.release(&arena, lease).unwrap();
    assert_eq!(table.take_check_request(&arena, lease.lane), None, "it holds no more");
}

#[test]
fn a_wake_tells_how_many_slept() {
    let word = std::sync::atomic::AtomicU32::new(5);
    assert_eq!(park::futex_wake(&word, u32::MAX), 0);
    let began = Instant::now();
    park::futex_wait(&word, 4, Some(Duration::from_secs(60)));
    assert!(began.elapsed() < Duration::from_secs(30), "the word is another");
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                while word.load(SeqCst) == 5 {
                    park::futex_wait(&word, 5, None);
                }
            });
        }
        let mut woken = 0;
        while woken < 2 {
            woken += park::futex_wake(&word, 1);
            assert!(began.elapsed() < Duration::from_secs(60));
        }
        word.store(0, SeqCst);
        park::futex_wake(&word, u32::MAX);
    });
}
