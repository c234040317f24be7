//! What a reader takes for unchanged, and reads that pin.

use super::*;
use crate::ids::Version;
use crate::volume::bench::Bench;
use heddle_vfs::FileSystem;

const PAGE: u64 = 4096;

#[test]
fn a_cell_is_unchanged_if_neither_its_word_nor_its_owner_changed() {
    let bench = Bench::new();
    let core = bench.core();
    let (one, other) = (bench.cell(0), bench.cell(1));
    let is = |cell: Option<&Cell>, seen: Seen| unchanged(core, cell, &seen);
    assert!(is(None, ABSENT) && is(Some(one), ABSENT));
    let free = Seen { lock_version: Some(one.lock_version()), owner: None, map: one.map() };
    assert!(is(Some(one), free) && !is(None, free));
    let call = bench.guard();
    other.try_lock(call.id).unwrap();
    let held =
        Seen { lock_version: Some(other.lock_version()), owner: Some(call.lane.state()), map: one.map() };
    assert!(is(Some(other), held) && !is(Some(one), held) && !is(Some(other), free));
    assert!(!is(Some(other), ABSENT), "it is locked");
    let op = Active::begin(call.lane, bench.file.ino, PageNo(1), PageNo(2));
    assert!(!is(Some(other), held), "its owner has begun something");
    assert!(is(Some(other), Seen { owner: Some(call.lane.state()), ..held }));
    drop(op);
    other.unlock(Version(1));
    assert!(!is(Some(other), ABSENT) && !is(Some(other), held), "it was written");
    other.set(Map::HOLE, Version(0));
}

/// Holes with and without cells, parts of pages, and the end of the file.
#[test]
fn a_read_that_pins_returns_what_any_read_does() {
    let bench = Bench::new();
    let mut wanted = vec![0; 150 * PAGE as usize + 100];
    for (page, value) in [(0, 1), (1, 2), (3, 3), (140, 4), (141, 5), (150, 6)] {
        let len = if page == 150 { 100 } else { PAGE };
        bench.write(page * PAGE, value, len);
        wanted[(page * PAGE) as usize..][..len as usize].fill(value);
    }
    let (core, inode) = (bench.core(), bench.inode());
    for (offset, len) in [
        (0, 160 * PAGE),
        (10, 20),
        (PAGE - 1, 2),
        (PAGE, 3 * PAGE),
        (2 * PAGE + 5, 140 * PAGE),
        (60 * PAGE, 20 * PAGE),
        (141 * PAGE + 1, 20 * PAGE),
        (150 * PAGE + 99, 5),
        (150 * PAGE + 100, 5),
        (160 * PAGE, 5),
    ] {
        let end = (offset + len).min(wanted.len() as u64).max(offset);
        let here = wanted.get(offset as usize..end as usize).unwrap_or(&[]);
        let mut bytes = vec![0xee; len as usize];
        let read = read_pinned(core, &mut bench.guard(), inode, offset, &mut bytes).unwrap();
        assert!(bytes[..read] == *here, "{read} bytes at {offset}");
        assert!(bytes[read..].iter().all(|byte| *byte == 0xee));
        assert!(inode.volatile.pins.now().none() && !bench.cell(0).lock_version().locked());
    }
    assert_eq!(bench.fs.read(&bench.file, 0, &mut [0; 3]), Ok(3));
}
