//! Runs in turns: the order of operations, and how such runs fail.

use super::toy::Fault;
use super::{quick, toy};
use crate::*;
use std::sync::Mutex;
use std::thread::{self, ThreadId};

const ROUNDS: Rounds = Rounds { warm_up: 2, counted: 3 };

/// What it was told, and by which thread: worker, begins, counted.
#[derive(Default)]
struct Seen(Mutex<Vec<(ThreadId, usize, bool, bool)>>);

impl Watch for Seen {
    fn worker_starts(&self, _worker: usize) {}

    fn begins(&self, worker: usize, counted: bool) {
        self.0.lock().unwrap().push((thread::current().id(), worker, true, counted));
    }

    fn ends(&self, worker: usize) {
        self.0.lock().unwrap().push((thread::current().id(), worker, false, false));
    }
}

fn in_turns(fault: Fault, workload: Workload, workers: usize, rounds: Rounds) -> (Result<(), String>, Seen) {
    let seen = Seen::default();
    let config = quick([workload], vec![]);
    let done = run_in_turns(&config, &toy(fault), workload, workers, rounds, &seen);
    (done, seen)
}

#[test]
fn workers_change_over_after_every_operation_however_few_processors_there_are() {
    let (done, seen) = in_turns(Fault::None, Workload::DWOM, 9, ROUNDS);
    done.unwrap();
    let seen = seen.0.into_inner().unwrap();
    assert_eq!(seen.len(), 9 * 5 * 2);
    for (nth, pair) in seen.chunks(2).enumerate() {
        let ((thread, worker, begins, counted), end) = (pair[0], pair[1]);
        assert_eq!((worker, begins, counted), (nth % 9, true, nth >= 18), "operation {nth}");
        assert_eq!(end, (thread, worker, false, false), "operation {nth}");
    }
    let threads: std::collections::HashSet<_> = seen.iter().map(|s| s.0).collect();
    assert_eq!(threads.len(), 9, "each worker is a thread");
}

#[test]
fn every_workload_runs_in_turns() {
    for workload in Workload::all() {
        let (done, seen) = in_turns(Fault::None, workload, 3, ROUNDS);
        assert_eq!(done, Ok(()), "{workload}");
        assert_eq!(seen.0.into_inner().unwrap().len(), 3 * 5 * 2, "{workload}");
    }
}

#[test]
fn failures_panics_and_wrong_bytes_end_the_run_with_their_text() {
    let long = Rounds { warm_up: 0, counted: 400 };
    let cases = [
        (Fault::Fails, Workload::DWOM, "planted"),
        (Fault::Panics, Workload::DWOM, "planted panic"),
        (Fault::ReadsZeros, Workload::DRBM, "wrong data"),
    ];
    for (fault, workload, word) in cases {
        let (done, _) = in_turns(fault, workload, 4, long);
        let text = done.unwrap_err();
        assert!(text.contains(word) && text.contains("worker"), "{fault:?}: {text}");
    }
}

#[test]
fn a_target_of_the_kernel_cannot_take_turns() {
    let config = quick([Workload::DWOM], vec![]);
    let target = Target::Kernel(Kernel::Tmpfs);
    let text = run_in_turns(&config, &target, Workload::DWOM, 2, ROUNDS, &Seen::default()).unwrap_err();
    assert!(text.contains("tmpfs"), "{text}");
}
