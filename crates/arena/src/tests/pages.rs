//! Fresh memory and memory that is used again, as the kernel and the next owner see it.

use std::sync::atomic::Ordering::*;

use super::corners::sealed;
use crate::class::Class;
use crate::*;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::panic::{AssertUnwindSafe, catch_unwind};

const HUGE: u64 = 2 << 20;

#[test]
fn small_blocks_beyond_eight_mebibytes_get_huge_pages() {
    let arena = Arena::shared(16 << 20).unwrap();
    // Each is alone in its batch, so that nothing else touches fresh memory.
    while arena.used_bytes() + (64 << 10) <= 15 << 20 {
        let (from, before) = (arena.used_bytes(), arena.touched_bytes());
        arena.alloc_zeroed::<[u64; 8192]>(1).unwrap();
        let part = |at: u64| (at - 1) / HUGE;
        let is_first = part(arena.used_bytes()) > part(from) && arena.used_bytes() > 8 << 20;
        assert_eq!(arena.touched_bytes() > before, is_first, "at {from:#x}");
    }
}

#[test]
fn a_large_block_touches_no_memory_before_it_is_used() {
    let arena = Arena::shared(16 << 20).unwrap();
    let before = arena.touched_bytes();
    while arena.alloc_zeroed::<[u64; 8193]>(1).is_ok() {}
    assert_eq!(arena.touched_bytes(), before);
}

#[test]
fn a_large_table_that_is_made_again_takes_no_memory() {
    const WORDS: usize = 5 << 17;
    let arena = Arena::shared(16 << 20).unwrap();
    let table = arena.alloc_slice(WORDS, |_| u64::MAX).unwrap();
    let before = arena.touched_bytes();
    // SAFETY: allocated above, with that many, not used any more.
    unsafe { arena.free(table, WORDS) };
    assert_eq!(arena.alloc_zeroed::<u64>(WORDS), Ok(table));
    assert!(arena.touched_bytes() + HUGE <= before, "{} of {before}", arena.touched_bytes());
    assert!(arena.slice(table, WORDS).iter().all(|word| *word == 0));
}

#[test]
fn zeroing_a_small_block_leaves_its_neighbours_as_they_are() {
    let arena = super::arena();
    let blocks: Vec<_> = (0..512).map(|_| arena.alloc([u64::MAX; 8]).unwrap()).collect();
    let begins_page = |block: &&Ptr<[u64; 8]>| block.raw().is_multiple_of(4096);
    assert!(blocks.iter().filter(begins_page).count() > 4);
    for block in blocks.iter().filter(begins_page) {
        // SAFETY: allocated above, not used any more.
        unsafe { arena.free(*block, 1) };
        assert_eq!(arena.alloc_zeroed(1), Ok(*block));
    }
    for block in &blocks {
        let wanted = if begins_page(&block) { 0 } else { u64::MAX };
        assert_eq!(arena.get(*block), &[wanted; 8], "{block:?}");
    }
}

#[test]
fn a_fresh_batch_is_a_list_of_neighbours_that_ends() {
    let arena = super::arena();
    for (bytes, stride) in [(32, 32), (48, 48), (1000, 1024), (8192, 8192)] {
        let class = Class::of(bytes).unwrap();
        let (first, count, is_fresh) = arena.take_batch(class).unwrap();
        assert!(is_fresh && count > 1);
        let next = |block: &u64| Some(arena.links(*block).next.load(Relaxed)).filter(|next| *next != 0);
        let blocks: Vec<u64> = std::iter::successors(Some(first), next).take(200).collect();
        assert_eq!(blocks, (0..count).map(|n| first + n * stride).collect::<Vec<_>>());
    }
}

#[test]
fn the_smallest_arena_can_be_attached_to_and_no_smaller_one() {
    let Err(MapError::Size { min_bytes, .. }) = Arena::shared(4096) else { panic!("4096 bytes are enough") };
    let smallest = Arena::shared(min_bytes as usize).unwrap();
    assert_eq!(smallest.map_again().unwrap().capacity_bytes(), min_bytes);
    let header = std::fs::File::from(smallest.fd().unwrap().try_clone_to_owned().unwrap());
    let mut magic = [0; 8];
    header.read_exact_at(&mut magic, 0).unwrap();
    for bytes in [min_bytes / 2, min_bytes - 4096] {
        let smaller = sealed(bytes);
        smaller.write_all_at(&magic, 0).unwrap();
        smaller.write_all_at(&bytes.to_ne_bytes(), 8).unwrap();
        assert!(matches!(Arena::attach(OwnedFd::from(smaller)), Err(MapError::Foreign)), "{bytes}");
    }
}

#[test]
fn only_what_lies_in_the_arena_can_be_a_free_block() {
    let arena = super::arena();
    let (first, end) = (arena.used_bytes(), arena.capacity_bytes());
    let class = Class::of(48).unwrap();
    let is_refused = |call: &dyn Fn()| catch_unwind(AssertUnwindSafe(call)).is_err();
    let has_no_links = |at: u64| {
        is_refused(&|| {
            arena.links(at);
        })
    };
    let is_none = |at: u64| is_refused(&|| arena.check_block(class, at));
    for at in [first, first + 16, end - 48] {
        assert!(!has_no_links(at) && !is_none(at), "{at:#x}");
    }
    // Links of three words fit in where a block of the class does not.
    assert!(!has_no_links(end - 32) && is_none(end - 32));
    for at in [0, 16, first - 16, first + 8, end - 24, end - 16, end, end + 16, u64::MAX - 15] {
        assert!(has_no_links(at) && is_none(at), "{at:#x}");
    }
}

#[test]
fn pointers_are_equal_where_their_offsets_are() {
    let (one, two) = (Ptr::<u64>::from_raw(64), Ptr::<u64>::from_raw(72));
    assert!(one != two && one.add(1) == two);
    let kept = AtomicPtr::new(one);
    kept.store(two, SeqCst);
    assert_eq!(kept.load(SeqCst), two);
    assert_eq!((kept.swap(one, SeqCst), kept.load(SeqCst)), (two, one));
    assert_eq!(kept.compare_exchange(two, two, SeqCst, SeqCst), Err(one));
    assert_eq!(kept.compare_exchange(one, two, SeqCst, SeqCst), Ok(one));
    assert_eq!(kept.load(SeqCst), two);
}
