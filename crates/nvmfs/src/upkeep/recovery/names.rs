//! Recovery of names, from the root on: each directory's records are merged; the largest version of a name
//! wins.

use crate::alloc::Purpose;
use crate::format::record::Record;
use crate::ids::{InodeId, Version};
use crate::log::commit;
use crate::names::ops::prepare;
use crate::names::table::{self, Named};
use crate::planted::{Bug, Met, met, planted};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lane::LaneLocal;
use crate::state::lease::enter;
use crate::upkeep::recovery::deferred_zeros::DeferredZeros;
use crate::upkeep::recovery::files::MergedAttributes;
use crate::upkeep::recovery::parallel::in_parallel;
use crate::upkeep::recovery::{Progress, Slots, read_chain};
use heddle_vfs::{Error, FileKind, Ino, Result, Time};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;

/// A name's largest version, and its meaning then; `None`: it is removed.
type Entries = HashMap<Vec<u8>, (Version, Option<(InodeId, FileKind)>)>;

#[derive(Default)]
struct Dir {
    entries: Entries,
    attributes: MergedAttributes,
    /// Largest version of any of its names, present or removed: no bucket starts below it.
    version: Version,
    /// Largest change count in foreign records of its names; `None`: there are none.
    foreign_change_count: Option<u64>,
    parent: Option<Ino>,
}

/// The merged contents of all directories' logs.
pub struct Names {
    dirs: HashMap<Ino, (InodeId, Dir)>,
    /// Number of names of each inode that has one. A directory counts once. The root counts itself.
    pub links: HashMap<Ino, u32>,
    /// Records that a rename still owed to its old directory.
    owed_copies: Vec<Record>,
    /// Names that lead to no inode, although theirs was made during the last mount.
    pub dropped: u64,
}

/// Reads all directories that can be reached, those of one depth in parallel.
pub fn merge(
    core: &Arc<Core>,
    slots: &Slots,
    later: &DeferredZeros,
    progress: Progress<'_>,
) -> Result<Names> {
    let root = slots
        .bases
        .get(&Ino::ROOT)
        .filter(|b| b.kind == FileKind::Directory)
        .ok_or_else(|| Error::Corrupt("inode 1: the root directory is missing".into()))?;
    let mut names =
        Names { dirs: HashMap::new(), links: HashMap::new(), owed_copies: Vec::new(), dropped: 0 };
    let mut foreign = Vec::new();
    let mut queue = vec![root.id];
    loop {
        while !queue.is_empty() {
            queue.retain(|id| !names.dirs.contains_key(&id.ino));
            queue.sort_unstable();
            queue.dedup_by_key(|id| id.ino);
            let level = std::mem::take(&mut queue);
            let read =
                in_parallel(core, "directories", &level, progress, |id| read_dir(core, slots, *id, later))?;
            for (id, (dir, of_others)) in level.into_iter().zip(read) {
                foreign.extend(of_others);
                queue.extend(subdirectories(slots, &dir));
                names.dirs.insert(id.ino, (id, dir));
            }
        }
        // The foreign record of an exchange adds a name to the old directory, perhaps of a further directory.
        let owed = apply_foreign(slots, &mut names.dirs, &mut foreign);
        for record in &owed {
            if let Record::Name { removed: false, child, kind: FileKind::Directory, .. } = record
                && slots.is_directory(*child)
            {
                queue.push(*child);
            }
        }
        names.owed_copies.extend(owed);
        if queue.is_empty() {
            break;
        }
    }
    count_links(core, slots, &mut names)?;
    Ok(names)
}

/// A directory, and the foreign records in its log.
fn read_dir(
    core: &Arc<Core>,
    slots: &Slots,
    id: InodeId,
    later: &DeferredZeros,
) -> Result<(Dir, Vec<Record>)> {
    let inode = core.inode(id.ino)?;
    let guard = enter(core)?;
    let (mut dir, mut foreign) = (Dir::default(), Vec::new());
    read_chain::read(core, guard.own, inode, later, &mut |record| {
        match record {
            Record::Name { dir: of, .. } if *of == id => enter_name(slots, &mut dir, record),
            Record::Name { .. } => foreign.push(record.clone()),
            Record::Attributes(record) => dir.attributes.recorded(*record),
            Record::Xattrs { blob, change_count, .. } => dir.attributes.xattrs(*change_count, *blob),
            Record::Write { .. } | Record::Punch { .. } | Record::Remap { .. } => {
                return Err(Error::Corrupt(format!(
                    "inode {}: file data in the log of a directory",
                    id.ino.0
                )));
            }
        }
        Ok(())
    })?;
    Ok((dir, foreign))
}

fn enter_name(slots: &Slots, dir: &mut Dir, record: &Record) {
    let Record::Name { removed, child, kind, ref name, version, mtime, change_count, .. } = *record else {
        return;
    };
    dir.version = dir.version.max(version);
    let what = (!removed).then_some((child, kind));
    // A creation of which a crash left only the name never happened, so its time does not count. If the inode
    // was removed since, the removal's record carries the time.
    let happened = removed || slots.holds(child, kind) || planted(Bug::CutCreationMovesTime);
    dir.attributes.written(change_count, 0, if happened { mtime } else { Time(i64::MIN) });
    // Of two records of one version the removal counts: it was made from a copy of the other
    // (`names::in_place_removal`, I3).
    let known = dir.entries.get(name.bytes()).map_or((Version(0), false), |e| (e.0, e.1.is_none()));
    if (version, removed) > known || planted(Bug::LaterNameWins) {
        dir.entries.insert(name.bytes().to_vec(), (version, what));
    }
}

/// Children that are directories. A name whose slot holds no such directory is left out: a foreign record may
/// still replace it. `count_links` judges what is left.
fn subdirectories(slots: &Slots, dir: &Dir) -> Vec<InodeId> {
    let children = dir.entries.values().filter_map(|(_, what)| *what);
    children
        .filter(|(child, kind)| *kind == FileKind::Directory && slots.is_directory(*child))
        .map(|(c, _)| c)
        .collect()
}

/// Applies foreign records to the directories that are known. Returns the records that were new to them. A
/// foreign record counts only if the directory's own log holds no later record of its attributes. Otherwise
/// its copy was made, and it may be older than records that were dropped since.
fn apply_foreign(
    slots: &Slots,
    dirs: &mut HashMap<Ino, (InodeId, Dir)>,
    foreign: &mut Vec<Record>,
) -> Vec<Record> {
    let mut owed = Vec::new();
    foreign.retain(|record| {
        let Record::Name { dir, name, version, change_count, .. } = record else { return false };
        let Some((id, known)) = dirs.get_mut(&dir.ino) else { return true };
        // The generation differs: the directory of this record is gone, and its number was reused.
        if *id != *dir {
            return false;
        }
        // The foreign record stays readable, so no later record of the name may have a smaller version.
        known.version = known.version.max(*version);
        known.foreign_change_count = known.foreign_change_count.max(Some(*change_count));
        let news = known.entries.get(name.bytes()).is_none_or(|e| e.0 < *version);
        if planted(Bug::RenameReplayedTwice) {
            if let Record::Name { removed, child, kind, ref name, version, .. } = *record {
                known.entries.insert(name.bytes().to_vec(), (version, (!removed).then_some((child, kind))));
            }
        } else if news && *change_count >= known.attributes.change_count() {
            enter_name(slots, known, record);
            owed.push(record.clone());
        }
        false
    });
    owed
}

/// Counts the names of each inode, by a walk from the root over the merged directories.
fn count_links(core: &Core, slots: &Slots, names: &mut Names) -> Result<()> {
    names.links.insert(Ino::ROOT, 1);
    let mut parents = HashMap::from([(Ino::ROOT, Ino::ROOT)]);
    let mut queue = VecDeque::from([Ino::ROOT]);
    let mut visited = HashSet::new();
    while let Some(ino) = queue.pop_front() {
        if !visited.insert(ino) {
            continue;
        }
        let Some((_, dir)) = names.dirs.get(&ino) else { continue };
        for (name, (_, what)) in &dir.entries {
            let Some((child, kind)) = what else { continue };
            if slots.damaged(*child) {
                return Err(Error::Corrupt(format!(
                    "inode {}, which directory {} calls {:?}: its slot is damaged",
                    child.ino.0,
                    ino.0,
                    String::from_utf8_lossy(name)
                )));
            }
            let Some(base) = slots.get(*child).filter(|b| b.kind == *kind) else {
                // The creation of this inode was cut. A name of an earlier mount was reported then.
                names.dropped += u64::from(child.made_in() + 1 >= core.epoch);
                continue;
            };
            let links = names.links.entry(base.id.ino).or_insert(0);
            *links = if planted(Bug::LinksNotCounted) { 1 } else { *links + 1 };
            if *kind == FileKind::Directory {
                if parents.insert(child.ino, ino).is_some() {
                    return Err(Error::Corrupt(format!("directory {} has two names", child.ino.0)));
                }
                queue.push_back(child.ino);
            }
        }
    }
    names.dirs.retain(|ino, _| visited.contains(ino));
    for (ino, (_, dir)) in &mut names.dirs {
        dir.parent = parents.get(ino).copied();
    }
    Ok(())
}

/// Fills the volatile tables of the directories, several in parallel.
pub fn install(core: &Arc<Core>, slots: &Slots, names: &Names, progress: Progress<'_>) -> Result<()> {
    let dirs: Vec<(Ino, &Dir)> = names.dirs.iter().map(|(ino, (_, dir))| (*ino, dir)).collect();
    in_parallel(core, "tables of directories", &dirs, progress, |(ino, dir)| fill(core, slots, *ino, dir))
        .map(|_| ())
}

fn fill(core: &Arc<Core>, slots: &Slots, ino: Ino, dir: &Dir) -> Result<()> {
    let inode = core.inode(ino)?;
    let guard = enter(core)?;
    table::make(core, guard.own, inode, dir.entries.len(), dir.version)?;
    dir.attributes.apply(core, guard.own, inode)?;
    if let Some(change_count) = dir.foreign_change_count {
        inode.volatile.note_foreign_record(change_count);
    }
    inode.volatile.parent.store(dir.parent.unwrap_or(Ino::ROOT).0, SeqCst);
    let mut subdirs = 0;
    for (name, (version, what)) in &dir.entries {
        let Some((child, kind)) = what else { continue };
        if !slots.holds(*child, *kind) {
            continue;
        }
        subdirs += u32::from(*kind == FileKind::Directory);
        put(core, guard.own, inode, name, &Named { child: *child, kind: *kind, version: *version })?;
    }
    inode.volatile.nlink.store(2 + subdirs, SeqCst);
    Ok(())
}

fn put(core: &Core, own: &mut LaneLocal, dir: InodeRef<'_>, name: &[u8], to: &Named) -> Result<()> {
    let key = table::key(core, name);
    let entry = table::alloc_entry(core, own, name)?;
    let bucket = table::lock(core, dir, key.hash)?;
    bucket.put(own, key, to, entry)?;
    Ok(())
}

/// Gives old directories the copies that renames owed them, so that their logs are complete without other
/// logs.
pub fn write_owed_copies(core: &Arc<Core>, names: &Names) -> Result<()> {
    let mut guard = enter(core)?;
    for record in &names.owed_copies {
        let Record::Name { dir, .. } = record else { continue };
        if let Ok(inode) = core.inode(dir.ino) {
            prepare(core, &mut guard, inode, record.slots_max(), Purpose::Regain)?;
            commit::commit(core, &mut guard, inode, std::slice::from_ref(record))?;
            met(Met::DebtPaid);
        }
    }
    Ok(())
}
