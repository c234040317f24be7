//! Keeps the inodes that a dead lane was working on alive while the lane is settled.
//!
//! While the dead thread worked, its own handle, or a bucket that it held, kept them alive. But another lane
//! of the same dead process, settled at the same moment, may release that handle. If an inode died under the
//! settler, its log pages would become another inode's while the settler reads them.
//!
//! Invariants  I1  a kept inode is counted in the dead lane's own table, like a handle of the dead thread. If the settler dies too, the
//!                 next settler releases it with the others.
//!             I2  the settler waits at most [`RESOLVE`] for a thread that may be freeing the inode: that thread may be dead itself.

use super::living;
use crate::ids::InodeId;
use crate::names::life;
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::opens;
use std::time::{Duration, Instant};

/// A living thread that checks whether an inode has handles needs less time than this.
const RESOLVE: Duration = Duration::from_millis(20);

/// An inode that the settler works on.
pub struct Kept<'c> {
    /// The inode.
    pub inode: InodeRef<'c>,
    id: InodeId,
    counted: bool,
}

impl Kept<'_> {
    /// Returns true if this is still the same inode. If not, contents read from its log are another inode's,
    /// and no sign of damage.
    pub fn lives(&self) -> bool {
        self.inode.id() == self.id
    }
}

/// Keeps the inode of this number alive, if it exists and is not being freed.
pub fn keep<'c>(core: &'c Core, lane: u16, ino: u64) -> Option<Kept<'c>> {
    let inode = living(core, ino)?;
    let id = inode.id();
    let began = Instant::now();
    loop {
        match opens::open(core, lane, inode, id.generation) {
            Ok(true) => return Some(Kept { inode, id, counted: true }),
            Ok(false) => {}
            Err(_) => return Some(Kept { inode, id, counted: false }),
        }
        opens::lower(core, lane, inode, id.generation);
        if inode.id() != id {
            return None;
        }
        if began.elapsed() > RESOLVE {
            // The dead lane itself, or another dead one, was freeing it.
            return Some(Kept { inode, id, counted: false });
        }
        std::thread::yield_now();
    }
}

/// Releases the kept inodes. Those without a name and a handle are freed.
pub fn let_go(core: &Core, guard: &mut LaneGuard<'_>, kept: Vec<Kept<'_>>) {
    for kept in kept.into_iter().filter(|kept| kept.counted) {
        life::drop_open(core, guard, kept.inode, kept.id.generation);
    }
}
