//! Names, from the root on, and the inodes that they lead to.
//!
//! Order  1. directories that can be reached, and copies that renames owe; 2. names one by one; 3. files that have a name;
//!        4. inodes without one.

use super::catalogue::Code;
use super::contents::{Dir, File, Named};
use super::log::{self, Figures};
use super::pass::{Edit, Location, Pass, Relog};
use super::slots::make_anew;
use crate::format::inode::InodeBase;
use crate::format::record::Record;
use crate::ids::InodeId;
use heddle_vfs::{FileKind, Ino};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Directories that a path leads to.
#[derive(Default)]
pub struct Tree {
    /// By inode number.
    pub dirs: BTreeMap<Ino, Dir>,
    /// Number of names of each inode; the root has one.
    pub links: BTreeMap<Ino, u32>,
    /// The parent in which each directory was first met.
    pub parents: BTreeMap<Ino, Ino>,
}

/// Reads all of it.
pub fn read(pass: &mut Pass<'_>) {
    let Some(root) = pass.slots.bases.get(&Ino::ROOT).filter(|b| b.kind == FileKind::Directory) else {
        return;
    };
    reach(pass, root.id);
    walk(pass);
    files(pass);
    orphans(pass);
}

fn directory(pass: &mut Pass<'_>, id: InodeId) -> Dir {
    let log = log::read(pass, id);
    let dir = Dir::of(pass, id, &log);
    let living = dir.living().count() as u64 + u64::from(!log.records.is_empty());
    let records = log.records.len() as u64;
    let figures = Figures {
        chains: log.chains,
        pages: log.pages.len() as u64,
        records,
        living: living.min(records),
        ..Figures::default()
    };
    if !pass.quiet {
        pass.logs.insert(id.ino, figures);
        if dir.damaged {
            pass.names_lost |= log.damaged;
            pass.fixes.relogs.push(Relog { id, records: dir.records() });
        }
    }
    dir
}

/// Reads directories until no name and no foreign record leads to another one.
fn reach(pass: &mut Pass<'_>, root: InodeId) {
    let mut foreign = Vec::new();
    let mut queue = VecDeque::from([root]);
    loop {
        while let Some(id) = queue.pop_front() {
            if !pass.tree.dirs.contains_key(&id.ino) {
                let dir = directory(pass, id);
                foreign.extend(dir.foreign.iter().cloned());
                let children =
                    dir.living().filter(|(_, n)| n.kind == FileKind::Directory).map(|(_, n)| n.child);
                queue.extend(children.filter(|child| is_directory(pass, *child)));
                pass.tree.dirs.insert(id.ino, dir);
            }
        }
        for record in apply_foreign(pass, &mut foreign) {
            if let Record::Name { removed: false, child, kind: FileKind::Directory, .. } = record
                && is_directory(pass, child)
            {
                queue.push_back(child);
            }
        }
        if queue.is_empty() {
            break;
        }
    }
}

fn is_directory(pass: &Pass<'_>, id: InodeId) -> bool {
    pass.slots.get(id).is_some_and(|b| b.kind == FileKind::Directory)
}

/// Applies foreign records of renames to their directories. Returns the records that were new to them.
fn apply_foreign(pass: &mut Pass<'_>, foreign: &mut Vec<Record>) -> Vec<Record> {
    let mut news = Vec::new();
    for record in std::mem::take(foreign) {
        let Record::Name { dir: of, ref name, .. } = record else { continue };
        let Some(mut dir) = pass.tree.dirs.remove(&of.ino) else {
            foreign.push(record);
            continue;
        };
        if dir.id == of && dir.believes(&record) && dir.enter(pass, &record) {
            let what = format!("{:?}: the new directory knows it", String::from_utf8_lossy(name.bytes()));
            pass.issue(Code::RENAME_DEBT, Location::ino(of.ino), what);
            news.push(record);
        }
        pass.tree.dirs.insert(of.ino, dir);
    }
    news
}

/// Checks each name, breadth first from the root.
fn walk(pass: &mut Pass<'_>) {
    pass.tree.links.insert(Ino::ROOT, 1);
    pass.tree.parents.insert(Ino::ROOT, Ino::ROOT);
    let mut queue = VecDeque::from([Ino::ROOT]);
    let mut met = BTreeSet::new();
    while let Some(ino) = queue.pop_front() {
        if !met.insert(ino) {
            continue;
        }
        let names: Vec<(Vec<u8>, Named)> = pass
            .tree
            .dirs
            .get(&ino)
            .map(|d| d.living().map(|(n, v)| (n.clone(), *v)).collect())
            .unwrap_or_default();
        for (name, named) in names {
            if judge(pass, ino, &name, &named) && named.kind == FileKind::Directory {
                queue.push_back(named.child.ino);
            }
        }
    }
    // A directory that was read because of an old name, or whose rename's other half came later, is not in
    // the tree.
    pass.tree.dirs.retain(|ino, _| met.contains(ino));
}

/// Returns true if the walk follows this name. Counts the link.
fn judge(pass: &mut Pass<'_>, dir: Ino, name: &[u8], named: &Named) -> bool {
    let location = Location::ino(dir);
    let shown = String::from_utf8_lossy(name).into_owned();
    let id = named.child;
    if id.ino >= pass.image.layout.ino_end() || id.ino.0 == 0 {
        pass.issue(Code::INODE_NUMBER, location, format!("{shown:?} names inode {}", id.ino.0));
        pass.fixes.edits.push((dir, Edit::Drop(name.to_vec())));
        return false;
    }
    let Some(base) = pass.slots.get(id).copied() else {
        missing(pass, dir, name, named);
        return false;
    };
    if base.kind != named.kind {
        let what = format!("{shown:?} says {:?}, inode {} is a {:?}", named.kind, id.ino.0, base.kind);
        pass.issue(Code::KIND, location, what);
        pass.fixes.edits.push((dir, Edit::Rekind(name.to_vec())));
        *pass.tree.links.entry(id.ino).or_insert(0) += 1;
        return false;
    }
    if named.kind == FileKind::Directory && pass.tree.parents.contains_key(&id.ino) {
        pass.issue(
            Code::DIRECTORY_TWICE,
            location,
            format!("{shown:?} is a further name of directory {}", id.ino.0),
        );
        pass.fixes.edits.push((dir, Edit::Drop(name.to_vec())));
        return false;
    }
    *pass.tree.links.entry(id.ino).or_insert(0) += 1;
    if named.kind == FileKind::Directory {
        pass.tree.parents.insert(id.ino, dir);
    }
    true
}

/// Handles a name whose inode's slot does not hold it.
fn missing(pass: &mut Pass<'_>, dir: Ino, name: &[u8], named: &Named) {
    if slot_anew(pass, dir, name, named) {
        *pass.tree.links.entry(named.child.ino).or_insert(0) += 1;
        return;
    }
    let (id, clean) = (named.child, pass.clean());
    let shown = String::from_utf8_lossy(name).into_owned();
    let location = Location::ino(id.ino);
    let made_in = id.made_in();
    // Later than the last mount, so forged. A later mount, perhaps the next repair, would reach this number.
    if clean && made_in >= pass.image.epoch && id.generation != 1 {
        let there = if pass.slots.bases.contains_key(&id.ino) { "of another inode" } else { "empty" };
        let what = format!("directory {} calls it {shown:?}; its slot is {there}", dir.0);
        pass.issue(Code::DANGLING_CLEAN, location, what);
        pass.fixes.edits.push((dir, Edit::Drop(name.to_vec())));
    } else {
        pass.issue(Code::DANGLING, location, format!("directory {} calls it {shown:?}", dir.0));
    }
}

/// Makes the slot of a name's inode anew. Returns false if it is not a damaged one.
fn slot_anew(pass: &mut Pass<'_>, dir: Ino, name: &[u8], named: &Named) -> bool {
    let id = named.child;
    // A cut creation leaves a torn slot, but not in an image that was unmounted since.
    let damaged = pass.slots.broken.contains(&id.ino) && (pass.clean() || !torn(pass, id.ino));
    let (true, Some(at)) = (damaged, pass.slots.pos(id.ino)) else { return false };
    let shown = String::from_utf8_lossy(name);
    pass.issue(Code::SLOT_LOST, Location::ino(id.ino), format!("directory {} calls it {shown:?}", dir.0));
    let perm = if named.kind == FileKind::Directory { 0o700 } else { 0o600 };
    make_anew(pass, at, id, named.kind, perm, named.mtime);
    true
}

fn torn(pass: &Pass<'_>, ino: Ino) -> bool {
    pass.slots.pos(ino).is_some_and(|at| pass.media.line(at).contains(&0))
}

fn file(pass: &mut Pass<'_>, base: InodeBase) -> File {
    let log = log::read(pass, base.id);
    let mut file = File::of(pass, base, &log);
    file.settle(pass);
    if !pass.quiet {
        let (extents, blocks) = file.extents();
        let figures = Figures {
            chains: log.chains,
            pages: log.pages.len() as u64,
            records: log.records.len() as u64,
            living: file.living(&log),
            extents,
            blocks,
            size_bytes: file.attributes().size,
        };
        pass.logs.insert(base.id.ino, figures);
        if file.damaged {
            pass.fixes.relogs.push(Relog { id: base.id, records: file.records() });
        }
    }
    file
}

/// Reads a file again, for a repair.
pub fn file_again(pass: &mut Pass<'_>, id: InodeId) -> Option<File> {
    let base = *pass.slots.get(id)?;
    pass.quiet = true;
    let log = log::read(pass, id);
    let file = File::of(pass, base, &log);
    pass.quiet = false;
    Some(file)
}

fn files(pass: &mut Pass<'_>) {
    let named: Vec<InodeBase> =
        pass.tree.links.keys().filter_map(|ino| pass.slots.bases.get(ino)).copied().collect();
    let (dirs, others): (Vec<_>, Vec<_>) = named.into_iter().partition(|b| b.kind == FileKind::Directory);
    for base in others {
        file(pass, base);
    }
    // A name says that it is no directory: that is put right first. Nobody else may have its blocks before.
    pass.quiet = true;
    for base in dirs {
        if !pass.tree.dirs.contains_key(&base.id.ino) {
            directory(pass, base.id);
        }
    }
    pass.quiet = false;
}

/// Finds inodes that no path leads to: their blocks may still be needed. Directories among them that have
/// content were cut off.
fn orphans(pass: &mut Pass<'_>) {
    let nameless = |tree: &Tree, ino: &Ino| !tree.links.contains_key(ino);
    let bases = pass.slots.bases.values();
    let all: Vec<InodeBase> = bases.filter(|base| nameless(&pass.tree, &base.id.ino)).copied().collect();
    let mut lost_links = BTreeSet::new();
    let mut dirs: BTreeMap<Ino, Dir> = BTreeMap::new();
    pass.quiet = true;
    for base in &all {
        if base.kind == FileKind::Directory {
            dirs.insert(base.id.ino, directory(pass, base.id));
        } else if file(pass, *base).is_lost_link() {
            lost_links.insert(base.id);
        }
    }
    pass.quiet = false;
    // Before a log is written anew: its pages could take the blocks of an inode that only such a name leads to.
    for (dir, name, named) in dirs.values().flat_map(|dir| dir.living().map(move |(n, v)| (dir.id.ino, n, v)))
    {
        // A name that was found counts more.
        if pass.slots.get(named.child).is_none() && nameless(&pass.tree, &named.child.ino) {
            let _is_made = slot_anew(pass, dir, name, named);
        }
    }
    // Inodes named by a directory without a name are recovered with it.
    let named_by = |dir: &Dir| -> Vec<InodeId> {
        let there = |id: &InodeId| pass.slots.get(*id).is_some();
        dir.living().map(|(_, n)| n.child).filter(there).collect()
    };
    let below: BTreeMap<Ino, Vec<InodeId>> = dirs.iter().map(|(ino, dir)| (*ino, named_by(dir))).collect();
    let mut held: BTreeSet<InodeId> = BTreeSet::new();
    let mut found = Vec::new();
    // First directories that no other one names; then those in circles.
    let inner: BTreeSet<InodeId> = below.values().flatten().copied().collect();
    let (tops, rest): (Vec<_>, Vec<_>) = dirs.values().map(|d| d.id).partition(|id| !inner.contains(id));
    for id in tops.into_iter().chain(rest) {
        let empty = below.get(&id.ino).is_none_or(Vec::is_empty);
        if !empty && !held.contains(&id) {
            found.push(id);
            hold(&below, id, &mut held);
        }
    }
    for id in &found {
        let what = format!("it has {} names", below.get(&id.ino).map_or(0, Vec::len));
        pass.issue(Code::CUT_OFF, Location::ino(id.ino), what);
    }
    pass.fixes.lost.extend(&found);
    for base in all.iter().filter(|b| !held.contains(&b.id)) {
        let location = Location::ino(base.id.ino);
        // A link without a target is no loss. A damaged log is written anew when its inode has a name.
        if (pass.names_lost || pass.clean()) && !lost_links.contains(&base.id) {
            let code = if pass.names_lost { Code::NAME_LOST } else { Code::ORPHAN_CLEAN };
            pass.issue(code, location, format!("a {:?}", base.kind));
            pass.fixes.lost.push(base.id);
        } else {
            pass.issue(Code::ORPHAN, location, format!("a {:?}", base.kind));
        }
    }
}

/// Marks all inodes below a directory.
fn hold(below: &BTreeMap<Ino, Vec<InodeId>>, top: InodeId, held: &mut BTreeSet<InodeId>) {
    let mut queue = vec![top];
    while let Some(id) = queue.pop() {
        if held.insert(id) {
            queue.extend(below.get(&id.ino).into_iter().flatten());
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
