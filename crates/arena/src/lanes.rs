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
//!             L5  The kernel looks for a dead thread's mutexes by its number. A thread that is not its process's first and executes
//!                 another program has its process's number by then, and its lanes stay unmarked: who knows that it is gone marks
//!                 them in the kernel's place (`mark_dead`).
//! Why so      A closed socket comes falsely and too late, a pidfd misses threads and exec; the robust list is walked by the
//!             kernel itself whenever a thread ends.
//! Search      A thread starts where it found its last lane, at first at a place of its own, so leases seldom meet.

use std::cell::{Cell, UnsafeCell};
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

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
    /// Which word of a mutex has the number of its holder; [`NO_WORD`]: none that could be found.
    word: u32,
}

/// The C library keeps the holder's number where this one does not find it.
const NO_WORD: u32 = u32::MAX;

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

/// The calling thread looks for a lane from the `nth` on, as if it had found that one last. Where a thread looks at first depends on
/// its process's number; a rig whose runs must be the same each time says it.
pub fn look_first_at(nth: u32) {
    START.set(nth);
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
        // SAFETY: initialised above, and nobody else knows it yet.
        let word = unsafe { word_of_holder(arena.slice(slots, n as usize)[0].mutex.get()) };
        arena.alloc(LaneTable { slots, len: n as u32, word })
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

    /// Marks the lane of a thread that is gone without the kernel having marked it (L5): the next lease of it says `died`. False:
    /// somebody else holds it, or it is marked already, or the C library hides who holds a mutex.
    ///
    /// The caller must know that no thread of this number runs that could have leased it.
    ///
    /// # Panics
    /// If there is no such lane.
    pub fn mark_dead(&self, arena: &Arena, lane: LaneId, thread: u32) -> bool {
        if self.word == NO_WORD || thread & TID_MASK == 0 {
            return false;
        }
        let words = self.mutex(arena, lane).cast::<AtomicU32>();
        // SAFETY: `word` is one of the mutex's, which lives as long as the table; the C library, too, changes it atomically alone.
        let word = unsafe { &*words.add(self.word as usize) };
        let held = word.load(SeqCst);
        held & TID_MASK == thread
            && held & OWNER_DIED == 0
            && word.compare_exchange(held, held & WAITERS | OWNER_DIED, SeqCst, SeqCst).is_ok()
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

/// The parts of a robust mutex's word, as the kernel has them (`FUTEX_TID_MASK` and its kin).
const TID_MASK: u32 = 0x3fff_ffff;
const OWNER_DIED: u32 = 0x4000_0000;
const WAITERS: u32 = 0x8000_0000;

/// Which word of a mutex has the number of its holder. Found by holding it: C libraries differ.
///
/// # Safety
/// The mutex is initialised, and nobody else knows it.
unsafe fn word_of_holder(mutex: *mut libc::pthread_mutex_t) -> u32 {
    let me = rustix::thread::gettid().as_raw_nonzero().get() as u32;
    let words = (size_of::<libc::pthread_mutex_t>() / size_of::<u32>()) as u32;
    let read = |at: u32| {
        // SAFETY: within the mutex.
        unsafe { mutex.cast::<u32>().add(at as usize).read_volatile() }
    };
    // glibc keeps the number a second time, for itself: the one that a lock is taken by comes first in both libraries.
    // SAFETY: the caller's promise.
    let held = unsafe { libc::pthread_mutex_trylock(mutex) } == 0;
    let found = (0..words).find(|at| held && read(*at) == me);
    if held {
        // SAFETY: held by this thread.
        unsafe { libc::pthread_mutex_unlock(mutex) };
    }
    found.unwrap_or(NO_WORD)
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
