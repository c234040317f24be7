//! Blocks that no cell names any more, but that a pinned reader may still copy from.
//!
//! State       a list in the inode (`VolatileInode::deferred`): each entry is an extent, and the phase in which its cell lost it.
//! Invariants  I1  an extent is freed when no pin of its phase or an earlier one is left (`inode::pins` I2). That is checked after the
//!                 extent was taken off the list.
//!             I2  a thread that takes entries off the list has a pin meanwhile, and no maps. So blocks on their way back are not mistaken
//!                 for a full disk (`come_back`), and if the thread dies its pin is settled as a reader's is.
//!             I3  each entry is examined again: by the reader that returns the last pin of a phase, and by a thread that defers a block
//!                 while no pin is left. A thread that defers also turns the phase if it can: then the present pins are those of the old
//!                 phase, and the end of the last one frees the block.
//!             I4  the number of waiting blocks is bounded for the whole file system: a writer that finds more waits itself (`hold_back`).
//!                 So does a call that finds no space. A reader that is stopped meanwhile is a holder under the mount's patience.
//! Orderings   O1  nodes are linked with Release and taken with SeqCst, before the pins are loaded.

use crate::alloc::reclaim::{Reclaimed, reclaim};
use crate::alloc::{free_later, itable};
use crate::ids::{BlockNo, Extent, LANES};
use crate::state::core::Core;
use crate::state::inode::{InodeRef, Phase};
use crate::state::lane::Pinning;
use crate::state::lease::{self, LaneGuard};
use crate::state::wait::{self, CHECK_EVERY};
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::sync::yield_now;
use heddle_arena::{Ptr, Shared};
use heddle_vfs::{Error, Ino, Result};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// At most this fraction of all blocks waits for readers, beyond the blocks that one call replaces.
const DEFERRED_SHARE: u64 = 16;

/// How long a call that finds no space waits for readers that are running.
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
    phase: u64,
}

// SAFETY: numbers and an atomic.
unsafe impl Shared for Deferred {}

/// Entries that are linked to each other.
#[derive(Clone, Copy)]
struct Chained {
    first: Ptr<Deferred>,
    last: Ptr<Deferred>,
}

/// Frees blocks whose records are superseded. While a reader has a pin, they wait for it.
pub fn free_replaced(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, replaced: &[Extent]) {
    let pinned = inode.volatile.pins.now();
    if !pinned.none() {
        defer(core, guard, inode, replaced, pinned.present());
        hold_back(core, guard);
        return;
    }
    for extent in replaced {
        free_later(core.free_map(), &core.region, guard.own, *extent);
    }
}

/// Keeps blocks that cells lost in `phase` until no reader uses them.
fn defer(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, extents: &[Extent], phase: Phase) {
    for e in extents {
        let entry =
            Deferred { next: AtomicU64::new(0), block: e.block.0, count: e.count, phase: phase.0.into() };
        // SAFETY: `own` is this thread's.
        let node = unsafe { guard.own.heap.alloc(&core.arena, entry) };
        // Without memory for a node, the block stays allocated until the next mount: it is never freed too
        // early.
        if let Ok(node) = node {
            core.root().deferred.fetch_add(e.count, Relaxed); // ORDERING: Relaxed, a count.
            push(core, inode, Chained { first: node, last: node });
        }
    }
    inode.volatile.pins.turn();
    if inode.volatile.pins.now().none() {
        let phase = pin(guard, inode);
        unpin(core, guard, inode, phase);
    }
}

/// Makes a writer wait for readers, if it has left them as many blocks as may wait (I4). It has finished its
/// write, and holds nothing.
fn hold_back(core: &Core, guard: &mut LaneGuard<'_>) {
    // ORDERING: Relaxed, an estimate.
    let over =
        || core.root().deferred.load(Relaxed) as i64 > (core.layout.blocks_total / DEFERRED_SHARE) as i64;
    if cfg!(any(loom, shuttle)) || !over() || guard.lane.intent.latches().next().is_some() {
        return;
    }
    let mut wait = Wait { since: Instant::now(), first: None, busy: Vec::new() };
    while over() && wait.come_back(core, guard) {}
}

/// Takes a pin.
pub fn pin(guard: &LaneGuard<'_>, inode: InodeRef<'_>) -> Phase {
    guard.lane.intent.pinning(inode.ino.0);
    let phase = inode.volatile.pins.pin();
    guard.lane.intent.pinned(inode.ino.0, phase);
    phase
}

/// Returns a pin, and frees the blocks that waited for it.
pub fn unpin(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, mut phase: Phase) {
    loop {
        if inode.volatile.pins.now().without(phase).over(phase) {
            drain(core, guard, inode, phase);
        }
        guard.lane.intent.pinning(inode.ino.0);
        inode.volatile.pins.unpin(phase);
        guard.lane.intent.unpinned();
        // Another reader's pin kept the blocks, and has gone since; or more blocks were added. ORDERING:
        // SeqCst, O1.
        if !inode.volatile.pins.now().none() || inode.volatile.deferred.load(SeqCst) == 0 {
            return;
        }
        phase = pin(guard, inode);
    }
}

/// Frees the waiting blocks of an inode that has no pins.
pub fn come_for(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) {
    // ORDERING: SeqCst, O1.
    if inode.volatile.pins.now().none() && inode.volatile.deferred.load(SeqCst) != 0 {
        let phase = pin(guard, inode);
        unpin(core, guard, inode, phase);
    }
}

/// Retries an operation that finds no space, as long as space may come back: from the dead, from idle lanes, from chunks
/// without inodes, and from blocks of any file that wait for readers. The caller holds no lock, but may have
/// the inode of the call open.
///
/// # Errors
/// Those of the last attempt.
#[inline]
pub fn retry_if_full<T>(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    mut attempt: impl FnMut(&mut LaneGuard<'_>) -> Result<T>,
) -> Result<T> {
    match attempt(guard) {
        Err(Error::NoSpace | Error::NoInodes) => again(core, guard, attempt),
        done => done,
    }
}

#[cold]
fn again<T>(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    mut attempt: impl FnMut(&mut LaneGuard<'_>) -> Result<T>,
) -> Result<T> {
    let mut wait = Wait { since: Instant::now(), first: None, busy: Vec::new() };
    // Files that the dead had open may hold all of it. A handler does not wait for what the interrupted call may have taken from them. A
    // model has no dead.
    let may_settle = !cfg!(loom) && !lease::has_interrupted(core);
    let mut given = may_settle && (core.hooks.sweep)(core) > 0;
    let mut found = reclaim(core, guard);
    // After that, because returned slots can complete a free chunk. Only once: a failed attempt may leave a
    // new chunk behind.
    given |= itable::give_chunks_back(core, guard.own);
    loop {
        let hope = match found {
            Reclaimed::Some => true,
            _ if std::mem::take(&mut given) => true,
            Reclaimed::Busy(lanes) => wait.for_busy(core, lanes) || wait.come_back(core, guard),
            Reclaimed::Nothing => wait.come_back(core, guard),
        };
        let done = attempt(guard);
        // One more attempt even if nothing can come back: space may just have come back.
        if !hope || !matches!(done, Err(Error::NoSpace | Error::NoInodes)) {
            return done;
        }
        found = reclaim(core, guard);
    }
}

/// The wait of a call that finds no space: for readers, and for lanes in a call that hold free blocks.
struct Wait {
    since: Instant,
    /// Pins that were present at every check so far, as their lanes' intents name them.
    first: Option<Vec<(u16, Pinning)>>,
    /// Lanes that were in the same call at every check so far, with the number of calls that they had made.
    busy: Vec<(u16, u64)>,
}

impl Wait {
    /// Waits a little for lanes in calls that hold free blocks. Returns true if another attempt makes sense.
    /// It waits for a stopped lane as long as the mount's patience, and for running ones for [`LONGEST`].
    fn for_busy(&mut self, core: &Core, lanes: Vec<u16>) -> bool {
        let waited = self.since.elapsed();
        let now = lanes.into_iter().map(|lane| (lane, core.lane(lane).counts.totals().0.calls()));
        let mut now: Vec<(u16, u64)> = now.collect();
        if waited > CHECK_EVERY {
            now.retain(|lane| self.busy.contains(lane));
        }
        self.busy = now;
        if waited > longest(wait::patience(core), !self.busy.is_empty()) {
            return false;
        }
        for (lane, _) in self.busy.iter().filter(|_| waited > CHECK_EVERY) {
            wait::held_up(core, *lane, waited);
        }
        pause(waited);
        true
    }

    /// Waits a little if blocks of any file wait for readers. Returns true if another attempt makes sense. It
    /// waits for a stopped reader as long as the mount's patience, and for one that is only slow for
    /// [`LONGEST`].
    fn come_back(&mut self, core: &Core, guard: &mut LaneGuard<'_>) -> bool {
        // Time does not pass in a model.
        if cfg!(loom) {
            return false;
        }
        let waited = self.since.elapsed();
        let pins = readers(core, guard.id);
        let still = match self.first.take() {
            None => pins.clone(),
            Some(first) => first.into_iter().filter(|pin| pins.contains(pin)).collect(),
        };
        let stands = !still.is_empty();
        self.first = Some(still);
        if pins.is_empty() || waited > longest(wait::patience(core), stands) {
            return false;
        }
        for (lane, pin) in &pins {
            if waited > CHECK_EVERY && wait::check_every().is_some() {
                wait::held_up(core, *lane, waited);
            }
            if let Some(inode) = pin.ino().and_then(|ino| core.slot(Ino(ino))) {
                free_deferred_blocks(core, guard, inode);
            }
        }
        pause(waited);
        true
    }
}

/// Frees the blocks of this file that waited for readers which have ended. For a call, on any file, that needs space.
pub fn free_deferred_blocks(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) {
    inode.volatile.pins.turn();
    come_for(core, guard, inode);
}

/// How long to wait for others: until those that are stopped (`stands`) are killed and settled, if the mount has a patience. If only the
/// daemon may kill them, it takes up to a second longer.
fn longest(patience: Option<Duration>, stands: bool) -> Duration {
    match patience.filter(|_| stands) {
        Some(patience) => wait::first_check(patience) + patience + LONGEST * 4,
        None => LONGEST,
    }
}

fn pause(waited: Duration) {
    if waited > LONGEST { std::thread::sleep(CHECK_EVERY) } else { yield_now() }
}

/// Pins of other lanes on inodes where blocks wait.
fn readers(core: &Core, me: u16) -> Vec<(u16, Pinning)> {
    let used = (core.root().lanes_used.load(SeqCst) as u16).min(LANES);
    let pins = (1..=used).filter(|lane| *lane != me).map(|lane| (lane, core.lane(lane).intent.pin()));
    pins.filter(|(_, pin)| {
        let inode = pin.ino().and_then(|ino| core.slot(Ino(ino)));
        // ORDERING: SeqCst, O1.
        inode.is_some_and(|inode| inode.volatile.deferred.load(SeqCst) != 0)
    })
    .collect()
}

fn push(core: &Core, inode: InodeRef<'_>, nodes: Chained) {
    // ORDERING: Relaxed, a guess that the CAS checks.
    let mut head = inode.volatile.deferred.load(Relaxed);
    loop {
        // ORDERING: Relaxed, published by the CAS below.
        core.arena.get(nodes.last).next.store(head, Relaxed);
        // ORDERING: AcqRel, nodes before their link; Relaxed on failure.
        match inode.volatile.deferred.compare_exchange(head, nodes.first.raw(), AcqRel, Relaxed) {
            Ok(_) => return,
            Err(now) => head = now,
        }
    }
}

/// Frees the entries that no pin but the caller's, of `phase`, keeps. The others go back to the list.
fn drain(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, phase: Phase) {
    let mut at = inode.volatile.deferred.swap(0, SeqCst);
    let pinned = inode.volatile.pins.now().without(phase);
    let mut kept: Option<Chained> = None;
    let mut left = core.layout.blocks_total;
    while at != 0 {
        // Each entry has blocks of its own.
        left = left.checked_sub(1).expect("blocks that wait for readers lie in a circle");
        let node = Ptr::<Deferred>::from_raw(at);
        let entry = core.arena.get(node);
        // ORDERING: Acquire, pairs with the CAS in `push`.
        at = entry.next.load(Acquire);
        if pinned.lets_go(Phase(entry.phase as u32)) {
            free(core, guard, node);
        } else {
            // ORDERING: Relaxed, published by the CAS in `push`.
            entry.next.store(kept.map_or(0, |kept| kept.first.raw()), Relaxed);
            kept = Some(Chained { first: node, last: kept.map_or(node, |kept| kept.last) });
        }
    }
    if let Some(kept) = kept {
        push(core, inode, kept);
        inode.volatile.pins.turn();
    }
}

/// Frees an entry that only this thread can reach, and its blocks.
fn free(core: &Core, guard: &mut LaneGuard<'_>, node: Ptr<Deferred>) {
    let entry = core.arena.get(node);
    let extent = Extent { block: BlockNo(entry.block), count: entry.count };
    core.root().deferred.fetch_sub(extent.count, Relaxed); // ORDERING: Relaxed, a count.
    // SAFETY: taken off the list by this thread alone.
    unsafe { guard.own.heap.free(&core.arena, node, 1) };
    free_later(core.free_map(), &core.region, guard.own, extent);
}
