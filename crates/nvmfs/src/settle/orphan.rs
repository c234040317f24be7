//! A lock that nobody will ever let go: its word was written by a stranger. Who may attach can do that; others must not wait for ever.
//!
//! A lock is held only by a lane that is inside a call. So a lane that is named by a lock and is seen outside each time, for a second,
//! holds no lock. Of one that is inside nothing can be known for certain: it may be slow, or wait itself for a lock that is none. It is
//! waited for twice as long as for a stopped one. The waiter then notes damage and gives its call up. Where one lock was none others are
//! likely to be, and a call, or an unmount, may meet many: from then on this process waits for a moment only.

use super::stopped;
use crate::core::{Core, LANES};
use std::cell::RefCell;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// How long a lane that is named by a lock must be seen outside of any call.
const OUTSIDE: Duration = Duration::from_secs(1);
/// Beside twice the patience: what a slow call may take.
const SLOW: Duration = Duration::from_secs(10);
/// Where one has been waited for in vain.
pub const ONCE_BITTEN: Duration = Duration::from_millis(50);

thread_local! {
    /// The lanes that the calling thread waits for, and since when each was seen outside each time.
    static SEEN_OUTSIDE: RefCell<Vec<(u16, Instant)>> = const { RefCell::new(Vec::new()) };
}

/// The caller waits for what this lane is said to hold, since `waited`.
///
/// # Panics
/// If nobody will ever let it go. The call that waits ends with an error, as after any damage.
pub fn give_up_waiting(core: &Core, lane: u16, waited: Duration) {
    // ORDERING: Relaxed, a hint.
    let bitten = core.waited_in_vain.load(Relaxed);
    if waited < if bitten { ONCE_BITTEN } else { OUTSIDE } {
        SEEN_OUTSIDE.with_borrow_mut(Vec::clear);
        return;
    }
    let known = (1..=LANES).contains(&lane);
    let outside = !known || core.lane(lane).intent.inside.load(SeqCst) == 0;
    let since = SEEN_OUTSIDE.with_borrow_mut(|seen| {
        seen.retain(|(of, _)| outside || *of != lane);
        let now = Instant::now();
        let before = seen.iter().find(|(of, _)| *of == lane).map(|(_, since)| *since);
        if outside && before.is_none() {
            seen.push((lane, now));
        }
        before.unwrap_or(now)
    });
    let longest = stopped::patience(core).map(|patience| patience * 2 + SLOW);
    if bitten || since.elapsed() >= OUTSIDE || longest.is_some_and(|longest| waited >= longest) {
        SEEN_OUTSIDE.with_borrow_mut(Vec::clear);
        core.waited_in_vain.store(true, Relaxed); // ORDERING: Relaxed, a hint.
        let _noted = core.damage(format!("a lock names lane {lane}, which does not hold it"));
        panic!(
            "waited {waited:?} for lane {lane}, which lets nothing go: somebody has scribbled over a lock"
        );
    }
}
