//! Ends a child with all that it started, also where SIGKILL alone does not.
//!
//! A thread that waits for the answer of a FUSE daemon which does not answer outlives SIGKILL. Where that daemon is a thread of the same
//! process, or waits for it, the two wait for each other for ever. Only the kernel's `abort` of the connection ends both
//! (Linux, `filesystems/fuse.rst`). Nothing here waits without a limit.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::descendants;

/// How long a killed process may take to end. What it has mapped is given back first.
const ENDS: Duration = Duration::from_secs(20);
/// The same, where a FUSE connection may hold it.
const ENDS_BY_ITSELF: Duration = Duration::from_secs(3);

/// Kills the child and its descendants, and aborts the FUSE connections that only they have mounted.
///
/// # Errors
/// A child that has not ended all the same; it is left behind.
pub fn tree(child: &mut Child) -> Result<()> {
    let victims: Vec<u32> = std::iter::once(child.id()).chain(descendants(child.id())).collect();
    let connections = connections_of(&victims);
    let numbers: Vec<String> = victims[1..].iter().map(u32::to_string).collect();
    child.kill()?;
    if !numbers.is_empty() {
        // Some may have ended meanwhile, which kill reports as a failure of no interest here.
        Command::new("kill").arg("-KILL").args(&numbers).stderr(Stdio::null()).status()?;
    }
    if !ended(child, &victims, ENDS_BY_ITSELF)? {
        abort(&connections);
        if !ended(child, &victims, ENDS)? {
            bail!("a killed process has not ended; it may wait for a device");
        }
    }
    Ok(())
}

/// Has the child been reaped, and have the others ended, within the time?
fn ended(child: &mut Child, victims: &[u32], within: Duration) -> Result<bool> {
    let begun = Instant::now();
    loop {
        if child.try_wait()?.is_some() && victims[1..].iter().all(|pid| !is_running(*pid)) {
            return Ok(true);
        }
        if begun.elapsed() >= within {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A process that has ended and was not waited for has no program any more.
fn is_running(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}/exe")).read_link().is_ok()
}

/// The numbers of the FUSE connections that these processes have mounted and this process has not.
fn connections_of(pids: &[u32]) -> BTreeSet<u32> {
    let own = connections_in("/proc/self/mountinfo");
    let theirs = pids.iter().flat_map(|pid| connections_in(&format!("/proc/{pid}/mountinfo")));
    theirs.filter(|number| !own.contains(number)).collect()
}

fn connections_in(mountinfo: &str) -> BTreeSet<u32> {
    let text = std::fs::read_to_string(mountinfo).unwrap_or_default();
    text.lines().filter_map(connection).collect()
}

/// The minor number of a mount's device is the number of its connection (proc(5), `mountinfo`).
pub(super) fn connection(line: &str) -> Option<u32> {
    let (before, after) = line.split_once(" - ")?;
    let kind = after.split_whitespace().next()?;
    if kind != "fuse" && !kind.starts_with("fuse.") && kind != "fuseblk" {
        return None;
    }
    before.split_whitespace().nth(2)?.split_once(':')?.1.parse().ok()
}

/// In a mount namespace of its own: the control file system is not mounted everywhere. Only root can; what stays is told by [`tree`].
fn abort(connections: &BTreeSet<u32>) {
    for number in connections {
        let control = "/sys/fs/fuse/connections";
        let script =
            format!("mount -t fusectl fusectl {control} 2>/dev/null; echo 1 > {control}/{number}/abort");
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-c", &script]);
        let done = command.stdin(Stdio::null()).stderr(Stdio::null()).status();
        if !done.is_ok_and(|status| status.success()) {
            println!("the FUSE connection {number} of a killed process could not be aborted");
        }
    }
}
