//! Clearing ranges and changing attributes: truncate, punch, chmod, chown, utimens, setxattr. Each is one
//! transaction.
//!
//! Truncating to `s` clears `[s, infinity)` and sets a new size; punching clears a range. Whole pages become
//! a tombstone (punch record). If they are zeroed and stay allocated, they become unwritten
//! ([`zero`](super::zero)). A page that is cleared in part is copied, as in every write.
//!
//! Invariants  I1  the caller's thread holds the EOF latch throughout, and the gate while it looks for cells.
//!             I2  the floor is raised to the version of every tombstone: pages without cells get later versions (D8).
//!             I3  a record of size and attributes carries its own change count; of two records, the larger change count decides (D7, D9).

use crate::alloc::{Purpose, release_limbo, take_block};
use crate::file::cells::{Change, Committed, LockedSparse, lock_existing};
use crate::file::deferred::free_replaced;
use crate::file::new_blocks::{Span, fill_edge};
use crate::file::zero::{self, Becomes, Clear};
use crate::format::record::{Attributes, Blocks, Record};
use crate::ids::{BlockNo, Extent, PageNo, Version};
use crate::log::commit;
use crate::planted::{Bug, planted};
use crate::state::cell::Map;
use crate::state::core::Core;
use crate::state::inode::{InodeRef, List};
use crate::state::latch::Latched;
use crate::state::lease::LaneGuard;
use crate::state::papers::{lock_file_for_log, lock_range};
use crate::steps::{Step, step};
use crate::xattr::{self, Prepared};
use heddle_pmem::BLOCK_BYTES;
use heddle_range_lock::Access;
use heddle_vfs::xattr::Xattrs;
use heddle_vfs::{Error, FileKind, Result, SetTime, Time};
use std::sync::atomic::Ordering::Relaxed;

/// Slots of a transaction here: two edge pages, a tombstone, attributes (two), extended attributes.
const SLOTS: u32 = 6;

/// The changes to an inode; `None` leaves a value unchanged.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NewAttributes {
    /// Size in bytes.
    pub size: Option<u64>,
    /// Permission bits.
    pub perm: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Last access.
    pub atime: Option<Time>,
    /// Last change of the content.
    pub mtime: Option<SetTime>,
}

impl NewAttributes {
    /// The change of mtime: a new size is a change of the content.
    pub fn changes_mtime(&self) -> Option<SetTime> {
        self.mtime.or(self.size.map(|_| SetTime::Now))
    }
}

/// Changes size and attributes in one transaction. The caller holds the EOF latch (of a directory: its
/// latch). The access list is changed to match the mode.
pub fn set_attributes(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    new: &NewAttributes,
) -> Result<()> {
    let mut xattrs = None;
    if let Some(perm) = new.perm.filter(|_| inode.volatile.has_list(List::Access)) {
        let mut set = xattr::load_latched(core, inode)?;
        xattrs = set.follow_mode(perm).then_some(set);
    }
    set_all(core, guard, inode, new, xattrs.as_ref())
}

/// Changes size, attributes and extended attributes in one transaction. The caller holds the EOF latch.
pub fn set_all(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    new: &NewAttributes,
    xattrs: Option<&Xattrs>,
) -> Result<()> {
    let (kind, _) = inode.volatile.kind_perm().ok_or(Error::Stale)?;
    let clear = match new.size {
        Some(size) if kind == FileKind::Regular && size <= inode.volatile.size() => cut_at(core, inode, size),
        _ => None,
    };
    let clear = clear.map(|span| Clear { span, to: Becomes::Hole });
    change(core, guard, inode, clear, Some(new), xattrs)
}

/// The span that a truncation to a size that is not larger clears, including blocks allocated beyond EOF.
fn cut_at(core: &Core, inode: InodeRef<'_>, size: u64) -> Option<Span> {
    if size < inode.volatile.size() {
        return Some(Span { start: size, end: u64::MAX });
    }
    // The last page is not cleared: it is zero beyond EOF already.
    let beyond = Span { start: PageNo::after(size).offset(), end: u64::MAX };
    frees_a_block(core, inode, beyond).then_some(beyond)
}

/// Clears bytes; the size stays, or becomes `size`. The caller holds the EOF latch.
pub fn clear(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    clear: Clear,
    size: Option<u64>,
) -> Result<()> {
    let new = size.map(|size| NewAttributes { size: Some(size), ..NewAttributes::default() });
    change(core, guard, inode, Some(clear), new.as_ref(), None)
}

fn change(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    clear: Option<Clear>,
    new: Option<&NewAttributes>,
    xattrs: Option<&Xattrs>,
) -> Result<()> {
    // The papers' range lock comes before the cells. It ends at EOF: a caller that changes pages beyond it holds the EOF latch, as this
    // one does.
    let _range = match clear {
        Some(Clear { span, .. }) => {
            let end = span.end.min(inode.volatile.size()).max(span.start + 1);
            Some(lock_range(core, guard.lane, guard.own, inode, span.start, end, Access::Exclusive)?)
        }
        None => lock_file_for_log(core, guard.lane, guard.own, inode)?,
    };
    let mut prepared = xattrs.map(|set| xattr::prepare(core, guard, inode, set)).transpose()?;
    let done = log_change(core, guard, inode, clear, new, &mut prepared);
    if let Some(unused) = prepared {
        unused.give_up(core, guard.own, inode);
    }
    if done.is_ok() {
        // All of it is visible. After the latch is free a settler must not apply it again, over what others have done since.
        guard.lane.intent.logged();
    }
    done
}

/// Makes a change durable and visible. If that succeeds, it takes the extended attributes.
fn log_change(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    clear: Option<Clear>,
    new: Option<&NewAttributes>,
    xattrs: &mut Option<Prepared>,
) -> Result<()> {
    let purpose = match clear {
        Some(Clear { span, to: Becomes::Hole }) if frees_a_block(core, inode, span) => Purpose::Regain,
        Some(_) => Purpose::Free,
        None => Purpose::Replace,
    };
    if commit::prepare(core, guard, inode, SLOTS, purpose)? || xattrs.is_some() {
        // PERSIST: a fresh log page is empty before it is linked, and a blob is durable before the record
        // that names it.
        core.region.fence();
    }
    if let Some(clear) = clear {
        return clear_range(core, guard, inode, (clear, purpose), new, xattrs);
    }
    let unchanged = NewAttributes::default();
    let new = new.unwrap_or(&unchanged);
    let attributes = attributes_of(guard, inode, new, crate::clock::exact());
    let mut records = vec![Record::Attributes(attributes)];
    records.extend(xattrs.as_ref().map(|set| set.record(attributes.change_count, attributes.ctime)));
    commit::commit(core, guard, inode, &records)?;
    step(Step::Durable);
    apply(inode, &records, new.changes_mtime());
    if let Some(set) = xattrs.take() {
        set.publish(core, guard.own, inode, attributes.change_count);
    }
    step(Step::LetGo);
    Ok(())
}

/// Returns true if clearing these bytes frees a block.
fn frees_a_block(core: &Core, inode: InodeRef<'_>, span: Span) -> bool {
    let (first, end) = (PageNo::after(span.start), PageNo(PageNo::of(span.end).0.min(PageNo::END.0)));
    let mut cells = inode.volatile.index().runs(&core.arena, first, end).flat_map(|run| run.cells);
    cells.any(|cell| cell.map().block().is_some())
}

/// The attributes of an inode after the change. If this thread dies, its settler knows what the change is to mtime.
pub(super) fn attributes_of(
    guard: &LaneGuard<'_>,
    inode: InodeRef<'_>,
    new: &NewAttributes,
    now: Time,
) -> Attributes {
    guard.lane.intent.note_mtime(new.changes_mtime());
    let [mtime, _, atime, _] = inode.volatile.times();
    let (uid, gid) = inode.volatile.owner();
    let perm = inode.volatile.kind_perm().map_or(0, |(_, perm)| perm);
    Attributes {
        size: new.size.unwrap_or(inode.volatile.size()),
        perm: new.perm.unwrap_or(perm),
        uid: new.uid.unwrap_or(uid),
        gid: new.gid.unwrap_or(gid),
        mtime: match new.changes_mtime() {
            Some(SetTime::At(mtime)) => mtime,
            Some(SetTime::Now) => now,
            None => mtime,
        },
        ctime: now,
        atime: new.atime.unwrap_or(atime),
        change_count: inode.volatile.change_count() + u64::from(!planted(Bug::ChangeCountNotRaised)),
    }
}

/// Whether the caller holds the EOF latch of the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Eof {
    /// The caller holds it.
    Held,
    /// It is not known to be held by the caller.
    NotHeld,
}

impl Eof {
    /// Sees to it that it is held, for as long as the result lives. It is not waited for: the caller may hold what comes after it. `None`:
    /// another caller is moving EOF.
    pub fn try_hold(self, inode: InodeRef<'_>) -> Option<Option<Latched<'_>>> {
        match self {
            Eof::Held => Some(None),
            Eof::NotHeld => inode.volatile.eof.try_lock().map(Some),
        }
    }
}

/// For cleaning: logs size, attributes and extended attributes of a file again, unchanged, unless another
/// caller is moving EOF.
pub fn log_attributes_again(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    eof: Eof,
) -> Result<()> {
    let Some(_latched) = eof.try_hold(inode) else { return Ok(()) };
    let _log = lock_file_for_log(core, guard.lane, guard.own, inode)?;
    if commit::prepare(core, guard, inode, SLOTS, Purpose::Regain)? {
        // PERSIST: a fresh log page is empty before it is linked.
        core.region.fence();
    }
    let [_, ctime, ..] = inode.volatile.times();
    let ctime = if planted(Bug::CleaningMovesTime) { crate::clock::exact() } else { ctime };
    let same = attributes_of(guard, inode, &NewAttributes::default(), ctime);
    let mut records = vec![Record::Attributes(same)];
    if !planted(Bug::AttributesForgotten) {
        records.extend(xattr::again(core, inode, same.change_count));
    }
    commit::commit_for(core, guard, inode, &records, Purpose::Regain)?;
    apply(inode, &records, None);
    if records.len() > 1 {
        xattr::set_change_count(core, inode, same.change_count);
    }
    guard.lane.intent.logged();
    Ok(())
}

/// Applies a durable attribute record to the volatile inode. Times that writers have advanced meanwhile stay,
/// unless the caller has set the time explicitly.
pub fn apply(inode: InodeRef<'_>, records: &[Record], mtime: Option<SetTime>) {
    for record in records {
        let Record::Attributes(s) = record else { continue };
        let Some((kind, _)) = inode.volatile.kind_perm() else { return };
        inode.volatile.set_mode(kind, s.perm, inode.volatile.rdev());
        inode.volatile.set_owner(s.uid, s.gid);
        match mtime {
            Some(SetTime::At(mtime)) => inode.volatile.set_mtime(mtime),
            Some(SetTime::Now) => inode.volatile.touch(s.mtime),
            None => {}
        }
        inode.volatile.touch_state(s.ctime);
        inode.volatile.set_atime(s.atime);
        inode.volatile.set_change_count(s.change_count);
        inode.volatile.attributes_change_count.store(s.change_count, Relaxed); // ORDERING: Relaxed, read under the latch.
        if inode.volatile.size() != s.size {
            inode.volatile.set_size(s.size);
        }
    }
}

/// A page that is cleared in part, and the block it is copied to.
struct Edge {
    page: PageNo,
    block: BlockNo,
}

fn clear_range(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    (Clear { span, to }, purpose): (Clear, Purpose),
    new: Option<&NewAttributes>,
    xattrs: &mut Option<Prepared>,
) -> Result<()> {
    let end = span.end.min(PageNo::END.offset());
    let span = Span { start: span.start, end };
    let gate = inode.volatile.raise_gate();
    let range = Change { first: span.first(), end: span.page_end() };
    let locked = lock_existing(core, guard, inode, range);
    step(Step::Held);
    let version = locked.version.max(inode.volatile.floor()).next();
    let edges = copy_edges(core, guard, inode, span)?;
    // One time for all records, and for memory: a program sees now what the next mount finds.
    let now = crate::clock::exact();
    let whole = match to {
        Becomes::Hole => zero::tombstone(inode, span, (version, now), new),
        Becomes::Unwritten => zero::unwritten(core, inode, span, (version, now), new),
    };
    let records = records_of(guard, inode, (version, now), new, xattrs.as_ref(), &edges, whole);
    let logged =
        commit::fits(&records).and_then(|()| commit::commit_for(core, guard, inode, &records, purpose));
    let durable = logged.inspect_err(|_| give_back(core, &edges))?;
    step(Step::Durable);
    let committed = locked.commit(&durable);
    step(Step::Happened);
    apply(inode, &records, new.map_or(Some(SetTime::Now), NewAttributes::changes_mtime));
    step(Step::Happened);
    // Before the operation ends: from then on no settler links them.
    if let Some(set) = xattrs.take() {
        set.publish(core, guard.own, inode, inode.volatile.change_count());
        step(Step::Happened);
    }
    if new.is_none() {
        inode.volatile.touch(now);
    }
    publish(core, guard, inode, (Clear { span, to }, version), &edges, committed);
    drop(gate);
    Ok(())
}

/// Returns the blocks of copies that no record names.
fn give_back(core: &Core, edges: &[Edge]) {
    // PERSIST: D15: this lane's stores into them come before another lane's. No check sees it: simulated
    // memory orders two stores to one word, whichever lanes make them.
    core.region.fence();
    let blocks: Vec<Extent> = edges.iter().map(|e| Extent { block: e.block, count: 1 }).collect();
    crate::alloc::return_unused(core.free_map(), &blocks);
}

fn publish(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    inode: InodeRef<'_>,
    (Clear { span, to }, version): (Clear, Version),
    edges: &[Edge],
    committed: Committed<LockedSparse<'_>>,
) {
    if !planted(Bug::FloorNotRaised) {
        inode.volatile.raise_floor(version);
    }
    if span.end >= PageNo::END.offset() && to == Becomes::Hole {
        inode.volatile.note_tombstone(PageNo::after(span.start), version);
    }
    let whole = PageNo::after(span.start)..PageNo::of(span.end);
    let mut replaced = std::mem::take(&mut guard.scratch.replaced);
    replaced.clear();
    let map = |page: PageNo, old: Map| match edges.iter().find(|e| e.page == page) {
        Some(edge) => Some(Map::data(edge.block)),
        None if !whole.contains(&page) => None,
        None if to == Becomes::Hole => Some(Map::HOLE),
        // A page that reads as zeros already keeps content and version.
        None => old.content().map(Map::unwritten),
    };
    committed.publish(version, map, &mut replaced);
    free_replaced(core, guard, inode, &replaced);
    guard.scratch.replaced = replaced;
}

/// Copies the pages that are cleared in part, with zeros in the cleared part, and fences.
fn copy_edges(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, span: Span) -> Result<Vec<Edge>> {
    let mut edges = Vec::new();
    for page in span.edges().into_iter().flatten() {
        let map = inode.volatile.index().find(&core.arena, page).map_or(Map::HOLE, |run| run.cells[0].map());
        if map.content().is_none() {
            continue;
        }
        let Some(block) = take_block(core.free_map(), &core.region, guard.own, Purpose::Regain) else {
            give_back(core, &edges);
            return Err(Error::NoSpace);
        };
        let one = Span {
            start: span.start.max(page.offset()),
            end: span.end.min(page.offset() + BLOCK_BYTES as u64),
        };
        if planted(Bug::StaleBytesBeyondEnd) {
            // PERSIST: part of a planted bug.
            core.region.nt_copy(block.pos(), map.content().map_or(block, |b| b).pos(), BLOCK_BYTES as u64);
        } else {
            core.region.nt_zero(block.pos().plus(one.start - page.offset()), one.end - one.start);
        }
        edges.push(Edge { page, block });
        fill_edge(core, one, &[Extent { block, count: 1 }], page, map)
            .inspect_err(|_| give_back(core, &edges))?;
    }
    // PERSIST: data before the records that name it; also D15 for what the last operation freed.
    core.region.fence();
    release_limbo(core.free_map(), guard.own);
    Ok(edges)
}

/// Number of bytes of a page below EOF, 0 to 4096.
fn within_size(inode: InodeRef<'_>, page: PageNo) -> u32 {
    inode.volatile.size().saturating_sub(page.offset()).min(BLOCK_BYTES as u64) as u32
}

fn records_of(
    guard: &LaneGuard<'_>,
    inode: InodeRef<'_>,
    (version, now): (Version, Time),
    new: Option<&NewAttributes>,
    xattrs: Option<&Prepared>,
    edges: &[Edge],
    whole: Vec<Record>,
) -> Vec<Record> {
    let change_count = inode.volatile.change_count() + u64::from(new.is_some());
    let mut records: Vec<Record> = edges
        .iter()
        .map(|e| Record::Write {
            page: e.page,
            pages: 1,
            blocks: Blocks::At(e.block),
            // If there is an attribute record, it carries the size. Otherwise this record may become the one that
            // does.
            end_in_last_page: if new.is_some() { 0 } else { within_size(inode, e.page) },
            version,
            mtime: now,
            change_count,
        })
        .collect();
    records.extend(whole);
    match new {
        Some(new) => {
            records.push(Record::Attributes(attributes_of(guard, inode, new, now)));
            records.extend(xattrs.map(|set| set.record(change_count, now)));
        }
        // Nothing was mapped, yet the file has changed, so its times must change.
        None if records.is_empty() => {
            records.push(Record::Attributes(attributes_of(
                guard,
                inode,
                &NewAttributes { mtime: Some(SetTime::Now), ..NewAttributes::default() },
                now,
            )));
        }
        None => {}
    }
    records
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
