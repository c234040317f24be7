//! Changes of names that are durable, and that their buckets do not show yet.
//!
//! Invariant   I1  a call locks a bucket, logs a change with a version above the bucket's, and changes the bucket. Only the unlock gives
//!                 the bucket the new version. So a bucket lacks every change above its version, and no other.
//!                 (While it is changing, it may show a part of one. A removal in the log itself has no version of its own.)

use super::{Table, find, key};
use crate::ids::Version;
use crate::state::core::Core;
use crate::state::inode::InodeRef;

/// Returns true if a dead lane still holds the bucket of a name, and the bucket does not have this change yet: a lock comes before its
/// change, and an unlock sets the version. A lane that holds the bucket again later in its call (to grow the table, to log a name anew) has
/// made its change before, and others may have changed the name since.
pub fn is_pending(core: &Core, lane: u16, dir: InodeRef<'_>, name: &[u8], version: Version) -> bool {
    Table::of(core, dir).is_some_and(|table| {
        let word = table.buckets[table.index(key(core, name).hash)].word();
        word.holder() == lane && word.version() < version
    })
}

/// Returns true if a record that makes a name at this version may count: the name has no later one, or its bucket is about to show it.
pub fn may_count(core: &Core, dir: InodeRef<'_>, name: &[u8], version: Version) -> bool {
    let key = key(core, name);
    while let Some(table) = Table::of(core, dir) {
        // Before the look at the name: behind it, the unlock may have come in between.
        let word = table.buckets[table.index(key.hash)].word();
        if !table.current() {
            continue;
        }
        if word.dead() {
            return false;
        }
        // A signal handler cannot look into a bucket that its own thread is changing.
        let is_shown =
            || find(core, dir, key).map_or(true, |named| named.is_some_and(|n| n.version <= version));
        return word.version() < version || is_shown();
    }
    false
}
