//! Logging anew: cleaning as an ordinary writer.
//!
//! The living records of the oldest page of all chains, or of another chain's first page, are appended to the lane's own chain. Then the
//! page is dead and is freed. So each chain's head advances, and tombstones in its later pages can be dropped. A log stays within a few
//! times its living records. Idle chains, also those of a sleeping thread, are emptied in the same way, page by page, until they have no
//! page left.
//!
//! Invariants  I1  a data page keeps its block and gets a new version, as with any write: no two write records of one page carry one
//!                 version. A copied name record keeps its version, because it has the same content.
//!             I2  a record keeps its page if it is a remap that is still needed as a tombstone, or if its map or extent list cannot be
//!                 read. A record that stays only because of the size is replaced by an attribute record. One that names an extent
//!                 list becomes a record for each extent that still maps a page.
//!             I4  a punch is logged again for the pages that it decides, at a new version. They have cells, which are held. So neither
//!                 the EOF latch nor the gate is needed: no other page is concerned. Otherwise two chains whose first pages hold
//!                 punches would block each other.
//!             I3  a record that is logged anew is the newest one while that happens: a name is logged under its bucket's lock, a page
//!                 under its cell's. Attributes of a directory need no lock: of two records the one with the larger change count wins.
//! Scope       directories of every variant; files of `heddle`; files of the papers' variants when the call has released its range: a
//!             record is logged anew under the range lock of its pages, as a write of that variant.
//! Lock order  papers' variants: EOF latch (only tried), range lock, log lock.
//! Source      docs/protocol.md P8; in NOVA the thorough garbage collection does this, by copying a whole log.

pub mod papers;

use crate::alloc::Purpose;
use crate::file::blocks::{list_blocks, read_list};
use crate::file::cells::{Committed, Locked, lock_pages};
use crate::file::resize::{Eof, log_attributes_again};
use crate::file::shift;
use crate::file::write_heddle::cell_state;
use crate::format::page::{PageHeader, SLOTS};
use crate::format::record::{Blocks, FoundRecord, Record, parse};
use crate::ids::{BlockNo, Extent, PageNo};
use crate::log::chain::{self, Chain};
use crate::log::commit;
use crate::names::table;
use crate::planted::{Bug, Met, met, planted};
use crate::state::cell::Map;
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::papers::one_chain;
use crate::upkeep::garbage::{
    Page, alive, decided_runs, first_era, free_unlinked, maps_a_page, tombstone_needed,
};
use heddle_vfs::{Error, FileKind, Result};

/// Most records that the punches of one page may become, and that a step makes of its extent lists: each takes a fence, within somebody's
/// call.
const RUNS_MAX: usize = 4 * SLOTS as usize;

/// Most chains of other lanes whose first page a call tries while space is scarce. Otherwise it tries the oldest one.
const CHAINS_TRIED_MAX: usize = 8;

/// What became of a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Progress {
    /// A page was dropped.
    Moved,
    /// None was, and other calls use chains.
    Busy,
    /// None was.
    Stays,
}

/// Logs the records of the log's oldest page anew and drops the page. If that page must stay, or another call uses its chain, the own
/// chain's first page is tried; while space is scarce, those of further chains before it, the oldest first.
pub fn step(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    own_chain: &Chain,
    eof: Eof,
) -> Progress {
    let era = |c: &Chain| first_era(core, inode, c).unwrap_or(u64::MAX);
    let with_pages = chain::existing(core, inode).filter(|c| c.oldest().is_some());
    let mut chains: Vec<(u64, &Chain)> = with_pages.map(|c| (era(c), c)).collect();
    chains.sort_by_key(|(era, _)| *era);
    let mut left = CHAINS_TRIED_MAX;
    if !core.free_map().scarce() {
        chains.truncate(1);
    }
    chains.retain(|(_, chain)| !std::ptr::eq(*chain, own_chain));
    let mut busy = false;
    for (_, from) in chains {
        if left == 0 {
            break;
        }
        if !from.claim_quiet(guard.id) {
            busy = true;
            continue;
        }
        left -= 1;
        let moved = move_page(core, guard, inode, from, own_chain, eof);
        from.unclaim();
        // Only a chain's owner may read its fields. A failure (no space) is retried when the next page is begun.
        let has_own = one_chain(core) || own_chain.is_busy_for(guard.id);
        match moved {
            Ok(true) => return Progress::Moved,
            Ok(false) | Err(Error::NoSpace) if has_own => {}
            _ => return Progress::Stays,
        }
    }
    match move_page(core, guard, inode, own_chain, own_chain, eof) {
        Ok(true) => Progress::Moved,
        _ if busy => Progress::Busy,
        _ => Progress::Stays,
    }
}

/// Logs the living records in the first page of `from` anew, and drops the page. Returns false if it stays.
fn move_page(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    from: &Chain,
    own_chain: &Chain,
    eof: Eof,
) -> Result<bool> {
    let Some(page) = from.head().filter(|p| !std::ptr::eq(from, own_chain) || *p != own_chain.tail().0)
    else {
        return Ok(false);
    };
    let Some(found) = read_page(core, inode, page, from).filter(|found| found.may_move(core)) else {
        return Ok(false);
    };
    let early = planted(Bug::UnlinkedBeforeCopies);
    if early {
        chain::unlink_page_unfenced(core, inode, from, None, page)?;
    }
    move_records(core, guard, inode, &found.verbatim)?;
    if found.attributes {
        log_attributes_again(core, guard, inode, eof)?;
        met(Met::AttributesMoved);
    }
    for write in &found.writes {
        move_write(core, guard, inode, write)?;
    }
    for (punch, runs) in &found.punches {
        for run in runs {
            move_punch(core, guard, inode, punch, *run)?;
        }
    }
    // If no block was free, `commit` may have released the lane's chain. Only its owner may read its fields.
    let is_own = std::ptr::eq(from, own_chain);
    if is_own && !one_chain(core) && !own_chain.is_busy_for(guard.id) {
        return Ok(false);
    }
    // The lane may have the chain again, and another lane may have cleaned it meanwhile.
    if !early && from.head() != Some(page) {
        return Ok(false);
    }
    // Another call may have written part of a run meanwhile, and the rest kept its version: then the page is still needed.
    let is_dead = |again: Alive| again.era == found.era && again.only_verbatim();
    if !read_page(core, inode, page, from).is_some_and(is_dead) {
        return Ok(false);
    }
    if !early {
        chain::unlink_page_unfenced(core, inode, from, None, page)?;
    }
    let file = !matches!(inode.volatile.kind_perm(), Some((FileKind::Directory, _)));
    met(if file { Met::FileMoved } else { Met::DirectoryMoved });
    let mut garbage = found.lists;
    garbage.push(Extent { block: page, count: 1 });
    if !planted(Bug::CleaningPositionStays) {
        from.clean_after.set(0);
    }
    free_unlinked(core, guard, from, &garbage);
    Ok(true)
}

/// The living records of a page.
#[derive(Default)]
struct Alive {
    /// The page's: no two pages of an inode have the same.
    era: u64,
    /// Records that are copied unchanged: names; and a directory's attributes and extended attributes.
    verbatim: Vec<Record>,
    writes: Vec<Record>,
    /// Punches, each with the runs of pages that it decides.
    punches: Vec<(Record, Vec<(PageNo, PageNo)>)>,
    /// Number of these runs.
    punch_runs: usize,
    /// Extents of extent lists that still map a page, all in `writes`. They are counted up to [`RUNS_MAX`]: these keep the page, and a
    /// later step finds the others.
    list_runs: usize,
    lists: Vec<Extent>,
    /// True if a file's size, attributes and extended attributes must be logged again ([`log_attributes_again`]).
    attributes: bool,
    movable: bool,
}

fn read_page(core: &Core, inode: InodeRef<'_>, page: BlockNo, from: &Chain) -> Option<Alive> {
    let mut words = Page::empty();
    words.load(core, page);
    let header = PageHeader::decode(core.seed, &words.line(0))?;
    let seed = header.record_seed(core.seed);
    let mut out = Alive { era: header.era, movable: true, ..Alive::default() };
    let mut slot = 1;
    while slot <= SLOTS {
        match parse(seed, inode.id(), slot, |s| words.line(s)) {
            FoundRecord::Blank => slot += 1,
            FoundRecord::Whole { record, slots, .. } => {
                slot += slots;
                out.lists.extend(list_blocks(core, inode, &record)?);
                if alive(core, inode, &record, Some(from)) {
                    out.movable &= !matches!(record, Record::Remap { .. })
                        || !tombstone_needed(core, inode, &record, Some(from));
                    out.add(core, inode, record);
                }
            }
            _ => return None,
        }
    }
    Some(out)
}

impl Alive {
    /// Returns true if its records may be logged anew. While space is scarce, they may take about one page for the one that they leave.
    fn may_move(&self, core: &Core) -> bool {
        let runs = self.punch_runs + self.list_runs;
        self.movable && (!core.free_map().scarce() || runs <= SLOTS as usize)
    }

    /// Returns true if every other record has been logged anew, or is dead.
    pub fn only_verbatim(&self) -> bool {
        self.movable && !self.attributes && self.writes.is_empty() && self.punches.is_empty()
    }

    fn add(&mut self, core: &Core, inode: InodeRef<'_>, record: Record) {
        match record {
            // Removals too: otherwise two chains whose first pages hold removals would block each other.
            Record::Name { .. } => self.verbatim.push(record),
            Record::Xattrs { .. } if planted(Bug::AttributesForgotten) => {}
            // These records are ordered by change count, so a copy is valid in any page.
            Record::Attributes(_) | Record::Xattrs { .. }
                if matches!(inode.volatile.kind_perm(), Some((FileKind::Directory, _))) =>
            {
                self.verbatim.push(record)
            }
            // The record stays only because of the size. An attribute record carries that too.
            Record::Write { page, pages, version, .. }
                if !maps_a_page(core, inode, page, PageNo(page.0 + pages), version) =>
            {
                self.attributes = true
            }
            Record::Write { blocks: Blocks::List(list), .. } => {
                match extents_of_list(core, inode, &record, list, RUNS_MAX - self.list_runs) {
                    Some(writes) => {
                        self.list_runs += writes.len();
                        self.writes.extend(writes);
                    }
                    None => self.movable = false,
                }
            }
            Record::Write { .. } => self.writes.push(record),
            Record::Attributes(_) | Record::Xattrs { .. } => self.attributes = true,
            Record::Remap { .. } => match shift::current(core, inode, &record) {
                Some(writes) => self.writes.extend(writes),
                None => self.movable = false,
            },
            Record::Punch { .. } => match decided_runs(core, inode, &record) {
                Some(runs) => {
                    self.punch_runs += runs.len();
                    self.movable &= self.punch_runs <= RUNS_MAX;
                    self.punches.push((record, runs));
                }
                None => self.movable = false,
            },
        }
    }
}

/// The first `max` extents of a write that still map a page, as write records without the extent list; `None` if the list cannot be read.
/// No extent has more pages than the record, so none has too many for a record. A list may have many thousands.
fn extents_of_list(
    core: &Core,
    inode: InodeRef<'_>,
    record: &Record,
    list: BlockNo,
    max: usize,
) -> Option<Vec<Record>> {
    let Record::Write { page, pages, end_in_last_page, version, mtime, change_count, .. } = *record else {
        return None;
    };
    let (mut at, end) = (page, PageNo(page.0 + pages));
    let mut writes = Vec::new();
    for extent in read_list(core, inode.id(), list, pages)?.extents {
        if writes.len() == max {
            break;
        }
        let (first, stop) = (at, PageNo(at.0 + extent.count));
        at = stop;
        if maps_a_page(core, inode, first, stop, version) {
            let is_inside = stop < end && end_in_last_page != 0;
            writes.push(Record::Write {
                page: first,
                pages: extent.count,
                blocks: Blocks::At(extent.block),
                end_in_last_page: if is_inside { heddle_pmem::BLOCK_BYTES as u32 } else { end_in_last_page },
                version,
                mtime,
                change_count,
            });
        }
    }
    Some(writes)
}

/// Logs name, attribute and xattr records of a directory again, unchanged. A name is copied only if it is still current, and under its
/// bucket's lock: a tombstone may be dropped when no older page is left, so no older record may be appended after that (I3).
fn move_records(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    records: &[Record],
) -> Result<()> {
    for record in records {
        let bucket = match record {
            Record::Name { name, version, removed, .. } => {
                let key = table::key(core, name.bytes());
                let bucket = table::lock(core, inode, key.hash)?;
                let present = bucket.find(key)?.map(|named| named.version);
                // A record that makes the name again has a larger version, so it replaces the tombstone.
                let superseded = if *removed { present > Some(*version) } else { present != Some(*version) };
                if superseded {
                    continue;
                }
                Some(bucket)
            }
            _ => None,
        };
        if commit::prepare(core, guard, inode, record.slots_max(), Purpose::Regain)? {
            // PERSIST: a fresh log page is empty before it is linked.
            core.region.fence();
        }
        commit::commit(core, guard, inode, std::slice::from_ref(record))?;
        met(match record {
            Record::Name { removed: true, .. } => Met::RemovalMoved,
            Record::Name { .. } => Met::NameMoved,
            Record::Xattrs { .. } => Met::XattrsMoved,
            _ => Met::AttributesMoved,
        });
        drop(bucket);
    }
    Ok(())
}

/// Logs the pages that a write record still maps, run by run, at new versions (I1).
fn move_write(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, record: &Record) -> Result<()> {
    let Record::Write { page, pages, version, .. } = *record else { return Ok(()) };
    let end = PageNo(page.0 + pages);
    let current = |p: PageNo| cell_state(core, inode, p).1 == version;
    let mut at = page;
    while at < end {
        if !current(at) {
            at = PageNo(at.0 + 1);
            continue;
        }
        // The run holds at least the page at `at`, whatever happens to it meanwhile: a record of no page
        // would be damage.
        let mut stop = PageNo(at.0 + 1);
        while stop < end && current(stop) {
            stop = PageNo(stop.0 + 1);
        }
        move_run(core, guard, inode, record, at, stop)?;
        at = stop;
    }
    Ok(())
}

fn move_run(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    record: &Record,
    first: PageNo,
    stop: PageNo,
) -> Result<()> {
    let Record::Write { version, .. } = *record else { return Ok(()) };
    if commit::prepare(core, guard, inode, 1, Purpose::Regain)? {
        // PERSIST: a fresh log page is empty before it is linked.
        core.region.fence();
    }
    let locked = lock_pages(core, guard, inode, first, stop)?;
    let unchanged = (first.0..stop.0).all(|p| cell_state(core, inode, PageNo(p)).1 == version);
    let Some(again) = new_write_record(inode, record, first, stop).filter(|_| unchanged) else {
        return Ok(());
    };
    let durable = commit::commit(core, guard, inode, std::slice::from_ref(&again))?;
    met(Met::WriteMoved);
    publish_again(core, inode, locked.commit(&durable), &again);
    Ok(())
}

/// Logs the pages `[first, stop)` that a punch decides again, as a punch of its own (I4).
fn move_punch(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    record: &Record,
    (first, stop): (PageNo, PageNo),
) -> Result<()> {
    let Record::Punch { page, pages, version, .. } = *record else { return Ok(()) };
    if commit::prepare(core, guard, inode, 1, Purpose::Regain)? {
        // PERSIST: a fresh log page is empty before it is linked.
        core.region.fence();
    }
    let locked = lock_pages(core, guard, inode, first, stop)?;
    let hole = (Map::HOLE, version);
    if (first.0..stop.0).any(|p| cell_state(core, inode, PageNo(p)) != hole) {
        return Ok(());
    }
    // As in `new_write_record`.
    let change_count = inode.volatile.change_count();
    let [mtime, ..] = inode.volatile.times();
    let version = version.max(inode.volatile.floor()).next();
    let end = if planted(Bug::MovedPunchTooWide) { page.0 + pages } else { stop.0 };
    let again = Record::Punch { page: first, pages: end - first.0, version, mtime, change_count };
    let durable = commit::commit(core, guard, inode, &[again])?;
    // I2 of `resize`.
    inode.volatile.raise_floor(version);
    locked.commit(&durable).publish(version, |_| Map::HOLE, &mut Vec::new());
    Ok(())
}

/// Returns a new record for pages `[first, stop)` of a write record; `None` if it names an extent list. The caller holds the pages' cells,
/// or in the papers' variants their range lock.
fn new_write_record(inode: InodeRef<'_>, record: &Record, first: PageNo, stop: PageNo) -> Option<Record> {
    let Record::Write { page, pages, blocks, end_in_last_page, version, .. } = *record else { return None };
    let skip = first.0 - page.0;
    let blocks = match blocks {
        Blocks::At(block) => Blocks::At(block.plus(skip)),
        Blocks::Unwritten(block) => Blocks::Unwritten(block.plus(skip)),
        Blocks::List(_) => return None,
    };
    // The change count is loaded before mtime, and `resize::apply` stores mtime first. So mtime is at least as new as the attributes with
    // that count.
    let change_count = inode.volatile.change_count();
    let [mtime, ..] = inode.volatile.times();
    let last = stop.0 == page.0 + pages;
    let end_in_last_page =
        if last || end_in_last_page == 0 { end_in_last_page } else { heddle_pmem::BLOCK_BYTES as u32 };
    Some(Record::Write {
        page: first,
        pages: stop.0 - first.0,
        blocks,
        end_in_last_page,
        version: version.max(inode.volatile.floor()).next(),
        mtime,
        change_count,
    })
}

fn publish_again(core: &Core, inode: InodeRef<'_>, committed: Committed<Locked<'_>>, again: &Record) {
    let Record::Write { page, version, .. } = *again else { return };
    let map = |n: u64| cell_state(core, inode, PageNo(page.0 + n)).0;
    let mut replaced = Vec::new();
    committed.publish(version, map, &mut replaced);
    debug_assert!(replaced.is_empty());
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
