//! Write-backs left out on purpose: bugs for the crash rig to find. And promises of SEMANTICS.md that are broken on purpose
//! (`cargo xtask breaches`): the variable `HEDDLE_BREACH` names one as `heddle-pmem:NAME`.

use crate::durability::Reach;
use std::cell::Cell;
use std::sync::LazyLock;

/// Memory that is volatile is stored to as if it was not.
const COSTLY_IN_MEMORY: &str = "CostlyInMemory";
/// Persistent memory is stored to as if it was volatile.
const PLAIN_FOR_POWER: &str = "PlainForPower";
/// A device is what the file system is that its node lies on.
pub(crate) const NODES_BELIEVED: &str = "NodesBelieved";
/// Nobody asks whether an image is in use.
pub(crate) const LOCK_UNASKED: &str = "LockUnasked";

static BROKEN: LazyLock<Option<String>> = LazyLock::new(|| {
    let wanted = std::env::var("HEDDLE_BREACH").ok()?;
    wanted.strip_prefix("heddle-pmem:").map(str::to_owned)
});

/// Is this promise broken?
pub(crate) fn breaks(promise: &str) -> bool {
    BROKEN.as_deref() == Some(promise)
}

/// What the processor must do for a fence, if that is not what it should be.
pub(crate) fn reach() -> Option<Reach> {
    match BROKEN.as_deref() {
        Some(COSTLY_IN_MEMORY) => Some(Reach::Controller),
        Some(PLAIN_FOR_POWER) => Some(Reach::Memory),
        _ => None,
    }
}

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
