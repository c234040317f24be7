//! Threads inside a call, for an unmount, and for a lane that is out of space and reclaims from idle ones. The
//! kernel's barrier (membarrier) is a fence on both sides here.

use super::fixture::{Fixture, Worker, model, spawn};
use crate::alloc::reclaim::reclaim_from_lanes;
use crate::upkeep::settle;
use loom::cell::UnsafeCell;
use std::sync::Arc;

/// A word that only one of two threads may touch at a time.
struct Guarded(UnsafeCell<u32>);

// SAFETY: one thread at a time touches it; the test checks that.
unsafe impl Sync for Guarded {}
// SAFETY: as above.
unsafe impl Send for Guarded {}

impl Guarded {
    fn touch(&self) {
        // SAFETY: loom checks it.
        self.0.with_mut(|n| unsafe { *n += 1 });
    }
}

#[test]
fn no_call_goes_on_when_the_file_system_has_ended() {
    model(2, || {
        let fixture = Fixture::new();
        let mut worker = fixture.worker(1);
        worker.equip();
        let kept = Arc::new(Guarded(UnsafeCell::new(0)));
        let inside = kept.clone();
        let thread = spawn(move || (0..2).filter_map(|_| worker.call(|_, _| inside.touch())).count());
        assert!(settle::end(fixture.core(), None).is_ok());
        // Stands for marking the image clean and unmapping it.
        kept.touch();
        let calls = thread.join().unwrap();
        // SAFETY: the other thread has ended.
        assert_eq!(kept.0.with(|n| unsafe { *n }), calls as u32 + 1);
    });
}

/// A lane that keeps blocks, and lanes that need them. (`Lane::own` checks that no two use one lane's own
/// part at the same time.)
fn ready() -> (Fixture, Worker, Worker, Worker) {
    let fixture = Fixture::new();
    let mut workers = [1, 2, 3].map(|id| fixture.worker(id));
    workers.iter_mut().for_each(Worker::equip);
    let [mut owner, reclaimer, other] = workers;
    let kept = owner.take(1);
    owner.give(kept);
    (fixture, owner, reclaimer, other)
}

/// A call that uses the blocks of its lane.
fn works(worker: &mut Worker) {
    let took = worker.call(|core, guard| {
        let mut out = Vec::new();
        let purpose = crate::alloc::Purpose::Data;
        assert!(crate::alloc::take_blocks(core.free_map(), &core.region, guard.own, 1, purpose, &mut out));
        out
    });
    let took = took.unwrap();
    worker.mark(&took);
    worker.call(|core, guard| {
        for extent in took {
            crate::alloc::free_later(core.free_map(), &core.region, guard.own, extent);
        }
    });
}

fn reclaims(worker: &mut Worker, times: u32) {
    for _ in 0..times {
        worker.call(|core, guard| _ = reclaim_from_lanes(core, guard));
    }
}

fn is_all_there(fixture: &Fixture, workers: Vec<Worker>) {
    workers.into_iter().for_each(Worker::leave);
    assert_eq!(fixture.free(), fixture.total(), "blocks were lost, or have two owners");
}

#[test]
fn a_lane_that_is_reclaimed_is_its_owners_or_the_reclaimers() {
    model(3, || {
        let (fixture, mut owner, mut reclaimer, other) = ready();
        let thread = spawn(move || {
            reclaims(&mut reclaimer, 1);
            reclaimer
        });
        works(&mut owner);
        is_all_there(&fixture, vec![owner, thread.join().unwrap(), other]);
    });
}

/// The owner checks a reclaimer that is done; the reclaimer comes again before the owner clears its word.
#[test]
fn a_reclaimer_that_comes_again_is_not_taken_for_the_last_one() {
    model(3, || {
        let (fixture, mut owner, mut reclaimer, other) = ready();
        let thread = spawn(move || {
            reclaims(&mut reclaimer, 2);
            reclaimer
        });
        owner.call(|_, _| ());
        is_all_there(&fixture, vec![owner, thread.join().unwrap(), other]);
    });
}

/// Two reclaimers take from one lane, whose owner makes a call.
#[test]
fn of_two_reclaimers_one_has_the_lane() {
    model(2, || {
        let (fixture, mut owner, mut reclaimer, mut other) = ready();
        let thread = spawn(move || {
            reclaims(&mut reclaimer, 1);
            reclaimer
        });
        reclaims(&mut other, 1);
        owner.call(|_, _| ());
        is_all_there(&fixture, vec![owner, thread.join().unwrap(), other]);
    });
}
