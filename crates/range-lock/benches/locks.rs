//! Acquire and release of 4 KiB: alone, two threads in different segments, two readers in one segment.
//! Run: cargo bench -p heddle-range-lock

use std::ops::Range;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use heddle_arena::Arena;
use heddle_range_lock::*;

type Once = dyn Fn(&Arena, &LockHead, Range<u64>, Access) + Sync;

struct Bench {
    arena: Arena,
    lock: Box<Once>,
    head: heddle_arena::Ptr<LockHead>,
}

impl Bench {
    fn new<L: RangeLock + 'static>(lock: L) -> Bench {
        let arena = Arena::private(64 << 20).unwrap();
        let head = arena.alloc_zeroed::<LockHead>(1).unwrap();
        lock.init(&arena, arena.get(head)).unwrap();
        Bench {
            arena,
            head,
            lock: Box::new(move |arena, head, range, access| {
                let held = lock.acquire(arena, head, range, access).unwrap();
                lock.release(arena, head, held);
            }),
        }
    }

    fn once(&self, range: Range<u64>, access: Access) {
        (self.lock)(&self.arena, self.arena.get(self.head), range, access)
    }

    /// Time of `iters` operations a thread, all threads at once.
    fn threads(&self, iters: u64, access: Access, ranges: &[Range<u64>]) -> Duration {
        let barrier = Barrier::new(ranges.len());
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranges
                .iter()
                .map(|range| {
                    scope.spawn(|| {
                        barrier.wait();
                        let start = Instant::now();
                        (0..iters).for_each(|_| self.once(range.clone(), access));
                        start.elapsed()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).max().unwrap()
        })
    }
}

fn locks(c: &mut Criterion) {
    let geometry = Geometry { file_bytes_max: 1 << 30, ..Geometry::default() };
    for mode in [Mode::Paper, Mode::Fair] {
        for kind in LockKind::ALL {
            let bench = Bench::new(make(kind, mode, &geometry).unwrap());
            let mut group = c.benchmark_group(format!("{kind}/{mode:?}"));
            group.bench_function("write alone", |b| b.iter(|| bench.once(8192..12288, Access::Exclusive)));
            group.bench_function("read alone", |b| b.iter(|| bench.once(8192..12288, Access::Shared)));
            group.bench_function("write 1 MiB alone", |b| {
                b.iter(|| bench.once(0..1 << 20, Access::Exclusive))
            });
            let apart = [0..4096, 1 << 20..(1 << 20) + 4096];
            group.bench_function("2 writers apart", |b| {
                b.iter_custom(|iters| bench.threads(iters, Access::Exclusive, &apart))
            });
            group.bench_function("2 readers apart", |b| {
                b.iter_custom(|iters| bench.threads(iters, Access::Shared, &apart))
            });
            group.bench_function("2 readers together", |b| {
                b.iter_custom(|iters| bench.threads(iters, Access::Shared, &[0..4096, 0..4096]))
            });
        }
    }
}

/// What choosing at run time costs: static, by enum, by `dyn`.
fn dispatch(c: &mut Criterion) {
    let geometry = Geometry { file_bytes_max: 1 << 30, ..Geometry::default() };
    let arena = Arena::private(64 << 20).unwrap();
    let head = arena.get(arena.alloc_zeroed::<LockHead>(1).unwrap());
    let fixed = SrlArray::new(Mode::Fair, &geometry).unwrap();
    let chosen = make(LockKind::Array, Mode::Fair, &geometry).unwrap();
    let boxed: Box<dyn RangeLock> = Box::new(fixed);
    fixed.init(&arena, head).unwrap();
    let mut group = c.benchmark_group("dispatch");
    let word = AtomicU32::new(0);
    group.bench_function("floor: two locked instructions on one word", |b| {
        b.iter(|| {
            let _ = word.compare_exchange(0, 1 << 31, SeqCst, SeqCst);
            word.fetch_and(1, SeqCst)
        })
    });
    macro_rules! of {
        ($name:literal, $lock:expr) => {
            group.bench_function($name, |b| {
                let lock = std::hint::black_box(&$lock);
                b.iter(|| {
                    let held = lock.acquire(&arena, head, 8192..12288, Access::Exclusive).unwrap();
                    lock.release(&arena, head, held);
                })
            });
        };
    }
    of!("static", fixed);
    of!("enum", chosen);
    of!("dyn", boxed);
}

criterion_group! {
    name = benches;
    config = Criterion::default().measurement_time(Duration::from_millis(500)).warm_up_time(Duration::from_millis(100)).sample_size(20);
    targets = dispatch, locks
}
criterion_main!(benches);
