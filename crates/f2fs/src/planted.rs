//! Promises of SEMANTICS.md that are broken on purpose: the test named for F2FS images must detect it (`cargo
//! xtask breaches`).

heddle_vfs::breaches! {
    /// One write in 64 returns and has changed nothing.
    WriteNotShown,
    /// A write is done in two parts.
    WritesInTwo,
    /// A write that fails with no space has moved the end of the file.
    FailedWriteGrows,
    /// An append goes to an end that other appends have moved meanwhile.
    AppendsAtOldEnd,
    /// A truncation leaves bytes of the last page behind EOF.
    CutOffComesBack,
    /// A write to allocated space needs its space once more.
    AllocatedCostsAgain,
    /// A range to be zeroed is punched instead.
    ZeroPunches,
    /// Allocated, unwritten space is data to lseek(2).
    ReservedIsData,
    /// An fsync that needs no checkpoint writes nothing.
    FsyncForgets,
    /// The device is not flushed before a checkpoint, or a log checkpoint, counts.
    FlushForgotten,
    /// A mount with `sync` or `dirsync` ignores the option.
    SyncOptionForgotten,
    /// Recovered nodes are overwritten before the checkpoint with their contents is valid.
    ChainWrittenOver,
    /// The log ends before the checkpoint with its contents is valid.
    LogEndsFirst,
    /// The inode that a rename replaces is removed, durably, before the new name exists.
    RenameInTwo,
    /// A name is made even if it exists.
    NamesTwice,
    /// Directories may be moved below themselves.
    LoopsAllowed,
    /// An inode is freed with its last name, even if it is open.
    EndsWhileOpen,
    /// A removed name is still counted, unless it is the last.
    LinksKept,
    /// The link count of an inode is not limited.
    LinksUnbounded,
    /// One write in 64 that goes beyond EOF does not change the size.
    SizeStays,
    /// Permission bits are not checked.
    ModesUnchecked,
    /// A write takes the time of a clock that is up to 63 milliseconds late, each time by another amount.
    TimesGoBack,
    /// A write after a stat carries the coarse clock's time.
    StatForgotten,
    /// `XATTR_CREATE` and `XATTR_REPLACE` are ignored.
    XattrFlagsIgnored,
    /// Access lists are not checked.
    AclsUnchecked,
    /// `RENAME_NOREPLACE` replaces the target.
    NoReplaceReplaces,
    /// The blocks of a removed file are never freed.
    RemovedStays,
    /// A removal requires space as a creation does.
    RemovalNeedsSpace,
    /// One in 64 freed blocks stays live.
    BlocksLost,
    /// The magic of a superblock is not checked.
    MagicUnchecked,
    /// A node log of another image is accepted.
    AnyLogTaken,
    /// Freeing a node's old block that is free already is an error, which ends all changes.
    DamageEndsAll,
    /// An attribute is removed before it is replaced.
    AttributesBlink,
    /// A file without a name stays when its last handle is closed.
    NamelessStays,
    /// A read is done in two parts.
    ReadsInTwo,
    /// A collapsed range becomes a hole, durably, before the pages behind it move.
    ShiftInTwo,
    /// Of the times in the checkpoint and in a later fsync, the larger counts.
    LatestTimeWins,
    /// A store through a mapping is permitted without a check, also without space.
    MappedStoreUnchecked,
    /// Other paths of an image, such as a loop device, are not checked for uses.
    OtherPathsUnchecked,
}
