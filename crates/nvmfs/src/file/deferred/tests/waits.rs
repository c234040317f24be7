//! How long a call without space waits, and for whom: the time that it has waited so far is made up.

use super::super::*;
use crate::state::lane::Pinning;
use crate::volume::bench::Bench;
use std::sync::mpsc::channel;

const PAGE: u64 = 4096;
/// Longer than running threads are waited for, and shorter than stopped ones are.
const LONG: Duration = Duration::from_secs(1);
const TOO_LONG: Duration = Duration::from_secs(60);

/// A file of 64 pages, on a mount whose patience is a second.
fn bench() -> Bench {
    let bench = Bench::new();
    bench.core().root().patience_ms.store(1000, Relaxed);
    bench.write(0, 1, 64 * PAGE);
    bench
}

/// A wait that has lasted so long; if it has just begun, it does not get older.
fn waited(so_far: Duration) -> Wait {
    let now = Instant::now();
    let since = if so_far.is_zero() { now + TOO_LONG } else { now.checked_sub(so_far).unwrap() };
    Wait { since, first: None, busy: Vec::new() }
}

#[test]
fn lanes_in_one_call_are_waited_for_as_long_as_the_patience() {
    let bench = bench();
    let (core, call) = (bench.core(), bench.guard());
    let calls = core.lane(call.id).counts.totals().0.calls();
    let (same, another) = (vec![(call.id, calls)], vec![(call.id, calls + 1)]);
    for (so_far, busy, goes_on, then) in [
        (Duration::ZERO, Vec::new(), true, &same),
        (Duration::ZERO, another.clone(), true, &same),
        (LONG, same.clone(), true, &same),
        (LONG, another, false, &Vec::new()),
        (LONG, Vec::new(), false, &Vec::new()),
        (TOO_LONG, same.clone(), false, &same),
    ] {
        let mut wait = Wait { busy: busy.clone(), ..waited(so_far) };
        assert_eq!(wait.for_busy(core, vec![call.id]), goes_on, "{so_far:?}, {busy:?}");
        assert_eq!(wait.busy, *then, "{so_far:?}, {busy:?}");
    }
}

#[test]
fn readers_are_waited_for_while_blocks_wait_for_them() {
    let bench = bench();
    let (core, inode) = (&bench.fs.core, bench.inode());
    let comes_back = |wait: &mut Wait| wait.come_back(core, &mut bench.guard());
    assert!(!comes_back(&mut waited(Duration::ZERO)), "there is no reader");
    let (pins, has_pinned) = channel();
    let (unpins, may_unpin) = channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut guard = lease::enter(core).unwrap();
            let phase = pin(&guard, inode);
            pins.send((guard.id, phase)).unwrap();
            let _ = may_unpin.recv();
            unpin(core, &mut guard, inode, phase);
        });
        let (lane, phase) = has_pinned.recv().unwrap();
        assert!(!comes_back(&mut waited(Duration::ZERO)), "no block waits for it");
        bench.write(0, 2, 2 * PAGE);
        let reader = vec![(lane, Pinning::Done(inode.ino.0, phase))];
        assert_eq!(readers(core, 0), reader);
        assert!(readers(core, lane).is_empty());
        for (so_far, first, goes_on, then) in [
            (Duration::ZERO, None, true, &reader),
            (Duration::ZERO, Some(vec![]), true, &vec![]),
            (LONG, Some(reader.clone()), true, &reader),
            (LONG, Some(vec![]), false, &vec![]),
            (LONG, Some(vec![(lane + 1, Pinning::None)]), false, &vec![]),
            (TOO_LONG, Some(reader.clone()), false, &reader),
        ] {
            let mut wait = Wait { first: first.clone(), ..waited(so_far) };
            assert_eq!(comes_back(&mut wait), goes_on, "{so_far:?}, {first:?}");
            assert_eq!(wait.first.as_ref(), Some(then), "{so_far:?}, {first:?}");
        }
        drop(unpins);
    });
    assert!(!comes_back(&mut waited(Duration::ZERO)), "it is done");
}

#[test]
fn a_call_that_has_waited_a_while_settles_a_dead_lane() {
    let settled = |bench: &Bench| bench.core().root().settled.load(SeqCst);
    let lane_of_the_dead = |bench: &Bench| {
        let mine = bench.guard().id;
        lease::lanes(bench.core()).find(|lane| *lane != mine).unwrap()
    };
    let bench = bench();
    bench.dies_after(|| std::mem::forget(bench.guard()));
    let lane = lane_of_the_dead(&bench);
    let calls = bench.core().lane(lane).counts.totals().0.calls();
    for (so_far, wanted) in [(Duration::ZERO, 0), (LONG, 1)] {
        let mut wait = Wait { busy: vec![(lane, calls)], ..waited(so_far) };
        wait.for_busy(bench.core(), vec![lane]);
        assert_eq!(settled(&bench), wanted, "busy for {so_far:?}");
    }
    let bench = self::bench();
    bench.dies_after(|| {
        let guard = bench.guard();
        pin(&guard, bench.inode());
        std::mem::forget(guard);
    });
    bench.write(0, 2, 2 * PAGE);
    for (so_far, wanted) in [(Duration::ZERO, 0), (LONG, 1)] {
        let first = readers(bench.core(), 0);
        Wait { first: Some(first), ..waited(so_far) }.come_back(bench.core(), &mut bench.guard());
        assert_eq!(settled(&bench), wanted, "a reader for {so_far:?}");
    }
}

#[test]
fn blocks_that_waited_for_a_reader_that_is_done_come_back() {
    let bench = bench();
    let (core, inode) = (bench.core(), bench.inode());
    let waiting = || core.root().deferred.load(Relaxed);
    let phase = inode.volatile.pins.pin();
    bench.write(0, 2, 5 * PAGE);
    assert_eq!(waiting(), 5);
    free_deferred_blocks(core, &mut bench.guard(), inode);
    assert_eq!(waiting(), 5, "it reads");
    inode.volatile.pins.unpin(phase);
    free_deferred_blocks(core, &mut bench.guard(), inode);
    assert_eq!((waiting(), inode.volatile.pins.now().none()), (0, true));
}

/// No lane says that it has the pin: there is nobody to wait for.
#[test]
fn a_writer_goes_on_if_it_knows_of_no_reader() {
    let bench = Bench::new();
    let pages = bench.core().layout.blocks_total / DEFERRED_SHARE + 1;
    bench.write(0, 1, pages * PAGE);
    let phase = bench.inode().volatile.pins.pin();
    bench.write(0, 2, pages * PAGE);
    assert_eq!(bench.core().root().deferred.load(Relaxed), pages);
    unpin(bench.core(), &mut bench.guard(), bench.inode(), phase);
    assert_eq!(bench.core().root().deferred.load(Relaxed), 0);
}
