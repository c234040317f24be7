//! The transaction that a lane was writing when its holder died: it is read back, and made visible if it is
//! whole.
//!
//! Applying it twice does no harm. Size and attributes are changed only while the lane still holds the EOF
//! latch, and cells only while it still holds them. A version floor only rises.

use crate::file::cells::wake;
use crate::file::{blocks, resize, shift};
use crate::format::page::{PageHeader, SLOTS, slot_pos};
use crate::format::record::{Attributes, Blocks, FoundRecord, Record, lane_of, parse};
use crate::ids::{BlockNo, Extent, PageNo, Version, add_extent};
use crate::planted::{Bug, planted};
use crate::state::cell::Map;
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lane::LaneLocal;
use crate::upkeep::recovery::scan;
use crate::xattr;

/// Records of the transaction that `lane` began in this slot; empty if it is not whole. Records behind it may
/// be those of another lane that has used the chain since.
pub fn written(core: &Core, lane: u16, inode: InodeRef<'_>, page: BlockNo, slot: u32) -> Vec<Record> {
    if !core.layout.holds(page, 1) {
        return Vec::new();
    }
    let header = PageHeader::decode(core.seed, &core.region.line(page.pos()));
    let Some(header) = header.filter(|header| header.owner == inode.id()) else { return Vec::new() };
    let line = |slot: u32| core.region.line(slot_pos(page, slot));
    let txn = match parse(header.record_seed(core.seed), inode.id(), slot, line) {
        FoundRecord::Whole { txn, .. } if lane_of(&line(slot)) == lane => txn.first..txn.first + txn.slots,
        _ => return Vec::new(),
    };
    match scan(core).page(inode.id(), &header, page, SLOTS + 1) {
        Ok(found) => {
            found.records.into_iter().filter(|(at, _)| txn.contains(at)).map(|(_, record)| record).collect()
        }
        Err(damage) => {
            let _noted = core.damage(damage.0);
            Vec::new()
        }
    }
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
    use crate::state::lease;
    use crate::variant::Variant;
    use crate::volume::{MountOptions, format, mount};
    use heddle_pmem::Region;
    use heddle_vfs::short::Short;
    use heddle_vfs::{FileSystem, Ino};

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
