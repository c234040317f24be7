//! Words that one thread at a time writes: their owner.
//!
//! Owner       who holds the lock or the lease that a word belongs to, or who alone knows its memory.
//! Orderings   O1  `get` and `set` are Relaxed. The lock passes the words on: it is released after an owner's stores, and acquired before
//!                 the next owner's loads. Whoever takes over from a dead owner acquires its lease.
//!             O2  `publish` is Release: all earlier stores of the owner come first, for a thread that sees the value, and for whoever
//!                 finds the word after the owner's death between two stores.
//!             O3  another thread may `get` a word as a hint. It must check what it concludes, or bear that it is wrong.

use super::atomic::Ordering::{Relaxed, Release};
use super::atomic::{AtomicU32, AtomicU64};

macro_rules! owned {
    ($name:ident, $atomic:ident, $word:ty, $what:literal) => {
        #[doc = concat!($what, " that its owner alone writes.")]
        #[repr(transparent)]
        #[derive(Debug)]
        pub struct $name($atomic);

        impl $name {
            /// A word of this value.
            pub fn new(value: $word) -> $name {
                $name($atomic::new(value))
            }

            /// Its value (O1); for another thread than the owner a hint (O3).
            #[inline]
            pub fn get(&self) -> $word {
                // ORDERING: Relaxed, O1 and O3.
                self.0.load(Relaxed)
            }

            /// Stores a value, as the owner.
            #[inline]
            pub fn set(&self, value: $word) {
                // ORDERING: Relaxed, O1.
                self.0.store(value, Relaxed);
            }

            /// Stores a value after all earlier stores of the owner.
            #[inline]
            pub fn publish(&self, value: $word) {
                // ORDERING: Release, O2.
                self.0.store(value, Release);
            }
        }
    };
}

owned!(OwnedU32, AtomicU32, u32, "A 32-bit word");
owned!(OwnedU64, AtomicU64, u64, "A 64-bit word");

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn an_owned_word_has_the_value_stored_last() {
        let (half, whole) = (OwnedU32::new(1), OwnedU64::new(u64::MAX));
        assert_eq!((half.get(), whole.get()), (1, u64::MAX));
        half.set(2);
        whole.publish(3);
        assert_eq!((half.get(), whole.get()), (2, 3));
    }
}
