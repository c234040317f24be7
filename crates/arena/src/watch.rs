//! Reports what memory at an address is used for, to tools that look at memory from outside
//! (`cargo xtask coherence`).
//!
//! State  one function for the process, set once or never. While it is not set, an allocation costs one load of a word that is not
//!        written, and one branch.

use std::panic::Location;
use std::sync::OnceLock;

/// A run of memory with one use.
#[derive(Clone, Copy, Debug)]
pub struct MemoryUse {
    /// Address of the first byte in this process.
    pub address: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// Bytes of each of the equal elements in it.
    pub element_bytes: usize,
    /// The type of an element, or a description; empty: the earlier use has ended.
    pub what: &'static str,
    /// True: other uses lie inside it, and are reported one by one.
    pub background: bool,
    /// The source position that assigned this use.
    pub site: &'static Location<'static>,
}

static WATCHER: OnceLock<fn(&MemoryUse)> = OnceLock::new();

/// Calls `watcher` for each use that is reported from now on. A second watcher is ignored.
pub fn set_watcher(watcher: fn(&MemoryUse)) {
    WATCHER.get_or_init(|| watcher);
}

/// Returns true if a watcher is set.
#[inline]
pub fn is_on() -> bool {
    WATCHER.get().is_some()
}

/// Reports that these values were created.
#[inline]
#[track_caller]
pub(crate) fn report_created<T>(things: &[T]) {
    if let Some(watcher) = WATCHER.get() {
        watcher(&MemoryUse {
            address: things.as_ptr() as usize,
            bytes: size_of_val(things),
            element_bytes: size_of::<T>(),
            what: std::any::type_name::<T>(),
            background: false,
            site: Location::caller(),
        });
    }
}

/// Reports that these bytes, outside any arena, are `what` from now on; empty: the use has ended.
#[inline]
#[track_caller]
pub fn report_use(address: usize, bytes: usize, what: &'static str) {
    if let Some(watcher) = WATCHER.get() {
        watcher(&MemoryUse {
            address,
            bytes,
            element_bytes: bytes,
            what,
            background: false,
            site: Location::caller(),
        });
    }
}

/// Reports that this memory, an arena for instance, is `what` wherever no other use is reported.
#[track_caller]
pub fn report_background(address: usize, bytes: usize, what: &'static str) {
    if let Some(watcher) = WATCHER.get() {
        watcher(&MemoryUse {
            address,
            bytes,
            element_bytes: bytes,
            what,
            background: true,
            site: Location::caller(),
        });
    }
}
