//! A lock that nobody will ever let go: its word was written by a stranger. Who may attach can do that; others must not wait for ever.
//!
//! A lock is held only by a lane that is inside a call. So a lane that is named by a lock and is seen outside each time, for a second,
//! holds no lock. Of one that is inside and runs nothing can be known for certain: it may be slow, or wait itself for a lock that is none.
//! It is waited for twice as long as for a stopped one. The waiter then notes damage and gives its call up. Where one lock was none others
//! are likely to be, and a call, or an unmount, may meet many: from then on this process waits for a moment only.

use super::stopped;
use crate::ids::LANES;
use crate::state::core::Core;
use std::cell::Cell;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// How long a lane that is named by a lock must be seen outside of any call.
const OUTSIDE: Duration = Duration::from_secs(1);
/// Beside twice the patience: what a slow call may take.
const SLOW: Duration = Duration::from_secs(10);
/// Where one has been waited for in vain.
pub const ONCE_BITTEN: Duration = Duration::from_millis(50);

/// Lanes that one thread may wait for by turns: those of one bucket's locks, or of a file's segments.
const WATCHED: usize = 8;
/// A lane, and since when it was seen outside each time.
type Watched = [Option<(u16, Instant)>; WATCHED];

thread_local! {
    /// The lanes that the calling thread waits for, the one that it met last first. Without a destructor: a thread that ends gives its
    /// lane back, and may wait for that.
    static SEEN_OUTSIDE: Cell<Watched> = const { Cell::new([None; WATCHED]) };
}
const _: () = assert!(!std::mem::needs_drop::<Cell<Watched>>());

/// The caller waits for what this lane is said to hold, since `waited`. Its holder may have run for `ran` of that, and not let it go; the
/// rest of the time it was at rest, and could not.
///
/// # Panics
/// If nobody will ever let it go. The call that waits ends with an error, as after any damage.
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

/// Since when the lane was outside each time that this thread looked; it is now, or is not.
fn seen_outside(lane: u16, outside: bool) -> Instant {
    let mut watched = SEEN_OUTSIDE.get();
    let now = Instant::now();
    let before = watched.iter().position(|seen| seen.is_some_and(|(of, _)| of == lane));
    let since = before.and_then(|at| watched[at].take()).map_or(now, |(_, since)| since);
    if outside {
        // To the front: the one that was met longest ago makes room.
        let free = watched.iter().position(Option::is_none).unwrap_or(WATCHED - 1);
        watched[..=free].rotate_right(1);
        watched[0] = Some((lane, since));
    }
    SEEN_OUTSIDE.set(watched);
    since
}

#[cfg(test)]
mod tests {
    use super::*;

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
