//! Extended attributes of an inode: a blob on media, and the access lists in memory for permission checks.
//!
//! State       [`Attached`], made with the first attribute: the blob's block, and the access lists as words. Bits of the
//!             inode's mode tell which lists exist, so that checks of inodes without one read nothing else.
//! Invariants  I1  the set is replaced as a whole, under the EOF latch: a new blob, then one transaction of a state and an attributes
//!                 record of one change count. Of two sets, the larger change count counts.
//!             I2  the blob that a record names is replaced in memory before its blocks are freed. Readers take no latch:
//!                 they check `seq` after reading, and discard the result if it changed.
//!             I3  `change_count` is stored last: the set of a record's change count is completely linked. If a process died before that,
//!                 its settler links the record's set again.
//! Crash order C1  blob fenced, record fenced, memory changed, old blob freed.
//! Orderings   O1  as in `names::table`: `seq` is odd while the words change, and is loaded before and after them.
//! Source      ours; the permission rules are `heddle_vfs::xattr`'s.

use crate::alloc::blob::{self, Fresh};
use crate::alloc::{Purpose, free_later};
use crate::format::blob::{Kind, XATTR_BLOCKS_MAX, words_of_xattrs, xattrs_of_words};
use crate::format::record::Record;
use crate::ids::{BlockNo, Extent};
use crate::planted::{Breach, breaks};
use crate::state::core::{Core, no_memory};
use crate::state::inode::{InodeRef, List, Mode};
use crate::state::lane::LaneLocal;
use crate::state::lease::LaneGuard;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_arena::sync::atomic::fence;
use heddle_arena::{Ptr, Shared, Zeroed};
use heddle_vfs::acl::{Acl, Entry};
use heddle_vfs::xattr::Xattrs;
use heddle_vfs::{Cred, Error, Permission, Result, Time, XattrName};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::{Duration, Instant};

/// Attempts without the latch.
const TRIES: u32 = 64;
/// If a set is seen in the middle of a change for so long, at each attempt after the latch, it is not
/// changing: its `seq` is damaged.
const CHANGED_MAX: Duration = Duration::from_secs(5);
/// Most entries of a list: as many as a value of 64 KiB holds.
const ENTRIES_MAX: u64 = 8192;

/// The attributes of an inode in memory.
#[repr(C, align(64))]
#[derive(Debug)]
pub struct Attached {
    seq: AtomicU64,
    change_count: AtomicU64,
    blob: AtomicU64,
    lists: [AtomicU64; 2],
    lens: [AtomicU64; 2],
}

// SAFETY: atomics only.
unsafe impl Shared for Attached {}
// SAFETY: all zeros is a set without attributes.
unsafe impl Zeroed for Attached {
    fn zeroed() -> Attached {
        let zero = || AtomicU64::new(0);
        Attached {
            seq: zero(),
            change_count: zero(),
            blob: zero(),
            lists: [zero(), zero()],
            lens: [zero(), zero()],
        }
    }
}

/// Overwrites the blob's block, as an attached process could.
#[cfg(test)]
pub fn scribble(core: &Core, inode: InodeRef<'_>) {
    attached(core, inode).unwrap().blob.fetch_add(1, Relaxed);
}

fn attached<'c>(core: &'c Core, inode: InodeRef<'c>) -> Option<&'c Attached> {
    // ORDERING: Acquire, pairs with the Release in `publish`.
    core.arena.try_get(Ptr::from_raw(inode.volatile.xattrs().load(Acquire)))
}

/// Runs `f` until no change interfered, `TRIES` times at most (O1).
fn settled<T>(core: &Core, inode: InodeRef<'_>, f: impl Fn(&Attached) -> T) -> Option<T> {
    for _ in 0..TRIES {
        let set = attached(core, inode)?;
        // ORDERING: Acquire, O1.
        let before = set.seq.load(Acquire);
        if before.is_multiple_of(2) {
            let result = f(set);
            // ORDERING: Acquire, O1.
            fence(Acquire);
            // ORDERING: Relaxed, after the fence.
            let same = set.seq.load(Relaxed) == before;
            if same && attached(core, inode).is_some_and(|now| std::ptr::eq(now, set)) {
                return Some(result);
            }
        }
        heddle_arena::sync::spin_hint();
    }
    None
}

/// The attributes. The caller does not hold the EOF latch, unless no other thread changes them.
///
/// # Errors
/// [`Error::Corrupt`] if the blob is damaged.
pub fn load(core: &Core, inode: InodeRef<'_>) -> Result<Xattrs> {
    let lately = settled(core, inode, |set| read_set(core, inode, set));
    match lately {
        Some(Some(xattrs)) => Ok(xattrs),
        // ORDERING: Acquire, as in `attached`.
        _ if inode.volatile.xattrs().load(Acquire) == 0 => Ok(Xattrs::default()),
        // Damaged, or changed all the time.
        _ => load_after_changes(core, inode),
    }
}

/// [`load`], while other threads change them: waits for the end of each change. It does not take the latch: the
/// caller may be outside of any call, and if it died, no settler would find its latch.
#[cold]
fn load_after_changes(core: &Core, inode: InodeRef<'_>) -> Result<Xattrs> {
    let began = Instant::now();
    loop {
        inode.volatile.eof.wait_until_free(core);
        match settled(core, inode, |set| read_set(core, inode, set)) {
            Some(Some(xattrs)) => return Ok(xattrs),
            // ORDERING: Acquire, as in `attached`.
            _ if inode.volatile.xattrs().load(Acquire) == 0 => return Ok(Xattrs::default()),
            None if began.elapsed() < CHANGED_MAX => std::thread::yield_now(),
            _ => {
                return Err(core.damage(format!("inode {}: the blob of its attributes", inode.ino.0)));
            }
        }
    }
}

/// [`load`], for a caller that holds the EOF latch.
pub fn load_latched(core: &Core, inode: InodeRef<'_>) -> Result<Xattrs> {
    match attached(core, inode) {
        None => Ok(Xattrs::default()),
        Some(set) => read_set(core, inode, set)
            .ok_or_else(|| core.damage(format!("inode {}: the blob of its attributes", inode.ino.0))),
    }
}

fn blob_of(set: &Attached) -> Option<BlockNo> {
    // ORDERING: Relaxed, checked by `seq`, or read under the latch.
    Some(BlockNo(set.blob.load(Relaxed))).filter(|b| b.0 != 0)
}

fn read_set(core: &Core, inode: InodeRef<'_>, set: &Attached) -> Option<Xattrs> {
    let (words, _) = blob::read(core, inode.id(), Kind::Xattrs, blob_of(set), XATTR_BLOCKS_MAX)?;
    xattrs_of_words(&words)
}

/// One of the access lists.
pub fn list(core: &Core, inode: InodeRef<'_>, which: List) -> Option<Acl> {
    if !inode.volatile.has_list(which) {
        return None;
    }
    let words = settled(core, inode, |set| {
        // ORDERING: Relaxed throughout, checked by `seq` (O1).
        let (at, len) = (set.lists[which as usize].load(Relaxed), set.lens[which as usize].load(Relaxed));
        let last = at.wrapping_add(len.wrapping_sub(1).wrapping_mul(8));
        let whole = (1..=ENTRIES_MAX).contains(&len)
            && core.arena.try_get(Ptr::<AtomicU64>::from_raw(at)).is_some()
            && core.arena.try_get(Ptr::<AtomicU64>::from_raw(last)).is_some();
        let words = if whole { core.arena.slice(Ptr::<AtomicU64>::from_raw(at), len as usize) } else { &[] };
        words.iter().map(|word| word.load(Relaxed)).collect::<Vec<u64>>()
    });
    match words {
        Some(words) => Acl::new(words.into_iter().filter_map(Entry::from_word).collect()).ok(),
        // Changed all the time, or just removed: the blob decides.
        None => load(core, inode).ok()?.acl(name_of(which)),
    }
}

fn name_of(which: List) -> XattrName<'static> {
    match which {
        List::Access => XattrName::ACL_ACCESS,
        List::Default => XattrName::ACL_DEFAULT,
    }
}

/// Checks that the caller may do `want` to an inode: by its mode, and by its access list if it has one.
#[inline]
pub fn check(core: &Core, inode: InodeRef<'_>, cred: &Cred, want: Permission) -> Result<()> {
    check_mode(core, inode, inode.volatile.mode(), cred, want)
}

/// As [`check`], for a caller that has loaded the mode.
#[inline(always)]
pub fn check_mode(core: &Core, inode: InodeRef<'_>, mode: Mode, cred: &Cred, want: Permission) -> Result<()> {
    let Some((kind, perm)) = mode.kind_perm() else { return Err(Error::Stale) };
    if breaks(Breach::ModesUnchecked) {
        return Ok(());
    }
    let (uid, gid) = inode.volatile.owner();
    if mode.has_list(List::Access) {
        return check_list(core, inode, mode, cred, want);
    }
    cred.check_mode(kind, perm, uid, gid, want)
}

#[inline(never)]
fn check_list(core: &Core, inode: InodeRef<'_>, mode: Mode, cred: &Cred, want: Permission) -> Result<()> {
    let (kind, perm) = mode.kind_perm().ok_or(Error::Stale)?;
    cred.check_acl(kind, perm, inode.volatile.owner(), list(core, inode, List::Access).as_ref(), want)
}

/// Change count of the last record of extended attributes; `None` if there was none.
pub fn change_count(core: &Core, inode: InodeRef<'_>) -> Option<u64> {
    // ORDERING: Relaxed, an older value only keeps a record longer.
    attached(core, inode).map(|set| set.change_count.load(Relaxed))
}

/// A record of the present set at a new change count; `None` without a set. The caller holds the EOF latch.
pub fn again(core: &Core, inode: InodeRef<'_>, change_count: u64) -> Option<Record> {
    let set = attached(core, inode)?;
    Some(Record::Xattrs { blob: blob_of(set), change_count, mtime: inode.volatile.times()[1] })
}

/// Called when that record is durable: earlier records are dead.
pub fn set_change_count(core: &Core, inode: InodeRef<'_>, change_count: u64) {
    if let Some(set) = attached(core, inode) {
        // ORDERING: Relaxed, read by cleaning, and under the latch.
        set.change_count.store(change_count, Relaxed);
    }
}

/// Blocks of the blob, for a caller that frees the whole inode; empty if it cannot be read.
pub fn blocks(core: &Core, inode: InodeRef<'_>) -> Vec<Extent> {
    let first = attached(core, inode).and_then(blob_of);
    blob::read(core, inode.id(), Kind::Xattrs, first, XATTR_BLOCKS_MAX).map_or(Vec::new(), |read| read.1)
}

/// A new set of attributes before its record: the blob is written, memory is allocated, and no other thread
/// sees it.
pub struct Prepared {
    blob: Fresh,
    set: Ptr<Attached>,
    lists: [Option<(Ptr<AtomicU64>, u64)>; 2],
}

/// Writes the blob of a set, and makes its form in memory, without a fence.
///
/// # Errors
/// [`Error::NoSpace`], unless the set is no larger than the present one: then it may use the reserve;
/// [`Error::NoMemory`].
pub fn prepare(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    xattrs: &Xattrs,
) -> Result<Prepared> {
    let words = words_of_xattrs(xattrs);
    let blocks = words.len().div_ceil(crate::format::blob::WORDS_A_BLOCK);
    let purpose = if blocks <= self::blocks(core, inode).len() { Purpose::Replace } else { Purpose::Data };
    let blob = blob::write_unfenced(core, guard.own, inode.id(), Kind::Xattrs, &words, purpose)?;
    match in_memory(core, guard.own, inode, xattrs) {
        Ok((set, lists)) => Ok(Prepared { blob, set, lists }),
        Err(error) => {
            blob.give_up(core);
            Err(error)
        }
    }
}

type InMemory = (Ptr<Attached>, [Option<(Ptr<AtomicU64>, u64)>; 2]);

fn in_memory(core: &Core, own: &mut LaneLocal, inode: InodeRef<'_>, xattrs: &Xattrs) -> Result<InMemory> {
    let mut lists = [None, None];
    let made = (|| {
        for which in [List::Access, List::Default] {
            if let Some(acl) = xattrs.acl(name_of(which)) {
                let n = acl.entries().len();
                let word = |i: usize| AtomicU64::new(acl.entries()[i].word());
                // SAFETY: `own` is this thread's.
                let at = unsafe { own.heap.alloc_slice(&core.arena, n, word) }.map_err(no_memory)?;
                lists[which as usize] = Some((at, n as u64));
            }
        }
        // ORDERING: Acquire, as in `attached`.
        match inode.volatile.xattrs().load(Acquire) {
            // SAFETY: `own` is this thread's.
            0 => unsafe { own.heap.alloc_zeroed::<Attached>(&core.arena, 1) }.map_err(no_memory),
            at => Ok(Ptr::from_raw(at)),
        }
    })();
    match made {
        Ok(set) => Ok((set, lists)),
        Err(error) => {
            free_lists(core, own, lists);
            Err(error)
        }
    }
}

fn free_lists(core: &Core, own: &mut LaneLocal, lists: [Option<(Ptr<AtomicU64>, u64)>; 2]) {
    for (at, len) in lists.into_iter().flatten() {
        // SAFETY: `own` is this thread's; only readers that validate afterwards still reach the words (I2).
        unsafe { own.heap.free(&core.arena, at, len as usize) };
    }
}

impl Prepared {
    /// Its record.
    pub fn record(&self, change_count: u64, mtime: Time) -> Record {
        Record::Xattrs { blob: self.blob.first(), change_count, mtime }
    }

    /// Frees everything, because the record was not written.
    pub fn give_up(self, core: &Core, own: &mut LaneLocal, inode: InodeRef<'_>) {
        self.blob.give_up(core);
        free_lists(core, own, self.lists);
        // ORDERING: Acquire, as in `attached`.
        if inode.volatile.xattrs().load(Acquire) == 0 {
            // SAFETY: `own` is this thread's; the set was never linked.
            unsafe { own.heap.free(&core.arena, self.set, 1) };
        }
    }

    /// Links the set, because its record is durable. The caller holds the EOF latch.
    pub fn publish(self, core: &Core, own: &mut LaneLocal, inode: InodeRef<'_>, change_count: u64) {
        let old = blocks(core, inode);
        link(core, own, inode, (self.set, self.lists), self.blob.first(), change_count);
        for extent in old {
            free_later(core.free_map(), &core.region, own, extent);
        }
    }
}

/// Makes a set the inode's present one (O1).
fn link(
    core: &Core,
    own: &mut LaneLocal,
    inode: InodeRef<'_>,
    (at, lists): InMemory,
    blob: Option<BlockNo>,
    change_count: u64,
) {
    let set = core.arena.get(at);
    // ORDERING: Acquire, as in `attached`.
    let fresh = inode.volatile.xattrs().load(Acquire) == 0;
    // No two sets share a value of `seq`, though they may share memory. ORDERING: Relaxed, changed only under
    // the latch.
    let seq = if fresh { inode.volatile.generation() << 20 } else { set.seq.load(Relaxed) };
    // A thread died here: it is unknown which words the lists have. They are leaked.
    let torn = !seq.is_multiple_of(2);
    if breaks(Breach::AttributesBlink) {
        set.blob.store(0, Relaxed); // ORDERING: Relaxed, which is the bug.
        std::thread::yield_now();
    }
    let changing = seq | 1;
    set.seq.store(changing, Relaxed); // ORDERING: Relaxed, before the fence.
    // ORDERING: Release, O1.
    fence(Release);
    // ORDERING: Relaxed throughout, O1.
    set.blob.store(blob.map_or(0, |b| b.0), Relaxed);
    let mut old = [None, None];
    for which in [List::Access, List::Default] {
        let (place, len) = (&set.lists[which as usize], &set.lens[which as usize]);
        let (words, n) = (place.load(Relaxed), len.load(Relaxed));
        old[which as usize] = (words != 0 && !torn).then(|| (Ptr::from_raw(words), n));
        let new = lists[which as usize];
        place.store(new.map_or(0, |(at, _)| at.raw()), Relaxed);
        len.store(new.map_or(0, |(_, n)| n), Relaxed);
    }
    // ORDERING: Release, O1.
    set.seq.store(changing.wrapping_add(1), Release);
    // ORDERING: Release, pairs with the Acquire in `attached`.
    inode.volatile.xattrs().store(at.raw(), Release);
    for which in [List::Access, List::Default] {
        inode.volatile.set_has_list(which, lists[which as usize].is_some());
    }
    // ORDERING: Relaxed, read by cleaning, and under the latch.
    set.change_count.store(change_count, Relaxed);
    free_lists(core, own, old);
}

/// Makes a durable xattr record visible, whose writer died before it did so. Returns the blocks that it
/// replaced. The writer's EOF latch is still held.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::NoMemory`].
pub fn roll_forward(
    core: &Core,
    own: &mut LaneLocal,
    inode: InodeRef<'_>,
    change_count: u64,
    first: Option<BlockNo>,
) -> Result<Vec<Extent>> {
    if self::change_count(core, inode).is_some_and(|known| known >= change_count) {
        return Ok(Vec::new());
    }
    let damaged = || Error::Corrupt(format!("inode {}: the blob of its attributes", inode.ino.0));
    let read = blob::read(core, inode.id(), Kind::Xattrs, first, XATTR_BLOCKS_MAX).ok_or_else(damaged)?;
    let xattrs = xattrs_of_words(&read.0).ok_or_else(damaged)?;
    // The dead thread had linked the blob already: the replaced blob is unknown.
    let linked = attached(core, inode).is_some_and(|set| blob_of(set) == first);
    let old = if linked { Vec::new() } else { blocks(core, inode) };
    let made = in_memory(core, own, inode, &xattrs)?;
    link(core, own, inode, made, first, change_count);
    Ok(old)
}

/// Gives an inode the attributes that recovery found, and claims their blocks.
///
/// # Errors
/// [`Error::Corrupt`], [`Error::NoMemory`].
pub fn recover(
    core: &Core,
    own: &mut LaneLocal,
    inode: InodeRef<'_>,
    change_count: u64,
    first: Option<BlockNo>,
) -> Result<()> {
    let damaged = || Error::Corrupt(format!("inode {}: the blob of its attributes", inode.ino.0));
    let (words, blocks) =
        blob::read(core, inode.id(), Kind::Xattrs, first, XATTR_BLOCKS_MAX).ok_or_else(damaged)?;
    let xattrs = xattrs_of_words(&words).ok_or_else(damaged)?;
    for extent in blocks {
        if !core.free_map().claim(extent) {
            return Err(Error::Corrupt(format!(
                "inode {}: block {} of its attributes belongs to something else too",
                inode.ino.0, extent.block.0
            )));
        }
    }
    let made = in_memory(core, own, inode, &xattrs)?;
    link(core, own, inode, made, first, change_count);
    Ok(())
}

/// Frees the memory of a dying inode; the caller frees its blocks.
pub fn forget(core: &Core, own: &mut LaneLocal, inode: InodeRef<'_>) {
    // ORDERING: Acquire, only this caller uses the inode.
    let at = Ptr::<Attached>::from_raw(inode.volatile.xattrs().swap(0, Acquire));
    let Some(set) = core.arena.try_get(at) else { return };
    let lists = [List::Access, List::Default].map(|which| {
        let (words, n) = (set.lists[which as usize].load(Relaxed), set.lens[which as usize].load(Relaxed));
        (words != 0).then(|| (Ptr::from_raw(words), n))
    });
    // ORDERING: Release, O1: readers discard what they have read.
    set.seq.fetch_or(1, Release);
    free_lists(core, own, lists);
    // SAFETY: `own` is this thread's; readers validate afterwards (I2).
    unsafe { own.heap.free(&core.arena, at, 1) };
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
