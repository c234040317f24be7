//! A holder that is stopped (SIGSTOP, a debugger, a frozen control group) while others wait. It is killed
//! after the mount's patience, then settled as dead. Its lane cannot be taken while it lives: its late stores
//! would overwrite others' work (docs/protocol.md D13). A process that is merely slow is never killed. A holder
//! counts as stopped only if the kernel reports it so at each check, and it has not run between the checks. One
//! that sleeps in one page fault all the time is given more time (`still::limit`).

use super::freezer::take_out_of_freezer;
use super::holders::{self, Process};
use super::still::{self, Rest};
use crate::state::core::Core;
use heddle_arena::{Holder, LaneId, ProcessTag};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::cell::{Cell, RefCell};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// Shortest interval between a waiter's checks of whether the holder is stopped.
const STOP_CHECK_EVERY: Duration = Duration::from_millis(50);
/// Latest time at which a waiter first checks whether the holder is stopped. It then asks the daemon too,
/// which may kill processes that the waiter may not.
const FIRST_CHECK_MAX: Duration = Duration::from_secs(1);

/// Most that counts between two checks of a waiter. They follow each other quickly. If this one was late, the waiter itself was stopped, or
/// its last check took long: the holder may have been stopped as long.
const STEP_MAX: Duration = Duration::from_secs(1);

/// At most so many holders are watched by one thread side by side: a call that finds no space waits for several.
const WATCHED_MAX: usize = 8;
/// Each with the time of its last check.
type Watched = [Option<(Instant, Watch)>; WATCHED_MAX];

thread_local! {
    /// There is no destructor: an ending thread returns its lane, and may wait during that.
    static WATCHED: RefCell<Watched> = const { RefCell::new([const { None }; WATCHED_MAX]) };

    /// This thread's last check of any lane, and for how long it had not looked before, since its wait began.
    static LOOKED: Cell<Option<(Instant, Duration)>> = const { Cell::new(None) };

    /// The lane whose holder this thread last saw at rest.
    static RESTED: Cell<Option<Rested>> = const { Cell::new(None) };
}
const _: () = assert!(!std::mem::needs_drop::<RefCell<Watched>>());

/// A holder that was at rest at a check.
#[derive(Clone, Copy)]
struct Rested {
    lane: u16,
    at: Instant,
    /// For how long the waiter had not looked until then.
    unseen: Duration,
}

/// A holder that was seen at rest, and has not run since.
pub struct Watch {
    holder: Holder,
    process: Process,
    /// The thread, in this process's numbering.
    task: u32,
    since: Instant,
    rest: Rest,
}

/// The result of a waiter's check of the holder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HolderCheck {
    /// It was killed just now.
    Killed,
    /// It may have run for this part of the wait, in steps of at most a second: since it was last seen at rest, if it was.
    MayHaveRun(Duration),
}

/// How long a stopped process may hold up others; `None`: for ever.
pub fn patience(core: &Core) -> Option<Duration> {
    // ORDERING: Relaxed, a setting.
    let patience = core.patience_ms.get_or_find(|| core.root().patience_ms.load(Relaxed));
    (patience != 0).then(|| Duration::from_millis(patience.into()))
}

/// How long a waiter waits before it checks whether the holder is stopped. The patience counts from that check on.
pub fn first_check(patience: Duration) -> Duration {
    FIRST_CHECK_MAX.min(patience / 8)
}

/// For a waiter: kills the holder if it is at rest for too long. Asks the daemon to do the same, which may kill
/// holders that this process may not.
pub fn check_and_kill_if_stopped(core: &Core, lane: u16, waited: Duration) -> HolderCheck {
    let mut at_rest = false;
    if let Some(patience) = patience(core)
        && waited >= first_check(patience)
        && let Some(holder) = core.lane_table().holder(&core.arena, LaneId(lane))
    {
        core.lane_table().request_check(&core.arena, LaneId(lane), holder);
        let killed;
        (at_rest, killed) = WATCHED.with_borrow_mut(|watched| {
            let watched = place_of(watched, holder);
            let killed = check_holder(core, lane, holder, patience, watched);
            (watched.is_some(), killed)
        });
        if killed {
            return HolderCheck::Killed;
        }
    }
    HolderCheck::MayHaveRun(may_have_run(lane, waited, at_rest))
}

/// For how long the holder of this lane may have run: since it was last seen at rest, if it was, or the wait began. A waiter may watch
/// several lanes in turn.
fn may_have_run(lane: u16, waited: Duration, at_rest: bool) -> Duration {
    let now = Instant::now();
    let before = |at: Instant| now.duration_since(at);
    let (gap, unseen) = match LOOKED.get() {
        Some((at, unseen)) if before(at) <= waited => (before(at), unseen),
        // That check was of another wait.
        _ => (waited, Duration::ZERO),
    };
    let unseen = unseen + gap.saturating_sub(STEP_MAX);
    LOOKED.set(Some((now, unseen)));
    if at_rest {
        RESTED.set(Some(Rested { lane, at: now, unseen }));
        return Duration::ZERO;
    }
    match RESTED.get().filter(|rested| rested.lane == lane && before(rested.at) <= waited) {
        Some(rested) => before(rested.at).saturating_sub(unseen.saturating_sub(rested.unseen)),
        None => waited.saturating_sub(unseen),
    }
}

/// Where the holder is watched: its place, a free one, or that of the one whose last check is longest ago.
fn place_of(watched: &mut Watched, holder: Holder) -> &mut Option<(Instant, Watch)> {
    let is_its =
        |place: &Option<(Instant, Watch)>| place.as_ref().is_some_and(|(_, watch)| watch.holder == holder);
    let found = watched.iter().position(is_its);
    // `None` comes before all times.
    let oldest = || (0..WATCHED_MAX).min_by_key(|n| watched[*n].as_ref().map(|(at, _)| *at)).unwrap_or(0);
    let place = found.unwrap_or_else(oldest);
    &mut watched[place]
}

/// Checks the holder, unless the last check was just before. `watched`: its rest, if it is at rest. Returns
/// true if it was at rest for too long, and was killed.
fn check_holder(
    core: &Core,
    lane: u16,
    holder: Holder,
    patience: Duration,
    watched: &mut Option<(Instant, Watch)>,
) -> bool {
    if watched.as_ref().is_some_and(|(at, watch)| watch.holder == holder && at.elapsed() < STOP_CHECK_EVERY) {
        return false;
    }
    let before = watched.take().map(|(_, watch)| watch);
    let now = Watch::renewed(core, holder, before);
    let killed = now.as_ref().is_some_and(|watch| watch.is_over(patience) && watch.kill(core, lane));
    *watched = now.map(|watch| (Instant::now(), watch));
    killed
}

impl Watch {
    /// The watch on a holder, by a new check. `before`: the watch of the last check. Returns `None` if it is not at rest, or is
    /// not visible.
    pub fn renewed(core: &Core, holder: Holder, before: Option<Watch>) -> Option<Watch> {
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

    /// Returns true if it has been at rest for longer than its limit: the patience, or `still::limit` in a page
    /// fault.
    pub fn is_over(&self, patience: Duration) -> bool {
        let limit = if self.rest.why == still::Why::Stopped { patience } else { still::limit(patience) };
        self.since.elapsed() >= limit
    }

    /// Kills the process, if it is still the same and at rest.
    pub fn kill(&self, core: &Core, lane: u16) -> bool {
        let (process, holder) = (&self.process, self.holder);
        if process.pid == std::process::id()
            || self.rest.why != still::Why::Stopped && is_daemon(core, holder)
        {
            return false;
        }
        let Some(pid) = Pid::from_raw(process.pid as i32) else { return false };
        // The findings may be of an earlier process of this number. The pidfd holds the number, so they are
        // checked again now.
        let Ok(pidfd) = pidfd_open(pid, PidfdFlags::empty()) else { return false };
        let killed = process.still_holds_slot(core, holder.process())
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

/// Returns true for the daemon. It is not killed for a page fault: its page faults are those of the image, on a
/// device that may be slow, and all other processes depend on it.
fn is_daemon(core: &Core, holder: Holder) -> bool {
    holder.process() == ProcessTag::from_word(core.root().daemon.load(SeqCst))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::state::core::tests::bare;
    use crate::state::lease::enter;
    use std::sync::Arc;
    use still::Why;

    const SECOND: Duration = Duration::from_secs(1);

    fn watch(holder: Holder, why: Why, ago: Duration) -> Watch {
        let process = Process { pid: std::process::id() };
        Watch { holder, process, task: 1, since: Instant::now() - ago, rest: Rest::found(why) }
    }

    /// A lane, and its holder: a thread of its own.
    fn holder(core: &Arc<Core>) -> (u16, Holder) {
        let leases = || {
            let lane = enter(core).unwrap().id;
            (lane, core.lane_table().holder(&core.arena, LaneId(lane)).unwrap())
        };
        std::thread::scope(|scope| scope.spawn(leases).join().unwrap())
    }

    #[test]
    fn the_first_check_comes_after_an_eighth_of_the_patience() {
        let ms = Duration::from_millis;
        for (patience, first) in
            [(ms(0), ms(0)), (ms(800), ms(100)), (ms(8000), SECOND), (ms(30_000), SECOND)]
        {
            assert_eq!(first_check(patience), first, "{patience:?}");
        }
        for (word, wanted) in [(0, None), (1, Some(ms(1))), (1500, Some(ms(1500)))] {
            let core = bare(1024);
            core.root().patience_ms.store(word, SeqCst);
            assert_eq!(patience(&core), wanted);
        }
        assert_eq!((still::limit(ms(0)), still::limit(3 * SECOND)), (5 * SECOND, 11 * SECOND));
    }

    #[test]
    fn a_holder_at_rest_is_killed_after_its_limit() {
        let core = bare(1024);
        let (_, its) = holder(&core);
        let is_over = |why, ago| watch(its, why, ago).is_over(30 * SECOND);
        assert!(!is_over(Why::Stopped, 20 * SECOND) && is_over(Why::Stopped, 30 * SECOND));
        assert!(!is_over(Why::PageFault, 55 * SECOND) && is_over(Why::PageFault, 65 * SECOND));
        for why in [Why::Stopped, Why::PageFault] {
            assert!(!watch(its, why, 100 * SECOND).kill(&core, 1), "no process kills itself");
        }
        assert!(is_daemon(&core, its));
        core.root().daemon.store(0, SeqCst);
        assert!(!is_daemon(&core, its), "another process");
    }

    #[test]
    fn a_holder_is_watched_in_its_place_or_the_oldest_ones() {
        let core = bare(1024);
        let holders: Vec<Holder> = (0..=WATCHED_MAX).map(|_| holder(&core).1).collect();
        let mut watched: Watched = [const { None }; WATCHED_MAX];
        let began = Instant::now();
        let mut put = |n: usize, at: u32| {
            let place = place_of(&mut watched, holders[n]);
            let before = place.as_ref().map(|(_, watch)| watch.holder);
            *place = Some((began + SECOND * at, watch(holders[n], Why::Stopped, SECOND)));
            before
        };
        for n in 0..WATCHED_MAX {
            assert_eq!(put(n, 10 + n as u32), None, "there is room");
        }
        assert_eq!(put(3, 5), Some(holders[3]));
        assert_eq!(put(WATCHED_MAX, 30), Some(holders[3]), "the oldest one's");
        assert_eq!(put(0, 40), Some(holders[0]));
        assert_eq!(put(3, 50), Some(holders[1]));
    }

    #[test]
    fn a_holder_is_not_looked_at_again_at_once() {
        let core = bare(1024);
        let ((lane, its), (_, other)) = (holder(&core), holder(&core));
        let long_ago = || Instant::now() - 10 * SECOND;
        for (at, of, stays) in
            [(Instant::now(), its, true), (long_ago(), its, false), (Instant::now(), other, false)]
        {
            let mut watched = Some((at, watch(of, Why::Stopped, 100 * SECOND)));
            // The threads of both have ended.
            assert!(!check_holder(&core, lane, its, SECOND, &mut watched));
            assert_eq!(watched.is_some(), stays);
        }
    }

    /// As after a check so long ago, before which this thread had not looked for a while.
    fn looked(ago: Duration, unseen: Duration) {
        LOOKED.set(Some((Instant::now() - ago, unseen)));
        RESTED.take();
    }

    #[test]
    fn a_holder_may_have_run_since_it_was_last_seen_at_rest() {
        let core = bare(1024);
        core.root().patience_ms.store(0, SeqCst);
        looked(SECOND / 2, Duration::ZERO);
        assert_eq!(check_and_kill_if_stopped(&core, 5, 100 * SECOND), HolderCheck::MayHaveRun(100 * SECOND));
        assert_eq!(may_have_run(5, 100 * SECOND, true), Duration::ZERO);
        assert!(may_have_run(5, 100 * SECOND, false) < SECOND, "since it was at rest");
        assert_eq!(may_have_run(6, 100 * SECOND, false), 100 * SECOND, "another lane");
        assert_eq!(may_have_run(5, Duration::ZERO, false), Duration::ZERO, "another wait");
    }

    #[test]
    fn lanes_that_are_watched_in_turn_run_out_of_time() {
        looked(Duration::ZERO, Duration::ZERO);
        for waited in (1..=100).map(|n| n * SECOND) {
            for lane in [5, 6] {
                assert_eq!(may_have_run(lane, waited, false), waited);
            }
        }
    }

    /// Regression: both were stopped by one signal, for longer than a slow call may take. The waiter woke first, and took the lock for
    /// forged.
    #[test]
    fn crash_the_time_for_which_a_waiter_was_stopped_itself_counted() {
        // Stopped before its first check, and between two checks.
        LOOKED.take();
        assert_eq!(may_have_run(7, 100 * SECOND, false), STEP_MAX);
        looked(100 * SECOND, 3 * SECOND);
        let ran = may_have_run(7, 105 * SECOND, false);
        assert!(ran <= 3 * SECOND, "{ran:?}: stopped for 3 and 99 of 105 seconds");
        // Then it looks again.
        let (again, later) = (may_have_run(7, 106 * SECOND, false), may_have_run(7, 120 * SECOND, false));
        assert!(again > ran && later > again && later < 19 * SECOND, "{again:?}, {later:?}");
    }
}
