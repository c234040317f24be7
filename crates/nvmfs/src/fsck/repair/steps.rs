//! The steps of a repair that need free blocks: logs, names, blocks with two claims, inodes without a name.

use super::Stores;
use crate::format::inode::InodeBase;
use crate::fsck::catalogue::Code;
use crate::fsck::claims::Share;
use crate::fsck::contents::Dir;
use crate::fsck::media::Media;
use crate::fsck::pass::{Edit, Issue, Location, Pass, Relog};
use crate::fsck::relog::{self, Supply};
use crate::fsck::tree::file_again;
use crate::ids::InodeId;
use heddle_vfs::{FileKind, Ino, Time};
use std::collections::{BTreeMap, BTreeSet};

/// A view that the steps of a level change, and the stores that they made.
pub struct Overlay<'a> {
    media: Media<'a>,
    /// Positions and words.
    pub stores: Stores,
}

impl<'a> Overlay<'a> {
    /// A view without changes.
    pub fn over(below: &Media<'a>) -> Overlay<'a> {
        Overlay { media: Media::over(below), stores: Vec::new() }
    }

    fn relog(&mut self, pass: &Pass<'_>, supply: &mut Supply, relog: &Relog) -> Result<(), Issue> {
        let Some(slot) = pass.slots.pos(relog.id.ino) else { return Ok(()) };
        if relog::write(&mut self.media, &pass.image, supply, slot, relog) {
            return Ok(());
        }
        let what = "its log cannot be written anew".to_owned();
        Err(Issue { code: Code::NO_SPACE, location: Location::ino(relog.id.ino), what })
    }

    fn settle(&mut self) {
        let stored = self.media.take_stored();
        self.stores.extend(stored.into_iter().map(|(block, words)| (block.pos(), words.to_vec())));
    }
}

/// The first issue that could not be mended.
pub type Done = Result<(), Issue>;

/// Writes logs anew.
pub fn relogs(pass: &mut Pass<'_>, view: &mut Overlay<'_>, supply: &mut Supply) -> Done {
    let mut done = Ok(());
    for relog in std::mem::take(&mut pass.fixes.relogs) {
        done = done.and(view.relog(pass, supply, &relog));
    }
    view.settle();
    done
}

/// Writes directories whose names are dropped or changed.
pub fn edits(pass: &mut Pass<'_>, view: &mut Overlay<'_>, supply: &mut Supply) -> Done {
    let mut dirs: BTreeMap<Ino, Dir> = BTreeMap::new();
    for (ino, edit) in std::mem::take(&mut pass.fixes.edits) {
        let Some(dir) = pass.tree.dirs.get(&ino) else { continue };
        let dir = dirs.entry(ino).or_insert_with(|| dir.clone());
        let version = dir.names.values().map(|n| n.version).max().unwrap_or_default().next();
        match edit {
            Edit::Drop(name) => {
                if let Some(named) = dir.names.get_mut(&name) {
                    (named.removed, named.version) = (true, version);
                }
            }
            Edit::Rekind(name) => {
                let kinds = &pass.slots;
                if let Some(named) = dir.names.get_mut(&name)
                    && let Some(base) = kinds.get(named.child)
                {
                    (named.kind, named.version) = (base.kind, version);
                }
            }
        }
    }
    let mut done = Ok(());
    for dir in dirs.values() {
        done = done.and(view.relog(pass, supply, &Relog { id: dir.id, records: dir.records() }));
    }
    view.settle();
    done
}

/// A free name: `#17`, or `#17.1` and so on.
fn free_name(dir: &Dir, id: InodeId) -> Vec<u8> {
    let names = (0u64..).map(|n| match n {
        0 => format!("#{}", id.ino.0).into_bytes(),
        n => format!("#{}.{n}", id.ino.0).into_bytes(),
    });
    names.into_iter().find(|name| dir.names.get(name).is_none_or(|n| n.removed)).unwrap_or_default()
}

/// Gives pages whose block has another use a block of their own, or makes them a hole. A file whose copies
/// find no room is left unchanged.
pub fn shares(pass: &mut Pass<'_>, view: &mut Overlay<'_>, supply: &mut Supply) -> Done {
    let mut by_file: BTreeMap<InodeId, Vec<Share>> = BTreeMap::new();
    for share in std::mem::take(&mut pass.fixes.shares) {
        by_file.entry(share.id).or_default().push(share);
    }
    let mut done = Ok(());
    for (id, shares) in by_file {
        let wanted: u64 = shares.iter().filter(|share| share.copy).map(|share| share.pages).sum();
        if wanted > supply.left() {
            let what = format!("no blocks for copies of {wanted} pages");
            done = done.and(Err(Issue { code: Code::NO_SPACE, location: Location::ino(id.ino), what }));
            continue;
        }
        let Some(mut file) = file_again(pass, id) else { continue };
        // If a block has three claims, a page is listed twice.
        let (mut met, mut copies) = (BTreeSet::new(), Vec::new());
        let pages = shares.iter().flat_map(|s| (s.page.0..s.page.0 + s.pages).map(|page| (page, s.copy)));
        for (page, copy) in pages.filter(|(page, _)| met.insert(*page)) {
            file.split(page);
            file.split(page + 1);
            let Some(run) = file.runs.get_mut(&page) else { continue };
            let Some(old) = run.block else { continue };
            run.block = if copy { supply.block() } else { None };
            copies.extend(run.block.map(|new| (old, new)));
        }
        let written = view.relog(pass, supply, &Relog { id, records: file.records() });
        for (old, new) in copies.iter().filter(|_| written.is_ok()) {
            view.media.store(new.pos(), &pass.media.block(*old)[..]);
        }
        done = done.and(written);
    }
    view.settle();
    done
}

/// Names inodes without a name in `lost+found`, which is made if it does not exist. If that fails, the next mount would free them.
pub fn lost(pass: &mut Pass<'_>, view: &mut Overlay<'_>, supply: &mut Supply) -> Done {
    let found = std::mem::take(&mut pass.fixes.lost);
    let Some(root) = pass.tree.dirs.get(&Ino::ROOT).filter(|_| !found.is_empty()).cloned() else {
        return Ok(());
    };
    let (mut lost_found, root) = lost_found(pass, view, root);
    for id in found {
        let Some(base) = pass.slots.get(id) else { continue };
        let (name, named) = (free_name(&lost_found, id), lost_found.new_name(id, base.kind, base.crtime));
        lost_found.names.insert(name, named);
    }
    let mut done = view.relog(pass, supply, &Relog { id: lost_found.id, records: lost_found.records() });
    if let Some(root) = root {
        done = done.and(view.relog(pass, supply, &Relog { id: root.id, records: root.records() }));
    }
    // All of it or nothing: a directory without a name would be found as one more lost inode at each reading.
    if done.is_ok() {
        view.settle();
    }
    done
}

const LOST_AND_FOUND: &[u8] = b"lost+found";

/// The directory `lost+found`, and the root if it had to be changed. If no inode is free for it, the root takes its place.
fn lost_found(pass: &Pass<'_>, view: &mut Overlay<'_>, mut root: Dir) -> (Dir, Option<Dir>) {
    if let Some(named) = root.names.get(LOST_AND_FOUND).filter(|n| !n.removed)
        && let Some(dir) = pass.tree.dirs.get(&named.child.ino)
    {
        return (dir.clone(), None);
    }
    let Some(ino) = pass.slots.blank(pass) else { return (root, None) };
    // The mount that this repair counts as has made no other inode.
    let id = InodeId { ino, generation: pass.image.superblock.epoch.get() << 40 };
    let mtime = Time(pass.image.superblock.mounted_ns.get() as i64);
    let base =
        InodeBase { id, kind: FileKind::Directory, perm: 0o700, uid: 0, gid: 0, rdev: 0, crtime: mtime };
    if let Some(at) = pass.slots.pos(ino) {
        view.media.store(at, &base.encode(pass.image.seed));
    }
    let taken = root.names.get(LOST_AND_FOUND).is_some_and(|n| !n.removed);
    let name = if taken { free_name(&root, id) } else { LOST_AND_FOUND.to_vec() };
    let named = root.new_name(id, FileKind::Directory, mtime);
    root.names.insert(name, named);
    (Dir::empty(id), Some(root))
}
