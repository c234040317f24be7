//! The daemon's round: it settles the dead, and does what waiters may not do themselves: it kills other users' processes that are stopped
//! in somebody's way, and finds threads that have ended without a word in processes that live on.

use super::{holders, lanes, settle_and_release, stopped, sweep};
use crate::core::Core;
use heddle_arena::{Holder, LaneId};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// How often it looks for threads that have ended: that reads much of `/proc`.
const THREADS_EVERY: Duration = Duration::from_secs(4);

/// What the rounds before have seen.
pub struct Rounds {
    /// Holders that somebody waits for, and since when they were asked about in each round.
    asked: HashMap<u16, (Holder, Instant)>,
    threads_looked: Instant,
}

impl Default for Rounds {
    fn default() -> Rounds {
        Rounds { asked: HashMap::new(), threads_looked: Instant::now() }
    }
}

impl Rounds {
    /// One round.
    pub fn go(&mut self, core: &Core) {
        sweep(core);
        let asked: Vec<(u16, Holder)> = lanes(core)
            .filter_map(|lane| Some((lane, core.lane_table().asked(&core.arena, LaneId(lane))?)))
            .collect();
        self.asked.retain(|lane, (holder, _)| asked.contains(&(*lane, *holder)));
        for (lane, holder) in &asked {
            let (_, since) = *self.asked.entry(*lane).or_insert_with(|| (*holder, Instant::now()));
            if stopped::patience(core).is_some_and(|patience| since.elapsed() >= patience) {
                stopped::kill_stopped(core, *lane, *holder);
            }
        }
        if !asked.is_empty() || self.threads_looked.elapsed() >= THREADS_EVERY {
            settle_ended_threads(core);
            self.threads_looked = Instant::now();
        }
    }
}

/// Settles lanes of threads that have ended without giving them back (a raw `exit` system call), in processes that live on.
fn settle_ended_threads(core: &Core) {
    let Ok(seat) = core.seat() else { return };
    let table = core.lane_table();
    let mut held: HashMap<_, Vec<(u16, Holder)>> = HashMap::new();
    for lane in lanes(core) {
        let holder = table.holder(&core.arena, LaneId(lane));
        let holder = holder.filter(|holder| holder.thread() != 0 && holder.process() != seat.tag());
        if let Some(holder) = holder {
            held.entry(holder.process()).or_default().push((lane, holder));
        }
    }
    for (process, lanes) in held {
        // One that shares its memory with others may have threads among those: all that sit there count.
        let found = holders::of(core, process);
        let living: Vec<u32> = found.iter().flat_map(|p| p.tasks()).map(|task| task.inner).collect();
        if living.is_empty() {
            continue;
        }
        for (lane, holder) in lanes.into_iter().filter(|(_, holder)| !living.contains(&holder.thread())) {
            if let Some(lease) = table.lease_from(&core.arena, LaneId(lane), holder, seat) {
                settle_and_release(core, lease);
            }
        }
    }
}
