//! Inodes that a dead lane was working on, kept alive while it is settled.
//!
//! The dead one's own handle, or a bucket that it held, kept them alive while it worked; another lane of the same dead process that is
//! settled at the same moment may give that handle up. An inode that ended under the settler would take its log away: what
//! is read there then is another's.
//!
//! Invariants  I1  a kept inode is counted in the dead lane's own table, like a handle of the dead one: if the settler dies too, the next
//!                 one forgets it with the others.
//!             I2  nobody is waited for longer than [`RESOLVE`]: who was about to end the inode may be dead itself.

use super::living;
use crate::ids::InodeId;
use crate::names::life;
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::opens;
use std::time::{Duration, Instant};

/// Somebody who finds out whether an inode has handles needs less, if he lives.
const RESOLVE: Duration = Duration::from_millis(20);

/// An inode that the settler works on.
pub struct Kept<'c> {
    /// The inode.
    pub inode: InodeRef<'c>,
    id: InodeId,
    counted: bool,
}

impl Kept<'_> {
    /// Is it still the inode that it was? What is read of another one's log is no damage.
    pub fn lives(&self) -> bool {
        self.inode.id() == self.id
    }
}

/// Keeps the inode of this number, if one lives there and is not being ended.
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
            // The dead lane itself, or another dead one, was ending it.
            return Some(Kept { inode, id, counted: false });
        }
        std::thread::yield_now();
    }
}

/// Lets go of them; those that have neither name nor handle end.
pub fn let_go(core: &Core, guard: &mut LaneGuard<'_>, kept: Vec<Kept<'_>>) {
    for kept in kept.into_iter().filter(|kept| kept.counted) {
        life::drop_open(core, guard, kept.inode, kept.id.generation);
    }
}
