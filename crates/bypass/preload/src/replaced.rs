//! The number that is being replaced, one at a time: the lock around a replacement (`descriptor_numbers`).

use heddle_bypass::{Patience, Patient};
use std::sync::atomic::{AtomicI32, Ordering::SeqCst};

const NONE: i32 = -1;
/// In place of a number: none is replaced, and none will be.
pub const NOTHING: i32 = -2;

static REPLACED: AtomicI32 = AtomicI32::new(NONE);

/// While this lives, no other thread replaces a number.
pub struct Replacing(());

impl Replacing {
    /// This thread is about to replace the number `to`, or keeps the others from it ([`NOTHING`]). A handler passes its patience. Returns
    /// `None` if that has ended.
    pub fn begin(to: i32, patience: Option<&Patience>) -> Option<Replacing> {
        let is_taken = || REPLACED.compare_exchange(NONE, to, SeqCst, SeqCst).is_err();
        patience.wait_while(is_taken).then_some(Replacing(()))
    }
}

impl Drop for Replacing {
    fn drop(&mut self) {
        REPLACED.store(NONE, SeqCst);
    }
}

/// In a forked child, which does not have the thread that was replacing a number: returns that number, or a negative one.
pub fn reset_in_child() -> i32 {
    REPLACED.swap(NONE, SeqCst)
}
