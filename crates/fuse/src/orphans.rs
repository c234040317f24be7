//! Orphans: inodes that have lost their last name while the kernel still knows them.
//!
//! An `O_PATH` descriptor and a working directory keep an inode, but the kernel tells its server of neither.
//! It tells only, at the end, that it has forgotten the inode. So an inode that loses its last name is kept
//! until then, as by an open file. The kernel forgets an unused inode at once, but tells so a moment after
//! the call that removed the name. A call that finds no space waits for that moment and tries again.
//!
//! State       the lookup count of each inode that the kernel knows, in shards; the handles that keep inodes without a name, and since
//!             when.
//! Invariants  N1  an inode is counted before the kernel can have the answer that names it.
//!             N2  an inode is kept only while it is counted: the count is checked again under the lock of `kept`.
//!             N3  at least one thread does not wait for the kernel to forget: the kernel may need that thread to tell it.
//! Lock order  `kept`, then a shard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_vfs::{Error, Handle, Ino, Result};

const SHARDS: usize = 64;

/// An inode kept for longer is in use: the kernel forgets an unused inode within microseconds.
const FORGOTTEN_WITHIN: Duration = Duration::from_millis(100);

/// How often a call that finds no space is tried again: other calls may take the space first.
const TRIES: usize = 4;

/// Inodes without a name (see the module).
pub(crate) struct Orphans {
    lookups: [Mutex<HashMap<u64, u64>>; SHARDS],
    kept: Mutex<Kept>,
    /// Signalled when a kept inode was released.
    changed: Condvar,
    /// How many kept inodes were released.
    let_go: AtomicU64,
    waiting: AtomicUsize,
    waiting_max: usize,
}

#[derive(Default)]
struct Kept {
    handles: HashMap<u64, (Handle, Instant)>,
    /// Handles that are being closed.
    ending: usize,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Orphans {
    /// The state for a mount with so many threads.
    pub(crate) fn new(threads: usize) -> Orphans {
        Orphans {
            lookups: std::array::from_fn(|_| Mutex::default()),
            kept: Mutex::default(),
            changed: Condvar::new(),
            let_go: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            waiting_max: threads - 1,
        }
    }

    fn shard(&self, ino: Ino) -> MutexGuard<'_, HashMap<u64, u64>> {
        locked(&self.lookups[ino.0 as usize % SHARDS])
    }

    /// Counts an inode that the kernel is about to be told of. Not for `.` and `..` of a directory, which the
    /// kernel does not count.
    pub(crate) fn count_lookup(&self, ino: Ino) {
        *self.shard(ino).entry(ino.0).or_default() += 1;
    }

    fn is_known(&self, ino: Ino) -> bool {
        self.shard(ino).contains_key(&ino.0)
    }

    /// Subtracts `times` from the lookup count of an inode. Returns true if that was the rest.
    pub(crate) fn forget(&self, ino: Ino, times: u64) -> bool {
        let mut shard = self.shard(ino);
        let Some(count) = shard.get_mut(&ino.0) else { return false };
        *count = count.saturating_sub(times);
        let gone = *count == 0;
        if gone {
            shard.remove(&ino.0);
        }
        gone
    }

    /// Keeps an inode until the kernel has forgotten it. Returns a handle that is not needed.
    pub(crate) fn keep(&self, handle: Handle) -> Option<Handle> {
        let mut kept = locked(&self.kept);
        if !self.is_known(handle.ino) || kept.handles.contains_key(&handle.ino.0) {
            return Some(handle);
        }
        kept.handles.insert(handle.ino.0, (handle, Instant::now()));
        None
    }

    pub(crate) fn take(&self, ino: Ino) -> Option<Handle> {
        let mut kept = locked(&self.kept);
        let (handle, _) = kept.handles.remove(&ino.0)?;
        kept.ending += 1;
        Some(handle)
    }

    pub(crate) fn ended(&self) {
        locked(&self.kept).ending -= 1;
        self.let_go.fetch_add(1, SeqCst);
        self.changed.notify_all();
    }

    /// Removes all kept handles.
    pub(crate) fn drain(&self) -> Vec<Handle> {
        locked(&self.kept).handles.drain().map(|(_, (handle, _))| handle).collect()
    }

    /// Waits until each inode that has just lost its name is forgotten, or known to be in use.
    pub(crate) fn wait_for_forgets(&self) {
        let me = self.waiting.fetch_add(1, SeqCst);
        if me < self.waiting_max {
            let began = Instant::now();
            let mut kept = locked(&self.kept);
            loop {
                let young =
                    |&(_, since): &(Handle, Instant)| since < began && since.elapsed() < FORGOTTEN_WITHIN;
                let expected = kept.ending > 0 || kept.handles.values().any(young);
                let left = FORGOTTEN_WITHIN.saturating_sub(began.elapsed());
                if !expected || left.is_zero() {
                    break;
                }
                kept = self.changed.wait_timeout(kept, left).unwrap_or_else(PoisonError::into_inner).0;
            }
        }
        self.waiting.fetch_sub(1, SeqCst);
    }

    /// Runs `work`. If it finds no space, runs it again once the kernel has forgotten inodes that kept some.
    pub(crate) fn with_space<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 1..TRIES {
            let before = self.let_go.load(SeqCst);
            match work() {
                Err(Error::NoSpace) => self.wait_for_forgets(),
                done => return done,
            }
            if self.let_go.load(SeqCst) == before {
                return Err(Error::NoSpace);
            }
        }
        work()
    }
}

#[cfg(test)]
mod tests;
