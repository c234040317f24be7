//! What an owner holds, a heap's blocks or a process slot, and what is left when it dies.

use std::fs::File;
use std::sync::atomic::Ordering::*;
use std::time::{Duration, Instant};

use super::corners::words_of;
use super::{in_child, kill_and_reap};
use crate::class::Class;
use crate::reserve::tests::parts_mapped;
use crate::*;

/// Position of the class of 64 bytes.
const LINE: usize = 2;

#[test]
fn a_heap_counts_its_blocks_and_keeps_two_batches() {
    let (arena, heap) = (super::arena(), Heap::zeroed());
    let full = Class::of(64).unwrap().batch();
    let count = &words_of(&heap)[3 * LINE + 1];
    // SAFETY: one thread, so one owner, here and below.
    let alloc = || unsafe { heap.alloc(&arena, [0u64; 8]) }.unwrap();
    // SAFETY: each was allocated here, and is freed once.
    let free = |block| unsafe { heap.free(&arena, block, 1) };
    let one = alloc();
    assert_eq!(count.load(Relaxed), full - 1);
    free(one);
    assert_eq!(count.load(Relaxed), full);
    let blocks: Vec<_> = (0..4 * full).map(|_| alloc()).collect();
    assert_eq!(count.load(Relaxed), 0);
    blocks.into_iter().for_each(free);
    let used = arena.used_bytes();
    for _ in 0..2 {
        for _ in 0..2 * full {
            arena.alloc([1u64; 8]).unwrap();
        }
        assert_eq!(arena.used_bytes(), used, "two batches were there for others");
        // SAFETY: as above.
        unsafe { heap.flush(&arena) };
    }
}

/// Two pages of memory that children share.
fn two_pages() -> *mut u8 {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
    // SAFETY: new memory, which is never unmapped.
    let at = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            8192,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED | MapFlags::NORESERVE,
        )
    };
    at.unwrap().cast()
}

/// Runs this in a child that dies at its first store to the given page.
fn dies_at_a_store(page: *mut u8, work: impl FnOnce()) {
    // SAFETY: the child makes system calls and touches shared memory, and nothing of the heap.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let no_dump = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: settings of this process; the page is one of the memory that it shares.
        unsafe {
            libc::setrlimit(libc::RLIMIT_CORE, &no_dump);
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            libc::mprotect(page.cast(), 4096, libc::PROT_READ);
        }
        work();
        // SAFETY: ends the child.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: our own child, reaped once; a live local.
    unsafe { libc::waitpid(child, &mut status, 0) };
    assert!(libc::WIFSIGNALED(status) && libc::WTERMSIG(status) == libc::SIGSEGV, "{status:#x}");
}

#[test]
fn a_heap_whose_owner_dies_claims_no_block_too_many() {
    let arena = Arena::shared(1 << 20).unwrap();
    let pages = two_pages();
    // A page ends between the list and its count.
    // SAFETY: zeros in the two pages, aligned to words, which are a heap; they stay for ever.
    let heap = unsafe { &*pages.add(4096 - 8 * (3 * LINE + 1)).cast::<Heap>() };
    let [list, count] = [0, 1].map(|n| &words_of(heap)[3 * LINE + n]);
    assert_eq!(std::ptr::from_ref(count).addr(), pages.addr() + 4096);
    // SAFETY: the heap has one owner at a time: this thread, or a child for which it waits.
    let alloc = || unsafe { heap.alloc(&arena, [0u64; 8]) }.unwrap();
    let (block, seen) = (alloc(), || (list.load(SeqCst), count.load(SeqCst)));
    let whole = seen();
    dies_at_a_store(pages.wrapping_add(4096), || {
        alloc();
    });
    assert_eq!(seen(), whole, "the count falls before a block leaves the list");
    // SAFETY: as above; the child frees its copy of the pointer, and it dies.
    dies_at_a_store(pages.wrapping_add(4096), || unsafe { heap.free(&arena, block, 1) });
    assert_eq!(seen(), (block.raw(), whole.1), "a block joins the list before it counts");
}

#[test]
fn every_generation_of_a_process_slot_has_a_tag_of_its_own() {
    let arena = Arena::shared(1 << 20).unwrap();
    let table = arena.get(LaneTable::create(&arena, 1).unwrap());
    let tags: Vec<ProcessTag> = (0..6)
        .map(|_| {
            let process_slot = table.take_process_slot(&arena).unwrap();
            let tag = process_slot.tag();
            assert!(!table.is_gone(&arena, tag));
            process_slot.leave();
            tag
        })
        .collect();
    let last = table.take_process_slot(&arena).unwrap();
    for (n, tag) in tags.iter().enumerate() {
        assert_eq!(tag.process_slot(), last.tag().process_slot());
        assert!(table.is_gone(&arena, *tag) && !tags[..n].contains(tag) && *tag != last.tag(), "{n}");
    }
}

#[test]
fn the_mapped_page_shows_the_process_slot() {
    let arena = Arena::shared(1 << 20).unwrap();
    let file = File::from(arena.fd().unwrap().try_clone_to_owned().unwrap());
    let table = arena.get(LaneTable::create(&arena, 1).unwrap());
    let arenas = parts_mapped(&file);
    for _ in 0..2 {
        let process_slot = table.take_process_slot(&arena).unwrap();
        let page = parts_mapped(&file).into_iter().find(|part| !arenas.contains(part)).unwrap();
        let line = format!("{:x}-{:x} ", page.0, page.1);
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
        let offset = maps.lines().find_map(|of| of.strip_prefix(&line)?.split(' ').nth(1)).unwrap();
        let number = u64::from(process_slot.tag().process_slot().unwrap());
        assert_eq!(u64::from_str_radix(offset, 16).unwrap(), number * process_slots::page_bytes());
        assert_eq!((page.1 - page.0) as u64, process_slots::page_bytes());
        process_slot.leave();
        assert_eq!(parts_mapped(&file), arenas);
    }
}

#[test]
fn only_its_own_process_says_that_a_thread_has_ended() {
    let arena = Arena::shared(1 << 20).unwrap();
    let table = arena.get(LaneTable::create(&arena, 1).unwrap());
    let process_slot = table.take_process_slot(&arena).unwrap();
    // SAFETY: a question.
    let here = unsafe { libc::gettid() } as u32;
    // SAFETY: as above.
    let ended = std::thread::spawn(|| unsafe { libc::gettid() } as u32).join().unwrap();
    let began = Instant::now();
    while !process_slot.thread_has_ended(ended) {
        assert!(began.elapsed() < Duration::from_secs(10), "it has ended, and its process does not know");
    }
    // The error of that question is still the thread's last one.
    assert!(!process_slot.thread_has_ended(here), "it asks");
    assert!(!process_slot.thread_has_ended(0), "no thread has that number");
    let state = arena.get(arena.alloc(std::sync::atomic::AtomicU32::new(0)).unwrap());
    let child = in_child(&arena, state, || {
        !process_slot.is_the_callers()
            && !process_slot.thread_has_ended(ended)
            && !process_slot.thread_has_ended(here)
    });
    assert_eq!(state.load(SeqCst), 1, "a child knows nothing of its parent's threads");
    kill_and_reap(child);
}
