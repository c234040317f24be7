//! Inodes without a name: made so, or removed while they are open.

use crate::change::{Change, Need};
use crate::ids::Nid;
use crate::mounted::F2fs;
use crate::planted::{Breach, breaks};
use heddle_vfs::Result;

impl F2fs {
    /// It has a name.
    pub(crate) fn got_name(&self, nid: Nid) {
        self.opened.got_name(nid);
        self.ledger().orphans.remove(&nid);
    }

    /// An inode has lost its last name: it is no more, unless it is open. The inode is locked.
    pub(crate) fn end_unless_open(&self, change: &Change<'_>, nid: Nid) -> Result<()> {
        if self.opened.has(nid) && !breaks(Breach::EndsWhileOpen) {
            self.ledger().orphans.insert(nid);
            return Ok(());
        }
        change.end(nid)
    }

    /// A handle goes.
    pub(crate) fn close(&self, nid: Nid) {
        let inside = self.inside();
        let locked = self.guards.alone(&[nid]);
        let is_orphan = self.opened.take(nid) && self.ledger().orphans.contains(&nid);
        let is_orphan = is_orphan && !breaks(Breach::NamelessStays);
        // What cannot be read to its end stays on the list, for fsck.f2fs.
        let can_end = || self.media.inode(nid).and_then(|inode| self.media.check_end(&inode)).is_ok();
        if is_orphan && can_end() && self.watched(|| self.media.set_aside(Need::NONE)?.end(nid)).is_ok() {
            // What failed is ended by the next mount.
            self.ledger().orphans.remove(&nid);
        }
        drop((locked, inside));
    }
}
