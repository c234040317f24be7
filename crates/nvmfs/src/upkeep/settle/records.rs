//! The transaction that a lane was writing when its holder died: it is read back, and made visible if it is
//! whole.
//!
//! Applying it twice does no harm. Size and attributes are changed only while the lane still holds the EOF
//! latch, and cells only while it still holds them. A version floor only rises.

use crate::file::cells::wake;
use crate::file::{blocks, resize, shift};
use crate::format::page::{PageHeader, SLOTS, slot_pos};
use crate::format::record::{Attributes, Blocks, FoundRecord, Record, lane_of, parse};
use crate::format::word::Line;
use crate::ids::{BlockNo, Extent, InodeId, PageNo, Version, add_extent};
use crate::planted::{Bug, planted};
use crate::state::cell::Map;
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lane::LaneLocal;
use crate::steps::{Step, step};
use crate::xattr;
use heddle_arena::sync::atomic::fence;
use std::sync::atomic::Ordering::Acquire;

/// Records of the transaction that `lane` began in this slot; empty if it is not whole. Only its own slots are read: the chain may be
/// another lane's by now, which appends behind them, or has freed the page.
pub fn written(core: &Core, lane: u16, inode: InodeRef<'_>, page: BlockNo, slot: u32) -> Vec<Record> {
    if !core.layout.holds(page, 1) {
        return Vec::new();
    }
    let header = || PageHeader::decode(core.seed, &core.region.line(page.pos()));
    let Some(before) = header().filter(|header| header.owner == inode.id()) else { return Vec::new() };
    let line = |slot: u32| core.region.line(slot_pos(page, slot));
    let records = transaction(before.record_seed(core.seed), inode.id(), lane, slot, line);
    step(Step::Settling);
    // ORDERING: Acquire: the records were loaded before the header is loaded again. A lane that reuses the block clears its header and
    // fences before it stores a record.
    fence(Acquire);
    records.filter(|_| header() == Some(before)).unwrap_or_default()
}

/// The records of the transaction that the lane began in this slot; `None` if it is not whole.
fn transaction(
    seed: u32,
    home: InodeId,
    lane: u16,
    first: u32,
    line: impl Fn(u32) -> Line,
) -> Option<Vec<Record>> {
    if !(1..=SLOTS).contains(&first) || lane_of(&line(first)) != lane {
        return None;
    }
    let (mut records, mut slot, mut end) = (Vec::new(), first, first + 1);
    while slot < end {
        let FoundRecord::Whole { record, slots, txn, mark: Some(true) } = parse(seed, home, slot, &line)
        else {
            return None;
        };
        if slot == first {
            end = first + txn.slots;
        }
        let is_its = (txn.first, txn.first + txn.slots) == (first, end);
        if !is_its || slot + slots > end || end > SLOTS + 1 {
            return None;
        }
        records.push(record);
        slot += slots;
    }
    Some(records)
}

/// Makes the records visible. Replaced blocks are added to `garbage`.
pub fn apply(
    core: &Core,
    own: &mut LaneLocal,
    lane: u16,
    inode: InodeRef<'_>,
    records: &[Record],
    garbage: &mut Vec<Extent>,
) {
    let moves_eof = inode.volatile.eof.held_by(lane);
    let mut replaced = Vec::new();
    for record in records {
        match *record {
            Record::Write { page, pages, blocks, end_in_last_page, version, mtime, change_count } => {
                let says_size = end_in_last_page != 0 && !planted(Bug::SettledSizeStays);
                if moves_eof && says_size && change_count == inode.volatile.change_count() {
                    let end = PageNo(page.0 + pages - 1).offset() + u64::from(end_in_last_page);
                    inode.volatile.set_size(end.max(inode.volatile.size()));
                }
                inode.volatile.touch(mtime);
                if let Some(blocks) = blocks_of(core, inode, pages, blocks) {
                    publish(core, lane, inode, (page, pages), version, |n| blocks.map(n), &mut replaced);
                }
            }
            Record::Punch { page, pages, version, .. } => {
                inode.volatile.raise_floor(version);
                if moves_eof && page.0 + pages >= PageNo::END.0 {
                    inode.volatile.note_tombstone(page, version);
                }
                publish(core, lane, inode, (page, pages), version, |_| Map::HOLE, &mut replaced);
            }
            Record::Attributes(state) if moves_eof && is_news(inode, state) => {
                // A writer may have advanced mtime since.
                let change = core.lane(lane).intent.mtime_change(state.mtime);
                resize::apply(inode, std::slice::from_ref(record), change);
            }
            Record::Xattrs { blob, change_count, .. } if moves_eof => {
                match xattr::roll_forward(core, own, inode, change_count, blob) {
                    Ok(old) => garbage.extend(old),
                    Err(error) => {
                        let _noted = core.damage(error.to_string());
                    }
                }
            }
            Record::Attributes(_) | Record::Name { .. } | Record::Xattrs { .. } => {}
            Record::Remap { page, blob, version, .. } => {
                inode.volatile.raise_floor(version);
                if moves_eof {
                    inode.volatile.note_tombstone(page, version);
                }
                match shift::read_map(core, inode.id(), blob) {
                    Some((runs, _)) => {
                        shift::roll_forward(core, lane, inode, page, version, &runs, &mut replaced)
                    }
                    None => {
                        let _noted = core.damage(format!("inode {}: the map of its pages", inode.ino.0));
                    }
                }
            }
        }
    }
    // A reader with a pin may still copy from the blocks. They are free at the next mount then.
    if inode.volatile.pins.now().none() {
        garbage.extend(replaced);
    }
}

/// Returns true if the attributes may not all be in memory. Cleaning logs those of a directory again as they are.
fn is_news(inode: InodeRef<'_>, recorded: Attributes) -> bool {
    !inode.volatile.is_directory() || recorded.change_count > inode.volatile.change_count()
}

/// The blocks of a write's pages.
struct WrittenBlocks {
    /// The first page of each extent, counted from the write's first page, and its first block.
    runs: Vec<(u64, BlockNo)>,
    unwritten: bool,
}

impl WrittenBlocks {
    fn map(&self, n: u64) -> Map {
        let (first, block) = self.runs[self.runs.partition_point(|(first, _)| *first <= n) - 1];
        let block = block.plus(n - first);
        if self.unwritten { Map::unwritten(block) } else { Map::data(block) }
    }
}

/// `None` if the extent list cannot be read.
fn blocks_of(core: &Core, inode: InodeRef<'_>, pages: u64, blocks: Blocks) -> Option<WrittenBlocks> {
    let first = match blocks {
        Blocks::At(block) => return Some(WrittenBlocks { runs: vec![(0, block)], unwritten: false }),
        Blocks::Unwritten(block) => return Some(WrittenBlocks { runs: vec![(0, block)], unwritten: true }),
        Blocks::List(first) => first,
    };
    let Some(list) = blocks::read_list(core, inode.id(), first, pages) else {
        let _noted = core.damage(format!("inode {}: extent list block {}", inode.ino.0, first.0));
        return None;
    };
    let mut page = 0;
    let runs = list.extents.iter().map(|extent| {
        let first = page;
        page += extent.count;
        (first, extent.block)
    });
    Some(WrittenBlocks { runs: runs.collect(), unwritten: false })
}

/// Publishes the record in those of its cells that the lane still holds, and unlocks them.
fn publish(
    core: &Core,
    lane: u16,
    inode: InodeRef<'_>,
    (first, pages): (PageNo, u64),
    version: Version,
    map: impl Fn(u64) -> Map,
    replaced: &mut Vec<Extent>,
) {
    let end = PageNo((first.0 + pages).min(PageNo::END.0));
    let mut change = 0i64;
    for run in inode.volatile.index().runs(&core.arena, first, end) {
        for (cell, n) in run.cells.iter().zip(run.page.0 - first.0..) {
            let lock_version = cell.lock_version();
            if !lock_version.locked() || lock_version.lane() != lane {
                continue;
            }
            let (old, new) = (cell.map(), map(n));
            change += i64::from(new.block().is_some()) - i64::from(old.block().is_some());
            if let Some(block) = old.block().filter(|block| new.block() != Some(*block)) {
                add_extent(replaced, block);
            }
            if cell.publish(new, version) {
                wake(core, cell);
            }
        }
    }
    inode.volatile.count_blocks(change);
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::format::extent_list;
    use crate::format::record::Txn;
    use crate::state::lease;
    use crate::variant::Variant;
    use crate::volume::{MountOptions, format, mount};
    use heddle_pmem::Region;
    use heddle_vfs::short::Short;
    use heddle_vfs::{FileSystem, Ino, Time};

    /// What is found of a transaction of lane 7 in a page, of which these records are stored: each at its slot, with its transaction.
    fn found(stored: &[(u32, Txn, &Record)], first: u32) -> Option<Vec<Record>> {
        let home = InodeId { ino: Ino(5), generation: 3 };
        let mut lines = [[0; 8]; SLOTS as usize + 1];
        for (slot, txn, record) in stored {
            let mut draft = record.draft(home, 7);
            for (at, line) in (*slot as usize..).zip(draft.seal(1, *slot, *txn, true)) {
                lines[at] = *line;
            }
        }
        transaction(1, home, 7, first, |slot| lines[slot as usize])
    }

    #[test]
    fn a_transaction_is_found_only_if_all_of_it_is_there() {
        let (mtime, ctime, atime) = (Time(0), Time(0), Time(0));
        let sized = |size| Attributes { size, perm: 0, uid: 0, gid: 0, mtime, ctime, atime, change_count: 1 };
        // Of two slots each.
        let [a, b] = [1, 2].map(|size| Record::Attributes(sized(size)));
        let txn = |first, slots| Txn { first, slots };
        let both = Some(vec![a.clone(), b.clone()]);
        assert_eq!(found(&[(9, txn(9, 4), &a), (11, txn(9, 4), &b)], 9), both);
        assert_eq!(found(&[(60, txn(60, 4), &a), (62, txn(60, 4), &b)], 60), both, "the last of a page");
        assert_eq!(found(&[(9, txn(9, 2), &a), (11, txn(11, 2), &b)], 9), Some(vec![a.clone()]));
        for (stored, first) in [
            (&[(9, txn(9, 4), &a)][..], 9),
            (&[(9, txn(9, 4), &a), (11, txn(11, 2), &b)], 9),
            (&[(9, txn(9, 4), &a), (11, txn(9, 2), &b)], 9),
            (&[(9, txn(9, 3), &a), (11, txn(9, 3), &b)], 9),
            (&[(9, txn(9, 4), &a), (11, txn(9, 4), &b)], 11),
            (&[(9, txn(9, 4), &a), (11, txn(9, 4), &b)], 10),
            (&[(9, txn(9, 0), &a)], 9),
            (&[(62, txn(62, 4), &a)], 62),
            (&[(9, txn(9, 2), &a)], 0),
            (&[(9, txn(9, 2), &a)], SLOTS + 1),
        ] {
            assert_eq!(found(stored, first), None, "{stored:?} from {first}");
        }
    }

    #[test]
    fn each_page_of_a_write_has_its_block_of_the_list() {
        let region = Region::anonymous(8 << 20).unwrap();
        format(&region, Variant::Heddle).unwrap();
        let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        let volume = mount(region, &options).unwrap();
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        let (core, inode) = (&fs.core, fs.core.inode(file.ino).unwrap());
        // The last block is free, and nobody takes it here.
        let list = BlockNo(core.layout.blocks_total - 9);
        let extents =
            [(1000, 3), (1100, 1), (1200, 2)].map(|(block, count)| Extent { block: BlockNo(block), count });
        let words = extent_list::encode(core.seed, inode.id(), list, &extents, None);
        (0..).zip(words).for_each(|(n, word)| core.region.store_u64(list.pos().plus(n * 8), word));
        let maps = |blocks: Blocks| {
            let blocks = blocks_of(core, inode, 6, blocks)?;
            Some(std::array::from_fn::<Map, 6, _>(|n| blocks.map(n as u64)))
        };
        let of = |blocks: [u64; 6], map: fn(BlockNo) -> Map| Some(blocks.map(|block| map(BlockNo(block))));
        assert_eq!(maps(Blocks::List(list)), of([1000, 1001, 1002, 1100, 1200, 1201], Map::data));
        let one = [1300, 1301, 1302, 1303, 1304, 1305];
        assert_eq!(maps(Blocks::At(BlockNo(1300))), of(one, Map::data));
        assert_eq!(maps(Blocks::Unwritten(BlockNo(1300))), of(one, Map::unwritten));
        assert_eq!(core.damage_found(), None);
        assert!(
            maps(Blocks::List(BlockNo(1300))).is_none() && core.damage_found().is_some(),
            "no list is there"
        );
        fs.release(file);
        lease::leave(core);
        drop(fs);
        volume.abandon();
    }
}
