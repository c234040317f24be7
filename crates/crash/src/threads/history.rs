//! The history of calls, and the trees that a power cut may leave.
//!
//! State       [`Clock`]: a counter, and for each thread how many calls it has begun and ended. [`History`]: for every number of calls
//!             done by each thread, the trees that some order of exactly these calls gives.
//! Invariants  I1  an order respects time: a call that returned before another began comes before it.
//!             I2  an order gives each call the result that it returned.
//! Source      durable linearizability (Izraelevitz, Mendes, Scott); the search is Wing and Gong's, over the states of the model.

use crate::op::Op;
use heddle_vfs::tree::Tree;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};

/// A call of a thread.
#[derive(Clone, Debug)]
pub struct Call {
    /// Number of the call, which makes its data unique.
    pub number: usize,
    /// The operation.
    pub op: Op,
    /// Its error, if it failed.
    pub errno: Option<i32>,
    /// Time when it began.
    pub invoked: u64,
    /// Time when it returned.
    pub returned: u64,
}

/// The progress of a thread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Calls it had begun.
    pub invoked: usize,
    /// Calls that had returned.
    pub returned: usize,
}

/// The clock (see the module).
pub struct Clock {
    now: AtomicU64,
    threads: Vec<(AtomicUsize, AtomicUsize)>,
}

impl Clock {
    /// A clock for so many threads.
    pub fn new(threads: usize) -> Clock {
        Clock { now: AtomicU64::new(1), threads: (0..threads).map(|_| Default::default()).collect() }
    }

    /// Records that a call begins.
    pub fn invoke(&self, thread: usize) -> u64 {
        self.threads[thread].0.fetch_add(1, SeqCst);
        self.now.fetch_add(1, SeqCst)
    }

    /// Records that it returns.
    pub fn returned(&self, thread: usize) -> u64 {
        let now = self.now.fetch_add(1, SeqCst);
        self.threads[thread].1.fetch_add(1, SeqCst);
        now
    }

    /// The progress of all threads. A call that is about to return may count as running: that allows more
    /// trees, never fewer.
    pub fn progress(&self) -> Vec<Progress> {
        let read = |(invoked, returned): &(AtomicUsize, AtomicUsize)| {
            let returned = returned.load(SeqCst);
            Progress { invoked: invoked.load(SeqCst), returned }
        };
        self.threads.iter().map(read).collect()
    }
}

/// By the number of calls done by each thread: the trees, each with an order that leads to it.
type Layer<'a> = BTreeMap<Vec<usize>, Vec<(Arc<Tree>, Vec<&'a Call>)>>;

/// The history (see the module).
pub struct History {
    /// By the number of calls done by each thread.
    states: BTreeMap<Vec<usize>, Vec<Arc<Tree>>>,
}

impl History {
    /// Explores all orders of the calls that lead to different trees. `replay` gives the tree after some
    /// calls, or `None` if one of them returns another result (I2).
    pub fn explore(calls: &[Vec<Call>], replay: impl Fn(&[&Call]) -> Option<Tree>) -> History {
        let start = vec![0; calls.len()];
        // One order per state suffices: later results depend on the tree and on the calls done, not on the
        // order.
        let mut layer: Layer<'_> = BTreeMap::new();
        if let Some(tree) = replay(&[]) {
            layer.insert(start, vec![(Arc::new(tree), Vec::new())]);
        }
        let mut states = BTreeMap::new();
        while !layer.is_empty() {
            let mut next: Layer<'_> = BTreeMap::new();
            for (done, trees) in &layer {
                for thread in (0..calls.len()).filter(|thread| may_be_next(calls, done, *thread)) {
                    let mut after = done.clone();
                    after[thread] += 1;
                    let to = next.entry(after).or_default();
                    for (_, order) in trees {
                        let mut order = order.clone();
                        order.push(&calls[thread][done[thread]]);
                        if let Some(tree) = replay(&order)
                            && !to.iter().any(|(known, _)| **known == tree)
                        {
                            to.push((Arc::new(tree), order));
                        }
                    }
                }
            }
            states.extend(
                layer.into_iter().map(|(done, trees)| (done, trees.into_iter().map(|t| t.0).collect())),
            );
            next.retain(|_, trees| !trees.is_empty());
            layer = next;
        }
        History { states }
    }

    /// The trees that may be left at this progress: all calls that had returned, and any that were running.
    pub fn allowed(&self, progress: &[Progress]) -> Vec<Arc<Tree>> {
        let fits = |done: &&Vec<usize>| {
            done.iter().zip(progress).all(|(done, at)| (at.returned..=at.invoked).contains(done))
        };
        let mut trees: Vec<Arc<Tree>> = Vec::new();
        for done in self.states.keys().filter(fits) {
            for tree in &self.states[done] {
                if !trees.contains(tree) {
                    trees.push(tree.clone());
                }
            }
        }
        trees
    }
}

/// I1: no call that is left had returned before this call began.
fn may_be_next(calls: &[Vec<Call>], done: &[usize], thread: usize) -> bool {
    let Some(call) = calls[thread].get(done[thread]) else { return false };
    let waits_for = |(list, done): (&Vec<Call>, &usize)| {
        list.get(*done).is_some_and(|other| other.returned < call.invoked)
    };
    !calls.iter().zip(done).any(waits_for)
}

#[cfg(test)]
mod tests {
    use super::*;
    use heddle_vfs::tree::Tree;

    fn call(number: usize, invoked: u64, returned: u64) -> Call {
        Call { number, op: Op::Sync, errno: None, invoked, returned }
    }

    /// A tree that shows the numbers of the calls in their order.
    fn tree(order: &[&Call]) -> Option<Tree> {
        let model = heddle_vfs::model::ModelFs::new();
        let mut player = crate::play::Player::new(&model);
        let name: String = order.iter().map(|c| c.number.to_string()).collect();
        player.play(1, &Op::Mkdir { path: format!("/x{name}") }).ok()?;
        Tree::of(&model).ok()
    }

    fn names(trees: &[Arc<Tree>]) -> Vec<String> {
        let last =
            |t: &Arc<Tree>| t.nodes.keys().next_back().map(|k| String::from_utf8_lossy(k).into_owned());
        let mut names: Vec<String> = trees.iter().filter_map(last).collect();
        names.sort();
        names
    }

    #[test]
    fn only_overlapping_calls_may_be_reordered() {
        let history = History::explore(&[vec![call(1, 1, 4)], vec![call(2, 2, 3), call(3, 5, 6)]], tree);
        let all = [Progress { invoked: 1, returned: 1 }, Progress { invoked: 2, returned: 2 }];
        assert_eq!(names(&history.allowed(&all)), ["/x123", "/x213"]);
        let running = [Progress { invoked: 1, returned: 0 }, Progress { invoked: 1, returned: 1 }];
        assert_eq!(names(&history.allowed(&running)), ["/x12", "/x2", "/x21"]);
    }

    #[test]
    fn a_result_that_no_order_gives_leaves_nothing_allowed() {
        let refuse = |order: &[&Call]| tree(order).filter(|_| !order.iter().any(|c| c.number == 2));
        let history = History::explore(&[vec![call(1, 1, 4)], vec![call(2, 2, 3)]], refuse);
        let all = [Progress { invoked: 1, returned: 1 }; 2];
        assert!(history.allowed(&all).is_empty());
    }
}
