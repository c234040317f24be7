//! Shortens a workload that fails to the steps that it needs to fail.
//!
//! Steps are left out, halves first, single ones last, while the rest still fails; the last watched step
//! stays. The failure may change on the way: each is a finding.

use crate::op::{Step, Workload};
use crate::rig::{Config, Failure, Nobody, run};
use std::time::{Duration, Instant};

/// A shorter workload and its failure. Returns `None` if the workload does not fail. After `limit` returns
/// the best so far.
pub fn shrink(workload: &Workload, config: &Config, limit: Duration) -> Option<(Workload, Failure)> {
    let start = Instant::now();
    let fails = |workload: &Workload| run(workload, config, &mut Nobody).ok()?.failures.into_iter().next();
    let mut best = (workload.clone(), fails(workload)?);
    // Steps after the failing one are not needed, and steps before it need not be watched.
    let cut = best.1.step + 1;
    let try_one = |best: &mut (Workload, Failure), smaller: Workload| {
        fails(&smaller).is_some_and(|failure| {
            *best = (smaller, failure);
            true
        })
    };
    let mut shorter = best.0.clone();
    shorter.watched.truncate(cut);
    let last = shorter.watched.split_off(cut.saturating_sub(1).min(shorter.watched.len()));
    shorter.setup.append(&mut shorter.watched);
    shorter.watched = last;
    if !shorter.watched.is_empty() {
        try_one(&mut best, shorter);
    }
    let mut part = best.0.setup.len();
    while part > 0 && start.elapsed() < limit {
        let mut from = 0;
        let mut left_out = false;
        while from < best.0.setup.len() && start.elapsed() < limit {
            let to = (from + part).min(best.0.setup.len());
            let mut setup: Vec<Step> = best.0.setup.clone();
            setup.drain(from..to);
            let smaller = Workload { setup, ..best.0.clone() };
            if try_one(&mut best, smaller) {
                left_out = true;
            } else {
                from = to;
            }
        }
        if part > 1 {
            part /= 2;
        } else if !left_out {
            break;
        }
    }
    Some(best)
}
