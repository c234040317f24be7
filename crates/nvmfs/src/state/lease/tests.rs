//! A thread's calls inside calls, its leases of two mounts, and reclaimers of its lane.

use super::*;
use crate::ids::{BlockNo, PageNo};
use crate::state::core::tests::bare;
use heddle_vfs::Ino;

fn leases() -> usize {
    LEASES.with(|leases| leases.borrow().len())
}

fn is_held(core: &Core, lane: u16) -> bool {
    core.lane_table().holder(&core.arena, LaneId(lane)).is_some()
}

fn lane_of(core: &Arc<Core>) -> u16 {
    enter(core).unwrap().id
}

#[test]
fn a_call_inside_a_call_has_a_lane_of_its_own() {
    let core = bare(1024);
    assert!(!is_inside() && !has_interrupted(&core));
    let outer = enter(&core).unwrap();
    assert!(is_inside() && !has_interrupted(&core) && !is_interrupted(&core, outer.id));
    let number = {
        let inner = enter(&core).unwrap();
        assert_ne!(inner.id, outer.id);
        assert!(has_interrupted(&core) && is_interrupted(&core, outer.id));
        assert!(!is_interrupted(&core, inner.id) && !has_interrupted_names(&core));
        outer.lane.intent.note_dir(5);
        assert!(has_interrupted_names(&core));
        assert_eq!(with_current(|_, lane| lane), Some(inner.id));
        inner.id
    };
    assert!(!has_interrupted(&core) && !has_interrupted_names(&core));
    assert_eq!((with_current(|_, lane| lane), leases()), (Some(outer.id), 2));
    assert_eq!(lane_of(&core), number, "it keeps it");
    let both = lanes(&core).filter(|lane| is_held(&core, *lane)).collect::<Vec<_>>();
    assert!(both.len() == 2 && both.contains(&number) && both.contains(&outer.id));
    drop(outer);
    assert!(!is_inside() && with_current(|_, lane| lane).is_none());
}

#[test]
fn a_call_inside_one_that_holds_locks_is_refused() {
    let core = bare(1024);
    let outer = enter(&core).unwrap();
    let is_refused = || matches!(enter(&core), Err(Error::WouldDeadlock));
    assert!(!is_refused());
    outer.lane.begin(Ino(1), PageNo(0), PageNo(1));
    assert!(is_refused(), "it may hold cells");
    outer.lane.commit();
    assert!(is_refused());
    outer.lane.end();
    assert!(!is_refused());
    assert!(outer.lane.intent.note_latch(99).is_some());
    assert!(is_refused(), "it may hold a latch");
    assert!(enter(&bare(1024)).is_ok(), "another mount's call waits for neither");
    outer.lane.intent.forget_latches();
    assert!(!is_refused());
}

#[test]
fn a_thread_keeps_a_lane_of_each_mount_until_it_leaves() {
    let (one, other) = (bare(1024), bare(1024));
    let of_one = lane_of(&one);
    assert_eq!((leased(&one), leased(&other)), (Some(of_one), None));
    let of_other = lane_of(&other);
    assert_eq!((leased(&one), leased(&other), leases()), (Some(of_one), Some(of_other), 2));
    assert!(is_held(&one, of_one) && is_held(&other, of_other));
    assert_eq!((lane_of(&one), lane_of(&other), leases()), (of_one, of_other, 2));
    {
        let _inside = enter(&one).unwrap();
        assert!(!has_interrupted(&other));
        leave(&one);
        assert_eq!(leases(), 2, "it is in a call");
    }
    leave(&one);
    assert!(!is_held(&one, of_one) && is_held(&other, of_other));
    assert_eq!((leased(&one), leased(&other), leases()), (None, Some(of_other), 1));
    // A mount that is gone is forgotten when the next lane is leased.
    drop(other);
    assert_eq!((lane_of(&one), leases()), (lane_of(&one), 1));
}

#[test]
fn a_call_is_refused_after_the_end_and_leaves_nothing() {
    let core = bare(1024);
    let lane = lane_of(&core);
    core.root().ended.store(1, SeqCst);
    assert!(matches!(enter(&core), Err(Error::Unmounted)));
    assert_eq!(core.lane(lane).intent.inside.load(SeqCst), 0);
    core.root().ended.store(0, SeqCst);
    let guard = enter(&core).unwrap();
    assert_eq!((guard.id, guard.lane.intent.inside.load(SeqCst)), (lane, 1));
    drop(guard);
    assert_eq!(core.lane(lane).intent.inside.load(SeqCst), 0);
}

/// It died, or was done before the owner looked.
#[test]
fn a_call_clears_the_word_of_a_reclaimer_that_is_void() {
    let core = bare(1024);
    let (first, second) = {
        let (outer, inner) = (enter(&core).unwrap(), enter(&core).unwrap());
        (outer.id, inner.id)
    };
    let word = &core.lane(first).intent.reclaimer;
    assert!(is_void(&core, 0) && is_void(&core, 3 << LANE_BITS | u64::from(second)));
    assert!(is_void(&core, u64::from(LANES) + 1), "no lane");
    word.store(3 << LANE_BITS | u64::from(second), SeqCst);
    let guard = enter(&core).unwrap();
    assert_eq!((guard.id, word.load(SeqCst), guard.lane.intent.inside.load(SeqCst)), (first, 0, 1));
    assert!(!is_void(&core, 3 << LANE_BITS | u64::from(first)), "it is in a call");
}

#[test]
fn a_call_without_a_lane_counts_in_the_threads_own() {
    // Not the lane that a wrong number is likely to name.
    heddle_arena::lanes::look_first_at(20);
    let core = bare(1024);
    let calls = |lane: u16| core.lane(lane).counts.totals().0.of(Kind::Look).calls;
    drop(counted(&core, Kind::Look).unwrap().unwrap());
    let lane = leased(&core).unwrap();
    assert_eq!((calls(lane), leases()), (1, 1));
    let guard = enter_for(&core, Kind::Look).unwrap();
    assert_eq!((guard.id, calls(lane)), (lane, 2));
    // A call within the call has no second lane.
    drop(counted(&core, Kind::Look).unwrap().unwrap());
    assert_eq!((calls(lane), leases()), (3, 1));
    drop(guard);
    core.root().ended.store(1, SeqCst);
    assert!(matches!(counted(&core, Kind::Look), Err(Error::Unmounted)));
}

/// In a thousandth of the image each.
#[test]
fn lanes_start_their_searches_apart() {
    let starts = [1, 2, 501, 1000].map(|lane| life::start_of(lane, 64_000));
    assert_eq!(starts, [0, 64, 32_000, 63_936]);
    assert_eq!(life::start_of(1000, 128), 127);
}

#[test]
fn a_call_that_ends_or_panics_leaves_its_lane_tidy() {
    let core = bare(1024);
    for panics in [false, true] {
        let call = || {
            let guard = enter_for(&core, Kind::Look).unwrap();
            assert!(guard.own.magazine.push(BlockNo(9)));
            guard.lane.intent.note_dir(5);
            guard.lane.intent.logs(5, BlockNo(9), 1);
            assert!(!panics, "in the middle");
            guard.id
        };
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(call));
        assert_eq!(ended.is_err(), panics);
        let lane = core.lane(leased(&core).unwrap());
        assert_eq!((lane.held(), lane.intent.dirs().count(), lane.intent.log()), (1, 0, None));
        assert!(!lane.counts.is_timing() && lane.intent.inside.load(SeqCst) == 0 && !is_inside());
        let guard = enter(&core).unwrap();
        assert!(leases() == 1 && guard.own.magazine.pop().is_some());
    }
}
