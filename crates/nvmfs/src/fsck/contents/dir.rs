//! A directory: for each name, the record with the largest version.

use super::{Attached, attach, attached_record, settle_attached};
use crate::format::record::{Attributes, Record};
use crate::fsck::catalogue::Code;
use crate::fsck::log::Log;
use crate::fsck::pass::{Location, Pass};
use crate::ids::{InodeId, Version};
use heddle_vfs::{FileKind, Time};
use std::collections::BTreeMap;

/// The meaning of a name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Named {
    /// Orders it among records of the name.
    pub version: Version,
    /// True: the name is removed.
    pub removed: bool,
    /// The inode.
    pub child: InodeId,
    /// Its kind, according to the name.
    pub kind: FileKind,
    /// Time of the change.
    pub mtime: Time,
    /// Change count of the directory's attributes that the change saw.
    pub change_count: u64,
}

/// A directory.
#[derive(Clone, Debug)]
pub struct Dir {
    /// Its inode.
    pub id: InodeId,
    /// Its names, including removed ones.
    pub names: BTreeMap<Vec<u8>, Named>,
    /// Foreign records in its log, which are about other directories.
    pub foreign: Vec<Record>,
    recorded: Option<Attributes>,
    attached: Attached,
    /// True: its log must be written anew.
    pub damaged: bool,
}

impl Dir {
    /// A directory without names.
    pub fn empty(id: InodeId) -> Dir {
        Dir {
            id,
            names: BTreeMap::new(),
            foreign: Vec::new(),
            recorded: None,
            attached: None,
            damaged: false,
        }
    }

    /// The directory as its log describes it.
    pub fn of(pass: &mut Pass<'_>, id: InodeId, log: &Log) -> Dir {
        let mut dir = Dir { damaged: log.damaged, ..Dir::empty(id) };
        for entry in &log.records {
            match &entry.record {
                Record::Name { dir: of, .. } if *of == id => {
                    dir.enter(pass, &entry.record);
                }
                Record::Name { .. } => dir.foreign.push(entry.record.clone()),
                Record::Attributes(attributes) => {
                    if dir.recorded.is_none_or(|s| s.change_count < attributes.change_count) {
                        dir.recorded = Some(*attributes);
                    }
                }
                Record::Xattrs { .. } => attach(&mut dir.attached, entry, id.ino),
                Record::Write { .. } | Record::Punch { .. } | Record::Remap { .. } => {
                    let location = Location::of(id.ino, entry.block).slot(entry.slot);
                    pass.issue(Code::RECORD_MISPLACED, location, "file data in the log of a directory");
                    dir.damaged = true;
                }
            }
        }
        dir.damaged |= !settle_attached(pass, id, &mut dir.attached);
        dir
    }

    /// Returns true if a foreign record in another directory's log still counts. If it saw older attributes
    /// than this log has, it was copied here, and may be older than records that were dropped since.
    pub fn believes(&self, foreign: &Record) -> bool {
        let known = self.recorded.map_or(0, |attributes| attributes.change_count);
        matches!(foreign, Record::Name { change_count, .. } if *change_count >= known)
    }

    /// Applies a name record. Returns false if it was applied already, or is older than the present one.
    pub fn enter(&mut self, pass: &mut Pass<'_>, record: &Record) -> bool {
        let Record::Name { removed, child, kind, ref name, version, mtime, change_count, .. } = *record
        else {
            return false;
        };
        let new = Named { version, removed, child, kind, mtime, change_count };
        match self.names.get(name.bytes()) {
            Some(old) if old.version > version => return false,
            // Cleaning had copied the record before it was turned into the removal, and power failed before
            // both copies were changed.
            Some(old)
                if old.version == version
                    && (old.child, old.kind) == (child, kind)
                    && old.removed != removed =>
            {
                if removed {
                    self.names.insert(name.bytes().to_vec(), new);
                }
                return removed;
            }
            Some(old) if old.version == version => {
                if (old.removed, old.child, old.kind) != (removed, child, kind) {
                    let shown = String::from_utf8_lossy(name.bytes()).into_owned();
                    let what = format!("two records of version {} about {shown:?}", version.0);
                    pass.issue(Code::VERSIONS_CLASH, Location::ino(self.id.ino), what);
                    self.damaged = true;
                }
                return false;
            }
            _ => self.names.insert(name.bytes().to_vec(), new),
        };
        true
    }

    /// The meaning of a new name, newer than all names of the directory.
    pub fn new_name(&self, child: InodeId, kind: FileKind, mtime: Time) -> Named {
        let version = self.names.values().map(|n| n.version).max().unwrap_or_default().next();
        Named { version, removed: false, child, kind, mtime, change_count: self.change_count() }
    }

    fn change_count(&self) -> u64 {
        let names = self.names.values().map(|n| n.change_count).max().unwrap_or(0);
        names.max(self.recorded.map_or(0, |s| s.change_count)).max(self.attached.map_or(0, |(g, ..)| g))
    }

    /// Names that are present.
    pub fn living(&self) -> impl Iterator<Item = (&Vec<u8>, &Named)> {
        self.names.iter().filter(|(_, named)| !named.removed)
    }

    /// An equivalent log.
    pub fn records(&self) -> Vec<Record> {
        let names = self.names.iter().map(|(name, named)| Record::Name {
            dir: self.id,
            removed: named.removed,
            child: named.child,
            kind: named.kind,
            name: crate::format::record::NameBuf::new(name),
            version: named.version,
            mtime: named.mtime,
            change_count: named.change_count,
        });
        let change_count = self.recorded.map_or(0, |s| s.change_count);
        let attached = attached_record(self.attached, change_count);
        let attributes = self.recorded.map(Record::Attributes);
        names.chain(attributes).chain(attached).chain(self.foreign.iter().cloned()).collect()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
