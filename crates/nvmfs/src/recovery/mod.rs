//! Mounting after anything: what the media says, turned into volatile state.
//!
//! Order       1 inode chunks and slots; 2 names, from the root on: each directory's records merged, the largest version of a name
//!             wins; 3 the files that have a name, in parallel: the largest version of a page wins; 4 what nobody names is free.
//!             Names come first because an inode without one is dead: its log pages may belong to others by now, and are
//!             neither counted nor looked at (protocol review D19).
//! Idempotent  Merging does not depend on order, what is dropped is zeroed, nothing else is written but copies of records that a
//!             rename owed its old directory. A crash during recovery is a crash before it.
//! Errors      Torn is normal, damage is not: it is reported, and the mount refused, for fsck to look at.

mod files;
mod names;
mod read_chain;

use crate::core::Core;
use crate::format::inode::{CHUNK_BLOCKS, CHUNK_INODES, FoundInode, INODE_BYTES, InodeBase};
use crate::format::layout::{chunk_of, inode_pos};
use crate::format::pointer::{self, Place, Target};
use crate::ids::{BlockNo, Extent, InodeId};
use crate::inode::Birth;
use crate::itable;
use crate::log::scan::Scan;
use crate::planted::{Bug, planted};
use crate::variant::LogKind;
use heddle_vfs::{Error, FileKind, Ino, Result};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::{Release, SeqCst};

/// What recovery found.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Inodes that live.
    pub inodes: u64,
    /// Records that were dropped because a power cut left them half written.
    pub torn_slots: u64,
    /// Inodes that had no name.
    pub orphans: u64,
}

/// Called with what is done and what there is to do.
pub type Progress<'a> = &'a (dyn Fn(u64, u64) + Sync);

/// The slots of all chunks.
pub(crate) struct Slots {
    chunks: Vec<(u64, BlockNo)>,
    bases: HashMap<Ino, InodeBase>,
    /// Slots that are neither blank nor whole; true: damaged, not torn.
    broken: HashMap<Ino, bool>,
}

impl Slots {
    /// Is the slot that a name means damaged? (Else, if it does not hold the inode, the making of the inode was cut: the name and
    /// the slot became durable at one fence, and the slot did not.)
    pub(crate) fn damaged(&self, id: InodeId) -> bool {
        self.broken.get(&id.ino) == Some(&true)
    }

    /// The inode that a name means; `None` if its slot does not hold it.
    pub(crate) fn get(&self, id: InodeId) -> Option<&InodeBase> {
        self.bases.get(&id.ino).filter(|b| b.id == id)
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

/// Builds the volatile state of a freshly laid out [`Core`] from its media.
pub fn recover(core: &Arc<Core>, progress: Progress<'_>) -> Result<Report> {
    let data = Extent { block: core.layout.data, count: core.layout.last().0 - core.layout.data.0 };
    core.free_map().give(data);
    let slots = read_slots(core)?;
    give_birth(core, &slots)?;
    let names = names::merge(core, &slots)?;
    let mut report = names::install(core, &slots, &names)?;
    report.torn_slots += files::recover_all(core, &names, progress)?;
    report.orphans = free_the_rest(core, &slots, &names)?;
    report.inodes = names.links.len() as u64;
    names::settle_debts(core, &names)?;
    Ok(report)
}

fn read_slots(core: &Core) -> Result<Slots> {
    let mut slots = Slots { chunks: Vec::new(), bases: HashMap::new(), broken: HashMap::new() };
    for n in 0..core.layout.chunks_max {
        let raw = core.region.load_u64(core.layout.chunk_pointer(n));
        let block = match pointer::decode(core.seed, itable::DIRECTORY, Place::InodeChunk(n), raw) {
            Target::None => continue,
            Target::At(block) if core.layout.holds(block, CHUNK_BLOCKS) => block,
            _ => return Err(Error::Corrupt(format!("inode directory: the pointer to chunk {n}"))),
        };
        if !core.free_map().claim(Extent { block, count: CHUNK_BLOCKS }) {
            return Err(Error::Corrupt(format!(
                "inode chunk {n}: block {} belongs to something else",
                block.0
            )));
        }
        slots.chunks.push((n, block));
        for index in 0..CHUNK_INODES {
            let ino = Ino(n * CHUNK_INODES + index);
            match InodeBase::decode(core.seed, ino, &core.region.line(inode_pos(block, index))) {
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
    }
    Ok(slots)
}

/// Makes the volatile inodes; whether they have names is not known yet.
fn give_birth(core: &Core, slots: &Slots) -> Result<()> {
    for (n, block) in &slots.chunks {
        itable::add_chunk(core, *n, *block)?;
        core.root().chunk_count.fetch_max(n + 1, SeqCst);
    }
    for base in slots.bases.values() {
        let Some(inode) = core.slot(base.id.ino) else { continue };
        inode.vi.be_born(&Birth {
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

/// Slots without a name are zeroed and free.
fn free_the_rest(core: &Arc<Core>, slots: &Slots, names: &names::Names) -> Result<u64> {
    let mut orphans = 0;
    for (n, block) in &slots.chunks {
        let mut free = [0u64; 2];
        for index in 0..CHUNK_INODES {
            let ino = Ino(n * CHUNK_INODES + index);
            if names.links.contains_key(&ino) || ino.0 == 0 {
                continue;
            }
            free[(index / 64) as usize] |= 1 << (index % 64);
            let dead = slots.bases.contains_key(&ino);
            if dead || slots.broken.contains_key(&ino) || has_pointers(core, *block, index) {
                orphans += u64::from(dead);
                if !core.read_only {
                    core.region.nt_zero(inode_pos(*block, index), INODE_BYTES);
                }
            }
            if dead && let Some(inode) = core.slot(ino) {
                inode.vi.die();
            }
        }
        for (mask, word) in free.iter().zip(core.chunks()[*n as usize].free.iter()) {
            // ORDERING: Release, pairs with the Acquire in `itable`.
            word.store(*mask, Release);
        }
    }
    // PERSIST: slots are zero before they are handed out.
    core.region.fence();
    Ok(orphans)
}

/// A slot whose first line never arrived may have a second line all the same.
fn has_pointers(core: &Core, block: BlockNo, index: u64) -> bool {
    core.region.line(inode_pos(block, index).plus(64)).iter().any(|w| *w != 0)
}

/// The second line of an inode's slot.
pub(crate) fn pointer_line(core: &Core, ino: Ino) -> [u64; 8] {
    core.region.line(inode_pos(core.chunk_block(ino), chunk_of(ino).1).plus(64))
}

/// Runs `work` on all items with as many threads as there are processors.
pub(crate) fn in_parallel<T: Sync>(
    items: &[T],
    progress: Progress<'_>,
    work: impl Fn(&T) -> Result<u64> + Sync,
) -> Result<u64> {
    let next = std::sync::atomic::AtomicUsize::new(0);
    let useful = items.len().div_ceil(64).max(1);
    // Asking for the processors reads files: not for a handful of items.
    let threads =
        if useful == 1 { 1 } else { std::thread::available_parallelism().map_or(1, usize::from).min(useful) };
    let worker = || -> Result<u64> {
        let mut sum = 0;
        loop {
            let i = next.fetch_add(1, SeqCst);
            let Some(item) = items.get(i) else { break };
            sum += work(item)?;
            if i.is_multiple_of(1024) {
                progress(i as u64, items.len() as u64);
            }
        }
        Ok(sum)
    };
    // Shuttle knows its own threads alone.
    if threads == 1 || cfg!(shuttle) {
        return worker();
    }
    std::thread::scope(|scope| {
        let handles: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        let mut sum = 0;
        for handle in handles {
            sum += handle.join().unwrap_or_else(|_| Err(Error::Io("a recovery thread failed".into())))?;
        }
        Ok(sum)
    })
}

pub(crate) use names::Names;

/// Is this the kind of inode that has pages?
pub(crate) fn has_pages(kind: FileKind) -> bool {
    matches!(kind, FileKind::Regular | FileKind::Symlink)
}
