//! The lock word of SRL (Algorithm 2; pNOVA Algorithms 1 and 2): `writer:1 | readers:31`.
//!
//! Invariants  W1  The writer bit is set only from 0 and cleared only by the thread that set it; readers count only while it is clear.
//!             W2  The reader count never reaches the writer bit. A reader is refused while the count is 2^31 - 1. (The papers compare
//!                 with 1 << 31: there the 2^31st reader would set the writer bit.)
//! Orderings   O1  locking (Acquire) pairs with unlocking (SeqCst, hence Release): the stores of earlier holders are visible.
//!             O2  unlocking is SeqCst because parking needs it (`heddle_arena::park`, P1). The papers have a full barrier before and after
//!                 each of these operations. On x86, SeqCst and the papers' barriers compile to one locked instruction.

use heddle_arena::sync::atomic::AtomicU32;
use heddle_arena::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::head::Access;
use crate::wait::Holder;

pub(crate) const WRITER: u32 = 1 << 31;
const READERS_MAX: u32 = WRITER - 1;

/// Tries to lock. A reader's exchange that fails is repeated while no writer holds the lock.
#[inline]
pub(crate) fn try_lock(word: &AtomicU32, access: Access) -> bool {
    match access {
        // ORDERING: Acquire, O1. A failure decides nothing.
        Access::Exclusive => word.compare_exchange(0, WRITER, Acquire, Relaxed).is_ok(),
        Access::Shared => {
            // ORDERING: Relaxed, a guess that the exchange confirms.
            let mut now = word.load(Relaxed);
            while now < READERS_MAX {
                // ORDERING: Acquire, O1. A failure decides nothing.
                match word.compare_exchange_weak(now, now + 1, Acquire, Relaxed) {
                    Ok(_) => return true,
                    Err(other) => now = other,
                }
            }
            false
        }
    }
}

/// The holder because of which `try_lock` would fail.
#[inline]
pub(crate) fn holder(word: &AtomicU32, access: Access) -> Option<Holder> {
    match (word.load(SeqCst), access) {
        (0, _) => None,
        (now, _) if now >= WRITER => Some(Holder::Writer),
        (now, Access::Shared) if now < READERS_MAX => None,
        _ => Some(Holder::Readers),
    }
}

/// Unlocks. Returns true if a waiter may have been waiting for this.
#[inline]
pub(crate) fn unlock(word: &AtomicU32, access: Access) -> bool {
    match access {
        Access::Exclusive => {
            let was = word.fetch_and(!WRITER, SeqCst);
            debug_assert_eq!(was, WRITER, "W1: only its holder unlocks it");
            true
        }
        Access::Shared => {
            let was = word.fetch_sub(1, SeqCst);
            debug_assert!((1..WRITER).contains(&was), "W1: only a holder unlocks it");
            was == 1 || was == READERS_MAX
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use Access::{Exclusive, Shared};

    #[test]
    fn a_reader_beyond_the_maximum_is_refused() {
        let word = AtomicU32::new(READERS_MAX - 1);
        assert_eq!(holder(&word, Shared), None);
        assert!(try_lock(&word, Shared));
        assert_eq!(word.load(SeqCst), READERS_MAX);
        assert!(!try_lock(&word, Shared) && !try_lock(&word, Exclusive));
        assert_eq!([Shared, Exclusive].map(|access| holder(&word, access)), [Some(Holder::Readers); 2]);
        assert!(unlock(&word, Shared), "a reader may have waited for this");
        assert!(!unlock(&word, Shared));
        assert_eq!(word.load(SeqCst), READERS_MAX - 2);
    }

    #[test]
    fn the_last_reader_and_every_writer_wake_others() {
        let word = AtomicU32::new(0);
        assert_eq!([Shared, Exclusive].map(|access| holder(&word, access)), [None; 2]);
        assert!(try_lock(&word, Shared) && try_lock(&word, Shared) && !try_lock(&word, Exclusive));
        assert_eq!((holder(&word, Shared), holder(&word, Exclusive)), (None, Some(Holder::Readers)));
        assert_eq!([(); 2].map(|()| unlock(&word, Shared)), [false, true]);
        assert!(try_lock(&word, Exclusive) && !try_lock(&word, Exclusive) && !try_lock(&word, Shared));
        assert_eq!([Shared, Exclusive].map(|access| holder(&word, access)), [Some(Holder::Writer); 2]);
        assert!(unlock(&word, Exclusive));
        assert_eq!(word.load(SeqCst), 0);
    }
}
