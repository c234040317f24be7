//! Bugs planted on purpose: the crash rig must see every one of them, or its silence proves nothing.
//!
//! With the feature `planted` one bug at a time can be chosen at run time ([`plant`]), for the whole process. Without it every
//! question here is `false` at compile time, and the code is as if this file were not there.
//!
//! Source      root causes of the known bugs of NOVA, PMFS, WineFS, SplitFS and NOVA-Fortis (Chipmunk's and Vinter's lists), and
//!             the hazards D1 to D20 of the protocol.

use crate::region::Region;

mod met;

pub use met::Met;
pub(crate) use met::met;
#[cfg(feature = "planted")]
pub use met::{Counts, take as take_counts};

macro_rules! bugs {
    ($($(#[doc = $story:literal])+ $name:ident = $text:literal,)*) => {
        /// What can be planted.
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

            /// What is wrong, and whose bug it was.
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
    /// `nova`: the fence behind the tail is missing.
    TailFenceMissing = "tail-fence-missing",
    /// `nova-*`: the fence behind the mark is missing.
    MarkFenceMissing = "mark-fence-missing",
    /// A log page is linked before its header is fenced (D4a).
    PageLinkedBeforeHeader = "page-linked-before-header",
    /// A log page is not zeroed before it is used (D3, D4d).
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
    /// The old directory never gets its own copy of a rename, and the only one is cleaned away later.
    OldDirectoryNotTold = "old-directory-not-told",
    /// The old name is taken away before the new one is durable (NOVA 4).
    OldNameGoesFirst = "old-name-goes-first",
    /// Links are not counted anew by recovery (NOVA 6: a count that is kept goes wrong).
    LinksNotCounted = "links-not-counted",
    /// A removed name's tombstone is dropped while older records are reachable (D18, D5).
    TombstoneDroppedEarly = "tombstone-dropped-early",
    /// A punch's tombstone is dropped while older writes are reachable (D5).
    PunchDroppedEarly = "punch-dropped-early",
    /// The record that alone says what the size is is dropped (D5b).
    SizeRecordDropped = "size-record-dropped",
    /// A log page is reused before its unlinking is durable (D5a).
    PageReusedBeforeUnlink = "page-reused-before-unlink",
    /// Data is overwritten in place before the commit (WineFS 4).
    WriteInPlace = "write-in-place",
    /// A punch does not raise the floor: a later write of a page without a cell is older than it (D8).
    FloorNotRaised = "floor-not-raised",
    /// Two changes of attributes carry one generation (D7, D9).
    GenerationNotRaised = "generation-not-raised",
    /// The latest time of all writes wins over a time that was set later (D9).
    LatestTimeWins = "latest-time-wins",
    /// The time of a creation counts whose inode never came to be.
    CutCreationMovesTime = "cut-creation-moves-time",
    /// Marks do not say which use of a page they belong to, and pages are not zeroed: a stale mark counts (D4).
    StaleMark = "stale-mark",
    /// Half of a transaction counts (D2).
    HalfTransactionCounts = "half-transaction-counts",
    /// `nova-*`: records count without their mark.
    UnmarkedEntryCounts = "unmarked-entry-counts",
    /// `nova-*`: recovery stops at the first slot without a mark, as at a tail.
    StopsAtFirstGap = "stops-at-first-gap",
    /// pNOVA's Fig. 3: a range lock with a tail log: the tail is moved over what another writer has not written yet.
    TailOverAHole = "tail-over-a-hole",
    /// `nova-*`: a new log page is given to other writers before the link to it is fenced.
    LinkFencedLate = "link-fenced-late",
    /// Recovery reads the first page of a log alone.
    OnlyFirstPageRead = "only-first-page-read",
    /// Recovery looks at as many chains as fit the inode (NOVA 1, WineFS 1: it depends on the number of CPUs).
    OnlyInlineChainsRead = "only-inline-chains-read",
    /// Recovery lets the chain that is read last win, not the largest version.
    LaterChainWins = "later-chain-wins",
    /// Recovery lets the name record that is read last win (D18).
    LaterNameWins = "later-name-wins",
    /// What a rename said of its old directory is applied again to a later state (D20, SplitFS 67).
    RenameReplayedTwice = "rename-replayed-twice",
    /// A dead inode's slot is not zeroed before it is handed out again (D19).
    SlotNotZeroed = "slot-not-zeroed",
    /// Recovery takes blocks that were allocated and never written for data.
    UnwrittenIsData = "unwritten-is-data",
    /// An inode chunk is linked without being zeroed.
    ChunkNotZeroed = "chunk-not-zeroed",
    /// A truncation leaves what was beyond the new end (D11).
    StaleBytesBeyondEnd = "stale-bytes-beyond-end",
    /// No fence between the copies of the superblock (Fortis 1).
    SuperblocksTogether = "superblocks-together",
    /// A block is free before the record that supersedes it is durable (D6).
    FreedBeforeCommit = "freed-before-commit",
    /// An exchange across directories of which the old directory gets no copy.
    ExchangeNotTold = "exchange-not-told",
    /// The slot of a file without a name is not flushed.
    UnnamedNotFlushed = "unnamed-not-flushed",
    /// Logging anew unlinks its page before the copies are durable.
    UnlinkedBeforeCopies = "unlinked-before-copies",
    /// Logging anew forgets extended attributes.
    AttributesForgotten = "attributes-forgotten",
    /// A write that fails keeps the blocks that it took.
    FailedWriteLeaks = "failed-write-leaks",
    /// Cutting a range out, or inserting one, makes data of what was allocated and never written.
    ShiftWritesUnwritten = "shift-writes-unwritten",
}

#[cfg(feature = "planted")]
pub use crate::steps::{Step, hook::set as on_step};

// A promise, or a [`Bug`] by its name, is what `HEDDLE_BREACH` names.
heddle_vfs::breaches! {
    /// `heddle`: one overwrite of a page in 64 returns and shows the old page.
    WriteNotShown,
    /// A read is two.
    ReadsInTwo,
    /// `heddle`: a write that found no space has moved the end of the file.
    FailedWriteGrows,
    /// `heddle`: an append goes where the end was before others' appends.
    AppendsAtOldEnd,
    /// `heddle`: one write in 64 that goes beyond the end leaves it where it was.
    SizeStays,
    /// `heddle`: a page that was shared with another write has what it was before that.
    EdgesOld,
    /// A write of several pages into allocated space wants all blocks at once.
    NoPieces,
    /// A name is made whether it is there or not.
    NamesTwice,
    /// Directories are moved below themselves.
    LoopsAllowed,
    /// An inode ends with its last name, whoever has it open.
    EndsWhileOpen,
    /// Everybody may do everything.
    ModesUnasked,
    /// The slower of two writers stores its older time.
    TimesGoBack,
    /// A write after a stat has the coarse clock's time.
    StatForgotten,
    /// An inode has no attributes while they are replaced.
    AttributesBlink,
    /// No end to the links of an inode.
    LinksUnbounded,
    /// All of an image is told to be free.
    TakenUntold,
    /// One in 64 extents that come back is lost.
    BlocksLost,
    /// What is missing at the end of an image is not missed.
    ShortImageTaken,
    /// Checksums of records are not compared.
    RecordsBelieved,
    /// A reader tries again until nothing is written meanwhile.
    ReadsAnew,
    /// One call in 64 returns before it is in the log: it never gets there.
    RecordLeftOut,
    /// A write is two.
    WritesInTwo,
    /// Recovery takes the root's inode away while it zeroes what was cut, and puts it back.
    RecoveryInPieces,
    /// There is room for 16 KiB of attributes.
    LittleRoomForAttributes,
    /// A file without a name stays when its last handle goes.
    NamelessStays,
    /// `RENAME_NOREPLACE` replaces.
    NoReplaceReplaces,
    /// Nobody is told that there is no space for a store to a hole.
    StoresUnasked,
    /// A range that is zeroed is one that is punched.
    ZeroPunches,
    /// A removal wants a block that new data may take.
    RemovalNeedsSpace,
}

#[cfg(feature = "planted")]
static CHOSEN: std::sync::LazyLock<std::sync::atomic::AtomicU32> = std::sync::LazyLock::new(|| {
    let name = std::env::var("HEDDLE_BREACH").unwrap_or_default();
    let name = name.strip_prefix("heddle-nvmfs:").unwrap_or_default();
    let found = Bug::ALL.iter().find(|bug| bug.name() == name);
    std::sync::atomic::AtomicU32::new(found.map_or(0, |bug| *bug as u32 + 1))
});

/// Plants a bug in the engine of this process, or takes it out again.
#[cfg(feature = "planted")]
pub fn plant(bug: Option<Bug>) {
    // ORDERING: Relaxed, chosen before the threads that meet it begin.
    CHOSEN.store(bug.map_or(0, |bug| bug as u32 + 1), std::sync::atomic::Ordering::Relaxed);
}

/// Is this bug planted?
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

/// Fences, unless leaving that out is the bug.
#[inline(always)]
#[cfg_attr(feature = "planted", track_caller)]
pub(crate) fn fence_unless(bug: Bug, region: &Region) {
    if !planted(bug) {
        // PERSIST: the caller says what; it asked for the fence.
        region.fence();
    }
}

/// Fences behind a copy of data and waits for it, unless leaving that out is the bug.
#[inline(always)]
#[cfg_attr(feature = "planted", track_caller)]
pub(crate) fn wait_unless(bug: Bug, region: &Region) {
    if !planted(bug) {
        // PERSIST: the caller says what; it asked for the fence.
        region.fence_and_wait();
    }
}

/// Stores and starts the write-back, unless leaving that out is the bug.
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

/// The calling thread's `n`-th request for blocks from now on finds none, from 1; with 0 none is refused.
#[cfg(feature = "planted")]
pub fn refuse_blocks(n: u64) {
    BLOCK_REQUESTS.set((0, n));
}

/// Requests of the calling thread for blocks since [`refuse_blocks`].
#[cfg(feature = "planted")]
pub fn block_requests() -> u64 {
    BLOCK_REQUESTS.get().0
}

/// Blocks are asked for: are there to be none?
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
