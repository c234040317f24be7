//! Summaries: the owners of a segment's blocks. The summaries of a checkpoint's logs also hold two journals,
//! with changes that are not yet in NAT and SIT: they override the tables.

use super::{NatEntry, SitEntry};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a journal, including its count.
pub const JOURNAL_BYTES: usize = 507;
/// Number of changes that fit a NAT journal.
pub const NAT_JOURNAL_ENTRIES: usize = 38;
/// Number of changes that fit a SIT journal.
pub const SIT_JOURNAL_ENTRIES: usize = 6;

/// [`SummaryBlock::kind`] of data.
pub const SUMMARY_OF_DATA: u8 = 0;
/// [`SummaryBlock::kind`] of nodes.
pub const SUMMARY_OF_NODES: u8 = 1;

/// The owner of a block.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct SummaryEntry {
    /// The node that points to the block; for a node's block, the node's own number.
    pub nid: U32,
    /// [`NatEntry::version`] of that node.
    pub version: u8,
    /// Index of the pointer in that node.
    pub slot: U16,
}

/// A change of the node address table.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct NatChange {
    /// The node.
    pub nid: U32,
    /// Its entry.
    pub entry: NatEntry,
}

/// The journal of the hot data log.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct NatJournal {
    /// Number of valid changes.
    pub count: U16,
    /// The changes.
    pub changes: [NatChange; NAT_JOURNAL_ENTRIES],
    /// Unused.
    pub rest: [u8; 11],
}

/// A change of the segment information table.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct SitChange {
    /// The segment.
    pub segno: U32,
    /// Its entry.
    pub entry: SitEntry,
}

/// The journal of the cold data log.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct SitJournal {
    /// Number of valid changes.
    pub count: U16,
    /// The changes.
    pub changes: [SitChange; SIT_JOURNAL_ENTRIES],
    /// Unused.
    pub rest: [u8; 37],
}

/// A block of summaries: of a log, or (without a journal) of a segment in the SSA.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct SummaryBlock {
    /// One entry for each block.
    pub entries: [SummaryEntry; super::SEGMENT_BLOCKS as usize],
    /// [`NatJournal`] or [`SitJournal`], depending on the log.
    pub journal: [u8; JOURNAL_BYTES],
    /// 0 data, 1 nodes.
    pub kind: u8,
    /// Not checked by any implementation.
    pub crc: U32,
}

const _: () = {
    assert!(size_of::<NatJournal>() == JOURNAL_BYTES);
    assert!(size_of::<SitJournal>() == JOURNAL_BYTES);
    assert!(size_of::<SummaryBlock>() == super::BLOCK_BYTES);
};
