//! Inode slots: held by a lane, handed out, returned; and chunks that are made and freed.

use super::fixture::{Fixture, Worker, model, spawn};
use crate::alloc::itable;
use crate::format::inode::CHUNK_INODES;
use crate::format::layout::chunk_of;
use heddle_vfs::Ino;
use loom::cell::UnsafeCell;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

/// Most chunks of a model.
const CHUNKS: u64 = 4;

/// Words that the owner of a slot writes.
struct Slots(Vec<UnsafeCell<u32>>);

// SAFETY: only the owner of the slot touches each word; the test checks that.
unsafe impl Sync for Slots {}
// SAFETY: as above.
unsafe impl Send for Slots {}

/// The file's chunk has two free slots, a second chunk has only free slots.
fn ready() -> (Fixture, Arc<Slots>, [Worker; 2]) {
    let fixture = Fixture::new();
    let core = fixture.core();
    let mut workers = [1, 2].map(|id| fixture.worker(id));
    let block = workers[0].take(1)[0].block;
    itable::add_chunk(core, 1, block).unwrap();
    itable::set_chunk_count(core, 2);
    // ORDERING: Relaxed, no other thread is there yet.
    core.free_slots(0).store(0b011, Relaxed);
    core.free_slots(1).store(crate::state::lane::slots::ALL_FREE, Relaxed);
    let slots = (0..CHUNKS * CHUNK_INODES).map(|_| UnsafeCell::new(0)).collect();
    (fixture, Arc::new(Slots(slots)), workers)
}

/// Makes an inode and frees it.
fn makes_one(worker: &mut Worker, slots: &Slots) {
    worker.with(|core, guard, _| {
        let ino = itable::take(core, guard).unwrap().ino;
        assert!(ino != super::fixture::FILE && chunk_of(ino).0 < CHUNKS);
        // SAFETY: loom checks it.
        slots.0[ino.0 as usize].with_mut(|n| unsafe { *n += 1 });
        // No thread may free the chunk meanwhile: its block belongs to this inode.
        let block = core.chunk_block(ino);
        assert!(block.0 != 0 && block.0 != u64::MAX, "{ino:?} lies in no chunk");
        core.region.nt_write(block.pos(), &ino.0.to_le_bytes());
        itable::give(core, guard.own, ino);
    });
}

fn gives_all_back(worker: &mut Worker) {
    worker.with(|core, guard, _| itable::return_all(core, guard.own));
}

/// Asserts that no slot and no block is lost: a chunk exists with all its slots, or its block is free.
fn is_all_there(fixture: &Fixture, workers: [Worker; 2]) {
    workers.into_iter().for_each(|mut worker| {
        gives_all_back(&mut worker);
        worker.leave();
    });
    let core = fixture.core();
    // ORDERING: Relaxed throughout, the other threads have been joined.
    assert_eq!(core.free_slots(0).load(Relaxed), 0b011, "slots of the first chunk");
    let there = |n: &u64| {
        core.slot(Ino(n * CHUNK_INODES)).is_some_and(|_| core.chunks()[*n as usize].block.load(Relaxed) != 0)
    };
    let chunks: Vec<u64> = (1..CHUNKS).filter(there).collect();
    for n in &chunks {
        assert_eq!(
            core.free_slots(*n).load(Relaxed),
            crate::state::lane::slots::ALL_FREE,
            "slots of chunk {n}"
        );
    }
    assert_eq!(fixture.free() + chunks.len() as u64, fixture.total(), "blocks of chunks");
}

#[test]
fn no_slot_has_two_owners_and_none_is_lost() {
    model(2, || {
        let (fixture, slots, [mut first, mut second]) = ready();
        let marks = slots.clone();
        let thread = spawn(move || {
            makes_one(&mut second, &marks);
            gives_all_back(&mut second);
            makes_one(&mut second, &marks);
            second
        });
        makes_one(&mut first, &slots);
        gives_all_back(&mut first);
        makes_one(&mut first, &slots);
        is_all_there(&fixture, [first, thread.join().unwrap()]);
    });
}

/// A thread that is short of space frees chunks without inodes, while another makes an inode.
#[test]
fn a_chunk_is_taken_away_whole_or_stays() {
    model(3, || {
        let (fixture, slots, [mut maker, mut taker]) = ready();
        // Other lanes hold the slots beside the file's: so the next inode goes to the second chunk.
        let core = fixture.core();
        core.free_slots(0).store(0, Relaxed); // ORDERING: Relaxed, no other thread is there yet.
        let thread = spawn(move || {
            taker.with(|core, guard, _| _ = itable::give_chunks_back(core, guard.own));
            // The blocks that it got are its own.
            let found = taker.try_take(1);
            taker.mark(&found);
            taker.give(found);
            taker
        });
        makes_one(&mut maker, &slots);
        gives_all_back(&mut maker);
        let taker = thread.join().unwrap();
        core.free_slots(0).store(0b011, Relaxed); // ORDERING: Relaxed, no other thread is there any more.
        is_all_there(&fixture, [maker, taker]);
    });
}
