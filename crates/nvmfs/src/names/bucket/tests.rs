//! What the words of a bucket and its links say, and chains that are long, full of like hashes, or circular.

use super::*;
use crate::ids::InodeId;
use crate::names::table::{alloc_entry, free_entry};
use crate::state::lane::LaneLocal;
use crate::state::lease::enter;
use crate::variant::Variant;
use crate::volume::{MountOptions, Volume, format, mount};
use heddle_pmem::Region;
use heddle_vfs::{FileKind, Ino};
use std::collections::HashMap;

fn volume() -> Volume {
    let region = Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    mount(region, &MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }).unwrap()
}

#[test]
fn links_come_in_order_whatever_order_they_lay_in() {
    // A network that sorts all sequences of 0 and 1 sorts everything.
    for bits in 0..64u64 {
        let links = std::array::from_fn(|i| Link(bits >> i & 1));
        assert!(sorted(links).is_sorted(), "{bits:06b}");
    }
}

#[test]
fn a_bucket_is_still_the_same_while_locked_not_when_changed() {
    let bucket = Bucket::unborn();
    bucket.revive(Version(5));
    let before = bucket.word();
    let said = (before.version(), before.holder(), before.changing(), before.dead());
    assert_eq!(said, (Version(5), 0, false, false));
    for (word, is_same) in [
        (5 << 16, true),
        (5 << 16 | 1000 << 4 | LOCKED, true),
        (5 << 16 | 7 << 4 | LOCKED | CHANGING, false),
        (5 << 16 | CHANGING, false),
        (5 << 16 | DEAD, false),
        (4 << 16, false),
        (6 << 16, false),
        (6 << 16 | 7 << 4 | LOCKED, false),
    ] {
        bucket.word.store(word, SeqCst);
        assert_eq!(bucket.still(before), is_same, "{word:#x}");
    }
    let holders =
        [5 << 16 | 7 << 4, 1000 << 4 | LOCKED, (u64::MAX << 16) | 3 << 4 | LOCKED | CHANGING | DEAD];
    assert_eq!(holders.map(|word| Word(word).holder()), [0, 1000, 3]);
}

#[test]
fn the_line_is_all_of_a_bucket_that_rests_without_a_chain() {
    let bucket = Bucket::unborn();
    bucket.revive(Version(5));
    assert!(bucket.links().is_some_and(|(word, links)| word.version() == Version(5) && links[0].is_none()));
    bucket.chain.store(1, SeqCst);
    assert!(bucket.links().is_none(), "there are more entries");
    bucket.revive(Version(5));
    bucket.begin_change();
    assert!(bucket.links().is_none(), "it is changing");
    // As a rename within a bucket does.
    bucket.begin_change();
    assert!(bucket.word().changing() && bucket.word().version() == Version(5));
    bucket.word.store(DEAD, SeqCst);
    assert!(bucket.links().is_none(), "it is dead");
}

#[test]
fn a_lock_of_a_dead_lane_ends_unless_a_change_began() {
    let volume = volume();
    let core = volume.fs().core;
    let bucket = &core.inode(Ino::ROOT).unwrap().volatile.home;
    let locked = 5 << 16 | 7 << 4 | LOCKED;
    for (word, lane, after) in [
        (locked, 8, locked),
        (locked, 7, 5 << 16),
        (locked | CHANGING, 7, locked | CHANGING),
        (locked | DEAD, 7, locked | DEAD),
        (locked | CHANGING, 8, locked | CHANGING),
    ] {
        bucket.word.store(word, SeqCst);
        bucket.unlock_dead(&core, lane);
        assert_eq!(bucket.word(), Word(after), "{word:#x} of lane {lane}");
    }
    volume.abandon();
}

#[test]
fn a_bucket_is_locked_if_it_lives_and_is_wanted() {
    let volume = volume();
    let core = volume.fs().core;
    let guard = enter(&core).unwrap();
    let bucket = &core.inode(Ino::ROOT).unwrap().volatile.home;
    bucket.word.store(5 << 16, SeqCst);
    assert!(matches!(bucket.lock(&core, || false), Err(Unlockable::Dead)));
    assert_eq!(bucket.word(), Word(5 << 16), "not wanted, not locked");
    assert_eq!(bucket.lock(&core, || true).unwrap().version(), Version(5));
    assert_eq!((bucket.word().holder(), bucket.word().version()), (guard.id, Version(5)));
    bucket.unlock(&core, Version(6));
    assert_eq!(bucket.word(), Word(6 << 16));
    bucket.kill(&core);
    assert!(matches!(bucket.lock(&core, || true), Err(Unlockable::Dead)));
    assert_eq!((bucket.word().holder(), bucket.word().dead()), (0, true));
    drop(guard);
    volume.abandon();
}

/// A link keeps the 26 high bits of a hash of 63.
#[test]
fn entries_go_to_the_bucket_of_the_high_bits_of_their_hash() {
    let hash = 0x5a5a_1234_9876_fedc;
    for bits in [1, 2, 13, 25, 26] {
        let index = index_of(Link::to(4096, hash), bits, || None);
        assert_eq!(index, Some((hash / (1 << (63 - bits))) as usize), "{bits} bits");
    }
    for bits in [27, 30, 33] {
        let index = index_of(Link::to(4096, hash), bits, || Some(hash));
        assert_eq!(index, Some((hash / (1 << (63 - bits))) as usize), "{bits} bits");
    }
    assert_eq!(index_of(Link::to(4096, hash), 27, || None), None, "its entry cannot be read");
}

fn named(n: usize) -> Named {
    let child = InodeId { ino: Ino(n as u64 + 10), generation: n as u64 + 100 };
    Named { child, kind: FileKind::Regular, version: Version(n as u64 + 1) }
}

/// Adds a name. Returns the number of entries outside the line.
fn add(core: &Core, own: &mut LaneLocal, bucket: &Bucket, name: &str, n: usize) -> usize {
    let key = Key::new(core.seed, name.as_bytes());
    let memory = alloc_entry(core, own, key.name).unwrap();
    bucket.add(core, key, &named(n), memory)
}

fn find(core: &Core, bucket: &Bucket, name: &str) -> Option<Named> {
    let entry = bucket.find(core, Key::new(core.seed, name.as_bytes())).unwrap();
    entry.map(|entry| entry.named().unwrap())
}

#[test]
fn a_chain_of_hundreds_is_read_whole_and_a_circle_is_torn() {
    let volume = volume();
    let core = volume.fs().core;
    let guard = enter(&core).unwrap();
    let bucket = &core.inode(Ino::ROOT).unwrap().volatile.home;
    let names: Vec<String> = (0..300).map(|n| format!("name {n}")).collect();
    for (n, name) in names.iter().enumerate() {
        assert_eq!(add(&core, guard.own, bucket, name, n), (n + 1).saturating_sub(6), "outside the line");
    }
    assert_eq!(bucket.in_line(), 6);
    let is_there = |n: usize| find(&core, bucket, &names[n]) == Some(named(n));
    assert!((0..300).all(is_there));
    assert_eq!(find(&core, bucket, "none"), None);
    for name in names.iter().step_by(2) {
        let entry = bucket.find(&core, Key::new(core.seed, name.as_bytes())).unwrap().unwrap();
        free_entry(&core, guard.own, bucket.take(&core, entry));
    }
    assert!((0..300).all(|n| is_there(n) == (n % 2 == 1)));
    let mut seen = 0;
    bucket
        .each(&core, |_| {
            seen += 1;
            Ok(())
        })
        .unwrap();
    assert_eq!(seen, 150);
    // As a client may scribble.
    let mut last = read(&bucket.chain).follow(&core).unwrap();
    while !read(last.next()).is_none() {
        last = read(last.next()).follow(&core).unwrap();
    }
    last.next().store(bucket.chain.load(SeqCst), SeqCst);
    assert!(bucket.find(&core, Key::new(core.seed, b"none")).is_err());
    drop(guard);
    volume.abandon();
}

/// Two names whose hashes agree in all bits that a link keeps: the first two of a few ten thousand.
fn names_of_one_tag(seed: u32) -> [String; 2] {
    let mut seen = HashMap::new();
    let pair = (0..).map(|n| format!("like {n}")).find_map(|name| {
        let before = seen.insert(tag(Key::new(seed, name.as_bytes()).hash), name.clone())?;
        Some([before, name])
    });
    pair.unwrap()
}

#[test]
fn names_that_a_link_cannot_tell_apart_are_two() {
    let volume = volume();
    let core = volume.fs().core;
    let guard = enter(&core).unwrap();
    let bucket = &core.inode(Ino::ROOT).unwrap().volatile.home;
    let [one, other] = names_of_one_tag(core.seed);
    add(&core, guard.own, bucket, &one, 1);
    assert_eq!((find(&core, bucket, &one), find(&core, bucket, &other)), (Some(named(1)), None));
    add(&core, guard.own, bucket, &other, 2);
    assert_eq!((find(&core, bucket, &one), find(&core, bucket, &other)), (Some(named(1)), Some(named(2))));
    // The same outside the line.
    bucket.clear();
    for n in 0..6 {
        add(&core, guard.own, bucket, &format!("full {n}"), n);
    }
    assert_eq!(add(&core, guard.own, bucket, &one, 1), 1);
    assert_eq!((find(&core, bucket, &one), find(&core, bucket, &other)), (Some(named(1)), None));
    drop(guard);
    volume.abandon();
}
