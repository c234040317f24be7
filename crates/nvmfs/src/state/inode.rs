//! The volatile inode: 320 bytes, five lines, each written by another kind of event.
//!
//! State       line 0  who it is, and where its structures are: all that a path walk, an open and a close read. Changes when it is
//!                     made, when its attributes or links change, and once for every 64th part of the lanes that open it
//!             line 1  a small directory's bucket: a walk fetches it together with line 0, not behind it
//!             line 2  size, times, the change counter: written by who moves EOF, and once a clock tick by writers
//!             line 3  cells of the first four pages
//!             line 4  counts: blocks, who ends it, read pins; what is seldom asked for
//!             Five, an odd number: the first lines of many inodes are spread over all sets of a cache.
//! Invariants  I1  `generation` is 0 while no inode lives here; it is set last when one is made.
//!             I2  who moves EOF, or covers pages that may have no cells, holds the EOF latch; the latter also raises
//!                 `gate` before it looks for cells and lowers it after `floor` is raised.
//!             I3  bytes of mapped pages beyond EOF are zero (protocol review D11).
//! Lock order  directory latches (see `names`), EOF latch, cells.
//! Orderings   O1  gate: a writer makes and locks its cell, passes a full fence (on x86-64 the lock is one), then loads `gate` and
//!                 `size`; a truncation raises `gate`, passes a full fence, then looks for cells. One of the two sees the
//!                 other: no page is written behind the back of a truncation or punch that did not find its cell (D8).
//!             O2  `size` is stored (Release) before the maps that depend on it are published, and read (Acquire) before
//!                 and after the cells.

mod mode;
mod pins;

pub use mode::{List, Mode};
pub use pins::Phase;

use crate::ids::{InodeId, Version};
use crate::planted::{Breach, breaks};
use crate::state::bucket::Bucket;
use crate::state::cell::Cell;
use crate::state::chain::Chains;
use crate::state::index::{INLINE_CELLS, Index};
use crate::state::latch::{Latch, Spin};
use heddle_arena::sync::atomic::{AtomicU32, AtomicU64, fence};
use heddle_arena::sync::fence_behind_locked;
use heddle_arena::{AtomicPtr, Shared, Zeroed};
use heddle_range_lock::LockHead;
use heddle_vfs::planted::{Bug, planted};
use heddle_vfs::{Attr, FileKind, Ino, Time};
use pins::Pins;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release, SeqCst};

/// Longer than any tick of the coarse clock.
const TICK_NS_MAX: i64 = 20_000_000;

/// Set in `generation` while the inode is being ended.
const DYING: u64 = 1 << 63;

/// What the papers' variants keep for a file: its range lock, and the spinlocks of their write steps.
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

/// See the module.
#[repr(C, align(64))]
pub struct VInode {
    generation: AtomicU64,
    mode: AtomicU64,
    owner: AtomicU64,
    /// Its log chains.
    pub chains: AtomicPtr<Chains>,
    /// A directory's buckets (`names::table`), a file's [`PaperLocks`].
    pub aux: AtomicU64,
    /// A directory's parent; of anything else its extended attributes (see [`VInode::xattrs`]).
    pub parent: AtomicU64,
    /// Lanes that ever counted handles of it (see `opens`).
    pub open_lanes: AtomicU64,
    /// Names.
    pub nlink: AtomicU32,
    kernel_pages: AtomicU32,

    /// The bucket of a directory that needs but one (`names::table` I4).
    pub home: Bucket,

    root: AtomicU64,
    size: AtomicU64,
    change: AtomicU64,
    floor: AtomicU64,
    mtime: AtomicU64,
    ctime: AtomicU64,
    gate: AtomicU32,
    queried: AtomicU32,
    /// Held by who moves EOF or changes attributes; of a directory also by who makes its table grow, and in the papers' variants by
    /// who changes names.
    pub eof: Latch,
    /// Held while the block of further heads is made.
    pub heads: Latch,

    inline: [Cell; INLINE_CELLS],

    /// Papers: open handles. `heddle`: the lane that has claimed the inode's end (see `opens`).
    pub opens: AtomicU32,
    /// Readers that copy without validation; freed blocks wait for them.
    pub pins: Pins,
    /// Allocated blocks.
    pub blocks: AtomicU64,
    /// Blocks whose freeing waits for pins (`file::deferred`).
    pub deferred: AtomicU64,
    /// First page of the last truncation; of a directory its extended attributes.
    pub tomb_page: AtomicU64,
    /// Its version; of a directory see [`VInode::owe`].
    pub tomb_version: AtomicU64,
    /// Generation of the last record of size and attributes.
    pub state_change: AtomicU64,
    crtime: AtomicU64,
    atime: AtomicU64,
}

#[cfg(not(loom))]
const _: () = assert!(size_of::<VInode>() == 320);

// SAFETY: atomics only, no pointers, no Drop.
unsafe impl Shared for VInode {}
// SAFETY: all zeros is an inode that does not live.
unsafe impl Zeroed for VInode {
    fn zeroed() -> VInode {
        VInode {
            generation: AtomicU64::new(0),
            mode: AtomicU64::new(0),
            owner: AtomicU64::new(0),
            chains: AtomicPtr::new(heddle_arena::Ptr::NULL),
            aux: AtomicU64::new(0),
            parent: AtomicU64::new(0),
            open_lanes: AtomicU64::new(0),
            nlink: AtomicU32::new(0),
            kernel_pages: AtomicU32::new(0),
            home: Bucket::unborn(),
            root: AtomicU64::new(0),
            size: AtomicU64::new(0),
            change: AtomicU64::new(0),
            floor: AtomicU64::new(0),
            mtime: AtomicU64::new(0),
            ctime: AtomicU64::new(0),
            gate: AtomicU32::new(0),
            queried: AtomicU32::new(0),
            eof: Latch::new(),
            heads: Latch::new(),
            inline: std::array::from_fn(|_| Cell::zeroed()),
            opens: AtomicU32::new(0),
            pins: Pins::new(),
            blocks: AtomicU64::new(0),
            deferred: AtomicU64::new(0),
            tomb_page: AtomicU64::new(0),
            tomb_version: AtomicU64::new(0),
            state_change: AtomicU64::new(0),
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
    /// The rest.
    pub vi: &'a VInode,
}

impl InodeRef<'_> {
    /// Number and generation.
    pub fn id(&self) -> InodeId {
        InodeId { ino: self.ino, generation: self.vi.generation() }
    }
}

/// What a new inode starts as.
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
    /// All its times.
    pub now: Time,
}

/// Does the kernel keep pages of a file, because somebody has mapped it through the mount? Whoever works past the mount asks before a call,
/// and after a change: a change that the kernel's pages may have missed is made again through the mount (protocol review, M1).
#[derive(Clone, Copy)]
pub struct KernelPages<'f>(&'f AtomicU32, &'f VInode);

impl KernelPages<'_> {
    /// It does, now.
    #[inline]
    pub fn are_kept(self) -> bool {
        // ORDERING: SeqCst: a writer past the kernel stores, then looks here; the mount says so here, then reads for the kernel.
        // One of the two sees the other.
        self.0.load(SeqCst) != 0
    }

    /// Does a change of the content take rights of a program away, now? The mount sees to that.
    #[inline]
    pub fn changes_take_rights(self) -> bool {
        self.1.mode().gives_rights()
    }
}

/// Moves a time on to `now`; false if a later one stays. A time that has not come yet does not stay: a caller, or a clock that was
/// set back since, has put it there.
fn advance(word: &AtomicU64, now: Time) -> bool {
    // ORDERING: Relaxed, times are single words.
    let mut last = Time(word.load(Relaxed) as i64);
    loop {
        // `now` may be old: its thread took it before it waited for something. So the clock decides, where more than a tick is between.
        let later = last > now && (last.0 - now.0 < TICK_NS_MAX || last <= crate::clock::exact());
        if last == now || later && !planted(Bug::TimesGoBack) && !breaks(Breach::TimesGoBack) {
            return false;
        }
        // ORDERING: Relaxed, as above.
        match word.compare_exchange(last.0 as u64, now.0 as u64, Relaxed, Relaxed) {
            Ok(_) => return true,
            Err(other) => last = Time(other as i64),
        }
    }
}

impl VInode {
    /// 0 while nothing lives here.
    pub fn generation(&self) -> u64 {
        // ORDERING: Acquire, pairs with the Release in `be_born`.
        self.generation.load(Acquire) & !DYING
    }

    /// Is there an inode that is not being ended?
    pub fn lives(&self) -> bool {
        // ORDERING: Acquire, as above.
        let generation = self.generation.load(Acquire);
        generation != 0 && generation & DYING == 0
    }

    /// Starts a life (I1); everything of the last one has been cleared by `die`.
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

    /// Ends a life. Chains, index and aux have been freed.
    pub fn die(&self) {
        // ORDERING: Release, the rest is cleared behind it for the next life only.
        self.generation.store(0, Release);
        for word in [
            &self.mode,
            &self.owner,
            &self.size,
            &self.change,
            &self.floor,
            &self.blocks,
            &self.tomb_page,
            &self.tomb_version,
            &self.state_change,
            &self.parent,
            &self.open_lanes,
        ] {
            // ORDERING: Relaxed, the next `be_born` publishes.
            word.store(0, Relaxed);
        }
        // ORDERING: Relaxed, as above.
        self.nlink.store(0, Relaxed);
        // ORDERING: Relaxed, as above.
        self.kernel_pages.store(0, Relaxed);
    }

    /// The page index.
    pub fn index(&self) -> Index<'_> {
        Index { inline: &self.inline, root: &self.root }
    }

    /// Where its extended attributes are in memory (see `xattr`); 0: it never had any. Directories know their parent and have no
    /// pages, all else is the other way round.
    pub fn xattrs(&self) -> &AtomicU64 {
        if self.is_directory() { &self.tomb_page } else { &self.parent }
    }

    /// Owner and group.
    pub fn owner(&self) -> (u32, u32) {
        // ORDERING: Acquire, pairs with `set_owner`.
        let owner = self.owner.load(Acquire);
        (owner as u32, (owner >> 32) as u32)
    }

    /// Changes them.
    pub fn set_owner(&self, uid: u32, gid: u32) {
        // ORDERING: Release, pairs with `owner`.
        self.owner.store(u64::from(uid) | u64::from(gid) << 32, Release);
    }

    /// Where the mount says whether the kernel keeps pages of it.
    pub fn kernel_pages(&self) -> KernelPages<'_> {
        KernelPages(&self.kernel_pages, self)
    }

    /// Counts a descriptor through which the kernel keeps pages, or counts it no more.
    pub fn count_kernel_pages(&self, keeps: bool) {
        if keeps {
            self.kernel_pages.fetch_add(1, SeqCst);
        } else {
            self.kernel_pages.fetch_sub(1, SeqCst);
        }
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        // ORDERING: SeqCst, O1 and O2.
        self.size.load(SeqCst)
    }

    /// Changes the size. The caller holds the EOF latch (or the inode's only lock).
    pub fn set_size(&self, size: u64) {
        // ORDERING: SeqCst, O1 and O2.
        self.size.store(size, SeqCst);
    }

    /// Is a truncation or punch looking for cells? The caller has just locked the cells that it asks for.
    pub fn gate_up(&self) -> bool {
        // O1: the lock before the look, also against a clearer's loads, which are not SeqCst.
        fence_behind_locked();
        // ORDERING: SeqCst, O1.
        self.gate.load(SeqCst) != 0
    }

    /// Raises the gate until the guard is dropped. The caller holds the EOF latch.
    pub fn raise_gate(&self) -> Gate<'_> {
        // ORDERING: SeqCst, O1.
        self.gate.store(1, SeqCst);
        // ORDERING: SeqCst, O1: pairs with the fence in `gate_up`; the links and cells are found by loads that are only Acquire.
        fence(SeqCst);
        Gate(self)
    }

    /// Lowers it for a dead holder of the EOF latch.
    pub fn lower_gate(&self) {
        // ORDERING: SeqCst, O1.
        self.gate.store(0, SeqCst);
    }

    /// Versions of pages without cells are at least this.
    pub fn floor(&self) -> Version {
        // ORDERING: SeqCst, O1: read after the cell is locked and the gate seen down.
        Version(self.floor.load(SeqCst))
    }

    /// Raises the floor.
    pub fn raise_floor(&self, to: Version) {
        self.floor.fetch_max(to.0, SeqCst);
    }

    /// Generation of size and attributes.
    pub fn change(&self) -> u64 {
        // ORDERING: Acquire, pairs with `set_change`.
        self.change.load(Acquire)
    }

    /// Sets it. The caller holds the EOF latch.
    pub fn set_change(&self, change: u64) {
        // ORDERING: Release, pairs with `change`.
        self.change.store(change, Release);
    }

    /// The time a writer puts into its record: the coarse clock, or the exact one if somebody has looked since.
    pub fn write_time(&self) -> Time {
        // ORDERING: Relaxed, a stat that comes later than this load is a stat after the write.
        if self.queried.load(Relaxed) != 0 && !breaks(Breach::StatForgotten) {
            return crate::clock::exact();
        }
        // The coarse clock lags behind the exact one by up to a tick: it must not take a time back that a `stat` may have seen.
        // ORDERING: Relaxed, times are single words.
        // First the time that is there, then the clock: a thread that is held up between them takes no old time for a new one.
        let last = Time(self.mtime.load(Relaxed) as i64);
        let now = crate::clock::coarse();
        if last > now && last.0 - now.0 < TICK_NS_MAX { last } else { now }
    }

    /// Makes a change's time visible: one store a clock tick, not one a change. Of several at once the latest stays, however late the
    /// others come.
    pub fn touch(&self, now: Time) {
        if advance(&self.mtime, now) {
            self.touch_state(now);
            // ORDERING: Relaxed, as in `write_time`.
            if self.queried.load(Relaxed) != 0 {
                // ORDERING: Relaxed, as above.
                self.queried.store(0, Relaxed);
            }
        }
    }

    /// As [`VInode::touch`], for a change of attributes or names alone.
    pub fn touch_state(&self, now: Time) {
        advance(&self.ctime, now);
    }

    /// Sets mtime to what a caller says.
    pub fn set_mtime(&self, mtime: Time) {
        // ORDERING: Relaxed, times are single words.
        self.mtime.store(mtime.0 as u64, Relaxed);
    }

    /// Sets mtime and ctime of an inode that nobody uses yet.
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

    /// mtime, ctime, atime, crtime as they are; does not count as a look.
    pub fn times(&self) -> [Time; 4] {
        // ORDERING: Relaxed, times are single words.
        [&self.mtime, &self.ctime, &self.atime, &self.crtime].map(|t| Time(t.load(Relaxed) as i64))
    }

    /// What `stat` tells. `None` if nothing lives here. `look`: its times are looked at, so the next change will carry an exact one.
    pub fn attr(&self, ino: Ino, look: bool) -> Option<Attr> {
        let generation = self.generation();
        let (kind, perm) = self.kind_perm()?;
        let (uid, gid) = self.owner();
        let [mtime, ctime, atime, crtime] = self.times();
        // ORDERING: Relaxed, as in `write_time`; stored only if it changes anything.
        if look && self.queried.load(Relaxed) == 0 {
            // ORDERING: Relaxed, as above.
            self.queried.store(1, Relaxed);
        }
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
            // ORDERING: Relaxed, a count on its own.
            blocks_512: self.blocks.load(Relaxed) * 8,
            atime,
            mtime,
            ctime,
            crtime,
        };
        (generation != 0 && self.generation() == generation).then_some(attr)
    }

    /// Marks a living inode as one that this lane may end; true for one caller at a time. In `heddle` the lane is known before the mark is
    /// there, until after it is gone: whoever waits, or settles the lane, knows whose it is. (Papers: their `opens` counts, and nobody
    /// asks.)
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

    /// Takes the mark back: it lives on. For who has claimed it.
    pub fn unclaim(&self, lane: Option<u16>) {
        self.generation.fetch_and(!DYING, SeqCst);
        self.forget_claim(lane);
    }

    /// Whose mark it was is nobody's business any more: it lives on, or has ended.
    pub fn forget_claim(&self, lane: Option<u16>) {
        if let Some(lane) = lane {
            let _theirs = self.opens.compare_exchange(lane.into(), 0, SeqCst, SeqCst);
        }
    }

    /// The lane that may end it; 0: none. (`heddle`)
    pub fn claimer(&self) -> u16 {
        self.opens.load(SeqCst) as u16
    }

    /// Is this the living inode of that generation? For who has counted a handle before (see `opens`).
    pub fn is(&self, id: InodeId) -> bool {
        self.generation.load(SeqCst) == id.generation
    }

    /// A rename leaves a record of this directory's names, of this generation of its attributes, in another directory's log: as
    /// long as no later state is durable in its own, recovery believes that record. The caller holds the EOF latch.
    pub fn owe(&self, generation: u64) {
        // ORDERING: Relaxed, under the EOF latch.
        if self.tomb_version.load(Relaxed) <= generation {
            self.tomb_version.fetch_max(generation + 1, SeqCst);
        }
    }

    /// Is there such a record, as far as this directory's log tells?
    pub fn owes(&self) -> bool {
        self.tomb_version.load(SeqCst) > self.state_change.load(SeqCst)
    }

    /// Adds to (or, negative, takes from) the count of allocated blocks.
    pub fn count_blocks(&self, change: i64) {
        if change != 0 {
            // ORDERING: AcqRel, a count on its own.
            self.blocks.fetch_add(change as u64, AcqRel);
        }
    }
}

/// Lowers the gate when dropped.
pub struct Gate<'a>(&'a VInode);

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        // ORDERING: SeqCst, O1.
        self.0.gate.store(0, SeqCst);
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
