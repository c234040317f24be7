//! Damages, one at a time.

use super::super::craft::DIRECTORY;
use super::{Damage, LAST};
use heddle_nvmfs::format::inode::INODE_BYTES;
use heddle_nvmfs::format::page::{PageHeader, next_pos, slot_pos};
use heddle_nvmfs::format::pointer::{self, PointerLocation};
use heddle_nvmfs::format::record::{Blocks, Record, Txn};
use heddle_nvmfs::format::superblock::{FoundSuperblock, MOUNTS_MAX, SUPERBLOCK_BYTES, Superblock};
use heddle_nvmfs::ids::{BlockNo, PageNo, Version};
use heddle_pmem::Pos;
use heddle_vfs::{FileKind, Ino};
use zerocopy::IntoBytes;

/// In the image of a file of a hundred records in two log pages, a directory, a link, and a file with attributes of two blocks.
pub const DAMAGES: &[(&str, Damage)] = &[
    ("record: a bit", |v| v.flip(v.slot(0, 5, 2), &[7])),
    ("record: two bits", |v| v.flip(v.slot(0, 5, 2), &[7, 8])),
    ("record: a word is missing", |v| v.zero(v.slot(0, 5, 3), 1)),
    ("record: its mark is missing", |v| v.zero(v.slot(0, 5, 7), 1)),
    ("record: its mark is another one", |v| v.flip(v.slot(0, 5, 7), &[3])),
    ("record: it is missing", |v| v.zero(v.slot(0, 5, 0), 8)),
    ("records: three are missing", |v| v.zero(v.slot(0, 5, 0), 24)),
    ("record: the first is missing", |v| v.zero(v.slot(0, 1, 0), 8)),
    ("record: the last of the first page is missing", |v| v.zero(v.slot(0, 63, 0), 8)),
    ("record: the last is missing", |v| {
        let page = v.plain.log(v.plain.file, 1);
        let (slot, record, _) = v.craft.records(page).pop().unwrap();
        v.zero(slot_pos(page, slot), 8 * u64::from(record.slots_in(v.craft.header(page).owner)));
    }),
    ("unused slot: a bit", |v| v.flip(v.slot(1, 63, 4), &[9])),
    ("unused slot: two bits", |v| v.flip(v.slot(1, 63, 4), &[9, 62])),
    ("unused slot: two whole words", |v| {
        v.craft.store(v.slot(1, 63, 4), 3 << 62 | 5);
        v.craft.store(v.slot(1, 63, 5), 3 << 62 | 6);
    }),
    ("record: a later transaction in it", |v| {
        let page = v.plain.log(v.plain.file, 0);
        let (slot, record, _) = v.craft.records(page).swap_remove(9);
        v.craft.put(page, slot, &record, Txn { first: slot - 1, slots: 2 }, true);
    }),
    ("record: beyond its transaction", |v| {
        let page = v.plain.log(v.plain.file, 0);
        let (slot, record, _) = v.craft.records(page).swap_remove(9);
        v.craft.put(page, slot, &record, Txn { first: slot + 1, slots: 1 }, true);
    }),
    ("record: of a transaction beyond its page", |v| {
        let page = v.plain.log(v.plain.file, 0);
        let (slot, record, _) = v.craft.records(page).pop().unwrap();
        v.craft.put(page, slot, &record, Txn { first: slot, slots: 2 }, true);
    }),
    ("record: a version that no file reaches", |v| {
        v.record(0, |record| match record {
            Record::Write { version, .. } => {
                *version = Version(Version::LIMIT / 2);
                true
            }
            _ => false,
        });
    }),
    ("record: the last version that is believed", |v| {
        v.record(0, |record| match record {
            Record::Write { version, .. } => {
                *version = Version(Version::LIMIT / 2 - 1);
                true
            }
            _ => false,
        });
    }),
    ("record: a block beyond the image", |v| {
        v.record(0, |record| match record {
            Record::Write { page, blocks: Blocks::At(block), .. } if page.0 == 7 => {
                block.0 = LAST;
                true
            }
            _ => false,
        });
    }),
    ("record: a block before the data", |v| {
        v.record(0, |record| match record {
            Record::Write { page, blocks: Blocks::At(block), .. } if page.0 == 7 => {
                block.0 = 1;
                true
            }
            _ => false,
        });
    }),
    ("record: a size that no file has", |v| {
        v.record(0, |record| match record {
            Record::Attributes(attributes) => {
                attributes.size = (1 << 49) - 1;
                true
            }
            Record::Write { page, end_in_last_page, .. } if page.0 == 7 => {
                page.0 = (1 << 36) - 1;
                *end_in_last_page = 4096;
                true
            }
            _ => false,
        });
    }),
    ("page: a bit of its header", |v| v.flip(v.slot(1, 0, 2), &[3])),
    ("page: two bits of its header", |v| v.flip(v.slot(1, 0, 2), &[3, 4])),
    ("page: two bits of the first one's header", |v| v.flip(v.slot(0, 0, 2), &[3, 4])),
    ("page: of another chain", |v| v.header(1, |header| header.chain = 1)),
    ("page: of another inode", |v| v.header(1, |header| header.owner.ino = Ino(77))),
    ("page: of a later mount", |v| v.header(1, |header| header.epoch += 5)),
    ("page: of the last mount that is believed", |v| {
        v.header(1, |header| header.epoch = MOUNTS_MAX / 2 - 1);
    }),
    ("page: of a mount that is not believed", |v| v.header(1, |header| header.epoch = MOUNTS_MAX / 2)),
    ("page: of a mount that never comes", |v| v.header(1, |header| header.epoch = MOUNTS_MAX + 1)),
    ("next: a bit", |v| v.flip(v.slot(0, 0, 7), &[50])),
    ("next: two bits", |v| v.flip(v.slot(0, 0, 7), &[50, 51])),
    ("next: a bit of the block", |v| v.flip(v.slot(0, 0, 7), &[9])),
    ("next: missing", |v| v.zero(v.slot(0, 0, 7), 1)),
    ("next: to itself", |v| {
        let (page, id) = (v.plain.log(v.plain.file, 0), v.craft.id(v.plain.file));
        let next = pointer::encode(v.craft.seed, id, PointerLocation::Next(page), page);
        v.craft.store(next_pos(page), next);
    }),
    ("next: out of the image", |v| {
        let (page, id) = (v.plain.log(v.plain.file, 0), v.craft.id(v.plain.file));
        let next = pointer::encode(v.craft.seed, id, PointerLocation::Next(page), BlockNo(LAST));
        v.craft.store(next_pos(page), next);
    }),
    ("next: to the link's log", |v| {
        let (page, id) = (v.plain.log(v.plain.file, 0), v.craft.id(v.plain.file));
        let to = v.plain.log(v.plain.link, 0);
        let next = pointer::encode(v.craft.seed, id, PointerLocation::Next(page), to);
        v.craft.store(next_pos(page), next);
    }),
    ("head: a bit", |v| v.flip(v.inode(v.plain.file, 8), &[44])),
    ("head: two bits", |v| v.flip(v.inode(v.plain.file, 8), &[44, 45])),
    ("head: missing", |v| v.zero(v.inode(v.plain.file, 8), 1)),
    ("head: a second one where none is", |v| v.flip(v.inode(v.plain.file, 9), &[9])),
    ("head: two bits where none is", |v| v.flip(v.inode(v.plain.file, 9), &[9, 44])),
    ("head: a second chain", |v| {
        let id = v.craft.id(v.plain.file);
        let free = v.plain.owners.iter().map(|owner| owner.block.0 + owner.count).max().unwrap();
        let page = BlockNo(free + 10);
        let header = PageHeader { owner: id, epoch: 1, lane: 1, serial: 99, chain: 1, era: 9 };
        v.craft.region.nt_line(page.pos(), &header.encode(v.craft.seed));
        let head = pointer::encode(v.craft.seed, id, PointerLocation::Head(1), page);
        v.craft.store(v.inode(v.plain.file, 9), head);
    }),
    ("heads: a bit where no block is", |v| v.flip(v.inode(v.plain.file, 14), &[9])),
    ("heads: a block of the log", |v| {
        let (page, id) = (v.plain.log(v.plain.link, 0), v.craft.id(v.plain.file));
        let heads = pointer::encode(v.craft.seed, id, PointerLocation::HeadBlock, page);
        v.craft.store(v.inode(v.plain.file, 14), heads);
    }),
    ("heads: out of the image", |v| {
        let id = v.craft.id(v.plain.file);
        let heads = pointer::encode(v.craft.seed, id, PointerLocation::HeadBlock, BlockNo(LAST));
        v.craft.store(v.inode(v.plain.file, 14), heads);
    }),
    ("heads: an empty block", |v| {
        let id = v.craft.id(v.plain.file);
        let heads = pointer::encode(v.craft.seed, id, PointerLocation::HeadBlock, BlockNo(LAST - 1));
        v.craft.store(v.inode(v.plain.file, 14), heads);
    }),
    ("tail: a bit", |v| v.flip(v.inode(v.plain.file, 15), &[60])),
    ("tail: two bits", |v| v.flip(v.inode(v.plain.file, 15), &[60, 61])),
    ("tail: missing or one where none is", |v| {
        let at = v.inode(v.plain.file, 15);
        let word = v.craft.region.load_u64(at);
        v.craft.store(at, if word == 0 { 1 << 20 } else { 0 });
    }),
    ("tail: before the end", |v| {
        let (page, id) = (v.plain.log(v.plain.file, 1), v.craft.id(v.plain.file));
        v.craft.store(v.inode(v.plain.file, 15), pointer::encode_tail(v.craft.seed, id, page, 4));
    }),
    ("tail: behind the end", |v| {
        let (page, id) = (v.plain.log(v.plain.file, 1), v.craft.id(v.plain.file));
        v.craft.store(v.inode(v.plain.file, 15), pointer::encode_tail(v.craft.seed, id, page, 60));
    }),
    ("tail: in another log", |v| {
        let (page, id) = (v.plain.log(v.plain.link, 0), v.craft.id(v.plain.file));
        v.craft.store(v.inode(v.plain.file, 15), pointer::encode_tail(v.craft.seed, id, page, 1));
    }),
    ("slot: a bit", |v| v.flip(v.inode(v.plain.file, 3), &[5])),
    ("slot: two bits", |v| v.flip(v.inode(v.plain.file, 3), &[5, 6])),
    ("slot: a word is missing", |v| v.zero(v.inode(v.plain.file, 3), 1)),
    ("slot: it is missing", |v| v.zero(v.inode(v.plain.file, 0), 8)),
    ("slot: all of it is missing", |v| v.zero(v.inode(v.plain.file, 0), 16)),
    ("slot: a directory's is missing", |v| v.zero(v.inode(v.plain.dir, 0), 16)),
    ("slot: the root's is missing", |v| v.zero(v.inode(Ino::ROOT, 0), 8)),
    ("free slot: a bit", |v| v.flip(v.inode(Ino(20), 3), &[5])),
    ("free slot: two bits", |v| v.flip(v.inode(Ino(20), 3), &[5, 6])),
    ("free slot: two whole words", |v| {
        v.craft.store(v.inode(Ino(20), 3), 3 << 62 | 5);
        v.craft.store(v.inode(Ino(20), 4), 3 << 62 | 5);
    }),
    ("free slot: a bit of a pointer", |v| v.flip(v.inode(Ino(20), 9), &[5])),
    ("free slot: a pointer", |v| v.flip(v.inode(Ino(20), 9), &[5, 7])),
    ("slot of nobody: a bit", |v| v.flip(v.inode(Ino(0), 3), &[5])),
    ("slot of nobody: its last word", |v| v.flip(v.inode(Ino(0), INODE_BYTES / 8 - 1), &[5, 6])),
    ("directory: a bit of a pointer", |v| v.flip(v.craft.layout().chunk_pointer(0), &[50])),
    ("directory: two bits of a pointer", |v| v.flip(v.craft.layout().chunk_pointer(0), &[50, 51])),
    ("directory: a pointer is missing", |v| v.zero(v.craft.layout().chunk_pointer(0), 1)),
    ("directory: a pointer out of the image", |v| {
        let out = pointer::encode(v.craft.seed, DIRECTORY, PointerLocation::InodeChunk(0), BlockNo(LAST));
        v.craft.store(v.craft.layout().chunk_pointer(0), out);
    }),
    ("directory: a bit where no chunk is", |v| v.flip(v.craft.layout().chunk_pointer(9), &[50])),
    ("directory: two bits where no chunk is", |v| v.flip(v.craft.layout().chunk_pointer(9), &[50, 51])),
    ("directory: a pointer of another chunk", |v| {
        let chunk = v.plain.block_of("inode chunk 0", 0);
        let again = pointer::encode(v.craft.seed, DIRECTORY, PointerLocation::InodeChunk(9), chunk);
        v.craft.store(v.craft.layout().chunk_pointer(9), again);
    }),
    ("directory: a pointer to data", |v| {
        let data = v.plain.owners.iter().find(|owner| owner.data).unwrap().block;
        let to = pointer::encode(v.craft.seed, DIRECTORY, PointerLocation::InodeChunk(9), data);
        v.craft.store(v.craft.layout().chunk_pointer(9), to);
    }),
    ("directory: behind its last pointer", |v| {
        v.craft.store(v.craft.layout().chunk_pointer(v.craft.layout().chunks_max), 5);
    }),
    ("directory: in its last word", |v| v.craft.store(Pos(v.craft.layout().data.pos().0 - 8), 5)),
    ("superblock: a bit of the first", |v| v.flip(Pos(24), &[5])),
    ("superblock: two bits of the first", |v| v.flip(Pos(24), &[5, 6])),
    ("superblock: two bits of the second", |v| v.flip(BlockNo(LAST).pos().plus(24), &[5, 6])),
    ("superblock: a bit of both", |v| {
        v.flip(Pos(24), &[5]);
        v.flip(BlockNo(LAST).pos().plus(24), &[7]);
    }),
    ("superblock: two bits of both", |v| {
        v.flip(Pos(24), &[5, 6]);
        v.flip(BlockNo(LAST).pos().plus(24), &[7, 8]);
    }),
    ("superblock: something behind the first", |v| v.craft.store(Pos(4088), 5)),
    ("superblock: something behind the second", |v| {
        v.craft.store(BlockNo(LAST).pos().plus(SUPERBLOCK_BYTES as u64), 5);
    }),
    ("superblock: not unmounted", |v| [0, LAST].iter().for_each(|b| v.superblock(*b, |sb| sb.clean.set(0)))),
    ("superblock: the second is older", |v| {
        v.superblock(LAST, |sb| sb.sequence.set(sb.sequence.get() - 1));
    }),
    ("superblock: the second is newer", |v| {
        v.superblock(LAST, |sb| sb.sequence.set(sb.sequence.get() + 1));
    }),
    ("superblock: the second is torn", |v| {
        let (mut bytes, at) = ([0; SUPERBLOCK_BYTES], BlockNo(LAST).pos());
        v.craft.region.read(at, &mut bytes);
        let FoundSuperblock::Whole(mut sb) = Superblock::decode(&bytes) else { panic!("no superblock") };
        sb.sequence.set(sb.sequence.get() + 1);
        sb.epoch.set(sb.epoch.get() + 1);
        v.craft.region.nt_write(at, sb.as_bytes());
    }),
    ("superblock: the second is torn, two mounts on", |v| {
        let (mut bytes, at) = ([0; SUPERBLOCK_BYTES], BlockNo(LAST).pos());
        v.craft.region.read(at, &mut bytes);
        let FoundSuperblock::Whole(mut sb) = Superblock::decode(&bytes) else { panic!("no superblock") };
        sb.sequence.set(sb.sequence.get() + 2);
        v.craft.region.nt_write(at, sb.as_bytes());
    }),
    ("superblock: another image's", |v| v.superblock(LAST, |sb| sb.uuid[3] ^= 1)),
    ("superblock: a block more than there is", |v| {
        [0, LAST].iter().for_each(|b| v.superblock(*b, |sb| sb.blocks_total.set(LAST + 2)));
    }),
    ("superblock: a data area that is none", |v| {
        [0, LAST].iter().for_each(|b| v.superblock(*b, |sb| sb.data_block.set(9)));
    }),
    ("superblock: worn out", |v| {
        [0, LAST].iter().for_each(|b| v.superblock(*b, |sb| sb.epoch.set(MOUNTS_MAX)));
    }),
    ("attributes: a bit", |v| {
        let at = v.plain.block_of(&format!("attributes of inode {}", v.plain.noted.0), 0);
        v.flip(at.pos().plus(800), &[5]);
    }),
    ("attributes: two bits", |v| {
        let at = v.plain.block_of(&format!("attributes of inode {}", v.plain.noted.0), 1);
        v.flip(at.pos().plus(80), &[5, 6]);
    }),
    ("link: a target of no bytes", |v| {
        v.craft.change(v.plain.log(v.plain.link, 0), |record| match record {
            Record::Write { end_in_last_page, .. } if *end_in_last_page != 0 => {
                *end_in_last_page = 0;
                true
            }
            Record::Attributes(attributes) => {
                attributes.size = 0;
                true
            }
            _ => false,
        });
    }),
    ("name: of another kind", |v| {
        v.craft.change(v.plain.log(Ino::ROOT, 0), |record| match record {
            Record::Name { kind: kind @ FileKind::Symlink, .. } => {
                *kind = FileKind::Fifo;
                true
            }
            _ => false,
        });
    }),
    ("name: of an inode that cannot be", |v| {
        v.craft.change(v.plain.log(Ino::ROOT, 0), |record| match record {
            Record::Name { kind: FileKind::Symlink, child, .. } => {
                child.ino = v.craft.layout().ino_end();
                true
            }
            _ => false,
        });
    }),
    ("name: of an inode that is not there", |v| {
        v.craft.change(v.plain.log(Ino::ROOT, 0), |record| match record {
            Record::Name { kind: FileKind::Symlink, child, .. } => {
                child.generation += 1;
                true
            }
            _ => false,
        });
    }),
    ("name: a directory's second one", |v| {
        let id = v.craft.id(v.plain.dir);
        v.craft.change(v.plain.log(Ino::ROOT, 0), |record| match record {
            Record::Name { kind: kind @ FileKind::Symlink, child, .. } => {
                (*kind, *child) = (FileKind::Directory, id);
                true
            }
            _ => false,
        });
    }),
    ("name: it is removed", |v| {
        v.craft.change(v.plain.log(Ino::ROOT, 0), |record| match record {
            Record::Name { kind: FileKind::Directory, removed, .. } => {
                *removed = true;
                true
            }
            _ => false,
        });
    }),
    ("name: data among names", |v| {
        let page = v.plain.log(v.plain.dir, 0);
        let (slot, record, txn) =
            v.craft.records(page).into_iter().find(|(.., txn)| txn.slots == 1).expect("a record of one line");
        let Record::Name { version, mtime, change_count, .. } = record else { panic!("{record:?}") };
        let data = Record::Punch { page: PageNo(0), pages: 1, version, mtime, change_count };
        v.craft.put(page, slot, &data, txn, true);
    }),
];
