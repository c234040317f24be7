//! A holder that is stopped (SIGSTOP, a debugger, a frozen control group) while others wait: killed after the mount's patience, then
//! settled as dead. Taking its lane while it lives is no choice: its late stores would land in the midst of others' work (protocol review
//! D13). A process that is merely slow is never killed: it counts as stopped only if the kernel says so each time, and as often as it was
//! looked at it had not run since.

use super::holders::{self, Process};
use crate::state::core::Core;
use heddle_arena::{Holder, LaneId};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

/// A waiter looks this often at most.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// From then on a waiter looks whether the holder is stopped, and asks the daemon to, who may do what the waiter may not.
const LOOK_AFTER_MAX: Duration = Duration::from_secs(1);

thread_local! {
    /// Without a destructor: a thread that ends gives its lane back, and may wait for that.
    static WATCHED: RefCell<Option<(Instant, Watch)>> = const { RefCell::new(None) };
}
const _: () = assert!(!std::mem::needs_drop::<RefCell<Option<(Instant, Watch)>>>());

/// A holder that was seen stopped, and has not run since.
pub struct Watch {
    holder: Holder,
    process: Process,
    /// The thread, as this process numbers it.
    task: u32,
    since: Instant,
    switches: u64,
}

/// How long a stopped process may hold up others; `None`: for ever.
pub fn patience(core: &Core) -> Option<Duration> {
    *core.patience.get_or_init(|| {
        // ORDERING: Relaxed, a setting.
        let patience = core.root().patience_ms.load(Relaxed);
        (patience != 0).then(|| Duration::from_millis(patience.into()))
    })
}

/// For a waiter: kills the holder if it is stopped for too long; asks the daemon to, for holders that this process may not kill. True: it
/// was killed.
pub fn kill(core: &Core, lane: u16, waited: Duration) -> bool {
    let Some(patience) = patience(core) else { return false };
    let look_after = LOOK_AFTER_MAX.min(patience / 8);
    if waited < look_after {
        return false;
    }
    let Some(holder) = core.lane_table().holder(&core.arena, LaneId(lane)) else { return false };
    core.lane_table().ask(&core.arena, LaneId(lane), holder);
    WATCHED.with_borrow_mut(|watched| {
        if watched.as_ref().is_some_and(|(at, watch)| watch.holder == holder && at.elapsed() < LOOK_EVERY) {
            return false;
        }
        let before = watched.take().map(|(_, watch)| watch);
        let now = Watch::look(core, holder, before);
        let killed = now.as_ref().is_some_and(|watch| watch.lasts() >= patience && watch.kill(core, lane));
        *watched = now.map(|watch| (Instant::now(), watch));
        killed
    })
}

impl Watch {
    /// Looks at a holder; `before`: what the last look saw. `None`: it is not stopped, or cannot be seen.
    pub fn look(core: &Core, holder: Holder, before: Option<Watch>) -> Option<Watch> {
        let before = before.filter(|watch| watch.holder == holder);
        if let Some(watch) = before
            && let Some(switches) = switches_if_stopped(&watch.process, watch.task)
        {
            let since = if switches == watch.switches { watch.since } else { Instant::now() };
            return Some(Watch { since, switches, ..watch });
        }
        let own = std::process::id();
        let found = holders::of(core, holder.process())?;
        found.into_iter().filter(|process| process.pid != own).find_map(|process| {
            let task = process.task(holder.thread())?;
            let switches = switches_if_stopped(&process, task)?;
            Some(Watch { holder, process, task, since: Instant::now(), switches })
        })
    }

    /// How long it has been seen stopped.
    pub fn lasts(&self) -> Duration {
        self.since.elapsed()
    }

    /// Kills it, if it still is what it was.
    pub fn kill(&self, core: &Core, lane: u16) -> bool {
        let (process, holder) = (&self.process, self.holder);
        let Some(pid) = Pid::from_raw(process.pid as i32) else { return false };
        // From here on the number cannot come to mean another process; what was found is looked at again.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        let killed = process.still_sits(core, holder.process())
            && process.task(holder.thread()) == Some(self.task)
            && switches_if_stopped(process, self.task) == Some(self.switches)
            && core.lane_table().holder(&core.arena, LaneId(lane)) == Some(holder)
            && pidfd_send_signal(pidfd, Signal::KILL).is_ok();
        if killed {
            take_out_of_freezer(process.pid);
        }
        killed
    }
}

/// How often this thread has been switched away from, if it is stopped now: the same number later says that it has not run meanwhile.
fn switches_if_stopped(process: &Process, task: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{}/task/{task}/status", process.pid)).ok()?;
    let value = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let stopped = value("State:")?.starts_with(['T', 't']) || is_frozen(process.pid);
    let switches = |name| value(name).and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
    stopped.then(|| switches("voluntary_ctxt_switches:") + switches("nonvoluntary_ctxt_switches:"))
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
