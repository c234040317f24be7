//! The blocks that are freed with an inode: those of its pages and those of its log.

use crate::file::shift;
use crate::format::extent_list::{self, EXTENTS_A_BLOCK};
use crate::format::page::{PageHeader, SLOTS, slot_pos};
use crate::format::record::{Blocks, FoundRecord, Record, parse};
use crate::ids::{BlockNo, Extent, InodeId, PageNo, add_extent};
use crate::log::chain;
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::xattr;
use heddle_vfs::Result;

/// Blocks of its pages.
pub fn data_blocks(core: &Core, inode: InodeRef<'_>) -> Vec<Extent> {
    let mut extents = Vec::new();
    let runs = inode.volatile.index().runs(&core.arena, PageNo(0), PageNo::END);
    for block in runs.flat_map(|run| run.cells).filter_map(|cell| cell.map().block()) {
        add_extent(&mut extents, block);
    }
    extents
}

/// The blocks that hold a record's extent list or remap blob (not the data blocks). `None` if they cannot be read. Cleaning then keeps the
/// log page; the end of the inode leaks the blocks.
pub fn list_blocks(core: &Core, inode: InodeRef<'_>, record: &Record) -> Option<Vec<Extent>> {
    let mut blocks = Vec::new();
    if let Record::Remap { blob, .. } = *record {
        return shift::read_map(core, inode.id(), blob).map(|(_, blocks)| blocks);
    }
    if let Record::Write { blocks: Blocks::List(first), pages, .. } = *record {
        blocks = read_list(core, inode.id(), first, pages)?.blocks;
    }
    Some(blocks)
}

/// An extent list.
pub struct ExtentList {
    /// The blocks of the write's pages.
    pub extents: Vec<Extent>,
    /// The list's own blocks.
    pub blocks: Vec<Extent>,
}

/// The extent list of a write of `pages` pages; `None` if it is damaged. An attached process can forge one that
/// leads in a circle. So each extent must add pages, and each block but the last must be full.
pub fn read_list(core: &Core, owner: InodeId, first: BlockNo, pages: u64) -> Option<ExtentList> {
    let mut list = ExtentList { extents: Vec::new(), blocks: Vec::new() };
    let (mut next, mut count) = (Some(first), 0);
    while let Some(at) = next.filter(|at| core.layout.holds(*at, 1)) {
        list.blocks.push(Extent { block: at, count: 1 });
        let word = |i: usize| core.region.load_u64(at.pos().plus(i as u64 * 8));
        let (part, following) = extent_list::decode(core.seed, owner, at, word)?;
        count += part.iter().map(|e| e.count).sum::<u64>();
        let whole = following.is_none() || part.len() == EXTENTS_A_BLOCK;
        if !whole || count > pages || part.iter().any(|e| e.count == 0) {
            return None;
        }
        list.extents.extend(part);
        next = following;
    }
    (next.is_none() && count == pages).then_some(list)
}

/// Every block of the log of an inode that ends: log pages, spare pages, extent lists, remap blobs, the block of chain heads, the xattr
/// blob.
pub fn log_blocks(core: &Core, inode: InodeRef<'_>) -> Result<Vec<Extent>> {
    let mut out = Vec::new();
    for chain in chain::existing(core, inode) {
        for page in chain::pages_of(core, inode, chain) {
            let page = page?;
            out.push(Extent { block: page, count: 1 });
            if let Some(header) = PageHeader::decode(core.seed, &core.region.line(page.pos())) {
                let seed = header.record_seed(core.seed);
                for slot in 1..=SLOTS {
                    if let FoundRecord::Whole { record, .. } =
                        parse(seed, inode.id(), slot, |s| core.region.line(slot_pos(page, s)))
                    {
                        out.extend(list_blocks(core, inode, &record).unwrap_or_default());
                        // Forged records may all name one long list.
                        if out.len() as u64 > core.layout.blocks_total {
                            return Err(core.damage(format!("inode {}: the blocks of its log", inode.ino.0)));
                        }
                    }
                }
            }
        }
        out.extend(chain.spare());
    }
    out.extend(chain::head_block(core, inode));
    out.extend(xattr::blocks(core, inode));
    Ok(out)
}
