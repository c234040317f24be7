//! The locks that calls take: the call gate, the latch of renames, and inodes by stripe.
//!
//! Their order and purpose: `call_gate`.

use crate::ids::Nid;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Number of locks that inodes share.
pub(crate) const STRIPES: usize = 4096;

/// The locks of a mounted image.
pub(crate) struct Guards {
    gate: CallGate,
    pub(crate) renames: Mutex<()>,
    stripes: Vec<RwLock<()>>,
}

/// In one cache line, because each call that enters writes to it anyway.
#[repr(align(64))]
struct CallGate {
    lock: RwLock<()>,
    /// Most blocks that the changes inside make dirty (K3).
    dirty: AtomicUsize,
}

/// A change inside the call gate; its dirty blocks are counted.
pub(crate) struct Inside<'f> {
    gate: &'f CallGate,
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
        let gate = CallGate { lock: RwLock::default(), dirty: AtomicUsize::new(0) };
        Guards { gate, renames: Mutex::default(), stripes }
    }

    /// Index of an inode's stripe.
    pub(crate) fn stripe(nid: Nid) -> usize {
        nid.0 as usize % STRIPES
    }

    /// Enters the call gate together with other calls.
    pub(crate) fn inside(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.lock.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters the call gate for a change that makes at most so many blocks dirty. Also returns the number for the
    /// changes already inside.
    pub(crate) fn changing(&self, dirty: usize) -> (Inside<'_>, usize) {
        let lock = self.inside();
        // Counted before it is checked: of two changes that do not fit together, at least one sees both.
        let before = self.gate.dirty.fetch_add(dirty, SeqCst);
        (Inside { gate: &self.gate, dirty, _lock: lock }, before)
    }

    /// Waits until no call is inside, and keeps all calls out.
    pub(crate) fn quiet(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.lock.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks an inode for reading.
    pub(crate) fn shared(&self, nid: Nid) -> RwLockReadGuard<'_, ()> {
        self.stripes[Guards::stripe(nid)].read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks inodes for writing.
    pub(crate) fn alone(&self, nids: &[Nid]) -> Vec<RwLockWriteGuard<'_, ()>> {
        let mut stripes: Vec<usize> = nids.iter().map(|nid| Guards::stripe(*nid)).collect();
        stripes.sort_unstable();
        stripes.dedup();
        stripes.iter().map(|n| self.stripes[*n].write().unwrap_or_else(PoisonError::into_inner)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inodes_share_a_lock_by_their_numbers_remainder() {
        let stripes = [0, 1, 4095, 4096, 4097, 1 << 24, u32::MAX].map(|nid| Guards::stripe(Nid(nid)));
        assert_eq!(stripes, [0, 1, 4095, 0, 1, 0, 4095]);
    }

    #[test]
    fn changes_inside_are_counted_until_they_leave() {
        let guards = Guards::new();
        let (first, before) = guards.changing(5);
        let (second, beside) = guards.changing(7);
        assert_eq!((before, beside), (0, 5));
        drop(first);
        assert_eq!(guards.changing(0).1, 7);
        drop(second);
        assert_eq!(guards.changing(0).1, 0);
    }
}
