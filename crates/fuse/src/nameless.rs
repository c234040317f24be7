//! Inodes that have lost their last name while the kernel still knows them.
//!
//! An `O_PATH` descriptor and a working directory keep an inode, and the kernel tells its server of neither; only, at the end, that
//! it has forgotten the inode. So what loses its last name is kept, as an open file is, until then. The kernel forgets at once what nobody
//! holds, but says so a moment after the call that removed the name: calls that find no space wait for that moment, and then try again.
//!
//! State       how often the kernel was told of each inode that it has not forgotten since, in shards; the handles that keep inodes
//!             without a name, and since when.
//! Invariants  N1  an inode is counted before the kernel can have the answer that tells of it.
//!             N2  an inode is kept only while it is counted: under the lock of `kept` it is looked at again.
//!             N3  one thread at least does not wait for what the kernel forgets: it may be the one that is told.
//! Lock order  `kept`, then a shard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use heddle_vfs::{Error, Handle, Ino, Result};

const SHARDS: usize = 64;

/// What is kept for longer is held by somebody: the kernel forgets in microseconds what nobody holds.
const FORGOTTEN_WITHIN: Duration = Duration::from_millis(100);

/// How often a call that finds no space is tried again: others may be quicker.
const TRIES: usize = 4;

/// See the module.
pub(crate) struct Nameless {
    lookups: [Mutex<HashMap<u64, u64>>; SHARDS],
    kept: Mutex<Kept>,
    /// Somebody let go of what was kept.
    changed: Condvar,
    /// How often that was.
    let_go: AtomicU64,
    waiting: AtomicUsize,
    waiting_max: usize,
}

#[derive(Default)]
struct Kept {
    handles: HashMap<u64, (Handle, Instant)>,
    /// Handles that are being given back.
    ending: usize,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Nameless {
    /// For a mount with so many threads.
    pub(crate) fn new(threads: usize) -> Nameless {
        Nameless {
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

    /// The kernel is about to be told of an inode; not of the first two of a directory's entries, of which it takes no note.
    pub(crate) fn told(&self, ino: Ino) {
        *self.shard(ino).entry(ino.0).or_default() += 1;
    }

    fn is_known(&self, ino: Ino) -> bool {
        self.shard(ino).contains_key(&ino.0)
    }

    /// The kernel has forgotten `times` answers; true: all there were.
    pub(crate) fn forgets(&self, ino: Ino, times: u64) -> bool {
        let mut shard = self.shard(ino);
        let Some(count) = shard.get_mut(&ino.0) else { return false };
        *count = count.saturating_sub(times);
        let gone = *count == 0;
        if gone {
            shard.remove(&ino.0);
        }
        gone
    }

    /// Keeps an inode until the kernel has forgotten it. A handle that is not needed comes back.
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

    /// Takes out all that is kept.
    pub(crate) fn drain(&self) -> Vec<Handle> {
        locked(&self.kept).handles.drain().map(|(_, (handle, _))| handle).collect()
    }

    /// Waits until what lost its name just now is forgotten, or known to be held.
    pub(crate) fn settle(&self) {
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

    /// Does what may find no space, once more if space has come meanwhile from what the kernel has forgotten.
    pub(crate) fn with_space<T>(&self, mut work: impl FnMut() -> Result<T>) -> Result<T> {
        for _ in 1..TRIES {
            let before = self.let_go.load(SeqCst);
            match work() {
                Err(Error::NoSpace) => self.settle(),
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
