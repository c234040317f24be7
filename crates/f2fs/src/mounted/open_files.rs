//! Open files: the number of handles of each inode, and whether one that was made without a name may still
//! get one.

use crate::ids::{ByNid, Nid};
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Clone, Copy, Default)]
struct Opened {
    handles: u32,
    /// True: made without a name, and may still get one.
    may_get_name: bool,
}

/// Open inodes.
#[derive(Default)]
pub(crate) struct OpenFiles(Mutex<ByNid<Opened>>);

impl OpenFiles {
    fn table(&self) -> MutexGuard<'_, ByNid<Opened>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a handle. The inode is locked, or no other call knows it.
    pub(crate) fn add(&self, nid: Nid, may_get_name: bool) {
        let mut table = self.table();
        let opened = table.entry(nid).or_default();
        opened.handles += 1;
        opened.may_get_name |= may_get_name;
    }

    /// Returns true if the inode has a handle.
    pub(crate) fn has(&self, nid: Nid) -> bool {
        self.table().contains_key(&nid)
    }

    /// Returns true if it was made without a name and may still get one.
    pub(crate) fn may_get_name(&self, nid: Nid) -> bool {
        self.table().get(&nid).is_some_and(|opened| opened.may_get_name)
    }

    /// Notes that it has a name now.
    pub(crate) fn got_name(&self, nid: Nid) {
        if let Some(opened) = self.table().get_mut(&nid) {
            opened.may_get_name = false;
        }
    }

    /// Removes a handle. Returns true if it was the last.
    pub(crate) fn take(&self, nid: Nid) -> bool {
        let mut table = self.table();
        let Some(opened) = table.get_mut(&nid) else { return true };
        opened.handles -= 1;
        let last = opened.handles == 0;
        if last {
            table.remove(&nid);
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_several_handles_is_told_from_the_others() {
        let (open, nid) = (OpenFiles::default(), Nid(7));
        open.add(nid, false);
        open.add(nid, true);
        open.add(Nid(8), false);
        assert!(open.table()[&nid].may_get_name && !open.table()[&Nid(8)].may_get_name);
        assert_eq!([open.take(nid), open.take(nid)], [false, true]);
        assert!(!open.table().contains_key(&nid) && open.table().contains_key(&Nid(8)));
        assert!(open.take(nid), "of one that is not open nobody is left");
    }
}
