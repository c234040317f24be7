//! Repairing an image: the repair is computed in memory, then written.
//!
//! Order  [`examine`] reads and mends a view until no work is left. [`Verdict::apply`] saves the old bytes in the undo file,
//!        durably, and only then stores the new ones, superblocks last (`stores`).

mod steps;
mod stores;

pub use stores::give_up_undo;
pub(super) use stores::{half_repaired, store};

use super::FsckError;
use super::catalogue::{Code, Severity};
use super::image::{self, Image, words_of};
use super::media::{BLOCK_WORDS, Media, Words};
use super::pass::{Issue, Location, Pass, changes};
use super::relog::Supply;
use super::undo;
use crate::format::superblock::{Superblock, made_later};
use crate::ids::BlockNo;
use crate::variant::Variant;
use heddle_pmem::{BLOCK_BYTES, Pos, Region};
use heddle_vfs::Ino;
use std::collections::BTreeSet;
use std::hash::{BuildHasher, RandomState};
use std::path::Path;
use steps::{Overlay, edits, lost, relogs, shares};

/// Most passes. Each pass but the last mends something, and a repair stays. More passes mean a fault of this
/// program. It reports that (`Code::UNSETTLED`) and changes nothing: a repair counts only when one more
/// reading finds nothing left to mend.
const PASSES_MAX: usize = 32;
/// Passes that make slots anew do not count, up to so many slots. A directory whose slot is lost can be read only
/// after that, so damaged slots on one path take a pass each.
const UNCOUNTED_MAX: usize = 4096;

/// The result of examining an image.
pub struct Verdict {
    /// The issues found, worst first; true if the repair mends the issue.
    pub issues: Vec<(Issue, bool)>,
    /// The variant that it was made as; `None` if the superblock is lost.
    pub variant: Option<Variant>,
    /// Inodes that have a name.
    pub inodes: u64,
    /// Blocks that the repair changes, with their new content.
    changes: Vec<(BlockNo, Words)>,
    /// Mount counts of the image, before the repair and after it.
    epochs: [u64; 2],
    uuid: [u8; 16],
    /// The number of the repair.
    repair: u64,
}

/// What `apply` has written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Applied {
    /// Blocks that were changed.
    pub blocks: u64,
}

impl Verdict {
    /// The highest severity found.
    pub fn worst(&self) -> Option<Severity> {
        self.issues.iter().map(|(issue, _)| issue.severity()).max()
    }

    /// Number of issues above a note.
    pub fn found(&self) -> usize {
        self.issues.iter().filter(|(issue, _)| issue.severity() > Severity::Note).count()
    }

    /// Number of those that the repair does not mend.
    pub fn left(&self) -> usize {
        self.issues.iter().filter(|(issue, mended)| issue.severity() > Severity::Note && !mended).count()
    }

    /// Blocks that the repair changes.
    pub fn changes(&self) -> impl Iterator<Item = (BlockNo, &[u64])> {
        self.changes.iter().map(|(block, words)| (*block, &words[..]))
    }

    /// Stores the repair, after the old bytes are durable in a new file `undo`.
    ///
    /// # Errors
    /// [`FsckError::Undo`]: nothing was changed. [`FsckError::Write`]: the undo file can restore the
    /// old bytes.
    pub fn apply(&self, region: &Region, undo: &Path) -> Result<Applied, FsckError> {
        let changed = self.changes.iter().map(|(block, _)| *block);
        let blocks: BTreeSet<BlockNo> = stores::whole_superblocks(region).chain(changed).collect();
        let blocks_all = region.len_bytes() / BLOCK_BYTES as u64;
        let of = heddle_undo::Image {
            uuid: self.uuid,
            epochs: self.epochs,
            blocks: blocks_all,
            repair: self.repair,
        };
        undo::save(undo, region, of, blocks.into_iter())?;
        let changes = self.changes.iter().map(|(block, words)| (*block, &words[..]));
        stores::store(region, self.repair, changes, undo)?;
        Ok(Applied { blocks: self.changes.len() as u64 })
    }
}

/// Checks an image, and computes its repair. Nothing is written. `name` is for messages.
///
/// # Errors
/// [`FsckError::NotAnImage`], [`FsckError::OtherVersion`], [`FsckError::HalfRepaired`], [`FsckError::Foreign`].
pub fn examine(name: &str, region: &Region) -> Result<Verdict, FsckError> {
    // Where no superblock is left, there is no rest of an image, and the other format is all that counts.
    image::read(name, &Media::new(region))?;
    refuse_foreign(name, region)?;
    if let Some(repair) = half_repaired(region) {
        let way = undo::way_back(region, repair);
        return Err(FsckError::HalfRepaired { image: name.into(), way });
    }
    // Each state has its own keys, from the system's random numbers. 0 is no repair.
    let repair = RandomState::new().hash_one(()).max(1);
    let mut session = Session { repair, ..Session::default() };
    let mut media = Media::new(region);
    let mut verdict = Verdict {
        issues: Vec::new(),
        variant: None,
        inodes: 0,
        changes: Vec::new(),
        epochs: [0; 2],
        uuid: [0; 16],
        repair,
    };
    while session.passes < PASSES_MAX {
        session.passes += 1;
        let read = image::read(name, &media)?;
        session.now = read.issues;
        let Some(image) = read.image else {
            session.settled = true;
            break;
        };
        if verdict.variant.is_none() {
            verdict.variant = Some(image.variant);
            (verdict.epochs[0], verdict.uuid) = (image.superblock.epoch.get(), image.superblock.uuid);
            (session.clean, session.epoch) = (image.clean, image.epoch);
        }
        verdict.epochs[1] = image.superblock.epoch.get();
        // A repair does not change whether the image was unmounted cleanly; but it counts as a mount.
        let mut pass = Pass::run(
            &media,
            Image { clean: session.clean, epoch: session.epoch, ..image },
            session.names_lost,
        );
        pass.fixes.exact.extend(read.fixes);
        verdict.inodes = pass.tree.links.len() as u64;
        let stores = session.plan(&mut pass);
        session.names_lost = pass.names_lost || session.misread;
        session.take_issues(std::mem::take(&mut pass.issues), &pass);
        drop(pass);
        if stores.is_empty() {
            session.settled = true;
            break;
        }
        for (at, words) in stores {
            media.store(at, &words);
        }
    }
    if session.settled && session.mended && !session.would_lose {
        verdict.changes = media.into_changes();
    }
    verdict.issues = session.verdict();
    Ok(verdict)
}

/// Refuses an image on which another format was made later.
pub(super) fn refuse_foreign(name: &str, region: &Region) -> Result<(), FsckError> {
    match made_later(region.len_bytes(), &|at, into| region.read(Pos(at), into)) {
        Some((what, at)) => Err(FsckError::Foreign { image: name.into(), what, at }),
        None => Ok(()),
    }
}

type Stores = Vec<(Pos, Vec<u64>)>;

/// State kept across passes.
#[derive(Default)]
struct Session {
    /// The number of the repair.
    repair: u64,
    names_lost: bool,
    clean: bool,
    epoch: u64,
    /// True: the superblock counts one more mount already.
    raised: bool,
    /// True: something was mended; a raised mount count alone does not matter.
    mended: bool,
    /// True: the last pass read blocks as chunks that are none. Of its issues only those about that are kept.
    misread: bool,
    /// True: the last pass found no work.
    settled: bool,
    serial: u64,
    /// Issues of all passes but the last. Next field: those of the last.
    seen: BTreeSet<Issue>,
    now: Vec<Issue>,
    /// Issues that the last pass could not mend.
    stuck: BTreeSet<Issue>,
    /// True: the last pass could not name all inodes that have lost their names. A mount of the repaired image would free them.
    would_lose: bool,
    /// Inodes without a name that this repair has named.
    named: BTreeSet<Ino>,
    /// Passes that count.
    passes: usize,
    /// Words that a pass has made anew: slots of inodes, and pointers to chunks.
    made_anew: BTreeSet<Pos>,
}

impl Session {
    /// The stores of the lowest level that has work.
    fn plan(&mut self, pass: &mut Pass<'_>) -> Stores {
        let image = pass.image;
        pass.fixes.only_what_changes(pass.media);
        self.misread = !pass.fixes.lies.is_empty();
        if self.misread {
            self.mended = true;
            let mut stores = std::mem::take(&mut pass.fixes.lies);
            if !std::mem::replace(&mut self.raised, true)
                && let Some(newer) = image.after_repair(self.repair, 0)
            {
                stores.extend(superblocks(&image, &newer));
            }
            return stores;
        }
        let older = pass.epoch_seen > image.superblock.epoch.get() || (!self.raised && has_work(pass));
        // If the counters are at their limit, the image cannot be mounted for writing either: so no state can
        // look newer than the repair.
        if let Some(newer) = image.after_repair(self.repair, pass.epoch_seen).filter(|_| older) {
            self.raised = true;
            self.mended |= !pass.fixes.exact.is_empty() || pass.epoch_seen > image.superblock.epoch.get();
            let mut stores = std::mem::take(&mut pass.fixes.exact);
            stores.extend(superblocks(&image, &newer));
            return stores;
        }
        let stores = self.lowest_level(pass);
        self.mended |= !stores.is_empty();
        stores
    }

    fn lowest_level(&mut self, pass: &mut Pass<'_>) -> Stores {
        if !pass.fixes.exact.is_empty() {
            return std::mem::take(&mut pass.fixes.exact);
        }
        if !pass.fixes.anew.is_empty() {
            let stores = std::mem::take(&mut pass.fixes.anew);
            let fresh = stores.iter().filter(|(at, _)| self.made_anew.insert(*at)).count();
            self.passes -= usize::from(fresh > 0 && self.made_anew.len() <= UNCOUNTED_MAX);
            return stores;
        }
        let mut view = Overlay::over(pass.media);
        let mut supply = Supply::new(pass.claims.free(&pass.image.layout), self.serial);
        self.stuck.clear();
        self.would_lose = false;
        let steps = [relogs, edits, shares, lost];
        let found: Vec<Ino> = pass.fixes.lost.iter().map(|id| id.ino).collect();
        for (n, step) in steps.into_iter().enumerate() {
            let is_naming = !found.is_empty() && n + 1 == steps.len();
            let done = step(pass, &mut view, &mut supply);
            if let Err(issue) = done {
                // A mount refuses an image in which one with a name has a damaged log.
                let is_named_now = issue.location.ino.is_some_and(|ino| self.named.contains(&ino));
                self.would_lose |= is_naming || is_named_now;
                self.stuck.insert(issue);
            } else if is_naming {
                self.named.extend(&found);
            }
            view.stores.retain(|store| changes(pass.media, store));
            if !view.stores.is_empty() {
                self.serial = supply.serial();
                return view.stores;
            }
        }
        std::mem::take(&mut pass.fixes.sweep)
    }

    /// Keeps the issues of a pass. An issue about names may be an error of reading, if it was found while the
    /// logs behind them were not mended.
    fn take_issues(&mut self, found: Vec<Issue>, pass: &Pass<'_>) {
        let early = !pass.fixes.relogs.is_empty() || self.early(&found);
        self.now.extend(found.into_iter().filter(|issue| !self.misread || issue.code.0 < 20));
        let later = |code: Code| (22..=28).contains(&code.0) && code != Code::ROOT_LOST || code.0 >= 60;
        let keep = self.now.iter().filter(|i| i.severity() > Severity::Note && !(early && later(i.code)));
        self.seen.extend(keep.cloned());
    }

    /// Returns true if structures that names depend on were damaged in this pass.
    fn early(&self, found: &[Issue]) -> bool {
        found.iter().any(|i| (10..22).contains(&i.code.0) || (30..60).contains(&i.code.0))
    }

    /// All issues. Those that the last pass still found, or that cannot be mended, count as not mended.
    /// Without a final pass none counts as mended.
    fn verdict(mut self) -> Vec<(Issue, bool)> {
        if !self.settled {
            let what = format!("after {PASSES_MAX} passes there are still issues to repair");
            self.stuck.insert(Issue { code: Code::UNSETTLED, location: Location::default(), what });
        }
        if !self.settled || self.would_lose {
            // Nothing is changed.
            self.now.extend(std::mem::take(&mut self.seen));
        }
        self.now.extend(self.stuck);
        let now: BTreeSet<Issue> = self.now.into_iter().collect();
        let mut all: Vec<(Issue, bool)> =
            self.seen.union(&now).map(|issue| (issue.clone(), !now.contains(issue))).collect();
        all.sort_by(|a, b| b.0.severity().cmp(&a.0.severity()).then(a.0.cmp(&b.0)));
        all
    }
}

fn has_work(pass: &Pass<'_>) -> bool {
    let f = &pass.fixes;
    !(f.lies.is_empty()
        && f.exact.is_empty()
        && f.anew.is_empty()
        && f.relogs.is_empty()
        && f.edits.is_empty()
        && f.shares.is_empty()
        && f.lost.is_empty()
        && f.sweep.is_empty())
}

fn superblocks(image: &Image, superblock: &Superblock) -> Stores {
    [BlockNo(0), image.layout.last()].map(|block| (block.pos(), words_of(superblock))).to_vec()
}

const _: () = assert!(BLOCK_WORDS * 8 == BLOCK_BYTES);
