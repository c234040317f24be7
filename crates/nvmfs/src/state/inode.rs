//! The volatile inode: 320 bytes in five lines, by the events that write them.
//!
//! State       line 0  identity, and pointers to its structures: all that a path walk, an open and a close read. Written when the
//!                     inode is made, when its attributes or links change, and when a bit of `open_lanes` is set: at most 64 times
//!             line 1  a small directory's bucket: a walk fetches it together with line 0, not after it
//!             line 2  size, times, the change counter: written when EOF moves, and by writers once a clock tick
//!             line 3  cells of the first four pages
//!             line 4  counts: blocks, the claim to free the inode, read pins; fields that are rarely read
//!             With five, an odd number, the first lines of many inodes are spread over all sets of a cache.
//! Invariants  I1  `generation` is 0 while no inode lives in this memory; it is set last when one is made.
//!             I2  a caller that moves EOF, or clears or shifts pages that may have no cells, holds the EOF latch. In the second case it
//!                 also raises `gate` before it looks for cells, and lowers it after `floor` is raised.
//!             I3  bytes of mapped pages beyond EOF are zero (docs/protocol.md D11).
//! Lock order  directory latches (see `names`), EOF latch, cells.
//! Orderings   O1  gate: a writer creates and locks its cell, executes a full fence (on x86-64 the lock is one), then loads `gate` and
//!                 `size`. A truncation raises `gate`, executes a full fence, then looks for cells. One of the two sees the
//!                 other: no page is written unnoticed by a truncation or punch that did not find its cell (D8).
//!             O2  `size` is stored (Release) before the maps that depend on it are published, and loaded (Acquire) before
//!                 and after the cells.

mod kernel;
mod mode;
mod pins;

pub use kernel::KernelPages;
pub use mode::{List, Mode};
pub use pins::Phase;

use crate::ids::{InodeId, PageNo, Version};
use crate::planted::{Breach, breaks};
use crate::state::bucket::Bucket;
use crate::state::cell::Cell;
use crate::state::chain::Chains;
use crate::state::index::{INLINE_CELLS, Index};
use crate::state::latch::Latch;
use heddle_arena::sync::atomic::{AtomicU32, AtomicU64, fence};
use heddle_arena::sync::fence_after_locked;
use heddle_arena::{AtomicPtr, Shared, Zeroed};
use heddle_vfs::planted::{Bug, planted};
use heddle_vfs::{Attr, FileKind, Ino, Time};
use kernel::Kernel;
use pins::Pins;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Longer than any tick of the coarse clock.
const TICK_NS_MAX: i64 = 20_000_000;

/// Set in `generation` while the inode is being freed.
const DYING: u64 = 1 << 63;

/// The volatile inode.
#[repr(C, align(64))]
pub struct VolatileInode {
    generation: AtomicU64,
    mode: AtomicU64,
    owner: AtomicU64,
    /// Its log chains.
    pub chains: AtomicPtr<Chains>,
    /// A directory's buckets (`names::table`), a file's `PaperLocks` (`state::papers`).
    pub aux: AtomicU64,
    /// A directory's parent; for other kinds the extended attributes (see [`VolatileInode::xattrs`]).
    pub parent: AtomicU64,
    /// Lanes that ever counted handles of it (see `opens`).
    pub open_lanes: AtomicU64,
    /// Number of names.
    pub nlink: AtomicU32,
    /// What the kernel has of it, for callers that bypass the mount.
    pub kernel: Kernel,

    /// The bucket of a directory that needs only one (`names::table` I4).
    pub home: Bucket,

    root: AtomicU64,
    size: AtomicU64,
    change: AtomicU64,
    floor: AtomicU64,
    mtime: AtomicU64,
    ctime: AtomicU64,
    gate: AtomicU32,
    /// The low half of the mtime that the last `stat` returned.
    mtime_seen: AtomicU32,
    /// Held to move EOF, to clear or shift pages, or to change attributes or extended attributes. For a directory it is also held to grow
    /// the table, and while a name moves to another directory; in the papers' variants also to change names.
    pub eof: Latch,
    /// Held while the block of further heads is made.
    pub heads: Latch,

    inline: [Cell; INLINE_CELLS],

    /// Papers: number of open handles. `heddle`: the lane that has claimed the right to free the inode (see
    /// `opens`).
    pub opens: AtomicU32,
    /// Readers that copy without validation; freed blocks wait for them.
    pub pins: Pins,
    /// Allocated blocks.
    blocks: AtomicU64,
    /// Blocks whose freeing waits for pins (`file::deferred`).
    pub deferred: AtomicU64,
    /// First page of the last truncation or shift; in a directory the extended attributes.
    pub tombstone_page: AtomicU64,
    /// Its version; in a directory see [`VolatileInode::note_foreign_record`].
    pub tombstone_version: AtomicU64,
    /// Change count of the last record of size and attributes.
    pub attributes_change_count: AtomicU64,
    crtime: AtomicU64,
    atime: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<VolatileInode>() == 320);

// SAFETY: atomics only, no pointers, no Drop.
unsafe impl Shared for VolatileInode {}
// SAFETY: all zeros is a dead inode.
unsafe impl Zeroed for VolatileInode {
    fn zeroed() -> VolatileInode {
        VolatileInode {
            generation: AtomicU64::new(0),
            mode: AtomicU64::new(0),
            owner: AtomicU64::new(0),
            chains: AtomicPtr::new(heddle_arena::Ptr::NULL),
            aux: AtomicU64::new(0),
            parent: AtomicU64::new(0),
            open_lanes: AtomicU64::new(0),
            nlink: AtomicU32::new(0),
            kernel: Kernel::new(),
            home: Bucket::unborn(),
            root: AtomicU64::new(0),
            size: AtomicU64::new(0),
            change: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            mtime: AtomicU64::new(0),
            ctime: AtomicU64::new(0),
            gate: AtomicU32::new(0),
            mtime_seen: AtomicU32::new(0),
            eof: Latch::new(),
            heads: Latch::new(),
            inline: std::array::from_fn(|_| Cell::zeroed()),
            opens: AtomicU32::new(0),
            pins: Pins::new(),
            blocks: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
            tombstone_page: AtomicU64::new(0),
            tombstone_version: AtomicU64::new(0),
            attributes_change_count: AtomicU64::new(0),
            crtime: AtomicU64::new(0),
            atime: AtomicU64::new(0),
        }
    }
}

/// An inode and its number.
#[derive(Clone, Copy)]
pub struct InodeRef<'a> {
    /// Number.
    pub ino: Ino,
    /// The inode.
    pub volatile: &'a VolatileInode,
}

impl InodeRef<'_> {
    /// Number and generation.
    pub fn id(&self) -> InodeId {
        InodeId { ino: self.ino, generation: self.volatile.generation() }
    }
}

/// Initial values of a new inode.
#[derive(Clone, Copy, Debug)]
pub struct Birth {
    /// Its generation.
    pub generation: u64,
    /// Kind.
    pub kind: FileKind,
    /// Permission bits.
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number.
    pub rdev: u32,
    /// The value of all its times.
    pub now: Time,
}

/// Advances a time to `now`. Returns false if a later time stays. A time in the future does not stay: a
/// caller, or a clock that was set back since, has set it.
fn advance(word: &AtomicU64, now: Time) -> bool {
    // ORDERING: Relaxed, times are single words.
    let mut last = Time(word.load(Relaxed) as i64);
    loop {
        // `now` may be old: its thread read the clock before it waited for something. So if the two differ by
        // more than a tick, the clock decides.
        let later = last > now && (last.0 - now.0 < TICK_NS_MAX || last <= crate::clock::exact());
        if last == now || later && !planted(Bug::TimesGoBack) && !breaks(Breach::TimesGoBack) {
            return false;
        }
        match word.compare_exchange(last.0 as u64, now.0 as u64, Relaxed, Relaxed) {
            Ok(_) => return true,
            Err(other) => last = Time(other as i64),
        }
    }
}

impl VolatileInode {
    /// The generation; 0 while no inode lives here.
    pub fn generation(&self) -> u64 {
        // ORDERING: Acquire, pairs with the Release in `be_born`.
        self.generation.load(Acquire) & !DYING
    }

    /// Returns true if an inode lives here that is not being freed.
    pub fn lives(&self) -> bool {
        let generation = self.generation.load(Acquire);
        generation != 0 && generation & DYING == 0
    }

    /// Starts a new inode (I1). `die` has cleared all fields of the last one.
    pub fn be_born(&self, birth: &Birth) {
        self.set_mode(birth.kind, birth.perm, birth.rdev);
        self.set_owner(birth.uid, birth.gid);
        for time in [&self.crtime, &self.mtime, &self.ctime, &self.atime] {
            // ORDERING: Relaxed, published by `generation` below.
            time.store(birth.now.0 as u64, Relaxed);
        }
        // ORDERING: Release, I1.
        self.generation.store(birth.generation, Release);
    }

    /// Ends an inode. Chains, index and aux have been freed.
    pub fn die(&self) {
        // ORDERING: Release; the other fields are cleared afterwards, only for the next inode.
        self.generation.store(0, Release);
        for word in [
            &self.mode,
            &self.owner,
            &self.size,
            &self.change,
            &self.floor,
            &self.blocks,
            &self.tombstone_page,
            &self.tombstone_version,
            &self.attributes_change_count,
            &self.parent,
            &self.open_lanes,
        ] {
            // ORDERING: Relaxed, the next `be_born` publishes.
            word.store(0, Relaxed);
        }
        self.nlink.store(0, Relaxed);
        self.kernel.forget();
    }

    /// The page index.
    pub fn index(&self) -> Index<'_> {
        Index { inline: &self.inline, root: &self.root }
    }

    /// The word of its extended attributes in memory (see `xattr`); 0: it never had any. A directory has a
    /// parent and no pages. For other kinds it is the other way round, so the two share words.
    pub fn xattrs(&self) -> &AtomicU64 {
        if self.is_directory() { &self.tombstone_page } else { &self.parent }
    }

    /// Owner and group.
    pub fn owner(&self) -> (u32, u32) {
        // ORDERING: Acquire, pairs with `set_owner`.
        let owner = self.owner.load(Acquire);
        (owner as u32, (owner >> 32) as u32)
    }

    /// Changes owner and group.
    pub fn set_owner(&self, uid: u32, gid: u32) {
        // ORDERING: Release, pairs with `owner`.
        self.owner.store(u64::from(uid) | u64::from(gid) << 32, Release);
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        // ORDERING: SeqCst, O1 and O2.
        self.size.load(SeqCst)
    }

    /// Changes the size. The caller holds the EOF latch, or settles a lane that held it, or recovers an inode that nobody uses yet.
    pub fn set_size(&self, size: u64) {
        // ORDERING: SeqCst, O1 and O2.
        self.size.store(size, SeqCst);
    }

    /// Returns true if a truncation or punch is looking for cells. The caller has just locked its cells.
    pub fn gate_up(&self) -> bool {
        // O1: the lock comes before the load, also with regard to a clearer's loads, which are not SeqCst.
        fence_after_locked();
        // ORDERING: SeqCst, O1.
        self.gate.load(SeqCst) != 0
    }

    /// Raises the gate until the guard is dropped. The caller holds the EOF latch.
    pub fn raise_gate(&self) -> Gate<'_> {
        // ORDERING: SeqCst, O1.
        self.gate.store(1, SeqCst);
        // ORDERING: SeqCst, O1: pairs with the fence in `gate_up`; the loads that find links and cells are
        // only Acquire.
        fence(SeqCst);
        Gate(self)
    }

    /// Lowers the gate for a dead holder of the EOF latch.
    pub fn lower_gate(&self) {
        // ORDERING: SeqCst, O1.
        self.gate.store(0, SeqCst);
    }

    /// The version floor: a page without a cell has this version.
    pub fn floor(&self) -> Version {
        // ORDERING: SeqCst, O1: read after the cell is locked and the gate seen down.
        Version(self.floor.load(SeqCst))
    }

    /// Raises the floor.
    pub fn raise_floor(&self, to: Version) {
        self.floor.fetch_max(to.0, SeqCst);
    }

    /// Notes a durable tombstone that reaches the end of the file.
    pub fn note_tombstone(&self, page: PageNo, version: Version) {
        // ORDERING: Relaxed, the store below publishes it.
        self.tombstone_page.store(page.0, Relaxed);
        // ORDERING: Release, pairs with the Acquire in `is_covered_later`.
        self.tombstone_version.store(version.0, Release);
    }

    /// Returns true if a later tombstone that reaches the end covers all pages from this one on.
    pub fn is_covered_later(&self, page: PageNo, version: Version) -> bool {
        // ORDERING: Acquire, pairs with the Release above: the page is that tombstone's or a later one's. An older pair only keeps a record
        // longer.
        let is_later = version.0 < self.tombstone_version.load(Acquire);
        is_later && page.0 >= self.tombstone_page.load(Relaxed)
    }

    /// Counts changes of size and attributes.
    pub fn change_count(&self) -> u64 {
        // ORDERING: Acquire, pairs with `set_change_count`.
        self.change.load(Acquire)
    }

    /// Sets the change count. The caller holds the EOF latch.
    pub fn set_change_count(&self, change: u64) {
        // ORDERING: Release, pairs with `change`.
        self.change.store(change, Release);
    }

    /// The time for a writer's record: the coarse clock, or the exact one if a caller has read the mtime.
    pub fn write_time(&self) -> Time {
        // ORDERING: Relaxed, times are single words. A caller that has returned from `stat` before finds its mtime or a later one here. If
        // it finds that one, and the note of another `stat`, that `stat` has read a later mtime, and `touch` leaves that one.
        let last = Time(self.mtime.load(Relaxed) as i64);
        if self.mtime_seen.load(Relaxed) == last.0 as u32 && !breaks(Breach::StatForgotten) {
            return crate::clock::exact();
        }
        // The coarse clock lags behind the exact one by up to a tick: it must not move a time back that a
        // `stat` may have seen. The old time is loaded before the clock is read: so a thread that is delayed in
        // between cannot take an old time for a new one.
        let now = crate::clock::coarse();
        if last > now && last.0 - now.0 < TICK_NS_MAX { last } else { now }
    }

    /// As [`Self::write_time`], for a caller that has taken a time before it held the page. A change of that page since has a later one,
    /// and this write replaces its record.
    #[inline]
    pub fn write_time_since(&self, taken: Time) -> Time {
        // ORDERING: Relaxed, times are single words.
        if self.mtime.load(Relaxed) as i64 > taken.0 { self.write_time() } else { taken }
    }

    /// Returns the mtime for a caller of `stat`, and notes it, so that the next write has a later one. Nothing clears the note: it says of
    /// one time that it was read. It is stored only if it changes. Two times with equal low halves cost a write the exact clock.
    fn mtime_for_stat(&self) -> Time {
        loop {
            // ORDERING: Acquire, pairs with the Release below: the mtime loaded next is no older than the noted one.
            let seen = self.mtime_seen.load(Acquire);
            // ORDERING: Relaxed, times are single words.
            let mtime = Time(self.mtime.load(Relaxed) as i64);
            let note = mtime.0 as u32;
            // ORDERING: Release, pairs with the Acquire above. A `stat` with an older mtime cannot replace a newer one's note.
            if seen == note || self.mtime_seen.compare_exchange(seen, note, Release, Relaxed).is_ok() {
                return mtime;
            }
        }
    }

    /// Makes the time of a change visible, with one store a clock tick, not one a change. Of several
    /// concurrent changes the latest time stays, in any order of the stores.
    pub fn touch(&self, now: Time) {
        if advance(&self.mtime, now) {
            self.touch_state(now);
        }
    }

    /// As [`VolatileInode::touch`], for a change of attributes or names alone.
    pub fn touch_state(&self, now: Time) {
        advance(&self.ctime, now);
    }

    /// Sets mtime to the value that a caller gives.
    pub fn set_mtime(&self, mtime: Time) {
        // ORDERING: Relaxed, times are single words.
        self.mtime.store(mtime.0 as u64, Relaxed);
    }

    /// Sets mtime and ctime of an inode that is not in use yet.
    pub fn set_times(&self, mtime: Time, ctime: Time) {
        self.set_mtime(mtime);
        // ORDERING: Relaxed, times are single words.
        self.ctime.store(ctime.0 as u64, Relaxed);
    }

    /// Sets atime.
    pub fn set_atime(&self, atime: Time) {
        // ORDERING: Relaxed, times are single words.
        self.atime.store(atime.0 as u64, Relaxed);
    }

    /// mtime, ctime, atime, crtime. Does not count as reading the times.
    pub fn times(&self) -> [Time; 4] {
        // ORDERING: Relaxed, times are single words.
        [&self.mtime, &self.ctime, &self.atime, &self.crtime].map(|t| Time(t.load(Relaxed) as i64))
    }

    /// The attributes for `stat`; `None` if no inode lives here. `look`: the times are read, so the next
    /// change must carry an exact one.
    pub fn attr(&self, ino: Ino, look: bool) -> Option<Attr> {
        let generation = self.generation();
        let (kind, perm) = self.kind_perm()?;
        let (uid, gid) = self.owner();
        let [mtime, ctime, atime, crtime] = self.times();
        let mtime = if look { self.mtime_for_stat() } else { mtime };
        let attr = Attr {
            ino,
            generation,
            kind,
            perm,
            // ORDERING: Relaxed, a count on its own.
            nlink: self.nlink.load(Relaxed),
            uid,
            gid,
            rdev: self.rdev(),
            size_bytes: self.size(),
            blocks_512: self.blocks_counted() * 8,
            atime,
            mtime,
            ctime,
            crtime,
        };
        (generation != 0 && self.generation() == generation).then_some(attr)
    }

    /// Claims the right of this lane to free a living inode. Returns true for one caller at a time. In
    /// `heddle` the claim's lane is known before the claim is set, and until after it is cleared. So a
    /// waiter, or the lane's settler, knows the owner of the claim. (Papers: `opens` counts handles, and the
    /// owner is never needed.)
    pub fn claim(&self, lane: Option<u16>) -> bool {
        if let Some(lane) = lane
            && self.opens.compare_exchange(0, lane.into(), SeqCst, SeqCst).is_err()
        {
            return false;
        }
        let generation = self.generation.load(SeqCst);
        let free = generation == 0 || generation & DYING != 0;
        let claimed =
            !free && self.generation.compare_exchange(generation, generation | DYING, SeqCst, SeqCst).is_ok();
        if !claimed {
            self.forget_claim(lane);
        }
        claimed
    }

    /// Withdraws the claim: the inode stays alive. Only its claimer calls this.
    pub fn unclaim(&self, lane: Option<u16>) {
        self.generation.fetch_and(!DYING, SeqCst);
        self.forget_claim(lane);
    }

    /// Clears the note of the claim's owner: the inode stays alive, or was freed.
    pub fn forget_claim(&self, lane: Option<u16>) {
        if let Some(lane) = lane {
            let _theirs = self.opens.compare_exchange(lane.into(), 0, SeqCst, SeqCst);
        }
    }

    /// The lane that has claimed it; 0: none. (`heddle`)
    pub fn claimer(&self) -> u16 {
        self.opens.load(SeqCst) as u16
    }

    /// Returns true if this is the living inode of that generation. For a caller that has counted a handle
    /// before (see `opens`).
    pub fn is(&self, id: InodeId) -> bool {
        self.generation.load(SeqCst) == id.generation
    }

    /// Notes that a rename leaves a foreign record of this directory's names, with this change count of its
    /// attributes, in another directory's log. Recovery believes that record until a later attribute record is
    /// durable in this directory's own log. The caller holds the EOF latch.
    pub fn note_foreign_record(&self, change_count: u64) {
        // ORDERING: Relaxed, under the EOF latch.
        if self.tombstone_version.load(Relaxed) <= change_count {
            self.tombstone_version.fetch_max(change_count + 1, SeqCst);
        }
    }

    /// Returns true if such a record may still count: no later attribute record of this directory is durable.
    pub fn foreign_record_may_count(&self) -> bool {
        self.tombstone_version.load(SeqCst) > self.attributes_change_count.load(SeqCst)
    }

    /// The count of allocated blocks. A death in a call can leave it wrong until the next mount, also below zero.
    pub fn blocks_counted(&self) -> u64 {
        // ORDERING: Relaxed, a count on its own.
        (self.blocks.load(Relaxed) as i64).max(0) as u64
    }

    /// Adds `change`, which may be negative, to the count of allocated blocks.
    pub fn count_blocks(&self, change: i64) {
        if change != 0 {
            // ORDERING: AcqRel, a count on its own.
            self.blocks.fetch_add(change as u64, AcqRel);
        }
    }
}

/// Dropping it lowers the gate.
pub struct Gate<'a>(&'a VolatileInode);

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        // ORDERING: SeqCst, O1.
        self.0.gate.store(0, SeqCst);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
