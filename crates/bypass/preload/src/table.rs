//! The descriptor numbers that are ours.
//!
//! State       a table by number, in chunks that are allocated when first needed; a list of files that were closed while a thread used
//!             them, or by a signal handler.
//! Invariants  D1  entries change under `CHANGES`; look-ups take no lock (thread.rs, O1).
//!             D2  `number_count` of a file counts the entries that name it. The thread that removes the last one frees the file (`gone`),
//!                 or leaves that to a later change if a thread is using it.
//!             D3  a signal handler neither allocates nor frees: its thread may be in the middle of that. It also does not wait without a
//!                 limit for a thread that may need the heap (`Patience`). So a holder of `CHANGES` that needs it lends the lock.
//!             D4  a file is made, and a mount asked, by a thread that is taking up a file (`taking`), and only if files may be taken
//!                 up. So a thread that has ended that and then found no such thread knows all files and engines.
//!             D5  signals wait while their thread is taking up a file: a handler may never return (siglongjmp(3)).
//!             D6  a number is removed from the table before it is closed or replaced. The removing thread waits for threads that use its
//!                 file by number (`descriptor_numbers`). So the table's entries, under `CHANGES` or during such a use, match the kernel's.

use crate::barrier;
use crate::cancellation::CancellationDisabled;
pub use crate::changes::CHANGES;
use crate::counts::Count;
use crate::descriptor::Descriptor;
use crate::gone::{self, Gone};
use crate::memory::map_zeroed;
use crate::replaced::{self, Replacing};
use crate::taking::{self, Taking};
use crate::thread::{Busy, Record, ThisThread, nobody_uses_numbers_of, others, records, this_thread};
use crate::undelayed::{failing, refused};
use heddle_bypass::planted::{Bug, planted};
use heddle_bypass::{Attachments, File, KernelStat, MountAnswer, Passed, Patience, Patient, pause};
use rustix::fd::BorrowedFd;
use std::ptr::null_mut;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32};

const CHUNK: usize = 1024;
const CHUNKS: usize = 1024;

type Chunk = [AtomicPtr<Descriptor>; CHUNK];

static TABLE: [AtomicPtr<Chunk>; CHUNKS] = [const { AtomicPtr::new(null_mut()) }; CHUNKS];
/// Changed under `CHANGES`.
static CLOSED: AtomicPtr<Descriptor> = AtomicPtr::new(null_mut());

/// All mounts seen so far.
pub static MOUNTS: Attachments = Attachments::new();

/// True: the program has ways to use a descriptor that are not seen here (io_uring), so no offset is ours.
pub static OFFSETS_ARE_KERNELS: AtomicBool = AtomicBool::new(false);

/// True: a signal handler could not unmap all engines, and left it to a later call.
static TO_BE_LET_GO: AtomicBool = AtomicBool::new(false);

/// A file in use by this thread; signal handlers wait meanwhile.
pub struct Used {
    /// The file's descriptor entry.
    pub descriptor: *const Descriptor,
    /// The record that shows the use to other threads.
    pub record: &'static Record,
    /// A whole word: a copy by words must not wait for a value that was stored in part.
    fd: isize,
    _busy: Busy,
}

impl Used {
    /// The file.
    pub fn file(&self) -> &File {
        // SAFETY: T1: it is not freed while the record names it.
        unsafe { &(*self.descriptor).file }
    }

    /// Its descriptor, for calls that do no harm to another file that gets the number meanwhile.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: open, if the program's own calls are in order; otherwise the kernel returns EBADF.
        unsafe { BorrowedFd::borrow_raw(self.fd as i32) }
    }

    /// Counts a call that was served.
    #[inline]
    pub fn served(&self, what: Count, bytes: usize) {
        self.record.counts.add(what, bytes);
    }

    /// Counts a call that was passed on.
    pub fn passed(&self, why: heddle_bypass::Passed) {
        self.record.counts.add_passed(why);
    }
}

impl Drop for Used {
    #[inline]
    fn drop(&mut self) {
        // ORDERING: Release, after all uses of the file: a thread that sees null may free it (T1).
        self.record.uses.store(null_mut(), Release);
        barrier::at_a_call();
        // ORDERING: Relaxed, as in O1 of `thread`: a closing thread checks `uses` again after it has added
        // the file here.
        if !CLOSED.load(Relaxed).is_null() {
            finish_use(self.descriptor, &Gone::none());
        }
    }
}

/// Ends a use of this file, which may have been closed meanwhile; then `gone` gets it.
#[cold]
pub fn finish_use(descriptor: *const Descriptor, gone: &Gone) {
    let _held = CHANGES.hold();
    // A file that another thread uses is left to that thread.
    if take_from_closed(descriptor) {
        let descriptor = descriptor.cast_mut();
        // SAFETY: it is not freed: it was in the list, and the table's lock is held.
        unsafe { &*descriptor }.next_closed.store(CLOSED.swap(descriptor, SeqCst), SeqCst);
        free_closed_files(gone);
    }
}

/// The entry of a number, if its chunk exists.
#[inline]
pub fn entry(fd: i32) -> Option<&'static AtomicPtr<Descriptor>> {
    let at = usize::try_from(fd).ok()?;
    let chunk = TABLE.get(at / CHUNK)?.load(SeqCst);
    // SAFETY: null, or a chunk that is never freed.
    unsafe { chunk.as_ref() }.map(|chunk| &chunk[at % CHUNK])
}

/// The entry of a number; `None`: the number is invalid, or there is no memory.
pub fn entry_or_new(fd: i32) -> Option<&'static AtomicPtr<Descriptor>> {
    let at = usize::try_from(fd).ok()?;
    let place = TABLE.get(at / CHUNK)?;
    if place.load(SeqCst).is_null() {
        // Zeros, which are null pointers (D3: not from the heap).
        let chunk = map_zeroed(size_of::<Chunk>())?.cast::<Chunk>();
        if place.compare_exchange(null_mut(), chunk, SeqCst, SeqCst).is_err() {
            // SAFETY: no other thread has seen it.
            let _ = unsafe { rustix::mm::munmap(chunk.cast(), size_of::<Chunk>()) };
        }
    }
    entry(fd)
}

/// The entry of a number that is being replaced: threads that need the number wait (`descriptor_numbers`).
pub fn changing() -> *mut Descriptor {
    std::ptr::without_provenance_mut(1)
}

/// Returns true for [`changing`].
#[inline]
pub fn is_changing(descriptor: *mut Descriptor) -> bool {
    descriptor.addr() == 1
}

/// The file of an entry. The caller holds the table's lock.
fn known(entry: &AtomicPtr<Descriptor>) -> Option<&Descriptor> {
    let descriptor = entry.load(SeqCst);
    // SAFETY: null, or not freed while the table's lock is held.
    if is_changing(descriptor) { None } else { unsafe { descriptor.as_ref() } }
}

/// Returns true if this number is ours, without using its file.
pub fn is_ours(fd: i32) -> bool {
    entry(fd).is_some_and(|entry| !entry.load(SeqCst).is_null())
}

/// The file of a number, for one call; `None` if it is not ours, or the call must be passed on.
#[inline(always)]
pub fn using(fd: i32) -> Option<Used> {
    let entry = entry(fd)?;
    // Most numbers of a program are not ours: for them this check is all.
    if entry.load(SeqCst).is_null() {
        return None;
    }
    let this = this_thread();
    if !this.may_serve() {
        return None;
    }
    used(entry, this, fd)
}

/// As [`using`], also in a signal handler: for telling the kernel something, not for calls of the engine,
/// which may allocate.
#[cold]
pub fn holding(fd: i32) -> Option<Used> {
    let entry = entry(fd)?;
    let this = this_thread();
    if entry.load(SeqCst).is_null() || this.is_busy() || this.is_vfork_child() {
        return None;
    }
    used(entry, this, fd)
}

/// Passes on a call that uses the offset: in a signal handler the kernel has our offset meanwhile.
#[inline]
pub fn passing<T: From<i8>>(fd: i32, call: impl Fn() -> T) -> T {
    if let Some(refused) = refused(fd) {
        return refused;
    }
    while this_thread().is_in_handler()
        && !planted(Bug::HandlersOldOffset)
        && let Some(used) = holding(fd)
    {
        used.passed(Passed::InHandler);
        let done = used.file().with_kernel_offset_in_handler(&used, &call);
        drop(used);
        if let Some(done) = done {
            return done.unwrap_or_else(failing);
        }
    }
    call()
}

/// Passes on a call with an offset argument that moves data.
#[inline]
pub fn passing_data_at<T: From<i8>>(fd: i32, call: impl FnOnce() -> T) -> T {
    refused(fd).unwrap_or_else(|| passing_at(fd, call))
}

/// Passes on a call without an offset, or with an offset argument.
#[inline]
pub fn passing_at<T>(fd: i32, call: impl FnOnce() -> T) -> T {
    if this_thread().is_in_handler()
        && let Some(used) = holding(fd)
    {
        used.passed(Passed::InHandler);
    }
    call()
}

#[inline(always)]
fn used(entry: &AtomicPtr<Descriptor>, this: &ThisThread, fd: i32) -> Option<Used> {
    let record = this.record()?;
    let busy = Busy::enter()?;
    let mut looks = 0;
    loop {
        let descriptor = entry.load(SeqCst);
        if descriptor.addr() <= changing().addr() {
            if descriptor.is_null() {
                return None;
            }
            looks += 1;
            pause(looks);
            continue;
        }
        // ORDERING: Relaxed, O1 of `thread`.
        record.uses.store(descriptor, Relaxed);
        barrier::at_a_call();
        if entry.load(SeqCst) == descriptor {
            return Some(Used { descriptor, record, fd: fd as isize, _busy: busy });
        }
        record.uses.store(null_mut(), Release); // ORDERING: Release, as when a call ends.
    }
}

/// Called when a function of the C library has returned this number, for a file that was opened with these
/// flags. Its old meaning ends, and it is ours if it is a regular file of a heddle mount.
pub fn opened(fd: i32, posix_flags: i32) -> i32 {
    if fd < 0 {
        return fd;
    }
    let errno = crate::real::errno();
    remove_number(fd);
    let_go_now();
    if posix_flags & libc::O_PATH == 0 {
        // SAFETY: the number was just returned by the kernel.
        let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
        if !taking::may() {
            if is_of_a_mount_given_up(borrowed) {
                count(Count::NotTaken);
            }
        } else if this_thread().may_serve() {
            take_up(fd, posix_flags);
        } else if this_thread().may_count() && is_of_an_engine(borrowed) {
            count(Count::NotTaken);
        }
    }
    crate::real::set_errno(errno);
    fd
}

fn take_up(fd: i32, posix_flags: i32) {
    // Access mode 3 is neither for reading nor for writing.
    if posix_flags & libc::O_ACCMODE == libc::O_ACCMODE {
        return;
    }
    // D5: it is dropped last.
    let Some(_busy) = Busy::enter() else { return };
    let Some(_taking) = Taking::enter() else { return };
    // SAFETY: the number was just returned by the kernel.
    let borrowed = unsafe { BorrowedFd::borrow_raw(fd) };
    let Ok(kernel_stat) = KernelStat::of(borrowed) else { return };
    if !kernel_stat.is_regular() {
        return;
    }
    let at = match MOUNTS.known(&kernel_stat).unwrap_or_else(|| find(&kernel_stat, borrowed)) {
        MountAnswer::Ours(at) => at,
        MountAnswer::Foreign => return,
        MountAnswer::Refused(_) => return count(Count::NotTaken),
    };
    let Some(entry) = entry_or_new(fd) else { return };
    let file = File::new(at, kernel_stat, posix_flags);
    if file.loses_by_writes() {
        return count(Count::NotTaken);
    }
    if crate::streams::may_use(fd) || OFFSETS_ARE_KERNELS.load(SeqCst) {
        file.give_offset_away(borrowed);
    }
    let number_count = AtomicU32::new(1);
    let fresh =
        Box::into_raw(Box::new(Descriptor { file, number_count, next_closed: AtomicPtr::new(null_mut()) }));
    let gone = Gone::none();
    let held = CHANGES.hold();
    let old = entry.swap(fresh, SeqCst);
    drop_number(old, &gone);
    drop(held);
    count(Count::Opened);
}

/// In a forked child: what the parent's other threads were about to do is not done here.
pub fn reset_in_child() {
    taking::reset_in_child();
    gone::reset_in_child();
}

/// In a child that runs none of fork(3)'s handlers: nothing is served there any more, and no image stays mapped. Only stores and system
/// calls: what the table had stays allocated.
pub fn forget_all_in_child() {
    reset_in_child();
    // A first count of a thread may need the heap, whose lock may be held for ever.
    taking::no_more_and_ask_nothing();
    each_entry(|_, entry| entry.store(null_mut(), SeqCst));
    CLOSED.store(null_mut(), SeqCst);
    // SAFETY: no entry names a file, this is the only thread, and it uses none.
    let is_unmapped = unsafe { MOUNTS.unmap_without_freeing() };
    TO_BE_LET_GO.store(!is_unmapped, SeqCst);
}

/// From now on one table cannot describe the numbers: one may mean different files for threads that share this memory, a process that
/// does not count as a thread shares the descriptors, or a library changes them unseen. So the kernel serves all files from now on, also
/// those of mounts that the program has not met yet.
pub fn stop_serving_for_ever() {
    taking::no_more();
    let _gone = let_go();
}

/// Returns true if an engine is mapped, or a thread may be about to map one. The order of the checks matters:
/// an engine mapped by a finished thread is seen.
pub fn any_engine() -> bool {
    taking::is_any() || MOUNTS.any_engine_mapped()
}

/// Returns true if this is a file of a mount whose engine is mapped. The table need not have its number: a process may receive a
/// descriptor from itself. Returns false inside the engine: the mount's process might wait for this thread.
pub fn is_of_an_engine(fd: BorrowedFd<'_>) -> bool {
    let is_ours = |known: KernelStat| matches!(MOUNTS.known(&known), Some(MountAnswer::Ours(_)));
    !this_thread().is_busy()
        && !this_thread().is_vfork_child()
        && MOUNTS.any_engine_mapped()
        && KernelStat::of(fd).is_ok_and(|known| known.is_regular() && is_ours(known))
}

/// Returns true if this is a file of a mount that the program had met before it worked through all mounts. No other mount can be told
/// from a foreign one: that would take asking it.
fn is_of_a_mount_given_up(fd: BorrowedFd<'_>) -> bool {
    taking::may_ask()
        && !this_thread().is_busy()
        && !this_thread().is_vfork_child()
        && KernelStat::of(fd).is_ok_and(|known| known.is_regular() && MOUNTS.has_met(&known))
}

/// Gives all files to the kernel, for ever, and unmaps their images: this process has other rights than when
/// it attached. Returns true if no image is mapped any more.
pub fn let_go() -> bool {
    let this = this_thread();
    if this.is_vfork_child() || !any_engine() {
        return true;
    }
    TO_BE_LET_GO.store(true, SeqCst);
    let Some(_busy) = Busy::enter() else { return false };
    let patience = this.is_in_handler().then(Patience::new);
    if !patience.wait_while(|| taking::PAUSED.swap(true, SeqCst)) {
        all_to_the_kernel(&Gone::none());
        return false;
    }
    let gone = let_go_alone(patience.as_ref());
    taking::PAUSED.store(false, SeqCst);
    gone
}

/// Does that alone. The caller has set `taking::PAUSED`; a handler passes its patience.
fn let_go_alone(patience: Option<&Patience>) -> bool {
    let mut begun = patience.wait_while(taking::is_any);
    // The old file of a number under replacement is in no list, and comes back if the call fails.
    let replacing = Replacing::begin(replaced::NOTHING, patience);
    begun &= replacing.is_some();
    let gone = Gone::none();
    all_to_the_kernel(&gone);
    // No entry names a file any more, so there is none to be replaced.
    drop(replacing);
    drop(gone);
    // Calls under way end first, each by itself, as in the kernel.
    let in_handler = patience.is_some();
    let used = || if in_handler { used_by_others() } else { in_use() };
    // A filter of system calls may prevent the check for uses. Then the mapping stays, but no call is served
    // from it.
    let known = || !others() || barrier::everywhere();
    if !begun {
        return false;
    }
    // A fork must not interrupt what follows.
    let _held = loop {
        if !patience.wait_while(|| known() && used()) || !known() {
            return false;
        }
        let held = CHANGES.hold();
        // The mapping stays until the handler has ended (L2 of `changes`).
        if CHANGES.is_borrowed() {
            return false;
        }
        // A handler leaves closed files for later (D3): since it looked, without the lock, another thread may have begun to give some back.
        if !gone::is_any() {
            break held;
        }
    };
    // SAFETY: D4: no entry and no thread names a file any more, and no thread makes one. G2: none is being given back.
    let gone = unsafe {
        match in_handler {
            true => MOUNTS.unmap_without_freeing(),
            false => {
                // Engines give memory back to the heap, which the thread of a handler that waits for this lock may have locked.
                CHANGES.lending(|| MOUNTS.let_go());
                true
            }
        }
    };
    TO_BE_LET_GO.store(!gone, SeqCst);
    gone
}

/// Does the work that a signal handler had to leave.
fn let_go_now() {
    if TO_BE_LET_GO.load(SeqCst) && !this_thread().is_in_handler() && !taking::PAUSED.load(SeqCst) {
        let _gone = let_go();
    }
}

/// Removes every file from the table.
fn all_to_the_kernel(gone: &Gone) {
    let _held = CHANGES.hold();
    let give = |fd, descriptor: &Descriptor| {
        // SAFETY: open, if the program's own calls are in order.
        descriptor.file.share_with_stranger(unsafe { BorrowedFd::borrow_raw(fd) });
    };
    CHANGES.lending(|| each(give));
    each_entry(|_, entry| {
        if known(entry).is_some() {
            drop_number(entry.swap(null_mut(), SeqCst), gone);
        }
    });
}

/// Returns true if another thread uses a file, or gives one back. Every other thread has executed a barrier since the last entry
/// was removed.
fn used_by_others() -> bool {
    gone::is_any() || records().any(|r| !r.uses.load(SeqCst).is_null())
}

/// Returns true if a thread uses a file that no entry names, or gives one back.
fn in_use() -> bool {
    let gone = Gone::none();
    let held = CHANGES.hold();
    free_closed_files(&gone);
    drop(held);
    drop(gone);
    let _held = CHANGES.hold();
    gone::is_any() || !CLOSED.load(SeqCst).is_null()
}

/// Attaches to a mount; the thread must not be cancelled meanwhile.
#[cold]
fn find(kernel_stat: &KernelStat, fd: BorrowedFd<'_>) -> MountAnswer {
    let _not_now = CancellationDisabled::new();
    MOUNTS.find(kernel_stat, fd)
}

fn count(what: Count) {
    if let Some(record) = this_thread().record() {
        record.counts.add(what, 0);
    }
}

/// Removes this number, because it is closed or about to be.
pub fn remove_number(fd: i32) {
    let Some(entry) = entry(fd) else { return };
    if entry.load(SeqCst).is_null() || this_thread().is_vfork_child() {
        return;
    }
    let _busy = Busy::enter();
    let mut looks = 0;
    let gone = Gone::none();
    let old = loop {
        let held = CHANGES.hold();
        if !is_changing(entry.load(SeqCst)) {
            let old = entry.swap(null_mut(), SeqCst);
            drop_number(old, &gone);
            free_closed_files(&gone);
            break old;
        }
        drop(held);
        looks += 1;
        pause(looks);
    };
    nobody_uses_numbers_of(old);
}

/// Removes all numbers from `first` to `last`, because they are closed or about to be.
pub fn remove_numbers(first: u32, last: u32) {
    let end = (CHUNK * CHUNKS) as u32 - 1;
    let mut fd = first.min(end);
    while fd <= last.min(end) {
        if TABLE[fd as usize / CHUNK].load(SeqCst).is_null() {
            fd = (fd / CHUNK as u32 + 1) * CHUNK as u32;
            continue;
        }
        remove_number(fd as i32);
        fd += 1;
    }
}

/// Calls `look` with every number of ours and its file. The caller holds the table's lock.
pub fn each(mut look: impl FnMut(i32, &Descriptor)) {
    each_entry(|fd, entry| {
        if let Some(descriptor) = known(entry) {
            look(fd, descriptor);
        }
    });
}

fn each_entry(mut look: impl FnMut(i32, &AtomicPtr<Descriptor>)) {
    for (chunk, place) in TABLE.iter().enumerate() {
        // SAFETY: null, or a chunk that is never freed.
        let Some(entries) = (unsafe { place.load(SeqCst).as_ref() }) else { continue };
        entries.iter().enumerate().for_each(|(at, entry)| look((chunk * CHUNK + at) as i32, entry));
    }
}

/// Removes one number of a file (D2); `gone` gets the file after its last one. The caller holds the table's lock.
pub fn drop_number(descriptor: *mut Descriptor, gone: &Gone) {
    if is_changing(descriptor) {
        return;
    }
    // SAFETY: null, or a file that this entry kept.
    let Some(known) = (unsafe { descriptor.as_ref() }) else { return };
    if known.number_count.fetch_sub(1, SeqCst) != 1 {
        return;
    }
    if this_thread().is_in_handler() || may_be_in_use(descriptor) {
        known.next_closed.store(CLOSED.swap(descriptor, SeqCst), SeqCst);
        return;
    }
    // SAFETY: this was its last entry, it is in no list, and no thread uses it.
    unsafe { gone.add(descriptor) };
}

/// Returns true if a thread may use a file that no entry names any more.
fn may_be_in_use(descriptor: *mut Descriptor) -> bool {
    // O1 and O2 of `thread`.
    others() && !barrier::everywhere() || records().any(|r| r.uses.load(SeqCst) == descriptor)
}

/// Removes a file from the list of closed ones. Returns true if it was there. The caller holds the table's
/// lock.
fn take_from_closed(descriptor: *const Descriptor) -> bool {
    let (mut at, mut found) = (CLOSED.swap(null_mut(), SeqCst), false);
    // SAFETY: only holders of the table's lock take files from the list to free them.
    while let Some(closed) = unsafe { at.as_ref() } {
        let this = at;
        at = closed.next_closed.load(SeqCst);
        match std::ptr::eq(this, descriptor) {
            true => found = true,
            false => closed.next_closed.store(CLOSED.swap(this, SeqCst), SeqCst),
        }
    }
    found
}

/// Collects files that could not be freed when they were closed. The caller holds the table's lock.
pub fn free_closed_files(gone: &Gone) {
    if CLOSED.load(SeqCst).is_null() || this_thread().is_in_handler() {
        return;
    }
    let mut at = CLOSED.swap(null_mut(), SeqCst);
    // SAFETY: only holders of the table's lock take files from the list to free them.
    while let Some(closed) = unsafe { at.as_ref() } {
        let descriptor = at;
        at = closed.next_closed.load(SeqCst);
        if may_be_in_use(descriptor) {
            closed.next_closed.store(CLOSED.swap(descriptor, SeqCst), SeqCst);
        } else {
            // SAFETY: no entry names it, it was taken from the list, and no thread uses it.
            unsafe { gone.add(descriptor) };
        }
    }
}
