//! A holder that is stopped (SIGSTOP, a debugger, a frozen control group) while others wait: killed after the mount's patience, then
//! settled as dead. Taking its lane while it lives is no choice: its late stores would land in the midst of others' work (protocol review
//! D13). A process that is merely slow is never killed: only the kernel's word that it is stopped counts.

use super::holders::{self, Process};
use crate::core::Core;
use heddle_arena::{Holder, LaneId};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// Looking for a process reads much of `/proc`: a waiter does so this often at most.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// From then on a waiter also asks the daemon, who may do what the waiter may not.
const ASK_AFTER: Duration = Duration::from_secs(1);

thread_local! {
    static LOOKED: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// How long a stopped process may hold up others; `None`: for ever.
pub fn patience(core: &Core) -> Option<Duration> {
    // ORDERING: Relaxed, a setting.
    let patience = core.root().patience_ms.load(Relaxed);
    (patience != 0).then(|| Duration::from_millis(patience.into()))
}

/// For a waiter: kills the holder if it has been waited for too long and is stopped; asks the daemon to, for holders that this process may
/// not kill. True: it was killed.
pub fn kill(core: &Core, lane: u16, waited: Duration) -> bool {
    let Some(patience) = patience(core) else { return false };
    let Some(holder) = core.lane_table().holder(&core.arena, LaneId(lane)) else { return false };
    if waited >= patience.min(ASK_AFTER) {
        core.lane_table().ask(&core.arena, LaneId(lane), holder);
    }
    let looked = LOOKED.with(|looked| looked.get().is_some_and(|at| at.elapsed() < LOOK_EVERY));
    if waited < patience || looked {
        return false;
    }
    LOOKED.with(|looked| looked.set(Some(Instant::now())));
    kill_stopped(core, lane, holder)
}

/// Kills the holder if it is stopped.
pub fn kill_stopped(core: &Core, lane: u16, holder: Holder) -> bool {
    let own = std::process::id();
    let found = holders::of(core, holder.process());
    let stopped = found
        .iter()
        .filter(|process| process.pid != own)
        .find(|process| is_stopped(process, holder.thread()));
    let Some(process) = stopped else { return false };
    let Some(pid) = Pid::from_raw(process.pid as i32) else { return false };
    // From here on the number cannot come to mean another process; what was found is looked at again.
    let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
    process.still_sits(core, holder.process())
        && is_stopped(process, holder.thread())
        && core.lane_table().holder(&core.arena, LaneId(lane)) == Some(holder)
        && pidfd_send_signal(pidfd, Signal::KILL).is_ok()
        && {
            take_out_of_freezer(process.pid);
            true
        }
}

/// What the first version of control groups has frozen dies only where it is not frozen: for that it is moved to the topmost group.
fn take_out_of_freezer(pid: u32) {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    let frozen = groups.lines().any(|line| line.contains(":freezer:") && !line.ends_with(":/"));
    for dir in dirs_of_group("cgroup", Some("freezer"), "/").into_iter().filter(|_| frozen) {
        // Where this may not be done, whoever thaws the group lets it die.
        let _moved = std::fs::write(dir.join("cgroup.procs"), pid.to_string());
    }
}

/// Is this thread of the process stopped, or all of the process frozen?
fn is_stopped(process: &Process, thread: u32) -> bool {
    let task = process.tasks().into_iter().find(|task| task.inner == thread);
    let stopped = task.is_some_and(|task| {
        let stat = std::fs::read_to_string(format!("/proc/{}/task/{}/stat", process.pid, task.outer))
            .unwrap_or_default();
        // The third field, behind a name that may hold blanks and brackets.
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
    });
    stopped || is_frozen(process.pid)
}

/// Do the process's control groups say that it is frozen? Tasks of such a group show no state of their own (D or S).
fn is_frozen(pid: u32) -> bool {
    let groups = std::fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    groups.lines().any(|line| {
        // `number:controllers:path`
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next())
        else {
            return false;
        };
        if number == "0" {
            let events = read_in_group("cgroup2", None, path, "cgroup.events");
            return events.lines().any(|line| line == "frozen 1");
        }
        controllers.split(',').any(|controller| controller == "freezer")
            && read_in_group("cgroup", Some("freezer"), path, "freezer.state").trim() == "FROZEN"
    })
}

/// A file of a control group, wherever its hierarchy is mounted here; empty if it is not.
fn read_in_group(kind: &str, controller: Option<&str>, path: &str, name: &str) -> String {
    let files = dirs_of_group(kind, controller, path).into_iter().map(|dir| dir.join(name));
    files.filter_map(|file| std::fs::read_to_string(file).ok()).next().unwrap_or_default()
}

/// Where a control group is, in each place where its hierarchy is mounted here.
fn dirs_of_group(kind: &str, controller: Option<&str>, path: &str) -> Vec<PathBuf> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    let dirs = table.lines().filter_map(|line| {
        // `id parent device root dir options [optional fields] - type source options`
        let (mount, rest) = line.split_once(" - ")?;
        let mut fields = mount.split(' ').skip(3);
        let (root, dir) = (fields.next()?, fields.next()?);
        let mut rest = rest.split(' ');
        let ours = rest.next()? == kind
            && controller
                .is_none_or(|c| rest.nth(1).is_some_and(|options| options.split(',').any(|o| o == c)));
        let below = Path::new(path).strip_prefix(root).ok().filter(|_| ours)?;
        Some(PathBuf::from(dir).join(below))
    });
    dirs.collect()
}
