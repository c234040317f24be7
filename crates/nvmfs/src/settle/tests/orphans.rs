//! Locks and lanes whose words somebody has written over.

use super::*;
use std::panic::{AssertUnwindSafe, catch_unwind};

#[test]
fn a_lock_that_nobody_holds_fails_the_call_that_waits_for_it() {
    let bench = bench();
    let fs = bench.volume.fs();
    // Taken outside of any call: its word names no lane.
    std::mem::forget(fs.core.inode(bench.file.ino).unwrap().vi.eof.lock());
    let (began, size) = (Instant::now(), SetAttr { size_bytes: Some(5), ..SetAttr::default() });
    let waits = || fs.setattr(&Cred::root(), bench.file.ino, None, &size).map(drop);
    assert!(catch_unwind(AssertUnwindSafe(waits)).is_err());
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    assert!(fs.core.damage_found().is_some_and(|text| text.contains("a lock names lane 0")));
    fs.release(bench.file);
    lease::leave(&fs.core);
}

/// What made a call panic is found once more when its lane is let go of: that ended the process.
#[test]
fn crash_a_panic_over_a_scribbled_lane_ended_the_process() {
    let bench = bench();
    let fs = bench.volume.fs();
    let call = || {
        let guard = lease::enter(&fs.core).unwrap();
        guard.own.scribble_chains();
        panic!("the first");
    };
    assert!(catch_unwind(AssertUnwindSafe(call)).is_err());
    // It is not in a call any more.
    assert!(lease::with_current(|_, _| ()).is_none());
    lease::enter(&fs.core).unwrap().own.rest_scribbled();
    fs.release(bench.file);
    lease::leave(&fs.core);
}
