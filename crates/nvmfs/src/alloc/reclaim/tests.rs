//! What a thread takes back from its other lane, which is idle or in a call.

use super::*;
use crate::ids::{BlockNo, Extent};
use crate::state::core::tests::{add_chunks, bare, on};
use crate::state::lane::slots::HeldChunk;
use crate::state::lease::enter;
use crate::variant::Variant;
use heddle_pmem::{CrashPoint, Region};
use std::sync::{Arc, Mutex};

#[test]
fn a_reclaimer_that_is_done_meanwhile_is_no_lane_to_wait_for() {
    assert_eq!(to_wait_for(7, 5 << LANE_BITS | 3), 3);
    assert_eq!(to_wait_for(7, 0), 7, "it gave what the lane held, or found the owner inside");
    assert_eq!(to_wait_for(7, u64::from(LANES) + 1), 7, "a number that somebody has scribbled");
}

/// What a lane may hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    Nothing,
    Block,
    FreedBlock,
    Slot,
}

const ALL: [Held; 4] = [Held::Nothing, Held::Block, Held::FreedBlock, Held::Slot];

/// A block of the data area, and a slot of the first chunk, which there is.
fn hold(core: &Core, own: &mut LaneLocal, what: Held) {
    let extent = Extent { block: BlockNo(100), count: 1 };
    match what {
        Held::Nothing => {}
        Held::Block => assert!(core.free_map().claim(extent) && own.magazine.push(extent.block)),
        Held::FreedBlock => assert!(core.free_map().claim(extent) && own.limbo.push(extent)),
        Held::Slot => own.slots.chunks[0] = HeldChunk { number: 1, free: 1 },
    }
}

fn with_a_chunk() -> Arc<Core> {
    let core = bare(1024);
    add_chunks(&core, 1);
    core
}

/// What was found: the lanes to wait for, if anything was busy.
fn found(reclaimed: Reclaimed) -> (bool, Vec<u16>) {
    match reclaimed {
        Reclaimed::Some => (true, vec![]),
        Reclaimed::Busy(lanes) => (false, lanes),
        Reclaimed::Nothing => (false, vec![]),
    }
}

#[test]
fn what_an_idle_lane_holds_is_taken_once() {
    for what in ALL {
        let core = with_a_chunk();
        let free = core.free_map().count();
        let mut outer = enter(&core).unwrap();
        let idle = {
            let inner = enter(&core).unwrap();
            hold(&core, inner.own, what);
            inner.id
        };
        assert_eq!(core.lane(idle).holds_any(), what != Held::Nothing, "{what:?}");
        assert_eq!(found(reclaim_from_lanes(&core, &mut outer)), (what != Held::Nothing, vec![]), "{what:?}");
        assert_eq!(core.free_map().count(), free, "{what:?}");
        assert_eq!(core.free_slots(0).load(SeqCst), u64::from(what == Held::Slot), "{what:?}");
        assert_eq!((core.lane(idle).holds_any(), core.lane(idle).intent.reclaimer.load(SeqCst)), (false, 0));
        assert_eq!(found(reclaim_from_lanes(&core, &mut outer)), (false, vec![]), "{what:?}");
    }
}

#[test]
fn a_lane_that_gave_up_what_it_had_noted_has_nothing() {
    let core = with_a_chunk();
    let mut outer = enter(&core).unwrap();
    let idle = {
        let inner = enter(&core).unwrap();
        hold(&core, inner.own, Held::Block);
        inner.id
    };
    // SAFETY: its owner is this thread, which is in no call with it.
    assert!(unsafe { core.lane(idle).own() }.magazine.pop().is_some());
    assert!(core.lane(idle).holds_any());
    assert_eq!(found(reclaim_from_lanes(&core, &mut outer)), (false, vec![]));
}

#[test]
fn a_reclaimer_keeps_what_it_has_itself() {
    let core = with_a_chunk();
    let mut guard = enter(&core).unwrap();
    hold(&core, guard.own, Held::Block);
    guard.lane.note_held(guard.own);
    assert_eq!(found(reclaim_from_lanes(&core, &mut guard)), (false, vec![]));
    assert_eq!(guard.own.magazine.pop(), Some(BlockNo(100)));
}

#[test]
fn a_lane_in_a_call_is_waited_for_if_it_holds_blocks() {
    for what in ALL {
        let core = with_a_chunk();
        let mut outer = enter(&core).unwrap();
        let inner = enter(&core).unwrap();
        hold(&core, inner.own, what);
        inner.lane.note_held(inner.own);
        let has_blocks = [Held::Block, Held::FreedBlock].contains(&what);
        let busy = if has_blocks { vec![inner.id] } else { vec![] };
        assert_eq!(found(reclaim_from_lanes(&core, &mut outer)), (false, busy), "{what:?}");
        assert_eq!(inner.lane.intent.reclaimer.load(SeqCst), 0);
        assert_eq!(inner.lane.holds_any(), what != Held::Nothing, "{what:?}");
    }
}

#[test]
fn a_reclaimer_gives_way_to_one_that_is_active() {
    let core = with_a_chunk();
    let mut outer = enter(&core).unwrap();
    let idle = enter(&core).unwrap();
    let active = enter(&core).unwrap();
    hold(&core, idle.own, Held::Block);
    let number = idle.id;
    drop(idle);
    let word = &core.lane(number).intent.reclaimer;
    let its = 9 << LANE_BITS | u64::from(active.id);
    word.store(its, SeqCst);
    assert_eq!(found(reclaim_from_lanes(&core, &mut outer)), (false, vec![active.id]));
    assert_eq!((word.load(SeqCst), core.lane(number).holds_any()), (its, true));
    // It has died.
    drop(active);
    assert_eq!(found(reclaim_from_lanes(&core, &mut outer)), (true, vec![]));
    assert_eq!((word.load(SeqCst), core.lane(number).holds_any()), (0, false));
}

#[test]
fn a_reclaimers_word_names_its_lane_and_the_reclaim() {
    let (region, power) = Region::simulated(4 << 20);
    let core = on(region, Variant::Heddle);
    let mut outer = enter(&core).unwrap();
    let idle = {
        let inner = enter(&core).unwrap();
        hold(&core, inner.own, Held::Block);
        inner.id
    };
    outer.own.reclaims = 5;
    let words = Arc::new(Mutex::new(Vec::new()));
    let (seen, at) = (words.clone(), core.clone());
    let look = move |_: &CrashPoint<'_>| {
        seen.lock().unwrap().push(at.lane(idle).intent.reclaimer.load(SeqCst));
    };
    power.on_fence(Box::new(look));
    assert_eq!(found(reclaim_from_lanes(&core, &mut outer)), (true, vec![]));
    power.stop_watching();
    assert_eq!(*words.lock().unwrap(), [6 << 16 | u64::from(outer.id)]);
}
