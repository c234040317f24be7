//! Numbers of file descriptors that another thread closes, replaces or duplicates while they are used.
//!
//! State       in a thread's record: whether it uses its file by number now. The table holds [`changing`] for the number that
//!             is being replaced (`replaced`).
//! Invariants  N1  a thread that passes the number of a file of ours to the kernel first notes that, then checks the table again. A
//!                 thread that removes a number from the table then looks for such notes, and waits for their threads (O3 of `thread`).
//!             N2  a duplicate means the file that the original number meant when the kernel duplicated it.
//! Lock order  that of `replaced`, the table's lock. A thread that uses a file by number waits for neither, nor for another such thread.

use crate::descriptor::Descriptor;
use crate::gone::Gone;
use crate::real::{errno, set_errno};
use crate::replaced::{self, Replacing};
use crate::table::{
    CHANGES, Used, changing, drop_number, entry, entry_or_new, finish_use, free_closed_files, holding,
    is_changing, is_ours,
};
use crate::thread::{Busy, ByNumber, nobody_uses_numbers_of, this_thread};
use crate::undelayed::failing;
use heddle_bypass::{Errno, Number, Patience, pause};
use rustix::fd::{AsRawFd, BorrowedFd};
use std::ptr::null_mut;
use std::sync::atomic::{AtomicPtr, Ordering::SeqCst};

impl Number for &Used {
    #[cold]
    fn while_ours<T>(self, call: impl FnOnce(BorrowedFd<'_>) -> T) -> Option<T> {
        let _by_number = ByNumber::enter(self.record);
        let number = self.fd();
        let ours = |entry: &AtomicPtr<Descriptor>| std::ptr::eq(entry.load(SeqCst), self.descriptor);
        entry(number.as_raw_fd()).is_some_and(ours).then(|| call(number))
    }
}

/// Makes a call that returns a duplicate of `fd`, under a free number.
pub fn duplicating(fd: i32, call: impl Fn() -> i32) -> i32 {
    if !is_ours(fd) || this_thread().is_vfork_child() {
        return with_kernel_number(call);
    }
    let Some(_busy) = Busy::enter() else { return call() };
    let gone = Gone::none();
    with_descriptor(fd, &gone, |descriptor| {
        let to = call();
        let errno = errno();
        match entry_or_new(to) {
            Some(place) => set_descriptor(place, to, descriptor, &gone),
            // The table ends before this number.
            None if to >= 0 => {
                // SAFETY: null, or in use by this thread (T1 of `thread`); open, if the program's own calls are in order.
                if let Some(known) = unsafe { descriptor.as_ref() } {
                    // SAFETY: as above.
                    known.file.share_with_stranger(unsafe { BorrowedFd::borrow_raw(fd) });
                }
            }
            None => {}
        }
        set_errno(errno);
        to
    })
}

/// From now on offset and `O_APPEND` are the kernel's: the open file gets a number that the table does not have.
pub fn share(fd: i32) {
    if let Some(used) = holding(fd) {
        (&used).while_ours(|number| used.file().share_with_unknown_number(number));
    }
}

/// Makes a call after which `to` means the file of `fd`, if it succeeds. Other threads that use `to` wait
/// meanwhile. If `to` is the last number of its old file, that file's offset moves to the kernel, where other
/// processes that share the open file find it.
pub fn replacing(fd: i32, to: i32, call: impl Fn() -> i32) -> i32 {
    if fd == to || this_thread().is_vfork_child() || !(is_ours(fd) || is_ours(to)) {
        return call();
    }
    let Some(place) = entry_or_new(to) else {
        share(fd);
        return call();
    };
    let Some(_busy) = Busy::enter() else { return call() };
    let gone = Gone::none();
    // The thread that is replacing another number may wait for a lock that a forking thread holds.
    let patience = this_thread().is_in_handler().then(Patience::new);
    let Some(_replacing) = Replacing::begin(to, patience.as_ref()) else { return failing(Errno::DEADLK) };
    let held = CHANGES.hold();
    let old = place.swap(changing(), SeqCst);
    // SAFETY: null, or an entry's file, which is not freed while the table's lock is held.
    if let Some(last) = unsafe { old.as_ref() }.filter(|old| old.number_count.load(SeqCst) == 1) {
        // Done before the call, since a fork may come first. If the call fails, the offset stays the kernel's.
        // SAFETY: open, if the program's own calls are in order.
        CHANGES.lending(|| last.file.give_offset_away(unsafe { BorrowedFd::borrow_raw(to) }));
    }
    drop(held);
    nobody_uses_numbers_of(old);
    with_descriptor(fd, &gone, |descriptor| {
        let done = call();
        let errno = errno();
        if done < 0 {
            let _held = CHANGES.hold();
            place.store(old, SeqCst);
        } else {
            set_descriptor(place, to, descriptor, &gone);
            let _held = CHANGES.hold();
            drop_number(old, &gone);
            free_closed_files(&gone);
        }
        set_errno(errno);
        done
    })
}

/// Calls `call` with the file of a number, or with null if it is none of ours. The number means that file
/// until `call` returns (N2).
fn with_descriptor(fd: i32, gone: &Gone, call: impl Fn(*mut Descriptor) -> i32) -> i32 {
    let (Some(entry), Some(record)) = (entry(fd), this_thread().record()) else { return call(null_mut()) };
    let mut looks = 0;
    loop {
        let descriptor = entry.load(SeqCst);
        if descriptor.is_null() {
            return call(descriptor);
        }
        if is_changing(descriptor) {
            looks += 1;
            pause(looks);
            continue;
        }
        record.uses.store(descriptor, SeqCst);
        let by_number = ByNumber::enter(record);
        let done = std::ptr::eq(entry.load(SeqCst), descriptor).then(|| call(descriptor));
        drop(by_number);
        record.uses.store(null_mut(), SeqCst);
        finish_use(descriptor, gone);
        if let Some(done) = done {
            return done;
        }
    }
}

/// Sets the table's entry for the number `to`: the file, or null for a file that only the kernel knows.
fn set_descriptor(place: &AtomicPtr<Descriptor>, to: i32, descriptor: *mut Descriptor, gone: &Gone) {
    let _held = CHANGES.hold();
    // If its last number was closed or given up meanwhile, the file is the kernel's. SAFETY: null, or in use
    // by this thread (T1 of `thread`).
    let living = || unsafe { descriptor.as_ref() }.filter(|known| known.number_count.load(SeqCst) != 0);
    if let Some(known) = living().filter(|_| crate::streams::may_use(to)) {
        // SAFETY: the number was just returned by the kernel.
        CHANGES.lending(|| known.file.give_offset_away(unsafe { BorrowedFd::borrow_raw(to) }));
    }
    // Looked at again: a handler that borrowed the lock may have given up all files. The lock is not lent before the entry is stored.
    let lives = living();
    if let Some(known) = lives {
        known.number_count.fetch_add(1, SeqCst);
    }
    drop_number(place.swap(if lives.is_some() { descriptor } else { null_mut() }, SeqCst), gone);
    free_closed_files(gone);
}

/// Makes a call that returns a number for a file that is not ours.
fn with_kernel_number(call: impl Fn() -> i32) -> i32 {
    let to = call();
    if to >= 0 {
        let errno = errno();
        crate::table::remove_number(to);
        set_errno(errno);
    }
    to
}

/// In a forked child: the thread that was replacing a number does not exist here, and only the kernel knows
/// the result.
pub fn reset_in_child() {
    if let Some(place) = entry(replaced::reset_in_child()) {
        let _was = place.compare_exchange(changing(), null_mut(), SeqCst, SeqCst);
    }
}
