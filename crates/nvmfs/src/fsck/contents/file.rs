//! A file: its pages, applied in the order of versions, and its attributes.

use super::{
    Attached, ListClaims, Named, OWNER_ALONE, attach, attached_record, attributes_of_birth, list, map,
    settle_attached,
};
use crate::format::blob::MapRun;
use crate::format::inode::InodeBase;
use crate::format::layout::TARGET_BYTES;
use crate::format::record::{Attributes, Blocks, Record, WRITE_PAGES_MAX};
use crate::fsck::catalogue::Code;
use crate::fsck::claims::Use;
use crate::fsck::log::{Entry, Log};
use crate::fsck::pass::{Edit, Location, Pass};
use crate::ids::{BlockNo, Extent, InodeId, PageNo, Version};
use heddle_vfs::{FileKind, OFFSET_MAX_BYTES, Time};
use std::collections::BTreeMap;

/// Consecutive pages in consecutive blocks, or a hole with the version of the record that made it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// One beyond the last page.
    pub end: u64,
    /// First block; `None`: a hole.
    pub block: Option<BlockNo>,
    /// Allocated, never written.
    pub unwritten: bool,
    /// Orders it among changes of its pages.
    pub version: Version,
    /// Time of the change.
    pub mtime: Time,
}

/// A file, or any other inode with attributes and without names.
pub struct File {
    /// Its inode.
    pub id: InodeId,
    /// Its pages, by first page.
    pub runs: BTreeMap<u64, Run>,
    recorded: Option<Attributes>,
    /// For each change count: largest end and time of the writes that carry it.
    written: BTreeMap<u64, (u64, Time)>,
    attached: Attached,
    /// True: its log must be written anew.
    pub damaged: bool,
    /// True: see [`OWNER_ALONE`].
    is_narrowed: bool,
    birth: InodeBase,
}

/// A change of pages, to be applied in the order of versions.
struct PageChange {
    first: u64,
    run: Run,
}

impl File {
    /// The file as the log of `birth` describes it. Extent lists are read and claimed; blocks are not claimed
    /// yet.
    pub fn of(pass: &mut Pass<'_>, birth: InodeBase, log: &Log) -> File {
        let id = birth.id;
        let mut file = File {
            id,
            runs: BTreeMap::new(),
            recorded: None,
            written: BTreeMap::new(),
            attached: None,
            damaged: log.damaged,
            is_narrowed: log.damaged,
            birth,
        };
        let has_pages = matches!(birth.kind, FileKind::Regular | FileKind::Symlink);
        let (mut changes, mut list_claims) = (Vec::new(), ListClaims::default());
        for entry in &log.records {
            match entry.record {
                Record::Write { .. } | Record::Punch { .. } if !has_pages => {
                    file.misplaced(pass, entry, "file data")
                }
                Record::Write { .. } => file.write(pass, entry, &mut changes, &mut list_claims),
                Record::Punch { page, pages, version, mtime, change_count } => {
                    file.note(change_count, 0, mtime);
                    let end = page.0 + pages;
                    let run = Run { end, block: None, unwritten: false, version, mtime };
                    changes.push(PageChange { first: page.0, run });
                }
                Record::Attributes(attributes) => {
                    if file.recorded.is_none_or(|s| s.change_count < attributes.change_count) {
                        file.recorded = Some(attributes);
                    }
                }
                Record::Xattrs { .. } => attach(&mut file.attached, entry, id.ino),
                Record::Remap { .. } if has_pages => file.remap(pass, entry, &mut changes, &mut list_claims),
                Record::Remap { .. } => file.misplaced(pass, entry, "a map"),
                Record::Name { .. } => file.misplaced(pass, entry, "a name"),
            }
        }
        // A lost access list may have narrowed the permissions.
        let is_attached_lost = !settle_attached(pass, id, &mut file.attached);
        file.damaged |= list_claims.again | is_attached_lost;
        file.is_narrowed |= is_attached_lost;
        // At one version, a tombstone comes before a write.
        changes.sort_by_key(|s| (s.run.version, s.run.block.is_some()));
        for change in changes {
            file.apply(pass, change);
        }
        file
    }

    fn misplaced(&mut self, pass: &mut Pass<'_>, entry: &Entry, what: &str) {
        let location = Location::of(self.id.ino, entry.block).slot(entry.slot);
        pass.issue(Code::RECORD_MISPLACED, location, format!("{what} in the log of a {:?}", self.birth.kind));
        self.damaged = true;
    }

    fn note(&mut self, change_count: u64, end: u64, mtime: Time) {
        let entry = self.written.entry(change_count).or_insert((0, Time(i64::MIN)));
        *entry = (entry.0.max(end), entry.1.max(mtime));
    }

    fn write(
        &mut self,
        pass: &mut Pass<'_>,
        entry: &Entry,
        changes: &mut Vec<PageChange>,
        list_claims: &mut ListClaims,
    ) {
        let Record::Write { page, pages, blocks, end_in_last_page, version, mtime, change_count } =
            entry.record
        else {
            return;
        };
        let location = Location::of(self.id.ino, entry.block).slot(entry.slot);
        let last = PageNo(page.0 + pages - 1).offset();
        let end = if end_in_last_page == 0 { 0 } else { last + u64::from(end_in_last_page) };
        self.note(change_count, end, mtime);
        let (unwritten, extents) = match blocks {
            Blocks::At(block) => (false, vec![Extent { block, count: pages }]),
            Blocks::Unwritten(block) => (true, vec![Extent { block, count: pages }]),
            Blocks::List(first) => {
                (false, list(pass, self.id, location, (first, pages), list_claims).unwrap_or_default())
            }
        };
        let mut at = page.0;
        for extent in extents {
            let inside = pass.image.layout.holds(extent.block, extent.count);
            if !inside {
                pass.issue(Code::EXTENT_OUTSIDE, location, format!("page {at} is block {}", extent.block.0));
                self.damaged = true;
            }
            let end = (at + extent.count).min(page.0 + pages);
            let run = Run { end, block: inside.then_some(extent.block), unwritten, version, mtime };
            if end > at {
                changes.push(PageChange { first: at, run });
            }
            at = end;
        }
        if at < page.0 + pages {
            self.damaged = true;
            let run = Run { end: page.0 + pages, block: None, unwritten, version, mtime };
            changes.push(PageChange { first: at, run });
        }
    }

    /// Applies a remap: a hole from its page on, and then, at the same version, the blocks of its map.
    fn remap(
        &mut self,
        pass: &mut Pass<'_>,
        entry: &Entry,
        changes: &mut Vec<PageChange>,
        list_claims: &mut ListClaims,
    ) {
        let Record::Remap { page, blob, version, mtime, change_count } = entry.record else { return };
        let location = Location::of(self.id.ino, entry.block).slot(entry.slot);
        self.note(change_count, 0, mtime);
        let hole = Run { end: PageNo::END.0, block: None, unwritten: false, version, mtime };
        changes.push(PageChange { first: page.0, run: hole });
        let runs = map(pass, self.id, location, (page, blob), list_claims);
        self.damaged |= runs.is_none();
        for MapRun { page, blocks, unwritten } in runs.unwrap_or_default() {
            if !pass.image.layout.holds(blocks.block, blocks.count) {
                pass.issue(
                    Code::EXTENT_OUTSIDE,
                    location,
                    format!("page {} is block {}", page.0, blocks.block.0),
                );
                self.damaged = true;
                continue;
            }
            let run =
                Run { end: page.0 + blocks.count, block: Some(blocks.block), unwritten, version, mtime };
            changes.push(PageChange { first: page.0, run });
        }
    }

    /// Applies a run over earlier ones; versions come in ascending order.
    fn apply(&mut self, pass: &mut Pass<'_>, change: PageChange) {
        let PageChange { first, run } = change;
        self.split(first);
        self.split(run.end);
        let under: Vec<u64> = self.runs.range(first..run.end).map(|(at, _)| *at).collect();
        for at in under {
            if let Some(old) = self.runs.remove(&at)
                && old.version == run.version
                && let (Some(was), Some(is)) = (old.block, run.block)
                && (was.0 != is.0 + (at - first) || old.unwritten != run.unwritten)
            {
                let what = format!("two records of version {} claim page {at}", run.version.0);
                pass.issue(Code::VERSIONS_CLASH, Location::ino(self.id.ino), what);
                self.damaged = true;
            }
        }
        self.runs.insert(first, run);
    }

    /// Splits the run at `at`.
    pub fn split(&mut self, at: u64) {
        if let Some((first, run)) = self.runs.range_mut(..at).next_back()
            && run.end > at
        {
            let rest = Run { block: run.block.map(|b| b.plus(at - *first)), ..*run };
            run.end = at;
            self.runs.insert(at, rest);
        }
    }

    /// The resulting size and attributes. An inode without an attribute record has those of its creation.
    pub fn attributes(&self) -> Attributes {
        let mut attributes = self.recorded.unwrap_or_else(|| attributes_of_birth(&self.birth));
        if self.is_narrowed {
            attributes.perm &= OWNER_ALONE;
        }
        let last = self.written.last_key_value().map_or(0, |(g, _)| *g);
        for (end, time) in self.written.range(attributes.change_count..).map(|(_, w)| *w) {
            attributes.size = attributes.size.max(end);
            (attributes.mtime, attributes.ctime) = (attributes.mtime.max(time), attributes.ctime.max(time));
        }
        attributes.change_count = attributes.change_count.max(last).max(self.attached.map_or(0, |(g, ..)| g));
        attributes
    }

    /// Claims its blocks and checks its size.
    pub fn settle(&mut self, pass: &mut Pass<'_>) {
        for (first, run) in &self.runs {
            if let Some(block) = run.block {
                pass.claim(block, run.end - first, Use::Data(self.id, PageNo(*first)));
            }
        }
        let size = self.attributes().size;
        let location = Location::ino(self.id.ino);
        if size > OFFSET_MAX_BYTES {
            pass.issue(Code::SIZE, location, format!("{size} bytes"));
            self.damaged = true;
            if let Some(attributes) = &mut self.recorded {
                let last = self.runs.values().rev().find(|run| run.block.is_some());
                let end = last.map_or(0, |run| PageNo(run.end).offset());
                attributes.size = end.min(OFFSET_MAX_BYTES);
            }
        }
        if self.birth.kind == FileKind::Symlink && !TARGET_BYTES.contains(&size) && !self.damaged {
            pass.issue(Code::SYMLINK, location, format!("its target has {size} bytes"));
            self.mend_target(pass);
        }
    }

    /// Returns true if it is a symbolic link without a usable target. If it were named, the name would be
    /// dropped again.
    pub fn is_lost_link(&self) -> bool {
        self.birth.kind == FileKind::Symlink && !TARGET_BYTES.contains(&self.attributes().size)
    }

    /// A link's target ends where its text ends. A link without any text loses its names.
    fn mend_target(&mut self, pass: &mut Pass<'_>) {
        let block = self.runs.get(&0).and_then(|run| run.block);
        let text = block.map_or(0, |block| {
            let words = pass.media.block(block);
            let bytes = words.iter().flat_map(|word| word.to_le_bytes());
            bytes.take_while(|byte| *byte != 0).count() as u64
        });
        if TARGET_BYTES.contains(&text) {
            self.recorded = Some(Attributes { size: text, ..self.attributes() });
            self.written.clear();
            self.damaged = true;
        } else if !pass.quiet {
            let named = |(_, named): &(&Vec<u8>, &Named)| named.child == self.id;
            let drops = pass.tree.dirs.iter().flat_map(|(dir, names)| {
                names.living().filter(named).map(|(name, _)| (*dir, Edit::Drop(name.clone())))
            });
            pass.fixes.edits.extend(drops);
        }
    }

    /// Number of extents and of blocks.
    pub fn extents(&self) -> (u64, u64) {
        let (mut pieces, mut blocks, mut next) = (0, 0, None);
        for (first, run) in &self.runs {
            let Some(block) = run.block else { continue };
            if next != Some((*first, block)) {
                pieces += 1;
            }
            blocks += run.end - first;
            next = Some((run.end, block.plus(run.end - first)));
        }
        (pieces, blocks)
    }

    /// Number of its records that still count: the last attribute record, and writes that determine a page's mapping or
    /// the size.
    pub fn living(&self, log: &Log) -> u64 {
        let recorded = self.recorded.map(|s| s.change_count);
        let lives = |record: &Record| match *record {
            Record::Write { page, pages, version, .. } => {
                let before = self.runs.range(..=page.0).next_back().into_iter();
                let inside = self.runs.range(page.0 + 1..page.0 + pages);
                before.chain(inside).any(|(_, run)| run.version == version && run.end > page.0)
            }
            Record::Remap { version, .. } => self.runs.values().any(|run| run.version == version),
            Record::Attributes(s) => Some(s.change_count) == recorded,
            Record::Xattrs { change_count, .. } => self.attached.is_some_and(|(g, ..)| g == change_count),
            _ => false,
        };
        log.records.iter().filter(|e| lives(&e.record)).count() as u64
    }

    /// An equivalent log.
    pub fn records(&self) -> Vec<Record> {
        let attributes = self.attributes();
        let mut records = vec![Record::Attributes(attributes)];
        records.extend(attached_record(self.attached, attributes.change_count));
        for (first, run) in &self.runs {
            let Some(block) = run.block else { continue };
            let mut at = *first;
            while at < run.end {
                let pages = (run.end - at).min(WRITE_PAGES_MAX);
                let block = block.plus(at - first);
                records.push(Record::Write {
                    page: PageNo(at),
                    pages,
                    blocks: if run.unwritten { Blocks::Unwritten(block) } else { Blocks::At(block) },
                    end_in_last_page: 0,
                    version: run.version,
                    mtime: attributes.mtime.min(run.mtime),
                    change_count: attributes.change_count,
                });
                at += pages;
            }
        }
        records
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
