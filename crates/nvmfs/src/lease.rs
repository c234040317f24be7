//! Which lane a thread works with.
//!
//! A thread leases a lane at its first call and keeps it until it ends, or until the mount it belongs to is gone. Calls in
//! calls (a callback that uses the file system, a signal handler) take a second lane.
//!
//! Invariants  I1  a lane is in the hands of one [`LaneGuard`] at a time: `busy` is the thread's own word.
//!             I2  the arena outlives every lease in it: the robust list of the C library runs through it. So a lease holds
//!                 the arena, and an unmounted arena stays mapped until the threads that worked in it end or mount again.
//!             I3  a forked child finds its parent's leases in its memory; it neither uses nor releases them.
//!             I4  a lease that was the dead's is settled before it is used (L3 of the arena's `lanes`).
//! Orderings   O1  `inside` is stored before `ended` is loaded, in program order only: who ends the file system stores `ended`, lets
//!                 the kernel put a barrier into every running thread (membarrier), then loads `inside`.

use crate::alloc::return_all;
use crate::core::{Core, LANES};
use crate::counts::Kind;
use crate::format::record::Record;
use crate::ids::Extent;
use crate::lane::{Lane, Own};
use crate::{process, settle};
use heddle_arena::{Arena, LaneId};
use heddle_vfs::{Error, Result};
#[cfg(shuttle)]
use shuttle::thread_local;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;
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
    /// The process that leased it (I3).
    process: u32,
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

    /// The thread's lease, if it has but one: found without a search.
    static ONLY: Cell<*const Lease> = const { Cell::new(std::ptr::null()) };

    /// The innermost call that this thread is in: its mount and lane; null: none.
    static CURRENT: Cell<(*const Core, u16)> = const { Cell::new((std::ptr::null(), 0)) };
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
    arena: &'c Arena,
    busy: *const Cell<bool>,
    outer: (*const Core, u16),
    /// It is counted as a call.
    counted: bool,
}

impl Drop for LaneGuard<'_> {
    fn drop(&mut self) {
        if self.counted {
            self.lane.counts.ends();
        }
        self.lane.note_held(self.own.magazine.len() as u64 + self.own.limbo.blocks());
        self.lane.intent.logged();
        self.lane.intent.forget_dirs();
        crate::log::chain::rest_all(self.arena, self.own, self.id);
        CURRENT.with(|current| current.set(self.outer));
        if self.busy.is_null() {
            // A dead lane's (`of_the_dead`).
            return;
        }
        // ORDERING: Release, after all of the call.
        self.lane.intent.inside.store(0, Release);
        // SAFETY: a busy lease is not removed (`prune`), its box keeps its place, and this thread alone owns it.
        unsafe { (*self.busy).set(false) };
    }
}

#[cfg(loom)]
impl<'c> LaneGuard<'c> {
    /// A lane as a model deals them out: one to each of its threads, all of which are one to the system.
    pub fn dealt(core: &'c Core, id: u16, busy: &'c Cell<bool>, scratch: &'c mut Scratch) -> LaneGuard<'c> {
        let lane = core.lane(id);
        // SAFETY: the model deals each number once.
        let own = unsafe { lane.own() };
        own.place(0, 0);
        LaneGuard {
            id,
            lane,
            own,
            scratch,
            arena: &core.arena,
            busy,
            outer: (std::ptr::null(), 0),
            counted: false,
        }
    }
}

/// Takes a lane of this mount for the calling thread.
///
/// # Errors
/// [`Error::NoMemory`] if more threads than lanes are inside, [`Error::Unmounted`] after the mount has ended, [`Error::WouldDeadlock`] in
/// a signal handler that interrupted a call which holds locks.
pub fn enter(core: &Arc<Core>) -> Result<LaneGuard<'_>> {
    enter_as(core, None)
}

/// As [`enter`], for what counts as one call of this kind until the guard is dropped. The kind is known from the start, so that the
/// guard is moved once: a second move of so many words costs as much as a small read.
#[inline(always)]
pub fn enter_for(core: &Arc<Core>, kind: Kind) -> Result<LaneGuard<'_>> {
    enter_as(core, Some(kind))
}

#[inline(always)]
fn enter_as(core: &Arc<Core>, kind: Option<Kind>) -> Result<LaneGuard<'_>> {
    // SAFETY: a lease takes itself out of `ONLY` before it goes (`drop`); its box keeps its place.
    match unsafe { ONLY.with(Cell::get).as_ref() } {
        Some(lease) if lease.is_of(core) && !lease.busy.get() => lease.begin(core, kind),
        _ => find_lease(core)?.begin(core, kind),
    }
}

impl Lease {
    #[inline]
    fn is_of(&self, core: &Core) -> bool {
        self.mount == core.id && self.process == process::id()
    }

    /// Begins a call. The lease is not busy, and this thread's. Compiled into its callers, as all on the way to it: the guard is made
    /// where it stays.
    #[inline(always)]
    fn begin<'c>(&self, core: &'c Arc<Core>, kind: Option<Kind>) -> Result<LaneGuard<'c>> {
        // First of all: a signal's handler from here on takes another.
        self.busy.set(true);
        compiler_fence(SeqCst);
        let lane = core.lane(self.lane.0);
        lane.intent.inside.store(1, Relaxed); // ORDERING: Relaxed, O1.
        compiler_fence(SeqCst);
        // ORDERING: Relaxed, O1.
        if core.root().ended.load(Relaxed) != 0 {
            lane.intent.inside.store(0, Relaxed); // ORDERING: Relaxed, nothing was done.
            self.busy.set(false);
            return Err(Error::Unmounted);
        }
        if let Some(kind) = kind {
            lane.counts.begins(kind);
        }
        let outer = CURRENT.with(|current| current.replace((Arc::as_ptr(core), self.lane.0)));
        Ok(LaneGuard {
            id: self.lane.0,
            lane,
            // SAFETY: I1: this thread holds the lease and it was not busy.
            own: unsafe { lane.own() },
            // SAFETY: as above.
            scratch: unsafe { &mut *self.scratch.get() },
            arena: &core.arena,
            busy: &self.busy,
            outer,
            counted: kind.is_some(),
        })
    }
}

/// A lease of this thread that is not busy; a new one if there is none.
#[cold]
#[inline(never)]
fn find_lease<'l>(core: &Arc<Core>) -> Result<&'l Lease> {
    LEASES.with(|leases| {
        // Borrowed already: a signal came in the very middle of this function.
        let mut leases = leases.try_borrow_mut().map_err(|_| Error::WouldDeadlock)?;
        if leases.iter().any(|l| l.is_of(core) && l.busy.get() && holds_locks(core.lane(l.lane.0))) {
            return Err(Error::WouldDeadlock);
        }
        let at = match leases.iter().position(|l| l.is_of(core) && !l.busy.get()) {
            Some(at) => at,
            None => {
                prune(&mut leases);
                leases.push(Box::new(lease_lane(core, process::id())?));
                leases.len() - 1
            }
        };
        ONLY.with(|only| {
            only.set(if let [lease] = &leases[..] { &raw const **lease } else { std::ptr::null() })
        });
        let lease: *const Lease = &raw const *leases[at];
        // SAFETY: a lease that is about to be busy is not removed, and its box keeps its place.
        Ok(unsafe { &*lease })
    })
}

/// A call that takes no lane, counted in the one that the thread has.
pub struct Counted<'c> {
    lane: &'c Lane,
}

impl Drop for Counted<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lane.counts.ends();
    }
}

/// Counts a call that takes no lane, until what comes back is dropped. Where the thread can have none (too many threads, an interrupted
/// call), the call goes uncounted.
#[inline]
pub fn counted(core: &Arc<Core>, kind: Kind) -> Option<Counted<'_>> {
    let lane = match leased(core) {
        Some(lane) => lane,
        None => first_lane(core)?,
    };
    let lane = core.lane(lane);
    lane.counts.begins(kind);
    Some(Counted { lane })
}

/// The lane that this thread has leased.
#[inline]
fn leased(core: &Core) -> Option<u16> {
    // SAFETY: as in `enter_as`.
    if let Some(lease) = unsafe { ONLY.with(Cell::get).as_ref() }
        && lease.is_of(core)
    {
        return Some(lease.lane.0);
    }
    LEASES.with(|leases| {
        let leases = leases.try_borrow().ok()?;
        leases.iter().find(|l| l.is_of(core)).map(|l| l.lane.0)
    })
}

/// Leases one.
#[cold]
fn first_lane(core: &Arc<Core>) -> Option<u16> {
    enter(core).ok().map(|guard| guard.id)
}

/// The lane of a dead holder, for what only the holder of a lane can do. The caller holds its lease, and settles it.
pub fn of_the_dead<'c>(core: &'c Core, lane: u16, scratch: &'c mut Scratch) -> LaneGuard<'c> {
    let outer = CURRENT.with(|current| current.replace((std::ptr::from_ref(core), lane)));
    let record = core.lane(lane);
    // SAFETY: the caller holds the lease, and no guard of it exists.
    let own = unsafe { record.own() };
    LaneGuard {
        id: lane,
        lane: record,
        own,
        scratch,
        arena: &core.arena,
        busy: std::ptr::null(),
        outer,
        counted: false,
    }
}

/// Does a call that this thread is in hold what another call might wait for?
fn holds_locks(lane: &Lane) -> bool {
    !lane.state().idle() || lane.intent.latches().next().is_some()
}

/// Calls `f` with mount and lane of the call that this thread is in, if it is in one.
pub fn with_current<T>(f: impl FnOnce(&Core, u16) -> T) -> Option<T> {
    let (core, lane) = CURRENT.with(Cell::get);
    // SAFETY: set while a guard lives, which borrows the mount; this thread takes it back when the guard goes.
    let core = unsafe { core.as_ref()? };
    Some(f(core, lane))
}

fn lease_lane(core: &Arc<Core>, process: u32) -> Result<Lease> {
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
fn prune(leases: &mut Vec<Box<Lease>>) {
    leases.retain(|l| l.busy.get() || (l.core.strong_count() > 0 && l.process == process::id()));
}

/// Gives the calling thread's lanes of this mount back: before it is unmounted.
pub fn leave(core: &Core) {
    // The thread may be ending: then its leases are given back anyway.
    let _ = LEASES.try_with(|leases| leases.borrow_mut().retain(|l| l.busy.get() || l.mount != core.id));
}

impl Drop for Lease {
    fn drop(&mut self) {
        ONLY.with(|only| only.set(std::ptr::null()));
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
