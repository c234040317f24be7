//! Write-backs and fences left out on purpose: bugs for the crash rig to find. And promises of SEMANTICS.md that are broken on purpose
//! (`cargo xtask breaches`): the variable `HEDDLE_BREACH` names one as `heddle-pmem:NAME`.
//!
//! State       [`without_flush`], for a thread; [`leave_out`], for the process: one call in the source, wherever it is made. Simulated
//!             regions alone obey it, and count each call.

use crate::durability::Reach;
use std::cell::Cell;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{LazyLock, RwLock};

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

/// What a call does for durability.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// It fences.
    Fence,
    /// It stores past the cache, or starts the write-back of what it or another has stored. Left out, the bytes stay in the cache.
    Store,
}

/// A call in the source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Site {
    /// The file, from the top of the repository.
    pub file: &'static str,
    /// The line.
    pub line: u32,
    /// What it does there.
    pub kind: Kind,
}

/// Line of the call that is left out; 0: none is.
static LINE: AtomicU32 = AtomicU32::new(0);
static CHOSEN: RwLock<Option<Site>> = RwLock::new(None);

/// Leaves one call out from now on, in the whole process; none with `None`.
pub fn leave_out(site: Option<Site>) {
    if let Ok(mut chosen) = CHOSEN.write() {
        *chosen = site;
    }
    // ORDERING: Relaxed, chosen before the threads that meet it begin.
    LINE.store(site.map_or(0, |site| site.line), Relaxed);
}

impl Site {
    #[track_caller]
    pub(crate) fn here(kind: Kind) -> Site {
        let at = Location::caller();
        Site { file: at.file(), line: at.line(), kind }
    }

    pub(crate) fn is_left_out(self) -> bool {
        // ORDERING: Relaxed, as in `leave_out`.
        LINE.load(Relaxed) == self.line && CHOSEN.read().is_ok_and(|chosen| *chosen == Some(self))
    }
}
