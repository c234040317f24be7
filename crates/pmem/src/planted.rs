//! Write-backs and fences left out on purpose: bugs that the crash rig must find. And promises of
//! SEMANTICS.md that are broken on purpose (`cargo xtask breaches`): the variable `HEDDLE_BREACH` names one
//! as `heddle-pmem:NAME`.
//!
//! State       [`without_flush`], for a thread; [`leave_out`], for the process: one call in the source. Only simulated
//!             regions obey it, and count each call.

use crate::durability::Reach;
use std::cell::Cell;
use std::panic::Location;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{LazyLock, RwLock};

/// Stores to volatile memory are done as for persistent memory.
const COSTLY_IN_MEMORY: &str = "CostlyInMemory";
/// Stores to persistent memory are done as for volatile memory.
const PLAIN_FOR_POWER: &str = "PlainForPower";
/// A device is classified by the file system of its node.
pub(crate) const NODES_BELIEVED: &str = "NodesBelieved";
/// No check whether an image is in use.
pub(crate) const LOCK_UNCHECKED: &str = "LockUnchecked";

static BROKEN: LazyLock<Option<String>> = LazyLock::new(|| {
    let wanted = std::env::var("HEDDLE_BREACH").ok()?;
    wanted.strip_prefix("heddle-pmem:").map(str::to_owned)
});

/// Returns true if this promise is broken.
pub(crate) fn breaks(promise: &str) -> bool {
    BROKEN.as_deref() == Some(promise)
}

/// The reach of a fence, if a planted bug changes it.
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

/// Runs `store`; its stores through the cache are not flushed.
pub fn without_flush(store: impl FnOnce()) {
    LEFT_OUT.set(true);
    store();
    LEFT_OUT.set(false);
}

pub(crate) fn left_out() -> bool {
    LEFT_OUT.get()
}

/// The effect of a call.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// It fences.
    Fence,
    /// A store past the cache, or the start of a write-back. If it is left out, the bytes stay in the cache.
    Store,
}

/// A call in the source.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Site {
    /// The file, from the root of the repository.
    pub file: &'static str,
    /// The line.
    pub line: u32,
    /// Its effect.
    pub kind: Kind,
}

/// Line of the call that is left out; 0: none.
static LINE: AtomicU32 = AtomicU32::new(0);
static CHOSEN: RwLock<Option<Site>> = RwLock::new(None);

/// Leaves one call out from now on, in the whole process; `None` leaves out none.
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
