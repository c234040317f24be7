//! The mounts that programs have met, and the engine of each heddle mount.
//!
//! State       a list that only grows, with an entry for each mount of which a descriptor was seen: heddle's with its engine, foreign,
//!             or refused. If threads met a mount at once, it has an entry for each of them, and the newest one is used.
//! Invariants  A1  entries and attachments are never freed. A refused entry attaches at most once, unless asking takes longer than
//!                 `ASKING_MAX`; an engine is detached at most once.
//!             A2  when an engine is detached, no thread uses a file of any engine or opens one. [`Attachments::let_go`] also needs that
//!                 none exists.
//!             A3  a lock or shared mapping that this process has through an attachment counts in its `holds`, and in `HOLDS`, before
//!                 the kernel grants it. Each attachment is in `ALL`.
//!
//! Holds       A refused call takes back its own count alone. So of two calls at once the refused one does not hide the granted one.
//!             A thread looks for a takeover before it counts, so that a refusal mostly changes nothing, and again afterwards. If a
//!             takeover comes later, the count was there before: calls that see the new daemon see the count. A daemon is compared
//!             with the later ones of the same attachment alone, because different file systems may name their daemons alike.
//!
//! A mount is known by its device and its unique number: a later file system with the same device number is
//! another mount.

use crate::kernel_stat::KernelStat;
use crate::known_once::KnownOnce;
use crate::process::{disown_all_opened, process};
use heddle_nvmfs::NvmFs;
use heddle_nvmfs::client::{self, AttachError};
use rustix::fd::BorrowedFd;
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// The magic number that statfs(2) gives for every FUSE mount.
const FUSE_MAGIC: i64 = 0x6573_5546;
/// After a refusal no thread asks again for this time.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// The waiting time after a refusal is at least this many times the time that the refusal took.
const AGAIN_AFTER_TIMES: u32 = 20;
/// While one thread asks again, no other does. If that thread ends meanwhile, another may ask after this
/// time.
const ASKING_MAX: Duration = Duration::from_secs(30);

/// The number of holds of all attachments (A3).
static HOLDS: AtomicU64 = AtomicU64::new(0);
/// The newest attachment, in a list that only grows.
static ALL: AtomicPtr<Attachment> = AtomicPtr::new(std::ptr::null_mut());

/// A mount whose engine this process has attached to.
pub struct Attachment {
    /// Dropped when `gone` is set.
    fs: UnsafeCell<ManuallyDrop<NvmFs>>,
    gone: AtomicBool,
    /// Device number of the mount, as `st_dev`.
    pub dev: u64,
    /// `process()` of the process that has prefaulted the whole image; 0: none. A forked child has none of its
    /// parent's page tables.
    mapped_by: AtomicU32,
    /// The daemon behind the mount, as the engine names it.
    daemon: u64,
    /// The number of locks and shared mappings that were granted, or are being asked for. It is not lowered when one ends.
    holds: AtomicU64,
    /// The attachment that was made before.
    older: AtomicPtr<Attachment>,
}

/// A lock or shared mapping that the kernel is being asked for.
pub struct Hold(&'static Attachment);

impl Hold {
    fn begin(at: &'static Attachment) -> Hold {
        at.holds.fetch_add(1, Ordering::SeqCst);
        HOLDS.fetch_add(1, Ordering::SeqCst);
        Hold(at)
    }

    /// The kernel has granted it.
    pub fn granted(self) {
        std::mem::forget(self);
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        HOLDS.fetch_sub(1, Ordering::SeqCst);
        self.0.holds.fetch_sub(1, Ordering::SeqCst);
    }
}

// SAFETY: threads share the engine by reference. Only `let_go` changes it, once, while no reference exists
// (A2).
unsafe impl Sync for Attachment {}

impl Attachment {
    pub(crate) fn new(fs: NvmFs, dev: u64) -> &'static Attachment {
        let daemon = fs.daemon();
        Attachment::of_daemon(fs, dev, daemon)
    }

    fn of_daemon(fs: NvmFs, dev: u64, daemon: u64) -> &'static Attachment {
        let at: &'static Attachment = Box::leak(Box::new(Attachment {
            fs: UnsafeCell::new(ManuallyDrop::new(fs)),
            gone: AtomicBool::new(false),
            dev,
            mapped_by: AtomicU32::new(0),
            daemon,
            holds: AtomicU64::new(0),
            older: AtomicPtr::default(),
        }));
        let mut newest = ALL.load(Ordering::SeqCst);
        loop {
            at.older.store(newest, Ordering::SeqCst);
            let this = std::ptr::from_ref(at).cast_mut();
            match ALL.compare_exchange(newest, this, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return at,
                Err(now) => newest = now,
            }
        }
    }

    /// The engine.
    #[inline]
    pub fn fs(&self) -> &NvmFs {
        debug_assert!(!self.gone.load(Ordering::SeqCst));
        // SAFETY: A2: the caller has a file of this engine open, or is opening one.
        unsafe { &*self.fs.get() }
    }

    /// Notes that this process is about to lock or map a file through this mount. Returns `None` if the mount's daemon is dead and another
    /// one has taken over: no lock through this mount keeps anybody out then, and nobody else sees a store to a mapping.
    pub(crate) fn begin_hold(&'static self) -> Option<Hold> {
        let is_taken_over = || self.fs().daemon() != self.daemon;
        if is_taken_over() {
            return None;
        }
        let hold = Hold::begin(self);
        (!is_taken_over()).then_some(hold)
    }

    /// Returns true if another daemon has taken over this mount, and this process has holds that went with a dead daemon: others may change
    /// what its locks protected, and its mappings show pages of the dead mount. So no call may be served any more.
    #[inline]
    pub(crate) fn has_lost_holds(&self) -> bool {
        HOLDS.load(Ordering::SeqCst) != 0 && self.fs().daemon() != self.daemon && any_hold_is_lost()
    }

    /// With `HEDDLE_PREFAULT=1` maps the whole image, once per process: first stores then cost no page
    /// faults.
    pub fn prefault(&self) {
        static ASKED: KnownOnce = KnownOnce::new();
        let asked = ASKED.get_or_ask(|| std::env::var_os("HEDDLE_PREFAULT").is_some_and(|said| said == "1"));
        if asked && self.is_first_of_process() {
            self.fs().map_all();
        }
    }

    /// Returns true to the first caller of each process.
    fn is_first_of_process(&self) -> bool {
        self.mapped_by.swap(process(), Ordering::SeqCst) != process()
    }
}

/// Returns true if a daemon that granted a hold has been replaced, or may have been. All mounts count: one file system may have several
/// places, and a lock in one may protect files of another. The caller uses a file of an engine, so none is detached meanwhile (A2).
#[cold]
fn any_hold_is_lost() -> bool {
    let mut next = ALL.load(Ordering::SeqCst).cast_const();
    // SAFETY: A1: null, or an attachment that is never freed.
    while let Some(at) = unsafe { next.as_ref() } {
        // The daemon of a mount that this process has let go of cannot be asked, but the caller's own has been replaced. `gone` first: then
        // there is no engine.
        let is_lost = || at.gone.load(Ordering::SeqCst) || at.fs().daemon() != at.daemon;
        if at.holds.load(Ordering::SeqCst) != 0 && is_lost() {
            return true;
        }
        next = at.older.load(Ordering::SeqCst);
    }
    false
}

/// The answer for one mount.
#[derive(Clone, Copy)]
pub enum MountAnswer {
    /// A heddle mount, with its engine.
    Ours(&'static Attachment),
    /// A mount of another file system, or a heddle mount without an attach socket.
    Foreign,
    /// A FUSE mount whose engine this process cannot reach: the text gives the reason.
    Refused(&'static str),
}

struct Entry {
    dev: u64,
    mount: u64,
    first_answer: MountAnswer,
    /// The engine of a mount that was refused at first; null while it still is.
    attached_later: AtomicPtr<Attachment>,
    /// The time ([`now_ms`]) from which a refused mount is asked again.
    again_ms: AtomicU64,
    next: *const Entry,
}

impl Entry {
    /// The answer, whether or not the engine was detached since.
    fn attached(&self) -> MountAnswer {
        // ORDERING: Acquire, pairs with the Release in `ask_again`.
        match (self.first_answer, self.attached_later.load(Ordering::Acquire)) {
            // SAFETY: an attachment is never freed.
            (MountAnswer::Refused(_), at) if !at.is_null() => MountAnswer::Ours(unsafe { &*at }),
            (first, _) => first,
        }
    }

    fn found(&self) -> MountAnswer {
        match self.attached() {
            MountAnswer::Ours(at) if at.gone.load(Ordering::SeqCst) => MountAnswer::Refused(DETACHED),
            found => found,
        }
    }

    /// Returns true if the mount was refused and it is time to ask again.
    fn is_due(&self) -> bool {
        matches!(self.attached(), MountAnswer::Refused(_)) && now_ms() >= self.again_ms.load(Ordering::SeqCst)
    }

    /// Returns true to one of the threads that want to ask again at `now_ms`. While it asks, no other does.
    fn claim(&self, now_ms: u64) -> bool {
        let due = self.again_ms.load(Ordering::SeqCst);
        let claimed = now_ms + ASKING_MAX.as_millis() as u64;
        due <= now_ms
            && self.again_ms.compare_exchange(due, claimed, Ordering::SeqCst, Ordering::SeqCst).is_ok()
    }

    /// Asks a refused mount again. At the refusal its daemon may have lacked descriptors, or the program rights.
    fn ask_again(&self, kernel_stat: &KernelStat, fd: BorrowedFd<'_>) -> MountAnswer {
        let began = now_ms();
        if self.claim(began) {
            match ask_mount(kernel_stat, fd) {
                Ok(MountAnswer::Ours(at)) => {
                    // ORDERING: Release: a thread that sees the attachment sees the engine.
                    self.attached_later.store(std::ptr::from_ref(at).cast_mut(), Ordering::Release);
                }
                // Only the first refusal's text is kept: texts live for ever, and their number must stay
                // bounded.
                Ok(_) | Err(_) => self.again_ms.store(ask_again_at(began), Ordering::SeqCst),
            }
        }
        self.found()
    }
}

/// A monotonic clock.
fn now_ms() -> u64 {
    heddle_nvmfs::clock::monotonic_ns() / 1_000_000
}

/// The time from which to ask again, after a refusal that was asked for at `began_ms` and has just come.
fn ask_again_at(began_ms: u64) -> u64 {
    let now = now_ms();
    now + (AGAIN_AFTER.as_millis() as u64).max(now.saturating_sub(began_ms) * u64::from(AGAIN_AFTER_TIMES))
}

const DETACHED: &str = "the program has changed its rights, its descriptors or its memory lock since it attached: it works through \
                        the mount";

/// All mounts seen so far.
pub struct Attachments {
    head: AtomicPtr<Entry>,
}

impl Default for Attachments {
    fn default() -> Attachments {
        Attachments::new()
    }
}

impl Attachments {
    /// An empty list.
    pub const fn new() -> Attachments {
        Attachments { head: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The mount of a descriptor, if it was seen before and is not to be asked again. Takes no lock and
    /// allocates nothing.
    pub fn known(&self, kernel_stat: &KernelStat) -> Option<MountAnswer> {
        self.entry(kernel_stat).filter(|e| !e.is_due()).map(Entry::found)
    }

    fn entry(&self, kernel_stat: &KernelStat) -> Option<&Entry> {
        self.entries().find(|e| (e.dev, e.mount) == (kernel_stat.dev, kernel_stat.mount))
    }

    /// Returns true if this is a heddle mount that was seen before, whether or not its engine is mapped. A mount that refused at first
    /// counts.
    pub fn has_met(&self, kernel_stat: &KernelStat) -> bool {
        self.entry(kernel_stat).is_some_and(|entry| !matches!(entry.attached(), MountAnswer::Foreign))
    }

    /// Returns true if an engine is mapped into this process.
    pub fn any_engine_mapped(&self) -> bool {
        self.entries().any(|e| matches!(e.found(), MountAnswer::Ours(_)))
    }

    /// Unmaps every engine: from now on the kernel serves the files of these mounts.
    ///
    /// # Safety
    /// A2: no file of an engine exists, and no thread is between finding an engine and opening a
    /// file of it.
    pub unsafe fn let_go(&self) {
        for entry in self.entries() {
            if let MountAnswer::Ours(at) = entry.attached()
                && !at.gone.swap(true, Ordering::SeqCst)
            {
                // SAFETY: this runs once, and no thread uses the engine (the caller's promise).
                unsafe { ManuallyDrop::drop(&mut *at.fs.get()) };
            }
        }
    }

    /// As [`Attachments::let_go`], by system calls alone: for a signal handler, where nothing may be freed.
    /// Files that are closed later do not call their engines. Returns false if nothing was done, because nothing
    /// can be done.
    ///
    /// # Safety
    /// As [`Attachments::let_go`], but files may exist that no thread uses any more.
    pub unsafe fn unmap_without_freeing(&self) -> bool {
        let mapped = self.entries().filter_map(|entry| match entry.attached() {
            MountAnswer::Ours(at) if !at.gone.load(Ordering::SeqCst) => Some(at),
            _ => None,
        });
        // SAFETY: mapped until now, never dropped since `gone` is set, and no thread uses it (the caller's
        // promise).
        let done = unsafe { client::unmap_without_freeing(mapped.map(|at| &**at.fs.get())) };
        if done {
            disown_all_opened();
            self.entries().for_each(|entry| {
                if let MountAnswer::Ours(at) = entry.attached() {
                    at.gone.store(true, Ordering::SeqCst);
                }
            });
        }
        done
    }

    /// The mount of a descriptor. Attaches to a heddle mount that is new or was refused a while ago. If two
    /// threads do so at once, both attach. The engine of one then stays mapped and unused, which does no harm.
    pub fn find(&self, kernel_stat: &KernelStat, fd: BorrowedFd<'_>) -> MountAnswer {
        if let Some(entry) = self.entry(kernel_stat) {
            return if entry.is_due() { entry.ask_again(kernel_stat, fd) } else { entry.found() };
        }
        let began = now_ms();
        let first = ask_mount(kernel_stat, fd)
            .unwrap_or_else(|why| MountAnswer::Refused(Box::leak(why.into_boxed_str())));
        // ORDERING: Acquire, pairs with the Release below.
        let mut next = self.head.load(Ordering::Acquire);
        let entry = Box::into_raw(Box::new(Entry {
            dev: kernel_stat.dev,
            mount: kernel_stat.mount,
            first_answer: first,
            attached_later: AtomicPtr::default(),
            again_ms: AtomicU64::new(ask_again_at(began)),
            next,
        }));
        // ORDERING: Release, pairs with the Acquire in `entries`: a thread that sees the entry sees its content.
        while let Err(now) = self.head.compare_exchange(next, entry, Ordering::Release, Ordering::Acquire) {
            next = now;
            // SAFETY: the entry is not in the list yet, so no other thread knows it.
            unsafe { (*entry).next = next };
        }
        first
    }

    /// The reasons of all refusals.
    pub fn refusals(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.entries().filter_map(|e| match e.found() {
            MountAnswer::Refused(why) => Some(why),
            _ => None,
        })
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        // ORDERING: Acquire, pairs with the Release in `find`.
        let mut at = self.head.load(Ordering::Acquire).cast_const();
        std::iter::from_fn(move || {
            // SAFETY: A1: null or an entry that is never freed.
            let entry = unsafe { at.as_ref() }?;
            at = entry.next;
            Some(entry)
        })
    }
}

/// Asks the mount itself, through the program's own descriptor: neither a path nor the table of mounts is
/// trusted to tell the daemon. Returns an error with the reason if the engine is out of reach.
fn ask_mount(kernel_stat: &KernelStat, fd: BorrowedFd<'_>) -> Result<MountAnswer, String> {
    if !rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_type == FUSE_MAGIC) {
        return Ok(MountAnswer::Foreign);
    }
    match client::attach(fd) {
        Ok(fs) => Ok(MountAnswer::Ours(Attachment::new(fs, kernel_stat.dev))),
        Err(AttachError::NotMounted) => Ok(MountAnswer::Foreign),
        Err(why) => Err(why.to_string()),
    }
}

#[cfg(test)]
mod tests;
