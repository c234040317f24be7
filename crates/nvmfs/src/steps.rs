//! The steps of a write as the papers number them (SRL paper, Fig. 2 and 5), so that a test can park a writer in one and see
//! who may pass; and those of `heddle`, so that a test can end a process in each. Outside tests (and the crash rig's planted bugs)
//! a step is nothing.

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
    /// `heddle`: blocks are taken and filled, nothing is held.
    Filled,
    /// `heddle`: cells are held, nothing is logged.
    Held,
    /// `heddle`: records are stored, not fenced.
    Stored,
    /// `heddle`: records are durable, nobody has been told.
    Durable,
    /// `heddle`: the operation has happened, cells are still held.
    Happened,
    /// `heddle`: cells are let go, latches and replaced blocks are not.
    LetGo,
    /// A reader has a pin.
    Pinned,
    /// Somebody settles a dead lane.
    Settling,
    /// A settler looks at a chain.
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
    //! Parks the threads that ask for it.

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
        // A thread that ends settles lanes when its hook may be gone.
        let hook = HOOK.try_with(|hook| hook.borrow().clone());
        if let Ok(Some(hook)) = hook {
            hook(step);
        }
    }
}
