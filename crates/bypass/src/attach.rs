//! Which mounts are ours, and the engine of each.
//!
//! State       a list that only grows, one entry a mount that a descriptor was seen of: ours with its engine, not ours, or refused.
//! Invariants  A1  an entry is never freed. One that was refused becomes ours at most once; an engine is let go of at most once.
//!             A2  no file of an engine is open, and none is being opened, when that engine is let go of ([`Attachments::let_go`]).
//!
//! A mount is known by its device and its unique number, so that another file system that gets the same device later is another.

use crate::process::{process, this_is_another};
use crate::tell::Told;
use heddle_nvmfs::NvmFs;
use heddle_nvmfs::client::{self, AttachError};
use rustix::fd::BorrowedFd;
use std::cell::UnsafeCell;
use std::mem::ManuallyDrop;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// What statfs(2) calls a FUSE mount, ours or another's.
const FUSE_MAGIC: i64 = 0x6573_5546;
/// So long after a refusal nobody asks again.
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// A refusal that took long is not asked for again before so many times that time.
const AGAIN_AFTER_TIMES: u32 = 20;
/// While a thread asks again no other does; should it end within, another one does after this time.
const ASKING_MAX: Duration = Duration::from_secs(30);

/// A mount whose engine this process has attached to.
pub struct Attachment {
    /// Dropped when `gone` is set.
    fs: UnsafeCell<ManuallyDrop<NvmFs>>,
    gone: AtomicBool,
    /// Device number of the mount, as `st_dev`.
    pub dev: u64,
    /// The process that has mapped all of the image: a forked one has none of its parent's pages.
    mapped_by: AtomicU32,
}

// SAFETY: the engine is shared by reference; it is changed once, by `let_go`, while nobody has a reference (A2).
unsafe impl Sync for Attachment {}

impl Attachment {
    pub(crate) fn new(fs: NvmFs, dev: u64) -> Attachment {
        let fs = UnsafeCell::new(ManuallyDrop::new(fs));
        Attachment { fs, gone: AtomicBool::new(false), dev, mapped_by: AtomicU32::new(0) }
    }

    /// The engine.
    #[inline]
    pub fn fs(&self) -> &NvmFs {
        debug_assert!(!self.gone.load(Ordering::SeqCst));
        // SAFETY: A2: the caller has a file of it, or is opening one.
        unsafe { &*self.fs.get() }
    }

    /// With `HEDDLE_PREFAULT=1` maps all of the image, once a process: its first stores to each part then cost what later ones do.
    pub fn prefault(&self) {
        static ASKED: OnceLock<bool> = OnceLock::new();
        let asked =
            *ASKED.get_or_init(|| std::env::var_os("HEDDLE_PREFAULT").is_some_and(|said| said == "1"));
        if asked && self.mapped_by.swap(process(), Ordering::SeqCst) != process() {
            self.fs().map_all();
        }
    }
}

/// What is known of a mount.
#[derive(Clone, Copy)]
pub enum Found {
    /// It is ours.
    Ours(&'static Attachment),
    /// It is another file system's.
    Foreign,
    /// It is ours, but its engine is out of reach: the text says why.
    Refused(&'static str),
}

struct Entry {
    dev: u64,
    mount: u64,
    first: Found,
    /// The engine of one that was refused at first; null: it still is.
    later: AtomicPtr<Attachment>,
    /// When one that was refused is asked again, by [`now_ms`].
    again_ms: AtomicU64,
    next: *const Entry,
}

impl Entry {
    /// Without regard to whether its engine was let go of.
    fn attached(&self) -> Found {
        // ORDERING: Acquire, pairs with the Release in `ask_again`.
        match (self.first, self.later.load(Ordering::Acquire)) {
            // SAFETY: an attachment is never freed.
            (Found::Refused(_), at) if !at.is_null() => Found::Ours(unsafe { &*at }),
            (first, _) => first,
        }
    }

    fn found(&self) -> Found {
        match self.attached() {
            Found::Ours(at) if at.gone.load(Ordering::SeqCst) => Found::Refused(GAVE_UP_RIGHTS),
            found => found,
        }
    }

    /// Was it refused, and so long ago that it is to be asked again?
    fn is_due(&self) -> bool {
        matches!(self.attached(), Found::Refused(_)) && now_ms() >= self.again_ms.load(Ordering::SeqCst)
    }

    /// Asks once more: the daemon may have had no descriptor left, the program may have the rights by now.
    fn ask_again(&self, told: &Told, fd: BorrowedFd<'_>) -> Found {
        let (due, began) = (self.again_ms.load(Ordering::SeqCst), now_ms());
        let claimed = began + ASKING_MAX.as_millis() as u64;
        let mine = due <= began
            && self.again_ms.compare_exchange(due, claimed, Ordering::SeqCst, Ordering::SeqCst).is_ok();
        if mine {
            match look(told, fd) {
                Ok(Found::Ours(at)) => {
                    // ORDERING: Release: a thread that sees it attached sees the engine.
                    self.later.store(std::ptr::from_ref(at).cast_mut(), Ordering::Release);
                }
                // What the first refusal said is kept: what all of them say would be kept for ever.
                Ok(_) | Err(_) => self.again_ms.store(after(began), Ordering::SeqCst),
            }
        }
        self.found()
    }
}

/// A clock that never goes back.
fn now_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1000 + now.tv_nsec as u64 / 1_000_000
}

/// When a refusal that was begun then, and has just ended, is asked for again.
fn after(began_ms: u64) -> u64 {
    let now = now_ms();
    now + (AGAIN_AFTER.as_millis() as u64).max(now.saturating_sub(began_ms) * u64::from(AGAIN_AFTER_TIMES))
}

const GAVE_UP_RIGHTS: &str =
    "the program has changed its rights since it attached: from then on it works through the mount";

/// All mounts seen so far.
pub struct Attachments {
    first: AtomicPtr<Entry>,
}

impl Default for Attachments {
    fn default() -> Attachments {
        Attachments::new()
    }
}

impl Attachments {
    /// None yet.
    pub const fn new() -> Attachments {
        Attachments { first: AtomicPtr::new(std::ptr::null_mut()) }
    }

    /// The mount of a descriptor, if one of it was seen before and need not be asked again. Takes no lock and allocates nothing.
    pub fn known(&self, told: &Told) -> Option<Found> {
        self.entry(told).filter(|e| !e.is_due()).map(Entry::found)
    }

    fn entry(&self, told: &Told) -> Option<&Entry> {
        self.entries().find(|e| (e.dev, e.mount) == (told.dev, told.mount))
    }

    /// Is an engine mapped into this process?
    pub fn any(&self) -> bool {
        self.entries().any(|e| matches!(e.found(), Found::Ours(_)))
    }

    /// Unmaps every engine: files of these mounts are the kernel's from now on.
    ///
    /// # Safety
    /// A2: no file of an engine exists, and no thread is between finding one and having a file of it.
    pub unsafe fn let_go(&self) {
        for entry in self.entries() {
            if let Found::Ours(at) = entry.attached()
                && !at.gone.swap(true, Ordering::SeqCst)
            {
                // SAFETY: once, and nobody uses it (the caller's promise).
                unsafe { ManuallyDrop::drop(&mut *at.fs.get()) };
            }
        }
    }

    /// As [`Attachments::let_go`], by system calls alone, where nothing may be freed: in a handler of a signal. Files that are closed later
    /// leave their engines alone. False: nothing was done, and nothing can be.
    ///
    /// # Safety
    /// As [`Attachments::let_go`], but files may exist that nobody uses any more.
    pub unsafe fn abandon(&self) -> bool {
        let mapped = self.entries().filter_map(|entry| match entry.attached() {
            Found::Ours(at) if !at.gone.load(Ordering::SeqCst) => Some(at),
            _ => None,
        });
        // SAFETY: mapped until now, never dropped since `gone` is set, and not used by anybody (the caller's promise).
        let done = unsafe { client::abandon(mapped.map(|at| &**at.fs.get())) };
        if done {
            this_is_another();
            self.entries().for_each(|entry| {
                if let Found::Ours(at) = entry.attached() {
                    at.gone.store(true, Ordering::SeqCst);
                }
            });
        }
        done
    }

    /// The mount of a descriptor; attaches to it if it is ours and new, or was refused a while ago. Two threads that do so at once attach
    /// twice, to no harm.
    pub fn find(&self, told: &Told, fd: BorrowedFd<'_>) -> Found {
        if let Some(entry) = self.entry(told) {
            return if entry.is_due() { entry.ask_again(told, fd) } else { entry.found() };
        }
        let began = now_ms();
        let first = look(told, fd).unwrap_or_else(|why| Found::Refused(Box::leak(why.into_boxed_str())));
        // ORDERING: Acquire, pairs with the Release below.
        let mut next = self.first.load(Ordering::Acquire);
        let entry = Box::into_raw(Box::new(Entry {
            dev: told.dev,
            mount: told.mount,
            first,
            later: AtomicPtr::default(),
            again_ms: AtomicU64::new(after(began)),
            next,
        }));
        // ORDERING: Release, pairs with the Acquire in `entries`: a thread that sees the entry sees its content.
        while let Err(now) = self.first.compare_exchange(next, entry, Ordering::Release, Ordering::Acquire) {
            next = now;
            // SAFETY: not in the list yet, so it is ours alone.
            unsafe { (*entry).next = next };
        }
        first
    }

    /// What was refused, and why.
    pub fn refusals(&self) -> impl Iterator<Item = &'static str> + '_ {
        self.entries().filter_map(|e| match e.found() {
            Found::Refused(why) => Some(why),
            _ => None,
        })
    }

    fn entries(&self) -> impl Iterator<Item = &Entry> {
        // ORDERING: Acquire, pairs with the Release in `find`.
        let mut at = self.first.load(Ordering::Acquire).cast_const();
        std::iter::from_fn(move || {
            // SAFETY: A1: null or an entry that is never freed.
            let entry = unsafe { at.as_ref() }?;
            at = entry.next;
            Some(entry)
        })
    }
}

/// Asks the mount itself, through the descriptor that the program has: no path and no table of mounts says which daemon is its own.
/// `Err`: why it is out of reach.
fn look(told: &Told, fd: BorrowedFd<'_>) -> Result<Found, String> {
    if !rustix::fs::fstatfs(fd).is_ok_and(|stat| stat.f_type == FUSE_MAGIC) {
        return Ok(Found::Foreign);
    }
    match client::attach(fd) {
        Ok(fs) => Ok(Found::Ours(Box::leak(Box::new(Attachment::new(fs, told.dev))))),
        Err(AttachError::NotMounted) => Ok(Found::Foreign),
        Err(why) => Err(why.to_string()),
    }
}

#[cfg(test)]
mod tests;
