//! The present activity of the calling thread.
//!
//! State       `ThisThread`: the thread's words, without a destructor, so that a signal handler may use them at any time (`words`
//!             finds them). And a `Record` that other threads read: the file that it uses, and its counts.
//! Invariants  T1  a file named in a record's `uses` is not freed. A thread that takes a file stores it there and checks the table again.
//!             T2  records are never freed; the record of an ended thread is reused.
//! Orderings   O1  `uses` is stored and the table loaded again, in program order only. A closing thread removes the file from the
//!                 table, has a barrier executed in every thread (`barrier`), then loads all `uses`. One of the two sees the other.
//!                 Without membarrier(2) the served call executes a SeqCst fence between its store and its load instead.
//!             O3  `by_number` is stored and the table loaded again; a closing thread removes the file from the table and loads all
//!                 `by_number`; all of it is SeqCst. One of the two sees the other. This is rare, so it does not need `barrier`.
//!             O2  a record is taken with a locked instruction before its first use: so a closing thread can ignore other threads as
//!                 long as none of them has a record.

use crate::cancellation;
use crate::counts::Counts;
use crate::descriptor::Descriptor;
use crate::{handlers, memory, waiting_signals, words};
use heddle_bypass::pause;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU32, Ordering::SeqCst, compiler_fence};

/// A thread's record. Only its own thread writes to its lines.
#[repr(align(128))]
pub struct Record {
    /// The file that this thread is using.
    pub uses: AtomicPtr<Descriptor>,
    /// Number of nested uses of that file by its number: no thread closes the number meanwhile.
    by_number: AtomicU32,
    /// Number of such uses that have ended, the nested ones not counted.
    by_number_ended: AtomicU32,
    /// Its counts.
    pub counts: Counts,
    taken: AtomicBool,
    next: AtomicPtr<Record>,
}

static RECORDS: AtomicPtr<Record> = AtomicPtr::new(null_mut());

/// The thread's own words. All zeros is an idle thread.
#[repr(C, align(64))]
pub struct ThisThread {
    record: Cell<*const Record>,
    /// Bits: [`BUSY`], [`ASYNCHRONOUS`].
    state: Cell<u8>,
    /// Number of signal handlers that were entered (`handlers`).
    pub in_handler: Cell<u32>,
    /// Positive during a vfork: in the child, which shares this memory, the process number differs. Negative:
    /// a child shares this memory and runs beside this thread.
    pub vfork_in: Cell<i32>,
    /// True: the child shares the signal actions too.
    pub shares_actions: Cell<bool>,
    /// True during a fork by such a child: the table does not describe the forked process.
    pub forks_for_another: Cell<bool>,
    /// Number of calls until the file size limit is checked again.
    pub limitless_for: Cell<u32>,
    /// True: signals arrived while it was busy, and wait.
    pub waiting: Cell<bool>,
}

const _: () = assert!(size_of::<ThisThread>() == words::LINE && align_of::<ThisThread>() == words::LINE);

/// Inside the engine or the table: signal handlers wait.
const BUSY: u8 = 1;
/// The program has set the asynchronous cancellation type.
const ASYNCHRONOUS: u8 = 2;

thread_local! {
    static ENDS: Ends = const { Ends };
}

/// Returns the record when the thread ends.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        this_thread().give_record_back();
    }
}

/// The calling thread's words; they live as long as the thread.
#[inline(always)]
pub fn this_thread() -> &'static ThisThread {
    // SAFETY: the thread's own memory, which lives as long as it, has this size and alignment, and is zero at
    // first. Its fields are cells, so no other thread gets a reference to it.
    unsafe { &*words::of_this_thread().cast::<ThisThread>() }
}

impl ThisThread {
    /// Returns true if calls of this thread may be served now.
    #[inline]
    pub fn may_serve(&self) -> bool {
        !self.is_busy() && !self.is_vfork_child() && !self.is_in_handler()
    }

    /// Returns true in a handler whose calls are counted.
    pub fn may_count(&self) -> bool {
        self.is_in_handler() && !self.is_busy() && !self.is_vfork_child()
    }

    /// Returns true if it is inside the engine or the table.
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.state.get() & BUSY != 0
    }

    /// Sets the cancellation type.
    pub fn set_asynchronous(&self, asynchronous: bool) {
        let others = self.state.get() & !ASYNCHRONOUS;
        self.state.set(others | if asynchronous { ASYNCHRONOUS } else { 0 });
    }

    /// Clears the busy bit, after a fork in which [`Busy`] was forgotten.
    pub fn leave(&self) {
        if self.is_busy() {
            drop(Busy(()));
        }
    }

    /// Returns true in the child of a vfork, which runs in its parent's memory.
    #[inline]
    pub fn is_vfork_child(&self) -> bool {
        self.vfork_in.get() != 0 && self.is_vfork_child_still()
    }

    #[cold]
    fn is_vfork_child_still(&self) -> bool {
        let parent = self.vfork_in.get();
        if process() != parent.abs() {
            return true;
        }
        if parent > 0 {
            self.vfork_in.set(0);
        }
        false
    }

    /// Returns true in such a child with signal actions of its own.
    pub fn has_actions_of_its_own(&self) -> bool {
        self.is_vfork_child() && !self.shares_actions.get()
            || FOREIGN_ACTIONS.load(SeqCst) && is_beside_in_this_memory()
    }

    /// Returns true if a signal handler is running, or a fork, whose functions are under the same rules. A handler left by longjmp does
    /// not run.
    #[inline]
    pub fn is_in_handler(&self) -> bool {
        self.in_handler.get() != 0 && self.is_in_handler_still()
    }

    #[cold]
    #[inline(never)]
    fn is_in_handler_still(&self) -> bool {
        let frame = 0_u8;
        handlers::is_one_running(&self.in_handler, (&raw const frame).addr())
    }

    /// Makes a call that counts as a signal handler with this frame, inside code whose frame is at `inside`.
    pub fn as_handler<T>(&self, frame: handlers::Frame, inside: usize, call: impl FnOnce() -> T) -> T {
        let (had_record, outer) = (self.has_record(), handlers::enter(&self.in_handler, frame, inside));
        let done = call();
        handlers::leave(&self.in_handler, &outer);
        if !had_record {
            self.give_record_back();
        }
        done
    }

    /// The thread's record; `None`: there is no memory for one.
    #[inline]
    pub fn record(&self) -> Option<&'static Record> {
        // SAFETY: T2.
        unsafe { self.record.get().as_ref() }.or_else(|| self.first_record())
    }

    #[cold]
    fn first_record(&self) -> Option<&'static Record> {
        if self.in_handler.get() == 0 {
            // At the end of a thread no destructor can be registered any more: the record stays taken.
            let _ = ENDS.try_with(|_| ());
        }
        let record = free_record().or_else(new_records)?;
        self.record.set(record);
        Some(record)
    }

    /// At the end of a handler: returns a record that it took without a destructor (which would need memory
    /// from the heap).
    pub fn give_record_back(&self) {
        // SAFETY: T2.
        if let Some(record) = unsafe { self.record.replace(std::ptr::null()).as_ref() } {
            record.uses.store(null_mut(), SeqCst);
            record.taken.store(false, SeqCst);
        }
    }

    /// Returns true if the thread has a record.
    pub fn has_record(&self) -> bool {
        !self.record.get().is_null()
    }
}

/// The process whose memory a child with words of its own shares; 0: there is none.
static SHARED_FROM: AtomicI32 = AtomicI32::new(0);
/// True: such a child does not share the signal actions.
static FOREIGN_ACTIONS: AtomicBool = AtomicBool::new(false);

/// Called before such a child is made.
pub fn note_child_in_this_memory(shares_actions: bool) {
    let _first = SHARED_FROM.compare_exchange(0, process(), SeqCst, SeqCst);
    if !shares_actions {
        FOREIGN_ACTIONS.store(true, SeqCst);
    }
}

/// Returns true in such a child.
pub fn is_beside_in_this_memory() -> bool {
    let parent = SHARED_FROM.load(SeqCst);
    parent != 0 && parent != process()
}

fn process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Returns true if another thread has a record.
pub fn others() -> bool {
    let own = this_thread().record.get();
    records().any(|r| !std::ptr::eq(r, own) && r.taken.load(SeqCst))
}

/// All records.
pub fn records() -> impl Iterator<Item = &'static Record> {
    let mut at = RECORDS.load(SeqCst);
    std::iter::from_fn(move || {
        // SAFETY: T2.
        let record = unsafe { at.as_ref() }?;
        at = record.next.load(SeqCst);
        Some(record)
    })
}

fn free_record() -> Option<&'static Record> {
    records().find(|r| r.taken.compare_exchange(false, true, SeqCst, SeqCst).is_ok())
}

/// While this lives, no thread closes or replaces the number by which the thread uses its file, if the table
/// still has it (O3).
pub struct ByNumber(&'static Record);

impl ByNumber {
    /// Begins the use.
    pub fn enter(record: &'static Record) -> ByNumber {
        record.by_number.store(record.by_number.load(SeqCst) + 1, SeqCst);
        ByNumber(record)
    }
}

impl Drop for ByNumber {
    fn drop(&mut self) {
        let left = self.0.by_number.load(SeqCst) - 1;
        self.0.by_number.store(left, SeqCst);
        if left == 0 {
            self.0.by_number_ended.store(self.0.by_number_ended.load(SeqCst).wrapping_add(1), SeqCst);
        }
    }
}

/// Waits until each use of this file by number in another thread has ended (O3). Later ones are by its other numbers. If the file was freed
/// and another one has its memory, there is nothing to wait for.
pub fn nobody_uses_numbers_of(descriptor: *const Descriptor) {
    let own = this_thread().record.get();
    let uses = |r: &Record| r.by_number.load(SeqCst) != 0 && r.uses.load(SeqCst).cast_const() == descriptor;
    for record in records().filter(|r| !std::ptr::eq(*r, own) && uses(r)) {
        let ended = record.by_number_ended.load(SeqCst);
        let mut looks = 0;
        while uses(record) && record.by_number_ended.load(SeqCst) == ended {
            looks += 1;
            pause(looks);
        }
    }
}

/// Allocates a page of records and takes one of them. Not from the heap, since a handler may be the first to
/// need one.
fn new_records() -> Option<&'static Record> {
    const BYTES: usize = 4096;
    let first = memory::map_zeroed(BYTES)?.cast::<Record>();
    for at in 0..BYTES / size_of::<Record>() {
        // SAFETY: within the page; zeros are a free record without counts; never unmapped (T2).
        let record = unsafe { &*first.add(at) };
        record.taken.store(at == 0, SeqCst);
        while let Err(now) = RECORDS.compare_exchange(
            record.next.load(SeqCst),
            std::ptr::from_ref(record).cast_mut(),
            SeqCst,
            SeqCst,
        ) {
            record.next.store(now, SeqCst);
        }
    }
    // SAFETY: as above.
    unsafe { first.as_ref() }
}

/// In a forked child: the other threads do not exist, and there are no counts yet.
pub fn clear_other_threads() {
    SHARED_FROM.store(0, SeqCst);
    FOREIGN_ACTIONS.store(false, SeqCst);
    let own = this_thread().record.get();
    for record in records() {
        record.counts.clear();
        record.uses.store(null_mut(), SeqCst);
        record.by_number.store(0, SeqCst);
        if !std::ptr::eq(record, own) {
            record.taken.store(false, SeqCst);
        }
    }
}

/// While this lives, signal handlers wait (P3).
pub struct Busy(());

impl Busy {
    /// Becomes busy; `None` if the thread is busy already.
    #[inline]
    pub fn enter() -> Option<Busy> {
        let this = this_thread();
        let state = this.state.get();
        if state & BUSY != 0 {
            return None;
        }
        this.state.set(state | BUSY);
        if state != 0 {
            cancellation::defer();
        }
        Some(Busy(()))
    }
}

impl Drop for Busy {
    #[inline]
    fn drop(&mut self) {
        let this = this_thread();
        let state = this.state.get() & !BUSY;
        this.state.set(state);
        // A handler in this thread sets `waiting` only while the thread is busy, or signals wait already.
        compiler_fence(SeqCst);
        if this.waiting.get() {
            waiting_signals::deliver(&this.waiting);
        }
        if state != 0 {
            cancellation::restore_asynchronous();
        }
    }
}
