//! Is there an order of the calls, each between its begin and its end, in which a simple machine gives the same answers?
//!
//! The search of Wing and Gong with the memory of Lowe: try each call that may come first, remember what was tried.

use crate::rig::Event;
use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

/// What the calls are made on, one after the other.
pub trait Machine: Clone + Eq + Hash {
    type Op: Clone + Debug;
    type Outcome: Clone + Debug;

    /// The machine after a call that gave this outcome; `None`: it cannot have given it.
    fn after(&self, op: &Self::Op, outcome: &Self::Outcome) -> Option<Self>;
}

/// Has the history an order that starts from `machine`?
pub fn has_order<M: Machine>(machine: M, events: &[Event<M::Op, M::Outcome>]) -> bool {
    assert!(events.len() <= 64, "a history of {} calls", events.len());
    search(&machine, events, 0, &mut HashSet::new())
}

fn search<M: Machine>(
    machine: &M,
    events: &[Event<M::Op, M::Outcome>],
    done: u64,
    tried: &mut HashSet<(u64, M)>,
) -> bool {
    if done.count_ones() as usize == events.len() {
        return true;
    }
    if !tried.insert((done, machine.clone())) {
        return false;
    }
    let open = || events.iter().enumerate().filter(|(n, _)| done & 1 << n == 0);
    let first_back = open().map(|(_, e)| e.back).min().unwrap_or(u64::MAX);
    open().filter(|(_, e)| e.call < first_back).any(|(n, e)| {
        machine.after(&e.op, &e.outcome).is_some_and(|next| search(&next, events, done | 1 << n, tried))
    })
}
