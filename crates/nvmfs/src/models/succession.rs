//! The succession of a dead daemon: of several processes one takes over, and each later one sees all stores
//! of the one before.

use super::fixture::{Fixture, model, spawn};
use heddle_arena::ProcessTag;
use heddle_arena::sync::atomic::AtomicU32;
use loom::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Processes that take over, and whether each lives. A tag here is the process's index above the bits of a
/// thread.
struct Processes {
    alive: [AtomicU32; 3],
    /// A word that only the daemon changes.
    served: UnsafeCell<u32>,
}

// SAFETY: only the daemon touches it; the test checks that.
unsafe impl Sync for Processes {}
// SAFETY: as above.
unsafe impl Send for Processes {}

fn tag(process: usize) -> ProcessTag {
    ProcessTag::from_word((process as u64 + 1) << 33)
}

/// Takes over if possible, serves, and dies. Returns true if it took over.
fn takes_over(fixture: &Fixture, processes: &Processes, me: usize) -> bool {
    let is_gone = |of: ProcessTag| (0..3).any(|n| of == tag(n) && processes.alive[n].load(SeqCst) == 0);
    let won = fixture.core().root().succeed(tag(me), is_gone);
    if won {
        // SAFETY: loom checks it.
        processes.served.with_mut(|n| unsafe { *n += 1 });
        // Stands for the kernel's report of the death.
        processes.alive[me].store(0, SeqCst);
    }
    won
}

#[test]
fn of_those_that_take_over_at_once_one_does() {
    model(3, || {
        let fixture = Fixture::new();
        fixture.core().root().daemon.store(tag(0).word(), SeqCst);
        let alive = [0, 1, 1].map(AtomicU32::new);
        let processes = Arc::new(Processes { alive, served: UnsafeCell::new(0) });
        let (at, all) = (fixture.clone(), processes.clone());
        let thread = spawn(move || takes_over(&at, &all, 1));
        let mine = takes_over(&fixture, &processes, 2);
        let theirs = thread.join().unwrap();
        assert!(mine || theirs, "nobody took over");
        // ORDERING: Relaxed, the other thread has ended.
        let last = fixture.core().root().daemon.load(Relaxed);
        assert!(last == tag(2).word() && mine || last == tag(1).word() && theirs);
    });
}
