//! Bugs planted on purpose. The crash rig must detect every one of them; otherwise its silence proves
//! nothing.
//!
//! With the feature `planted` one bug at a time can be chosen at run time ([`plant`]), for the whole process.
//! Without the feature every question here is `false` at compile time, and costs nothing.
//!
//! Source      root causes of the known bugs of NOVA, PMFS, WineFS, SplitFS and NOVA-Fortis (lists of Chipmunk and Vinter), and
//!             the hazards D1 to D20 of the protocol.

use crate::region::Region;

mod met;

pub use met::Met;
pub(crate) use met::met;
#[cfg(feature = "planted")]
pub use met::{Counts, take as take_counts};

macro_rules! bugs {
    ($($(#[doc = $story:literal])+ $name:ident = $text:literal,)*) => {
        /// The bugs that can be planted.
        #[cfg_attr(not(feature = "planted"), allow(dead_code, reason = "places that ask for it are compiled with the feature alone"))]
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum Bug { $($(#[doc = $story])+ $name,)* }

        #[cfg(feature = "planted")]
        impl Bug {
            /// All of them.
            pub const ALL: &[Bug] = &[$(Bug::$name),*];

            /// Its name on the command line and in tables.
            pub fn name(self) -> &'static str {
                match self { $(Bug::$name => $text,)* }
            }

            /// A description, with the system that had the bug.
            pub fn story(self) -> &'static str {
                match self { $(Bug::$name => concat!($($story),+),)* }
            }
        }
    };
}

bugs! {
    /// The fence between data and the record that names it is missing (PMFS 2, WineFS 2).
    DataFenceMissing = "data-fence-missing",
    /// The record is durable before its data is written (entry before data).
    EntryBeforeData = "entry-before-data",
    /// The last fence of an operation is missing: it returns too early.
    CommitFenceMissing = "commit-fence-missing",
    /// `nova`: entry and tail under one fence (NOVA 3).
    TailBeforeEntryFence = "tail-before-entry-fence",
    /// `nova-*`: mark and entry under one fence.
    MarkBeforeEntryFence = "mark-before-entry-fence",
    /// `nova`: the fence after the tail is missing.
    TailFenceMissing = "tail-fence-missing",
    /// `nova-*`: the fence after the mark is missing.
    MarkFenceMissing = "mark-fence-missing",
    /// A log page is linked before its header is fenced (D4a).
    PageLinkedBeforeHeader = "page-linked-before-header",
    /// A log page is not zeroed before it is used (D4a).
    PageNotZeroed = "page-not-zeroed",
    /// The head of a new log is not flushed (NOVA 2).
    HeadNotFlushed = "head-not-flushed",
    /// The tail is not flushed (NOVA 2).
    TailNotFlushed = "tail-not-flushed",
    /// The commit mark is not flushed.
    MarkNotFlushed = "mark-not-flushed",
    /// `nova-*`: the lines of a record are not flushed.
    RecordNotFlushed = "record-not-flushed",
    /// A new inode's slot is not flushed (NOVA 2).
    InodeNotFlushed = "inode-not-flushed",
    /// The pointer to a new inode chunk is not flushed.
    ChunkPointerNotFlushed = "chunk-pointer-not-flushed",
    /// Less than a word at the edge of a write stays in the cache (PMFS 4, WineFS 3, NOVA with Vinter).
    EdgeNotFlushed = "edge-not-flushed",
    /// An extent list is not flushed.
    ListNotFlushed = "list-not-flushed",
    /// A rename across directories is committed without a word of the old one (NOVA 5).
    RenameTellsOneDirectory = "rename-tells-one-directory",
    /// The old directory never gets its own copy of a rename, and cleaning later drops the only one.
    OldDirectoryNotTold = "old-directory-not-told",
    /// The old name is removed before the new one is durable (NOVA 4).
    OldNameGoesFirst = "old-name-goes-first",
    /// Links are not counted anew by recovery (NOVA 6: a count that is kept goes wrong).
    LinksNotCounted = "links-not-counted",
    /// A removed name's tombstone is dropped while older records are reachable (D18, D5).
    TombstoneDroppedEarly = "tombstone-dropped-early",
    /// A punch's tombstone is dropped while older writes are reachable (D5).
    PunchDroppedEarly = "punch-dropped-early",
    /// The only record that carries the size is dropped (D5b).
    SizeRecordDropped = "size-record-dropped",
    /// A log page is reused before its unlinking is durable (D5a).
    PageReusedBeforeUnlink = "page-reused-before-unlink",
    /// Data is overwritten in place before the commit (WineFS 4).
    WriteInPlace = "write-in-place",
    /// A punch does not raise the floor: a later write of a page without a cell is older than it (D8).
    FloorNotRaised = "floor-not-raised",
    /// Two changes of attributes carry one change count (D7, D9).
    ChangeCountNotRaised = "change-count-not-raised",
    /// The latest time of all writes wins over a time that was set later (D9).
    LatestTimeWins = "latest-time-wins",
    /// The time of a creation counts although the inode was never created.
    CutCreationMovesTime = "cut-creation-moves-time",
    /// Marks do not say which use of a page they belong to, and pages are not zeroed: a stale mark counts (D4).
    StaleMark = "stale-mark",
    /// Half of a transaction counts (D2).
    HalfTransactionCounts = "half-transaction-counts",
    /// `nova-*`: records count without their mark.
    UnmarkedEntryCounts = "unmarked-entry-counts",
    /// `nova-*`: recovery stops at the first slot without a mark, as at a tail.
    StopsAtFirstGap = "stops-at-first-gap",
    /// pNOVA's Fig. 3, a range lock with a tail log: the tail is moved past records that another writer has
    /// not written yet.
    TailOverAHole = "tail-over-a-hole",
    /// `nova-*`: a new log page is given to other writers before the link to it is fenced.
    LinkFencedLate = "link-fenced-late",
    /// Recovery reads only the first page of a log.
    OnlyFirstPageRead = "only-first-page-read",
    /// Recovery reads only the chains whose heads fit the inode (NOVA 1, WineFS 1: the bug depends on the
    /// number of CPUs).
    OnlyInlineChainsRead = "only-inline-chains-read",
    /// Recovery takes the chain that it reads last, not the largest version.
    LaterChainWins = "later-chain-wins",
    /// Recovery takes the name record that it reads last (D18).
    LaterNameWins = "later-name-wins",
    /// A rename's foreign record is applied again, after a later attribute record of the old directory (D20, SplitFS 67).
    RenameReplayedTwice = "rename-replayed-twice",
    /// A dead inode's slot is not zeroed before it is handed out again (D19).
    SlotNotZeroed = "slot-not-zeroed",
    /// Recovery takes blocks that were allocated and never written as data.
    UnwrittenIsData = "unwritten-is-data",
    /// An inode chunk is linked without being zeroed.
    ChunkNotZeroed = "chunk-not-zeroed",
    /// A truncation leaves bytes beyond the new end (D11).
    StaleBytesBeyondEnd = "stale-bytes-beyond-end",
    /// No fence between the copies of the superblock (Fortis 1).
    SuperblocksTogether = "superblocks-together",
    /// A block is free before the record that supersedes it is durable (D6).
    FreedBeforeCommit = "freed-before-commit",
    /// The old directory gets no copy of an exchange across directories.
    ExchangeNotTold = "exchange-not-told",
    /// The slot of a file without a name is not flushed.
    UnnamedNotFlushed = "unnamed-not-flushed",
    /// Logging anew unlinks its page before the copies are durable.
    UnlinkedBeforeCopies = "unlinked-before-copies",
    /// Logging anew forgets extended attributes.
    AttributesForgotten = "attributes-forgotten",
    /// A write that fails keeps the blocks that it took.
    FailedWriteLeaks = "failed-write-leaks",
    /// Collapsing or inserting a range turns allocated, unwritten blocks into data.
    ShiftWritesUnwritten = "shift-writes-unwritten",
    /// The short way of a write also takes the slot behind the last one of a log page.
    PastLastSlot = "past-last-slot",
    /// A dead inode's block of further heads stays noted for the slot's next inode.
    HeadBlockStays = "head-block-stays",
    /// Log pages that are made after a mount begin again at the first era.
    ErasBeginAnew = "eras-begin-anew",
    /// The whole records of a torn transaction do not count, but are not zeroed either (D4b).
    TornPartStays = "torn-part-stays",
    /// Logging anew drops a page, and cleaning goes on behind that page.
    CleaningPositionStays = "cleaning-position-stays",
    /// A punch that is logged anew reaches to its old end, over pages that were written since.
    MovedPunchTooWide = "moved-punch-too-wide",
    /// `nova`: recovery leaves records behind the tail, which count when their page is full.
    BeyondTailStays = "beyond-tail-stays",
    /// Settling a dead process's append publishes its pages, but not the new size.
    SettledSizeStays = "settled-size-stays",
    /// A directory does not know that a rename left a record of its names in another log.
    ForeignRecordNotNoted = "foreign-record-not-noted",
    /// An exchange leaves the second directory's parent as it was.
    ExchangeKeepsParent = "exchange-keeps-parent",
    /// A directory that a rename replaces still counts as a link of its parent.
    ReplacedDirectoryCounted = "replaced-directory-counted",
    /// A record is turned into a removal before its bucket is marked as changing.
    RemovalBeforeMark = "removal-before-mark",
    /// A write that ends at a page's end does not say the new size, except on the short way.
    PageEndSaysNoSize = "page-end-says-no-size",
    /// An allocation in pieces that keeps the size says one in every piece but the last.
    KeptSizeGrows = "kept-size-grows",
    /// The record of zeroed pages goes on over a page between them, if their blocks are adjacent.
    ZeroedRunOverGap = "zeroed-run-over-gap",
    /// The last block of a long extent list is not linked.
    LongListCut = "long-list-cut",
    /// A lane that turns to another chunk forgets the free inode slots of the one before.
    HeldSlotsForgotten = "held-slots-forgotten",
    /// An inode chunk's block is free before its pointer is gone durably.
    ChunkFreedEarly = "chunk-freed-early",
    /// Cleaning drops the record that an inode has no extended attributes any more.
    EmptySetDropped = "empty-set-dropped",
    /// Cleaning that logs attributes anew changes ctime.
    CleaningMovesTime = "cleaning-moves-time",
}

#[cfg(feature = "planted")]
pub use crate::steps::{Step, hook::set as on_step};

// `HEDDLE_BREACH` names a promise, or a [`Bug`] by its name.
heddle_vfs::breaches! {
    /// `heddle`: one overwrite of a page in 64 returns and shows the old page.
    WriteNotShown,
    /// A read is done in two parts.
    ReadsInTwo,
    /// `heddle`: a write that fails with no space has moved the end of the file.
    FailedWriteGrows,
    /// `heddle`: an append goes to an end that other appends have moved meanwhile.
    AppendsAtOldEnd,
    /// `heddle`: one write in 64 that goes beyond EOF does not change the size.
    SizeStays,
    /// `heddle`: in a page that two writes share, the later write restores the content from before the
    /// earlier one.
    EdgesOld,
    /// A write of several pages into allocated space is not done page by page: it requires all blocks at once.
    NotPageByPage,
    /// A name is made even if it exists.
    NamesTwice,
    /// Directories may be moved below themselves.
    LoopsAllowed,
    /// An inode is freed with its last name, even if it is open.
    EndsWhileOpen,
    /// Permission bits are not checked.
    ModesUnchecked,
    /// The slower of two writers stores its older time.
    TimesGoBack,
    /// A write after a stat carries the coarse clock's time.
    StatForgotten,
    /// An operation counts as durable though its fence has failed.
    FailedFenceIgnored,
    /// An inode has no extended attributes while they are replaced.
    AttributesBlink,
    /// The link count of an inode is not limited.
    LinksUnbounded,
    /// All blocks of an image are reported as free.
    TakenUntold,
    /// One in 64 freed extents is lost.
    BlocksLost,
    /// An image that is cut off at its end is mounted.
    ShortImageTaken,
    /// Checksums of records are not compared.
    RecordsBelieved,
    /// A mount takes a block for a file although another owner claims it.
    SharedBlocksBelieved,
    /// A reader repeats its copy until no write happens meanwhile.
    ReadsAnew,
    /// One call in 64 returns without its record in the log.
    RecordLeftOut,
    /// A write is done in two parts.
    WritesInTwo,
    /// Recovery removes the root's inode while it zeroes torn records, and restores it afterwards.
    RecoveryInPieces,
    /// There is room for only 16 KiB of attributes.
    LittleRoomForAttributes,
    /// A file without a name stays when its last handle is closed.
    NamelessStays,
    /// `RENAME_NOREPLACE` replaces the target.
    NoReplaceReplaces,
    /// A store to a hole is permitted without space.
    MappedStoreUnchecked,
    /// A range to be zeroed is punched instead.
    ZeroPunches,
    /// A removal requires a block that new data may take.
    RemovalNeedsSpace,
}

#[cfg(feature = "planted")]
static CHOSEN: std::sync::LazyLock<std::sync::atomic::AtomicU32> = std::sync::LazyLock::new(|| {
    let name = std::env::var("HEDDLE_BREACH").unwrap_or_default();
    let name = name.strip_prefix("heddle-nvmfs:").unwrap_or_default();
    let found = Bug::ALL.iter().find(|bug| bug.name() == name);
    std::sync::atomic::AtomicU32::new(found.map_or(0, |bug| *bug as u32 + 1))
});

/// Plants a bug in the engine of this process, or removes it.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    // ORDERING: Relaxed, chosen before the threads that meet it begin.
    CHOSEN.store(bug.map_or(0, |bug| bug as u32 + 1), std::sync::atomic::Ordering::Relaxed);
}

/// Returns true if this bug is planted.
#[inline(always)]
pub(crate) fn planted(bug: Bug) -> bool {
    #[cfg(feature = "planted")]
    // ORDERING: Relaxed, as in `plant`.
    return CHOSEN.load(std::sync::atomic::Ordering::Relaxed) == bug as u32 + 1;
    #[cfg(not(feature = "planted"))]
    {
        let _ = bug;
        false
    }
}

/// Fences, unless the planted bug is to leave that out.
#[inline(always)]
#[cfg_attr(feature = "planted", track_caller)]
pub(crate) fn fence_unless(bug: Bug, region: &Region) {
    if !planted(bug) {
        // PERSIST: the caller states the reason; it asked for the fence.
        region.fence();
    }
}

/// Fences after a copy of data and waits for it, unless the planted bug is to leave that out.
#[inline(always)]
#[cfg_attr(feature = "planted", track_caller)]
pub(crate) fn wait_unless(bug: Bug, region: &Region) {
    if !planted(bug) {
        // PERSIST: the caller states the reason; it asked for the fence.
        region.fence_and_wait();
    }
}

/// Stores and starts the write-back, unless the planted bug is to leave that out.
#[inline(always)]
pub(crate) fn flushed_unless(bug: Bug, store: impl FnOnce()) {
    #[cfg(feature = "planted")]
    if planted(bug) {
        return heddle_pmem::planted::without_flush(store);
    }
    let _ = bug;
    store();
}

/// The same for volatile memory.
#[cfg(feature = "planted")]
pub use heddle_arena::planted as memory;

#[cfg(feature = "planted")]
thread_local! {
    static BLOCK_REQUESTS: std::cell::Cell<(u64, u64)> = const { std::cell::Cell::new((0, 0)) };
}

/// Refuses the calling thread's `n`-th request for blocks from now on, counted from 1; 0 refuses none.
#[cfg(feature = "planted")]
pub fn refuse_blocks(n: u64) {
    BLOCK_REQUESTS.set((0, n));
}

/// Number of requests for blocks by the calling thread since [`refuse_blocks`].
#[cfg(feature = "planted")]
pub fn block_requests() -> u64 {
    BLOCK_REQUESTS.get().0
}

/// Returns true if this request for blocks is to be refused.
#[inline(always)]
pub(crate) fn block_refused() -> bool {
    #[cfg(feature = "planted")]
    {
        let (before, refused) = BLOCK_REQUESTS.get();
        BLOCK_REQUESTS.set((before + 1, refused));
        before + 1 == refused
    }
    #[cfg(not(feature = "planted"))]
    false
}
