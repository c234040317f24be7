//! Inode slots: who takes one, who gives one back.
//!
//! State       a mask of free slots a chunk, shared; the masks of the few chunks that a lane works with, in the lane's hands: taken and
//!             given back as a whole, so that lanes that make and remove files do not meet. `ended`: slots that wait for a fence.
//! Invariants  I1  a slot is free on media as soon as no name means it; both its lines are zero, durably, before it is handed
//!                 out again, so that no pointer of an earlier life can be taken for one of the next.
//!             I2  a chunk's blocks are zero, durably, before its pointer is stored.
//! Source      per-CPU inode tables: NOVA (SRL paper I); chunks on demand and their hand-out are ours.

use crate::alloc::{Purpose, take_blocks};
use crate::core::{Core, no_memory};
use crate::format::inode::{CHUNK_BLOCKS, CHUNK_INODES};
use crate::format::layout::chunk_of;
use crate::format::pointer::{self, Place};
use crate::ids::{BlockNo, InodeId};
use crate::inode::VInode;
use crate::lane::Own;
use crate::lease::LaneGuard;
use crate::planted::{Bug, flushed_unless, planted};
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::watch;
use heddle_pmem::BLOCK_BYTES;
use heddle_vfs::{Error, Ino, Result};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::compiler_fence;

/// Chunks a search looks at before it makes a new one.
const SEARCH_CHUNKS: u64 = 256;

/// Chunks whose free slots a lane holds at most.
const CHUNKS_HELD: usize = 8;
/// Ended inodes that may wait for a fence.
const ENDED: usize = 32;

/// The owner in the pointers of the inode directory.
pub const DIRECTORY: InodeId = InodeId { ino: Ino(0), generation: 0 };

/// Takes a free slot; its number and a generation that no inode had before.
pub fn take(core: &Core, guard: &mut LaneGuard<'_>) -> Result<InodeId> {
    let ino = take_slot(core, guard)?;
    guard.own.inode_serial += 1;
    // 22 bits of mount epoch, 10 of lane, 30 of serial: unique among all inodes of the image.
    let generation =
        core.epoch << 40 | u64::from(guard.id) << 30 | (guard.own.inode_serial & ((1 << 30) - 1));
    Ok(InodeId { ino, generation })
}

/// Free slots in a lane's hands.
#[repr(C)]
#[derive(Debug)]
pub struct Slots {
    chunks: [HeldChunk; CHUNKS_HELD],
    /// Which of them was used last.
    last: u64,
    /// Inodes that ended, their slots zeroed, but not yet behind a fence.
    ended: [u64; ENDED],
    ended_len: u64,
}

/// A chunk whose free slots a lane holds.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct HeldChunk {
    /// Its number plus one; 0: none.
    number: u64,
    free: [u64; 2],
}

impl Slots {
    /// None.
    pub fn zeroed() -> Slots {
        Slots { chunks: [HeldChunk::default(); CHUNKS_HELD], last: 0, ended: [0; ENDED], ended_len: 0 }
    }

    fn pop(&mut self) -> Option<Ino> {
        let last = self.last as usize;
        let at = (last..CHUNKS_HELD).chain(0..last).find(|at| self.chunks[*at].free != [0; 2])?;
        self.last = at as u64;
        let held = &mut self.chunks[at];
        let (i, word) = held.free.iter_mut().enumerate().find(|(_, word)| **word != 0)?;
        let bit = u64::from(word.trailing_zeros());
        *word &= *word - 1;
        Some(Ino((held.number - 1) * CHUNK_INODES + i as u64 * 64 + bit))
    }

    /// The place of a chunk that is held, or one for a chunk that is to be: one without free slots, else the next in turn.
    fn place(&mut self, chunk: u64, max: usize) -> usize {
        let chunks = &self.chunks[..max];
        let known = chunks.iter().position(|held| held.number == chunk + 1);
        let empty = || chunks.iter().position(|held| held.free == [0; 2]);
        known.or_else(empty).unwrap_or((self.last as usize + 1) % max)
    }
}

/// Chunks that a lane works with at most: few of a small image, lest others starve while it is idle.
fn held_max(core: &Core) -> usize {
    (core.layout.chunks_max as usize / 256).clamp(1, CHUNKS_HELD)
}

/// Makes a chunk one that the lane holds, with what is free in it.
fn hold<'o>(core: &Core, own: &'o mut Own, chunk: u64) -> &'o mut [u64; 2] {
    let at = own.slots.place(chunk, held_max(core));
    let held = &mut own.slots.chunks[at];
    if held.number != chunk + 1 {
        // Out of this lane's hands before it is in others': its holder may die in between.
        let old = std::mem::take(held);
        compiler_fence(SeqCst);
        give_back(core, old);
        let shared = core.free_slots(chunk);
        let take = |word: &AtomicU64| {
            // ORDERING: Relaxed, a guess: a word without slots is not written, for others' searches read it. Acquire on the swap
            // pairs with the Release in `give_back`.
            if word.load(Relaxed) == 0 { 0 } else { word.swap(0, Acquire) }
        };
        *held = HeldChunk { number: chunk + 1, free: [take(&shared[0]), take(&shared[1])] };
    }
    &mut held.free
}

fn give_back(core: &Core, held: HeldChunk) {
    let Some(chunk) = held.number.checked_sub(1) else { return };
    for (word, mask) in core.free_slots(chunk).iter().zip(held.free) {
        if mask != 0 {
            // ORDERING: Release, pairs with the Acquire in `hold`.
            word.fetch_or(mask, Release);
        }
    }
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
    // ORDERING: Acquire, pairs with the AcqRel in `make_chunk`.
    let count = core.root().chunk_count.load(Acquire).min(core.layout.chunks_max);
    for i in 0..count.min(SEARCH_CHUNKS) {
        let n = (guard.own.chunk_cursor + i) % count;
        // ORDERING: Relaxed, a guess.
        if core.free_slots(n).iter().any(|w| w.load(Relaxed) != 0) {
            guard.own.chunk_cursor = n + 1;
            hold(core, guard.own, n);
            if let Some(ino) = guard.own.slots.pop() {
                return Ok(ino);
            }
        }
    }
    make_chunk(core, guard)?;
    guard.own.slots.pop().ok_or(Error::NoInodes)
}

fn make_chunk(core: &Core, guard: &mut LaneGuard<'_>) -> Result<()> {
    let block = contiguous(core, guard)?;
    // ORDERING: AcqRel, hands out each number once.
    let n = core.root().chunk_count.fetch_add(1, AcqRel);
    if n >= core.layout.chunks_max {
        // ORDERING: AcqRel, as above.
        core.root().chunk_count.fetch_sub(1, AcqRel);
        core.free_map().give(crate::ids::Extent { block, count: CHUNK_BLOCKS });
        return Err(Error::NoInodes);
    }
    let bytes = CHUNK_BLOCKS as usize * BLOCK_BYTES;
    watch::name(core.region.base_address() + block.pos().0 as usize, bytes, "inode slots on media");
    if !planted(Bug::ChunkNotZeroed) {
        core.region.nt_zero(block.pos(), CHUNK_BLOCKS * BLOCK_BYTES as u64);
    }
    // PERSIST: I2.
    core.region.fence();
    let link = pointer::encode(core.seed, DIRECTORY, Place::InodeChunk(n), block);
    flushed_unless(Bug::ChunkPointerNotFlushed, || core.region.store_u64(core.layout.chunk_pointer(n), link));
    // PERSIST: the pointer before any name that means an inode of this chunk.
    core.region.fence();
    add_chunk(core, n, block)?;
    *hold(core, guard.own, n) = [u64::MAX; 2];
    Ok(())
}

/// Gives chunk `n` its volatile inodes.
pub fn add_chunk(core: &Core, n: u64, block: BlockNo) -> Result<()> {
    let inodes = core.arena.alloc_zeroed::<VInode>(CHUNK_INODES as usize).map_err(no_memory)?;
    let chunk = &core.chunks()[n as usize];
    // ORDERING: Release, both pair with the Acquire loads in `core`.
    chunk.block.store(block.0, Release);
    // ORDERING: Release, as above.
    chunk.inodes.store(inodes, Release);
    Ok(())
}

/// Four blocks in a row; what a search gives in pieces goes back.
fn contiguous(core: &Core, guard: &mut LaneGuard<'_>) -> Result<BlockNo> {
    let extents = &mut guard.scratch.extents;
    extents.clear();
    for _ in 0..8 {
        if !take_blocks(core.free_map(), &core.region, guard.own, CHUNK_BLOCKS, Purpose::Data, extents) {
            break;
        }
        if extents.len() == 1 {
            return Ok(extents[0].block);
        }
        // Pieces: put them back and look elsewhere.
        crate::alloc::untake(core.free_map(), extents);
        extents.clear();
        guard.own.cursor += 64;
    }
    Err(Error::NoInodes)
}

/// Gives the slot of an inode that ended back; it was zeroed on media, behind a fence (I1).
pub fn give(core: &Core, own: &mut Own, ino: Ino) {
    let (chunk, index) = chunk_of(ino);
    hold(core, own, chunk)[(index / 64) as usize] |= 1 << (index % 64);
}

/// Gives the slot of an inode that ended back, when the next fence of the lane has passed. False: there have been too many since the
/// last; the caller fences, and [`settle`]s, first.
pub fn give_later(own: &mut Own, ino: Ino) -> bool {
    let slots = &mut own.slots;
    let room = (slots.ended_len as usize) < ENDED;
    if room {
        slots.ended[slots.ended_len as usize] = ino.0;
        // What is counted is there, wherever the holder dies.
        compiler_fence(SeqCst);
        slots.ended_len += 1;
    }
    room
}

/// After a fence: slots zeroed before it can be handed out again.
pub fn settle(core: &Core, own: &mut Own) {
    while let Some(at) = own.slots.ended_len.checked_sub(1) {
        own.slots.ended_len = at;
        compiler_fence(SeqCst);
        give(core, own, Ino(own.slots.ended[at as usize]));
    }
}

/// Returns the slots that a lane holds. It has fenced since it last ended an inode.
pub fn return_all(core: &Core, own: &mut Own) {
    settle(core, own);
    for held in &mut own.slots.chunks {
        let old = std::mem::take(held);
        compiler_fence(SeqCst);
        give_back(core, old);
    }
}

/// Forgets what cannot be of a lane whose holder died: it may have scribbled over it.
pub fn drop_impossible(core: &Core, own: &mut Own) {
    let slots = &mut own.slots;
    // ORDERING: Acquire, pairs with the AcqRel in `make_chunk`.
    let chunks = core.root().chunk_count.load(Acquire).min(core.layout.chunks_max);
    slots.chunks.iter_mut().filter(|held| held.number > chunks).for_each(|held| *held = HeldChunk::default());
    slots.last = slots.last.min(CHUNKS_HELD as u64 - 1);
    let known =
        slots.ended[..].iter().take(slots.ended_len as usize).all(|ino| chunk_of(Ino(*ino)).0 < chunks);
    if slots.ended_len as usize > ENDED || !known {
        slots.ended_len = 0;
    }
}

/// Inodes that are in use, about: slots in lanes' hands count as used.
pub fn in_use(core: &Core) -> u64 {
    // ORDERING: Acquire, pairs with the AcqRel in `make_chunk`.
    let count = core.root().chunk_count.load(Acquire).min(core.layout.chunks_max);
    let free = |n: u64| -> u64 {
        // ORDERING: Relaxed, an estimate.
        core.free_slots(n).iter().map(|w| u64::from(w.load(Relaxed).count_ones())).sum()
    };
    (0..count).map(|n| CHUNK_INODES - free(n)).sum()
}
