//! What the holder of a lane is about to do, in its own words: for whoever settles the lane if the holder dies.

use super::Extents;
use crate::ids::{BlockNo, InodeId, PageNo};
use crate::state::inode::Phase;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_vfs::Ino;
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// Latches that a lane can hold at once.
pub const LATCHES: usize = 8;
/// Directories of which a lane can hold buckets at once.
const DIRS: usize = 4;
/// Extents of an operation under way that a settler can give back.
pub const TAKEN_EXTENTS: usize = 16;

/// What a lane is about to take, said before it takes it (docs/processes.md). Its holder writes it with plain stores; nobody reads it but
/// who settles the lane after the holder's death.
#[repr(C, align(64))]
pub struct Intent {
    pub(super) canary: AtomicU64,
    /// Process and thread of the holder as they number themselves, for people; 0: nobody.
    pub holder: AtomicU64,
    /// 1: it is inside a call.
    pub inside: AtomicU64,
    /// The lane that takes back what this one holds; 0: none does (`take_back`).
    pub robbed: AtomicU64,
    /// Inode whose cells it may hold.
    ino: AtomicU64,
    first: AtomicU64,
    end: AtomicU64,
    /// Inode in whose log a transaction was begun.
    log_ino: AtomicU64,
    /// Log page and slot where it begins; 0: none, or its effects are visible.
    log: AtomicU64,
    /// Inode that it may have pinned, and how far it got.
    pin: AtomicU64,
    /// The same of the transaction before, in another inode's log: a rename across directories writes two.
    before_ino: AtomicU64,
    before: AtomicU64,
    /// Inode that it makes and that has no name yet.
    pub born: AtomicU64,
    /// Inode that it ends, and how far it got.
    ending: AtomicU64,
    /// An inode whose name is gone, durably, and may be counted still; and its generation.
    losing: [AtomicU64; 2],
    /// Directories of which it may hold buckets.
    dirs: [AtomicU64; DIRS],
    /// The table of which it locked buckets last, or was about to: it may have become another directory's just before.
    table: AtomicU64,
    /// Latches that it may hold.
    latches: [AtomicU64; LATCHES],
    /// Blocks of the operation under way.
    pub taken: Extents<TAKEN_EXTENTS>,
}

/// How far the end of an inode got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ending {
    /// None is ended.
    None = 0,
    /// It may or may not be claimed.
    Asked = 1,
    /// It is claimed, and may live on.
    Claimed = 2,
    /// Its blocks are being freed.
    Begun = 3,
}

/// How far pinning or unpinning got.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pinning {
    /// No pin.
    None,
    /// It may or may not be counted.
    Doubtful(u64),
    /// It is counted, in this phase.
    Done(u64, Phase),
}

impl Pinning {
    /// The inode.
    pub fn ino(self) -> Option<u64> {
        match self {
            Pinning::None => None,
            Pinning::Doubtful(ino) | Pinning::Done(ino, _) => Some(ino),
        }
    }
}

impl Intent {
    pub(super) fn new() -> Intent {
        Intent {
            canary: AtomicU64::new(0),
            holder: AtomicU64::new(0),
            inside: AtomicU64::new(0),
            robbed: AtomicU64::new(0),
            ino: AtomicU64::new(0),
            first: AtomicU64::new(0),
            end: AtomicU64::new(0),
            log_ino: AtomicU64::new(0),
            log: AtomicU64::new(0),
            before_ino: AtomicU64::new(0),
            before: AtomicU64::new(0),
            born: AtomicU64::new(0),
            ending: AtomicU64::new(0),
            losing: std::array::from_fn(|_| AtomicU64::new(0)),
            dirs: std::array::from_fn(|_| AtomicU64::new(0)),
            table: AtomicU64::new(0),
            pin: AtomicU64::new(0),
            latches: std::array::from_fn(|_| AtomicU64::new(0)),
            taken: Extents::new(),
        }
    }

    /// Cells of these pages are going to be locked.
    #[inline]
    pub(super) fn pages(&self, ino: u64, first: PageNo, end: PageNo) {
        // ORDERING: Relaxed, before the Release of `begin`.
        self.ino.store(ino, Relaxed);
        self.first.store(first.0, Relaxed); // ORDERING: Relaxed, as above.
        self.end.store(end.0, Relaxed); // ORDERING: Relaxed, as above.
    }

    /// Inode and pages of the cells that it may hold.
    pub fn cells(&self) -> (u64, PageNo, PageNo) {
        // ORDERING: Relaxed, the holder is dead; whoever got its lease sees all of its stores.
        let [ino, first, end] = [&self.ino, &self.first, &self.end].map(|w| w.load(Relaxed));
        (ino, PageNo(first), PageNo(end))
    }

    /// A transaction is going to be written from this slot on.
    #[inline]
    pub fn logs(&self, ino: u64, page: BlockNo, slot: u32) {
        // ORDERING: Relaxed, the holder's own.
        let (earlier, at) = (self.log_ino.load(Relaxed), self.log.load(Relaxed));
        if at != 0 && earlier != ino {
            self.before_ino.store(earlier, Relaxed); // ORDERING: Relaxed, before the Release below.
            self.before.store(at, Release); // ORDERING: Release, before it is overwritten.
        }
        // ORDERING: Relaxed, published by the Release below.
        self.log_ino.store(ino, Relaxed);
        // ORDERING: Release, before the first line of the transaction.
        self.log.store(page.0 << 6 | u64::from(slot), Release);
    }

    /// What the transaction did is visible.
    #[inline]
    pub fn logged(&self) {
        // ORDERING: Release, after the effects.
        self.log.store(0, Release);
        // ORDERING: Relaxed load, the holder's own.
        if self.before.load(Relaxed) != 0 {
            self.before.store(0, Release); // ORDERING: Release, after the effects.
        }
    }

    /// As [`Intent::log`], of the transaction before.
    pub fn log_before(&self) -> Option<(u64, BlockNo, u32)> {
        // ORDERING: Relaxed, as in `cells`.
        let (ino, at) = (self.before_ino.load(Relaxed), self.before.load(Relaxed));
        (at != 0).then_some((ino, BlockNo(at >> 6), (at & 63) as u32))
    }

    /// Buckets of this directory are going to be locked.
    pub fn note_dir(&self, ino: u64) {
        // ORDERING: Relaxed loads, the holder's own.
        if self.dirs.iter().any(|dir| dir.load(Relaxed) == ino) {
            return;
        }
        if let Some(free) = self.dirs.iter().find(|dir| dir.load(Relaxed) == 0) {
            free.store(ino, Release); // ORDERING: Release, before the first bucket is locked.
        }
    }

    /// Directories of which it may hold buckets.
    pub fn dirs(&self) -> impl Iterator<Item = u64> {
        // ORDERING: Relaxed, as in `cells`.
        self.dirs.iter().map(|dir| dir.load(Relaxed)).filter(|ino| *ino != 0)
    }

    /// Buckets of the table that this word leads to are going to be locked.
    #[inline]
    pub fn note_table(&self, word: u64) {
        // ORDERING: Release, before they are locked.
        self.table.store(word, Release);
    }

    /// Where the table is of which it locked buckets last, or was about to; 0: nowhere.
    pub fn table(&self) -> u64 {
        // ORDERING: Relaxed, as in `cells`.
        self.table.load(Relaxed)
    }

    /// The end of a call: no bucket is held.
    #[inline]
    pub fn forget_dirs(&self) {
        // ORDERING: Relaxed load, the holder's own; they are filled from the first on.
        if self.dirs[0].load(Relaxed) != 0 {
            self.dirs.iter().for_each(|dir| dir.store(0, Release)); // ORDERING: Release, after the unlocks.
        }
    }

    /// An inode is being ended, as far as `how`.
    pub fn ends(&self, ino: u64, how: Ending) {
        // ORDERING: Release, after what came before; the claim that follows is a locked SeqCst operation, which it cannot pass. No more:
        // a locked store here would wait for the slot that was just zeroed on the media.
        self.ending.store(ino << 2 | how as u64, Release);
    }

    /// Says which inode has lost a name that its count of links still has.
    pub fn loses(&self, inode: InodeId) {
        self.losing[1].store(inode.generation, Release); // ORDERING: Release, as below.
        // ORDERING: Release, after the log says so, and before the change of the bucket.
        self.losing[0].store(inode.ino.0 << 1, Release);
    }

    /// Its count is about to be lowered; `last`: to nothing, as whoever settles this lane can see.
    pub fn lowers(&self, last: Option<InodeId>) {
        if let Some(inode) = last {
            self.losing[1].store(inode.generation, Release); // ORDERING: Release, as above.
        }
        // ORDERING: Release; the count is lowered by a locked operation.
        self.losing[0].store(last.map_or(0, |inode| inode.ino.0 << 1 | 1), Release);
    }

    /// The inode that has lost a name; true: its last, and its count may have been lowered.
    pub fn losing(&self) -> Option<(InodeId, bool)> {
        let word = self.losing[0].load(SeqCst);
        let inode = InodeId { ino: Ino(word >> 1), generation: self.losing[1].load(SeqCst) };
        (word != 0).then_some((inode, word & 1 != 0))
    }

    /// Says which inode it makes (0: none) that has no name yet.
    pub fn bears(&self, ino: u64) {
        // ORDERING: Release, after what came before; what follows (`be_born`, the name) is stored with Release at least.
        self.born.store(ino, Release);
    }

    /// The inode that is being ended.
    pub fn ending(&self) -> Option<(u64, Ending)> {
        let word = self.ending.load(SeqCst);
        match word & 3 {
            1 => Some((word >> 2, Ending::Asked)),
            2 => Some((word >> 2, Ending::Claimed)),
            3 => Some((word >> 2, Ending::Begun)),
            _ => None,
        }
    }

    /// Inode, page and slot of a transaction whose effects may not be visible.
    pub fn log(&self) -> Option<(u64, BlockNo, u32)> {
        // ORDERING: Relaxed, as in `cells`.
        let (ino, at) = (self.log_ino.load(Relaxed), self.log.load(Relaxed));
        (at != 0).then_some((ino, BlockNo(at >> 6), (at & 63) as u32))
    }

    /// Says that a latch is going to be taken; where that was said, `None` if there is no place.
    pub fn note_latch(&self, at: u64) -> Option<&AtomicU64> {
        // ORDERING: Relaxed load, the holder's own; Release, before the latch is taken.
        let place = self.latches.iter().find(|place| place.load(Relaxed) == 0)?;
        place.store(at, Release); // ORDERING: Release, as above.
        Some(place)
    }

    /// Places of latches that it may hold.
    pub fn latches(&self) -> impl Iterator<Item = u64> {
        // ORDERING: Relaxed, as in `cells`.
        self.latches.iter().map(|place| place.load(Relaxed)).filter(|at| *at != 0)
    }

    /// Forgets them.
    pub fn forget_latches(&self) {
        for place in &self.latches {
            place.store(0, Release); // ORDERING: Release, after their release.
        }
    }

    /// A pin is going to be counted or taken back.
    pub fn pinning(&self, ino: u64) {
        // ORDERING: Release, after what came before; the count that follows is a locked SeqCst operation, which it cannot pass.
        self.pin.store(ino << 2, Release);
    }

    /// A pin has been counted.
    pub fn pinned(&self, ino: u64, phase: Phase) {
        self.pin.store(ino << 2 | u64::from(phase.0) << 1 | 1, Release); // ORDERING: Release, after the count.
    }

    /// No pin any more.
    pub fn unpinned(&self) {
        // ORDERING: Release, after the pin was given back.
        self.pin.store(0, Release);
    }

    /// The pin.
    pub fn pin(&self) -> Pinning {
        match self.pin.load(SeqCst) {
            0 => Pinning::None,
            word if word & 1 == 0 => Pinning::Doubtful(word >> 2),
            word => Pinning::Done(word >> 2, Phase((word >> 1 & 1) as u32)),
        }
    }
}
