use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::*};
use std::time::{Duration, Instant};

use heddle_arena::{Arena, Ptr};

use crate::*;

const PAGE: u64 = 4096;
const MODES: [Mode; 2] = [Mode::Paper, Mode::Fair];

/// A file with a lock.
struct File<L> {
    arena: Arena,
    lock: L,
    head: Ptr<LockHead>,
}

impl<L: RangeLock> File<L> {
    fn new(lock: L) -> Self {
        let arena = Arena::shared(64 << 20).unwrap();
        let head = arena.alloc_zeroed(1).unwrap();
        lock.init(&arena, arena.get(head)).unwrap();
        File { arena, lock, head }
    }
    fn head(&self) -> &LockHead {
        self.arena.get(self.head)
    }
    fn acquire(&self, range: Range<u64>, access: Access) -> Held {
        self.lock.acquire(&self.arena, self.head(), range, access).unwrap()
    }
    fn error(&self, range: Range<u64>) -> Error {
        self.lock.acquire(&self.arena, self.head(), range, Access::Exclusive).unwrap_err()
    }
    fn release(&self, held: Held) {
        self.lock.release(&self.arena, self.head(), held)
    }
    fn memory(&self) -> u64 {
        self.lock.memory_bytes(&self.arena, self.head())
    }
    /// `range` must be free at once. Other work on this machine may delay that, no lock may.
    fn passes(&self, range: Range<u64>, access: Access)
    where
        L: Sync,
    {
        let (tell, told) = std::sync::mpsc::channel();
        std::thread::scope(|scope| {
            scope.spawn(move || {
                self.release(self.acquire(range, access));
                tell.send(()).unwrap();
            });
            if told.recv_timeout(Duration::from_secs(20)).is_err() {
                eprintln!("{}: a range that nobody holds is waited for", self.lock.name());
                // The thread that waits would be waited for.
                std::process::abort();
            }
        });
    }
    /// Does `range` have to wait now? (Then it is taken and given back once `free` has been called.)
    fn waits(&self, range: Range<u64>, access: Access, free: impl FnOnce()) -> bool
    where
        L: Sync,
    {
        let got = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let held = self.acquire(range, access);
                got.store(true, SeqCst);
                self.release(held);
            });
            let deadline = Instant::now() + Duration::from_millis(60);
            while !got.load(SeqCst) && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            let waited = !got.load(SeqCst);
            free();
            waited
        })
    }
}

fn geometry() -> Geometry {
    Geometry { file_bytes_max: 1 << 30, ..Geometry::default() }
}

/// Three levels of 2, 1 and 2 bits: every boundary is crossed at once.
fn tiny() -> Geometry {
    Geometry { file_bytes_max: 32 * PAGE, depth: 3, split: Some(vec![2, 1, 2]), ..Geometry::default() }
}

fn every() -> impl Iterator<Item = File<AnyLock>> {
    let kinds =
        LockKind::ALL.into_iter().flat_map(|kind| MODES.map(|mode| make(kind, mode, &geometry()).unwrap()));
    let shapes = MODES.map(|mode| make(LockKind::Tree, mode, &tiny()).unwrap());
    let flat = Geometry { depth: 1, split: None, ..tiny() };
    let two = Geometry { depth: 2, split: None, ..tiny() };
    let more = [flat, two].map(|g| make(LockKind::Tree, Mode::Fair, &g).unwrap());
    kinds.chain(shapes).chain(more).map(File::new)
}

fn every_range_lock() -> impl Iterator<Item = File<AnyLock>> {
    every().filter(|file| file.lock.name() != "inode")
}

#[test]
fn disjoint_writers_hold_at_once() {
    for file in every_range_lock() {
        let held: Vec<Held> =
            (0..32).map(|i| file.acquire(i * PAGE..(i + 1) * PAGE, Access::Exclusive)).collect();
        held.into_iter().rev().for_each(|held| file.release(held));
        let all = file.acquire(0..32 * PAGE, Access::Exclusive);
        file.release(all);
    }
}

#[test]
fn readers_share_what_writers_do_not() {
    use Access::*;
    for file in every() {
        let one = file.acquire(0..10 * PAGE, Shared);
        let two = file.acquire(5 * PAGE..15 * PAGE, Shared);
        let waited = file.waits(9 * PAGE..11 * PAGE, Exclusive, || {
            file.release(one);
            file.release(two);
        });
        assert!(waited, "{}: a writer waits for readers", file.lock.name());
        for access in [Shared, Exclusive] {
            let writer = file.acquire(3 * PAGE..9 * PAGE, Exclusive);
            assert!(file.waits(8 * PAGE..20 * PAGE, access, || file.release(writer)), "{}", file.lock.name());
        }
        let reader = file.acquire(0..PAGE, Shared);
        file.passes(0..2 * PAGE, Shared);
        file.release(reader);
    }
}

#[test]
fn ranges_round_out_to_segments() {
    let wide = Geometry { segment_bytes: 1 << 20, ..geometry() };
    for kind in [LockKind::Interval, LockKind::Array, LockKind::Tree] {
        let file = File::new(make(kind, Mode::Fair, &wide).unwrap());
        let held = file.acquire((1 << 20) + 5..(1 << 20) + 6, Access::Exclusive);
        file.passes(0..1 << 20, Access::Exclusive);
        file.passes(2 << 20..3 << 20, Access::Exclusive);
        assert!(file.waits((2 << 20) - 1..3 << 20, Access::Shared, || file.release(held)));
    }
}

#[test]
fn ranges_that_cannot_be_locked_are_refused() {
    for file in every() {
        assert_eq!(file.error(PAGE..PAGE), Error::Empty);
    }
    for kind in [LockKind::Array, LockKind::Tree] {
        let file = File::new(make(kind, Mode::Fair, &geometry()).unwrap());
        let max_bytes = 1 << 30;
        assert_eq!(file.error(0..max_bytes + 1), Error::TooBig { end_bytes: max_bytes + 1, max_bytes });
        assert_eq!(file.error(max_bytes..u64::MAX), Error::TooBig { end_bytes: u64::MAX, max_bytes });
        let held = file.acquire(max_bytes - 1..max_bytes, Access::Shared);
        file.release(held);
    }
}

#[test]
fn a_range_to_the_end_excludes_all_behind_it_and_nothing_before() {
    for file in every_range_lock() {
        for access in [Access::Exclusive, Access::Shared] {
            let touched = file.acquire(20 * PAGE..21 * PAGE, Access::Exclusive);
            file.release(touched);
            let before = file.memory();
            let rest = file.acquire(6 * PAGE..u64::MAX, access);
            if file.lock.name() == "tree" {
                assert!(file.memory() - before <= 64 << 10, "{} bytes grown", file.memory() - before);
            }
            file.passes(0..6 * PAGE, Access::Exclusive);
            let name = file.lock.name();
            let rest = match access {
                Access::Shared => {
                    file.passes(30 * PAGE..31 * PAGE, Access::Shared);
                    rest
                }
                Access::Exclusive => {
                    assert!(
                        file.waits(30 * PAGE..31 * PAGE, Access::Shared, || file.release(rest)),
                        "{name}"
                    );
                    file.acquire(6 * PAGE..u64::MAX, access)
                }
            };
            assert!(file.waits(7 * PAGE..31 * PAGE, Access::Exclusive, || file.release(rest)), "{name}");
        }
        let all = file.acquire(0..u64::MAX, Access::Exclusive);
        file.release(all);
    }
}

#[test]
fn a_whole_file_of_2_to_the_48_costs_little_to_lock() {
    let file = File::new(make(LockKind::Tree, Mode::Fair, &Geometry::default()).unwrap());
    let held = file.acquire(PAGE..u64::MAX, Access::Exclusive);
    assert!(file.memory() < 64 << 10, "{}", file.memory());
    file.passes(0..PAGE, Access::Exclusive);
    assert!(file.waits(1 << 47..(1 << 47) + 1, Access::Exclusive, || file.release(held)));
}

#[test]
fn a_full_arena_leaves_nothing_locked() {
    for kind in [LockKind::Tree, LockKind::Interval] {
        let lock = make(kind, Mode::Fair, &Geometry::default()).unwrap();
        let arena = Arena::private(256 << 10).unwrap();
        let head = arena.get(arena.alloc_zeroed::<LockHead>(1).unwrap());
        lock.init(&arena, head).unwrap();
        let small = lock.acquire(&arena, head, 0..PAGE, Access::Exclusive).unwrap();
        lock.release(&arena, head, small);
        while arena.alloc_zeroed::<[u64; 16]>(1).is_ok() {}
        if kind == LockKind::Tree {
            let error = lock.acquire(&arena, head, 0..1 << 40, Access::Exclusive).unwrap_err();
            assert!(matches!(error, Error::NoMemory(_)), "{error}");
        } else {
            let first = lock.acquire(&arena, head, 0..PAGE, Access::Exclusive).unwrap();
            let error = lock.acquire(&arena, head, PAGE..2 * PAGE, Access::Exclusive).unwrap_err();
            assert!(matches!(error, Error::NoMemory(_)), "{error}");
            lock.release(&arena, head, first);
        }
        let again = lock.acquire(&arena, head, 0..PAGE, Access::Exclusive).unwrap();
        lock.release(&arena, head, again);
    }
}

#[test]
fn the_last_close_frees_what_the_file_grew() {
    for file in every() {
        let at_first = file.memory();
        let mut used = 0;
        for round in 0..50 {
            for i in 0..30 {
                let held = file.acquire(i * PAGE..(i + 2) * PAGE, Access::Shared);
                file.release(held);
            }
            // SAFETY: nobody else knows the file.
            unsafe { file.lock.last_close(&file.arena, file.head()) };
            assert_eq!(file.memory(), at_first, "{}", file.lock.name());
            let now = file.arena.used_bytes();
            assert!(round == 0 || now == used, "{}: freed nodes are used again", file.lock.name());
            used = now;
        }
        // SAFETY: as above.
        unsafe { file.lock.destroy(&file.arena, file.head()) };
        file.lock.init(&file.arena, file.head()).unwrap();
        assert_eq!(file.arena.used_bytes(), used, "{}: and so is all the rest", file.lock.name());
    }
}

#[test]
fn memory_is_what_the_papers_count() {
    let interval = File::new(make(LockKind::Interval, Mode::Fair, &geometry()).unwrap());
    let held: Vec<Held> =
        (0..7).map(|i| interval.acquire(i * PAGE..(i + 1) * PAGE, Access::Shared)).collect();
    assert_eq!(interval.memory(), 7 * 128);
    held.into_iter().for_each(|held| interval.release(held));
    let array = File::new(make(LockKind::Array, Mode::Fair, &geometry()).unwrap());
    assert_eq!(array.memory(), memory::array(1 << 30, 12));
    let tree = File::new(SrlTree::new(Mode::Paper, &Geometry::paper()).unwrap());
    assert_eq!(tree.memory(), 64 * 8, "the root is made with the file");
    let held = tree.acquire(0..128 << 10, Access::Shared);
    assert_eq!(tree.memory(), 4 * 64 * 8 + 8 + 32 * 4, "one node a level, one link, 32 words");
    assert!(tree.memory() < memory::model(41, 12, 5, 17), "leaves hold words, not pointers to words");
    tree.release(held);
}

#[test]
fn a_lock_says_its_name_largest_file_and_access() {
    for (kind, text) in LockKind::ALL.into_iter().zip(["inode", "interval", "array", "tree"]) {
        let file = File::new(make(kind, Mode::Fair, &geometry()).unwrap());
        assert_eq!((file.lock.name(), kind.name(), format!("{kind:>9}")), (text, text, format!("{text:>9}")));
        let largest = match kind {
            LockKind::Array | LockKind::Tree => 1 << 30,
            LockKind::Inode | LockKind::Interval => u64::MAX,
        };
        assert_eq!(file.lock.file_bytes_max(), largest, "{kind}");
        for access in [Access::Shared, Access::Exclusive] {
            let held = file.acquire(0..1, access);
            assert_eq!(held.access(), access);
            file.release(held);
        }
    }
}

#[test]
fn the_index_splits_as_asked_for() {
    let split = |geometry: &Geometry| SrlTree::new(Mode::Paper, geometry).map(|tree| tree.split());
    assert_eq!(split(&Geometry::paper()), Ok(vec![6, 6, 6, 6, 5]));
    assert_eq!(split(&Geometry::default()), Ok(vec![8, 7, 7, 7, 7]));
    assert_eq!(split(&tiny()), Ok(vec![2, 1, 2]));
    let wrong = Geometry { split: Some(vec![2, 2]), ..tiny() };
    assert_eq!(split(&wrong), Err(BadGeometry::Split { split: vec![2, 2], depth: 3, index_bits: 5 }));
    assert!(matches!(split(&Geometry { depth: 9, split: None, ..tiny() }), Err(BadGeometry::Depth { .. })));
    assert!(matches!(split(&Geometry { segment_bytes: 5000, ..tiny() }), Err(BadGeometry::Segment(5000))));
    assert!(matches!(split(&Geometry { segment_bytes: 2048, ..tiny() }), Err(BadGeometry::Segment(2048))));
}

#[test]
fn a_lock_taken_through_one_mapping_excludes_another() {
    for file in every() {
        let there = file.arena.map_again().unwrap();
        let held = file.acquire(0..20 * PAGE, Access::Exclusive);
        let got = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let held = file
                    .lock
                    .acquire(&there, there.get(file.head), 19 * PAGE..22 * PAGE, Access::Shared)
                    .unwrap();
                got.store(true, SeqCst);
                file.lock.release(&there, there.get(file.head), held);
            });
            std::thread::sleep(Duration::from_millis(30));
            assert!(!got.load(SeqCst), "{}", file.lock.name());
            file.release(held);
        });
    }
}

/// Threads lock random ranges and stamp a shadow of the file: -1 a writer, n readers. Two holders that should exclude each other
/// meet there.
#[test]
fn holders_never_overlap() {
    for file in every() {
        let shadow: Vec<AtomicI32> = (0..32).map(|_| AtomicI32::new(0)).collect();
        let barrier = Barrier::new(4);
        let held_together = AtomicU64::new(0);
        let inside = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (file, shadow, barrier) = (&file, &shadow, &barrier);
                let (held_together, inside) = (&held_together, &inside);
                scope.spawn(move || {
                    let mut random = 0x9E37_79B9_7F4A_7C15u64.wrapping_mul(thread + 1);
                    let mut number = |below: u64| {
                        random ^= random << 13;
                        random ^= random >> 7;
                        random ^= random << 17;
                        random % below
                    };
                    barrier.wait();
                    for turn in 0..3000 {
                        let first = number(32);
                        let last = (first + number(6)).min(31);
                        let open = number(64) == 0 && file.lock.name() != "array";
                        let access = if number(3) == 0 { Access::Exclusive } else { Access::Shared };
                        let end = if open { u64::MAX } else { last * PAGE + 1 };
                        let last = if open { 31 } else { last };
                        let held =
                            file.acquire(first * PAGE + number(PAGE)..end.max(first * PAGE + PAGE), access);
                        held_together.fetch_max(inside.fetch_add(1, Relaxed) + 1, Relaxed);
                        for cell in &shadow[first as usize..=last as usize] {
                            match access {
                                Access::Exclusive => {
                                    assert_eq!(cell.swap(-1, Relaxed), 0, "a writer is not alone")
                                }
                                Access::Shared => {
                                    assert!(cell.fetch_add(1, Relaxed) >= 0, "a reader meets a writer")
                                }
                            }
                        }
                        if turn % 16 == 0 {
                            std::thread::yield_now();
                        }
                        for cell in &shadow[first as usize..=last as usize] {
                            match access {
                                Access::Exclusive => {
                                    assert_eq!(cell.swap(0, Relaxed), -1, "a writer was not alone")
                                }
                                Access::Shared => {
                                    assert!(cell.fetch_sub(1, Relaxed) > 0, "a reader met a writer")
                                }
                            }
                        }
                        inside.fetch_sub(1, Relaxed);
                        file.release(held);
                    }
                });
            }
        });
        assert!(held_together.load(Relaxed) > 1, "{}: the test tests something", file.lock.name());
        // Everything was given back.
        let all = file.acquire(0..32 * PAGE, Access::Exclusive);
        file.release(all);
    }
}

/// Two readers that hand the segment to each other so that it is never free; how long does a writer wait?
fn writer_waits(file: &File<AnyLock>, tries: usize) -> Vec<Duration> {
    let stop = AtomicBool::new(false);
    // Readers that ever came in: each lets go only once another has come after it, or has not for 2 ms.
    let inside = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !stop.load(Relaxed) {
                    let held = file.acquire(0..4 * PAGE, Access::Shared);
                    let mine = inside.fetch_add(1, SeqCst) + 1;
                    let since = Instant::now();
                    while inside.load(SeqCst) == mine && since.elapsed() < Duration::from_millis(2) {
                        std::thread::yield_now();
                    }
                    file.release(held);
                }
            });
        }
        std::thread::sleep(Duration::from_millis(20));
        let mut waits: Vec<Duration> = (0..tries)
            .map(|_| {
                std::thread::sleep(Duration::from_millis(3));
                let since = Instant::now();
                let held = file.acquire(2 * PAGE..3 * PAGE, Access::Exclusive);
                let waited = since.elapsed();
                file.release(held);
                waited
            })
            .collect();
        stop.store(true, Relaxed);
        waits.sort();
        waits
    })
}

/// The promise is 10 ms. It is made of 1 ms of ageing, the longest hold of a reader (2 ms here) and the scheduler; a loaded machine
/// of two cores for three threads may add time slices, so the median must keep the promise and the worst of 21 may take ten times as
/// long: still far from the for-ever of readers first.
#[test]
fn a_writer_enters_within_10_ms_under_endless_readers() {
    for kind in LockKind::ALL {
        let file = File::new(make(kind, Mode::Fair, &geometry()).unwrap());
        let waits = writer_waits(&file, 21);
        let (median, max) = (waits[10], waits[20]);
        println!("{kind}: median {median:?}, max {max:?}");
        assert!(median < Duration::from_millis(10), "{kind}: median {median:?}");
        assert!(max < Duration::from_millis(100), "{kind}: max {max:?}");
    }
}

#[test]
fn an_aged_writer_holds_back_only_readers_of_its_part() {
    for kind in [LockKind::Array, LockKind::Tree] {
        let file = File::new(make(kind, Mode::Fair, &geometry()).unwrap());
        let reader = file.acquire(0..PAGE, Access::Shared);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let writer = file.acquire(0..PAGE, Access::Exclusive);
                file.release(writer);
            });
            while file.head().aged.load(SeqCst) == 0 {
                std::thread::yield_now();
            }
            let since = Instant::now();
            let beside = file.acquire(PAGE..2 * PAGE, Access::Shared);
            assert!(
                since.elapsed() < HOLD_BACK_MAX / 2,
                "a reader of other segments waited {:?}",
                since.elapsed()
            );
            file.release(beside);
            let since = Instant::now();
            let late = file.acquire(0..PAGE, Access::Shared);
            let waited = since.elapsed();
            assert!(waited >= HOLD_BACK_MAX / 2, "a new reader is held back, {waited:?}");
            file.release(late);
            file.release(reader);
        });
        assert_eq!(file.head().aged.load(SeqCst), 0);
        assert!(file.head().aged_in.iter().all(|bucket| bucket.load(SeqCst) == 0));
    }
}

#[test]
fn paper_mode_lets_readers_pass_a_waiting_writer() {
    for kind in [LockKind::Inode, LockKind::Array, LockKind::Tree] {
        let file = File::new(make(kind, Mode::Paper, &geometry()).unwrap());
        let reader = file.acquire(0..PAGE, Access::Shared);
        let waited = file.waits(0..PAGE, Access::Exclusive, || {
            let late = file.acquire(0..PAGE, Access::Shared);
            file.release(late);
            file.release(reader);
        });
        assert!(waited);
    }
}

#[test]
fn the_interval_tree_queues_a_reader_behind_a_waiting_writer() {
    let file = File::new(make(LockKind::Interval, Mode::Paper, &geometry()).unwrap());
    let reader = file.acquire(0..PAGE, Access::Shared);
    let reader_waited = std::cell::Cell::new(false);
    assert!(file.waits(0..PAGE, Access::Exclusive, || {
        reader_waited.set(file.waits(0..PAGE, Access::Shared, || file.release(reader)));
    }));
    assert!(reader_waited.get());
}
