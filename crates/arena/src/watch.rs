//! For tools that look at memory from outside (`cargo xtask coherence`): which addresses are what.
//!
//! State  one function for the process, set once or never. While it is not set an allocation pays one load of a word that nobody
//!        writes and one branch.

use std::panic::Location;
use std::sync::OnceLock;

/// A run of memory that is put to a use.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// Address of the first byte in this process.
    pub address: usize,
    /// Length in bytes.
    pub bytes: usize,
    /// Bytes of one of the equal things in it.
    pub element_bytes: usize,
    /// The type of such a thing, or what it is in words; empty: nothing known, whatever was said before is over.
    pub what: &'static str,
    /// It lies under other things, which are told one by one.
    pub ground: bool,
    /// Where in the source it was put to this use.
    pub site: &'static Location<'static>,
}

static WATCHER: OnceLock<fn(&Use)> = OnceLock::new();

/// Calls `watcher` for each use from now on. The first one set stays.
pub fn set(watcher: fn(&Use)) {
    WATCHER.get_or_init(|| watcher);
}

/// Does anybody want to know?
#[inline]
pub fn is_on() -> bool {
    WATCHER.get().is_some()
}

/// These things begin their life.
#[inline]
#[track_caller]
pub(crate) fn tell<T>(things: &[T]) {
    if let Some(watcher) = WATCHER.get() {
        watcher(&Use {
            address: things.as_ptr() as usize,
            bytes: size_of_val(things),
            element_bytes: size_of::<T>(),
            what: std::any::type_name::<T>(),
            ground: false,
            site: Location::caller(),
        });
    }
}

/// These bytes, which are no arena's, are `what` from now on; empty: no longer anything in particular.
#[inline]
#[track_caller]
pub fn name(address: usize, bytes: usize, what: &'static str) {
    if let Some(watcher) = WATCHER.get() {
        watcher(&Use { address, bytes, element_bytes: bytes, what, ground: false, site: Location::caller() });
    }
}

/// As [`name`], of what lies under other things.
#[track_caller]
pub fn name_ground(address: usize, bytes: usize, what: &'static str) {
    if let Some(watcher) = WATCHER.get() {
        watcher(&Use { address, bytes, element_bytes: bytes, what, ground: true, site: Location::caller() });
    }
}
