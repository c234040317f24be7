//! A thread that makes the kernel drop pages: pages of which something is remembered now and then, pages of a
//! file when its last mapped descriptor closes.
//!
//! It starts with the first job. The kernel writes dirty pages back before it drops them, and waits for that,
//! so no thread that serves may ask for it. A guard ends that wait when the process is killed. If the thread
//! cannot be started, or the kernel refuses, more is remembered for longer.

use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use heddle_vfs::Ino;

use super::Known;

/// How often the thread looks while something is remembered.
const ROUND: Duration = Duration::from_millis(200);

/// This many new bases (16 MiB) wake the thread at once.
const BASES_MANY: usize = 4096;

pub(super) enum Job {
    /// Pages are remembered, or many of them.
    Tidy,
    /// The last mapped descriptor of a file has closed.
    Unmapped(Ino),
}

/// The thread and its jobs (see the module).
pub(super) struct Invalidator {
    known: Arc<Known>,
    thread: Mutex<Option<Thread>>,
}

struct Thread {
    jobs: Sender<Job>,
    runs: JoinHandle<()>,
}

/// Returns true if so many more bases wake the thread.
pub(super) fn is_due(before: usize, added: usize) -> bool {
    before == 0 || before / BASES_MANY != (before + added) / BASES_MANY
}

impl Invalidator {
    pub(super) fn new(known: Arc<Known>) -> Invalidator {
        Invalidator { known, thread: Mutex::default() }
    }

    /// Gives the thread a job, and starts it if needed. Returns false if it cannot be started.
    pub(super) fn tell(&self, job: Job) -> bool {
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if thread.is_none() {
            let (jobs, received) = channel();
            let known = Arc::clone(&self.known);
            let named = std::thread::Builder::new().name("heddle-pages".into());
            *thread = named.spawn(move || run(&known, &received)).ok().map(|runs| Thread { jobs, runs });
        }
        thread.as_ref().is_some_and(|thread| thread.jobs.send(job).is_ok())
    }

    /// Ends the thread once its jobs are done.
    pub(super) fn end(&self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Thread { jobs, runs }) = thread {
            drop(jobs);
            let _ = runs.join();
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
                if let Some(ever) = known.unmapped(ino) {
                    known.shared.drop_pages(ino, 0, 0);
                    known.forget_unmapped(ino, ever);
                }
            }
            Ok(Job::Tidy) => {}
            Err(RecvTimeoutError::Timeout) => {
                some_stay = !known.tidy();
                tidied = Instant::now();
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}
