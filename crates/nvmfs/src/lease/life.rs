//! How a lease begins and ends, and what its lane gives back then.

use super::{LEASES, Lease, WORDS, change};
use crate::alloc::return_all;
use crate::core::{Core, LANES};
use crate::lane::Own;
use crate::{process, settle};
use heddle_vfs::{Error, Result};
use std::cell::{Cell, UnsafeCell};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, Release};

/// Leases a lane for the calling thread, and settles it if its holder died.
pub fn lease_lane(core: &Arc<Core>, process: u32) -> Result<Lease> {
    let leased = core.lane_table().lease(&core.arena).map_err(|_| Error::NoMemory)?;
    if leased.died {
        settle::settle(core, leased.lane.0);
    }
    let share = |n: u64| n * u64::from(leased.lane.0 - 1) / u64::from(LANES);
    // SAFETY: this thread holds the lease, and nobody has a reference to what is the lane's own yet.
    let own = unsafe { core.lane(leased.lane.0).own() };
    own.place(share(core.layout.blocks_total.div_ceil(64)), share(core.layout.chunks_max));
    core.lane(leased.lane.0).mark(own);
    core.lane(leased.lane.0).counts.comes();
    let holder = u64::from(process) << 32 | u64::from(process::thread_id());
    // ORDERING: Release, others only look at it.
    core.lane(leased.lane.0).intent.holder.store(holder, Release);
    let lease = Lease {
        mount: core.id,
        process,
        lane: leased.lane,
        busy: Cell::new(false),
        scratch: UnsafeCell::default(),
        core: Arc::downgrade(core),
        arena: Arc::clone(&core.arena),
    };
    // If that fails the lane is given back.
    crate::opens::equip(core, lease.lane.0)?;
    Ok(lease)
}

/// Gives the calling thread's lanes of mounts that are gone back, and forgets those of a parent.
#[allow(clippy::vec_box)]
pub fn prune(leases: &mut Vec<Box<Lease>>) {
    leases.retain(|l| l.busy.get() || (l.core.strong_count() > 0 && l.process == process::id()));
}

/// Gives the calling thread's lanes of this mount back: before it is unmounted.
pub fn leave(core: &Core) {
    // The thread may be ending: then its leases are given back anyway.
    let _ = LEASES.try_with(|leases| {
        change(&mut leases.borrow_mut(), |leases| leases.retain(|l| l.busy.get() || l.mount != core.id));
    });
}

impl Drop for Lease {
    fn drop(&mut self) {
        // The thread ends (I5); under shuttle its words may have gone first.
        let _ = WORDS.try_with(|words| {
            if std::ptr::eq(words.only.get(), self) {
                words.only.set(std::ptr::null());
            }
        });
        if self.process != process::id() {
            // I3.
            return;
        }
        if self.busy.get() {
            // The thread ends in the middle of a call: the kernel marks the lane, and whoever finds it settles it (I2: in this arena).
            std::mem::forget(Arc::clone(&self.arena));
            return;
        }
        let root = self.arena.root::<crate::core::Root>();
        if let Some(core) = self.core.upgrade() {
            // SAFETY: I1: the lease is not busy and belongs to this thread.
            give_back(&core, unsafe { core.lane(self.lane.0).own() }, self.lane.0);
            // ORDERING: Release, others only look at it.
            core.lane(self.lane.0).intent.holder.store(0, Release);
        }
        let table = crate::core::lane_table_of(&self.arena, root);
        // A failure would mean that another thread holds it, which I1 excludes.
        let released = table.release(&self.arena, self.lane);
        debug_assert!(released.is_ok());
    }
}

/// Gives what a lane has to the others. The caller holds its lease.
pub fn give_back(core: &Core, own: &mut Own, lane: u16) {
    crate::log::chain::let_go_all(core, own, lane);
    // PERSIST: D15, this lane's stores into the blocks it gives back come before another lane's.
    core.region.fence();
    return_all(core.free_map(), own);
    core.lane(lane).note_held(0);
    crate::itable::return_all(core, own);
}

/// Free blocks in lanes' hands, about: of other threads' lanes the counts may be a moment old.
pub fn held_blocks(core: &Core) -> u64 {
    // ORDERING: Relaxed, an estimate.
    let used = core.root().lanes_used.load(Relaxed) as u16;
    (1..=used).map(|lane| core.lane(lane).held()).sum()
}
