//! The papers' variants in memory: the locks of their files, and what else is true of them alone.
//!
//! Other files do not ask which variant it is. They ask one of the questions below, which say what differs. In the layers above, files of
//! this name hold all that these variants do there: `log::papers` commits, `file::papers` writes and reads, `upkeep::relog::papers` logs
//! anew.
//!
//! State       `aux` of a file's inode: its [`PaperLocks`], made when it is first opened or locked, and freed with the inode
//! Lock order  EOF latch, range lock, then one spinlock at a time. A directory has only the latch: one caller at a time changes it.
//! Source      SRL paper Fig. 2 (`nova`) and Fig. 5 (`nova-*`); docs/protocol.md, "The papers' variants".

use crate::lane_counters::SAMPLED_EVERY;
use crate::state::core::{Core, no_memory};
use crate::state::inode::InodeRef;
use crate::state::lane::{Lane, LaneLocal};
use crate::state::latch::{Latched, Spin};
use crate::variant::LogKind;
use heddle_arena::{Ptr, Shared, Zeroed};
use heddle_range_lock::{Access, Held, LockHead, RangeLock};
use heddle_vfs::{Error, FileKind, Result};
use std::sync::atomic::Ordering::{AcqRel, Acquire, SeqCst};
use std::time::{Duration, Instant};

/// Returns true if an inode has one chain, which its writers share: a file's under its log lock, a directory's under its EOF latch. A
/// record counts by its place there, or by a mark that is set later. Otherwise each lane that writes has a chain of its own.
#[inline]
pub fn one_chain(core: &Core) -> bool {
    core.variant.log() != LogKind::SelfCertifying
}

/// Returns true if reads and writes lock ranges of bytes, so that cleaning moves a file's records as one of its writes. Otherwise writers
/// lock the cells of pages, and readers lock nothing.
#[inline]
pub fn locks_ranges(core: &Core) -> bool {
    core.locks.is_some()
}

/// Returns true if only one process can use the mount, so that no lane is ever settled: the range locks' counts of readers do not tell
/// which process they belong to.
#[inline]
pub fn one_process(core: &Core) -> bool {
    core.locks.is_some()
}

/// Returns true if a word of the inode counts its handles: the last close frees the nodes of SRL(tree), and must be known. Otherwise lanes
/// count them, and that word names the lane that has claimed the inode.
#[inline]
pub fn counts_handles_in_inode(core: &Core) -> bool {
    core.locks.is_some()
}

/// Returns true if one lock of the file covers all steps of a call, its log included.
#[inline]
fn covers_all_steps(core: &Core) -> bool {
    core.variant.locks_whole_file()
}

impl Core {
    /// The size limit of a file in this variant. A call that would exceed it is refused before anything
    /// changes.
    pub fn file_bytes_max(&self) -> u64 {
        let lock = self.locks.as_ref().map_or(u64::MAX, RangeLock::file_bytes_max);
        lock.min(heddle_vfs::OFFSET_MAX_BYTES)
    }
}

/// The locks of a file: its range lock, and the spinlocks of the write steps.
#[repr(C)]
pub struct PaperLocks {
    /// The range lock.
    pub range: LockHead,
    /// Logging: reserves and fills slots.
    pub log: Spin,
    /// Tail update: sets marks.
    pub tail: Spin,
    /// Tree update: the index.
    pub index: Spin,
    /// Time and size.
    pub time: Spin,
}

// SAFETY: atomics only.
unsafe impl Shared for PaperLocks {}

/// Makes the locks of a file, if it has none.
pub fn make_locks(core: &Core, own: &mut LaneLocal, inode: InodeRef<'_>) -> Result<()> {
    let Some(lock) = &core.locks else { return Ok(()) };
    // ORDERING: Acquire, pairs with the CAS below.
    if inode.volatile.aux.load(Acquire) != 0 {
        return Ok(());
    }
    let fresh = PaperLocks {
        range: LockHead::zeroed(),
        log: Spin::new(),
        tail: Spin::new(),
        index: Spin::new(),
        time: Spin::new(),
    };
    // SAFETY: `own` is this thread's.
    let new = unsafe { own.heap.alloc(&core.arena, fresh) }.map_err(no_memory)?;
    lock.init(&core.arena, &core.arena.get(new).range).map_err(no_memory)?;
    // ORDERING: AcqRel and Acquire: the file uses the locks of the thread that won.
    if inode.volatile.aux.compare_exchange(0, new.raw(), AcqRel, Acquire).is_err() {
        destroy(core, own, new);
    }
    Ok(())
}

/// Frees the locks of a file that died.
pub fn free_locks(core: &Core, own: &mut LaneLocal, inode: InodeRef<'_>) {
    // ORDERING: Acquire, only this caller uses the inode.
    let locks = inode.volatile.aux.swap(0, Acquire);
    if locks != 0 {
        destroy(core, own, Ptr::from_raw(locks));
    }
}

/// Frees locks of a dead file, or locks that another thread's set has replaced.
fn destroy(core: &Core, own: &mut LaneLocal, at: Ptr<PaperLocks>) {
    if let Some(lock) = &core.locks {
        // SAFETY: no thread can reach the locks any more.
        unsafe {
            lock.destroy(&core.arena, &core.arena.get(at).range);
            own.heap.free(&core.arena, at, 1);
        }
    }
}

/// The locks of a file, if it has any.
pub fn paper_locks<'c>(core: &'c Core, inode: InodeRef<'c>) -> Option<&'c PaperLocks> {
    let file = is_file(inode);
    // ORDERING: Acquire, pairs with the Release where they are made.
    let at = inode.volatile.aux.load(Acquire);
    (file && at != 0).then(|| core.arena.get(Ptr::from_raw(at)))
}

/// As [`paper_locks`]; `None` where the file's lock covers all steps.
pub fn step_locks<'c>(core: &'c Core, inode: InodeRef<'c>) -> Option<&'c PaperLocks> {
    if covers_all_steps(core) { None } else { paper_locks(core, inode) }
}

/// A directory's `aux` has its buckets.
fn is_file(inode: InodeRef<'_>) -> bool {
    matches!(inode.volatile.kind_perm(), Some((kind, _)) if kind != FileKind::Directory)
}

/// Held while a handle is counted or returned. The last close frees lock nodes, and no thread may be about to
/// use them.
pub fn opening<'c>(core: &Core, inode: InodeRef<'c>) -> Option<Latched<'c>> {
    core.locks.as_ref().map(|_| inode.volatile.heads.lock())
}

/// Called when a handle is returned. If it is the last one, the nodes of SRL(tree) are freed (SRL paper
/// IV-A). The count itself is lowered afterwards: until then no other handle can become the last.
pub fn last_close(core: &Core, inode: InodeRef<'_>) {
    let _opening = opening(core, inode);
    if let (Some(lock), Some(locks)) = (&core.locks, paper_locks(core, inode))
        && inode.volatile.opens.load(SeqCst) == 1
    {
        // SAFETY: the caller's is the only handle, and no other can be counted under the latch. Calls that
        // lock ranges have a handle.
        unsafe { lock.last_close(&core.arena, &locks.range) };
    }
}

fn lock_error(error: heddle_range_lock::Error) -> Error {
    match error {
        heddle_range_lock::Error::TooBig { .. } => Error::FileTooBig,
        _ => Error::NoMemory,
    }
}

/// A range that is locked in a papers' variant; in `heddle`, nothing.
pub struct RangeGuard<'c> {
    core: &'c Core,
    held: Option<(&'c LockHead, Option<Held>)>,
}

impl Drop for RangeGuard<'_> {
    fn drop(&mut self) {
        if let (Some((head, held)), Some(lock)) = (&mut self.held, &self.core.locks)
            && let Some(held) = held.take()
        {
            lock.release(&self.core.arena, head, held);
        }
    }
}

/// No free lock takes longer than this.
const FREE_LOCK_MAX: Duration = Duration::from_micros(2);

/// Wider ranges are locked to the end of the largest file: then the segment lock takes words only for
/// existing segments.
const WIDE_BYTES: u64 = 256 << 20;

/// Locks bytes `[start, end)` with this variant's lock; a wide range is locked to the end.
pub fn lock_range<'c>(
    core: &'c Core,
    lane: &Lane,
    own: &mut LaneLocal,
    inode: InodeRef<'c>,
    start: u64,
    end: u64,
    access: Access,
) -> Result<RangeGuard<'c>> {
    let Some(lock) = &core.locks else { return Ok(RangeGuard { core, held: None }) };
    make_locks(core, own, inode)?;
    let Some(locks) = paper_locks(core, inode) else { return Err(Error::Stale) };
    let timed = lane.counts.is_timing();
    let asked = (timed || core.on_lock.is_some()).then(Instant::now);
    let end = if end.saturating_sub(start) > WIDE_BYTES { u64::MAX } else { end.max(start + 1) };
    let held = lock.acquire(&core.arena, &locks.range, start..end, access).map_err(lock_error)?;
    if let Some(took) = asked.map(|asked| asked.elapsed()) {
        if let Some(tell) = core.on_lock {
            tell(took);
        }
        // These locks do not report waiting, so taking longer than any free lock counts as a wait.
        if timed && took > FREE_LOCK_MAX {
            lane.counts.waited(SAMPLED_EVERY, took);
        }
    }
    Ok(RangeGuard { core, held: Some((&locks.range, Some(held))) })
}

/// Locks a file for a record that changes no bytes, if the file's lock covers the log too. `None`: the commit locks the log.
pub fn lock_file_for_log<'c>(
    core: &'c Core,
    lane: &Lane,
    own: &mut LaneLocal,
    inode: InodeRef<'c>,
) -> Result<Option<RangeGuard<'c>>> {
    let locked = covers_all_steps(core) && is_file(inode);
    locked.then(|| lock_range(core, lane, own, inode, 0, 1, Access::Exclusive)).transpose()
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
