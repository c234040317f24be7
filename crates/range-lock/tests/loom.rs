//! Every interleaving of the locks: holders exclude each other and see what the last holder did (loom's cells check both), and no
//! waiter sleeps for ever (loom reports the deadlock). In fair mode loom lets a waiting writer age at once, so readers that hold
//! back are part of the models.
//! Run: RUSTFLAGS="--cfg loom" cargo test -p heddle-range-lock --release --test loom
#![cfg(loom)]

use std::ops::Range;

use heddle_arena::{Arena, Ptr};
use heddle_range_lock::Access::{Exclusive, Shared};
use heddle_range_lock::*;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

const PAGE: u64 = 4096;
const PAGES: usize = 8;

/// A file of eight pages, each with a cell of data that its holder touches.
struct File {
    arena: Arena,
    lock: AnyLock,
    head: Ptr<LockHead>,
    data: Vec<UnsafeCell<u64>>,
}

// SAFETY: the cells are touched under the lock; that is what is tested.
unsafe impl Sync for File {}
// SAFETY: as above.
unsafe impl Send for File {}

impl File {
    fn new(kind: LockKind, mode: Mode) -> Arc<File> {
        let geometry = Geometry { file_bytes_max: PAGES as u64 * PAGE, depth: 3, ..Geometry::default() };
        File::with(make(kind, mode, &geometry).unwrap())
    }

    fn with(lock: AnyLock) -> Arc<File> {
        let arena = Arena::private(1 << 20).unwrap();
        let head = arena.alloc_zeroed(1).unwrap();
        lock.init(&arena, arena.get(head)).unwrap();
        Arc::new(File { arena, lock, head, data: (0..PAGES).map(|_| UnsafeCell::new(0)).collect() })
    }

    fn head(&self) -> &LockHead {
        self.arena.get(self.head)
    }

    /// Takes pages, touches their data, gives them back. The last page may be open.
    fn visit(&self, pages: Range<u64>, access: Access) {
        let end = if pages.end == u64::MAX { u64::MAX } else { pages.end * PAGE };
        let held = self.lock.acquire(&self.arena, self.head(), pages.start * PAGE..end, access).unwrap();
        for cell in &self.data[pages.start as usize..pages.end.min(PAGES as u64) as usize] {
            match access {
                // SAFETY: loom checks it.
                Exclusive => cell.with_mut(|data| unsafe { *data += 1 }),
                // SAFETY: loom checks it.
                Shared => cell.with(|data| unsafe { assert!(*data < 100) }),
            }
        }
        self.lock.release(&self.arena, self.head(), held);
    }
}

type Visits = &'static [(Range<u64>, Access)];

/// Each visit by a thread of its own, in fair mode, and two in paper mode too: of three, two may spin, and loom's scheduler is not
/// fair enough for the third ever to let go.
fn check(kind: LockKind, preemptions: usize, visits: Visits) {
    if visits.len() == 2 {
        check_mode(kind, Mode::Paper, preemptions, visits);
    }
    check_mode(kind, Mode::Fair, preemptions, visits);
}

fn check_mode(kind: LockKind, mode: Mode, preemptions: usize, visits: Visits) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 100_000;
    builder.check(move || {
        let file = File::new(kind, mode);
        if visits.len() > 2 && visits[0].0.end != u64::MAX {
            // The tree is grown before, or three threads are too many for loom; growing has models of two.
            file.visit(visits[0].0.clone(), Exclusive);
        }
        let threads: Vec<_> = visits[1..]
            .iter()
            .map(|(pages, access)| {
                let file = file.clone();
                thread::spawn(move || file.visit(pages.clone(), *access))
            })
            .collect();
        file.visit(visits[0].0.clone(), visits[0].1);
        threads.into_iter().for_each(|thread| thread.join().unwrap());
        // Everything was given back.
        file.visit(0..PAGES as u64, Exclusive);
    });
}

macro_rules! models {
    ($($name:ident: $kind:expr;)*) => {$(mod $name {
        use super::*;

        #[test]
        fn two_writers_exclude_each_other() {
            check($kind, 3, &[(0..2, Exclusive), (1..3, Exclusive)]);
        }

        #[test]
        fn a_writer_and_a_reader_exclude_each_other() {
            check($kind, 3, &[(0..2, Exclusive), (1..3, Shared)]);
        }

        #[test]
        fn a_writer_waits_for_two_readers_and_they_for_it() {
            check($kind, 2, &[(1..2, Exclusive), (1..2, Shared), (1..2, Shared)]);
        }

        #[test]
        fn two_writers_and_a_reader_all_get_in() {
            check($kind, 2, &[(1..2, Exclusive), (1..2, Exclusive), (1..2, Shared)]);
        }
    })*};
}

models! {
    inode: LockKind::Inode;
    interval: LockKind::Interval;
    array: LockKind::Array;
    tree: LockKind::Tree;
}

#[test]
fn an_open_range_excludes_a_page_that_is_not_there_yet() {
    for access in [Exclusive, Shared] {
        let visits: &'static [_] = match access {
            Exclusive => &[(1..u64::MAX, Exclusive), (6..7, Exclusive)],
            Shared => &[(1..u64::MAX, Shared), (6..7, Exclusive)],
        };
        check(LockKind::Tree, 3, visits);
    }
}

#[test]
fn readers_share_an_open_lock_and_a_writer_waits_for_all() {
    check(LockKind::Tree, 1, &[(4..u64::MAX, Shared), (4..7, Shared), (5..6, Exclusive)]);
}

#[test]
fn two_open_writers_exclude_each_other() {
    check(LockKind::Tree, 3, &[(4..u64::MAX, Exclusive), (2..u64::MAX, Exclusive)]);
}

/// Two threads grow the same leaf at once: one is installed, the loser's goes back. Blocks are made in pairs, so whether one was lost
/// shows in the parity of the free ones: it must be that of one thread alone.
#[test]
fn the_loser_of_a_race_to_grow_frees_its_node() {
    fn free_after(threads: usize) -> (u64, usize) {
        let geometry = Geometry {
            file_bytes_max: PAGES as u64 * PAGE,
            depth: 2,
            split: Some(vec![1, 2]),
            ..Geometry::default()
        };
        let file = File::with(make(LockKind::Tree, Mode::Fair, &geometry).unwrap());
        let others: Vec<_> = (1..threads as u64)
            .map(|page| {
                let file = file.clone();
                thread::spawn(move || file.visit(page..page + 1, Exclusive))
            })
            .collect();
        file.visit(0..1, Exclusive);
        others.into_iter().for_each(|thread| thread.join().unwrap());
        let used = file.arena.used_bytes();
        let mut free = 0;
        loop {
            file.arena.alloc_zeroed::<heddle_arena::sync::atomic::AtomicU32>(4).unwrap();
            if file.arena.used_bytes() != used {
                return (file.lock.memory_bytes(&file.arena, file.head()), free);
            }
            free += 1;
        }
    }
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.max_branches = 100_000;
    builder.check(|| {
        let (alone, together) = (free_after(1), free_after(2));
        assert_eq!(alone.0, together.0, "the loser's node is not counted");
        assert_eq!(alone.1 % 2, together.1 % 2, "the loser's node is free again");
    });
}
