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

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::format::pointer::Target;
    use crate::format::record::{FoundRecord, parse};
    use crate::fsck::tests::{id, on_empty_of};
    use crate::ids::{PageNo, Version};
    use crate::variant::Variant;
    use heddle_vfs::Time;

    #[test]
    fn no_two_pages_of_a_repair_have_the_same_number() {
        let mut supply = Supply::new(Vec::new(), 7);
        assert_eq!([supply.next_serial(), supply.next_serial()], [8, 9]);
        assert_eq!(supply.serial(), 9, "the next inode's pages go on from here");
    }

    fn punches(count: u64) -> Vec<Record> {
        let punch = |n| Record::Punch {
            page: PageNo(n),
            pages: 1,
            version: Version(n + 1),
            mtime: Time(1),
            change_count: 1,
        };
        (0..count).map(punch).collect()
    }

    #[test]
    fn a_page_takes_as_many_records_as_it_has_slots() {
        let sizes = |count| paginate(&punches(count), id(7)).iter().map(Vec::len).collect::<Vec<_>>();
        assert_eq!((sizes(0), sizes(1), sizes(62)), (vec![], vec![1], vec![62]));
        assert_eq!((sizes(63), sizes(64), sizes(130)), (vec![63], vec![63, 1], vec![63, 63, 4]));
    }

    #[test]
    fn a_new_log_is_one_chain_of_pages_in_order() {
        for variant in [Variant::Heddle, Variant::Nova] {
            on_empty_of(variant, 4 << 20, |_, pass| {
                let (image, records) = (pass.image, punches(70));
                let slot = pass.slots.pos(heddle_vfs::Ino(9)).unwrap();
                let mut media = Media::over(pass.media);
                let free: Vec<BlockNo> = (500..503).map(BlockNo).collect();
                let mut supply = Supply::new(free, 4);
                let relog = Relog { id: id(9), records: records.clone() };
                assert!(write(&mut media, &image, &mut supply, slot, &relog));
                assert_eq!((supply.left(), supply.serial()), (1, 6));
                let pointers = media.line(slot.plus(64));
                let head = pointer::decode(image.seed, id(9), PointerLocation::Head(0), pointers[0]);
                assert_eq!(head, Target::At(BlockNo(500)));
                let tail = pointer::decode_tail(image.seed, id(9), pointers[7]);
                let behind = Target::At((BlockNo(501), 8));
                assert_eq!(tail, if variant == Variant::Nova { behind } else { Target::None });
                let mut read = Vec::new();
                for (n, count) in [(0, 63), (1, 7)] {
                    let block = BlockNo(500 + n);
                    let header = PageHeader::decode(image.seed, &media.line(block.pos())).unwrap();
                    let epoch = image.superblock.epoch.get();
                    let wanted =
                        PageHeader { owner: id(9), epoch, lane: 0, serial: 5 + n, chain: 0, era: 1 + n };
                    assert_eq!(header, wanted);
                    let next = media.word(block.pos().plus(56));
                    let next = pointer::decode(image.seed, id(9), PointerLocation::Next(block), next);
                    assert_eq!(next, if n == 0 { Target::At(BlockNo(501)) } else { Target::None });
                    for at in 1..=count {
                        let line = |slot: u32| media.line(block.pos().plus(u64::from(slot) * 64));
                        match parse(header.record_seed(image.seed), id(9), at, line) {
                            FoundRecord::Whole { record, txn, mark: Some(true), .. } => {
                                assert_eq!(txn, Txn { first: at, slots: 1 });
                                read.push(record);
                            }
                            other => panic!("slot {at}: {other:?}"),
                        }
                    }
                }
                assert_eq!(read, records);
            });
        }
    }

    #[test]
    fn a_log_that_finds_too_few_blocks_is_not_begun() {
        on_empty_of(Variant::Heddle, 4 << 20, |_, pass| {
            let slot = pass.slots.pos(heddle_vfs::Ino(9)).unwrap();
            let mut media = Media::over(pass.media);
            let relog = Relog { id: id(9), records: punches(64) };
            for (blocks, wanted) in [(0, false), (1, false), (2, true), (3, true)] {
                let mut supply = Supply::new((500..500 + blocks).map(BlockNo).collect(), 4);
                assert_eq!(write(&mut media, &pass.image, &mut supply, slot, &relog), wanted, "{blocks}");
                assert_eq!(media.take_stored().is_empty(), !wanted, "{blocks}");
                assert_eq!(supply.left(), if wanted { blocks - 2 } else { blocks });
            }
        });
    }
}
