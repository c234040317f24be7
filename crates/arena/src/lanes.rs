//! Lanes: slots leased to threads, of which the kernel says when their owner died.
//!
//! State       A table of slots, each a robust process-shared mutex on a line of its own. Who holds the mutex has the lane. What
//!             a lane is for (its operation, its blocks) lies in the user's own record of the same number.
//! Invariants  L1  A lane has at most one living holder.
//!             L2  If the holder's thread ends in any way (exit, exec, kill, its process's death) while it holds the lane, then
//!                 the kernel marks the mutex, and the next lease of that lane says `died`.
//!             L3  Whoever gets `died` must bring the lane's record in order before it uses or releases the lane. If it dies too,
//!                 the next one gets `died` again.
//!             L4  A forked child holds none of its parent's lanes: its thread is another one.
//! Why so      A closed socket comes falsely and too late, a pidfd misses threads and exec; the robust list is walked by the
//!             kernel itself whenever a thread ends.
//! Search      A thread starts where it found its last lane, at first at a place of its own, so leases seldom meet.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use crate::arena::{Arena, Full};
use crate::ptr::Ptr;
use crate::shared::Shared;

/// Number of a lane, from 1. 0 is nobody.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(transparent)]
pub struct LaneId(pub u16);

impl LaneId {
    /// No lane.
    pub const NOBODY: LaneId = LaneId(0);

    /// Position of the lane's record in an array of all lanes' records.
    ///
    /// # Panics
    /// On [`NOBODY`](Self::NOBODY) when built with overflow checks.
    #[inline]
    pub fn index(self) -> usize {
        self.0 as usize - 1
    }
}

/// A lane that the calling thread now holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "a lane that is not released is dead when its thread ends"]
pub struct Lease {
    /// Which.
    pub lane: LaneId,
    /// Its last holder died with it: settle what it left before anything else (L3).
    pub died: bool,
}

/// Every lane is held by a living thread.
#[derive(thiserror::Error, Debug, Clone, Copy, PartialEq, Eq)]
#[error("all {lanes} lanes are in use: fewer threads at once, or more lanes")]
pub struct NoLane {
    /// Lanes of the table.
    pub lanes: u16,
}

/// The calling thread does not hold the lane that it wants to release.
#[derive(thiserror::Error, Debug, Clone, Copy, PartialEq, Eq)]
#[error("lane {} is not held by this thread: release it from the thread that leased it", lane.0)]
pub struct NotOwner {
    /// Which.
    pub lane: LaneId,
}

/// The lanes of an engine.
#[repr(C)]
pub struct LaneTable {
    slots: Ptr<Slot>,
    len: u32,
    padding: u32,
}

// SAFETY: plain numbers, written before the table is published.
unsafe impl Shared for LaneTable {}

#[repr(C, align(64))]
struct Slot {
    mutex: UnsafeCell<libc::pthread_mutex_t>,
}

// SAFETY: the mutex is process-shared: made to be used in place by any thread of any process that maps it. Its list pointers
// are the business of the holder's own C library and kernel; whoever takes it next overwrites them.
unsafe impl Sync for Slot {}
// SAFETY: as above.
unsafe impl Send for Slot {}
// SAFETY: as above; no Drop; its bytes are only ever given to the C library, which initialised them.
unsafe impl Shared for Slot {}

thread_local! {
    /// Where this thread looks first.
    static START: Cell<u32> = {
        static THREADS: AtomicU32 = AtomicU32::new(0);
        if cfg!(any(loom, shuttle)) {
            // There all threads of a model are one to the system; nothing may differ between runs.
            return Cell::new(0);
        }
        // ORDERING: Relaxed, any distribution is right.
        let nth = THREADS.fetch_add(1, Relaxed);
        Cell::new(nth.wrapping_add(std::process::id().wrapping_mul(0x9E37_79B1) >> 16))
    };
}

impl LaneTable {
    /// A table of `n` free lanes, at most 16,383 (what fits a cell's 14 bits).
    ///
    /// # Panics
    /// If `n` is 0 or larger than that.
    pub fn create(arena: &Arena, n: u16) -> Result<Ptr<LaneTable>, Full> {
        assert!((1..1 << 14).contains(&n), "1 to 16383 lanes");
        let slots = arena.alloc_slice(n as usize, |_| Slot { mutex: UnsafeCell::new(blank()) })?;
        for slot in arena.slice(slots, n as usize) {
            // SAFETY: in its final place, and nobody else knows it yet.
            unsafe { init_robust(slot.mutex.get()) };
        }
        arena.alloc(LaneTable { slots, len: n as u32, padding: 0 })
    }

    /// Number of lanes.
    pub fn len(&self) -> u16 {
        self.len as u16
    }

    /// Never: a table has at least one lane.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Gives the calling thread a lane that nobody living holds.
    pub fn lease(&self, arena: &Arena) -> Result<Lease, NoLane> {
        let start = START.get();
        for step in 0..self.len {
            let index = start.wrapping_add(step) % self.len;
            if let Some(lease) = self.lease_lane(arena, LaneId(index as u16 + 1)) {
                START.set(index);
                return Ok(lease);
            }
        }
        Err(NoLane { lanes: self.len() })
    }

    /// Gives the calling thread this very lane, unless a living thread (itself included) holds it. To find and settle the dead.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn lease_lane(&self, arena: &Arena, lane: LaneId) -> Option<Lease> {
        let mutex = self.mutex(arena, lane);
        // SAFETY: initialised by `create`, in place in the arena.
        match unsafe { libc::pthread_mutex_trylock(mutex) } {
            0 => Some(Lease { lane, died: false }),
            libc::EOWNERDEAD => {
                // SAFETY: we hold it. Consistent for the C library; L3 makes it so for the engine. Should we die before we have
                // settled, the kernel marks it again.
                let _ = unsafe { libc::pthread_mutex_consistent(mutex) };
                Some(Lease { lane, died: true })
            }
            _ => None,
        }
    }

    /// Gives the lane back. Only the thread that leased it can.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn release(&self, arena: &Arena, lane: LaneId) -> Result<(), NotOwner> {
        // SAFETY: initialised by `create`; robust mutexes check their owner.
        match unsafe { libc::pthread_mutex_unlock(self.mutex(arena, lane)) } {
            0 => Ok(()),
            _ => Err(NotOwner { lane }),
        }
    }

    fn mutex(&self, arena: &Arena, lane: LaneId) -> *mut libc::pthread_mutex_t {
        arena.slice(self.slots, self.len as usize)[lane.index()].mutex.get()
    }
}

fn blank() -> libc::pthread_mutex_t {
    libc::PTHREAD_MUTEX_INITIALIZER
}

/// # Safety
/// `mutex` is in its final place and unknown to others.
unsafe fn init_robust(mutex: *mut libc::pthread_mutex_t) {
    let mut attr = MaybeUninit::uninit();
    // SAFETY: the attribute is initialised by the first call, the mutex by the last. None of them can fail on Linux with these
    // constants; glibc and musl allocate nothing here.
    unsafe {
        libc::pthread_mutexattr_init(attr.as_mut_ptr());
        libc::pthread_mutexattr_setpshared(attr.as_mut_ptr(), libc::PTHREAD_PROCESS_SHARED);
        libc::pthread_mutexattr_setrobust(attr.as_mut_ptr(), libc::PTHREAD_MUTEX_ROBUST);
        libc::pthread_mutex_init(mutex, attr.as_ptr());
        libc::pthread_mutexattr_destroy(attr.as_mut_ptr());
    }
}
