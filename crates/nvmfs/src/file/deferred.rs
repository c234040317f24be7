//! Blocks that no cell names any more, and that a pinned reader may still copy from.
//!
//! State       a list at the inode (`VInode::deferred`): each entry an extent, and the era in which its cell lost it.
//! Invariants  I1  an extent is freed after its era has let it go (`inode::pins` I2), looked up after it was taken off the list.
//!             I2  who takes entries off the list has a pin meanwhile, and no maps: what is on its way back is not mistaken for a full disk
//!                 (`come_back`), and if it dies its pin is settled as a reader's is.
//!             I3  somebody comes for what is on the list: who gives the last pin of an era back, and who defers when there is none.
//!                 Who defers also turns the era if it can: then the present pins are an old era's, and their end frees the block.
//! Orderings   O1  nodes are linked with Release and taken with SeqCst, before the pins are looked at.

use crate::alloc::free_later;
use crate::core::Core;
use crate::ids::{BlockNo, Extent};
use crate::inode::{Era, InodeRef};
use crate::lease::LaneGuard;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::sync::yield_now;
use heddle_arena::{Ptr, Shared};
use heddle_vfs::{Error, Result};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// Who finds no space waits so long for readers.
const LONGEST: Duration = Duration::from_millis(500);

#[cfg(all(test, not(loom), not(shuttle)))]
mod tests;

/// An entry.
#[repr(C)]
#[derive(Debug)]
struct Deferred {
    next: AtomicU64,
    block: u64,
    count: u64,
    era: u64,
}

// SAFETY: numbers and an atomic.
unsafe impl Shared for Deferred {}

/// Entries that are linked to each other.
#[derive(Clone, Copy)]
struct Chained {
    first: Ptr<Deferred>,
    last: Ptr<Deferred>,
}

/// Frees blocks whose records are superseded; while a reader has a pin they wait for it.
pub fn free_replaced(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, replaced: &[Extent]) {
    let pinned = inode.vi.pins.now();
    if !pinned.none() {
        defer(core, guard, inode, replaced, pinned.present());
        return;
    }
    for extent in replaced {
        free_later(core.free_map(), &core.region, guard.own, *extent);
    }
}

/// Keeps blocks that cells lost in `era` until no reader has them.
fn defer(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, extents: &[Extent], era: Era) {
    for e in extents {
        let entry = Deferred { next: AtomicU64::new(0), block: e.block.0, count: e.count, era: era.0.into() };
        // SAFETY: `own` is this thread's.
        let node = unsafe { guard.own.heap.alloc(&core.arena, entry) };
        // Without memory the block stays allocated until the next mount: never free too early.
        if let Ok(node) = node {
            push(core, inode, Chained { first: node, last: node });
        }
    }
    inode.vi.pins.turn();
    if inode.vi.pins.now().none() {
        let era = pin(guard, inode);
        unpin(core, guard, inode, era);
    }
}

/// Takes a pin.
pub fn pin(guard: &LaneGuard<'_>, inode: InodeRef<'_>) -> Era {
    guard.lane.intent.pinning(inode.ino.0);
    let era = inode.vi.pins.pin();
    guard.lane.intent.pinned(inode.ino.0, era);
    era
}

/// Gives a pin back, and the blocks that waited for it.
pub fn unpin(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, mut era: Era) {
    loop {
        if inode.vi.pins.now().without(era).over(era) {
            drain(core, guard, inode, era);
        }
        guard.lane.intent.pinning(inode.ino.0);
        inode.vi.pins.unpin(era);
        guard.lane.intent.unpinned();
        // Another's pin was in the way, and has gone since; or more came.
        // ORDERING: SeqCst, O1.
        if !inode.vi.pins.now().none() || inode.vi.deferred.load(SeqCst) == 0 {
            return;
        }
        era = pin(guard, inode);
    }
}

/// Tries again what found no space, for as long as blocks of this file come back from readers.
///
/// # Errors
/// The last try's.
pub fn patiently<T>(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    mut attempt: impl FnMut(&mut LaneGuard<'_>) -> Result<T>,
) -> Result<T> {
    let (mut since, mut hope) = (None, true);
    loop {
        let done = attempt(guard);
        if !hope || !matches!(done, Err(Error::NoSpace)) {
            return done;
        }
        // One try more when there is nothing to hope for: it may just have come back.
        hope = come_back(core, guard, inode, *since.get_or_insert_with(Instant::now));
    }
}

/// For who found no space: waits a little if blocks of this file are waiting for readers, or on their way back; true: it is worth
/// another try. `since`: when it found none first.
///
/// A reader that is not running meanwhile keeps what it has; who waited for it in vain is told that there is no space.
fn come_back(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, since: Instant) -> bool {
    // In a model time stands still.
    if cfg!(loom) || since.elapsed() > LONGEST {
        return false;
    }
    inode.vi.pins.turn();
    let pinned = inode.vi.pins.now();
    // ORDERING: SeqCst, O1.
    match (pinned.none(), inode.vi.deferred.load(SeqCst) == 0) {
        (true, true) => return false,
        (true, false) => {
            let era = pin(guard, inode);
            unpin(core, guard, inode, era);
        }
        (false, _) => yield_now(),
    }
    true
}

fn push(core: &Core, inode: InodeRef<'_>, nodes: Chained) {
    // ORDERING: Relaxed, a guess that the CAS checks.
    let mut head = inode.vi.deferred.load(Relaxed);
    loop {
        // ORDERING: Relaxed, published by the CAS below.
        core.arena.get(nodes.last).next.store(head, Relaxed);
        // ORDERING: AcqRel, nodes before their link; Relaxed on failure.
        match inode.vi.deferred.compare_exchange(head, nodes.first.raw(), AcqRel, Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Frees what has been let go, as far as the caller's pin, of `era`, is not the reason; the rest goes back to the list.
fn drain(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, era: Era) {
    let mut at = inode.vi.deferred.swap(0, SeqCst);
    let pinned = inode.vi.pins.now().without(era);
    let mut kept: Option<Chained> = None;
    while at != 0 {
        let node = Ptr::<Deferred>::from_raw(at);
        let entry = core.arena.get(node);
        // ORDERING: Acquire, pairs with the CAS in `push`.
        at = entry.next.load(Acquire);
        if pinned.lets_go(Era(entry.era as u32)) {
            free(core, guard, node);
        } else {
            // ORDERING: Relaxed, published by the CAS in `push`.
            entry.next.store(kept.map_or(0, |kept| kept.first.raw()), Relaxed);
            kept = Some(Chained { first: node, last: kept.map_or(node, |kept| kept.last) });
        }
    }
    if let Some(kept) = kept {
        push(core, inode, kept);
        inode.vi.pins.turn();
    }
}

/// Frees an entry that this thread alone has, and its blocks.
fn free(core: &Core, guard: &mut LaneGuard<'_>, node: Ptr<Deferred>) {
    let entry = core.arena.get(node);
    let extent = Extent { block: BlockNo(entry.block), count: entry.count };
    // SAFETY: taken off the list by this thread alone.
    unsafe { guard.own.heap.free(&core.arena, node, 1) };
    free_later(core.free_map(), &core.region, guard.own, extent);
}
