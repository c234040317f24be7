//! The lane that a thread works with.
//!
//! A thread leases a lane at its first call. It keeps the lane until it ends, or until the mount is gone.
//! Calls inside calls (a callback that uses the file system, a signal handler) take a second lane.
//!
//! State       the thread's leases; and [`CurrentCall`], the data that every call needs, found by one access to thread-local memory: in a
//!             loaded library each such access is a function call.
//! Invariants  I1  one [`LaneGuard`] at a time has a lane: `busy` is the thread's own word, and is set before anything else.
//!             I2  a process returns lanes only while it holds its process slot. When a process drops its last `Arc<Core>` of a
//!                 mount, it leaves the process slot, and lanes that its threads still have of that mount are settled as dead ones.
//!             I3  a forked child finds its parent's leases in its memory; it neither uses nor releases them.
//!             I4  a lease of a dead holder is settled before it is used (L3 of the arena's `lanes`).
//!             I5  `only` is the thread's lease if it has exactly one, and null while its leases change.
//! Orderings   O1  `inside` is stored before `ended` and `reclaimer` are loaded, in program order only. A thread that ends the file system,
//!                 or reclaims from the lane, stores that word, has the kernel execute a barrier in every running thread (membarrier), then
//!                 loads `inside`.

mod life;
mod reclaimers;

use crate::ids::LANES;
use crate::lane_counters::Kind;
use crate::process;
use crate::state::core::Core;
use crate::state::lane::{Lane, LaneLocal};
use crate::state::scratch::Scratch;
use heddle_arena::sync::fence_of_barrier;
use heddle_arena::{Arena, LaneId};
use heddle_vfs::{Error, Result};
#[cfg(shuttle)]
use shuttle::thread_local;
use std::cell::{Cell, RefCell, UnsafeCell};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;
use std::sync::{Arc, Weak};

pub use life::{held_blocks, leave, park, unpark};
pub use reclaimers::{LANE_BITS, exclude_reclaimers, is_void, reclaimer_lane, withdraw_reclaims};

/// Numbers of all lanes that were ever leased.
pub fn lanes(core: &Core) -> impl Iterator<Item = u16> + use<> {
    1..=(core.root().lanes_used.load(SeqCst) as u16).min(LANES)
}

struct Lease {
    mount: u64,
    /// The process that leased it (I3).
    process: u32,
    lane: LaneId,
    leased: heddle_arena::Lease,
    busy: Cell<bool>,
    scratch: UnsafeCell<Scratch>,
    core: Weak<Core>,
}

thread_local! {
    // Boxed: a guard points to its lease while others are added.
    #[allow(clippy::vec_box)]
    static LEASES: RefCell<Vec<Box<Lease>>> = const { RefCell::new(Vec::new()) };

    static CURRENT_CALL: CurrentCall = const {
        CurrentCall { core: Cell::new(std::ptr::null()), lane: Cell::new(0), only: Cell::new(std::ptr::null()) }
    };
}

/// The thread's words. They have no destructor, so they live as long as the thread.
struct CurrentCall {
    /// The innermost call of this thread: its mount and lane; null: none.
    core: Cell<*const Core>,
    lane: Cell<u16>,
    /// The lease of I5.
    only: Cell<*const Lease>,
}

impl CurrentCall {
    #[inline]
    fn of_this_thread() -> *const CurrentCall {
        CURRENT_CALL.with(std::ptr::from_ref)
    }

    /// Sets the innermost call. Returns the one before.
    #[inline]
    fn enter(&self, core: *const Core, lane: u16) -> (*const Core, u16) {
        (self.core.replace(core), self.lane.replace(lane))
    }
}

/// A lane in use by one call.
pub struct LaneGuard<'c> {
    /// Its number, from 1.
    pub id: u16,
    /// Its part that others read.
    pub lane: &'c Lane,
    /// Its part that only the holder uses.
    pub own: &'c mut LaneLocal,
    /// Buffers of the process.
    pub scratch: &'c mut Scratch,
    arena: &'c Arena,
    busy: *const Cell<bool>,
    current_call: *const CurrentCall,
    outer: (*const Core, u16),
    /// True if it counts as a call.
    counted: bool,
}

impl Drop for LaneGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        // Even if tidying up the lane panics, the thread leaves it.
        let _left =
            Leaving { lane: self.lane, busy: self.busy, current_call: self.current_call, outer: self.outer };
        if std::thread::panicking() {
            return self.tidy_up_in_panic();
        }
        self.tidy_up();
    }
}

impl LaneGuard<'_> {
    #[inline(always)]
    fn tidy_up(&mut self) {
        if self.counted {
            self.lane.counts.ends();
        }
        self.lane.note_held(self.own);
        self.lane.intent.logged();
        self.lane.intent.forget_dirs();
        self.own.rest_chains(self.arena, self.id);
    }

    /// Whatever made the call panic may panic again, and a second panic would end the process.
    #[cold]
    #[inline(never)]
    fn tidy_up_in_panic(&mut self) {
        let _again = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.tidy_up()));
    }
}

/// Ends the call, for this thread and for others.
struct Leaving<'c> {
    lane: &'c Lane,
    busy: *const Cell<bool>,
    current_call: *const CurrentCall,
    outer: (*const Core, u16),
}

impl Drop for Leaving<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: words of this thread, which live as long as it; null in models.
        if let Some(current_call) = unsafe { self.current_call.as_ref() } {
            current_call.enter(self.outer.0, self.outer.1);
        }
        if self.busy.is_null() {
            // The lane of a dead holder (`of_the_dead`).
            return;
        }
        // ORDERING: Release, after all of the call.
        self.lane.intent.inside.store(0, Release);
        // SAFETY: a busy lease is not removed (`prune`), its box does not move, and only this thread owns it.
        unsafe { (*self.busy).set(false) };
    }
}

#[cfg(loom)]
impl<'c> LaneGuard<'c> {
    /// A lane for a thread of a model. The model deals one to each of its threads; for the operating system
    /// all are one thread.
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
            current_call: std::ptr::null(),
            outer: (std::ptr::null(), 0),
            counted: false,
        }
    }

    /// As above, for models in which calls may be refused and lanes are reclaimed from.
    pub fn called(
        core: &'c Core,
        id: u16,
        busy: &'c Cell<bool>,
        scratch: &'c mut Scratch,
    ) -> Option<LaneGuard<'c>> {
        step_inside(core, core.lane(id)).then(|| LaneGuard::dealt(core, id, busy, scratch))
    }
}

/// Takes a lane of this mount for the calling thread.
///
/// # Errors
/// [`Error::NoMemory`] if more threads than lanes are inside; [`Error::Unmounted`] after the mount
/// has ended; [`Error::WouldDeadlock`] in a signal handler, if the interrupted call holds cells or a latch.
pub fn enter(core: &Arc<Core>) -> Result<LaneGuard<'_>> {
    enter_as(core, None)
}

/// As [`enter`]; until the guard is dropped, it counts as one call of this kind. The kind is a parameter so
/// that the guard is moved only once: a second move of so many words costs as much as a small read.
#[inline(always)]
pub fn enter_for(core: &Arc<Core>, kind: Kind) -> Result<LaneGuard<'_>> {
    enter_as(core, Some(kind))
}

#[inline(always)]
fn enter_as(core: &Arc<Core>, kind: Option<Kind>) -> Result<LaneGuard<'_>> {
    let current_call = CurrentCall::of_this_thread();
    // SAFETY: words of this thread; a lease that `only` names is in its box (I5).
    let only = unsafe { (*current_call).only.get().as_ref() };
    if let Some(lease) = only
        && lease.mount == core.id
        && !lease.busy.get()
        && lease.process == process::generation()
    {
        lease.busy.set(true);
        return begin(core, lease, current_call, kind);
    }
    let lease = find_lease(core)?;
    // SAFETY: it is busy, so it is not removed (`prune`), and its box does not move.
    begin(core, unsafe { &*lease }, current_call, kind)
}

/// Marks the lane as inside a call (O1). Returns false if the file system has ended.
#[inline(always)]
fn step_inside(core: &Core, lane: &Lane) -> bool {
    lane.intent.inside.store(1, Relaxed); // ORDERING: Relaxed, O1.
    fence_of_barrier();
    // ORDERING: Relaxed, O1.
    if core.root().ended.load(Relaxed) != 0 {
        lane.intent.inside.store(0, Relaxed); // ORDERING: Relaxed, nothing was done.
        return false;
    }
    // ORDERING: Acquire, O1; the reclaimer's stores are seen.
    if lane.intent.reclaimer.load(Acquire) != 0 {
        exclude_reclaimers(core, lane);
    }
    true
}

/// Begins a call with a lease that has just been made busy.
#[inline(always)]
fn begin<'c>(
    core: &'c Arc<Core>,
    lease: &Lease,
    current_call: *const CurrentCall,
    kind: Option<Kind>,
) -> Result<LaneGuard<'c>> {
    let lane = core.lane(lease.lane.0);
    // After `busy`: a signal handler that runs in between takes another lane, and leaves `inside` alone.
    compiler_fence(SeqCst);
    if !step_inside(core, lane) {
        lease.busy.set(false);
        return Err(Error::Unmounted);
    }
    if let Some(kind) = kind {
        lane.counts.begins(kind);
    }
    Ok(LaneGuard {
        id: lease.lane.0,
        lane,
        // SAFETY: I1: this thread holds the lease and it was not busy.
        own: unsafe { lane.own() },
        // SAFETY: as above.
        scratch: unsafe { &mut *lease.scratch.get() },
        arena: &core.arena,
        busy: &lease.busy,
        current_call,
        // SAFETY: words of this thread.
        outer: unsafe { (*current_call).enter(Arc::as_ptr(core), lease.lane.0) },
        counted: kind.is_some(),
    })
}

/// Finds or takes a lease of this mount that is not busy, and makes it busy.
#[cold]
#[inline(never)]
fn find_lease(core: &Arc<Core>) -> Result<*const Lease> {
    let found = LEASES.try_with(|leases| {
        // If it is borrowed already, a signal has interrupted this very function.
        let mut leases = leases.try_borrow_mut().map_err(|_| Error::WouldDeadlock)?;
        let process = process::generation();
        let mine = |l: &Lease| l.mount == core.id && l.process == process;
        let free = leases.iter().position(|l| mine(l) && !l.busy.get());
        if leases.iter().any(|l| mine(l) && l.busy.get() && holds_locks(core.lane(l.lane.0))) {
            return Err(Error::WouldDeadlock);
        }
        let at = match free {
            Some(at) => at,
            None => {
                change(&mut leases, |leases| {
                    life::prune(leases);
                    leases.push(Box::new(life::lease_lane(core, process)?));
                    Ok(())
                })?;
                leases.len() - 1
            }
        };
        leases[at].busy.set(true);
        Ok(std::ptr::from_ref(&*leases[at]))
    });
    // The thread is ending, and has returned its lanes.
    found.unwrap_or(Err(Error::NoMemory))
}

/// Changes the thread's leases (I5).
#[allow(clippy::vec_box)]
fn change<T>(leases: &mut Vec<Box<Lease>>, with: impl FnOnce(&mut Vec<Box<Lease>>) -> T) -> T {
    let only = |lease| CURRENT_CALL.with(|current_call| current_call.only.set(lease));
    only(std::ptr::null());
    compiler_fence(SeqCst);
    let done = with(leases);
    if let [one] = leases.as_slice() {
        only(&**one);
    }
    done
}

/// A call without a lane of its own, counted in the lane that the thread has.
pub struct Counted<'c> {
    lane: &'c Lane,
}

impl Drop for Counted<'_> {
    #[inline]
    fn drop(&mut self) {
        self.lane.counts.ends();
    }
}

/// Counts a call without a lane, until the result is dropped. If the thread cannot have a lane (too many
/// threads, an interrupted call), the call is not counted.
///
/// # Errors
/// As [`Core::still_mounted`].
#[inline]
pub fn counted(core: &Arc<Core>, kind: Kind) -> Result<Option<Counted<'_>>> {
    core.still_mounted()?;
    let Some(lane) = leased(core).or_else(|| first_lane(core)) else { return Ok(None) };
    let lane = core.lane(lane);
    lane.counts.begins(kind);
    Ok(Some(Counted { lane }))
}

/// The lane that this thread has leased.
#[inline]
fn leased(core: &Core) -> Option<u16> {
    let mine = |l: &Lease| l.mount == core.id && l.process == process::generation();
    // SAFETY: words of this thread; a lease that `only` names is in its box (I5).
    match unsafe { (*CurrentCall::of_this_thread()).only.get().as_ref() } {
        Some(only) => mine(only).then_some(only.lane.0),
        None => {
            let one = |leases: &RefCell<Vec<Box<Lease>>>| {
                let leases = leases.try_borrow().ok()?;
                leases.iter().find(|l| mine(l)).map(|l| l.lane.0)
            };
            LEASES.try_with(one).ok().flatten()
        }
    }
}

/// Leases a lane before the thread's first call. If none is free, the call finds that again.
#[inline]
pub fn ahead(core: &Arc<Core>) {
    if leased(core).is_none() {
        first_lane(core);
    }
}

/// Leases a lane.
#[cold]
fn first_lane(core: &Arc<Core>) -> Option<u16> {
    enter(core).ok().map(|guard| guard.id)
}

/// A guard of a dead holder's lane, for work that only a lane's holder can do. The caller holds the lease,
/// and settles the lane.
pub fn of_the_dead<'c>(core: &'c Core, lane: u16, scratch: &'c mut Scratch) -> LaneGuard<'c> {
    let current_call = CurrentCall::of_this_thread();
    // SAFETY: words of this thread.
    let outer = unsafe { (*current_call).enter(core, lane) };
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
        current_call,
        outer,
        counted: false,
    }
}

/// Returns true if the call of this lane has noted cells or a latch, for which another call might wait.
/// Buckets are checked when they are locked ([`is_interrupted`]).
fn holds_locks(lane: &Lane) -> bool {
    !lane.state().idle() || lane.intent.latches().next().is_some()
}

/// Calls `f` with the lanes of this thread's interrupted calls, until it returns true.
#[cold]
fn any_interrupted(core: &Core, mut f: impl FnMut(u16) -> bool) -> bool {
    let now = with_current(|_, lane| lane).unwrap_or(0);
    let mut outer = |l: &Lease| {
        l.mount == core.id
            && l.busy.get()
            && l.process == process::generation()
            && l.lane.0 != now
            && f(l.lane.0)
    };
    let among = |leases: &RefCell<Vec<Box<Lease>>>| {
        leases.try_borrow().is_ok_and(|leases| leases.iter().any(|lease| outer(lease)))
    };
    LEASES.try_with(among).unwrap_or(false)
}

/// Returns true if this is the lane of an interrupted call of this thread. That call cannot continue before
/// the present one ends.
pub fn is_interrupted(core: &Core, lane: u16) -> bool {
    any_interrupted(core, |outer| outer == lane)
}

/// Returns true if the present call has interrupted another one.
pub fn has_interrupted(core: &Core) -> bool {
    any_interrupted(core, |_| true)
}

/// Returns true if the present call has interrupted one that may have locked buckets.
pub fn has_interrupted_names(core: &Core) -> bool {
    any_interrupted(core, |outer| core.lane(outer).intent.dirs().next().is_some())
}

/// Returns true if the calling thread is inside a call, of any mount: a signal handler asks.
pub fn is_inside() -> bool {
    with_current(|_, _| ()).is_some()
}

/// Calls `f` with mount and lane of the thread's present call, if there is one.
pub fn with_current<T>(f: impl FnOnce(&Core, u16) -> T) -> Option<T> {
    let (core, lane) = CURRENT_CALL.with(|current_call| (current_call.core.get(), current_call.lane.get()));
    // SAFETY: set while a guard lives, which borrows the mount; this thread clears it when the guard is
    // dropped.
    let core = unsafe { core.as_ref()? };
    Some(f(core, lane))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
