//! Write-backs left out on purpose: bugs for the crash rig to find.

use std::cell::Cell;

thread_local! {
    static LEFT_OUT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `store`; what it stores through the cache stays there.
pub fn without_flush(store: impl FnOnce()) {
    LEFT_OUT.set(true);
    store();
    LEFT_OUT.set(false);
}

pub(crate) fn left_out() -> bool {
    LEFT_OUT.get()
}
