//! A fork waits, as far as possible, for no thread that waits for the heap.
//!
//! An allocator may take its locks before a fork (pthread_atfork(3)). A thread may allocate while it holds a lock of this library. So
//! before such functions run, the forking thread closes this gate, and waits until no other thread holds one of these locks. Behind the
//! closed gate no other thread takes one.
//!
//! A function that runs before the fork may wait for a thread that waits here. So that thread opens the gate after a time.
//!
//! Orderings  The gate is closed, then each lock is taken; another thread takes its lock, then looks at the gate. All of it is SeqCst, so
//!            one of the two sees the other.

use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

/// The forking thread; 0: the gate is open.
static FORKER: AtomicI32 = AtomicI32::new(0);
const PAUSE_NS: i64 = 50_000;
/// A thread opens the gate after so many pauses, which take at least 20 ms.
const PAUSES_MAX: u32 = 400;

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Closes the gate for all other threads. Returns false if another fork has closed it.
pub fn close() -> bool {
    FORKER.compare_exchange(0, this_thread(), SeqCst, SeqCst).is_ok()
}

/// As [`close`]; while another thread forks, waits for that, as long as a thread waits at the gate. Returns false if the gate is not closed
/// by this call.
pub fn close_in_turn() -> bool {
    let mut pauses = 0;
    while !close() {
        // A fork in a handler of this thread.
        if FORKER.load(SeqCst) == this_thread() || pauses >= PAUSES_MAX {
            return false;
        }
        pause();
        pauses += 1;
    }
    true
}

/// Opens the gate, after the fork.
pub fn open() {
    // Another thread may have opened it, and another fork may have closed it again.
    let _ours = FORKER.compare_exchange(this_thread(), 0, SeqCst, SeqCst);
}

/// Opens the gate in the forked child, whose thread has another number.
pub fn reset_in_child() {
    FORKER.store(0, SeqCst);
}

/// Returns true if this thread may keep a lock that it has just taken. Otherwise it must give it back, [`pause`], and take it again.
#[inline]
pub fn may_pass(pauses: u32) -> bool {
    let forker = FORKER.load(SeqCst);
    if forker == 0 || forker == this_thread() {
        return true;
    }
    let is_enough = pauses >= PAUSES_MAX;
    if is_enough {
        let _opened = FORKER.compare_exchange(forker, 0, SeqCst, SeqCst);
    }
    is_enough
}

/// Lets other threads run.
#[cold]
pub fn pause() {
    let _ = rustix::thread::nanosleep(&rustix::thread::Timespec { tv_sec: 0, tv_nsec: PAUSE_NS });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn behind_the_closed_gate_others_wait_a_bounded_time() {
        let by_another = |call: fn() -> bool| std::thread::spawn(call).join().unwrap();
        assert!(close() && may_pass(0), "the forking thread passes");
        assert!(by_another(|| !close() && !may_pass(0) && !may_pass(PAUSES_MAX - 1)));
        assert!(by_another(|| may_pass(PAUSES_MAX) && may_pass(0)), "it has opened the gate for all");
        assert!(by_another(close));
        open();
        assert!(!may_pass(0), "the gate of another thread stays closed");
        reset_in_child();
        assert!(may_pass(0) && close());
        open();
        assert!(by_another(|| may_pass(0)));
    }
}
