//! A fork waits, as far as possible, for no thread that waits for the heap.
//!
//! An allocator may take its locks before a fork (pthread_atfork(3)). A thread may allocate while it holds a lock of this library. So
//! before such functions run, the forking thread closes this gate, and waits until no other thread holds one of these locks. Behind the
//! closed gate no other thread takes one.
//!
//! Another thread that forks passes the gate: it may have locked the heap, for which the first one waits. It allocates nothing.
//!
//! A function that runs before the fork may wait for a thread that waits here. Then the forking thread uses no time of a processor, and a
//! thread that waits here opens the gate. It does so at last in any case: such a function may wait without sleeping.
//!
//! Orderings  The gate is closed, then each lock is taken; another thread takes its lock, then looks at the gate. All of it is SeqCst, so
//!            one of the two sees the other.

use std::sync::atomic::{AtomicI32, Ordering::SeqCst};
use std::time::Duration;

/// The forking thread; 0: the gate is open.
static FORKER: AtomicI32 = AtomicI32::new(0);
const PAUSE_NS: i64 = 50_000;
/// The forking thread waits for another one if it has used no time of a processor for so many pauses. They take at least 50 ms.
const IDLE_PAUSES_MAX: u32 = 1000;
/// So often, in pauses, a thread looks at that time.
const LOOK_EVERY: u32 = 50;
/// After so many pauses, at least a second, no thread waits here any more.
const PAUSES_MAX: u32 = 20_000;

fn this_thread() -> i32 {
    rustix::thread::gettid().as_raw_nonzero().get()
}

/// Threads that fork; 0: a free place. If there are more of them, they wait as others do.
static FORKS: [AtomicI32; 16] = [const { AtomicI32::new(0) }; 16];

/// Until this is dropped, the thread that made it passes the gate.
pub struct Forks {
    place: Option<&'static AtomicI32>,
    thread: i32,
}

impl Forks {
    /// This thread is about to fork.
    pub fn begin() -> Forks {
        let thread = this_thread();
        let takes = |place: &&AtomicI32| place.compare_exchange(0, thread, SeqCst, SeqCst).is_ok();
        Forks { place: FORKS.iter().find(takes), thread }
    }
}

impl Drop for Forks {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            // In the child the places were freed, and its threads have other numbers.
            let _ours = place.compare_exchange(self.thread, 0, SeqCst, SeqCst);
        }
    }
}

/// Closes the gate for all other threads. Returns false if another fork has closed it.
pub fn close() -> bool {
    FORKER.compare_exchange(0, this_thread(), SeqCst, SeqCst).is_ok()
}

/// Opens the gate, after the fork.
pub fn open() {
    // Another thread may have opened it, and another fork may have closed it again.
    let _ours = FORKER.compare_exchange(this_thread(), 0, SeqCst, SeqCst);
}

/// Opens the gate in the forked child, whose thread has another number.
pub fn reset_in_child() {
    FORKER.store(0, SeqCst);
    FORKS.iter().for_each(|place| place.store(0, SeqCst));
}

/// A thread that may have to wait at the gate.
#[derive(Default)]
pub struct Waiter {
    pauses: u32,
    /// The forking thread, the time that it had used, and the number of pauses when that was new.
    seen: (i32, i64, u32),
}

impl Waiter {
    /// Returns true if this thread may keep a lock that it has just taken. Otherwise it must give it back, [`pause`](Waiter::pause), and
    /// take it again.
    #[inline]
    pub fn may_pass(&mut self) -> bool {
        let forker = FORKER.load(SeqCst);
        forker == 0 || may_always_pass(forker) || self.opens(forker, time_used_by)
    }

    /// Called by a thread that forks while another one has closed the gate: waits. Returns false if it must not wait any more.
    pub fn waits_for_fork(&mut self) -> bool {
        let forker = FORKER.load(SeqCst);
        // A fork in a handler of this thread.
        if forker == this_thread() || self.pauses >= PAUSES_MAX {
            return false;
        }
        if forker != 0 {
            self.opens(forker, time_used_by);
        }
        self.pause();
        true
    }

    /// Opens the gate, if this thread has waited long enough. Returns true then.
    #[cold]
    fn opens(&mut self, forker: i32, time_used_by: impl FnOnce(i32) -> i64) -> bool {
        if self.seen.0 != forker || self.pauses.is_multiple_of(LOOK_EVERY) {
            let now = (forker, time_used_by(forker));
            if now != (self.seen.0, self.seen.1) {
                self.seen = (now.0, now.1, self.pauses);
            }
        }
        let opens = self.pauses - self.seen.2 >= IDLE_PAUSES_MAX || self.pauses >= PAUSES_MAX;
        if opens {
            let _opened = FORKER.compare_exchange(forker, 0, SeqCst, SeqCst);
        }
        opens
    }

    /// Lets other threads run.
    #[cold]
    pub fn pause(&mut self) {
        self.pauses += 1;
        let _ = rustix::thread::nanosleep(&rustix::thread::Timespec { tv_sec: 0, tv_nsec: PAUSE_NS });
    }
}

/// Returns true for a thread that forks.
#[cold]
fn may_always_pass(forker: i32) -> bool {
    let thread = this_thread();
    forker == thread || FORKS.iter().any(|place| place.load(SeqCst) == thread)
}

/// The time of a processor that a thread of this process has used, in nanoseconds; 0: the kernel does not say.
fn time_used_by(thread: i32) -> i64 {
    // As in the kernel's posix-timers.h: a thread's clock, of the kind that the scheduler keeps.
    const CLOCK_OF_THREAD: i32 = 4 | 2;
    let mut used = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: a live local; errno is the thread's own word.
    let is_known = unsafe {
        let before = *libc::__errno_location();
        let known = libc::clock_gettime(!thread << 3 | CLOCK_OF_THREAD, &mut used);
        *libc::__errno_location() = before;
        known == 0
    };
    if is_known { Duration::new(used.tv_sec as u64, used.tv_nsec as u32).as_nanos() as i64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn by_another(call: fn() -> bool) -> bool {
        std::thread::spawn(call).join().unwrap()
    }

    fn after(pauses: u32) -> Waiter {
        Waiter { pauses, seen: (FORKER.load(SeqCst), 0, pauses) }
    }

    #[test]
    fn behind_the_closed_gate_others_wait_a_bounded_time() {
        assert!(close() && Waiter::default().may_pass(), "the forking thread passes");
        assert!(by_another(|| !close()
            && !Waiter::default().may_pass()
            && !after(PAUSES_MAX - 1).may_pass()));
        assert!(
            by_another(|| after(PAUSES_MAX).may_pass() && Waiter::default().may_pass()),
            "it has opened the gate for all"
        );
        assert!(by_another(close));
        open();
        assert!(!Waiter::default().may_pass(), "the gate of another thread stays closed");
        assert!(time_used_by(this_thread()) > 0);
        let mut waiter = Waiter::default();
        let mut waits = |pauses: u32, used: i64| {
            waiter.pauses = pauses;
            waiter.opens(FORKER.load(SeqCst), |_| used)
        };
        assert!(!waits(0, 10) && !waits(500, 10) && !waits(950, 20), "it gets on");
        assert!(!waits(1000, 20) && !waits(1949, 20) && waits(1950, 20), "it waits for another thread");
        assert!(by_another(close));
        let forks = Forks::begin();
        assert!(Waiter::default().may_pass() && !by_another(|| Waiter::default().may_pass()), "both fork");
        drop(forks);
        assert!(
            !Waiter::default().may_pass()
                && Waiter::default().waits_for_fork()
                && !after(PAUSES_MAX).waits_for_fork()
        );
        reset_in_child();
        assert!(Waiter::default().may_pass() && close());
        open();
        assert!(by_another(|| Waiter::default().may_pass()));
        // A thread that has closed the gate, and ended.
        assert!(by_another(close));
        let forker = FORKER.load(SeqCst);
        let mut waiter = Waiter { pauses: 2 * IDLE_PAUSES_MAX, seen: (forker, time_used_by(forker), 0) };
        assert!(waiter.waits_for_fork() && FORKER.load(SeqCst) == 0, "who forks opens the gate as well");
        assert!(waiter.waits_for_fork(), "the gate is open");
    }

    #[test]
    fn a_waiter_looks_at_the_time_of_a_processor_now_and_then() {
        // No thread has this number: the gate stays as it is.
        let forker = 1 << 27;
        let mut waiter = Waiter { pauses: 7, seen: (forker, 5, 0) };
        assert!(!waiter.opens(forker, |_| panic!("it has looked lately")));
        waiter.pauses = IDLE_PAUSES_MAX - 1;
        assert!(!waiter.opens(forker, |_| panic!("as before")));
        waiter.pauses = IDLE_PAUSES_MAX + LOOK_EVERY - 1;
        assert!(!waiter.opens(forker - 1, |_| 5), "another one forks, which waits from now on");
        assert_eq!(waiter.seen, (forker - 1, 5, IDLE_PAUSES_MAX + LOOK_EVERY - 1));
    }

    #[test]
    fn each_pause_counts() {
        let mut waiter = Waiter::default();
        waiter.pause();
        waiter.pause();
        assert_eq!(waiter.pauses, 2);
    }

    #[test]
    fn a_threads_time_is_what_its_own_clock_says() {
        let own = || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
            Duration::new(now.tv_sec as u64, now.tv_nsec as u32).as_nanos() as i64
        };
        let (before, used, after) = (own(), time_used_by(this_thread()), own());
        assert!((before..=after).contains(&used) && used > 0, "{used} between {before} and {after}");
        assert_eq!(time_used_by(1 << 27), 0, "there is no such thread");
    }
}
