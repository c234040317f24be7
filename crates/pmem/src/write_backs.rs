//! The calls of `msync` that are under way for one open file.
//!
//! State       a number for each call under way, with its caller; under one mutex, which is short beside an `msync`.
//! Why         The kernel tells a failed write-back to one caller of an open file. Another one, whose pages were lost at the same
//!             time, may hear of success. So a call that succeeded waits for those that overlap it, and then asks whether one failed.
//! Invariants  I1  a call notes its failure before its number goes.
//!             I2  a call waits for numbers drawn before its own end alone, and its own is gone by then: no circle, no starvation. A call
//!                 in a signal handler, whose thread is in another one, does not wait.
//!             I3  a call waits a limited time: a thread that ended in the middle leaves its number.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, ThreadId};
use std::time::Duration;

/// No working device takes so long.
const WAIT_MAX: Duration = Duration::from_secs(120);

/// A process and its thread. A fork copies the numbers of calls that its child will not see end.
type Caller = (u32, ThreadId);

#[derive(Debug, Default)]
struct State {
    next: u64,
    under_way: BTreeMap<u64, Caller>,
}

/// The calls of one open file.
#[derive(Debug, Default)]
pub(crate) struct WriteBacks {
    state: Mutex<State>,
    one_ended: Condvar,
}

/// A call under way, until dropped.
pub(crate) struct WriteBack<'a> {
    all: &'a WriteBacks,
    number: u64,
}

fn caller() -> Caller {
    (std::process::id(), thread::current().id())
}

impl WriteBacks {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn begin(&self) -> WriteBack<'_> {
        let mut state = self.lock();
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number, caller());
        WriteBack { all: self, number }
    }
}

impl WriteBack<'_> {
    /// Ends this call, and waits until all that overlap it have noted their result.
    pub(crate) fn end_and_wait(self) {
        let (all, (process, thread)) = (self.all, caller());
        let end = all.lock().next;
        drop(self);
        let state = all.lock();
        if state.under_way.values().any(|of| *of == (process, thread)) {
            return;
        }
        let overlaps = |state: &mut State| state.under_way.range(..end).any(|(_, of)| of.0 == process);
        drop(all.one_ended.wait_timeout_while(state, WAIT_MAX, overlaps).map_err(PoisonError::into_inner));
    }
}

impl Drop for WriteBack<'_> {
    fn drop(&mut self) {
        self.all.lock().under_way.remove(&self.number);
        self.all.one_ended.notify_all();
    }
}
