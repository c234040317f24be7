//! The lock word of SRL (Algorithm 2; pNOVA Algorithms 1 and 2): `writer:1 | readers:31`.
//!
//! Invariants  W1  The writer bit is set only from 0 and cleared only by the thread that set it; readers count only while it is clear.
//!             W2  The count never reaches into the writer bit: the last reader but one is refused. (The papers compare
//!             with 1 << 31 and would hand the
//!                 lock to a 2^31st reader as if it were a writer.)
//! Slips       The papers' loops run to `n <= number` and pNOVA breaks the read loop on `!= 0`; both are followed as their text says.
//! Orderings   O1  taking (Acquire) pairs with giving back (SeqCst, hence Release): what the last holder did is seen.
//!             O2  giving back is SeqCst because parking needs it (`heddle_arena::park`, P1). The papers have a full barrier on either
//!                 side of each of these operations; on x86 both are the same locked instruction.

use heddle_arena::sync::atomic::AtomicU32;
use heddle_arena::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};

use crate::head::Access;
use crate::wait::Holder;

pub(crate) const WRITER: u32 = 1 << 31;
const READERS_MAX: u32 = WRITER - 1;

/// Tries once; a reader tries again while only other readers are in its way.
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

/// The holder that keeps us out.
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
            debug_assert_eq!(was, WRITER, "W1: given back by who holds it");
            true
        }
        Access::Shared => {
            let was = word.fetch_sub(1, SeqCst);
            debug_assert!((1..WRITER).contains(&was), "W1: given back by who holds it");
            was == 1 || was == READERS_MAX
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use Access::{Exclusive, Shared};

    #[test]
    fn the_last_reader_but_one_is_refused() {
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
