//! The promises of calls that are under way, seen by how long another one waits.

use super::*;

fn waited(all: &WriteBacks) -> Duration {
    let (mine, begin) = (all.begin(), Instant::now());
    mine.end_and_wait();
    begin.elapsed()
}

#[test]
fn a_call_waits_for_one_that_overlaps_it_for_a_limited_time() {
    let all = WriteBacks::default();
    let begun = std::sync::Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mine = all.begin();
            begun.wait();
            std::thread::sleep(WAIT_MAX / 4);
            drop(mine);
        });
        begun.wait();
        let waited = waited(&all);
        assert!(waited >= WAIT_MAX / 5 && waited < WAIT_MAX, "{waited:?}");
    });
    std::thread::scope(|scope| scope.spawn(|| std::mem::forget(all.begin())).join().unwrap());
    assert!(waited(&all) >= WAIT_MAX, "its thread has ended");
    assert!(waited(&all) < WAIT_MAX / 2, "the place is free again");
}

#[test]
fn a_call_waits_for_none_of_its_own_thread() {
    let all = WriteBacks::default();
    let _interrupted = all.begin();
    assert!(waited(&all) < WAIT_MAX / 2);
}

#[test]
fn a_call_waits_for_none_that_has_not_begun() {
    let all = WriteBacks::default();
    let call = u64::from(process::generation()) << 32 | 1_000_000;
    let not_mine = this_thread() + 1;
    all.places[5].thread.store(not_mine, SeqCst);
    all.places[5].call.store(call | INCOMPLETE, SeqCst);
    assert!(waited(&all) < WAIT_MAX / 2);
    all.places[5].call.store(call, SeqCst);
    assert!(waited(&all) >= WAIT_MAX, "it has begun");
}

#[test]
fn a_child_waits_for_no_call_of_its_parent() {
    let _alone = crate::tests::FORKS.write().unwrap_or_else(std::sync::PoisonError::into_inner);
    let all = WriteBacks::default();
    std::thread::scope(|scope| {
        scope.spawn(|| (0..PLACES).for_each(|_| std::mem::forget(all.begin())));
    });
    // SAFETY: the child waits, and leaves by `_exit`; the alarm ends it if it sleeps for ever.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        unsafe { libc::alarm(20) };
        let good = waited(&all) < WAIT_MAX / 2;
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = 0;
    // SAFETY: room for the answer.
    assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
    assert_eq!(status, 0);
}

#[test]
fn a_call_beyond_all_places_begins_when_one_is_left() {
    let all = WriteBacks::default();
    let mut others: Vec<_> = (0..PLACES).map(|_| all.begin()).collect();
    std::thread::scope(|scope| {
        let last = scope.spawn(|| drop(all.begin()));
        std::thread::sleep(Duration::from_millis(50));
        assert!(!last.is_finished());
        drop(others.pop());
        last.join().unwrap();
    });
}
