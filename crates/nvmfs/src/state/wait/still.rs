//! A holder at rest: the kernel reports that its thread does not run, and cannot until something outside of
//! it happens.
//!
//! It is stopped, or it sleeps in a page fault: a page of its caller's buffer comes late (userfaultfd, a
//! mapped file of a slow file system, swap). In both cases it still holds what it took, so a lock that names
//! it is not forged. A thread that sleeps in a system call is not at rest. A waiting thread does so, but so
//! does an idle one, which a forged lock may name.

use super::freezer::is_frozen;
use super::holders::Process;
use std::time::Duration;

/// Added to twice the patience: the time that a page may take. It is less than a waiter grants to a slow call
/// (`forged`), so the daemon kills the holder before waiters give up.
const SLOW_PAGE: Duration = Duration::from_secs(5);

/// Why a thread does not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Why {
    /// It is stopped or frozen.
    Stopped,
    /// It waits for a page of memory.
    PageFault,
}

/// A thread's rest. If two checks see the same value, the thread has not run in between.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rest {
    /// Its cause.
    pub why: Why,
    /// Number of context switches of the thread.
    switches: u64,
}

/// How long a holder may sleep in one page fault while others wait.
pub fn limit(patience: Duration) -> Duration {
    patience * 2 + SLOW_PAGE
}

#[cfg(test)]
impl Rest {
    /// A rest that a check has found.
    pub fn found(why: Why) -> Rest {
        Rest { why, switches: 7 }
    }
}

impl Rest {
    /// The rest of a thread, in this process's numbering; `None`: it runs, sleeps in a system call, or is not
    /// visible.
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

/// Returns true if a sleeping thread sleeps outside of any system call.
fn sleeps_in_a_page_fault(pid: u32, task: u32) -> bool {
    let read = |name: &str| std::fs::read_to_string(format!("/proc/{pid}/task/{task}/{name}"));
    match read("syscall") {
        Ok(call) => call.starts_with("-1 "),
        // This file is not readable for all users and on all kernels. The function it sleeps in identifies
        // most page faults.
        Err(_) => read("wchan").is_ok_and(|at| at == "handle_userfault" || at.starts_with("folio_wait")),
    }
}
