use super::*;
use crate::state::core::tests::{EPOCH, add_chunks, bare, on};
use crate::state::lease;
use crate::variant::Variant;
use crate::volume::{MountOptions, format, mount};
use heddle_pmem::{CrashPoint, Region};
use heddle_vfs::FileSystem;
use heddle_vfs::short::Short;
use std::sync::atomic::AtomicUsize;
use std::sync::{Arc, Mutex};

/// If it is free earlier, a power cut can leave both its pointer and another lane's data in it.
#[test]
fn a_chunks_block_is_free_only_when_its_pointer_is_durably_gone() {
    for variant in Variant::ALL {
        let (region, power) = Region::simulated(8 << 20);
        format(&region, variant).unwrap();
        let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        let volume = mount(region, &options).unwrap();
        let fs = volume.fs();
        for n in 0..4 * CHUNK_INODES {
            fs.release(fs.new_file(Ino::ROOT, &format!("{n}")));
        }
        (0..4 * CHUNK_INODES).for_each(|n| fs.remove(Ino::ROOT, &format!("{n}")).unwrap());
        let core = fs.core.clone();
        let guard = lease::enter(&core).unwrap();
        let free = core.free_map().count();
        let at_fences = Arc::new(Mutex::new(Vec::new()));
        let (seen, at) = (at_fences.clone(), core.clone());
        power.on_fence(Box::new(move |_: &CrashPoint<'_>| seen.lock().unwrap().push(at.free_map().count())));
        assert!(give_chunks_back(&core, guard.own), "{}: no chunk is empty", variant.name());
        power.stop_watching();
        let at_fences = at_fences.lock().unwrap();
        assert!(core.free_map().count() > free && at_fences.len() > 1, "{}", variant.name());
        assert!(at_fences.iter().all(|count| *count == free), "{}: free before a fence", variant.name());
        drop(guard);
        lease::leave(&core);
        drop((fs, core));
        volume.unmount();
    }
}

/// 22 bits of mount, 10 of lane, 30 of serial.
#[test]
fn a_generation_says_mount_lane_and_serial() {
    let core = bare(1024);
    let (mut outer, mut inner) = (lease::enter(&core).unwrap(), lease::enter(&core).unwrap());
    for guard in [&mut outer, &mut inner] {
        let lane = u64::from(guard.id);
        for serial in [1, 2] {
            let made = take(&core, guard).unwrap().generation;
            assert_eq!((made >> 40, made >> 30 & 1023, made & 0x3fff_ffff), (EPOCH, lane, serial));
        }
        guard.own.inode_serial = 5 << 30 | 6;
        let made = take(&core, guard).unwrap().generation;
        assert_eq!((made >> 40, made >> 30 & 1023, made & 0x3fff_ffff), (EPOCH, lane, 7), "it went round");
    }
}

#[test]
fn a_larger_image_makes_several_chunks_at_once() {
    for (blocks, held, made) in [(1024, 1, 1), (2048, 2, 2), (4096, 4, 4), (8192, 8, 4)] {
        let core = bare(blocks);
        let free = core.free_map().count();
        let mut guard = lease::enter(&core).unwrap();
        assert_eq!(held_max(&core), held, "{blocks} blocks");
        take(&core, &mut guard).unwrap();
        assert_eq!(chunk_count(&core), made, "{blocks} blocks");
        let left = core.free_map().count() + guard.own.magazine.len() as u64;
        assert_eq!(free - left, made, "{blocks} blocks: no other block is gone");
        assert_eq!(guard.own.slots.empty_chunks(), made - 1);
    }
}

#[test]
fn a_chunk_is_made_of_the_last_block_for_data() {
    let core = bare(4096);
    let mut guard = lease::enter(&core).unwrap();
    let (map, mut taken) = (core.free_map(), Vec::new());
    assert!(map.take(&mut 0, map.count_for_data() - 1, Purpose::Data, &mut taken));
    take(&core, &mut guard).unwrap();
    assert_eq!((chunk_count(&core), map.count_for_data()), (1, 0));
    // 31 more of this chunk.
    assert!((0..31).all(|_| take(&core, &mut guard).is_ok()));
    assert_eq!(take(&core, &mut guard), Err(Error::NoInodes));
}

#[test]
fn a_chunk_begins_without_inodes_whatever_its_block_held() {
    let core = bare(1024);
    for block in core.layout.data.0..core.layout.last().0 {
        core.region.nt_write(BlockNo(block).pos(), &[0xff; BLOCK_BYTES]);
    }
    let made = take(&core, &mut lease::enter(&core).unwrap()).unwrap();
    let mut slots = [0xff; BLOCK_BYTES];
    core.region.read(core.chunk_block(made.ino).pos(), &mut slots);
    assert_eq!(slots, [0; BLOCK_BYTES]);
}

#[test]
fn slots_that_wait_for_a_fence_are_used_before_a_new_chunk() {
    let (region, power) = Region::simulated(4 << 20);
    let core = on(region, Variant::Heddle);
    let mut guard = lease::enter(&core).unwrap();
    let first = take(&core, &mut guard).unwrap().ino;
    while guard.own.slots.pop().is_some() {}
    assert!(give_later(&core, guard.own, first));
    assert_eq!((take(&core, &mut guard).unwrap().ino, chunk_count(&core)), (first, 1));
    give(&core, guard.own, first);
    return_all(&core, guard.own);
    let fences = Arc::new(AtomicUsize::new(0));
    let count = fences.clone();
    power.on_fence(Box::new(move |_: &CrashPoint<'_>| _ = count.fetch_add(1, SeqCst)));
    assert_eq!(take(&core, &mut guard).unwrap().ino, first);
    power.stop_watching();
    assert_eq!(fences.load(SeqCst), 0, "no slot waits");
}

#[test]
fn a_search_goes_once_around_from_where_it_ended() {
    let core = bare(1024);
    add_chunks(&core, 3);
    let guard = lease::enter(&core).unwrap();
    for (cursor, chunk) in (0..7).flat_map(|cursor| (0..3).map(move |chunk| (cursor, chunk))) {
        return_all(&core, guard.own);
        core.free_slots(chunk).store(1 << 4, SeqCst);
        guard.own.chunk_cursor = cursor;
        assert_eq!(search(&core, guard.own, u64::MAX), Some(Ino(chunk * 32 + 4)), "from {cursor}");
        assert_eq!(guard.own.chunk_cursor, chunk + 1);
    }
    core.free_slots(2).store(1, SeqCst);
    guard.own.chunk_cursor = 0;
    assert_eq!(search(&core, guard.own, 2), None, "it was the third");
}

#[test]
fn a_freed_chunks_number_is_used_once_before_a_new_one() {
    let core = bare(1024);
    add_chunks(&core, 3);
    let (root, block) = (core.root(), |n: usize| &core.chunks()[n].block);
    assert_eq!(root.chunk_gaps.load(SeqCst), 0);
    block(1).store(0, SeqCst);
    set_chunk_count(&core, 3);
    assert_eq!((chunk_count(&core), root.chunk_gaps.load(SeqCst)), (3, 1));
    assert!(!claim(&core, 0) && claim(&core, 1) && !claim(&core, 1));
    block(1).store(0, SeqCst);
    assert_eq!((new_number(&core), root.chunk_gaps.load(SeqCst)), (Some(1), 0));
    assert_eq!((new_number(&core), chunk_count(&core)), (Some(3), 4));
    // None is left: 256 chunks of an image of 1024 blocks.
    root.chunk_count.store(256, SeqCst);
    assert_eq!((new_number(&core), chunk_count(&core)), (Some(4), 256));
    (0..256).for_each(|n| block(n).store(2, SeqCst));
    assert_eq!((new_number(&core), root.chunk_count.load(SeqCst)), (None, 256));
}

#[test]
fn ended_inodes_wait_in_32_places() {
    let core = bare(1024);
    add_chunks(&core, 2);
    let guard = lease::enter(&core).unwrap();
    let own = &mut *guard.own;
    assert!((0..32).all(|ino| give_later(&core, own, Ino(ino))));
    assert_eq!((own.slots.ended_len, own.slots.ended[31], own.slots.ended_empty), (32, 31, 1));
    assert!(!give_later(&core, own, Ino(32)));
    settle(&core, own);
    assert_eq!((own.slots.ended_len, own.slots.ended_empty, own.slots.empty_chunks()), (0, 0, 1));
    let given: Vec<u64> = std::iter::from_fn(|| own.slots.pop()).map(|ino| ino.0).collect();
    assert_eq!(given, (0..32).collect::<Vec<_>>());
}

#[test]
fn impossible_slots_of_a_dead_lane_are_dropped() {
    let core = bare(1024);
    add_chunks(&core, 3);
    let guard = lease::enter(&core).unwrap();
    let own = &mut *guard.own;
    for (place, (number, free)) in [(3, u64::MAX), (4, 1), (2, 1 << 40 | 3)].into_iter().enumerate() {
        own.slots.chunks[place] = HeldChunk { number, free };
    }
    (own.slots.last, own.slots.empty, own.slots.ended_empty) = (u64::MAX, 77, 5);
    (own.slots.ended[0], own.slots.ended_len) = (95, 1);
    drop_impossible(&core, own);
    let held = |own: &LaneLocal| own.slots.chunks.map(|held| (held.number, held.free));
    assert_eq!(held(own)[..3], [(3, 0xffff_ffff), (0, 0), (2, 3)]);
    assert_eq!((own.slots.last, own.slots.empty, own.slots.ended_empty), (31, 1, 0));
    assert_eq!(own.slots.ended_len, 1);
    for (len, ino, kept) in [(32, 0, 32), (33, 0, 0), (u64::MAX, 0, 0), (1, 95, 1), (1, 96, 0)] {
        own.slots.ended = [0; ENDED];
        (own.slots.ended[0], own.slots.ended_len) = (ino, len);
        drop_impossible(&core, own);
        assert_eq!(own.slots.ended_len, kept, "{len} of {ino}");
    }
    own.slots.ended_len = 0;
}

#[test]
fn inodes_are_in_use_unless_their_slots_are_free() {
    let core = bare(1024);
    add_chunks(&core, 4);
    let guard = lease::enter(&core).unwrap();
    assert!(!give_chunks_back(&core, guard.own));
    core.free_slots(1).store(ALL_FREE, SeqCst);
    core.free_slots(2).store(0b11111, SeqCst);
    core.chunks()[3].block.store(0, SeqCst);
    assert_eq!((in_use(&core), empty_chunks(&core)), (32 + 27, 1));
    let free = core.free_map().count();
    assert!(give_chunks_back(&core, guard.own) && !give_chunks_back(&core, guard.own));
    assert_eq!((core.free_map().count(), core.free_slots(1).load(SeqCst)), (free + 1, 0));
    assert_eq!(core.chunks()[1].block.load(SeqCst), 0);
    assert_eq!((in_use(&core), empty_chunks(&core), chunk_count(&core)), (32 + 27, 0, 4));
}
