//! What the calling thread is doing.
//!
//! State       `Here`: words of the thread, without a destructor, so that a handler of a signal may touch them at any time (`words`
//!             finds them); and a `Record` of it that other threads read: which file it uses, what it has counted.
//! Invariants  T1  a file named in a record's `uses` is not given back; who takes one writes it there and looks again.
//!             T2  records are never freed; that of a thread that has ended is used again.
//! Orderings   O1  `uses` is stored and the table looked at again, in program order only: who closes takes the file out of the table, has
//!                 a barrier put into every thread (`barrier`), then looks at all `uses`. One of the two sees the other.
//!             O3  `by_number` is stored and the table looked at again, whoever closes takes the file out of the table and looks at all
//!                 `by_number`, all of it SeqCst: one of the two sees the other. It is rare, and has no use for `barrier`.
//!             O2  a record is taken with a locked instruction before its first use: who closes need not think of others while
//!                 nobody else has one.

use crate::cancellation;
use crate::counts::Counts;
use crate::descriptor::Descriptor;
use crate::{memory, waiting_signals, words};
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering::SeqCst, compiler_fence};

/// See the module. Only its own thread writes to its lines.
#[repr(align(128))]
pub struct Record {
    /// The file this thread is using.
    pub uses: AtomicPtr<Descriptor>,
    /// What it does with that file by its number, nested: nobody closes the number meanwhile.
    by_number: AtomicU32,
    /// What it has counted.
    pub counts: Counts,
    taken: AtomicBool,
    next: AtomicPtr<Record>,
}

static RECORDS: AtomicPtr<Record> = AtomicPtr::new(null_mut());

/// The thread's own words. All zeros is a thread that does nothing.
#[repr(C, align(64))]
pub struct Here {
    record: Cell<*const Record>,
    /// [`BUSY`], [`ASYNCHRONOUS`].
    state: Cell<u8>,
    /// Handlers that are running, and where the last one's frame is.
    pub in_handler: Cell<u32>,
    /// A vfork is under way: in the child, which shares this memory, the process has another number. Negative: a child shares this memory
    /// and runs beside this thread.
    pub vfork_in: Cell<i32>,
    /// It shares the actions of signals too.
    pub shares_actions: Cell<bool>,
    /// A fork is under way of such a child: what the table says is not the fork's.
    pub forks_for_another: Cell<bool>,
    /// Calls until a limit of the file size is looked for again.
    pub limitless_for: Cell<u32>,
    /// Address of the handler's frame.
    pub handler_frame: Cell<usize>,
    /// Where the stack begins that the handler runs on, if that is one of its own; 0: the thread's.
    pub handler_stack: Cell<usize>,
    /// Signals that came while it was busy.
    pub waiting: Cell<usize>,
}

const _: () = assert!(size_of::<Here>() == words::BYTES && align_of::<Here>() == words::BYTES);

/// Inside the engine or the table: handlers wait.
const BUSY: u8 = 1;
/// The program lets the thread be cancelled at any instruction.
const ASYNCHRONOUS: u8 = 2;

thread_local! {
    static ENDS: Ends = const { Ends };
}

/// Gives the record back when the thread ends.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        here().give_record_back();
    }
}

/// The calling thread's words; they stay with the thread.
#[inline(always)]
pub fn here() -> &'static Here {
    // SAFETY: the thread's own, there as long as it, of this size and alignment, and zeros at first; its fields are cells, so no other
    // thread gets a reference to it.
    unsafe { &*words::of_this_thread().cast::<Here>() }
}

impl Here {
    /// May calls of this thread be served now?
    #[inline]
    pub fn may_serve(&self) -> bool {
        !self.is_busy() && !self.is_vfork_child() && !self.is_in_handler()
    }

    /// Is it inside the engine or the table?
    #[inline]
    pub fn is_busy(&self) -> bool {
        self.state.get() & BUSY != 0
    }

    /// Of which type its cancellation is.
    pub fn set_asynchronous(&self, asynchronous: bool) {
        let others = self.state.get() & !ASYNCHRONOUS;
        self.state.set(others | if asynchronous { ASYNCHRONOUS } else { 0 });
    }

    /// Not busy any more, after a fork in which [`Busy`] was forgotten.
    pub fn leave(&self) {
        if self.is_busy() {
            drop(Busy(()));
        }
    }

    /// Is this the child of a vfork, in its parent's memory?
    #[inline]
    pub fn is_vfork_child(&self) -> bool {
        self.vfork_in.get() != 0 && self.is_vfork_child_still()
    }

    #[cold]
    fn is_vfork_child_still(&self) -> bool {
        let parent = self.vfork_in.get();
        if rustix::process::getpid().as_raw_nonzero().get() != parent.abs() {
            return true;
        }
        if parent > 0 {
            self.vfork_in.set(0);
        }
        false
    }

    /// Is it such a child, with actions of signals of its own?
    pub fn has_actions_of_its_own(&self) -> bool {
        self.is_vfork_child() && !self.shares_actions.get()
    }

    /// Is a handler of a signal running? One that was left by longjmp is not: what runs now lies above its frame, or on another stack.
    #[inline]
    pub fn is_in_handler(&self) -> bool {
        self.in_handler.get() != 0 && self.is_in_handler_still()
    }

    #[cold]
    #[inline(never)]
    fn is_in_handler_still(&self) -> bool {
        let frame = 0_u8;
        let still =
            (self.handler_stack.get()..=self.handler_frame.get()).contains(&(&raw const frame).addr());
        if !still {
            self.in_handler.set(0);
        }
        still
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
            // At the end of a thread there is no destructor to be had any more: the record stays taken.
            let _ = ENDS.try_with(|_| ());
        }
        let record = free_record().or_else(new_records)?;
        self.record.set(record);
        Some(record)
    }

    /// A handler ends: what it took without a destructor (which takes memory of the heap) it does not keep.
    pub fn give_record_back(&self) {
        // SAFETY: T2.
        if let Some(record) = unsafe { self.record.replace(std::ptr::null()).as_ref() } {
            record.uses.store(null_mut(), SeqCst);
            record.taken.store(false, SeqCst);
        }
    }

    /// Has the thread a record?
    pub fn has_record(&self) -> bool {
        !self.record.get().is_null()
    }
}

/// Does another thread than the calling one have a record?
pub fn others() -> bool {
    let own = here().record.get();
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

/// While this lives, nobody closes or replaces the number by which the thread uses its file, if the table has it still (O3).
pub struct ByNumber(&'static Record);

impl ByNumber {
    /// From now on.
    pub fn enter(record: &'static Record) -> ByNumber {
        record.by_number.store(record.by_number.load(SeqCst) + 1, SeqCst);
        ByNumber(record)
    }
}

impl Drop for ByNumber {
    fn drop(&mut self) {
        self.0.by_number.store(self.0.by_number.load(SeqCst) - 1, SeqCst);
    }
}

/// Waits until no other thread uses this file by number (O3). It may be gone, and another in its place: then this waits for nothing.
pub fn nobody_uses_numbers_of(descriptor: *const Descriptor) {
    let own = here().record.get();
    let uses = |r: &Record| r.by_number.load(SeqCst) != 0 && r.uses.load(SeqCst).cast_const() == descriptor;
    let mut looks = 0;
    while records().any(|r| !std::ptr::eq(r, own) && uses(r)) {
        looks += 1;
        pause(looks);
    }
}

/// Lets other threads go on, the longer the more often.
pub fn pause(looks: u32) {
    if looks < 100 {
        rustix::thread::sched_yield();
    } else {
        // A call of the kernel's is under way.
        let _ = rustix::thread::nanosleep(&rustix::thread::Timespec { tv_sec: 0, tv_nsec: 50_000 });
    }
}

/// A page of records, one of them taken; not from the heap, for a handler may be the first to need one.
fn new_records() -> Option<&'static Record> {
    const BYTES: usize = 4096;
    let first = memory::pages(BYTES)?.cast::<Record>();
    for at in 0..BYTES / size_of::<Record>() {
        // SAFETY: within the page; zeros are a free record that has counted nothing; never unmapped (T2).
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

/// In a forked child: the other threads do not exist, and nothing was counted here.
pub fn forget_others() {
    let own = here().record.get();
    for record in records() {
        record.counts.clear();
        record.uses.store(null_mut(), SeqCst);
        record.by_number.store(0, SeqCst);
        if !std::ptr::eq(record, own) {
            record.taken.store(false, SeqCst);
        }
    }
}

/// While this lives, handlers of signals wait (P3).
pub struct Busy(());

impl Busy {
    /// Enters; `None` if the thread is inside already.
    #[inline]
    pub fn enter() -> Option<Busy> {
        let here = here();
        let state = here.state.get();
        if state & BUSY != 0 {
            return None;
        }
        here.state.set(state | BUSY);
        if state != 0 {
            cancellation::put_off();
        }
        Some(Busy(()))
    }
}

impl Drop for Busy {
    #[inline]
    fn drop(&mut self) {
        let here = here();
        let state = here.state.get() & !BUSY;
        here.state.set(state);
        // A handler that runs in this thread counts up `waiting` only while it is busy.
        compiler_fence(SeqCst);
        if here.waiting.get() != 0 {
            waiting_signals::deliver(here.waiting.replace(0));
        }
        if state != 0 {
            cancellation::allow();
        }
    }
}
