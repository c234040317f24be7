//! One reading of the whole image: what is wrong, and what would mend it.

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

/// Where an issue is, as far as that is known.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Spot {
    /// Inode.
    pub ino: Option<Ino>,
    /// Block.
    pub block: Option<BlockNo>,
    /// Slot of a log page.
    pub slot: Option<u32>,
}

impl Spot {
    /// An inode.
    pub fn ino(ino: Ino) -> Spot {
        Spot { ino: Some(ino), ..Spot::default() }
    }

    /// A block.
    pub fn block(block: BlockNo) -> Spot {
        Spot { block: Some(block), ..Spot::default() }
    }

    /// A block of an inode.
    pub fn of(ino: Ino, block: BlockNo) -> Spot {
        Spot { ino: Some(ino), block: Some(block), slot: None }
    }

    /// With a slot.
    pub fn slot(self, slot: u32) -> Spot {
        Spot { slot: Some(slot), ..self }
    }
}

impl fmt::Display for Spot {
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

/// Something that is not as it should be.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Issue {
    /// Which, of the catalogue.
    pub code: Code,
    /// Where.
    pub spot: Spot,
    /// In words.
    pub what: String,
}

impl Issue {
    /// How bad.
    pub fn severity(&self) -> Severity {
        self.code.entry().severity
    }
}

/// A log to be written anew.
#[derive(Clone, Debug)]
pub struct Relog {
    /// Whose.
    pub id: InodeId,
    /// What it shall hold.
    pub records: Vec<Record>,
}

/// A change of a directory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Edit {
    /// The name goes.
    Drop(Vec<u8>),
    /// The name stays, with the kind that the inode's slot says.
    Rekind(Vec<u8>),
}

/// What would mend the issues of a pass, by level (see [`super`]).
#[derive(Default)]
pub struct Fixes {
    /// Before all: pointers of the inode directory to what is no chunk. What was read there, and would be mended, is not a chunk's.
    pub lies: Vec<(Pos, Vec<u64>)>,
    /// 0: words as they were, or as they follow from what is whole.
    pub exact: Vec<(Pos, Vec<u64>)>,
    /// 1: words made anew.
    pub anew: Vec<(Pos, Vec<u64>)>,
    /// 2: logs, and names.
    pub relogs: Vec<Relog>,
    /// 3
    pub edits: Vec<(Ino, Edit)>,
    /// 4: blocks that two claim: the file that gives way, its page.
    pub shares: Vec<super::claims::Share>,
    /// 5: inodes to be named in lost+found.
    pub lost: Vec<InodeId>,
    /// 6: what no one reads.
    pub sweep: Vec<(Pos, Vec<u64>)>,
}

impl Fixes {
    /// A store of what is there already mends nothing, and would keep all later levels from their turn.
    pub fn only_what_changes(&mut self, media: &Media<'_>) {
        for level in [&mut self.lies, &mut self.exact, &mut self.anew, &mut self.sweep] {
            level.retain(|store| changes(media, store));
        }
    }
}

/// Does a store change anything?
pub fn changes(media: &Media<'_>, (at, words): &(Pos, Vec<u64>)) -> bool {
    words.iter().enumerate().any(|(i, word)| media.word(at.plus(i as u64 * 8)) != *word)
}

/// How many lines a pass tries to mend bit by bit: damage that is more than that is not flipped bits.
const MENDS_MAX: u32 = 20_000;

/// See the module.
pub struct Pass<'a> {
    /// What is read.
    pub media: &'a Media<'a>,
    /// What it is.
    pub image: Image,
    /// What was found.
    pub issues: Vec<Issue>,
    /// What would mend it.
    pub fixes: Fixes,
    /// Who has which block.
    pub claims: Claims,
    /// Inodes.
    pub slots: Slots,
    /// Directories.
    pub tree: Tree,
    /// Directories lost records, now or in an earlier pass.
    pub names_lost: bool,
    /// Nothing is reported: what is read may rightly be anything.
    pub quiet: bool,
    /// Largest mount epoch of a log page.
    pub epoch_seen: u64,
    /// Of each inode with a log, what `info` shows.
    pub logs: BTreeMap<Ino, log::Figures>,
    mends_left: u32,
}

impl<'a> Pass<'a> {
    /// Reads all there is. The superblock is known.
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
    pub fn issue(&mut self, code: Code, spot: Spot, what: impl Into<String>) {
        if !self.quiet {
            self.issues.push(Issue { code, spot, what: what.into() });
        }
    }

    /// What was there, or follows from what is whole.
    pub fn exact(&mut self, at: Pos, words: Vec<u64>) {
        if !self.quiet {
            self.fixes.exact.push((at, words));
        }
    }

    /// Made anew.
    pub fn anew(&mut self, at: Pos, words: Vec<u64>) {
        if !self.quiet {
            self.fixes.anew.push((at, words));
        }
    }

    /// May one more line be tried bit by bit?
    pub fn may_mend(&mut self) -> bool {
        let may = self.mends_left > 0;
        self.mends_left = self.mends_left.saturating_sub(1);
        may
    }

    /// Does the data area hold this block?
    pub fn holds(&self, block: BlockNo) -> bool {
        self.image.layout.holds(block, 1)
    }

    /// Was the image unmounted cleanly?
    pub fn clean(&self) -> bool {
        self.image.clean
    }
}
