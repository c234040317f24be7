//! Open handles, counted by the lane that opens: two threads that open one file write no common line.
//!
//! State       a lane: a list of [`OpenTable`]s, each a table of inode, generation and count, and `home`, the process whose handles they
//!             are. Only the lane's holder raises a count or takes an entry; any thread of that process lowers one. And `kept`, entries of
//!             no certain inodes for the lane's settler, which has to go on without memory; `keeps` says whether one was ever used.
//!             an inode: `open_lanes`, one bit for all lanes with the same number modulo 64 that ever counted it: set before they count,
//!             and never cleared while the inode lives. In the papers' variants only the inode's `opens` counts.
//! Invariants  I1  a handle is counted once, in one entry of one lane of the process that opened it. The sum over all lanes is the
//!                 number of handles. A process lowers only counts that it has raised: a handle that a forked child has inherited is
//!                 its parent's, and stays.
//!             I2  the lane's holder may take over an entry whose count is 0, or whose inode is dead.
//!             I3  an ended thread's handles belong to its process: its lane is left to that process with them (`lease::life`). All of
//!                 them are removed when the process is gone, and never before.
//!             I4  a handle that is counted in two lanes while it moves is lowered in both, or in none. It leaves the first lane only when
//!                 no thread that may have counted neither is about to free the inode.
//! Orderings   O1  D23: an opener counts (SeqCst), then loads the generation. A thread that frees an inode claims the generation
//!                 (SeqCst), then sums. One sees the other. From the claim on counts only fall, except for openers that are about to fail:
//!                 a sum of 0 was 0 at one instant, in whatever order the lanes were read.
//!                 Between the two steps, on either side, stands a full fence; on x86-64 the locked instruction before it is one.
//!             O2  a closer lowers the count (SeqCst), then loads the links. A thread that removes the last link does so (SeqCst), then
//!                 sums. At least one of them finds neither links nor handles; the claim selects one.
//!             O3  an entry is emptied, gets its generation, then its inode and count (Release at least). A summing thread loads count,
//!                 generation and count again (Acquire at least), so it never takes a count for another generation's. A closer in
//!                 another lane loads them in that order and exchanges the word, which contains the number of takeovers.
//! Papers      their variants count only in the inode's word: the last close frees the nodes of SRL(tree), and must be known.
//! Source      docs/protocol.md D23.

use crate::ids::InodeId;
use crate::state::core::{Core, no_memory};
use crate::state::inode::InodeRef;
use crate::state::lane::open_table::{
    COUNT_MAX, COUNT_SHIFT, INO_MASK, ONE, OpenTable, Slot, TABLES, TAKEN_MASK, TAKEN_ONE,
};
use crate::state::lane::{Freeing, Lane};
use crate::state::papers::counts_handles_in_inode;
use heddle_arena::sync::fence_after_locked;
use heddle_vfs::planted::{Bug, planted};
use heddle_vfs::{Error, Ino, Result};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

/// Number of bits of an inode's word; lanes with equal numbers modulo this share a bit.
const LANE_BITS: u16 = 64;

/// Looks for a handle in the lanes of the process: one thread at a time moves handles.
const LOOKS: u32 = 2;

/// Gives a lane its table, if it has none, and makes it visible to summing threads.
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

/// A lane's tables, with their numbers.
fn tables<'c>(core: &'c Core, lane: &Lane) -> impl Iterator<Item = (usize, &'c OpenTable)> {
    let mut next = lane.opens.load(SeqCst);
    let row = std::iter::from_fn(move || {
        let table = core.arena.try_get(next)?;
        next = table.next.load(SeqCst);
        Some(table)
    });
    row.take(TABLES).enumerate()
}

/// The lane's entries for its settler, if they were ever used.
fn kept(lane: &Lane) -> &[Slot] {
    if lane.keeps.load(SeqCst) == 0 { &[] } else { &lane.kept }
}

/// Counts a handle, whether or not the inode is alive: the caller checks afterwards (O1).
///
/// # Errors
/// [`Error::NoMemory`] if the lane has no room for one more file; nothing is counted then.
pub fn raise(core: &Core, lane: u16, inode: InodeRef<'_>, generation: u64) -> Result<()> {
    if counts_handles_in_inode(core) {
        inode.volatile.opens.fetch_add(1, SeqCst);
        return Ok(());
    }
    raise_by(core, lane, inode, generation, 1)
}

fn raise_by(core: &Core, lane: u16, inode: InodeRef<'_>, generation: u64, n: u64) -> Result<()> {
    let bit = 1 << (lane % LANE_BITS);
    // ORDERING: Relaxed, a bit that is set stays while the inode lives; SeqCst to set it, O1.
    if inode.volatile.open_lanes.load(Relaxed) & bit == 0 {
        inode.volatile.open_lanes.fetch_or(bit, SeqCst);
    }
    let mut last = None;
    for (nth, table) in tables(core, core.lane(lane)) {
        if raise_in(core, table.slot(inode.ino, nth), inode.ino, generation, n) {
            return Ok(());
        }
        last = Some((nth, table));
    }
    let (nth, last) = last.filter(|(nth, _)| nth + 1 < TABLES).ok_or(Error::NoMemory)?;
    let new = core.arena.alloc_zeroed::<OpenTable>(1).map_err(no_memory)?;
    raise_in(core, core.arena.get(new).slot(inode.ino, nth + 1), inode.ino, generation, n);
    last.next.store(new, SeqCst);
    Ok(())
}

/// Returns false if the entry is another inode's, or full. The caller holds the lane.
fn raise_in(core: &Core, slot: &Slot, ino: Ino, generation: u64, n: u64) -> bool {
    loop {
        // ORDERING: Relaxed throughout: other threads only lower counts, and the exchange checks that.
        let (word, of) = (slot.word.load(Relaxed), slot.generation.load(Relaxed));
        let mine = word & INO_MASK == ino.0 && of == generation;
        if mine {
            if (word >> COUNT_SHIFT) + n > COUNT_MAX {
                return false;
            }
            if slot.word.compare_exchange(word, word + n * ONE, SeqCst, SeqCst).is_ok() {
                return true;
            }
            continue;
        }
        if word >> COUNT_SHIFT != 0 && !is_dead(core, Ino(word & INO_MASK), of) {
            return false;
        }
        let taken = word.wrapping_add(TAKEN_ONE) & TAKEN_MASK;
        // O3.
        if slot.word.compare_exchange(word, taken, SeqCst, SeqCst).is_ok() {
            // ORDERING: Release, O3.
            slot.generation.store(generation, Release);
            slot.word.swap(taken | ino.0 | (n * ONE), SeqCst);
            return true;
        }
    }
}

fn is_dead(core: &Core, ino: Ino, generation: u64) -> bool {
    core.slot(ino).is_none_or(|inode| inode.volatile.generation() != generation)
}

/// Removes a handle of this process from the count, in the lane where it was counted.
pub fn lower(core: &Core, lane: u16, inode: InodeRef<'_>, generation: u64) {
    if counts_handles_in_inode(core) {
        inode.volatile.opens.fetch_sub(1, SeqCst);
        return;
    }
    let own = core.lane(lane);
    if lower_in(core, own, inode.ino, generation) {
        return;
    }
    // Another thread of this process opened it. (None: a parent process did, and this process must not lower
    // its count: I1.)
    let home = own.home.load(SeqCst);
    let others = || lanes_of(core, inode).filter(|other| *other != lane).map(|other| core.lane(other));
    if planted(Bug::ClosesForOthers) {
        others().for_each(|other| {
            lower_in(core, other, inode.ino, generation);
        });
        return;
    }
    // Again: it may have moved from a lane that came later to one that came before.
    let _found = (0..LOOKS).any(|_| {
        let mut ours = others().filter(|other| other.home.load(SeqCst) == home);
        ours.any(|other| lower_in(core, other, inode.ino, generation))
    });
}

fn lower_in(core: &Core, lane: &Lane, ino: Ino, generation: u64) -> bool {
    entries_for(core, lane, ino).any(|slot| slot.lower(ino, generation))
}

/// The entries of a lane that may count handles of this inode.
fn entries_for<'c>(core: &'c Core, lane: &'c Lane, ino: Ino) -> impl Iterator<Item = &'c Slot> {
    let in_tables = tables(core, lane).map(move |(nth, table)| table.slot(ino, nth));
    in_tables.chain(std::iter::once(lane).flat_map(kept))
}

/// Lanes that may count handles of it.
fn lanes_of(core: &Core, inode: InodeRef<'_>) -> impl Iterator<Item = u16> {
    let used = (core.root().lanes_used.load(SeqCst) as u16).min(crate::ids::LANES);
    let bits = inode.volatile.open_lanes.load(SeqCst);
    let firsts = (0..LANE_BITS).filter(move |bit| bits >> bit & 1 != 0);
    firsts.flat_map(move |first| (first..=used).step_by(usize::from(LANE_BITS))).filter(|lane| *lane != 0)
}

/// Number of handles. Exact once the inode is claimed, except for openers that are about to notice the claim
/// (D23).
fn sum(core: &Core, inode: InodeRef<'_>) -> u64 {
    if counts_handles_in_inode(core) {
        return inode.volatile.opens.load(SeqCst).into();
    }
    let generation = inode.volatile.generation();
    let in_lane = |lane: u16| {
        let counts = |slot: &Slot| slot.counts(inode.ino, generation);
        entries_for(core, core.lane(lane), inode.ino)
            .filter_map(counts)
            .map(|word| word >> COUNT_SHIFT)
            .sum::<u64>()
    };
    lanes_of(core, inode).map(in_lane).sum::<u64>()
}

/// The lane number under which a lane claims inodes.
pub fn claims_as(core: &Core, lane: u16) -> Option<u16> {
    (!counts_handles_in_inode(core)).then_some(lane)
}

/// Returns true for the one caller that may free the inode: it has neither names nor handles. Handles that
/// are counted but not yet checked (D23) fail their check, because the generation is claimed.
pub fn claim_end(core: &Core, number: u16, inode: InodeRef<'_>) -> bool {
    let (lane, by) = (core.lane(number), claims_as(core, number));
    loop {
        lane.intent.note_freeing(inode.ino.0, Freeing::Asked);
        if !inode.volatile.claim(by) {
            return false;
        }
        fence_after_locked();
        lane.intent.note_freeing(inode.ino.0, Freeing::Claimed);
        let handles = sum(core, inode);
        if inode.volatile.nlink.load(SeqCst) == 0 && handles == 0 {
            return true;
        }
        inode.volatile.unclaim(by);
        fence_after_locked();
        // A thread that closed, or failed to open, meanwhile found the inode claimed. Then no other thread
        // will free it.
        if inode.volatile.nlink.load(SeqCst) != 0 || sum(core, inode) != 0 {
            return false;
        }
    }
}

/// Counts an open handle. Returns false if the inode is not, or no longer, the one of this generation (D23);
/// the handle is counted even then. The caller lowers the count again, and frees the inode if that was the
/// last handle (`life::drop_open` does).
///
/// # Errors
/// As [`raise`].
pub fn open(core: &Core, lane: u16, inode: InodeRef<'_>, generation: u64) -> Result<bool> {
    raise(core, lane, inode, generation)?;
    fence_after_locked();
    Ok(inode.volatile.is(InodeId { ino: inode.ino, generation }))
}

/// As [`open`], for the settler of the lane. Without room in its table the handle is counted in `kept`.
///
/// # Errors
/// As [`raise`], if `kept` is full too.
pub fn keep(core: &Core, number: u16, inode: InodeRef<'_>, generation: u64) -> Result<bool> {
    if raise(core, number, inode, generation).is_err() {
        let lane = core.lane(number);
        lane.keeps.store(1, SeqCst);
        let found = lane.kept.iter().any(|slot| raise_in(core, slot, inode.ino, generation, 1));
        found.then_some(()).ok_or(Error::NoMemory)?;
    }
    fence_after_locked();
    Ok(inode.volatile.is(InodeId { ino: inode.ino, generation }))
}

/// The entries of a lane.
fn entries(core: &Core, lane: u16) -> impl Iterator<Item = (&Slot, InodeId, u64)> {
    let lane = core.lane(lane);
    let slots = tables(core, lane).flat_map(|(_, table)| &table.slots).chain(kept(lane));
    slots.filter_map(|slot| {
        let (word, generation) = (slot.word.load(SeqCst), slot.generation.load(SeqCst));
        let count = word >> COUNT_SHIFT;
        (count != 0).then_some((slot, InodeId { ino: Ino(word & INO_MASK), generation }, count))
    })
}

/// Returns true if the lane counts handles of living inodes.
pub fn has_any(core: &Core, lane: u16) -> bool {
    entries(core, lane).any(|(_, id, _)| !is_dead(core, id.ino, id.generation))
}

/// Moves the counts of lane `from` to another lane of the same process. The caller holds both. Counts that
/// find no room stay. Returns inodes that have no name: the caller frees those without handles. `lives_on` waits while a thread decides
/// whether an inode of that generation has handles, and returns false if it ends.
pub fn hand_over<'c>(
    core: &'c Core,
    from: u16,
    to: u16,
    lives_on: impl Fn(InodeRef<'c>, u64) -> bool,
) -> Vec<InodeRef<'c>> {
    let mut nameless = Vec::new();
    let living = entries(core, from).filter(|(_, id, _)| !is_dead(core, id.ino, id.generation));
    for (slot, id, count) in living {
        let Some(inode) = core.slot(id.ino) else { continue };
        if raise_by(core, to, inode, id.generation, count).is_err() {
            continue;
        }
        fence_after_locked();
        // O1: who claims it from here on counts it in `to`. Who has claimed it before may have found that empty, and must not find this
        // lane empty too.
        if !inode.volatile.is(id) && !lives_on(inode, id.generation) {
            continue;
        }
        // I4: handles that other threads have lowered here meanwhile are lowered there too.
        let moved = (0..count).filter(|_| slot.lower(id.ino, id.generation)).count() as u64;
        for _ in moved..count {
            lower_in(core, core.lane(to), id.ino, id.generation);
        }
        fence_after_locked();
        // A thread that closed meanwhile may have summed too much, and left the freeing to this lane.
        if inode.volatile.nlink.load(SeqCst) == 0 {
            nameless.push(inode);
        }
    }
    nameless
}

/// The counts of one inode in a lane whose process is gone.
pub struct Forgotten<'c> {
    slot: &'c Slot,
    /// The inode.
    pub id: InodeId,
}

impl Forgotten<'_> {
    /// Removes them.
    pub fn remove(&self) {
        self.slot.word.store(0, SeqCst);
    }
}

/// The counts of a lane whose process is gone.
pub fn of_gone(core: &Core, lane: u16) -> impl Iterator<Item = Forgotten<'_>> {
    entries(core, lane).map(|(slot, id, _)| Forgotten { slot, id })
}

/// Removes all counts of a lane whose contents are damaged.
pub fn forget(core: &Core, lane: u16) {
    of_gone(core, lane).for_each(|counts| counts.remove());
}

/// Removes a lane's counts of an inode that only this lane knows.
pub fn forget_inode(core: &Core, lane: u16, inode: InodeRef<'_>) {
    entries(core, lane)
        .filter(|(_, id, _)| id.ino == inode.ino)
        .for_each(|(slot, ..)| slot.word.store(0, SeqCst));
}

#[cfg(all(test, not(any(loom, shuttle))))]
pub mod tests;
