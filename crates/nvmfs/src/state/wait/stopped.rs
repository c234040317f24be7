//! A holder that is stopped (SIGSTOP, a debugger, a frozen control group) while others wait: killed after the mount's patience, then
//! settled as dead. Taking its lane while it lives is no choice: its late stores would land in the midst of others' work (protocol review
//! D13). A process that is merely slow is never killed: it counts as stopped only if the kernel says so each time, and as often as it was
//! looked at it had not run since. One that sleeps in a page fault all the while (`still`) has longer.

use super::freezer::take_out_of_freezer;
use super::holders::{self, Process};
use super::still::{self, Rest};
use crate::state::core::Core;
use heddle_arena::{Holder, LaneId, Tag};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// A waiter looks this often at most.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// From then on a waiter looks whether the holder is stopped, and asks the daemon to, who may do what the waiter may not.
const LOOK_AFTER_MAX: Duration = Duration::from_secs(1);

thread_local! {
    /// Without a destructor: a thread that ends gives its lane back, and may wait for that.
    static WATCHED: RefCell<Option<(Instant, Watch)>> = const { RefCell::new(None) };

    /// The lane whose holder this thread saw at rest, and when it did so last.
    static RESTED: Cell<Option<(u16, Instant)>> = const { Cell::new(None) };
}
const _: () = assert!(!std::mem::needs_drop::<RefCell<Option<(Instant, Watch)>>>());

/// A holder that was seen at rest, and has not run since.
pub struct Watch {
    holder: Holder,
    process: Process,
    /// The thread, as this process numbers it.
    task: u32,
    since: Instant,
    rest: Rest,
}

/// What a waiter has found out about the holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Found {
    /// It was killed just now.
    Killed,
    /// It may have run for so long while it was waited for: since it was last seen at rest, if it was.
    MayHaveRun(Duration),
}

/// How long a stopped process may hold up others; `None`: for ever.
pub fn patience(core: &Core) -> Option<Duration> {
    *core.patience.get_or_init(|| {
        // ORDERING: Relaxed, a setting.
        let patience = core.root().patience_ms.load(Relaxed);
        (patience != 0).then(|| Duration::from_millis(patience.into()))
    })
}

/// For a waiter: kills the holder if it is at rest for too long; asks the daemon to, for holders that this process may not kill.
pub fn look_after(core: &Core, lane: u16, waited: Duration) -> Found {
    if let Some(patience) = patience(core)
        && waited >= LOOK_AFTER_MAX.min(patience / 8)
        && let Some(holder) = core.lane_table().holder(&core.arena, LaneId(lane))
    {
        core.lane_table().ask(&core.arena, LaneId(lane), holder);
        let (at_rest, killed) = WATCHED.with_borrow_mut(|watched| {
            let killed = look(core, lane, holder, patience, watched);
            (watched.is_some(), killed)
        });
        if killed {
            return Found::Killed;
        }
        if at_rest {
            RESTED.set(Some((lane, Instant::now())));
        }
    }
    let rested = RESTED.get().filter(|(of, _)| *of == lane);
    Found::MayHaveRun(rested.map_or(waited, |(_, at)| at.elapsed().min(waited)))
}

/// Looks at the holder, unless it did so just now; `watched`: what it sees, if the holder is at rest. True: it was at rest for too long,
/// and was killed.
fn look(
    core: &Core,
    lane: u16,
    holder: Holder,
    patience: Duration,
    watched: &mut Option<(Instant, Watch)>,
) -> bool {
    if watched.as_ref().is_some_and(|(at, watch)| watch.holder == holder && at.elapsed() < LOOK_EVERY) {
        return false;
    }
    let before = watched.take().map(|(_, watch)| watch);
    let now = Watch::look(core, holder, before);
    let killed = now.as_ref().is_some_and(|watch| watch.is_over(patience) && watch.kill(core, lane));
    *watched = now.map(|watch| (Instant::now(), watch));
    killed
}

impl Watch {
    /// Looks at a holder; `before`: what the last look saw. `None`: it is not at rest, or cannot be seen.
    pub fn look(core: &Core, holder: Holder, before: Option<Watch>) -> Option<Watch> {
        let before = before.filter(|watch| watch.holder == holder);
        if let Some(watch) = before
            && let Some(rest) = Rest::of(&watch.process, watch.task)
        {
            let since = if rest == watch.rest { watch.since } else { Instant::now() };
            return Some(Watch { since, rest, ..watch });
        }
        holders::of(core, holder.process())?.into_iter().find_map(|process| {
            let task = process.task(holder.thread())?;
            let rest = Rest::of(&process, task)?;
            Some(Watch { holder, process, task, since: Instant::now(), rest })
        })
    }

    /// Has it been at rest for longer than others have patience?
    pub fn is_over(&self, patience: Duration) -> bool {
        let limit = if self.rest.why == still::Why::Stopped { patience } else { still::limit(patience) };
        self.since.elapsed() >= limit
    }

    /// Kills it, if it still is what it was.
    pub fn kill(&self, core: &Core, lane: u16) -> bool {
        let (process, holder) = (&self.process, self.holder);
        if process.pid == std::process::id()
            || self.rest.why != still::Why::Stopped && is_daemon(core, holder)
        {
            return false;
        }
        let Some(pid) = Pid::from_raw(process.pid as i32) else { return false };
        // From here on the number cannot come to mean another process; what was found is looked at again.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        let killed = process.still_sits(core, holder.process())
            && process.task(holder.thread()) == Some(self.task)
            && Rest::of(process, self.task) == Some(self.rest)
            && core.lane_table().holder(&core.arena, LaneId(lane)) == Some(holder)
            && pidfd_send_signal(pidfd, Signal::KILL).is_ok();
        if killed {
            take_out_of_freezer(process.pid);
        }
        killed
    }
}

/// The daemon's own page faults are the image's, on a device that may be slow; and all others work through it.
fn is_daemon(core: &Core, holder: Holder) -> bool {
    holder.process() == Tag::of(core.root().daemon.load(SeqCst))
}
