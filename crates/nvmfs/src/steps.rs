//! The steps of a write as the papers number them (SRL paper, Fig. 2 and 5). A test can stop a writer in one
//! and check which callers can pass. There are also steps of `heddle`, in each of which a test can end a
//! process. Outside tests (and the crash rig's planted bugs) a step is nothing.

/// A step of a call.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Step {
    /// The range (or inode) is locked.
    RangeCheck,
    /// Data is being copied.
    DataWrite,
    /// Slots are being reserved and filled.
    Logging,
    /// They are filled, the log lock is free, nothing is fenced (`nova-*`).
    #[cfg(feature = "planted")]
    Unfenced,
    /// They are durable, and no lock but the range's is held; the mark is yet to come (`nova-*`).
    #[cfg(feature = "planted")]
    Logged,
    /// The mark or tail is being set.
    Tail,
    /// The mark is set, the tail lock is free, nothing is fenced (`nova-*`).
    #[cfg(feature = "planted")]
    Marked,
    /// The index is being changed.
    Index,
    /// Times and size are being changed.
    Time,
    /// `heddle`: blocks are taken and filled, no lock is held.
    Filled,
    /// `heddle`: cells are held, no record is logged.
    Held,
    /// `heddle`: records are stored, not fenced.
    Stored,
    /// `heddle`: records are durable, the operation is not committed.
    Durable,
    /// `heddle`: the operation is committed, cells are still held.
    Happened,
    /// `heddle`: a name is durable, its bucket is being changed.
    Changing,
    /// `heddle`: cells are released, latches and replaced blocks are not.
    LetGo,
    /// A reader has a pin.
    Pinned,
    /// A settler is settling a dead lane.
    Settling,
    /// A settler is repairing a chain.
    Repairing,
}

/// Passes a step.
#[inline(always)]
pub fn step(step: Step) {
    #[cfg(any(test, feature = "planted"))]
    hook::pass(step);
    let _ = step;
}

#[cfg(any(test, feature = "planted"))]
pub mod hook {
    //! Stops the threads that ask for it.

    use super::Step;
    use std::cell::RefCell;
    use std::sync::Arc;

    /// Called at each step of the thread that set it.
    pub type Hook = Arc<dyn Fn(Step)>;

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    /// Sets the hook of this thread.
    pub fn set(hook: Option<Hook>) {
        HOOK.with_borrow_mut(|h| *h = hook);
    }

    pub(super) fn pass(step: Step) {
        // An ending thread settles lanes when its hook may be gone.
        let hook = HOOK.try_with(|hook| hook.borrow().clone());
        if let Ok(Some(hook)) = hook {
            hook(step);
        }
    }
}
