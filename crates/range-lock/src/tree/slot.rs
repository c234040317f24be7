//! A slot of an interior node: names a child, or, while the subtree is absent, may be its lock word.
//!
//! State       0: absent. Below 2^42: offset of the child. Else locked as a whole: `writer:1 | readers:21`, above 42 zero bits.
//! Invariants  S1  absent -> child, for ever (until the file is closed); absent -> locked -> absent.
//! Orderings   as of `word`: taking Acquire, giving back SeqCst.

use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::head::Access;
use crate::wait::Holder;

/// One reader. Offsets are smaller: an arena is at most 4 TiB.
const READER: u64 = 1 << 42;
const WRITER: u64 = 1 << 63;

#[inline]
pub(super) fn is_child(value: u64) -> bool {
    value != 0 && value < READER
}

#[inline]
pub(super) fn is_locked(value: u64) -> bool {
    value >= READER
}

/// Tries to take the subtree as a whole. `covered`: all of it is wanted, so it may be taken while it is absent; else only to read
/// along with other readers.
pub(super) fn try_lock(slot: &AtomicU64, access: Access, covered: bool) -> bool {
    // ORDERING: Relaxed, a guess that the exchange confirms.
    let mut now = slot.load(Relaxed);
    loop {
        let locked = match access {
            Access::Exclusive if now == 0 && covered => WRITER,
            Access::Shared if now == 0 && covered => READER,
            Access::Shared if is_locked(now) && now < WRITER - READER => now + READER,
            _ => return false,
        };
        // ORDERING: Acquire, pairs with the SeqCst in `unlock`. A failure decides nothing.
        match slot.compare_exchange_weak(now, locked, Acquire, Relaxed) {
            Ok(_) => return true,
            Err(other) => now = other,
        }
    }
}

/// The holder that keeps us from taking it, or from a lock below it.
pub(super) fn holder(slot: &AtomicU64, access: Access) -> Option<Holder> {
    match slot.load(SeqCst) {
        now if !is_locked(now) => None,
        now if now >= WRITER => Some(Holder::Writer),
        now if access == Access::Shared && now < WRITER - READER => None,
        _ => Some(Holder::Readers),
    }
}

/// Unlocks. Returns true if a waiter may have been waiting for this.
pub(super) fn unlock(slot: &AtomicU64, access: Access) -> bool {
    match access {
        Access::Exclusive => {
            let was = slot.swap(0, SeqCst);
            debug_assert_eq!(was, WRITER, "given back by who holds it");
            true
        }
        Access::Shared => {
            let was = slot.fetch_sub(READER, SeqCst);
            debug_assert!((READER..WRITER).contains(&was), "given back by who holds it");
            was == READER || was >= WRITER - READER
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use Access::{Exclusive, Shared};

    /// The most readers that a slot can have.
    const FULL: u64 = WRITER - READER;

    #[test]
    fn an_absent_subtree_is_taken_whole_or_not_at_all() {
        let slot = AtomicU64::new(0);
        assert!(!try_lock(&slot, Shared, false) && !try_lock(&slot, Exclusive, false));
        assert_eq!((holder(&slot, Shared), is_locked(0), is_child(0)), (None, false, false));
        assert!(try_lock(&slot, Exclusive, true));
        assert_eq!([Shared, Exclusive].map(|access| holder(&slot, access)), [Some(Holder::Writer); 2]);
        assert!(!try_lock(&slot, Shared, true) && !try_lock(&slot, Exclusive, true));
        assert!(unlock(&slot, Exclusive) && slot.load(SeqCst) == 0);
    }

    #[test]
    fn readers_of_an_absent_subtree_let_others_read_along() {
        let slot = AtomicU64::new(0);
        assert!(try_lock(&slot, Shared, true) && try_lock(&slot, Shared, false));
        assert!(!try_lock(&slot, Exclusive, true));
        assert_eq!((holder(&slot, Shared), holder(&slot, Exclusive)), (None, Some(Holder::Readers)));
        assert!(is_locked(slot.load(SeqCst)) && !is_child(slot.load(SeqCst)));
        assert_eq!([(); 2].map(|()| unlock(&slot, Shared)), [false, true]);
        slot.store(FULL - READER, SeqCst);
        assert!(try_lock(&slot, Shared, false) && !try_lock(&slot, Shared, false));
        assert_eq!((slot.load(SeqCst), holder(&slot, Shared)), (FULL, Some(Holder::Readers)));
        assert_eq!([(); 2].map(|()| unlock(&slot, Shared)), [true, false]);
    }

    #[test]
    fn a_child_is_below_the_end_of_the_largest_arena() {
        assert!(is_child(READER - 1) && !is_locked(READER - 1) && !is_child(READER) && is_locked(READER));
        let slot = AtomicU64::new(READER - 1);
        assert!(!try_lock(&slot, Shared, true) && !try_lock(&slot, Exclusive, true));
        assert_eq!(holder(&slot, Exclusive), None);
    }
}
