//! Which lane a thread works with.
//!
//! A thread leases a lane at its first call and keeps it until it ends, or until the mount it belongs to is gone. Calls in
//! calls (a callback that uses the file system) take a second lane.
//!
//! Invariants  I1  a lane is in the hands of one [`LaneGuard`] at a time: `busy` is the thread's own word.
//!             I2  the arena outlives every lease in it: the robust list of the C library runs through it. So a lease holds
//!                 the arena, and an unmounted arena stays mapped until the threads that worked in it end or mount again.

use crate::alloc::return_all;
use crate::core::{Core, LANES};
use crate::format::record::Record;
use crate::ids::Extent;
use crate::lane::{Lane, Own};
use heddle_arena::{Arena, LaneId};
use heddle_vfs::{Error, Result};
use std::cell::{Cell, RefCell, UnsafeCell};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};

/// Memory of the process that a lane's operations reuse.
#[derive(Default)]
pub struct Scratch {
    /// Blocks of a write.
    pub extents: Vec<Extent>,
    /// Blocks it replaces.
    pub replaced: Vec<Extent>,
    /// Records of a transaction.
    pub records: Vec<Record>,
    /// What a read collected.
    pub collected: Vec<crate::file::read::Seen>,
}

struct Lease {
    mount: u64,
    lane: LaneId,
    busy: Cell<bool>,
    scratch: UnsafeCell<Scratch>,
    core: Weak<Core>,
    arena: Arc<Arena>,
}

thread_local! {
    // Boxed: a guard points to its lease while others are added.
    #[allow(clippy::vec_box)]
    static LEASES: RefCell<Vec<Box<Lease>>> = const { RefCell::new(Vec::new()) };
}

/// A lane in use by one call.
pub struct LaneGuard<'c> {
    /// Its number, from 1.
    pub id: u16,
    /// What others see of it.
    pub lane: &'c Lane,
    /// What is its own.
    pub own: &'c mut Own,
    /// Buffers.
    pub scratch: &'c mut Scratch,
    lease: *const Lease,
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        self.lane.note_held(self.own.magazine.len() as u64 + self.own.limbo.blocks());
        // SAFETY: a busy lease is not removed (`prune`), its box keeps its place, and this thread alone owns it.
        let lease = unsafe { &*self.lease };
        crate::log::chain::rest_all(&lease.arena, self.own, self.id);
        lease.busy.set(false);
    }
}

/// Takes a lane of this mount for the calling thread.
///
/// # Errors
/// [`Error::NoMemory`] if more threads than lanes are inside.
pub fn enter(core: &Arc<Core>) -> Result<LaneGuard<'_>> {
    LEASES.with_borrow_mut(|leases| {
        let known = leases.iter().position(|l| l.mount == core.id && !l.busy.get());
        let at = match known {
            Some(at) => at,
            None => {
                prune(leases);
                leases.push(Box::new(lease_lane(core)?));
                leases.len() - 1
            }
        };
        let lease = &*leases[at];
        lease.busy.set(true);
        let lane = core.lane(lease.lane.0);
        Ok(LaneGuard {
            id: lease.lane.0,
            lane,
            // SAFETY: I1: this thread holds the lease and it was not busy.
            own: unsafe { lane.own() },
            // SAFETY: as above.
            scratch: unsafe { &mut *lease.scratch.get() },
            lease,
        })
    })
}

fn lease_lane(core: &Arc<Core>) -> Result<Lease> {
    let leased = core.lane_table().lease(&core.arena).map_err(|_| Error::NoMemory)?;
    // A holder that died without its process cannot be: threads of this process release what they hold when they end.
    debug_assert!(!leased.died);
    let share = |n: u64| n * u64::from(leased.lane.0 - 1) / u64::from(LANES);
    // SAFETY: this thread holds the lease, and nobody has a reference to what is the lane's own yet.
    let own = unsafe { core.lane(leased.lane.0).own() };
    own.place(share(core.layout.blocks_total.div_ceil(64)), share(core.layout.chunks_max));
    let lease = Lease {
        mount: core.id,
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

/// Gives the calling thread's lanes of mounts that are gone back, and with `mount` those of that one too.
#[allow(clippy::vec_box)]
fn prune(leases: &mut Vec<Box<Lease>>) {
    leases.retain(|l| l.busy.get() || l.core.strong_count() > 0);
}

/// Gives the calling thread's lanes of this mount back: before it is unmounted.
pub fn leave(core: &Core) {
    // The thread may be ending: then its leases are given back anyway.
    let _ = LEASES.try_with(|leases| leases.borrow_mut().retain(|l| l.busy.get() || l.mount != core.id));
}

impl Drop for Lease {
    fn drop(&mut self) {
        let root = self.arena.root::<crate::core::Root>();
        if let Some(core) = self.core.upgrade() {
            // SAFETY: I1: the lease is not busy and belongs to this thread.
            let own = unsafe { core.lane(self.lane.0).own() };
            crate::log::chain::let_go_all(&core, own, self.lane.0);
            // PERSIST: D15, this lane's stores into the blocks it gives back come before another lane's.
            core.region.fence();
            return_all(core.free_map(), own);
            core.lane(self.lane.0).note_held(0);
            crate::itable::return_all(&core, own);
        }
        let table = crate::core::lane_table_of(&self.arena, root);
        // A failure would mean that another thread holds it, which I1 excludes.
        let released = table.release(&self.arena, self.lane);
        debug_assert!(released.is_ok());
    }
}

/// Free blocks in lanes' hands, about: of other threads' lanes the counts may be a moment old.
pub fn held_blocks(core: &Core) -> u64 {
    // ORDERING: Relaxed, an estimate.
    let used = core.root().lanes_used.load(Relaxed) as u16;
    (1..=used).map(|lane| core.lane(lane).held()).sum()
}
