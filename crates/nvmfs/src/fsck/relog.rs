//! Writes an inode's log anew: one chain of fresh pages, each record a transaction of its own.
//!
//! The old pages stay unchanged; no pointer leads to them any more.

use super::image::Image;
use super::media::{BLOCK_WORDS, Media};
use super::pass::Relog;
use crate::format::inode::TAIL_WORD;
use crate::format::page::{PageHeader, SLOTS};
use crate::format::pointer::{self, PointerLocation};
use crate::format::record::{Record, Txn};
use crate::ids::BlockNo;
use crate::variant::LogKind;
use heddle_pmem::{LINE_BYTES, Pos};

/// The lane in pages that fsck writes; no thread has it, so these pages differ from all others.
const LANE: u16 = 0;
const LINE_WORDS: usize = LINE_BYTES / 8;

/// Blocks that a repair may write to, and the number of its next log page.
pub struct Supply {
    free: std::vec::IntoIter<BlockNo>,
    serial: u64,
}

impl Supply {
    /// A supply of these blocks; page numbers continue from `serial`.
    pub fn new(free: Vec<BlockNo>, serial: u64) -> Supply {
        Supply { free: free.into_iter(), serial }
    }

    /// Takes a block, if one is left.
    pub fn block(&mut self) -> Option<BlockNo> {
        self.free.next()
    }

    /// Number of blocks left.
    pub fn left(&self) -> u64 {
        self.free.len() as u64
    }

    /// Number of the last page.
    pub fn serial(&self) -> u64 {
        self.serial
    }

    /// Takes the number of a page.
    fn next_serial(&mut self) -> u64 {
        self.serial += 1;
        self.serial
    }
}

/// Stores the log, and the second line of the inode's slot, which begins at `slot`. Returns false if there
/// are too few blocks; nothing is stored then.
pub fn write(media: &mut Media<'_>, image: &Image, supply: &mut Supply, slot: Pos, relog: &Relog) -> bool {
    let home = relog.id;
    let pages = paginate(&relog.records, home);
    if pages.len() as u64 > supply.left() {
        return false;
    }
    let blocks: Vec<BlockNo> = pages.iter().filter_map(|_| supply.block()).collect();
    let mut pointers = [0u64; LINE_WORDS];
    for (i, page) in pages.iter().enumerate() {
        let header = PageHeader {
            owner: home,
            epoch: image.superblock.epoch.get(),
            lane: LANE,
            serial: supply.next_serial(),
            chain: 0,
            era: i as u64 + 1,
        };
        let seed = header.record_seed(image.seed);
        let mut words = vec![0u64; BLOCK_WORDS];
        words[..LINE_WORDS].copy_from_slice(&header.encode(image.seed));
        let next = blocks.get(i + 1);
        words[7] =
            next.map_or(0, |n| pointer::encode(image.seed, home, PointerLocation::Next(blocks[i]), *n));
        let mut at = 1;
        for record in page {
            let slots = record.slots_in(home);
            let mut draft = record.draft(home, LANE);
            for line in draft.seal(seed, at, Txn { first: at, slots }, true) {
                let from = at as usize * LINE_WORDS;
                words[from..from + LINE_WORDS].copy_from_slice(line);
                at += 1;
            }
        }
        media.store(blocks[i].pos(), &words);
        if image.kind == LogKind::Tail {
            pointers[TAIL_WORD as usize] = pointer::encode_tail(image.seed, home, blocks[i], at);
        }
    }
    if let Some(first) = blocks.first() {
        pointers[0] = pointer::encode(image.seed, home, PointerLocation::Head(0), *first);
    }
    media.store(slot.plus(LINE_BYTES as u64), &pointers);
    true
}

/// Distributes records to pages, as many as fit, in order.
fn paginate(records: &[Record], home: crate::ids::InodeId) -> Vec<Vec<&Record>> {
    let mut pages: Vec<Vec<&Record>> = Vec::new();
    let mut room = 0;
    for record in records {
        let slots = record.slots_in(home);
        if slots > room {
            pages.push(Vec::new());
            room = SLOTS;
        }
        room -= slots;
        if let Some(page) = pages.last_mut() {
            page.push(record);
        }
    }
    pages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_pages_of_a_repair_have_the_same_number() {
        let mut supply = Supply::new(Vec::new(), 7);
        assert_eq!([supply.next_serial(), supply.next_serial()], [8, 9]);
        assert_eq!(supply.serial(), 9, "the next inode's pages go on from here");
    }
}
