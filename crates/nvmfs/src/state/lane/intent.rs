//! What the holder of a lane is about to do: notes for the settler of the lane if the holder dies.

use super::Extents;
use crate::ids::{BlockNo, InodeId, PageNo};
use crate::state::inode::Phase;
use heddle_arena::sync::OwnedU64;
use heddle_arena::sync::atomic::AtomicU64;
use heddle_vfs::{Ino, SetTime, Time};
use std::sync::atomic::Ordering::{Relaxed, Release, SeqCst};

/// Latches that a lane can hold at once.
pub const LATCHES: usize = 8;
/// Directories of which a lane can hold buckets at once.
const DIRS: usize = 4;
/// Number of extents of an operation under way that a settler can return.
pub const TAKEN_EXTENTS: usize = 16;

/// What a lane is about to take, noted before it takes it (docs/processes.md). The holder owns the words. The settler of the lane
/// reads them after the holder's death. The table in docs/processes.md names others that read a word.
#[repr(C, align(64))]
pub struct Intent {
    pub(super) canary: AtomicU64,
    /// Process and thread of the holder in their own numbering, for messages; 0: none.
    pub holder: AtomicU64,
    /// 1 while it is inside a call.
    pub inside: AtomicU64,
    /// The lane that is taking this one's resources back; 0: none (`reclaim`).
    pub reclaimer: AtomicU64,
    /// Inode of which it may hold cells.
    ino: OwnedU64,
    first: OwnedU64,
    end: OwnedU64,
    /// Inode in whose log a transaction was begun.
    log_ino: OwnedU64,
    /// Log page and slot where it begins; 0: there is none, or its effects are visible.
    log: OwnedU64,
    /// Inode that it may have pinned, and the progress of that.
    pin: AtomicU64,
    /// The same for the previous transaction, in another inode's log: a rename across directories writes two.
    before_ino: OwnedU64,
    before: OwnedU64,
    /// What the attributes of the transaction do to mtime (`note_mtime`).
    mtime: OwnedU64,
    /// Inode that it is making and that has no name yet; and its generation.
    creating: [AtomicU64; 2],
    /// Inode that it is freeing, and the progress of that.
    freeing: AtomicU64,
    /// An inode whose name is removed, durably, and may still be counted; and its generation.
    unlinking: [AtomicU64; 2],
    /// Directories of which it may hold buckets.
    dirs: [OwnedU64; DIRS],
    /// The table in which it locked buckets last, or was about to. The memory may have become another
    /// directory's just before.
    table: OwnedU64,
    /// Latches that it may hold.
    latches: [AtomicU64; LATCHES],
    /// Blocks of the operation under way.
    pub taken: Extents<TAKEN_EXTENTS>,
}

/// Progress in freeing an inode.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Freeing {
    /// No inode is being freed.
    None = 0,
    /// The inode may or may not be claimed.
    Asked = 1,
    /// It is claimed, and may stay alive.
    Claimed = 2,
    /// Its blocks are being freed.
    Begun = 3,
}

/// Progress in pinning or unpinning.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pinning {
    /// No pin.
    None,
    /// The pin may or may not be counted.
    Doubtful(u64),
    /// The pin is counted, in this phase.
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
            reclaimer: AtomicU64::new(0),
            ino: OwnedU64::new(0),
            first: OwnedU64::new(0),
            end: OwnedU64::new(0),
            log_ino: OwnedU64::new(0),
            log: OwnedU64::new(0),
            before_ino: OwnedU64::new(0),
            before: OwnedU64::new(0),
            mtime: OwnedU64::new(0),
            creating: std::array::from_fn(|_| AtomicU64::new(0)),
            freeing: AtomicU64::new(0),
            unlinking: std::array::from_fn(|_| AtomicU64::new(0)),
            dirs: std::array::from_fn(|_| OwnedU64::new(0)),
            table: OwnedU64::new(0),
            pin: AtomicU64::new(0),
            latches: std::array::from_fn(|_| AtomicU64::new(0)),
            taken: Extents::new(),
        }
    }

    /// Notes that cells of these pages will be locked.
    #[inline]
    pub(super) fn pages(&self, ino: u64, first: PageNo, end: PageNo) {
        // The Release of `begin` follows.
        self.ino.set(ino);
        self.first.set(first.0);
        self.end.set(end.0);
    }

    /// Inode and pages of the cells that it may hold.
    pub fn cells(&self) -> (u64, PageNo, PageNo) {
        (self.ino.get(), PageNo(self.first.get()), PageNo(self.end.get()))
    }

    /// Notes that a transaction will be written from this slot on.
    #[inline]
    pub fn logs(&self, ino: u64, page: BlockNo, slot: u32) {
        let (earlier, at) = (self.log_ino.get(), self.log.get());
        if at != 0 && earlier != ino {
            self.before_ino.set(earlier);
            // Before it is overwritten.
            self.before.publish(at);
        }
        self.log_ino.set(ino);
        // Before the first line of the transaction.
        self.log.publish(page.0 << 6 | u64::from(slot));
    }

    /// Notes that the effects of the transaction are visible.
    #[inline]
    pub fn logged(&self) {
        // After the effects.
        self.log.publish(0);
        if self.before.get() != 0 {
            self.before.publish(0);
        }
    }

    /// As [`Intent::log`], for the previous transaction.
    pub fn log_before(&self) -> Option<(u64, BlockNo, u32)> {
        let (ino, at) = (self.before_ino.get(), self.before.get());
        (at != 0).then_some((ino, BlockNo(at >> 6), (at & 63) as u32))
    }

    /// Notes what the next record of attributes does to mtime. The record has the time alone, and a writer may advance it meanwhile.
    pub fn note_mtime(&self, change: Option<SetTime>) {
        let word = match change {
            None => 0,
            Some(SetTime::Now) => 1,
            Some(SetTime::At(_)) => 2,
        };
        // `logs` follows, and publishes.
        self.mtime.set(word);
    }

    /// What a record of attributes with this mtime does to that of the inode.
    pub fn mtime_change(&self, recorded: Time) -> Option<SetTime> {
        match self.mtime.get() {
            1 => Some(SetTime::Now),
            2 => Some(SetTime::At(recorded)),
            _ => None,
        }
    }

    /// Notes that buckets of this directory will be locked.
    pub fn note_dir(&self, ino: u64) {
        if self.dirs.iter().any(|dir| dir.get() == ino) {
            return;
        }
        if let Some(free) = self.dirs.iter().find(|dir| dir.get() == 0) {
            // Before the first bucket is locked.
            free.publish(ino);
        }
    }

    /// Directories of which it may hold buckets.
    pub fn dirs(&self) -> impl Iterator<Item = u64> {
        self.dirs.iter().map(OwnedU64::get).filter(|ino| *ino != 0)
    }

    /// Notes that buckets of the table at this word will be locked.
    #[inline]
    pub fn note_table(&self, word: u64) {
        self.table.publish(word);
    }

    /// The word of the table in which it locked buckets last, or was about to; 0: none.
    pub fn table(&self) -> u64 {
        self.table.get()
    }

    /// Called at the end of a call: no bucket is held.
    #[inline]
    pub fn forget_dirs(&self) {
        // The places are filled from the first on.
        if self.dirs[0].get() != 0 {
            // After the unlocks.
            self.dirs.iter().for_each(|dir| dir.publish(0));
        }
    }

    /// Notes that an inode is being freed, and the progress.
    pub fn note_freeing(&self, ino: u64, how: Freeing) {
        // ORDERING: Release, after earlier stores. The claim that follows is a locked SeqCst operation, which
        // this store cannot pass. Nothing stronger: a locked store here would wait until the slot that was
        // just zeroed is on media.
        self.freeing.store(ino << 2 | how as u64, Release);
    }

    /// Notes an inode that has lost a name which its link count still includes.
    pub fn note_unlinking(&self, inode: InodeId) {
        self.unlinking[1].store(inode.generation, Release); // ORDERING: Release, as below.
        // ORDERING: Release, after the log record, and before the change of the bucket.
        self.unlinking[0].store(inode.ino.0 << 1, Release);
    }

    /// Notes that its count is about to be lowered. `last`: to zero, which the settler of this lane can
    /// check.
    pub fn note_lowering(&self, last: Option<InodeId>) {
        if let Some(inode) = last {
            self.unlinking[1].store(inode.generation, Release);
        }
        // ORDERING: Release; the count is lowered by a locked operation.
        self.unlinking[0].store(last.map_or(0, |inode| inode.ino.0 << 1 | 1), Release);
    }

    /// The inode that has lost a name. True: it was the last name, and the count may have been lowered.
    pub fn unlinking(&self) -> Option<(InodeId, bool)> {
        let word = self.unlinking[0].load(SeqCst);
        let inode = InodeId { ino: Ino(word >> 1), generation: self.unlinking[1].load(SeqCst) };
        (word != 0).then_some((inode, word & 1 != 0))
    }

    /// Notes the inode that is being made and has no name yet.
    pub fn note_creating(&self, inode: InodeId) {
        self.creating[1].store(inode.generation, Release); // ORDERING: Release, as below.
        // ORDERING: Release, after earlier stores; the stores that follow (`be_born`, the name) are Release
        // at least.
        self.creating[0].store(inode.ino.0 << 1, Release);
    }

    /// Notes a file without a name that was counted as having its first one, which is not durable yet.
    pub fn note_naming(&self, inode: InodeId) {
        self.creating[1].store(inode.generation, Release);
        self.creating[0].store(inode.ino.0 << 1 | 1, Release);
    }

    /// Notes that the inode has its name, or is given up.
    pub fn created(&self) {
        self.creating[0].store(0, Release); // ORDERING: Release, after the name's record or the end.
    }

    /// The inode that has no name yet. True: it was not made by this call, which gives it its first name.
    pub fn creating(&self) -> Option<(InodeId, bool)> {
        let word = self.creating[0].load(SeqCst);
        let inode = InodeId { ino: Ino(word >> 1), generation: self.creating[1].load(SeqCst) };
        (word != 0).then_some((inode, word & 1 != 0))
    }

    /// The inode that is being freed.
    pub fn freeing(&self) -> Option<(u64, Freeing)> {
        let word = self.freeing.load(SeqCst);
        match word & 3 {
            1 => Some((word >> 2, Freeing::Asked)),
            2 => Some((word >> 2, Freeing::Claimed)),
            3 => Some((word >> 2, Freeing::Begun)),
            _ => None,
        }
    }

    /// Inode, page and slot of a transaction whose effects may not be visible.
    pub fn log(&self) -> Option<(u64, BlockNo, u32)> {
        let (ino, at) = (self.log_ino.get(), self.log.get());
        (at != 0).then_some((ino, BlockNo(at >> 6), (at & 63) as u32))
    }

    /// Notes that a latch will be taken. Returns the place of the note, or `None` if all places are used.
    pub fn note_latch(&self, at: u64) -> Option<&AtomicU64> {
        // ORDERING: Relaxed load, only the holder writes it; Release, before the latch is taken.
        let place = self.latches.iter().find(|place| place.load(Relaxed) == 0)?;
        place.store(at, Release);
        Some(place)
    }

    /// Positions of the latches that it may hold.
    pub fn latches(&self) -> impl Iterator<Item = u64> {
        // ORDERING: Relaxed, the holder is dead; whoever got its lease sees all of its stores.
        self.latches.iter().map(|place| place.load(Relaxed)).filter(|at| *at != 0)
    }

    /// Clears these notes.
    pub fn forget_latches(&self) {
        for place in &self.latches {
            place.store(0, Release); // ORDERING: Release, after their release.
        }
    }

    /// Notes that a pin will be counted or returned.
    pub fn pinning(&self, ino: u64) {
        // ORDERING: Release, after earlier stores. The count that follows is a locked SeqCst operation, which
        // this store cannot pass.
        self.pin.store(ino << 2, Release);
    }

    /// Notes that a pin is counted.
    pub fn pinned(&self, ino: u64, phase: Phase) {
        self.pin.store(ino << 2 | u64::from(phase.0) << 1 | 1, Release); // ORDERING: Release, after the count.
    }

    /// Notes that there is no pin.
    pub fn unpinned(&self) {
        // ORDERING: Release, after the pin was returned.
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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const INODE: InodeId = InodeId { ino: Ino((1 << 40) - 1), generation: 1 << 61 };

    #[test]
    fn what_a_lane_was_writing_is_read_back_until_it_is_visible() {
        let intent = Intent::new();
        assert_eq!((intent.log(), intent.log_before()), (None, None));
        intent.logs(5, BlockNo(9), 63);
        intent.logs(5, BlockNo(9), 1);
        assert_eq!((intent.log(), intent.log_before()), (Some((5, BlockNo(9), 1)), None), "of one inode");
        intent.logs(6, BlockNo(1 << 39), 2);
        assert_eq!(intent.log(), Some((6, BlockNo(1 << 39), 2)));
        assert_eq!(intent.log_before(), Some((5, BlockNo(9), 1)));
        intent.logged();
        assert_eq!((intent.log(), intent.log_before()), (None, None));
        intent.logs(7, BlockNo(3), 3);
        assert_eq!(intent.log_before(), None, "what was logged is visible");
        intent.pages(8, PageNo(4), PageNo(6));
        assert_eq!(intent.cells(), (8, PageNo(4), PageNo(6)));
    }

    #[test]
    fn directories_tables_and_latches_are_noted_once_while_there_is_room() {
        let intent = Intent::new();
        [5, 6, 5, 7, 6].iter().for_each(|dir| intent.note_dir(*dir));
        assert_eq!(intent.dirs().collect::<Vec<_>>(), [5, 6, 7]);
        [8, 9, 8].iter().for_each(|dir| intent.note_dir(*dir));
        assert_eq!(intent.dirs().collect::<Vec<_>>(), [5, 6, 7, 8]);
        intent.forget_dirs();
        assert_eq!(intent.dirs().count(), 0);
        intent.note_table(77);
        assert_eq!(intent.table(), 77);
        for at in 1..=LATCHES as u64 {
            assert_eq!(intent.note_latch(at).map(|place| place.load(SeqCst)), Some(at));
        }
        assert!(intent.note_latch(99).is_none());
        intent.latches[2].store(0, SeqCst);
        assert_eq!(intent.latches().collect::<Vec<_>>(), [1, 2, 4, 5, 6, 7, 8]);
        assert!(intent.note_latch(99).is_some_and(|place| std::ptr::eq(place, &intent.latches[2])));
        intent.forget_latches();
        assert_eq!(intent.latches().count(), 0);
    }

    #[test]
    fn a_change_of_mtime_is_noted_without_its_time() {
        let intent = Intent::new();
        let recorded = Time(77);
        assert_eq!(intent.mtime_change(recorded), None);
        for (change, read) in [
            (Some(SetTime::Now), Some(SetTime::Now)),
            (Some(SetTime::At(Time(5))), Some(SetTime::At(recorded))),
            (None, None),
        ] {
            intent.note_mtime(change);
            assert_eq!(intent.mtime_change(recorded), read, "{change:?}");
        }
    }

    #[test]
    fn how_far_an_inode_has_gone_is_read_back() {
        let intent = Intent::new();
        assert_eq!((intent.freeing(), intent.unlinking(), intent.pin()), (None, None, Pinning::None));
        for how in [Freeing::Asked, Freeing::Claimed, Freeing::Begun] {
            intent.note_freeing(INODE.ino.0, how);
            assert_eq!(intent.freeing(), Some((INODE.ino.0, how)));
        }
        intent.note_freeing(9, Freeing::None);
        assert_eq!(intent.freeing(), None);
        intent.note_unlinking(INODE);
        assert_eq!(intent.unlinking(), Some((INODE, false)));
        intent.note_lowering(Some(INODE));
        assert_eq!(intent.unlinking(), Some((INODE, true)));
        intent.note_lowering(None);
        assert_eq!(intent.unlinking(), None);
        assert_eq!(intent.creating(), None);
        intent.note_creating(INODE);
        assert_eq!(intent.creating(), Some((INODE, false)));
        intent.note_naming(INODE);
        assert_eq!(intent.creating(), Some((INODE, true)));
        intent.created();
        assert_eq!(intent.creating(), None);
        intent.pinning(1 << 40);
        assert_eq!((intent.pin(), intent.pin().ino()), (Pinning::Doubtful(1 << 40), Some(1 << 40)));
        for phase in [Phase(0), Phase(1)] {
            intent.pinned(5, phase);
            assert_eq!((intent.pin(), intent.pin().ino()), (Pinning::Done(5, phase), Some(5)));
        }
        intent.unpinned();
        assert_eq!((intent.pin(), intent.pin().ino()), (Pinning::None, None));
    }
}
