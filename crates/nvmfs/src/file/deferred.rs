//! Blocks that no cell names any more, and that a pinned reader may still copy from.
//!
//! State       a list at the inode (`VInode::deferred`): each entry an extent, and the phase in which its cell lost it.
//! Invariants  I1  an extent is freed after its phase has let it go (`inode::pins` I2), looked up after it was taken off the list.
//!             I2  who takes entries off the list has a pin meanwhile, and no maps: what is on its way back is not mistaken for a full disk
//!                 (`come_back`), and if it dies its pin is settled as a reader's is.
//!             I3  somebody comes for what is on the list: who gives the last pin of a phase back, and who defers when there is none.
//!                 Who defers also turns the phase if it can: then the present pins are an old phase's, and their end frees the block.
//!             I4  what waits is bounded for the file system as a whole: a writer that finds more waits itself (`hold_back`), and a reader
//!                 that stands still meanwhile is a holder under the mount's patience. Whoever finds no space waits so, too.
//! Orderings   O1  nodes are linked with Release and taken with SeqCst, before the pins are looked at.

use crate::alloc::take_back::{Found, take_back};
use crate::alloc::{free_later, itable};
use crate::ids::{BlockNo, Extent, LANES};
use crate::state::core::Core;
use crate::state::inode::{InodeRef, Phase};
use crate::state::lane::Pinning;
use crate::state::lease::LaneGuard;
use crate::state::wait::{self, LOOK};
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::sync::yield_now;
use heddle_arena::{Ptr, Shared};
use heddle_vfs::{Error, Ino, Result};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, SeqCst};
use std::time::{Duration, Instant};

/// At most this part of all blocks waits for readers, but for what one call replaces.
const DEFERRED_SHARE: u64 = 16;

/// Who finds no space waits so long for readers that are running.
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

/// Frees blocks whose records are superseded; while a reader has a pin they wait for it.
pub fn free_replaced(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, replaced: &[Extent]) {
    let pinned = inode.vi.pins.now();
    if !pinned.none() {
        defer(core, guard, inode, replaced, pinned.present());
        hold_back(core, guard);
        return;
    }
    for extent in replaced {
        free_later(core.free_map(), &core.region, guard.own, *extent);
    }
}

/// Keeps blocks that cells lost in `phase` until no reader has them.
fn defer(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, extents: &[Extent], phase: Phase) {
    for e in extents {
        let entry =
            Deferred { next: AtomicU64::new(0), block: e.block.0, count: e.count, phase: phase.0.into() };
        // SAFETY: `own` is this thread's.
        let node = unsafe { guard.own.heap.alloc(&core.arena, entry) };
        // Without memory the block stays allocated until the next mount: never free too early.
        if let Ok(node) = node {
            core.root().deferred.fetch_add(e.count, Relaxed); // ORDERING: Relaxed, a count.
            push(core, inode, Chained { first: node, last: node });
        }
    }
    inode.vi.pins.turn();
    if inode.vi.pins.now().none() {
        let phase = pin(guard, inode);
        unpin(core, guard, inode, phase);
    }
}

/// A writer that has left as many blocks to readers as may wait (I4) waits for these: it has written, and holds nothing.
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
    let phase = inode.vi.pins.pin();
    guard.lane.intent.pinned(inode.ino.0, phase);
    phase
}

/// Gives a pin back, and the blocks that waited for it.
pub fn unpin(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, mut phase: Phase) {
    loop {
        if inode.vi.pins.now().without(phase).over(phase) {
            drain(core, guard, inode, phase);
        }
        guard.lane.intent.pinning(inode.ino.0);
        inode.vi.pins.unpin(phase);
        guard.lane.intent.unpinned();
        // Another's pin was in the way, and has gone since; or more came.
        // ORDERING: SeqCst, O1.
        if !inode.vi.pins.now().none() || inode.vi.deferred.load(SeqCst) == 0 {
            return;
        }
        phase = pin(guard, inode);
    }
}

/// Frees what waits at an inode that has no pins.
pub fn come_for(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) {
    // ORDERING: SeqCst, O1.
    if inode.vi.pins.now().none() && inode.vi.deferred.load(SeqCst) != 0 {
        let phase = pin(guard, inode);
        unpin(core, guard, inode, phase);
    }
}

/// Tries again what found no space, for as long as some comes back: what idle lanes hold, chunks without inodes, and blocks of
/// any file that wait for readers.
/// The caller holds no lock, but may have the inode of the call open.
///
/// # Errors
/// The last try's.
#[inline]
pub fn patiently<T>(
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
    let mut found = take_back(core, guard);
    // Behind that: slots that come back make chunks whole. Once: an attempt that fails may leave a chunk behind that it has made.
    let mut given = itable::give_chunks_back(core, guard.own);
    loop {
        let hope = match found {
            Found::Some => true,
            _ if std::mem::take(&mut given) => true,
            Found::Busy(lanes) => wait.for_busy(core, lanes) || wait.come_back(core, guard),
            Found::Nothing => wait.come_back(core, guard),
        };
        let done = attempt(guard);
        // One try more when there was nothing to hope for: it may just have come back.
        if !hope || !matches!(done, Err(Error::NoSpace | Error::NoInodes)) {
            return done;
        }
        found = take_back(core, guard);
    }
}

/// Somebody who found no space, and waits for readers, and for lanes in a call that hold some.
struct Wait {
    since: Instant,
    /// Pins that were there at every look so far, as their lanes say them.
    first: Option<Vec<(u16, Pinning)>>,
    /// Lanes that were in the same call at every look so far, and how many calls they had made.
    busy: Vec<(u16, u64)>,
}

impl Wait {
    /// Waits a little for lanes in calls that hold free blocks; true: it is worth another try. One that stands still is waited for as long
    /// as the mount has patience for who holds others up, those that go on for [`LONGEST`].
    fn for_busy(&mut self, core: &Core, lanes: Vec<u16>) -> bool {
        let waited = self.since.elapsed();
        let now = lanes.into_iter().map(|lane| (lane, core.lane(lane).counts.totals().0.calls()));
        let mut now: Vec<(u16, u64)> = now.collect();
        if waited > LOOK {
            now.retain(|lane| self.busy.contains(lane));
        }
        self.busy = now;
        if waited > longest(core, !self.busy.is_empty()) {
            return false;
        }
        for (lane, _) in self.busy.iter().filter(|_| waited > LOOK) {
            wait::held_up(core, *lane, waited);
        }
        pause(waited);
        true
    }

    /// Waits a little if blocks of some file are waiting for readers; true: it is worth another try. A reader that stands still is
    /// waited for as long as the mount has patience for who holds others up, one that is only slow for [`LONGEST`].
    fn come_back(&mut self, core: &Core, guard: &mut LaneGuard<'_>) -> bool {
        // In a model time stands still.
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
        if pins.is_empty() || waited > longest(core, stands) {
            return false;
        }
        for (lane, pin) in &pins {
            if waited > LOOK && wait::look().is_some() {
                wait::held_up(core, *lane, waited);
            }
            if let Some(inode) = pin.ino().and_then(|ino| core.slot(Ino(ino))) {
                relieve(core, guard, inode);
            }
        }
        pause(waited);
        true
    }
}

/// For who needs space, whatever file it works on: frees what waits at this one for readers that are no more.
pub fn relieve(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>) {
    inode.vi.pins.turn();
    come_for(core, guard, inode);
}

/// How long to wait for others, of whom some may stand still.
fn longest(core: &Core, stands: bool) -> Duration {
    let patience = wait::patience(core).unwrap_or_default();
    if stands && !patience.is_zero() { patience + LONGEST * 2 } else { LONGEST }
}

fn pause(waited: Duration) {
    if waited > LONGEST { std::thread::sleep(LOOK) } else { yield_now() }
}

/// Pins of other lanes for which blocks wait.
fn readers(core: &Core, me: u16) -> Vec<(u16, Pinning)> {
    let used = (core.root().lanes_used.load(SeqCst) as u16).min(LANES);
    let pins = (1..=used).filter(|lane| *lane != me).map(|lane| (lane, core.lane(lane).intent.pin()));
    pins.filter(|(_, pin)| {
        let inode = pin.ino().and_then(|ino| core.slot(Ino(ino)));
        // ORDERING: SeqCst, O1.
        inode.is_some_and(|inode| inode.vi.deferred.load(SeqCst) != 0)
    })
    .collect()
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

/// Frees what has been let go, as far as the caller's pin, of `phase`, is not the reason; the rest goes back to the list.
fn drain(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, phase: Phase) {
    let mut at = inode.vi.deferred.swap(0, SeqCst);
    let pinned = inode.vi.pins.now().without(phase);
    let mut kept: Option<Chained> = None;
    let mut left = core.layout.blocks_total;
    while at != 0 {
        // Each has blocks of its own.
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
        inode.vi.pins.turn();
    }
}

/// Frees an entry that this thread alone has, and its blocks.
fn free(core: &Core, guard: &mut LaneGuard<'_>, node: Ptr<Deferred>) {
    let entry = core.arena.get(node);
    let extent = Extent { block: BlockNo(entry.block), count: entry.count };
    core.root().deferred.fetch_sub(extent.count, Relaxed); // ORDERING: Relaxed, a count.
    // SAFETY: taken off the list by this thread alone.
    unsafe { guard.own.heap.free(&core.arena, node, 1) };
    free_later(core.free_map(), &core.region, guard.own, extent);
}
