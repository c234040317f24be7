//! Allocations that are refused on purpose, to test calls whose N-th allocation finds no memory.

use std::cell::Cell;

thread_local! {
    static REQUESTS: Cell<u64> = const { Cell::new(0) };
    static REFUSED: Cell<u64> = const { Cell::new(0) };
}

/// Refuses the calling thread's `n`-th request from now on, counted from 1; 0 refuses none.
pub fn refuse(n: u64) {
    REQUESTS.set(0);
    REFUSED.set(n);
}

/// Number of requests of the calling thread since [`refuse`].
pub fn requests() -> u64 {
    REQUESTS.get()
}

/// Counts a request. Returns true if it is the one to refuse.
pub(crate) fn is_refused() -> bool {
    REQUESTS.set(REQUESTS.get() + 1);
    REQUESTS.get() == REFUSED.get()
}
