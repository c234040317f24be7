//! Files: pages and attributes from the records of their chains.

use crate::file::shift;
use crate::format::extent_list;
use crate::format::layout::TARGET_BYTES;
use crate::format::record::{Attributes, Blocks, Record};
use crate::ids::{BlockNo, Extent, InodeId, PageNo, Version};
use crate::planted::{Breach, Bug, breaks, planted};
use crate::state::cell::Map;
use crate::state::core::{Core, no_memory};
use crate::state::inode::InodeRef;
use crate::state::lane::LaneLocal;
use crate::state::lease::enter;
use crate::upkeep::recovery::deferred_zeros::DeferredZeros;
use crate::upkeep::recovery::parallel::in_parallel;
use crate::upkeep::recovery::{Names, Progress, read_chain};
use crate::xattr;
use heddle_vfs::{Error, FileKind, Ino, OFFSET_MAX_BYTES, Result, Time};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// Size, times and extended attributes, merged from records in any order: the attributes with the largest
/// change count, then raised by the writes since.
#[derive(Default)]
pub struct MergedAttributes {
    recorded: Option<Attributes>,
    /// For each change count: largest end and time of the writes that carry it.
    written: BTreeMap<u64, (u64, Time)>,
    /// The last xattr record: its change count and the block of the attributes.
    xattrs: Option<(u64, Option<BlockNo>)>,
}

impl MergedAttributes {
    /// Merges an attribute record.
    pub fn recorded(&mut self, attributes: Attributes) {
        if self.recorded.is_none_or(|s| s.change_count < attributes.change_count) {
            self.recorded = Some(attributes);
        }
    }

    /// Change count of the last attribute record.
    pub fn change_count(&self) -> u64 {
        self.recorded.map_or(0, |attributes| attributes.change_count)
    }

    /// Merges a change of content that carries this change count.
    pub fn written(&mut self, change_count: u64, end: u64, mtime: Time) {
        let entry = self.written.entry(change_count).or_insert((0, Time(i64::MIN)));
        *entry = (entry.0.max(end), entry.1.max(mtime));
    }

    /// Merges a record of extended attributes.
    pub fn xattrs(&mut self, change_count: u64, blob: Option<BlockNo>) {
        if self.xattrs.is_none_or(|(known, _)| known < change_count) {
            self.xattrs = Some((change_count, blob));
        }
    }

    /// Applies the merged result to the inode.
    pub fn apply(&self, core: &Core, own: &mut LaneLocal, inode: InodeRef<'_>) -> Result<()> {
        let from = self.recorded.map_or(0, |s| s.change_count);
        let [mut mtime, mut ctime, atime, _] = inode.volatile.times();
        let mut size = 0;
        if let (Some(s), Some((kind, _))) = (self.recorded, inode.volatile.kind_perm()) {
            inode.volatile.set_mode(kind, s.perm, inode.volatile.rdev());
            inode.volatile.set_owner(s.uid, s.gid);
            (size, mtime, ctime) = (s.size, s.mtime, s.ctime);
            inode.volatile.set_atime(s.atime);
        } else {
            inode.volatile.set_atime(atime);
        }
        let since = if planted(Bug::LatestTimeWins) { 0 } else { from };
        if since != from {
            mtime = self.written.values().fold(mtime, |latest, w| latest.max(w.1));
        }
        for (end, time) in self.written.range(from..).map(|(_, w)| *w) {
            (size, mtime, ctime) = (size.max(end), mtime.max(time), ctime.max(time));
        }
        inode.volatile.set_size(size);
        inode.volatile.set_times(mtime, ctime);
        let last = self.written.last_key_value().map_or(0, |(g, _)| *g);
        inode.volatile.set_change_count(from.max(last));
        inode.volatile.attributes_change_count.store(from, SeqCst);
        match self.xattrs {
            Some((change_count, blob)) => xattr::recover(core, own, inode, change_count, blob),
            None => Ok(()),
        }
    }
}

/// Recovers every inode that has a name and is not a directory.
pub fn recover_all(
    core: &Arc<Core>,
    names: &Names,
    later: &DeferredZeros,
    progress: Progress<'_>,
) -> Result<()> {
    let kind = |ino: Ino| core.slot(ino).and_then(|inode| inode.volatile.kind_perm()).map(|(kind, _)| kind);
    let files = names.links.iter().map(|(ino, links)| (*ino, *links));
    let mut files: Vec<(Ino, u32)> =
        files.filter(|(ino, _)| kind(*ino).is_some_and(|kind| kind != FileKind::Directory)).collect();
    // Sorted, so that neighbours on media are read one after the other.
    files.sort_unstable();
    let recover = |(ino, links): &(Ino, u32)| recover_file(core, *ino, *links, later);
    in_parallel(core, "files", &files, progress, recover).map(|_| ())
}

fn recover_file(core: &Arc<Core>, ino: Ino, links: u32, later: &DeferredZeros) -> Result<()> {
    let inode = core.inode(ino)?;
    inode.volatile.nlink.store(links, SeqCst);
    if crate::upkeep::recovery::pointer_line(core, ino).iter().all(|w| *w == 0) {
        return believable(inode);
    }
    let guard = enter(core)?;
    let mut attributes = MergedAttributes::default();
    let mut punches = Vec::new();
    read_chain::read(core, guard.own, inode, later, &mut |record| match *record {
        Record::Write { page, pages, end_in_last_page, mtime, change_count, .. } => {
            let last = PageNo(page.0 + pages - 1).offset();
            let end = if end_in_last_page == 0 { 0 } else { last + u64::from(end_in_last_page) };
            attributes.written(change_count, end, mtime);
            map_write(core, inode, record)
        }
        Record::Punch { page, pages, version, mtime, change_count } => {
            attributes.written(change_count, 0, mtime);
            punches.push((page, PageNo(page.0 + pages), version));
            Ok(())
        }
        Record::Attributes(record) => {
            attributes.recorded(record);
            Ok(())
        }
        Record::Xattrs { blob, change_count, .. } => {
            attributes.xattrs(change_count, blob);
            Ok(())
        }
        Record::Remap { page, version, mtime, change_count, .. } => {
            attributes.written(change_count, 0, mtime);
            punches.push((page, PageNo::END, version));
            map_remap(core, inode, record)
        }
        Record::Name { .. } => Err(Error::Corrupt(format!("inode {}: a name in the log of a file", ino.0))),
    })?;
    // Tombstones last: so the result does not depend on the order of the other records.
    for (first, end, version) in punches {
        punch(core, inode, first, end, version);
    }
    attributes.apply(core, guard.own, inode)?;
    believable(inode)?;
    claim_blocks(core, inode)
}

/// Checks that a file can have this size.
fn believable(inode: InodeRef<'_>) -> Result<()> {
    let size = inode.volatile.size();
    let link = matches!(inode.volatile.kind_perm(), Some((FileKind::Symlink, _)));
    if size > OFFSET_MAX_BYTES || link && !TARGET_BYTES.contains(&size) {
        let what = if link { "the target of a symbolic link" } else { "a file" };
        return Err(Error::Corrupt(format!("inode {}: {what} of {size} bytes", inode.ino.0)));
    }
    Ok(())
}

fn map_write(core: &Core, inode: InodeRef<'_>, record: &Record) -> Result<()> {
    let Record::Write { page, pages, blocks, version, .. } = *record else { return Ok(()) };
    let (unwritten, extents) = match blocks {
        Blocks::At(block) => (false, vec![Extent { block, count: pages }]),
        Blocks::Unwritten(block) => (true, vec![Extent { block, count: pages }]),
        Blocks::List(first) => (false, read_list(core, inode.id(), first, pages)?),
    };
    let mut at = page;
    for extent in extents {
        if !core.layout.holds(extent.block, extent.count) {
            return Err(Error::Corrupt(format!(
                "inode {}: page {} lies outside the data area",
                inode.ino.0, at.0
            )));
        }
        for i in 0..extent.count {
            let block = extent.block.plus(i);
            let map = if unwritten && !planted(Bug::UnwrittenIsData) {
                Map::unwritten(block)
            } else {
                Map::data(block)
            };
            let run = inode.volatile.index().grow(&core.arena, at).map_err(no_memory)?;
            let cell = &run.cells[0];
            let known = cell.lock_version().version();
            if version == known && cell.map() != map {
                return Err(Error::Corrupt(format!(
                    "inode {}: two records of version {} claim page {}",
                    inode.ino.0, version.0, at.0
                )));
            }
            if version > known || planted(Bug::LaterChainWins) {
                cell.set(map, version);
            }
            at = PageNo(at.0 + 1);
        }
    }
    Ok(())
}

/// Claims the blocks of a remap record and maps the pages that it gives blocks to. The tombstones clear the
/// other pages that it covers. The record's own list blocks are claimed too.
fn map_remap(core: &Core, inode: InodeRef<'_>, record: &Record) -> Result<()> {
    let Record::Remap { page: from, blob, version, .. } = *record else { return Ok(()) };
    let damaged =
        || Error::Corrupt(format!("inode {}: the map of its pages from {} on", inode.ino.0, from.0));
    let (runs, blocks) = shift::read_map(core, inode.id(), blob).ok_or_else(damaged)?;
    if !blocks.into_iter().all(|extent| core.free_map().claim(extent)) {
        return Err(damaged());
    }
    for run in runs {
        if run.page < from || !core.layout.holds(run.blocks.block, run.blocks.count) {
            return Err(damaged());
        }
        for i in 0..run.blocks.count {
            let block = run.blocks.block.plus(i);
            let map = if run.unwritten { Map::unwritten(block) } else { Map::data(block) };
            let found =
                inode.volatile.index().grow(&core.arena, PageNo(run.page.0 + i)).map_err(no_memory)?;
            let cell = &found.cells[0];
            if cell.lock_version().version() < version {
                cell.set(map, version);
            }
        }
    }
    Ok(())
}

/// The extents of a list. The list's blocks are claimed: they live as long as the log page that names them.
fn read_list(core: &Core, owner: InodeId, first: BlockNo, pages: u64) -> Result<Vec<Extent>> {
    let damaged = |at: BlockNo| Error::Corrupt(format!("inode {}: extent list block {}", owner.ino.0, at.0));
    let (mut extents, mut next, mut count) = (Vec::new(), Some(first), 0);
    while let Some(at) = next {
        if !core.layout.holds(at, 1) || !core.free_map().claim(Extent { block: at, count: 1 }) {
            return Err(damaged(at));
        }
        let word = |i: usize| core.region.load_u64(at.pos().plus(i as u64 * 8));
        let (part, following) = extent_list::decode(core.seed, owner, at, word).ok_or_else(|| damaged(at))?;
        count += part.iter().map(|e| e.count).sum::<u64>();
        extents.extend(part);
        next = following;
    }
    if count == pages { Ok(extents) } else { Err(damaged(first)) }
}

fn punch(core: &Core, inode: InodeRef<'_>, first: PageNo, end: PageNo, version: Version) {
    inode.volatile.raise_floor(version);
    if end == PageNo::END && version.0 > inode.volatile.tombstone_version.load(SeqCst) {
        inode.volatile.tombstone_page.store(first.0, SeqCst);
        inode.volatile.tombstone_version.store(version.0, SeqCst);
    }
    for cell in inode.volatile.index().runs(&core.arena, first, end).flat_map(|run| run.cells) {
        if cell.lock_version().version() < version {
            cell.set(Map::HOLE, version);
        }
    }
}

/// Claims every block that a page is mapped to; it must belong to this file alone.
fn claim_blocks(core: &Core, inode: InodeRef<'_>) -> Result<()> {
    let mut blocks = 0;
    for extent in crate::file::blocks::data_blocks(core, inode) {
        if !core.free_map().claim(extent) && !breaks(Breach::SharedBlocksBelieved) {
            return Err(Error::Corrupt(format!(
                "inode {}: a block of {} to {} belongs to something else too",
                inode.ino.0,
                extent.block.0,
                extent.block.0 + extent.count - 1
            )));
        }
        blocks += extent.count;
    }
    inode.volatile.count_blocks(blocks as i64);
    Ok(())
}
