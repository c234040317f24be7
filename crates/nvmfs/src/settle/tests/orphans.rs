//! Locks whose words somebody has written over.

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
