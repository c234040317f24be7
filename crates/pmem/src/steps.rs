//! Under shuttle: places where another thread may run, or this process may die.

/// In a rig of processes that die between two stores: called before each store.
pub static BEFORE_STORE: std::sync::OnceLock<fn()> = std::sync::OnceLock::new();

/// Called before each store.
pub fn before_store() {
    BEFORE_STORE.get().into_iter().for_each(|before| before());
}

/// Under shuttle another thread may run here: copies are cut in two, so that other threads see half of them.
pub fn step() {
    if BEFORE_STORE.get().is_some() {
        return before_store();
    }
    if !std::thread::panicking() {
        // ORDERING: SeqCst, the only order shuttle has.
        shuttle::sync::atomic::AtomicBool::new(false).load(std::sync::atomic::Ordering::SeqCst);
    }
}
