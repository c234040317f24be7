//! The most frequent record, on a short path of its own: a write of one line that is a transaction of its own.

use super::super::word::{Line, all_written, time_payload, word};
use super::*;
use crate::planted::{Breach, breaks};

/// Decodes a write record of one line, if `slot` holds one that is whole and has its commit mark. That is the most
/// frequent record in cleaning, and this is faster than [`parse`].
#[inline]
pub fn decode_plain_write(seed: u32, slot: u32, line: &Line) -> Option<PlainWrite> {
    // Kind 1, no flags, one slot. A zero word fails `all_written`, a wrong word fails the checksum.
    let shape = f::KIND.mask() | f::FLAGS.mask() | f::SLOTS.mask();
    let plain = line[0] & shape == f::KIND.put(WRITE) | f::SLOTS.put(1);
    let whole = plain
        && all_written(line)
        && (f::CRC.get(line) == u64::from(checksum(seed, slot, line)) || breaks(Breach::RecordsBelieved));
    let pages = write::PAGES.get(line);
    (whole && pages > 0 && line[7] == commit_mark(seed, slot)).then(|| PlainWrite {
        page: PageNo(write::PAGE.get(line)),
        pages,
        end_in_last_page: write::END.get(line) as u32,
        version: Version(write::VERSION.get(line)),
        change_count: write::CHANGE_COUNT.get(line),
    })
}

/// The line of a write record with its commit mark that is a transaction of its own. The short path of a write builds it
/// while the data is on its way to the media.
#[inline]
pub fn encode_plain_write(
    seed: u32,
    slot: u32,
    lane: u16,
    write: &PlainWrite,
    block: BlockNo,
    mtime: Time,
) -> Line {
    let mut line = [
        f::KIND.put(WRITE) | f::LANE.put(u64::from(lane)) | f::SLOTS.put(1),
        write::PAGE.put(write.page.0) | write::END.put(u64::from(write.end_in_last_page)),
        write::BLOCK.put(block.0) | write::PAGES.put(write.pages),
        write::VERSION.put(write.version.0),
        f::TXN_FIRST.put(u64::from(slot)) | f::TXN_SLOTS.put(1),
        f::MTIME.put(time_payload(mtime)),
        write::CHANGE_COUNT.put(write.change_count),
        0,
    ]
    .map(word);
    line[0] |= f::CRC.put(u64::from(checksum(seed, slot, &line)));
    line[7] = commit_mark(seed, slot);
    line
}

/// A write record of one line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlainWrite {
    /// First page.
    pub page: PageNo,
    /// Number of pages.
    pub pages: u64,
    /// Number of valid bytes in the last page.
    pub end_in_last_page: u32,
    /// Orders it among the records of its pages.
    pub version: Version,
    /// Change count of the size that the write saw.
    pub change_count: u64,
}
