//! Summaries: whose the blocks of a segment are. With those of the logs in a checkpoint come two journals, of changes that are not yet
//! in NAT and SIT: they count more than the tables.

use super::{NatEntry, SitEntry};
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of a journal, its count included.
pub const JOURNAL_BYTES: usize = 507;
/// Changes that a NAT journal holds.
pub const NAT_JOURNAL_ENTRIES: usize = 38;
/// Changes that a SIT journal holds.
pub const SIT_JOURNAL_ENTRIES: usize = 6;

/// [`SummaryBlock::kind`] of data.
pub const SUMMARY_OF_DATA: u8 = 0;
/// [`SummaryBlock::kind`] of nodes.
pub const SUMMARY_OF_NODES: u8 = 1;

/// Whose a block is.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(C)]
pub struct SummaryEntry {
    /// The node that points at it; of a node its own number.
    pub nid: U32,
    /// [`NatEntry::version`] of that node.
    pub version: u8,
    /// Which pointer of that node.
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
    /// Changes that count.
    pub count: U16,
    /// The changes.
    pub changes: [NatChange; NAT_JOURNAL_ENTRIES],
    /// Nothing.
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
    /// Changes that count.
    pub count: U16,
    /// The changes.
    pub changes: [SitChange; SIT_JOURNAL_ENTRIES],
    /// Nothing.
    pub rest: [u8; 37],
}

/// A block of summaries, of a log or, without a journal, of a segment in the SSA.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone)]
#[repr(C)]
pub struct SummaryBlock {
    /// An entry a block.
    pub entries: [SummaryEntry; super::SEGMENT_BLOCKS as usize],
    /// [`NatJournal`] or [`SitJournal`], by the log.
    pub journal: [u8; JOURNAL_BYTES],
    /// 0 data, 1 nodes.
    pub kind: u8,
    /// Not checked by anyone.
    pub crc: U32,
}

const _: () = {
    assert!(size_of::<NatJournal>() == JOURNAL_BYTES);
    assert!(size_of::<SitJournal>() == JOURNAL_BYTES);
    assert!(size_of::<SummaryBlock>() == super::BLOCK_BYTES);
};
