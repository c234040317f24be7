//! Allocation of inode slots, and of the chunks that hold them.
//!
//! State       a chunk is a block of slots. Each chunk has a shared mask of free slots. A lane holds the masks of the few chunks that
//!             it works with. It takes and returns a mask as a whole, so that lanes that make and remove files share no line.
//!             `ended`: slots that wait for a fence.
//! Invariants  I1  a slot is free on media as soon as no name leads to it. Both its lines are zero, durably, before it is handed
//!                 out again, so that no pointer of an earlier inode can be taken for one of the next.
//!             I2  a chunk's block is zero, durably, before its pointer is stored.
//!             I3  a chunk is freed when one lane holds all its slots and all are free. No inode of it lives then, no lane
//!                 can make one, and I1 holds for all of it. Its volatile inodes stay, dead; so its inode numbers are stale, not unknown.
//!             I4  no generation is used twice in the life of an image, even if chunks are freed: it consists of mount, lane and
//!                 a serial of the lane, and none of the three is counted in a chunk.
//! Crash order C1  a chunk's pointer is zero, durably, before its block is free. A crash before that leaves an empty chunk, a crash
//!                 after it leaves none; in between no lane has the block. `ChunkEntry::block` is 0 only when the pointer is zero durably:
//!                 so the zero can never overwrite a pointer to the next chunk of this number.
//! Source      per-CPU inode tables: NOVA (SRL paper I); allocating chunks on demand and handing them out are ours.

use crate::alloc::{Purpose, return_unused, take_block, take_blocks};
use crate::format::inode::CHUNK_INODES;
use crate::format::layout::{INODE_DIRECTORY, chunk_of};
use crate::format::pointer::{self, PointerLocation};
use crate::ids::{BlockNo, Extent, InodeId};
use crate::planted::{Bug, Met, fence_unless, flushed_unless, met, planted};
use crate::state::core::{Core, no_memory};
use crate::state::inode::VolatileInode;
use crate::state::lane::LaneLocal;
use crate::state::lane::slots::{ALL_FREE, CHUNKS_HELD, ENDED, HeldChunk};
use crate::state::lease::LaneGuard;
use heddle_arena::watch;
use heddle_pmem::BLOCK_BYTES;
use heddle_vfs::{Error, Ino, Result};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

/// Number of chunks that a search examines before it makes a new one.
const SEARCH_CHUNKS: u64 = 256;

/// Number of chunks made at once, if space is not scarce.
const CHUNKS_AT_ONCE: usize = 4;
/// In `ChunkEntry::block`: the chunk is being made.
const MAKING: u64 = u64::MAX;

/// Takes a free slot. Returns its number, and a generation that no inode had before.
pub fn take(core: &Core, guard: &mut LaneGuard<'_>) -> Result<InodeId> {
    let ino = take_slot(core, guard)?;
    guard.own.inode_serial += 1;
    // 22 bits of mount epoch, 10 of lane, 30 of serial: unique among all inodes of the image.
    let generation =
        core.epoch << 40 | u64::from(guard.id) << 30 | (guard.own.inode_serial & ((1 << 30) - 1));
    Ok(InodeId { ino, generation })
}

/// Most chunks that a lane works with: few in a small image, because other lanes cannot use them while this
/// one is idle.
fn held_max(core: &Core) -> usize {
    (core.layout.chunks_max as usize / 256).clamp(1, CHUNKS_HELD)
}

/// Adds a chunk to those that the lane holds, with its free slots and with `more`, which the caller has.
fn hold(core: &Core, own: &mut LaneLocal, chunk: u64, more: u64) {
    let at = own.slots.place(chunk, held_max(core));
    let held = &mut own.slots.chunks[at];
    if held.number != chunk + 1 {
        // Cleared in this lane before it is set for others: the holder may die in between.
        let old = std::mem::take(held);
        compiler_fence(SeqCst);
        if !planted(Bug::HeldSlotsForgotten) {
            give_back(core, old);
        }
        let shared = core.free_slots(chunk);
        // ORDERING: Relaxed, a hint: a word without slots is not written, because other lanes' searches read
        // it. Acquire on the swap pairs with the Release in `give_back`.
        let free = if shared.load(Relaxed) == 0 { 0 } else { shared.swap(0, Acquire) };
        *held = HeldChunk { number: chunk + 1, free };
        own.slots.count_empty(old.free);
    }
    let held = &mut own.slots.chunks[at];
    held.free |= more;
    let free = held.free;
    own.slots.count_empty(free);
}

fn give_back(core: &Core, held: HeldChunk) {
    let Some(chunk) = held.number.checked_sub(1) else { return };
    if held.free != 0 {
        // ORDERING: Release, pairs with the Acquire in `hold`.
        core.free_slots(chunk).fetch_or(held.free, Release);
    }
}

/// Number of chunks, including those being made and those freed.
fn chunk_count(core: &Core) -> u64 {
    // ORDERING: Acquire, pairs with the AcqRel in `new_number`.
    core.root().chunk_count.load(Acquire).min(core.layout.chunks_max)
}

fn take_slot(core: &Core, guard: &mut LaneGuard<'_>) -> Result<Ino> {
    if let Some(ino) = guard.own.slots.pop() {
        return Ok(ino);
    }
    if guard.own.slots.ended_len > 0 {
        // PERSIST: I1: their slots are zero before they are handed out.
        core.region.fence();
        settle(core, guard.own);
        if let Some(ino) = guard.own.slots.pop() {
            return Ok(ino);
        }
    }
    if let Some(ino) = search(core, guard.own, SEARCH_CHUNKS) {
        return Ok(ino);
    }
    if let Err(error) = make_chunks(core, guard) {
        // No space, or no number, for another chunk: any free slot will do.
        return search(core, guard.own, u64::MAX).ok_or(error);
    }
    guard.own.slots.pop().ok_or(Error::NoInodes)
}

/// Returns a free slot of a chunk that no lane holds.
fn search(core: &Core, own: &mut LaneLocal, chunks: u64) -> Option<Ino> {
    let count = chunk_count(core);
    for i in 0..count.min(chunks) {
        let n = (own.chunk_cursor + i) % count;
        // ORDERING: Relaxed, a guess.
        if core.free_slots(n).load(Relaxed) != 0 {
            own.chunk_cursor = n + 1;
            hold(core, own, n, 0);
            if let Some(ino) = own.slots.pop() {
                return Some(ino);
            }
        }
    }
    None
}

/// Makes one or several chunks, and holds them.
fn make_chunks(core: &Core, guard: &mut LaneGuard<'_>) -> Result<()> {
    let mut extents = std::mem::take(&mut guard.scratch.extents);
    extents.clear();
    let several = CHUNKS_AT_ONCE.min(held_max(core));
    if several == 1
        || !take_blocks(core.free_map(), &core.region, guard.own, several as u64, Purpose::Data, &mut extents)
    {
        let one = take_block(core.free_map(), &core.region, guard.own, Purpose::Data);
        extents.extend(one.map(|block| Extent { block, count: 1 }));
    }
    let made = if extents.is_empty() { Err(Error::NoInodes) } else { make_chunks_of(core, guard, &extents) };
    guard.scratch.extents = extents;
    made
}

fn make_chunks_of(core: &Core, guard: &mut LaneGuard<'_>, extents: &[Extent]) -> Result<()> {
    let blocks = || extents.iter().flat_map(|e| (0..e.count).map(|n| e.block.plus(n)));
    for block in blocks() {
        watch::report_use(
            core.region.base_address() + block.pos().0 as usize,
            BLOCK_BYTES,
            "inode slots on media",
        );
        if !planted(Bug::ChunkNotZeroed) {
            core.region.nt_zero(block.pos(), BLOCK_BYTES as u64);
        }
    }
    // PERSIST: I2.
    core.region.fence();
    let mut made = [None; CHUNKS_AT_ONCE];
    for (block, made) in blocks().zip(&mut made) {
        *made = new_number(core).map(|n| (n, block));
        let Some((n, _)) = *made else {
            return_unused(core.free_map(), &[Extent { block, count: 1 }]);
            continue;
        };
        let link = pointer::encode(core.seed, INODE_DIRECTORY, PointerLocation::InodeChunk(n), block);
        flushed_unless(Bug::ChunkPointerNotFlushed, || {
            core.region.store_u64(core.layout.chunk_pointer(n), link)
        });
    }
    // PERSIST: the pointers are durable before any name that leads to an inode of these chunks.
    core.region.fence();
    let mut any = Err(Error::NoInodes);
    for (n, block) in made.into_iter().flatten() {
        any = Ok(());
        met(Met::ChunkMade);
        add_chunk(core, n, block)?;
        hold(core, guard.own, n, ALL_FREE);
    }
    any
}

/// Reserves the number of a chunk for the caller to make: one that was freed, or the next.
fn new_number(core: &Core) -> Option<u64> {
    let gaps = &core.root().chunk_gaps;
    loop {
        // ORDERING: Relaxed, a guess; it may be below zero for a moment.
        let reused = if gaps.load(Relaxed) as i64 > 0 { reclaim(core) } else { None };
        if reused.is_some() {
            return reused;
        }
        // ORDERING: AcqRel, each number is handed out once.
        let n = core.root().chunk_count.fetch_add(1, AcqRel);
        if n >= core.layout.chunks_max {
            core.root().chunk_count.fetch_sub(1, AcqRel);
            return reclaim(core);
        }
        if claim(core, n) {
            return Some(n);
        }
        // Another lane has reused the number as a freed one, and counted it so.
        gaps.fetch_add(1, Relaxed); // ORDERING: Relaxed, a count.
    }
}

/// Reserves a number whose chunk was freed.
fn reclaim(core: &Core) -> Option<u64> {
    let n = (0..chunk_count(core)).find(|n| claim(core, *n))?;
    core.root().chunk_gaps.fetch_sub(1, Relaxed); // ORDERING: Relaxed, a count.
    Some(n)
}

fn claim(core: &Core, n: u64) -> bool {
    let block = &core.chunks()[n as usize].block;
    // ORDERING: Relaxed, a guess; Acquire, pairs with the Release in `give_chunks_back`.
    block.load(Relaxed) == 0 && block.compare_exchange(0, MAKING, Acquire, Relaxed).is_ok()
}

/// Sets the block of chunk `n`, and allocates volatile inodes if the chunk number never had any.
pub fn add_chunk(core: &Core, n: u64, block: BlockNo) -> Result<()> {
    let chunk = &core.chunks()[n as usize];
    // ORDERING: Acquire, pairs with the Release below.
    if chunk.inodes.load(Acquire).is_null() {
        let inodes = core.arena.alloc_zeroed::<VolatileInode>(CHUNK_INODES as usize).map_err(no_memory)?;
        // ORDERING: Release, pairs with the Acquire loads in `core`.
        chunk.inodes.store(inodes, Release);
    }
    // ORDERING: Release, pairs with the Acquire load in `core`.
    chunk.block.store(block.0, Release);
    Ok(())
}

/// Sets the number of chunks, at recovery.
pub fn set_chunk_count(core: &Core, count: u64) {
    // ORDERING: SeqCst on the first, Relaxed, a count, on the second; no other thread uses them yet.
    core.root().chunk_count.store(count, SeqCst);
    let there = |n: &u64| core.chunks()[*n as usize].block.load(Relaxed) != 0;
    core.root().chunk_gaps.store((0..count).filter(|n| !there(n)).count() as u64, Relaxed);
}

/// Frees the blocks of all chunks without inodes, except those of which other lanes hold slots (I3, C1).
/// Returns false if there were none. If the caller dies here, the blocks are free at the next mount.
pub fn give_chunks_back(core: &Core, own: &mut LaneLocal) -> bool {
    // PERSIST: I1: zeroed slots of inodes that this lane has freed come before their reuse by another lane.
    // No check sees it: simulated memory orders two stores to one word, whichever lanes make them.
    core.region.fence();
    return_all(core, own);
    let empty = |n: &u64| {
        let free = core.free_slots(*n);
        // ORDERING: Relaxed, a guess; Acquire, pairs with the Release in `give_back`.
        free.load(Relaxed) == ALL_FREE && free.compare_exchange(ALL_FREE, 0, Acquire, Relaxed).is_ok()
    };
    let chunks: Vec<u64> = (0..chunk_count(core)).filter(empty).collect();
    for n in &chunks {
        core.region.store_u64(core.layout.chunk_pointer(*n), 0);
    }
    // PERSIST: C1.
    fence_unless(Bug::ChunkFreedEarly, &core.region);
    for n in &chunks {
        // ORDERING: AcqRel: sees the maker's stores, and comes before the next maker's.
        let block = core.chunks()[*n as usize].block.swap(0, AcqRel);
        met(Met::ChunkGone);
        core.root().chunk_gaps.fetch_add(1, Relaxed); // ORDERING: Relaxed, a count.
        core.free_map().give(Extent { block: BlockNo(block), count: 1 });
    }
    if planted(Bug::ChunkFreedEarly) {
        // PERSIST: too late: part of a planted bug.
        core.region.fence();
    }
    !chunks.is_empty()
}

/// Number of blocks that [`give_chunks_back`] would free, approximately.
pub fn empty_chunks(core: &Core) -> u64 {
    // ORDERING: Relaxed, an estimate.
    (0..chunk_count(core)).filter(|n| core.free_slots(*n).load(Relaxed) == ALL_FREE).count() as u64
}

/// Returns the slot of a freed inode. It was zeroed on media, and that was fenced (I1).
pub fn give(core: &Core, own: &mut LaneLocal, ino: Ino) {
    let (chunk, index) = chunk_of(ino);
    hold(core, own, chunk, 1 << index);
}

/// Returns the slot of a freed inode, for use after the lane's next fence. Returns false if too many slots
/// wait already: the caller must fence and call [`settle`] first.
pub fn give_later(core: &Core, own: &mut LaneLocal, ino: Ino) -> bool {
    let slots = &mut own.slots;
    let room = (slots.ended_len as usize) < ENDED;
    if room {
        slots.ended[slots.ended_len as usize] = ino.0;
        // The entry is complete before it is counted, in case the holder dies in between.
        compiler_fence(SeqCst);
        slots.ended_len += 1;
        let chunk = chunk_of(ino).0;
        // ORDERING: Relaxed, an estimate.
        slots.count_ended(chunk, core.free_slots(chunk).load(Relaxed));
    }
    room
}

/// Called after a fence: slots zeroed before it can be handed out again.
pub fn settle(core: &Core, own: &mut LaneLocal) {
    own.slots.ended_empty = 0;
    while let Some(at) = own.slots.ended_len.checked_sub(1) {
        own.slots.ended_len = at;
        compiler_fence(SeqCst);
        give(core, own, Ino(own.slots.ended[at as usize]));
    }
}

/// Returns the slots that a lane holds. It has fenced since it last freed an inode.
pub fn return_all(core: &Core, own: &mut LaneLocal) {
    settle(core, own);
    for held in &mut own.slots.chunks {
        let old = std::mem::take(held);
        compiler_fence(SeqCst);
        give_back(core, old);
    }
    own.slots.empty = 0;
}

/// Removes impossible values from a dead holder's slots: it may have scribbled over them.
pub fn drop_impossible(core: &Core, own: &mut LaneLocal) {
    let slots = &mut own.slots;
    let chunks = chunk_count(core);
    slots.chunks.iter_mut().filter(|held| held.number > chunks).for_each(|held| *held = HeldChunk::default());
    slots.chunks.iter_mut().for_each(|held| held.free &= ALL_FREE);
    slots.last = slots.last.min(CHUNKS_HELD as u64 - 1);
    slots.count_empty(ALL_FREE);
    let known =
        slots.ended[..].iter().take(slots.ended_len as usize).all(|ino| chunk_of(Ino(*ino)).0 < chunks);
    slots.ended_empty = 0;
    if slots.ended_len as usize > ENDED || !known {
        slots.ended_len = 0;
    }
}

/// Number of inodes in use, approximately: free slots that lanes hold count as used.
pub fn in_use(core: &Core) -> u64 {
    let used = |n: u64| {
        // ORDERING: Relaxed, an estimate.
        let there = core.chunks()[n as usize].block.load(Relaxed) != 0;
        let free = u64::from(core.free_slots(n).load(Relaxed).count_ones());
        if there { CHUNK_INODES - free } else { 0 }
    };
    (0..chunk_count(core)).map(used).sum()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
