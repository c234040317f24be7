//! A forged lock: a client has overwritten the lock's word, and no thread will ever release it. Any attached
//! process can do that; other processes must not wait for ever.
//!
//! A lock is held only by a lane that is inside a call. So if a lock names a lane, and each check for one
//! second finds that lane outside, the lock is forged. If the lane is inside and running, nothing is certain:
//! it may be slow, or wait for a forged lock itself. The waiter waits twice as long as for a stopped holder.
//! Then it notes damage and gives up its call. Where one lock is forged, others probably are, and a call, or
//! an unmount, may meet many. So from then on this process waits only briefly.

use super::stopped;
use crate::ids::LANES;
use crate::state::core::Core;
use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// How long a lane that a lock names must be seen outside of any call.
const OUTSIDE: Duration = Duration::from_secs(1);
/// Added to twice the patience: the time that a slow call may take.
const SLOW: Duration = Duration::from_secs(10);
/// The wait for a lock after one wait was in vain.
pub const ONCE_BITTEN: Duration = Duration::from_millis(50);

/// Number of lanes that one thread may wait for in turn: those of one bucket's locks, or of a file's
/// segments.
const WATCHED: usize = 8;
/// A lane, and the time since which each check found it outside.
type Watched = [Option<(u16, Instant)>; WATCHED];

thread_local! {
    /// The lanes that the calling thread waits for, most recent first. There is no destructor: an ending
    /// thread returns its lane, and may wait during that.
    static SEEN_OUTSIDE: Cell<Watched> = const { Cell::new([None; WATCHED]) };
}
const _: () = assert!(!std::mem::needs_drop::<Cell<Watched>>());

/// Gives up waiting when the lock is forged. The caller has waited since `waited` for a lock that names this
/// lane. The holder may have run for `ran` of that time without releasing it; the rest of the time it was
/// stopped, and could not.
///
/// # Panics
/// If the lock will never be released. The waiting call then ends with an error, as after any
/// damage.
pub fn give_up_waiting(core: &Core, lane: u16, waited: Duration, ran: Duration) {
    // ORDERING: Relaxed, a hint.
    let bitten = core.waited_in_vain.load(Relaxed);
    if waited < if bitten { ONCE_BITTEN } else { OUTSIDE } {
        SEEN_OUTSIDE.take();
        return;
    }
    let known = (1..=LANES).contains(&lane);
    let outside = !known || core.lane(lane).intent.inside.load(SeqCst) == 0;
    let since = seen_outside(lane, outside);
    let longest = stopped::patience(core).map(|patience| patience * 2 + SLOW);
    if bitten || since.elapsed() >= OUTSIDE || longest.is_some_and(|longest| ran >= longest) {
        SEEN_OUTSIDE.take();
        core.waited_in_vain.store(true, Relaxed); // ORDERING: Relaxed, a hint.
        let _noted = core.damage(format!("a lock names lane {lane}, which does not hold it"));
        panic!(
            "waited {waited:?} for lane {lane}, which lets nothing go: somebody has scribbled over a lock"
        );
    }
}

/// The time since which this thread found the lane outside at each check. `outside`: the result of the
/// present check.
fn seen_outside(lane: u16, outside: bool) -> Instant {
    let mut watched = SEEN_OUTSIDE.get();
    let now = Instant::now();
    let before = watched.iter().position(|seen| seen.is_some_and(|(of, _)| of == lane));
    let seen = before.and_then(|at| watched[at].take());
    // One that is inside now may hold the lock, however long this thread has not looked.
    let since = seen.filter(|_| outside).map_or(now, |(_, since)| since);
    if outside {
        // Moved to the front: the least recent entry makes room.
        let free = watched.iter().position(Option::is_none).unwrap_or(WATCHED - 1);
        watched[..=free].rotate_right(1);
        watched[0] = Some((lane, since));
    }
    SEEN_OUTSIDE.set(watched);
    since
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::state::core::tests::bare;
    use crate::state::lease::enter;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    /// Does a thread that has waited for this long for `lane`, which ran for `ran` of it, give up?
    fn gives_up(core: &Core, lane: u16, waited: Duration, ran: Duration) -> bool {
        let given_up = catch_unwind(AssertUnwindSafe(|| give_up_waiting(core, lane, waited, ran))).is_err();
        let is_noted = core.damage_found().is_some_and(|text| text.contains(&format!("lane {lane}")));
        assert_eq!((is_noted, core.waited_in_vain.load(SeqCst)), (given_up, given_up));
        given_up
    }

    const MS: Duration = Duration::from_millis(1);
    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_lock_of_a_lane_outside_is_forged_after_a_second() {
        for known in [true, false] {
            let core = bare(1024);
            let outside = if known { enter(&core).unwrap().id } else { LANES + 1 };
            assert!(!gives_up(&core, outside, SECOND, SECOND), "the first check");
            assert!(SEEN_OUTSIDE.get()[0].is_some_and(|(lane, _)| lane == outside));
            SEEN_OUTSIDE.set([Some((outside, Instant::now() - 2 * SECOND)); WATCHED]);
            assert!(!gives_up(&core, outside, SECOND - MS, MS), "another wait");
            assert!(SEEN_OUTSIDE.get()[0].is_none(), "it counts anew");
            SEEN_OUTSIDE.set([Some((outside, Instant::now() - 2 * SECOND)); WATCHED]);
            assert!(gives_up(&core, outside, SECOND, MS));
        }
    }

    /// It was outside when this thread, which was held up since, looked last: its lock seemed forged.
    #[test]
    fn crash_a_lane_in_a_call_counted_as_outside() {
        let core = bare(1024);
        let call = enter(&core).unwrap();
        SEEN_OUTSIDE.set([Some((call.id, Instant::now() - 100 * SECOND)); WATCHED]);
        assert!(!gives_up(&core, call.id, 1000 * SECOND, SECOND));
    }

    /// Twice the patience of 30 seconds, and ten.
    #[test]
    fn a_lane_in_a_call_has_the_time_of_a_slow_call() {
        let core = bare(1024);
        let inside = enter(&core).unwrap().id;
        let _call = enter(&core).unwrap();
        assert!(!gives_up(&core, inside, 1000 * SECOND, 70 * SECOND - MS));
        assert!(gives_up(&core, inside, 1000 * SECOND, 70 * SECOND));
    }

    #[test]
    fn a_lane_in_a_call_is_waited_for_without_end_if_asked() {
        let core = bare(1024);
        core.root().patience_ms.store(0, SeqCst);
        let call = enter(&core).unwrap();
        assert!(!gives_up(&core, call.id, 5000 * SECOND, 5000 * SECOND));
    }

    #[test]
    fn after_one_wait_in_vain_the_next_is_short() {
        for (waited, ends) in [(49 * MS, false), (50 * MS, true), (51 * MS, true)] {
            let core = bare(1024);
            let call = enter(&core).unwrap();
            core.waited_in_vain.store(true, SeqCst);
            let given_up =
                catch_unwind(AssertUnwindSafe(|| give_up_waiting(&core, call.id, waited, waited))).is_err();
            assert_eq!(given_up, ends, "{waited:?}");
        }
    }

    #[test]
    fn the_lane_seen_least_recently_makes_room() {
        let first: Vec<Instant> = (1..=WATCHED as u16).map(|lane| seen_outside(lane, true)).collect();
        let ninth = seen_outside(WATCHED as u16 + 1, true);
        assert_eq!(seen_outside(WATCHED as u16 + 1, true), ninth);
        assert_eq!(seen_outside(2, true), first[1]);
        assert!(seen_outside(1, true) > ninth, "it was forgotten");
    }

    #[test]
    fn a_lane_counts_as_outside_since_it_was_last_inside() {
        let first = seen_outside(3, true);
        let others: Vec<Instant> = (4..4 + WATCHED as u16 - 1).map(|lane| seen_outside(lane, true)).collect();
        assert_eq!(seen_outside(3, true), first, "{WATCHED} lanes are known side by side");
        assert_eq!(seen_outside(5, true), others[1]);
        assert!(seen_outside(5, false) <= Instant::now());
        assert!(seen_outside(5, true) > others[1], "it was inside in between");
        SEEN_OUTSIDE.take();
        assert!(seen_outside(3, true) > first);
    }
}
