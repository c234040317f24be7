//! Free space: a bitmap that all lanes share, and a small stock of blocks in each lane.
//!
//! State       `map`: one bit for each block of the region, 1 = free and held by no lane. Blocks in use, and blocks in a lane's
//!             magazine or limbo, are 0.
//!             `scarce`: a word behind the map, written when it changes: a request was refused, and few blocks were freed since.
//!             Lanes keep no blocks then: blocks in idle lanes would be missing elsewhere.
//! Invariants  I1  only the owner of a block sets its bit, after a fence that covers the record that frees the block (INV) and
//!                 every store of the block's last use (D15).
//!             I2  new data leaves as many blocks free as the reserve has. Overwrites and removals leave fewer (`Purpose`), and a change
//!                 that frees at least as many blocks as it takes may take the last one. No removal of a name depends on it
//!                 (`names::in_place_removal`): from every state a sequence of unlinks ends with an empty file system.
//!                 The reserve is a number of free blocks. An overwrite that takes one of the last frees one elsewhere, and new data
//!                 may not have that one either. New data also never takes the region's last blocks of that number, and none of these
//!                 stays in a magazine. That makes the count cheap: while all of them are free, no count of the others is needed.
//!                 Callers that count at the same time may each find the last blocks; the reserve is short of a few then.
//! Orderings   O1  bits are cleared with Acquire and set with Release: a lane that gets a block sees the stores of its last owner.
//! Bits        `free_map`.
//! Source      leases of chunks are affinity alone, stealing is always legal: docs/protocol.md L4.

pub mod blob;
pub mod itable;
pub mod reclaim;

use crate::ids::{BlockNo, Extent};
use crate::planted::{Breach, block_refused, breaks_at_times};
use crate::region::Region;
use crate::state::free_map::{FewPieces, FreeMap, Pieces};
use crate::state::lane::{LaneLocal, MAGAZINE_BLOCKS};
use heddle_arena::watch;
use heddle_pmem::BLOCK_BYTES;

pub use crate::state::free_map::Purpose;

/// Returns true if one more extent fits the limbo. A lane whose stock is limited keeps fewer extents there.
fn limbo_has_room(map: FreeMap<'_>, own: &LaneLocal) -> bool {
    let keep = map.keep_max();
    keep == MAGAZINE_BLOCKS || own.limbo.blocks() < 4 * keep as u64
}

/// Longest extent that waits in a lane's limbo. A longer one returns to the map at once, which costs a fence:
/// the lane may stay idle while other lanes look for space.
const LIMBO_EXTENT_MAX: u64 = 4;

/// Takes one block. An empty magazine is refilled from the map first, so that most calls touch nothing
/// shared.
pub fn take_block(
    map: FreeMap<'_>,
    region: &Region,
    own: &mut LaneLocal,
    purpose: Purpose,
) -> Option<BlockNo> {
    let block = take_one(map, region, own, purpose)?;
    watch::report_use(region.base_address() + block.pos().0 as usize, BLOCK_BYTES, DATA_BLOCK);
    Some(block)
}

/// Name in tools of a block that has no other name.
const DATA_BLOCK: &str = "data block";

fn take_one(map: FreeMap<'_>, region: &Region, own: &mut LaneLocal, purpose: Purpose) -> Option<BlockNo> {
    if block_refused() {
        return None;
    }
    if let Some(block) = own.magazine.pop() {
        return Some(block);
    }
    // A lane's stock is refilled in the middle of a call, for whose locks a signal handler may wait in malloc(3).
    let mut pieces = FewPieces::none();
    if map.take(&mut own.cursor, map.keep_max() as u64, Purpose::Data, &mut pieces) {
        expect_stores(region, pieces.after(0));
        for extent in pieces.after(0).iter().rev() {
            for i in (0..extent.count).rev() {
                let kept = own.magazine.push(extent.block.plus(i));
                debug_assert!(kept);
            }
        }
        return own.magazine.pop();
    }
    if !take_last(map, region, own, 1, purpose, &mut pieces) {
        return None;
    }
    pieces.after(0).first().map(|extent| extent.block)
}

/// Takes `count` blocks into `out`. Returns false, and takes none, if there are too few.
pub fn take_blocks(
    map: FreeMap<'_>,
    region: &Region,
    own: &mut LaneLocal,
    count: u64,
    purpose: Purpose,
    out: &mut Vec<Extent>,
) -> bool {
    if count == 1 {
        return take_block(map, region, own, purpose)
            .map(|block| out.push(Extent { block, count: 1 }))
            .is_some();
    }
    !block_refused() && take_last(map, region, own, count, purpose, out)
}

/// Takes blocks from the map. If it has too few, the lane first returns the blocks that it holds or has
/// freed.
fn take_last(
    map: FreeMap<'_>,
    region: &Region,
    own: &mut LaneLocal,
    count: u64,
    purpose: Purpose,
    out: &mut impl Pieces,
) -> bool {
    let first = out.count();
    if map.take(&mut own.cursor, count, purpose, out) {
        expect_stores(region, out.after(first));
        return true;
    }
    if own.limbo.blocks() == 0 && own.magazine.len() == 0 {
        return false;
    }
    // PERSIST: D15: the publications that freed these blocks, and this lane's stores into them, come before
    // their next use. No check sees it: simulated memory orders two stores to one word, and the records that
    // superseded the blocks are durable already.
    region.fence();
    return_all(map, own);
    map.take(&mut own.cursor, count, purpose, out)
}

/// Blocks from the map may not be mapped in this process yet.
fn expect_stores(region: &Region, extents: &[Extent]) {
    for extent in extents {
        region.expect_stores(extent.block.pos(), extent.count * BLOCK_BYTES as u64);
    }
}

/// Returns blocks that were taken for an operation that did not happen: no record and no index names them.
pub fn return_unused(map: FreeMap<'_>, extents: &[Extent]) {
    for extent in extents {
        map.give(*extent);
    }
}

/// Frees blocks whose last record is durably superseded. They can be used again after the lane's next fence.
pub fn free_later(map: FreeMap<'_>, region: &Region, own: &mut LaneLocal, extent: Extent) {
    if breaks_at_times(Breach::BlocksLost) {
        return;
    }
    let waits = !map.scarce() && extent.count <= LIMBO_EXTENT_MAX && limbo_has_room(map, own);
    if waits && own.limbo.push(extent) {
        return;
    }
    // PERSIST: D15, orders the publication that freed these blocks before their next use. No check sees it:
    // the superseding record is durable already, and readers of reused blocks are checked under loom
    // (`models/pages.rs`).
    region.fence();
    release_limbo(map, own);
    map.give(extent);
}

/// Called after a fence: blocks freed before it may be used again.
pub fn release_limbo(map: FreeMap<'_>, own: &mut LaneLocal) {
    let keep = if map.scarce() { 0 } else { map.keep_max() };
    while let Some(extent) = own.limbo.pop() {
        let single = extent.count == 1 && map.may_be_kept(extent.block) && own.magazine.len() < keep;
        if !(single && own.magazine.push(extent.block)) {
            map.give(extent);
        }
    }
}

/// Returns all blocks that a lane holds to the map. The caller has fenced since the lane's last operation.
pub fn return_all(map: FreeMap<'_>, own: &mut LaneLocal) {
    release_limbo(map, own);
    while let Some(block) = own.magazine.pop() {
        map.give(Extent { block, count: 1 });
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
