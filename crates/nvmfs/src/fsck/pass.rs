//! One reading of the whole image: the issues, and the repairs for them.

use super::catalogue::{Code, Severity};
use super::claims::Claims;
use super::image::Image;
use super::media::Media;
use super::slots::Slots;
use super::tree::Tree;
use super::{log, slots, tree};
use crate::format::record::Record;
use crate::ids::{BlockNo, InodeId};
use heddle_pmem::Pos;
use heddle_vfs::Ino;
use std::collections::BTreeMap;
use std::fmt;

/// The position of an issue, as far as known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Location {
    /// Inode.
    pub ino: Option<Ino>,
    /// Block.
    pub block: Option<BlockNo>,
    /// Slot of a log page.
    pub slot: Option<u32>,
}

impl Location {
    /// The spot of an inode.
    pub fn ino(ino: Ino) -> Location {
        Location { ino: Some(ino), ..Location::default() }
    }

    /// The spot of a block.
    pub fn block(block: BlockNo) -> Location {
        Location { block: Some(block), ..Location::default() }
    }

    /// The spot of a block of an inode.
    pub fn of(ino: Ino, block: BlockNo) -> Location {
        Location { ino: Some(ino), block: Some(block), slot: None }
    }

    /// The spot with a slot.
    pub fn slot(self, slot: u32) -> Location {
        Location { slot: Some(slot), ..self }
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            self.ino.map(|i| format!("inode {}", i.0)),
            self.block.map(|b| format!("block {}", b.0)),
            self.slot.map(|s| format!("slot {s}")),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        f.write_str(if parts.is_empty() { "image" } else { "" })?;
        f.write_str(&parts.join(", "))
    }
}

/// An issue found in the image.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Issue {
    /// Its code in the catalogue.
    pub code: Code,
    /// Its position.
    pub location: Location,
    /// A description.
    pub what: String,
}

impl Issue {
    /// Its severity.
    pub fn severity(&self) -> Severity {
        self.code.entry().severity
    }
}

/// A log to be written anew.
#[derive(Clone, Debug)]
pub struct Relog {
    /// The inode of the log.
    pub id: InodeId,
    /// The new records.
    pub records: Vec<Record>,
}

/// A change of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edit {
    /// Drop the name.
    Drop(Vec<u8>),
    /// Keep the name, with the kind from the inode's slot.
    Rekind(Vec<u8>),
}

/// Repairs for the issues of a pass, by level (see [`super`]).
#[derive(Default)]
pub struct Fixes {
    /// First of all: pointers of the inode directory to blocks that are no chunks. Issues found in such a
    /// block are not a chunk's.
    pub lies: Vec<(Pos, Vec<u64>)>,
    /// 0: words with their original values, or values that follow from whole structures.
    pub exact: Vec<(Pos, Vec<u64>)>,
    /// 1: words made anew.
    pub anew: Vec<(Pos, Vec<u64>)>,
    /// 2: logs to be written anew.
    pub relogs: Vec<Relog>,
    /// 3: names to be changed.
    pub edits: Vec<(Ino, Edit)>,
    /// 4: blocks with two claims: pages that give them up.
    pub shares: Vec<super::claims::Share>,
    /// 5: inodes to be named in lost+found.
    pub lost: Vec<InodeId>,
    /// 6: unused space to be cleared.
    pub sweep: Vec<(Pos, Vec<u64>)>,
}

impl Fixes {
    /// Drops stores that change nothing. They would mend nothing, and later levels would never run.
    pub fn only_what_changes(&mut self, media: &Media<'_>) {
        for level in [&mut self.lies, &mut self.exact, &mut self.anew, &mut self.sweep] {
            level.retain(|store| changes(media, store));
        }
    }
}

/// Returns true if a store changes something.
pub fn changes(media: &Media<'_>, (at, words): &(Pos, Vec<u64>)) -> bool {
    words.iter().enumerate().any(|(i, word)| media.word(at.plus(i as u64 * 8)) != *word)
}

/// Number of lines that a pass tries to mend bit by bit: with more than that, the damage is not flipped bits.
const MENDS_MAX: u32 = 20_000;

/// One reading of an image.
pub struct Pass<'a> {
    /// The media that is read.
    pub media: &'a Media<'a>,
    /// The image's parameters.
    pub image: Image,
    /// The issues found.
    pub issues: Vec<Issue>,
    /// The repairs for them.
    pub fixes: Fixes,
    /// The use of each block.
    pub claims: Claims,
    /// Inodes.
    pub slots: Slots,
    /// Directories.
    pub tree: Tree,
    /// True: directories lost records, now or in an earlier pass.
    pub names_lost: bool,
    /// True: nothing is reported, because unused structures may contain anything.
    pub quiet: bool,
    /// Largest mount epoch of a log page.
    pub epoch_seen: u64,
    /// For each inode with a log, the figures for `info`.
    pub logs: BTreeMap<Ino, log::Figures>,
    mends_left: u32,
}

impl<'a> Pass<'a> {
    /// Reads the whole image. The superblock is known.
    pub fn run(media: &'a Media<'a>, image: Image, names_lost: bool) -> Pass<'a> {
        let mut pass = Pass {
            media,
            image,
            issues: Vec::new(),
            fixes: Fixes::default(),
            claims: Claims::default(),
            slots: Slots::default(),
            tree: Tree::default(),
            names_lost,
            quiet: false,
            epoch_seen: 0,
            logs: BTreeMap::new(),
            mends_left: MENDS_MAX,
        };
        slots::read(&mut pass);
        tree::read(&mut pass);
        super::claims::judge(&mut pass);
        pass
    }

    /// Notes an issue.
    pub fn issue(&mut self, code: Code, location: Location, what: impl Into<String>) {
        if !self.quiet {
            self.issues.push(Issue { code, location, what: what.into() });
        }
    }

    /// Adds a store of words with their original value, or one that follows from whole structures.
    pub fn exact(&mut self, at: Pos, words: Vec<u64>) {
        if !self.quiet {
            self.fixes.exact.push((at, words));
        }
    }

    /// Adds a store of words made anew.
    pub fn anew(&mut self, at: Pos, words: Vec<u64>) {
        if !self.quiet {
            self.fixes.anew.push((at, words));
        }
    }

    /// Returns true if one more line may be tried bit by bit.
    pub fn may_mend(&mut self) -> bool {
        let may = self.mends_left > 0;
        self.mends_left = self.mends_left.saturating_sub(1);
        may
    }

    /// Returns true if the data area holds this block.
    pub fn holds(&self, block: BlockNo) -> bool {
        self.image.layout.holds(block, 1)
    }

    /// Returns true if the image was unmounted cleanly.
    pub fn clean(&self) -> bool {
        self.image.clean
    }
}
