//! How a thread waits for a latch, and what it notes.

use super::*;
use crate::state::core::tests::{add_chunks, bare, born};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::SeqCst;

const LONG: Duration = Duration::from_secs(1000);

/// The time waited for this holder, in whole seconds, if it is due for a check.
fn waited(wait: &mut Wait, latch: &Latch, seen: u32) -> Option<u64> {
    wait.for_holder(latch, seen).map(|since| since.as_secs())
}

#[test]
fn a_wait_counts_anew_for_each_holder() {
    let latch = Latch::new();
    let long_ago = || Instant::now() - LONG;
    let mut wait = Wait { held_since: 0, began: long_ago() };
    // Lane 5 holds it; from here on a thread may sleep.
    latch.scribble(HELD | 5);
    assert_eq!(waited(&mut wait, &latch, HELD | 5), Some(0));
    assert_eq!((latch.0.load(SeqCst), wait.held_since), (WAITERS | HELD | 5, 5));
    wait.began = long_ago();
    assert!(waited(&mut wait, &latch, WAITERS | HELD | 5) >= Some(1000), "the same holder");
    latch.scribble(WAITERS | HELD | 6);
    assert_eq!(waited(&mut wait, &latch, WAITERS | HELD | 6), Some(0), "another one");
    assert_eq!(wait.held_since, 6);
    // What it has seen is old.
    latch.scribble(WAITERS | HELD | 7);
    assert_eq!(waited(&mut wait, &latch, HELD | 6), None);
    assert_eq!(latch.0.load(SeqCst), WAITERS | HELD | 7);
}

#[test]
fn a_thread_that_finds_a_change_at_once_checks_nobody() {
    let latch = Latch::new();
    latch.scribble(WAITERS | HELD | 7);
    let mut wait = Wait { held_since: 6, began: Instant::now() + LONG };
    assert_eq!(waited(&mut wait, &latch, WAITERS | HELD | 6), None);
}

#[test]
fn a_latch_names_its_holder_and_the_lane_notes_the_latch() {
    let latch = Latch::new();
    let outside = latch.try_lock().unwrap();
    assert_eq!(latch.0.load(SeqCst), HELD, "of no lane");
    assert!(latch.try_lock().is_none());
    drop(outside);
    assert_eq!(latch.0.load(SeqCst), 0);

    let core = bare(1024);
    add_chunks(&core, 1);
    let eof = &born(&core, 5, 9).volatile.eof;
    let guard = lease::enter(&core).unwrap();
    let noted = || guard.lane.intent.latches().count();
    for lock in [|latch: &Latch| drop(latch.lock()), |latch: &Latch| drop(latch.try_lock().unwrap())] {
        lock(eof);
        assert_eq!((eof.0.load(SeqCst), noted()), (0, 0), "neither is left");
    }
    let held = eof.lock();
    assert_eq!((eof.0.load(SeqCst), noted()), (HELD | u32::from(guard.id), 1));
    assert!(eof.try_lock().is_none());
    assert_eq!(noted(), 1, "what was not taken is not noted");
    assert_eq!(guard.lane.intent.latches().next(), Some(core.arena.offset_of(&eof.0).raw()));
    drop(held);
    assert_eq!((eof.0.load(SeqCst), noted()), (0, 0));
}

#[test]
fn a_thread_that_takes_no_latch_waits_until_it_is_free() {
    let core = bare(1024);
    let (latch, is_free) = (Latch::new(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let held = latch.lock();
        let waits = scope.spawn(|| {
            latch.wait_until_free(&core);
            (is_free.load(SeqCst), latch.0.load(SeqCst))
        });
        while latch.0.load(SeqCst) & WAITERS == 0 && !waits.is_finished() {
            std::thread::yield_now();
        }
        is_free.store(true, SeqCst);
        drop(held);
        assert_eq!(waits.join().unwrap(), (true, 0));
    });
    assert!(core.damage_found().is_none());
}

#[test]
fn a_thread_that_sleeps_for_a_latch_takes_it() {
    let (latch, is_free) = (Latch::new(), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let held = latch.lock();
        let waits = scope.spawn(|| {
            let _held = latch.lock();
            (is_free.load(SeqCst), latch.0.load(SeqCst))
        });
        while latch.0.load(SeqCst) & WAITERS == 0 && !waits.is_finished() {
            std::thread::yield_now();
        }
        is_free.store(true, SeqCst);
        drop(held);
        // Others may sleep too.
        assert_eq!(waits.join().unwrap(), (true, HELD | WAITERS));
    });
    assert_eq!(latch.0.load(SeqCst), 0);
}
