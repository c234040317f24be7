//! What the calling thread is doing.
//!
//! State       `Here`: words of the thread, without a destructor, so that a handler of a signal may touch them at any time; and a
//!             `Record` of it that other threads read: which file it uses, what it has counted.
//! Invariants  T1  a file named in a record's `uses` is not given back; who takes one writes it there and looks again.
//!             T2  records are never freed; that of a thread that has ended is used again.
//! Orderings   O1  `uses` is stored and the table looked at again, SeqCst; who closes takes the file out of the table, then looks
//!                 at all `uses`, SeqCst. One of the two sees the other.

use crate::descriptor::Descriptor;
use crate::report::Counts;
use std::cell::Cell;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering::SeqCst};

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

/// The thread's own words.
pub struct Here {
    record: Cell<*const Record>,
    /// Inside the engine or the table: handlers wait.
    pub busy: Cell<bool>,
    /// Handlers that are running, and where the last one's frame is.
    pub in_handler: Cell<u32>,
    /// Address of the handler's frame.
    pub handler_frame: Cell<usize>,
    /// A vfork is under way: in the child, which shares this memory, the process has another number.
    pub vfork_in: Cell<i32>,
    /// Signals that came while it was busy.
    pub waiting: Cell<usize>,
}

thread_local! {
    static HERE: Here = const {
        Here {
            record: Cell::new(std::ptr::null()),
            busy: Cell::new(false),
            in_handler: Cell::new(0),
            handler_frame: Cell::new(0),
            vfork_in: Cell::new(0),
            waiting: Cell::new(0),
        }
    };
    static ENDS: Ends = const { Ends };
}

/// Gives the record back when the thread ends.
struct Ends;

impl Drop for Ends {
    fn drop(&mut self) {
        here(|h| {
            // SAFETY: T2.
            if let Some(record) = unsafe { h.record.replace(std::ptr::null()).as_ref() } {
                record.uses.store(null_mut(), SeqCst);
                record.taken.store(false, SeqCst);
            }
        });
    }
}

/// The calling thread's words.
pub fn here<T>(look: impl FnOnce(&Here) -> T) -> T {
    // It has no destructor, so it is there as long as the thread.
    HERE.with(look)
}

impl Here {
    /// May calls of this thread be served now?
    pub fn may_serve(&self) -> bool {
        !self.busy.get() && !self.is_vfork_child() && !self.is_in_handler()
    }

    /// Is this the child of a vfork, in its parent's memory?
    pub fn is_vfork_child(&self) -> bool {
        let parent = self.vfork_in.get();
        if parent == 0 {
            return false;
        }
        if rustix::process::getpid().as_raw_nonzero().get() != parent {
            return true;
        }
        self.vfork_in.set(0);
        false
    }

    /// Is a handler of a signal running? One that was left by longjmp is not: its frame lies below ours.
    pub fn is_in_handler(&self) -> bool {
        if self.in_handler.get() == 0 {
            return false;
        }
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
    pub fn record(&self) -> &'static Record {
        // SAFETY: T2.
        if let Some(record) = unsafe { self.record.get().as_ref() } {
            return record;
        }
        // At the end of a thread there is no destructor to be had any more: the record stays taken.
        let _ = ENDS.try_with(|_| ());
        let record = free_record().unwrap_or_else(new_record);
        self.record.set(record);
        record
    }
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
    let own = here(|h| h.record.get());
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
    pub fn enter() -> Option<Busy> {
        here(|h| (!h.busy.replace(true)).then_some(Busy(())))
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        let waiting = here(|h| {
            h.busy.set(false);
            h.waiting.get()
        });
        if waiting != 0 {
            crate::signals::deliver_waiting();
        }
    }
}
