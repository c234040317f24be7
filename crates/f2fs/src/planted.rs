//! Promises of SEMANTICS.md that are broken on purpose: the test that a row names for F2FS images must see it (`cargo xtask breaches`).

heddle_vfs::breaches! {
    /// One write in 64 returns and has changed nothing.
    WriteNotShown,
    /// A write is two.
    WritesInTwo,
    /// A write that found no space has moved the end of the file.
    FailedWriteGrows,
    /// An append goes where the end was before others' appends.
    AppendsAtOldEnd,
    /// Bytes of the last page stay behind the end of a file that is cut.
    CutOffComesBack,
    /// Space that is allocated has to be had once more to be written.
    AllocatedCostsAgain,
    /// A range that is zeroed is one that is punched.
    ZeroPunches,
    /// What is allocated and was never written is data to lseek(2).
    ReservedIsData,
    /// An fsync that needs no checkpoint writes nothing.
    FsyncForgets,
    /// The device is not flushed before a checkpoint, or an epoch, counts.
    FlushForgotten,
    /// A mount with `sync` or `dirsync` is one without.
    PromptForgotten,
    /// Nodes that are taken in are written over before the checkpoint counts that has them.
    ChainWrittenOver,
    /// The log ends before the checkpoint counts that has what it said.
    LogEndsFirst,
    /// What a rename replaces is gone, durably, before the new name is there.
    RenameInTwo,
    /// A name is made whether it is there or not.
    NamesTwice,
    /// Directories are moved below themselves.
    LoopsAllowed,
    /// An inode ends with its last name, whether it is open or not.
    EndsWhileOpen,
    /// A name that goes is counted still, unless it is the last.
    LinksKept,
    /// No end to the links of an inode.
    LinksUnbounded,
    /// One write in 64 that goes beyond the end leaves it where it was.
    SizeStays,
    /// Everybody may do everything.
    ModesUnasked,
    /// A write takes the time of a clock that is up to 63 milliseconds late, and never as late as for the write before.
    TimesGoBack,
    /// A write after a stat has the coarse clock's time.
    StatForgotten,
    /// An attribute is made where it was to be replaced only, and the other way round.
    HowForgotten,
    /// Access lists are not asked.
    ListsUnasked,
    /// `RENAME_NOREPLACE` replaces.
    NoReplaceReplaces,
    /// The bytes of a removed file are never free.
    RemovedStays,
    /// A removal asks for space as a creation does.
    RemovalNeedsSpace,
    /// One block in 64 that comes free stays live.
    BlocksLost,
    /// A superblock's first word is not looked at.
    MagicUnasked,
    /// A node log counts, whichever image it is of.
    AnyLogTaken,
    /// A node whose old block is free already ends all changes of the image.
    DamageEndsAll,
    /// An attribute is removed before it is replaced.
    AttributesBlink,
    /// A file without a name stays when its last handle goes.
    NamelessStays,
    /// A read is two.
    ReadsInTwo,
    /// What is cut out of a file is a hole, durably, before what lies behind moves.
    ShiftInTwo,
    /// Of the checkpoint's time and that of an fsync behind it the later counts.
    LatestTimeWins,
    /// Nobody is told that there is no space for a store to a hole.
    StoresUnasked,
    /// Nobody asks whether an image is in use by another name.
    OtherNamesUnasked,
}
