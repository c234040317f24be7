//! Files of which the kernel holds pages for a mapping: calls past those pages, and pages that the kernel
//! writes back.
//!
//! Why         For a direct write the kernel drops its pages, runs the write, and drops them again. A page that it reads in between has
//!             the old bytes. If a mapping then stores to that page, the whole page is written back, with the old bytes. So a page that
//!             is written back is compared with the bytes that the kernel was given, and only the bytes that differ are written.
//! State       per mapped file, the `Base` of each page that a call went past: the bytes of the kernel's page before that call, without
//!             stores. A page without a `Base` equals the engine's, except for stores: nothing is remembered of it.
//! Invariants  P1  before a page of a file is read for the kernel, the file is noted and all earlier calls on it have ended. The same
//!                 holds before a program with the bypass library maps it, for such a program works on files past the kernel.
//!             P2  a call that changes a noted file first captures bases, and holds the file's lock until the engine has finished it.
//!             P3  the base of a page goes when the kernel reads the page again, when a page that is written back takes no byte away, or
//!                 when the kernel has dropped the page.
//!             P4  a file is noted until the last descriptor through which it was noted has closed and the kernel has then taken the
//!                 notification to drop all its pages. If the kernel refuses that, the file stays noted. So another descriptor that maps
//!                 the file reads again, and is seen, or bases are captured for its pages. The kernel does not answer whether each page
//!                 went: one that it could not drop may be mapped unseen.
//! Lock order  a file's `ready`, then a slot of the handles, then its `held`; `files` last. None of them is held while the kernel is told
//!             to drop pages: it first writes them back, to threads that take these locks.

mod held;
mod invalidator;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use heddle_vfs::{Cred, FileSystem, Ino, OpenFlags, Result};

use crate::handles::Open;
use crate::shared::Shared;
use crate::writers::Counts;
use held::FilePages;
use invalidator::{Invalidator, Job};

const PAGE_BYTES: u64 = 4096;

/// All mapped files of a mount.
pub(crate) struct Pages {
    known: Arc<Known>,
    invalidator: Invalidator,
}

/// State shared by the threads that serve and the thread that tidies.
struct Known {
    fs: Arc<dyn FileSystem>,
    shared: Arc<Shared>,
    /// Noted files by a hash of the inode: a call on another file checks only this.
    noted: Counts,
    files: Mutex<HashMap<Ino, Noted>>,
    /// Bases captured since the kernel was last told to drop pages.
    captured: AtomicUsize,
}

struct Noted {
    pages: Arc<FilePages>,
    /// Open descriptors through which the file was noted.
    descriptors: usize,
    /// Number of such descriptors ever.
    ever: u64,
}

impl Pages {
    pub(crate) fn new(fs: Arc<dyn FileSystem>, shared: Arc<Shared>) -> Pages {
        let (noted, files, captured) = (Counts::default(), Mutex::default(), AtomicUsize::new(0));
        let known = Arc::new(Known { fs, shared, noted, files, captured });
        Pages { invalidator: Invalidator::new(Arc::clone(&known)), known }
    }

    /// Handles the final close of this descriptor.
    pub(crate) fn closes(&self, open: &Open) {
        if open.marks.maps.load(SeqCst) {
            self.closes_one_of(open.handle.ino);
        }
    }

    /// The pages of a noted file. For other files this reads one word that is rarely written.
    pub(crate) fn of(&self, ino: Ino) -> Option<Arc<FilePages>> {
        self.known.of(ino)
    }

    /// Notes one more descriptor of a file.
    pub(crate) fn note(&self, ino: Ino) -> Result<Arc<FilePages>> {
        self.known.note(ino)
    }

    pub(crate) fn closes_one_of(&self, ino: Ino) {
        if self.known.leave(ino) {
            self.invalidator.tell(Job::Unmapped(ino));
        }
    }

    /// Ends the state: no thread of this mount uses the engine any more.
    pub(crate) fn end(&self) {
        self.invalidator.end();
        for (_, noted) in self.known.files().drain() {
            self.known.forget(&noted);
        }
    }

    /// Counts captured bases.
    pub(crate) fn count(&self, captured: usize) {
        if captured > 0 && invalidator::is_due(self.known.captured.fetch_add(captured, SeqCst), captured) {
            self.invalidator.tell(Job::Wake);
        }
    }
}

impl Known {
    fn of(&self, ino: Ino) -> Option<Arc<FilePages>> {
        if self.noted.of(ino).load(SeqCst) == 0 {
            return None;
        }
        self.files().get(&ino).map(|noted| Arc::clone(&noted.pages))
    }

    fn note(&self, ino: Ino) -> Result<Arc<FilePages>> {
        let count = |noted: &mut Noted| {
            noted.descriptors += 1;
            noted.ever += 1;
            Arc::clone(&noted.pages)
        };
        if let Some(noted) = self.files().get_mut(&ino) {
            return Ok(count(noted));
        }
        let handle = self.fs.open(&Cred::root(), ino, OpenFlags::READ)?;
        self.fs.note_kernel_pages(&handle, true);
        let mut fresh = Some(Noted { pages: Arc::new(FilePages::new(handle)), descriptors: 0, ever: 0 });
        let pages = count(self.files().entry(ino).or_insert_with(|| {
            self.noted.of(ino).fetch_add(1, SeqCst);
            fresh.take().expect("it is made above")
        }));
        fresh.iter().for_each(|unused| self.forget(unused));
        Ok(pages)
    }

    /// Drops one descriptor. Returns true if it was the last.
    fn leave(&self, ino: Ino) -> bool {
        self.files().get_mut(&ino).is_some_and(|noted| {
            noted.descriptors -= 1;
            noted.descriptors == 0
        })
    }

    /// How many descriptors a file without an open one ever had.
    fn count_ever_if_closed(&self, ino: Ino) -> Option<u64> {
        self.files().get(&ino).filter(|noted| noted.descriptors == 0).map(|noted| noted.ever)
    }

    /// Forgets a file: the kernel has no page of it, if it never had more descriptors than `ever`.
    fn forget_unmapped(&self, ino: Ino, ever: u64) {
        let mut files = self.files();
        if files.get(&ino).is_some_and(|noted| noted.descriptors == 0 && noted.ever <= ever) {
            let noted = files.remove(&ino);
            self.noted.of(ino).fetch_sub(1, SeqCst);
            drop(files);
            noted.iter().for_each(|noted| self.forget(noted));
        }
    }

    fn forget(&self, noted: &Noted) {
        // An engine that may not be called any more finds open files itself.
        let _ = self.shared.guarded(|| {
            if let Some(handle) = noted.pages.end() {
                self.fs.note_kernel_pages(&handle, false);
                self.fs.release(handle);
            }
            Ok(())
        });
    }

    /// Makes the kernel drop pages of which something is remembered. Returns false if something must stay.
    fn tidy(&self) -> bool {
        self.captured.store(0, SeqCst);
        let files: Vec<_> =
            self.files().iter().map(|(ino, noted)| (*ino, Arc::clone(&noted.pages))).collect();
        let mut all = true;
        for (ino, pages) in files {
            for stale in pages.stale() {
                let Range { start, end } = stale.pages;
                let dropped = self.shared.drop_pages(ino, start * PAGE_BYTES, (end - start) * PAGE_BYTES);
                if dropped {
                    pages.dropped(&stale);
                }
                all &= dropped;
            }
        }
        all
    }

    fn files(&self) -> MutexGuard<'_, HashMap<Ino, Noted>> {
        self.files.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
