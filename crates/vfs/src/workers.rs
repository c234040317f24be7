//! Threads that work on a mounted image beside its calls, and that other programs may hold up.
//!
//! A thread that talks to programs may sleep for as long as one of them likes: before Linux 6.16 it closes the files that come with a
//! message, and such a close may take for ever. The end of a mount must not wait for it.
//!
//! State       [`Gate`]: whether work on the image may begin, and how many threads are at it. [`Worker`]: a thread, and a channel whose
//!             other end the thread drops last.
//! Invariants  W1  a thread works on the image only inside the gate.
//!             W2  once [`Gate::close`] has returned true no thread is inside, and none comes in: the image can be closed.
//!             W3  the end waits for everything with a limit. After [`Ended::AtWork`] the image must be left as by a dead process.
//! Orderings   the gate's mutex alone: a thread that comes in sees the gate open, or the end sees it inside.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long the end waits for threads.
const THREADS_MAX: Duration = Duration::from_secs(5);
/// How long it then waits for what they do to the image. That may be the settling of a large lane on a slow disk, or a wait for a stopped
/// process, which is killed after the patience of half a minute.
const WORK_MAX: Duration = Duration::from_secs(45);

/// How threads have ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Ended {
    /// No thread is left.
    Whole,
    /// A program holds up a thread, which does nothing to the image any more.
    HeldUp,
    /// A thread is still at work on the image.
    AtWork,
}

/// Where threads come in to work on an image, until it is closed.
#[derive(Default)]
pub struct Gate {
    state: Mutex<State>,
    /// Nobody is inside.
    quiet: Condvar,
}

#[derive(Default)]
struct State {
    closed: bool,
    inside: usize,
}

/// A thread inside the gate.
pub struct Inside<'a>(&'a Gate);

impl Gate {
    /// Comes in; `None`: the image may be closed by now.
    pub fn enter(&self) -> Option<Inside<'_>> {
        let mut state = self.state();
        if state.closed {
            return None;
        }
        state.inside += 1;
        Some(Inside(self))
    }

    /// Lets no thread in from now on, and waits at most so long for those inside. Returns true if there are none (W2).
    pub fn close(&self, limit: Duration) -> bool {
        let mut state = self.state();
        state.closed = true;
        let waited = self.quiet.wait_timeout_while(state, limit, |state| state.inside > 0);
        waited.unwrap_or_else(PoisonError::into_inner).0.inside == 0
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.state().inside -= 1;
        self.0.quiet.notify_all();
    }
}

/// A thread that is told to end by other means.
pub struct Worker {
    thread: JoinHandle<()>,
    end: Receiver<()>,
}

impl Worker {
    /// Starts it.
    ///
    /// # Errors
    /// No thread can be made.
    pub fn start(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<Worker> {
        let (ends, end) = channel();
        let thread = std::thread::Builder::new().name(name.into()).spawn(move || {
            work();
            // After all that the work has dropped.
            drop(ends);
        })?;
        Ok(Worker { thread, end })
    }

    /// Waits for its end until then. Returns false if it goes on.
    fn ends(self, until: Instant) -> bool {
        let left = until.saturating_duration_since(Instant::now());
        if self.end.recv_timeout(left) == Err(RecvTimeoutError::Timeout) && !self.thread.is_finished() {
            return false;
        }
        let _ = self.thread.join();
        true
    }
}

/// Waits for the end of threads that have been told to end, with a limit (W3).
pub fn end(workers: Vec<Worker>, gate: &Gate) -> Ended {
    end_within(workers, gate, THREADS_MAX, WORK_MAX)
}

fn end_within(workers: Vec<Worker>, gate: &Gate, threads: Duration, work: Duration) -> Ended {
    let until = Instant::now() + threads;
    // Each is waited for, though one before it goes on.
    let left = workers.into_iter().filter_map(|worker| (!worker.ends(until)).then_some(())).count();
    match left {
        0 => Ended::Whole,
        _ if gate.close(work) => Ended::HeldUp,
        _ => Ended::AtWork,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;
    use std::sync::atomic::Ordering::SeqCst;

    const SHORT: Duration = Duration::from_millis(50);
    const LONG: Duration = Duration::from_secs(60);

    /// A thread that is held up, inside the gate or outside, until the sender is dropped.
    fn held_up(gate: &Arc<Gate>, inside: bool) -> (Worker, std::sync::mpsc::Sender<()>) {
        let ((go_on, held), (tell, told)) = (channel::<()>(), channel());
        let gate = Arc::clone(gate);
        let work = move || {
            let _inside = inside.then(|| gate.enter().unwrap());
            tell.send(()).unwrap();
            let _ = held.recv();
        };
        let worker = Worker::start("held-up", work).unwrap();
        told.recv().unwrap();
        (worker, go_on)
    }

    #[test]
    fn an_end_says_whether_a_thread_is_left_and_where() {
        let gate = Arc::new(Gate::default());
        assert_eq!(end_within(vec![], &gate, LONG, LONG), Ended::Whole);
        let (ends, go_on) = held_up(&gate, true);
        drop(go_on);
        assert_eq!(end_within(vec![ends], &gate, LONG, LONG), Ended::Whole);
        assert!(gate.enter().is_some(), "the gate is closed only where a thread is left");
        for (inside, wanted) in [(false, Ended::HeldUp), (true, Ended::AtWork)] {
            let gate = Arc::new(Gate::default());
            let (stays, _held) = held_up(&gate, inside);
            let done = Arc::new(AtomicBool::new(false));
            let tell = Arc::clone(&done);
            let ends = Worker::start("ends", move || tell.store(true, SeqCst)).unwrap();
            let began = Instant::now();
            assert_eq!(end_within(vec![stays, ends], &gate, SHORT, SHORT), wanted);
            assert!(began.elapsed() < LONG / 2 && gate.enter().is_none());
        }
    }

    #[test]
    fn a_closing_gate_waits_for_work_that_ends_in_time() {
        let gate = Arc::new(Gate::default());
        let (worker, go_on) = held_up(&gate, true);
        assert!(!gate.close(SHORT) && gate.enter().is_none());
        let closing = std::thread::spawn({
            let gate = Arc::clone(&gate);
            move || gate.close(LONG)
        });
        drop(go_on);
        assert!(closing.join().unwrap());
        assert!(worker.ends(Instant::now() + LONG));
    }
}
