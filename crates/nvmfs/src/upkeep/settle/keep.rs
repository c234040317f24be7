//! Keeps the inodes that a dead lane was working on alive while the lane is settled.
//!
//! While the dead thread worked, its own handle, or a bucket that it held, kept them alive. But another lane
//! of the same dead process, settled at the same moment, may release that handle. If an inode died under the
//! settler, its log pages would become another inode's while the settler reads them. A block that the dead thread
//! replaced would be freed by both.
//!
//! Invariants  I1  a kept inode is counted in the dead lane's own table, like a handle of the dead thread. If the settler dies too, the
//!                 next settler releases it with the others.
//!             I2  the settler touches nothing of an inode that another lane has begun to end: that lane frees its blocks. It waits while
//!                 another lane decides whether to (I4 of `settle`).
//!             I3  for I1 there is always room (`opens::keep`): without memory a settler must neither leave an inode out, whose cells
//!                 others wait for, nor work on one that others may end.

use super::living;
use crate::ids::InodeId;
use crate::names::life;
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::living::lives_on;
use crate::state::opens;

/// An inode that the settler works on.
pub struct Kept<'c> {
    /// The inode.
    pub inode: InodeRef<'c>,
    id: InodeId,
}

impl Kept<'_> {
    /// Returns true if this is still the same inode. If not, contents read from its log are another inode's,
    /// and no sign of damage.
    pub fn lives(&self) -> bool {
        self.inode.id() == self.id
    }
}

/// Keeps the inode of this number alive, if it exists and no thread has begun to end it (I2).
pub fn keep<'c>(core: &'c Core, lane: u16, ino: u64) -> Option<Kept<'c>> {
    let inode = living(core, ino)?;
    let id = inode.id();
    loop {
        match opens::keep(core, lane, inode, id.generation) {
            Ok(true) => return Some(Kept { inode, id }),
            Ok(false) => {}
            // I3: so many inodes only if somebody has scribbled over the lane.
            Err(_) => {
                let _noted = core.damage(format!("lane {lane} names too many inodes"));
                return None;
            }
        }
        opens::lower(core, lane, inode, id.generation);
        if !lives_on(core, inode, id.generation) {
            return None;
        }
    }
}

/// The inode of this number, if it is kept.
pub fn find<'c>(kept: &[Kept<'c>], ino: u64) -> Option<InodeRef<'c>> {
    kept.iter().find(|kept| kept.inode.ino.0 == ino && kept.lives()).map(|kept| kept.inode)
}

/// Releases the kept inodes. Those without a name and a handle are freed.
pub fn let_go(core: &Core, guard: &mut LaneGuard<'_>, kept: Vec<Kept<'_>>) {
    for kept in kept {
        life::drop_open(core, guard, kept.inode, kept.id.generation);
    }
}
