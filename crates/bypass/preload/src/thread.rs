//! What the calling thread is doing.
//!
//! State       `Here`: words of the thread, without a destructor, so that a handler of a signal may touch them at any time (`words`
//!             finds them); and a `Record` of it that other threads read: which file it uses, what it has counted.
//! Invariants  T1  a file named in a record's `uses` is not given back; who takes one writes it there and looks again.
//!             T2  records are never freed; that of a thread that has ended is used again.
//! Orderings   O1  `uses` is stored and the table looked at again, in program order only: who closes takes the file out of the table, has
//!                 a barrier put into every thread (`barrier`), then looks at all `uses`. One of the two sees the other.
//!             O2  a record is taken with a locked instruction before its first use: who closes need not think of others while
//!                 nobody else has one.

use crate::descriptor::Descriptor;
use crate::report::Counts;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::SeqCst, compiler_fence};

/// See the module.
pub struct Record {
    /// The file this thread is using.
    pub uses: AtomicPtr<Descriptor>,
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
    /// Inside the engine or the table: handlers wait.
    pub busy: Cell<bool>,
    /// Handlers that are running, and where the last one's frame is.
    pub in_handler: Cell<u32>,
    /// A vfork is under way: in the child, which shares this memory, the process has another number.
    pub vfork_in: Cell<i32>,
    /// Calls until a limit of the file size is looked for again.
    pub limitless_for: Cell<u32>,
    /// Address of the handler's frame.
    pub handler_frame: Cell<usize>,
    /// Signals that came while it was busy.
    pub waiting: Cell<usize>,
}

thread_local! {
    static ENDS: Ends = const { Ends };
}

/// Gives the record back when the thread ends.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        // SAFETY: T2.
        if let Some(record) = unsafe { here().record.replace(std::ptr::null()).as_ref() } {
            record.uses.store(null_mut(), SeqCst);
            record.taken.store(false, SeqCst);
        }
    }
}

/// The calling thread's words; they stay with the thread.
#[inline(always)]
pub fn here() -> &'static Here {
    // SAFETY: the thread's own, there as long as it; its fields are cells, so no other thread gets a reference to it.
    unsafe { &*crate::words::of_this_thread() }
}

impl Here {
    /// Of a thread that does nothing.
    #[cfg(not(target_arch = "x86_64"))]
    pub const fn new() -> Here {
        Here {
            record: Cell::new(std::ptr::null()),
            busy: Cell::new(false),
            in_handler: Cell::new(0),
            vfork_in: Cell::new(0),
            limitless_for: Cell::new(0),
            handler_frame: Cell::new(0),
            waiting: Cell::new(0),
        }
    }

    /// May calls of this thread be served now?
    #[inline]
    pub fn may_serve(&self) -> bool {
        !self.busy.get() && !self.is_vfork_child() && !self.is_in_handler()
    }

    /// Is this the child of a vfork, in its parent's memory?
    #[inline]
    pub fn is_vfork_child(&self) -> bool {
        self.vfork_in.get() != 0 && self.is_vfork_child_still()
    }

    #[cold]
    fn is_vfork_child_still(&self) -> bool {
        let parent = self.vfork_in.get();
        if rustix::process::getpid().as_raw_nonzero().get() != parent {
            return true;
        }
        self.vfork_in.set(0);
        false
    }

    /// Is a handler of a signal running? One that was left by longjmp is not: its frame lies below ours.
    #[inline]
    pub fn is_in_handler(&self) -> bool {
        self.in_handler.get() != 0 && self.is_in_handler_still()
    }

    #[cold]
    #[inline(never)]
    fn is_in_handler_still(&self) -> bool {
        let frame = 0_u8;
        if (&raw const frame).addr() > self.handler_frame.get() {
            self.in_handler.set(0);
            return false;
        }
        true
    }

    /// The thread's record, if it has one already.
    pub fn known_record(&self) -> Option<&'static Record> {
        // SAFETY: T2.
        unsafe { self.record.get().as_ref() }
    }

    /// The thread's record.
    #[inline]
    pub fn record(&self) -> &'static Record {
        self.known_record().unwrap_or_else(|| self.first_record())
    }

    #[cold]
    fn first_record(&self) -> &'static Record {
        // At the end of a thread there is no destructor to be had any more: the record stays taken.
        let _ = ENDS.try_with(|_| ());
        let record = free_record().unwrap_or_else(new_record);
        self.record.set(record);
        record
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

fn new_record() -> &'static Record {
    let record = Box::leak(Box::new(Record {
        uses: AtomicPtr::new(null_mut()),
        counts: Counts::default(),
        taken: AtomicBool::new(true),
        next: AtomicPtr::new(RECORDS.load(SeqCst)),
    }));
    while let Err(now) = RECORDS.compare_exchange(record.next.load(SeqCst), record, SeqCst, SeqCst) {
        record.next.store(now, SeqCst);
    }
    record
}

/// In a forked child: the other threads do not exist, and nothing was counted here.
pub fn forget_others() {
    let own = here().record.get();
    for record in records() {
        record.counts.clear();
        record.uses.store(null_mut(), SeqCst);
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
        // Not `then_some`: one that was made for nothing would leave for who is inside.
        (!here().busy.replace(true)).then(|| Busy(()))
    }
}

impl Drop for Busy {
    #[inline]
    fn drop(&mut self) {
        here().busy.set(false);
        // A handler that runs in this thread counts up `waiting` only while it is busy.
        compiler_fence(SeqCst);
        if here().waiting.get() != 0 {
            crate::signals::deliver_waiting();
        }
    }
}
