//! Inodes without a name: made without one, or removed while they are open.

use crate::change::{Change, Need};
use crate::ids::Nid;
use crate::mounted::F2fs;
use crate::planted::{Breach, breaks};
use heddle_vfs::Result;

impl F2fs {
    /// Notes that an inode has a name now.
    pub(crate) fn got_name(&self, nid: Nid) {
        self.opened.got_name(nid);
        self.checkpoint_state().orphans.remove(&nid);
    }

    /// Frees an inode that has lost its last name, unless it is open. The inode is locked.
    pub(crate) fn end_unless_open(&self, change: &Change<'_>, nid: Nid) -> Result<()> {
        if self.opened.has(nid) && !breaks(Breach::EndsWhileOpen) {
            self.checkpoint_state().orphans.insert(nid);
            return Ok(());
        }
        change.end(nid)
    }

    /// Closes a handle.
    pub(crate) fn close(&self, nid: Nid) {
        let inside = self.inside();
        let locked = self.guards.alone(&[nid]);
        let is_orphan = self.opened.take(nid) && self.checkpoint_state().orphans.contains(&nid);
        let is_orphan = is_orphan && !breaks(Breach::NamelessStays);
        // An inode that cannot be read completely stays on the list, for fsck.f2fs.
        let can_end = || self.media.inode(nid).and_then(|inode| self.media.check_end(&inode)).is_ok();
        if is_orphan && can_end() && self.watched(|| self.media.set_aside(Need::NONE)?.end(nid)).is_ok() {
            // If this fails, the next mount frees it.
            self.checkpoint_state().orphans.remove(&nid);
        }
        drop((locked, inside));
    }
}
