//! Which records of a log are dead, and how pages of dead records are freed.
//!
//! Invariants  I1  a record that is the only one to carry the size stays (D5b). So does the last attribute record.
//!             I2  a tombstone stays while an older record that it covers may be reachable. It is dead in four cases. 1. It lies in the
//!                 first page of its chain, and the first page of every other chain was made after that page was full: eras
//!                 decide that. 2. It is of pages, and a later truncation or shift covers all of them. 3. It is a punch, and newer
//!                 records decide all pages of its range that have cells. A page without a cell has no older record. 4. It is a removal,
//!                 and a newer record makes its name.
//!                 In case 1 a removal stays while a rename's foreign record of the directory may count
//!                 (`VolatileInode::foreign_record_may_count`). Such a record lies in another directory's log. It no longer counts once
//!                 the directory's log has a later attribute record.
//!                 A remap in the first page of its chain also stays while a page has its content from it.
//!             I3  the page that other lanes see as a chain's first (`Chain::oldest`) moves on only after the fence that follows the
//!                 unlinking. Otherwise a power cut could bring back an older record whose tombstone was dropped meanwhile.
//! Source      garbage collection of NOVA, the rules changed for many chains: docs/protocol.md D5, P7, P8.

use crate::alloc::free_later;
use crate::file::shift;
use crate::format::page::{PageHeader, SLOTS};
use crate::format::record::{PlainWrite, Record};
use crate::format::word::Line;
use crate::ids::{BlockNo, Extent, PageNo, Version};
use crate::log::chain::{self, Chain};
use crate::names::table;
use crate::planted::{Bug, planted};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::xattr;
use heddle_arena::sync::atomic::fence;
use heddle_pmem::BLOCK_BYTES;
use std::sync::atomic::Ordering::{Acquire, Relaxed};
use zerocopy::IntoBytes;

/// Living records are logged anew when a log has more than this many times the pages that they need, and a few pages more.
const SLACK: u64 = 4;

/// Most cells that are examined to find a page that a punch decides. In a larger range the punch stays.
// The unit tests reach the limit with few pages.
const CELLS_MAX: usize = if cfg!(test) { 64 } else { 4096 };

/// Most pages that one call logs anew while space is scarce.
const PAGES_MOVED_MAX: u32 = 8;

/// Frees unlinked pages.
pub fn free_unlinked(core: &Core, guard: &mut LaneGuard<'_>, chain: &Chain, garbage: &[Extent]) {
    if garbage.is_empty() {
        return;
    }
    if planted(Bug::PageReusedBeforeUnlink) {
        for extent in garbage {
            let _full = guard.own.magazine.push(extent.block);
        }
        return;
    }
    // PERSIST: C2 of `chain`, I3 (D5a): a page is unreachable before it is reused, and before a tombstone
    // that covered it is dropped.
    core.region.fence();
    chain.advance_oldest();
    for extent in garbage {
        free_later(core.free_map(), &core.region, guard.own, *extent);
    }
}

/// Calls `step`, which logs one page anew, if the log is too long. While space is scarce it calls `step` until the log is short enough, up
/// to a limit: the copied records may fill the chain's last page, so that the log gains a page.
pub fn while_too_long(core: &Core, inode: InodeRef<'_>, mut step: impl FnMut()) {
    let most = if core.free_map().scarce() { PAGES_MOVED_MAX } else { 1 };
    for _ in 0..most {
        if !too_long(core, inode) {
            break;
        }
        step();
    }
}

/// Returns true if the log has pages that its living records do not need.
pub fn can_shrink(core: &Core, inode: InodeRef<'_>) -> bool {
    chain::pages(core, inode) > pages_needed(core, inode)
}

/// Number of pages that all records that can be alive fill: one slot a block, two a name, and the two of the attribute record.
fn pages_needed(core: &Core, inode: InodeRef<'_>) -> u64 {
    let alive = inode.volatile.blocks_counted() + 2 * table::count(core, inode) + 2;
    alive.div_ceil(u64::from(SLOTS))
}

/// Returns true if the log has several times the pages that its living records need. While space is scarce the limit is that number itself,
/// and a page for each chain: other files, and first of all overwrites, need each page.
fn too_long(core: &Core, inode: InodeRef<'_>) -> bool {
    let pages = chain::pages(core, inode);
    let chains = chain::existing(core, inode).count() as u64;
    let needed = pages_needed(core, inode);
    // ORDERING: Relaxed, set before calls begin.
    let short = core.free_map().scarce() || core.root().short_logs.load(Relaxed) != 0;
    if short { pages > chains + needed } else { pages > 4 + 2 * chains + SLACK * needed }
}

/// Returns true if a record that is older than a tombstone in the first page of `chain` may be reachable in
/// another chain (I2).
fn older_elsewhere(core: &Core, inode: InodeRef<'_>, chain: &Chain) -> bool {
    let mut others = chain::existing(core, inode).filter(|other| !std::ptr::eq(*other, chain)).peekable();
    if others.peek().is_none() {
        return false;
    }
    let Some(newer) = era_of_newer_pages(core, inode, chain) else { return true };
    others
        .any(|other| other.oldest().is_some() && first_era(core, inode, other).is_none_or(|era| era < newer))
}

/// Returns an era: pages made in it or later hold no record older than those in the first page of `chain`.
fn era_of_newer_pages(core: &Core, inode: InodeRef<'_>, chain: &Chain) -> Option<u64> {
    match chain::next_page(core, inode, chain.head()?).ok()? {
        Some(next) => Some(PageHeader::decode(core.seed, &core.region.line(next.pos()))?.era),
        None => Some(chain.quiet_before(chain::era_now(core, inode))),
    }
}

/// Era of a chain's first page; `None` if the chain has none, or its first page changes at this moment.
pub fn first_era(core: &Core, inode: InodeRef<'_>, chain: &Chain) -> Option<u64> {
    let first = chain.oldest()?;
    let header = PageHeader::decode(core.seed, &core.region.line(first.pos()))?;
    let is_its = header.owner == inode.id() && header.chain == chain.number();
    // ORDERING: Acquire: the header was loaded before `oldest` is loaded again. If the block was reused, its
    // new header was stored after the unlinking, which was fenced.
    fence(Acquire);
    // If this is not the first page any more, the block may have been reused while its header was read.
    (is_its && chain.oldest() == Some(first)).then_some(header.era)
}

/// A log page copied to memory. Records were written past the CPU cache, and one copy is far cheaper than a
/// miss for each line. It is not on the stack, because a program's thread may have a small one.
pub struct Page(Box<[u64]>);

impl Page {
    /// A buffer without content.
    pub fn empty() -> Page {
        Page(vec![0; BLOCK_BYTES / 8].into())
    }

    /// Reads a page.
    pub fn load(&mut self, core: &Core, page: BlockNo) {
        core.region.read(page.pos(), self.0.as_mut_bytes());
    }

    /// One line of it.
    #[inline]
    pub fn line(&self, slot: u32) -> Line {
        std::array::from_fn(|i| u64::from_le(self.0[slot as usize * 8 + i]))
    }
}

/// Returns true if this record must stay. `first_of`: the chain in whose first page it lies.
pub fn alive(core: &Core, inode: InodeRef<'_>, record: &Record, first_of: Option<&Chain>) -> bool {
    let may_cover_older = || first_of.is_none_or(|chain| older_elsewhere(core, inode, chain));
    match *record {
        Record::Write { page, pages, version, end_in_last_page, change_count, .. } => {
            write_alive(core, inode, &PlainWrite { page, pages, end_in_last_page, version, change_count })
        }
        Record::Punch { .. } => {
            tombstone_needed(core, inode, record, first_of) && !planted(Bug::PunchDroppedEarly)
        }
        Record::Remap { page, version, .. } => {
            !inode.volatile.is_covered_later(page, version)
                && (may_cover_older()
                    || shift::current(core, inode, record).is_none_or(|writes| !writes.is_empty()))
        }
        Record::Xattrs { blob: None, .. } if planted(Bug::EmptySetDropped) => false,
        Record::Xattrs { change_count, .. } => {
            xattr::change_count(core, inode).is_none_or(|last| change_count >= last)
        }
        // ORDERING: Relaxed, an older value only keeps a record longer.
        Record::Attributes(s) => s.change_count >= inode.volatile.attributes_change_count.load(Relaxed),
        // A foreign record is dead here: the log of the old directory has its copy.
        Record::Name { dir, removed: true, ref name, version, .. } => {
            // A later record that makes the name has a larger version, and replaces the tombstone. If the look-up fails, the tombstone
            // stays.
            let named = || table::find(core, inode, table::key(core, name.bytes())).ok().flatten();
            let made_again = || named().is_some_and(|named| named.version > version);
            let keeps = (may_cover_older() || inode.volatile.foreign_record_may_count())
                && !planted(Bug::TombstoneDroppedEarly);
            dir == inode.id() && keeps && !made_again()
        }
        // The record of a removed name was superseded by a tombstone or by a later record of the same name.
        Record::Name { dir, ref name, version, .. } => {
            dir == inode.id() && table::may_count(core, inode, name.bytes(), version)
        }
    }
}

/// Returns true if the record is a tombstone of pages and must stay as one (I2).
pub fn tombstone_needed(core: &Core, inode: InodeRef<'_>, record: &Record, first_of: Option<&Chain>) -> bool {
    match *record {
        Record::Punch { page, version, .. } | Record::Remap { page, version, .. } => {
            !inode.volatile.is_covered_later(page, version)
                && may_decide_a_page(core, inode, record)
                && first_of.is_none_or(|chain| older_elsewhere(core, inode, chain))
        }
        _ => false,
    }
}

/// The pages of a punch that have cells, with the versions of their newest published records. Version 0: the page has a new cell and no
/// published record.
fn versions_in<'a>(
    core: &'a Core,
    inode: InodeRef<'a>,
    page: PageNo,
    pages: u64,
) -> impl Iterator<Item = (PageNo, Version)> {
    let end = PageNo(page.0.saturating_add(pages).min(PageNo::END.0));
    let runs = inode.volatile.index().runs(&core.arena, page, end);
    let cells = runs.flat_map(|run| (run.page.0..).zip(run.cells));
    cells.map(|(page, cell)| (PageNo(page), cell.lock_version().version()))
}

/// Returns true if a page of a punch's range may lack a newer durable record, or the range has too many cells. The version in a cell is
/// that of a durable record; a locked cell still shows its previous version. For a remap it always returns true.
fn may_decide_a_page(core: &Core, inode: InodeRef<'_>, record: &Record) -> bool {
    let Record::Punch { page, pages, version, .. } = *record else { return true };
    let mut versions = versions_in(core, inode, page, pages).enumerate();
    versions.any(|(n, (_, newest))| n == CELLS_MAX || (1..=version.0).contains(&newest.0))
}

/// The runs of pages that a punch decides. `None` if its range has too many cells, or the record is no punch.
pub fn decided_runs(core: &Core, inode: InodeRef<'_>, record: &Record) -> Option<Vec<(PageNo, PageNo)>> {
    let Record::Punch { page, pages, version, .. } = *record else { return None };
    let mut out: Vec<(PageNo, PageNo)> = Vec::new();
    for (n, (page, newest)) in versions_in(core, inode, page, pages).enumerate() {
        if n == CELLS_MAX {
            return None;
        }
        match out.last_mut() {
            _ if newest != version => {}
            Some((_, stop)) if *stop == page => stop.0 += 1,
            _ => out.push((page, PageNo(page.0 + 1))),
        }
    }
    Some(out)
}

/// Returns true if this write record must stay.
pub fn write_alive(core: &Core, inode: InodeRef<'_>, write: &PlainWrite) -> bool {
    let end = PageNo(write.page.0 + write.pages);
    maps_a_page(core, inode, write.page, end, write.version)
        || (write.end_in_last_page != 0
            && !planted(Bug::SizeRecordDropped)
            && write.change_count >= inode.volatile.change_count()
            && carries_size(core, inode, end, write.end_in_last_page, write.version))
}

/// Returns true if a record of this version may decide a page of the range.
pub fn maps_a_page(core: &Core, inode: InodeRef<'_>, first: PageNo, end: PageNo, version: Version) -> bool {
    let mut page = first;
    while page < end {
        // Without a cell the record is not yet published.
        let Some(run) = inode.volatile.index().find(&core.arena, page) else { return true };
        let n = run.cells.len().min((end.0 - page.0) as usize);
        if run.cells[..n].iter().any(|cell| cell.lock_version().version() <= version) {
            return true;
        }
        page = PageNo(page.0 + n as u64);
    }
    false
}

/// Returns true if this record, superseded in all its pages, is the only one to carry the size. A later write
/// of the last page carries it too.
fn carries_size(
    core: &Core,
    inode: InodeRef<'_>,
    end: PageNo,
    end_in_last_page: u32,
    version: Version,
) -> bool {
    let last = PageNo(end.0 - 1);
    if last.offset() + u64::from(end_in_last_page) < inode.volatile.size() {
        return false;
    }
    let newer = inode.volatile.index().find(&core.arena, last).is_some_and(|run| {
        run.cells[0].map().content().is_some() && run.cells[0].lock_version().version() > version
    });
    !newer
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
