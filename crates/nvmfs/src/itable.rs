//! Inode slots: who takes one, who gives one back.
//!
//! State       a mask of free slots a chunk, shared; the mask of the chunk a lane allocates from, in the lane's hands.
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
use heddle_arena::watch;
use heddle_pmem::BLOCK_BYTES;
use heddle_vfs::{Error, Ino, Result};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

/// Chunks a search looks at before it makes a new one.
const SEARCH_CHUNKS: u64 = 256;

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

fn take_slot(core: &Core, guard: &mut LaneGuard<'_>) -> Result<Ino> {
    if let Some(ino) = pop(guard.own) {
        return Ok(ino);
    }
    // ORDERING: Acquire, pairs with the AcqRel in `make_chunk`.
    let count = core.root().chunk_count.load(Acquire).min(core.layout.chunks_max);
    for i in 0..count.min(SEARCH_CHUNKS) {
        let n = (guard.own.chunk_cursor + i) % count;
        let chunk = &core.chunks()[n as usize];
        // ORDERING: Relaxed, a guess; Acquire on the swap pairs with the Release in `give_slot`.
        if chunk.free.iter().any(|w| w.load(Relaxed) != 0) {
            guard.own.chunk = n + 1;
            // ORDERING: Acquire, as above.
            guard.own.chunk_free = [chunk.free[0].swap(0, Acquire), chunk.free[1].swap(0, Acquire)];
            guard.own.chunk_cursor = n + 1;
            if let Some(ino) = pop(guard.own) {
                return Ok(ino);
            }
        }
    }
    make_chunk(core, guard)?;
    pop(guard.own).ok_or(Error::NoInodes)
}

fn pop(own: &mut Own) -> Option<Ino> {
    let chunk = own.chunk.checked_sub(1)?;
    for (i, word) in own.chunk_free.iter_mut().enumerate() {
        if *word != 0 {
            let bit = u64::from(word.trailing_zeros());
            *word &= *word - 1;
            return Some(Ino(chunk * CHUNK_INODES + i as u64 * 64 + bit));
        }
    }
    None
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
    guard.own.chunk = n + 1;
    guard.own.chunk_free = [u64::MAX; 2];
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

/// Gives a slot back; it was zeroed on media, and fenced (I1).
pub fn give(core: &Core, own: &mut Own, ino: Ino) {
    let (chunk, index) = chunk_of(ino);
    let (word, bit) = ((index / 64) as usize, 1 << (index % 64));
    if own.chunk == chunk + 1 {
        own.chunk_free[word] |= bit;
    } else {
        // ORDERING: Release, pairs with the Acquire in `take_slot`.
        core.chunks()[chunk as usize].free[word].fetch_or(bit, Release);
    }
}

/// Returns the slots that a lane holds.
pub fn return_all(core: &Core, own: &mut Own) {
    let Some(chunk) = own.chunk.checked_sub(1) else { return };
    for (word, mask) in core.chunks()[chunk as usize].free.iter().zip(std::mem::take(&mut own.chunk_free)) {
        // ORDERING: Release, pairs with the Acquire in `take_slot`.
        word.fetch_or(mask, Release);
    }
    own.chunk = 0;
}

/// Inodes that are in use, about: slots in lanes' hands count as used.
pub fn in_use(core: &Core) -> u64 {
    // ORDERING: Acquire, pairs with the AcqRel in `make_chunk`.
    let count = core.root().chunk_count.load(Acquire).min(core.layout.chunks_max);
    let free = |n: u64| -> u64 {
        // ORDERING: Relaxed, an estimate.
        core.chunks()[n as usize].free.iter().map(|w| u64::from(w.load(Relaxed).count_ones())).sum()
    };
    (0..count).map(|n| CHUNK_INODES - free(n)).sum()
}
