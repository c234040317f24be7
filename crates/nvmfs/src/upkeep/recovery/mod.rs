//! Recovery at every mount: builds the volatile state from the media.
//!
//! Order       1. inode chunks and slots.
//!             2. names, from the root on: each directory's records are merged, the largest version of a name wins.
//!             3. files that have a name: the largest version of a page wins.
//!             4. blocks and slots that nothing names are free.
//!             Names come first because an inode without one is dead: its log pages may belong to other inodes by now, and are neither
//!             counted nor read (docs/protocol.md D19). Each step reads chunks, directories or files in parallel (`in_parallel`).
//! Judge first [`judge`] only reads: a mount that is refused because of damage has changed nothing. The writes that follow from it are kept
//!             in `DeferredZeros`. [`Judged::settle`] does them when the superblocks count this mount.
//! Idempotent  Merging does not depend on order, and dropped records are zeroed. Nothing else is written but copies of records that a
//!             rename owed its old directory. A crash during recovery leaves a state that recovery handles alike.
//! Errors      Torn records are normal. Damage is not: recovery reports it and refuses the mount, so that fsck can examine the image.

mod deferred_zeros;
mod files;
mod names;
mod parallel;
mod read_chain;

use crate::alloc::itable;
use crate::format::inode::{CHUNK_INODES, FoundInode, INODE_BYTES, InodeBase};
use crate::format::layout::{INODE_DIRECTORY, chunk_of, inode_pos};
use crate::format::pointer::{self, PointerLocation, Target};
use crate::ids::{BlockNo, Extent, InodeId};
use crate::log::scan::Scan;
use crate::planted::{Bug, planted};
use crate::state::core::Core;
use crate::state::inode::Birth;
use crate::variant::LogKind;
use deferred_zeros::DeferredZeros;
use heddle_vfs::{Error, FileKind, Ino, Result};
use parallel::in_parallel;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Release;

/// The result of recovery.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Inodes that live.
    pub inodes: u64,
    /// Records that were dropped because a power cut left them half written.
    pub torn_slots: u64,
    /// Inodes that had no name.
    pub orphans: u64,
    /// Names made during the last mount whose inode does not exist. The creation was torn; if that mount
    /// ended cleanly, the inode was lost.
    pub names_dropped: u64,
}

/// Called with the kind of items being read, the number done, and the total.
pub type Progress<'a> = &'a (dyn Fn(&'static str, u64, u64) + Sync);

/// The slots of all chunks.
pub(crate) struct Slots {
    chunks: Vec<(u64, BlockNo)>,
    bases: HashMap<Ino, InodeBase>,
    /// Slots that are neither blank nor whole. True: damaged. False: torn.
    broken: HashMap<Ino, bool>,
}

impl Slots {
    /// Returns true if the slot that a name leads to is damaged. If the slot is undamaged but does not hold
    /// the inode, a crash cut the creation: name and slot become durable at one fence, and the slot did not.
    pub(crate) fn damaged(&self, id: InodeId) -> bool {
        self.broken.get(&id.ino) == Some(&true)
    }

    /// The inode that a name leads to; `None` if its slot does not hold it.
    pub(crate) fn get(&self, id: InodeId) -> Option<&InodeBase> {
        self.bases.get(&id.ino).filter(|b| b.id == id)
    }

    /// Returns true if the inode that a name leads to exists and is of that kind.
    pub(crate) fn holds(&self, id: InodeId, kind: FileKind) -> bool {
        self.get(id).is_some_and(|base| base.kind == kind)
    }

    /// Returns true if the inode that a name leads to exists and is a directory. The name's own kind may be
    /// forged, and other inodes have no names in their logs.
    pub(crate) fn is_directory(&self, id: InodeId) -> bool {
        self.holds(id, FileKind::Directory)
    }
}

/// The scanner of this image's logs.
pub(crate) fn scan(core: &Core) -> Scan<'_> {
    let kind = match core.variant.log() {
        LogKind::CommitMark if planted(Bug::TailOverAHole) => LogKind::Tail,
        kind => kind,
    };
    Scan { region: &core.region, layout: &core.layout, seed: core.seed, kind }
}

/// A sound image, and the writes that must come before its use.
pub struct Judged {
    report: Report,
    later: DeferredZeros,
    names: Names,
}

/// Builds the volatile state of a freshly laid out [`Core`] from its media. It writes nothing to the media.
pub fn judge(core: &Arc<Core>, progress: Progress<'_>) -> Result<Judged> {
    let data = Extent { block: core.layout.data, count: core.layout.last().0 - core.layout.data.0 };
    core.free_map().give(data);
    let later = DeferredZeros::default();
    let slots = read_slots(core, progress)?;
    give_birth(core, &slots)?;
    let names = names::merge(core, &slots, &later, progress)?;
    names::install(core, &slots, &names, progress)?;
    files::recover_all(core, &names, &later, progress)?;
    let torn_slots = later.lines();
    let orphans = free_the_rest(core, &slots, &names, &later);
    let (inodes, names_dropped) = (names.links.len() as u64, names.dropped);
    let report = Report { inodes, torn_slots, orphans, names_dropped };
    Ok(Judged { report, later, names })
}

impl Judged {
    /// Does the writes of recovery. The superblocks count this mount already (docs/protocol.md D4c).
    pub fn settle(self, core: &Arc<Core>) -> Result<Report> {
        if !core.read_only {
            self.later.write(core);
            names::write_owed_copies(core, &self.names)?;
        }
        Ok(self.report)
    }
}

fn read_slots(core: &Core, progress: Progress<'_>) -> Result<Slots> {
    let mut slots = Slots { chunks: Vec::new(), bases: HashMap::new(), broken: HashMap::new() };
    for n in 0..core.layout.chunks_max {
        let raw = core.region.load_u64(core.layout.chunk_pointer(n));
        let block = match pointer::decode(core.seed, INODE_DIRECTORY, PointerLocation::InodeChunk(n), raw) {
            Target::None => continue,
            Target::At(block) if core.layout.holds(block, 1) => block,
            _ => return Err(Error::Corrupt(format!("inode directory: the pointer to chunk {n}"))),
        };
        if !core.free_map().claim(Extent { block, count: 1 }) {
            return Err(Error::Corrupt(format!(
                "inode chunk {n}: block {} belongs to something else",
                block.0
            )));
        }
        slots.chunks.push((n, block));
    }
    let found =
        in_parallel(core, "inode chunks", &slots.chunks, progress, |chunk| Ok(read_chunk(core, *chunk)))?;
    for (ino, found) in found.into_iter().flatten() {
        match found {
            FoundInode::Blank => {}
            FoundInode::Whole(base) => {
                slots.bases.insert(ino, base);
            }
            FoundInode::Torn => {
                slots.broken.insert(ino, false);
            }
            FoundInode::Damaged => {
                slots.broken.insert(ino, true);
            }
        }
    }
    Ok(slots)
}

/// The contents of a chunk's slots that are not blank.
fn read_chunk(core: &Core, (n, block): (u64, BlockNo)) -> Vec<(Ino, FoundInode)> {
    let slot = |index| {
        let ino = Ino(n * CHUNK_INODES + index);
        (ino, InodeBase::decode(core.seed, ino, &core.region.line(inode_pos(block, index))))
    };
    (0..CHUNK_INODES).map(slot).filter(|(_, found)| *found != FoundInode::Blank).collect()
}

/// Makes the volatile inodes. Later steps find out whether they have names.
fn give_birth(core: &Core, slots: &Slots) -> Result<()> {
    for (n, block) in &slots.chunks {
        itable::add_chunk(core, *n, *block)?;
    }
    itable::set_chunk_count(core, slots.chunks.last().map_or(0, |(n, _)| n + 1));
    for base in slots.bases.values() {
        let Some(inode) = core.slot(base.id.ino) else { continue };
        inode.volatile.be_born(&Birth {
            generation: base.id.generation,
            kind: base.kind,
            perm: base.perm,
            uid: base.uid,
            gid: base.gid,
            rdev: base.rdev,
            now: base.crtime,
        });
    }
    Ok(())
}

/// Frees the slots without a name, and schedules them for zeroing. Returns the number that held an inode.
fn free_the_rest(core: &Core, slots: &Slots, names: &Names, later: &DeferredZeros) -> u64 {
    let mut orphans = 0;
    for (n, block) in &slots.chunks {
        let mut free = 0;
        for index in 0..CHUNK_INODES {
            let ino = Ino(n * CHUNK_INODES + index);
            if names.links.contains_key(&ino) || ino.0 == 0 {
                continue;
            }
            free |= 1 << index;
            let dead = slots.bases.contains_key(&ino);
            if dead || slots.broken.contains_key(&ino) || has_pointers(core, *block, index) {
                orphans += u64::from(dead);
                later.zero(inode_pos(*block, index), INODE_BYTES);
            }
            if dead && let Some(inode) = core.slot(ino) {
                inode.volatile.die();
            }
        }
        // ORDERING: Release, pairs with the Acquire in `itable`.
        core.free_slots(*n).store(free, Release);
    }
    orphans
}

/// A slot whose first line never arrived may still have a second line.
fn has_pointers(core: &Core, block: BlockNo, index: u64) -> bool {
    core.region.line(inode_pos(block, index).plus(64)).iter().any(|w| *w != 0)
}

/// The second line of an inode's slot.
pub(crate) fn pointer_line(core: &Core, ino: Ino) -> [u64; 8] {
    core.region.line(inode_pos(core.chunk_block(ino), chunk_of(ino).1).plus(64))
}

pub(crate) use names::Names;

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
