//! The daemon's periodic round. It settles dead lanes, and does two things that a waiter may not do itself.
//! It kills stopped processes of other users that hold up a waiter. It finds ended threads of living
//! processes that did not return their lanes.

use super::{lanes, sweep};
use crate::state::core::Core;
use crate::state::wait::stopped::{self, Watch};
use crate::state::wait::{holders, settle_and_release};
use heddle_arena::{Holder, LaneId};
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Interval between searches for ended threads, which read much of `/proc`.
const THREADS_EVERY: Duration = Duration::from_secs(4);

/// State kept between rounds.
pub struct Rounds {
    /// Stopped holders that a thread waits for.
    watched: HashMap<u16, Watch>,
    threads_looked: Instant,
}

impl Default for Rounds {
    fn default() -> Rounds {
        Rounds { watched: HashMap::new(), threads_looked: Instant::now() }
    }
}

impl Rounds {
    /// One round. Lane contents that a client has scribbled over end at most this round, not the daemon.
    pub fn go(&mut self, core: &Core) {
        if catch_unwind(AssertUnwindSafe(|| self.look_at_all(core))).is_err() {
            let _noted = core.damage("the lanes have invalid contents".into());
        }
    }

    fn look_at_all(&mut self, core: &Core) {
        sweep(core);
        let asked: Vec<(u16, Holder)> = lanes(core)
            .filter_map(|lane| Some((lane, core.lane_table().take_check_request(&core.arena, LaneId(lane))?)))
            .collect();
        let mut before = std::mem::take(&mut self.watched);
        for (lane, holder) in &asked {
            let Some(watch) = Watch::renewed(core, *holder, before.remove(lane)) else { continue };
            if stopped::patience(core).is_some_and(|patience| watch.is_over(patience)) {
                watch.kill(core, *lane);
            }
            self.watched.insert(*lane, watch);
        }
        if !asked.is_empty() || self.threads_looked.elapsed() >= THREADS_EVERY {
            settle_ended_threads(core);
            self.threads_looked = Instant::now();
        }
    }
}

/// Settles lanes of threads that have ended without returning them (by a raw `exit` system call), in
/// processes that live on.
fn settle_ended_threads(core: &Core) {
    let Ok(process_slot) = core.process_slot() else { return };
    let table = core.lane_table();
    let mut held: HashMap<_, Vec<(u16, Holder)>> = HashMap::new();
    for lane in lanes(core) {
        let holder = table.holder(&core.arena, LaneId(lane));
        let holder = holder.filter(|holder| holder.thread() != 0 && holder.process() != process_slot.tag());
        if let Some(holder) = holder {
            held.entry(holder.process()).or_default().push((lane, holder));
        }
    }
    for (process, lanes) in held {
        // A process that shares its memory with others may have threads in those: all threads that share the
        // process slot count.
        let Some(living) = holders::threads_of(core, process) else { continue };
        for (lane, holder) in lanes.into_iter().filter(|(_, holder)| !living.contains(&holder.thread())) {
            // The kernel's list may have left out a living thread while others started and ended.
            let is_dead = || {
                let living = holders::threads_of(core, process);
                living.is_some_and(|living| !living.contains(&holder.thread()))
            };
            if let Some(lease) = table.lease_from(&core.arena, LaneId(lane), holder, process_slot, is_dead) {
                settle_and_release(core, lease);
            }
        }
    }
}
