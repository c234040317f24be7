//! Open handles, counted by the lane that opens: two threads that open one file write nothing in common.
//!
//! State       a lane: [`OpenTable`], a direct-mapped table of inode, generation and count, written by the lane's holder alone.
//!             an inode: `lanes`, one sticky bit for all lanes of a number modulo 64 that ever counted it, set before they do;
//!             `shared`, a signed count of what has no place in a table: an opening whose slot is taken, and a closing by a lane
//!             that did not open.
//! Invariants  I1  only the sum over all lanes and the shared word says how many handles there are.
//!             I2  a slot whose count is 0, or whose inode is dead, may be taken over.
//!             I3  a handle that failed its check is taken back where it was counted: the sum never misses a handle.
//! Orderings   O1  D23: an opener counts (SeqCst), then looks at the generation; who ends an inode claims the generation (SeqCst),
//!                 then sums: one sees the other.
//!                 Between the two, on either side, stands a full fence; on x86-64 the locked instruction before it is one.
//!             O2  a closer counts down (SeqCst), then looks at the links; who takes the last link away does so (SeqCst), then
//!                 sums: at least one of them finds neither links nor handles; the claim picks one.
//!             O3  a slot is emptied, gets its generation, then its inode and count (Release at least); who sums reads count,
//!                 generation and count again (Acquire at least): a count is never taken for another generation's.
//! Papers      their variants count in the shared word alone: the last close frees the nodes of SRL(tree), and must be known.
//! Source      protocol review D23.

use crate::core::{Core, no_memory};
use crate::ids::InodeId;
use crate::inode::InodeRef;
use crate::lane::{Ending, Lane};
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::sync::{fence_behind_locked, spin_hint};
use heddle_arena::{Shared, Zeroed};
use heddle_vfs::{Ino, Result};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Files that a lane can have open at once before two of them may meet in a slot.
const SLOTS: usize = if cfg!(loom) { 4 } else { 1024 };
const INO_BITS: u32 = 40;
const INO_MASK: u64 = (1 << INO_BITS) - 1;
const ONE: u64 = 1 << INO_BITS;
const COUNT_MAX: u64 = (1 << 24) - 1;
/// Lanes that share a bit of an inode's word.
const LANE_BITS: u16 = 64;

#[repr(C)]
struct Slot {
    /// Inode number and count.
    word: AtomicU64,
    generation: AtomicU64,
}

/// What a lane has open.
#[repr(C, align(64))]
pub struct OpenTable {
    slots: [Slot; SLOTS],
}

// SAFETY: atomics only.
unsafe impl Shared for OpenTable {}
// SAFETY: all zeros is a table of free slots.
unsafe impl Zeroed for OpenTable {
    fn zeroed() -> OpenTable {
        OpenTable {
            slots: std::array::from_fn(|_| Slot { word: AtomicU64::new(0), generation: AtomicU64::new(0) }),
        }
    }
}

impl OpenTable {
    fn slot(&self, ino: Ino) -> &Slot {
        &self.slots[ino.0 as usize % SLOTS]
    }
}

/// Gives a lane its table, if it has none, and makes it known to those who sum.
pub fn equip(core: &Core, lane: u16) -> Result<()> {
    core.root().lanes_used.fetch_max(u64::from(lane), SeqCst);
    let table = &core.lane(lane).opens;
    // ORDERING: Acquire, an earlier holder of the lane may have made it.
    if table.load(Acquire).is_null() {
        let new = core.arena.alloc_zeroed::<OpenTable>(1).map_err(no_memory)?;
        table.store(new, SeqCst);
    }
    Ok(())
}

fn table<'c>(core: &'c Core, lane: &Lane) -> Option<&'c OpenTable> {
    core.arena.try_get(lane.opens.load(SeqCst))
}

/// Counts a handle. It counts whether or not the inode lives: the caller checks afterwards (O1).
pub fn raise(core: &Core, lane: u16, inode: InodeRef<'_>, generation: u64) {
    let own = core.locks.is_none().then(|| table(core, core.lane(lane))).flatten();
    let Some(own) = own else {
        inode.vi.opens.fetch_add(1, SeqCst);
        return;
    };
    let bit = 1 << (lane % LANE_BITS);
    // ORDERING: Relaxed, a bit once seen stays while the inode lives; SeqCst to set it, O1.
    if inode.vi.open_lanes.load(Relaxed) & bit == 0 {
        inode.vi.open_lanes.fetch_or(bit, SeqCst);
    }
    let slot = own.slot(inode.ino);
    // ORDERING: Relaxed throughout, this lane alone writes it.
    let (word, of) = (slot.word.load(Relaxed), slot.generation.load(Relaxed));
    let mine = word & INO_MASK == inode.ino.0 && of == generation;
    if mine && word >> INO_BITS < COUNT_MAX {
        slot.word.swap(word + ONE, SeqCst);
    } else if !mine && (word >> INO_BITS == 0 || is_dead(core, Ino(word & INO_MASK), of)) {
        // ORDERING: Release, O3.
        slot.word.store(0, Release);
        // ORDERING: Release, O3.
        slot.generation.store(generation, Release);
        slot.word.swap(inode.ino.0 | ONE, SeqCst);
    } else {
        inode.vi.opens.fetch_add(1, SeqCst);
    }
}

fn is_dead(core: &Core, ino: Ino, generation: u64) -> bool {
    core.slot(ino).is_none_or(|inode| inode.vi.generation() != generation)
}

/// Takes a handle back, wherever it was counted.
pub fn lower(core: &Core, lane: u16, inode: InodeRef<'_>, generation: u64) {
    let own = core.locks.is_none().then(|| table(core, core.lane(lane))).flatten();
    if let Some(slot) = own.map(|own| own.slot(inode.ino)) {
        // ORDERING: Relaxed throughout, this lane alone writes it.
        let (word, of) = (slot.word.load(Relaxed), slot.generation.load(Relaxed));
        if word & INO_MASK == inode.ino.0 && of == generation && word >> INO_BITS > 0 {
            slot.word.swap(word - ONE, SeqCst);
            return;
        }
    }
    inode.vi.opens.fetch_sub(1, SeqCst);
}

/// Handles that lanes count of an inode, and that its shared word does. Together exact once its end is claimed, but for openers
/// that are about to find that out (D23).
fn sum(core: &Core, inode: InodeRef<'_>) -> (i64, i64) {
    let generation = inode.vi.generation();
    let shared = i64::from(inode.vi.opens.load(SeqCst) as i32);
    let used = core.root().lanes_used.load(SeqCst) as u16;
    let mut bits = inode.vi.open_lanes.load(SeqCst);
    let mut of_lanes = 0;
    while bits != 0 {
        let first = bits.trailing_zeros() as u16;
        bits &= bits - 1;
        let lanes = (first..=used).step_by(usize::from(LANE_BITS)).filter(|lane| *lane != 0);
        of_lanes += lanes.map(|lane| in_lane(core, lane, inode.ino, generation)).sum::<i64>();
    }
    (of_lanes, shared)
}

fn any(core: &Core, inode: InodeRef<'_>) -> bool {
    let (of_lanes, shared) = sum(core, inode);
    of_lanes + shared != 0
}

fn in_lane(core: &Core, lane: u16, ino: Ino, generation: u64) -> i64 {
    let Some(slot) = table(core, core.lane(lane)).map(|table| table.slot(ino)) else { return 0 };
    loop {
        let word = slot.word.load(SeqCst);
        if word & INO_MASK != ino.0 || word >> INO_BITS == 0 {
            return 0;
        }
        let of = slot.generation.load(SeqCst);
        if slot.word.load(SeqCst) == word {
            return if of == generation { (word >> INO_BITS) as i64 } else { 0 };
        }
        spin_hint();
    }
}

/// The inode has neither names nor handles: true for the one caller that ends it. Handles that are counted but not yet checked
/// (D23) fail their check, because the generation is claimed.
pub fn claim_end(core: &Core, lane: &Lane, inode: InodeRef<'_>) -> bool {
    loop {
        lane.intent.ends(inode.ino.0, Ending::Asked);
        if !inode.vi.claim() {
            return false;
        }
        fence_behind_locked();
        lane.intent.ends(inode.ino.0, Ending::Claimed);
        let (of_lanes, shared) = sum(core, inode);
        if inode.vi.nlink.load(SeqCst) == 0 && of_lanes + shared == 0 {
            // What lanes count of handles that others closed says nothing of the slot's next inode; so the shared word must not either.
            // Added, not stored: a late opener may have counted itself there just now, and will take that back (I3).
            inode.vi.opens.fetch_add(of_lanes as u32, SeqCst);
            return true;
        }
        inode.vi.unclaim();
        fence_behind_locked();
        // Who closed, or gave up opening, meanwhile found the inode claimed: then nobody else will end it.
        if inode.vi.nlink.load(SeqCst) != 0 || any(core, inode) {
            return false;
        }
    }
}

/// Counts an open handle; false if the inode is not, or no longer, the one of this generation (D23). The caller then looks
/// whether it is his to end (`life::drop_open` does, after a count was taken back).
pub fn open(core: &Core, lane: u16, inode: InodeRef<'_>, generation: u64) -> bool {
    raise(core, lane, inode, generation);
    fence_behind_locked();
    inode.vi.is(InodeId { ino: inode.ino, generation })
}

/// Forgets what a lane counts, whose process is gone; the inodes that it counted.
pub fn forget(core: &Core, lane: u16) -> Vec<InodeId> {
    let Some(table) = table(core, core.lane(lane)) else { return Vec::new() };
    let counted = table.slots.iter().filter_map(|slot| {
        let (word, generation) = (slot.word.load(SeqCst), slot.generation.load(SeqCst));
        if word >> INO_BITS == 0 {
            return None;
        }
        slot.word.store(0, SeqCst);
        Some(InodeId { ino: Ino(word & INO_MASK), generation })
    });
    counted.collect()
}

/// Forgets what a lane counts of an inode that it alone knows.
pub fn forget_inode(core: &Core, lane: u16, inode: InodeRef<'_>) {
    if let Some(table) = table(core, core.lane(lane)) {
        let slot = table.slot(inode.ino);
        if slot.word.load(SeqCst) & INO_MASK == inode.ino.0 {
            slot.word.store(0, SeqCst);
        }
    }
}
