//! Sets of attributes that change while they are read, whose writer died, or over which somebody has scribbled.

use super::*;
use crate::volume::bench::Bench;
use heddle_vfs::acl::Tag;
use heddle_vfs::short::root;
use heddle_vfs::{FileSystem, SetXattr};
use std::thread::yield_now;

const NAME: &[u8] = b"user.a";

fn name() -> XattrName<'static> {
    XattrName::new(NAME).unwrap()
}

fn set(bench: &Bench, value: &[u8]) {
    bench.fs.setxattr(&root(), bench.file.ino, name(), value, SetXattr::Any).unwrap();
}

fn get(bench: &Bench) -> Vec<u8> {
    bench.fs.getxattr(&root(), bench.file.ino, name()).unwrap()
}

/// A file with an attribute.
fn with_attribute(value: &[u8]) -> Bench {
    let bench = Bench::new();
    set(&bench, value);
    bench
}

fn present(bench: &Bench) -> &Attached {
    attached(bench.core(), bench.inode()).unwrap()
}

fn of(value: &[u8]) -> Xattrs {
    let mut xattrs = Xattrs::default();
    xattrs.put(name(), value.to_vec()).unwrap();
    xattrs
}

/// Of five entries.
fn acl() -> Acl {
    let nobody = u32::MAX;
    let tags = [
        (Tag::Owner, nobody),
        (Tag::User, 1000),
        (Tag::OwningGroup, nobody),
        (Tag::Mask, nobody),
        (Tag::Others, nobody),
    ];
    Acl::new(tags.map(|(tag, id)| Entry { tag, perm: 5, id }).to_vec()).unwrap()
}

#[test]
fn what_was_read_during_a_change_is_read_again() {
    let bench = with_attribute(b"1");
    let (core, inode) = (bench.core(), bench.inode());
    let looks = std::cell::Cell::new(0);
    let seen = settled(core, inode, |set| {
        looks.set(looks.get() + 1);
        if looks.get() == 1 {
            set.seq.fetch_add(2, Relaxed);
        }
        looks.get()
    });
    assert_eq!(seen, Some(2));
    let word = inode.volatile.xattrs();
    let at = word.load(Relaxed);
    let gone = settled(core, inode, |_| word.store(0, Relaxed));
    word.store(at, Relaxed);
    assert_eq!(gone, None, "it is no more the inode's");
}

#[test]
fn attributes_are_read_while_another_call_holds_the_latch() {
    let bench = Bench::new();
    for wanted in [Err(Error::NoAttribute), Ok(b"1".to_vec())] {
        let read = || {
            let found = load(bench.core(), bench.inode()).unwrap();
            assert_eq!(found.get(name()).map(<[u8]>::to_vec), wanted);
        };
        assert!(!bench.waits_for_latch(false, || (), read), "{wanted:?}");
        set(&bench, b"1");
    }
}

/// Loads the attributes during a change. `meanwhile` runs while the reader waits for the latch, `afterwards` soon after it is free.
fn loaded_in_a_change(
    bench: &Bench,
    meanwhile: impl FnOnce(&Attached),
    afterwards: impl FnOnce(&Attached),
) -> Result<Xattrs> {
    let (core, inode, now) = (bench.core(), bench.inode(), present(bench));
    now.seq.fetch_or(1, Relaxed);
    std::thread::scope(|scope| {
        let _call = bench.guard();
        let latched = inode.volatile.eof.lock();
        let reader = scope.spawn(move || load(core, inode));
        while inode.volatile.eof.0.load(Relaxed) & crate::state::latch::WAITERS == 0 && !reader.is_finished()
        {
            yield_now();
        }
        meanwhile(now);
        drop(latched);
        std::thread::sleep(Duration::from_millis(20));
        afterwards(now);
        reader.join().unwrap()
    })
}

#[test]
fn a_reader_waits_for_the_end_of_a_change() {
    let bench = with_attribute(b"1");
    let ends = |set: &Attached| _ = set.seq.fetch_add(1, Relaxed);
    let nothing = |_: &Attached| ();
    for found in [loaded_in_a_change(&bench, ends, nothing), loaded_in_a_change(&bench, nothing, ends)] {
        assert_eq!(found.unwrap().get(name()), Ok(&b"1"[..]));
    }
    let word = bench.inode().volatile.xattrs();
    let at = word.load(Relaxed);
    let dies = |_: &Attached| word.store(0, Relaxed);
    assert!(loaded_in_a_change(&bench, dies, nothing).unwrap().is_empty(), "the inode has ended");
    word.store(at, Relaxed);
}

#[test]
fn each_change_has_a_sequence_number_of_its_own() {
    let bench = with_attribute(b"1");
    let first = bench.inode().volatile.generation() << 20;
    let number = || present(&bench).seq.load(Relaxed) - first;
    assert_eq!(number(), 2);
    set(&bench, b"2");
    assert_eq!(number(), 4);
    // A thread has died in the middle of the next one.
    present(&bench).seq.fetch_or(1, Relaxed);
    set(&bench, b"3");
    assert_eq!((number(), get(&bench)), (6, b"3".to_vec()));
}

#[test]
fn a_set_that_is_given_up_leaves_nothing_behind() {
    for has_one in [false, true] {
        let bench = if has_one { with_attribute(b"1") } else { Bench::new() };
        let (core, inode) = (bench.core(), bench.inode());
        let mut wanted = of(&[7; 5000]);
        wanted.put(XattrName::ACL_ACCESS, acl().to_xattr()).unwrap();
        let give_up = |times: u32| {
            let mut guard = bench.guard();
            for _ in 0..times {
                let prepared = prepare(core, &mut guard, inode, &wanted).unwrap();
                prepared.give_up(core, guard.own, inode);
            }
            drop(guard);
            (bench.volume.memory_bytes(), bench.free())
        };
        let before = give_up(20);
        assert_eq!(give_up(200), before, "{has_one}");
        assert_eq!(load(core, inode).unwrap().is_empty(), !has_one);
        set(&bench, b"2");
        assert_eq!(get(&bench), b"2");
    }
}

#[test]
fn the_set_of_a_dead_writer_is_linked_once() {
    let bench = with_attribute(&[1; 5000]);
    let (core, inode) = (bench.core(), bench.inode());
    let known = change_count(core, inode).unwrap();
    let (first, old) = (blob_of(present(&bench)), blocks(core, inode));
    assert_eq!(old.len(), 2);
    let mut guard = bench.guard();
    let newer = prepare(core, &mut guard, inode, &of(&[2; 100])).unwrap().blob.first();
    let mut settle = |count: u64, first| roll_forward(core, guard.own, inode, count, first);
    let none = Ok(Vec::new());
    assert_eq!((settle(known, newer), get(&bench)), (none.clone(), vec![1; 5000]), "it was visible");
    set_change_count(core, inode, known - 1);
    assert_eq!((settle(known, first), get(&bench)), (none, vec![1; 5000]), "it was linked");
    assert_eq!(change_count(core, inode), Some(known));
    assert_eq!((settle(known + 1, newer), get(&bench)), (Ok(old), vec![2; 100]), "it was durable");
    assert_eq!(change_count(core, inode), Some(known + 1));
    let outside = Some(BlockNo(core.layout.blocks_total));
    assert!(matches!(settle(known + 2, outside), Err(Error::Corrupt(_))));
}

#[test]
fn an_access_list_whose_place_makes_no_sense_is_none() {
    let bench = Bench::new();
    let list_of = || list(bench.core(), bench.inode(), List::Access);
    let bytes = acl().to_xattr();
    bench.fs.setxattr(&root(), bench.file.ino, XattrName::ACL_ACCESS, &bytes, SetXattr::Any).unwrap();
    assert_eq!((list_of(), list(bench.core(), bench.inode(), List::Default)), (Some(acl()), None));
    let set = present(&bench);
    let (at, len) = (set.lists[0].load(Relaxed), set.lens[0].load(Relaxed));
    assert_eq!(len, 5);
    let far = 1 << 40;
    for (wild, words) in [
        (u64::MAX - 7, len),
        (far, len),
        (at + 4, len),
        (0, len),
        (at, 0),
        (at, far),
        // The last word is one.
        (at.wrapping_sub((far - 1) * 8), far),
    ] {
        set.lists[0].store(wild, Relaxed);
        set.lens[0].store(words, Relaxed);
        assert_eq!(list_of(), None, "{words} words at {wild}");
    }
    set.lists[0].store(at, Relaxed);
    set.lens[0].store(len, Relaxed);
    assert_eq!(list_of(), Some(acl()));
}
