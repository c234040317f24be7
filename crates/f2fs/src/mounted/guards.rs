//! The locks that calls take: the gate, the latch of renames, and inodes by stripe.
//!
//! Their order and what they are for: `call_gate`.

use crate::ids::Nid;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Locks that inodes share.
pub(crate) const STRIPES: usize = 4096;

/// See the module.
pub(crate) struct Guards {
    gate: Gate,
    pub(crate) renames: Mutex<()>,
    stripes: Vec<RwLock<()>>,
}

/// In one line of the cache: each call that comes in writes to it anyway.
#[repr(align(64))]
struct Gate {
    lock: RwLock<()>,
    /// Blocks that the changes inside make dirty, at most (K3).
    dirty: AtomicUsize,
}

/// A change is inside, and what it makes dirty is counted.
pub(crate) struct Inside<'f> {
    gate: &'f Gate,
    dirty: usize,
    _lock: RwLockReadGuard<'f, ()>,
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.gate.dirty.fetch_sub(self.dirty, SeqCst);
    }
}

impl Guards {
    pub(crate) fn new() -> Guards {
        let stripes = (0..STRIPES).map(|_| RwLock::default()).collect();
        let gate = Gate { lock: RwLock::default(), dirty: AtomicUsize::new(0) };
        Guards { gate, renames: Mutex::default(), stripes }
    }

    /// Which one is an inode's.
    pub(crate) fn stripe(nid: Nid) -> usize {
        nid.0 as usize % STRIPES
    }

    /// A call comes in beside others.
    pub(crate) fn inside(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.lock.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// A change comes in that makes so many blocks dirty at most, and how many those do that were inside.
    pub(crate) fn changing(&self, dirty: usize) -> (Inside<'_>, usize) {
        let lock = self.inside();
        // Counted before anybody looks: of two that do not fit together, one at least sees both.
        let before = self.gate.dirty.fetch_add(dirty, SeqCst);
        (Inside { gate: &self.gate, dirty, _lock: lock }, before)
    }

    /// Waits until no call is inside, and keeps all out.
    pub(crate) fn quiet(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.lock.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inodes to read one of.
    pub(crate) fn shared(&self, nid: Nid) -> RwLockReadGuard<'_, ()> {
        self.stripes[Guards::stripe(nid)].read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Inodes to change.
    pub(crate) fn alone(&self, nids: &[Nid]) -> Vec<RwLockWriteGuard<'_, ()>> {
        let mut stripes: Vec<usize> = nids.iter().map(|nid| Guards::stripe(*nid)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.iter().map(|n| self.stripes[*n].write().unwrap_or_else(PoisonError::into_inner)).collect()
    }
}
