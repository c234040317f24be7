//! This thread makes the kernel drop pages: periodically those with entries, and all of a file when its last mapping descriptor closes.
//!
//! It starts with the first job. The kernel writes dirty pages back before it drops them, and waits for that, so no thread that serves may
//! ask for it. A guard ends that wait when the process is killed. If the thread cannot be started, or the kernel refuses the notification,
//! entries stay longer. A file stays noted then until it is mapped and closed again, or until the unmount (invariant P4 of `pages`).

use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heddle_vfs::Ino;

use super::Known;

/// How often the thread makes the kernel drop pages while there are entries.
const ROUND: Duration = Duration::from_millis(200);

/// This many new bases (16 MiB) wake the thread at once.
const BASES_MANY: usize = 4096;

pub(super) enum Job {
    /// Wakes the thread: the first base, or [`BASES_MANY`] more, were captured. The thread tidies after [`ROUND`], or at once if they are
    /// many.
    Wake,
    /// The last mapping descriptor of a file has closed.
    Unmapped(Ino),
}

/// The thread and its jobs (see the module).
pub(super) struct Invalidator {
    known: Arc<Known>,
    thread: Mutex<Option<Thread>>,
}

struct Thread {
    jobs: Sender<Job>,
    handle: JoinHandle<()>,
}

/// Returns true if so many more bases wake the thread.
pub(super) fn is_due(before: usize, added: usize) -> bool {
    before == 0 || before / BASES_MANY != (before + added) / BASES_MANY
}

impl Invalidator {
    pub(super) fn new(known: Arc<Known>) -> Invalidator {
        Invalidator { known, thread: Mutex::default() }
    }

    /// Gives the thread a job, and starts it if needed. If no thread takes the job, nothing is forgotten.
    pub(super) fn tell(&self, job: Job) {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (jobs, received) = channel();
            let known = Arc::clone(&self.known);
            let named = std::thread::Builder::new().name("heddle-pages".into());
            *thread = named.spawn(move || run(&known, &received)).ok().map(|handle| Thread { jobs, handle });
        }
        if let Some(thread) = &*thread {
            let _ = thread.jobs.send(job);
        }
    }

    /// Ends the thread once its jobs are done.
    pub(super) fn end(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Thread { jobs, handle }) = thread {
            drop(jobs);
            let _ = handle.join();
        }
    }
}

fn run(known: &Known, jobs: &Receiver<Job>) {
    let _guard = known.shared.guard();
    let mut tidied = Instant::now();
    let mut some_stay = false;
    loop {
        let captured = known.captured.load(SeqCst);
        let job = match captured > 0 || some_stay {
            true if captured >= BASES_MANY => Err(RecvTimeoutError::Timeout),
            true => jobs.recv_timeout(ROUND.saturating_sub(tidied.elapsed())),
            false => jobs.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match job {
            Ok(Job::Unmapped(ino)) => {
                // A page that stays with the kernel is mapped again without a read, so the file must stay noted. The kernel answers only
                // whether it took the notification: fuse_reverse_inval_inode() drops the result of invalidate_inode_pages2_range().
                if let Some(ever) = known.count_ever_if_closed(ino)
                    && known.shared.drop_all_pages(ino)
                {
                    known.forget_unmapped(ino, ever);
                }
            }
            Ok(Job::Wake) => {}
            Err(RecvTimeoutError::Timeout) => {
                some_stay = !known.tidy();
                tidied = Instant::now();
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
