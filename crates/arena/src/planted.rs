//! Requests that are refused on purpose: what does a call do whose N-th request finds no memory?

use std::cell::Cell;

thread_local! {
    static REQUESTS: Cell<u64> = const { Cell::new(0) };
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

/// The calling thread's `n`-th request from now on is refused, from 1; with 0 none is.
pub fn refuse(n: u64) {
    REQUESTS.set(0);
    REFUSED.set(n);
}

/// Requests of the calling thread since [`refuse`].
pub fn requests() -> u64 {
    REQUESTS.get()
}

/// A request is made: is it the one?
pub(crate) fn is_refused() -> bool {
    REQUESTS.set(REQUESTS.get() + 1);
    REQUESTS.get() == REFUSED.get()
}
