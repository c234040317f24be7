//! What the records of an inode come to: pages and attributes of a file, names of a directory; and back: the records that say the same.
//!
//! A new kind of record has its place here: in [`File::of`] or [`Dir::of`] what it adds, in their `records` what is written of it
//! when a log is written anew.

use super::catalogue::Code;
use super::claims::Use;
use super::log::{Entry, Log};
use super::mend;
use super::pass::{Pass, Spot};
use crate::format::blob::{self, Kind, XATTR_BLOCKS_MAX, xattrs_of_words};
use crate::format::extent_list;
use crate::format::inode::InodeBase;
use crate::format::record::{Blocks, Record, State, WRITE_PAGES_MAX};
use crate::ids::{BlockNo, Extent, InodeId, PageNo, Version};
use heddle_vfs::{FileKind, Ino, OFFSET_MAX_BYTES, Time};
use std::collections::BTreeMap;

/// Consecutive pages in consecutive blocks, or a hole with the version of what made it one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    /// One beyond the last page.
    pub end: u64,
    /// First block; `None`: a hole.
    pub block: Option<BlockNo>,
    /// Allocated, never written.
    pub unwritten: bool,
    /// Orders it.
    pub version: Version,
    /// When.
    pub mtime: Time,
}

/// A file, or anything with attributes and no names.
pub struct File {
    /// Which.
    pub id: InodeId,
    /// Its pages, by first page.
    pub runs: BTreeMap<u64, Run>,
    state: Option<State>,
    /// Largest end and time of the writes that saw a generation.
    written: BTreeMap<u64, (u64, Time)>,
    attached: Attached,
    /// Its log must be written anew.
    pub damaged: bool,
    birth: InodeBase,
}

/// The last set of extended attributes: its generation, blob, and where the record stands.
type Attached = Option<(u64, Option<BlockNo>, Time, Spot)>;

/// Takes an attributes record in.
fn attach(attached: &mut Attached, entry: &Entry, ino: Ino) {
    let Record::Xattrs { blob, generation, mtime } = entry.record else { return };
    if attached.is_none_or(|(known, ..)| known < generation) {
        *attached = Some((generation, blob, mtime, Spot::of(ino, entry.block).slot(entry.slot)));
    }
}

/// Reads and claims the blob of the attributes that count; false: they are lost, and forgotten. Older sets' blocks are free.
fn settle_attached(pass: &mut Pass<'_>, id: InodeId, attached: &mut Attached) -> bool {
    let Some((_, Some(first), _, spot)) = *attached else { return true };
    if words(pass, id, spot, first).is_some_and(|words| xattrs_of_words(&words).is_some()) {
        return true;
    }
    pass.issue(Code::XATTRS, spot, "the blob of its attributes is not whole");
    *attached = None;
    false
}

/// The record of attributes beside a state of this generation.
fn attached_record(attached: Attached, generation: u64) -> Option<Record> {
    attached.map(|(_, blob, mtime, _)| Record::Xattrs { blob, generation, mtime })
}

/// A change of pages, to be painted in the order of versions.
struct Stroke {
    first: u64,
    run: Run,
}

impl File {
    /// What the log of `birth` says. Extent lists are read and claimed; blocks are not claimed yet.
    pub fn of(pass: &mut Pass<'_>, birth: InodeBase, log: &Log) -> File {
        let id = birth.id;
        let mut file = File {
            id,
            runs: BTreeMap::new(),
            state: None,
            written: BTreeMap::new(),
            attached: None,
            damaged: log.damaged,
            birth,
        };
        let has_pages = matches!(birth.kind, FileKind::Regular | FileKind::Symlink);
        let mut strokes = Vec::new();
        for entry in &log.records {
            match entry.record {
                Record::Write { .. } | Record::Punch { .. } if !has_pages => {
                    file.misplaced(pass, entry, "file data")
                }
                Record::Write { .. } => file.write(pass, entry, &mut strokes),
                Record::Punch { page, pages, version, mtime, generation } => {
                    file.note(generation, 0, mtime);
                    let end = page.0 + pages;
                    let run = Run { end, block: None, unwritten: false, version, mtime };
                    strokes.push(Stroke { first: page.0, run });
                }
                Record::State(state) => {
                    if file.state.is_none_or(|s| s.generation < state.generation) {
                        file.state = Some(state);
                    }
                }
                Record::Xattrs { .. } => attach(&mut file.attached, entry, id.ino),
                // No engine writes maps yet, and a mount refuses them.
                Record::Remap { .. } => file.misplaced(pass, entry, "a map"),
                Record::Name { .. } => file.misplaced(pass, entry, "a name"),
            }
        }
        file.damaged |= !settle_attached(pass, id, &mut file.attached);
        // Of one version a write comes after a tombstone.
        strokes.sort_by_key(|s| (s.run.version, s.run.block.is_some()));
        for stroke in strokes {
            file.paint(pass, stroke);
        }
        file
    }

    fn misplaced(&mut self, pass: &mut Pass<'_>, entry: &Entry, what: &str) {
        let spot = Spot::of(self.id.ino, entry.block).slot(entry.slot);
        pass.issue(Code::RECORD_MISPLACED, spot, format!("{what} in the log of a {:?}", self.birth.kind));
        self.damaged = true;
    }

    fn note(&mut self, generation: u64, end: u64, mtime: Time) {
        let entry = self.written.entry(generation).or_insert((0, Time(i64::MIN)));
        *entry = (entry.0.max(end), entry.1.max(mtime));
    }

    fn write(&mut self, pass: &mut Pass<'_>, entry: &Entry, strokes: &mut Vec<Stroke>) {
        let Record::Write { page, pages, blocks, end_in_last_page, version, mtime, generation } =
            entry.record
        else {
            return;
        };
        let spot = Spot::of(self.id.ino, entry.block).slot(entry.slot);
        let last = PageNo(page.0 + pages - 1).offset();
        let end = if end_in_last_page == 0 { 0 } else { last + u64::from(end_in_last_page) };
        self.note(generation, end, mtime);
        let (unwritten, extents) = match blocks {
            Blocks::At(block) => (false, vec![Extent { block, count: pages }]),
            Blocks::Unwritten(block) => (true, vec![Extent { block, count: pages }]),
            Blocks::List(first) => (false, list(pass, self.id, spot, first, pages).unwrap_or_default()),
        };
        let mut at = page.0;
        for extent in extents {
            let inside = pass.image.layout.holds(extent.block, extent.count);
            if !inside {
                pass.issue(Code::EXTENT_OUTSIDE, spot, format!("page {at} is block {}", extent.block.0));
                self.damaged = true;
            }
            let end = (at + extent.count).min(page.0 + pages);
            let run = Run { end, block: inside.then_some(extent.block), unwritten, version, mtime };
            if end > at {
                strokes.push(Stroke { first: at, run });
            }
            at = end;
        }
        if at < page.0 + pages {
            self.damaged = true;
            let run = Run { end: page.0 + pages, block: None, unwritten, version, mtime };
            strokes.push(Stroke { first: at, run });
        }
    }

    /// Lays a run over what is there; versions come in ascending order.
    fn paint(&mut self, pass: &mut Pass<'_>, stroke: Stroke) {
        let Stroke { first, run } = stroke;
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
                pass.issue(Code::VERSIONS_CLASH, Spot::ino(self.id.ino), what);
                self.damaged = true;
            }
        }
        self.runs.insert(first, run);
    }

    /// Makes `at` a boundary of runs.
    pub fn split(&mut self, at: u64) {
        if let Some((first, run)) = self.runs.range_mut(..at).next_back()
            && run.end > at
        {
            let rest = Run { block: run.block.map(|b| b.plus(at - *first)), ..*run };
            run.end = at;
            self.runs.insert(at, rest);
        }
    }

    /// Size and attributes as all of it comes to. An inode without a state record has those of its birth.
    pub fn attributes(&self) -> State {
        let born = self.birth;
        let birth = State {
            size: 0,
            perm: born.perm,
            uid: born.uid,
            gid: born.gid,
            mtime: born.crtime,
            ctime: born.crtime,
            atime: born.crtime,
            generation: 0,
        };
        let mut state = self.state.unwrap_or(birth);
        let last = self.written.last_key_value().map_or(0, |(g, _)| *g);
        for (end, time) in self.written.range(state.generation..).map(|(_, w)| *w) {
            state.size = state.size.max(end);
            (state.mtime, state.ctime) = (state.mtime.max(time), state.ctime.max(time));
        }
        state.generation = state.generation.max(last).max(self.attached.map_or(0, |(g, ..)| g));
        state
    }

    /// Claims its blocks and judges its size.
    pub fn settle(&mut self, pass: &mut Pass<'_>) {
        for (first, run) in &self.runs {
            if let Some(block) = run.block {
                pass.claim(block, run.end - first, Use::Data(self.id, PageNo(*first)));
            }
        }
        let size = self.attributes().size;
        let spot = Spot::ino(self.id.ino);
        if size > OFFSET_MAX_BYTES {
            pass.issue(Code::SIZE, spot, format!("{size} bytes"));
            self.damaged = true;
            if let Some(state) = &mut self.state {
                let end = self.runs.last_key_value().map_or(0, |(_, run)| PageNo(run.end).offset());
                state.size = end.min(OFFSET_MAX_BYTES);
            }
        }
        if self.birth.kind == FileKind::Symlink && !(1..4096).contains(&size) && !self.damaged {
            pass.issue(Code::SYMLINK, spot, format!("its target has {size} bytes"));
        }
    }

    /// Pieces of consecutive blocks, and blocks.
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

    /// How many of its records still say what holds: the last state, and writes that a page's mapping or the size comes from.
    pub fn living(&self, log: &Log) -> u64 {
        let state = self.state.map(|s| s.generation);
        let lives = |record: &Record| match *record {
            Record::Write { page, pages, version, .. } => {
                let before = self.runs.range(..=page.0).next_back().into_iter();
                let inside = self.runs.range(page.0 + 1..page.0 + pages);
                before.chain(inside).any(|(_, run)| run.version == version && run.end > page.0)
            }
            Record::State(s) => Some(s.generation) == state,
            Record::Xattrs { generation, .. } => self.attached.is_some_and(|(g, ..)| g == generation),
            _ => false,
        };
        log.records.iter().filter(|e| lives(&e.record)).count() as u64
    }

    /// A log that says the same.
    pub fn records(&self) -> Vec<Record> {
        let state = self.attributes();
        let mut records = vec![Record::State(state)];
        records.extend(attached_record(self.attached, state.generation));
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
                    mtime: state.mtime.min(run.mtime),
                    generation: state.generation,
                });
                at += pages;
            }
        }
        records
    }
}

/// What a block with a checksum over its words says, one flipped bit turned back.
fn certified<T>(
    pass: &mut Pass<'_>,
    at: BlockNo,
    code: Code,
    spot: Spot,
    decode: mend::Decode<'_, T>,
) -> Option<T> {
    let words = pass.media.block(at);
    if let Some(said) = decode(&|i| words[i]) {
        return Some(said);
    }
    let (index, word, said) = mend::block(pass, &words[..], decode)?;
    pass.issue(code, spot, "one bit of the block");
    pass.exact(at.pos().plus(index as u64 * 8), vec![word]);
    Some(said)
}

/// The words of a blob of attributes, its blocks claimed.
fn words(pass: &mut Pass<'_>, owner: InodeId, spot: Spot, first: BlockNo) -> Option<Vec<u64>> {
    let seed = pass.image.seed;
    let (mut all, mut next, mut blocks) = (Vec::new(), Some(first), 0);
    while let Some(at) = next {
        blocks += 1;
        if !pass.holds(at) || blocks > XATTR_BLOCKS_MAX {
            return None;
        }
        let here = Spot { block: Some(at), slot: None, ..spot };
        let decode = |word_at: &dyn Fn(usize) -> u64| blob::decode(seed, owner, Kind::Xattrs, at, word_at);
        let (part, following) = certified(pass, at, Code::XATTRS_BIT, here, &decode)?;
        pass.claim(at, 1, Use::Blob(owner));
        all.extend(part);
        next = following;
    }
    Some(all)
}

/// The extents of a list; `None`: lost. Its blocks live as long as the record that names them.
fn list(pass: &mut Pass<'_>, owner: InodeId, spot: Spot, first: BlockNo, pages: u64) -> Option<Vec<Extent>> {
    let seed = pass.image.seed;
    let (mut extents, mut next, mut count) = (Vec::new(), Some(first), 0u64);
    let mut met = std::collections::BTreeSet::new();
    while let Some(at) = next {
        let here = Spot { block: Some(at), slot: None, ..spot };
        if !pass.holds(at) || !met.insert(at) {
            pass.issue(Code::LIST, here, "a list leads to this block, where none can be");
            return None;
        }
        let decode = |word_at: &dyn Fn(usize) -> u64| extent_list::decode(seed, owner, at, word_at);
        let Some((part, following)) = certified(pass, at, Code::LIST_BIT, here, &decode) else {
            pass.issue(Code::LIST, here, "its checksum is wrong");
            return None;
        };
        pass.claim(at, 1, Use::List(owner));
        count = part.iter().fold(count, |sum, e| sum.saturating_add(e.count));
        if count > pages {
            break;
        }
        extents.extend(part);
        next = following;
    }
    if count != pages {
        pass.issue(Code::LIST_LENGTH, spot, format!("the record has {pages} pages, its list {count}"));
        return None;
    }
    Some(extents)
}

/// What a name means.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    /// Orders it.
    pub version: Version,
    /// The name is gone.
    pub removed: bool,
    /// The inode.
    pub child: InodeId,
    /// Its kind, as the name says.
    pub kind: FileKind,
    /// When.
    pub mtime: Time,
    /// Generation of the directory's attributes that it saw.
    pub generation: u64,
}

/// A directory.
#[derive(Clone, Debug)]
pub struct Dir {
    /// Which.
    pub id: InodeId,
    /// Its names, those that are gone too.
    pub names: BTreeMap<Vec<u8>, Named>,
    /// What its log says of other directories.
    pub foreign: Vec<Record>,
    state: Option<State>,
    attached: Attached,
    /// Its log must be written anew.
    pub damaged: bool,
}

impl Dir {
    /// A directory without names.
    pub fn empty(id: InodeId) -> Dir {
        Dir { id, names: BTreeMap::new(), foreign: Vec::new(), state: None, attached: None, damaged: false }
    }

    /// What the log says.
    pub fn of(pass: &mut Pass<'_>, id: InodeId, log: &Log) -> Dir {
        let mut dir = Dir { damaged: log.damaged, ..Dir::empty(id) };
        for entry in &log.records {
            match &entry.record {
                Record::Name { dir: of, .. } if *of == id => {
                    dir.enter(pass, &entry.record);
                }
                Record::Name { .. } => dir.foreign.push(entry.record.clone()),
                Record::State(state) => {
                    if dir.state.is_none_or(|s| s.generation < state.generation) {
                        dir.state = Some(*state);
                    }
                }
                Record::Xattrs { .. } => attach(&mut dir.attached, entry, id.ino),
                Record::Write { .. } | Record::Punch { .. } | Record::Remap { .. } => {
                    let spot = Spot::of(id.ino, entry.block).slot(entry.slot);
                    pass.issue(Code::RECORD_MISPLACED, spot, "file data in the log of a directory");
                    dir.damaged = true;
                }
            }
        }
        dir.damaged |= !settle_attached(pass, id, &mut dir.attached);
        dir
    }

    /// Takes a name record in; false: it was known already, or is older than what is known.
    pub fn enter(&mut self, pass: &mut Pass<'_>, record: &Record) -> bool {
        let Record::Name { removed, child, kind, ref name, version, mtime, generation, .. } = *record else {
            return false;
        };
        let new = Named { version, removed, child, kind, mtime, generation };
        match self.names.get(name.bytes()) {
            Some(old) if old.version > version => return false,
            Some(old) if old.version == version => {
                if (old.removed, old.child, old.kind) != (removed, child, kind) {
                    let shown = String::from_utf8_lossy(name.bytes()).into_owned();
                    let what = format!("two records of version {} about {shown:?}", version.0);
                    pass.issue(Code::VERSIONS_CLASH, Spot::ino(self.id.ino), what);
                    self.damaged = true;
                }
                return false;
            }
            _ => self.names.insert(name.bytes().to_vec(), new),
        };
        true
    }

    /// A name that is newer than all that it has.
    pub fn new_name(&self, child: InodeId, kind: FileKind, mtime: Time) -> Named {
        let version = self.names.values().map(|n| n.version).max().unwrap_or_default().next();
        Named { version, removed: false, child, kind, mtime, generation: self.generation() }
    }

    fn generation(&self) -> u64 {
        let names = self.names.values().map(|n| n.generation).max().unwrap_or(0);
        names.max(self.state.map_or(0, |s| s.generation)).max(self.attached.map_or(0, |(g, ..)| g))
    }

    /// Names that are there.
    pub fn living(&self) -> impl Iterator<Item = (&Vec<u8>, &Named)> {
        self.names.iter().filter(|(_, named)| !named.removed)
    }

    /// A log that says the same.
    pub fn records(&self) -> Vec<Record> {
        let names = self.names.iter().map(|(name, named)| Record::Name {
            dir: self.id,
            removed: named.removed,
            child: named.child,
            kind: named.kind,
            name: crate::format::record::NameBuf::new(name),
            version: named.version,
            mtime: named.mtime,
            generation: named.generation,
        });
        let generation = self.state.map_or(0, |s| s.generation);
        let attached = attached_record(self.attached, generation);
        let state = self.state.map(Record::State);
        names.chain(state).chain(attached).chain(self.foreign.iter().cloned()).collect()
    }
}
