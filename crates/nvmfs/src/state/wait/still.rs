//! A holder at rest: the kernel says that its thread does not run, and cannot until something outside of it happens.
//!
//! It is stopped, or it sleeps in a page fault: a page of its caller's buffer comes late (userfaultfd, a mapped file of a slow file system,
//! swap). Either way it holds what it took, so a lock that names it is none that somebody has scribbled. A thread that sleeps in a system
//! call is not at rest: one that waits for a lock does so, but so does an idle one, to which a scribbled lock may point.

use super::freezer::is_frozen;
use super::holders::Process;
use std::time::Duration;

/// Beside twice the patience: what a page may take. Less than a waiter grants to a slow call (`forged`): the daemon kills before others
/// give up.
const SLOW_PAGE: Duration = Duration::from_secs(5);

/// Why a thread does not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// Somebody has stopped or frozen it.
    Stopped,
    /// It waits for a page of memory.
    PageFault,
}

/// A thread's rest. Two looks that see the same have met one rest: it has not run in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rest {
    /// Its cause.
    pub why: Why,
    /// How often the thread has been switched away from.
    switches: u64,
}

/// How long a holder may sleep in one page fault while others wait.
pub fn limit(patience: Duration) -> Duration {
    patience * 2 + SLOW_PAGE
}

impl Rest {
    /// The thread's, as this process numbers it; `None`: it runs, sleeps in a system call, or cannot be seen.
    pub fn of(process: &Process, task: u32) -> Option<Rest> {
        let status = std::fs::read_to_string(format!("/proc/{}/task/{task}/status", process.pid)).ok()?;
        let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
        let state = value("State:")?;
        let why = if state.starts_with(['T', 't']) || is_frozen(process.pid) {
            Why::Stopped
        } else if state.starts_with(['S', 'D']) && sleeps_in_a_page_fault(process.pid, task) {
            Why::PageFault
        } else {
            return None;
        };
        let switches = |name| value(name).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        let switches = switches("voluntary_ctxt_switches:") + switches("nonvoluntary_ctxt_switches:");
        Some(Rest { why, switches })
    }
}

/// Of a thread that sleeps: it does so outside of any system call.
fn sleeps_in_a_page_fault(pid: u32, task: u32) -> bool {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/task/{task}/{name}"));
    match read("syscall") {
        Ok(call) => call.starts_with("-1 "),
        // Not to be asked by everybody everywhere. The place where it sleeps tells most such faults.
        Err(_) => read("wchan").is_ok_and(|at| at == "handle_userfault" || at.starts_with("folio_wait")),
    }
}
