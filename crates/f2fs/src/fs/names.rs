//! Changes of names: make, link, unlink, rename.
//!
//! A call looks up its names, locks all inodes involved, and looks up again: under the locks the answer
//! cannot change.

use crate::allocation::{Birth, named, set_time};
use crate::change::{Change, Need};
use crate::format::advise_flag;
use crate::ids::Nid;
use crate::inode::{Alteration, Inode, nid_of};
use crate::mounted::F2fs;
use crate::planted::{Breach, breaks};
use crate::times::now;
use heddle_vfs::{Cred, Error, FileKind, Ino, Name, NewNode, Permission, RenameMode, Result, Time};
use std::sync::RwLockWriteGuard;

/// Longest target of a symbolic link, as Linux' `PATH_MAX` less its NUL.
const TARGET_MAX_BYTES: usize = 4095;

type Locked<'a> = Vec<RwLockWriteGuard<'a, ()>>;
type Found = Option<(Nid, FileKind)>;

/// The two ends of a rename.
struct Move<'a> {
    from: Nid,
    old_name: &'a [u8],
    to: Nid,
    new_name: &'a [u8],
    old: (Nid, FileKind),
    target: Found,
    mode: RenameMode,
}

/// What is removed with a name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Loss {
    /// The entry, and one link of the inode.
    Link,
    /// Only the entry: the inode has one name, and that is another one. This entry leads to it because of
    /// damage.
    Entry,
}

fn is_dir(found: (Nid, FileKind)) -> bool {
    found.1 == FileKind::Directory
}

impl F2fs {
    /// A directory that the caller may search, and the meaning of the name in it.
    fn search(&self, cred: &Cred, dir: Nid, name: &[u8]) -> Result<(Inode, Found)> {
        let dir = self.directory(cred, dir)?;
        let found = self.media.look_up(&dir, name)?;
        Ok((dir, found))
    }

    /// The directory of a name and the name's meaning, with both inodes locked.
    fn locked(&self, cred: &Cred, dir: Nid, name: &[u8]) -> Result<(Locked<'_>, Inode, Found)> {
        loop {
            let (_, before) = {
                let _shared = self.guards.shared(dir);
                self.search(cred, dir, name)?
            };
            let lies_in = before.and_then(|found| self.lies_in(found));
            let nids: Vec<Nid> =
                [Some(dir), before.map(|found| found.0), lies_in].into_iter().flatten().collect();
            let locked = self.guards.alone(&nids);
            let (above, found) = self.search(cred, dir, name)?;
            if found == before && found.and_then(|found| self.lies_in(found)) == lies_in {
                return Ok((locked, above, found));
            }
        }
    }

    /// The parent directory that is stored in an inode.
    fn lies_in(&self, found: (Nid, FileKind)) -> Option<Nid> {
        self.media.inode(found.0).ok().map(|inode| Nid(inode.block().parent.get()))
    }

    /// The inode of an entry; it must be of the entry's kind.
    pub(crate) fn child_of(&self, dir: &Inode, found: (Nid, FileKind)) -> Result<Inode> {
        let child = self.child(dir, found.0)?;
        if child.kind == found.1 {
            return Ok(child);
        }
        Err(Error::Corrupt(format!(
            "directory {} has inode {} as {:?}, and it is {:?}",
            dir.nid.0, found.0.0, found.1, child.kind
        )))
    }

    /// What is removed with a name that leads to this inode. The inode, its directory, and the parent stored
    /// in it are locked.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Io`] if not all of it can be read.
    fn loss_of(&self, dir: &Inode, name: &[u8], child: &Inode) -> Result<Loss> {
        let block = child.block();
        let is_dir = child.kind == FileKind::Directory;
        if !is_dir && block.links.get() > 1 {
            return Ok(Loss::Link);
        }
        let own = &block.name[..(block.name_bytes.get() as usize).min(heddle_vfs::NAME_MAX_BYTES)];
        let above = Nid(block.parent.get());
        let is_lost = block.advise & advise_flag::LOST_PARENT != 0;
        if !is_lost && (above, own) != (dir.nid, name) && above != child.nid {
            // Linux leaves old names in inodes. The stored name counts only if it leads to this inode.
            match self.media.inode(above).and_then(|above| self.media.look_up(&above, own)) {
                Ok(Some((nid, _))) if nid == child.nid => return Ok(Loss::Entry),
                // The name may be valid, so the inode stays. If it is not, fsck.f2fs finds an inode without a
                // name.
                Err(Error::Corrupt(_) | Error::Io(_)) => return Ok(Loss::Entry),
                _ => {}
            }
        }
        self.media.check_end(child).map(|_| Loss::Link)
    }

    fn may_add(&self, cred: &Cred, dir: &Inode) -> Result<()> {
        if dir.block().links.get() == 0 {
            return Err(Error::NotFound);
        }
        self.check(dir, cred, Permission::WRITE_EXECUTE)?;
        dir.check_allowed(Alteration::Addition)
    }

    fn may_remove(&self, cred: &Cred, dir: &Inode, child: &Inode) -> Result<()> {
        self.check(dir, cred, Permission::WRITE_EXECUTE)?;
        let owns = |inode: &Inode| cred.is_root() || inode.block().uid.get() == cred.uid;
        let sticky = dir.block().mode.get() & 0o1000 != 0;
        if sticky && !owns(dir) && !owns(child) && !breaks(Breach::ModesUnchecked) {
            return Err(Error::NotPermitted);
        }
        dir.check_allowed(Alteration::Attributes)?;
        child.check_allowed(Alteration::Attributes)
    }

    /// Makes an inode with a name, and calls `then` before any other call can find it.
    pub(crate) fn make_named<R>(
        &self,
        cred: &Cred,
        parent: Ino,
        name: &[u8],
        node: &NewNode<'_>,
        then: impl FnOnce(&Inode) -> R,
    ) -> Result<R> {
        if node.kind == FileKind::Symlink && node.target.is_empty() {
            return Err(Error::NotFound);
        }
        if node.target.len() > TARGET_MAX_BYTES {
            return Err(Error::NameTooLong);
        }
        let parent = nid_of(parent)?;
        let look = || {
            let locked = self.guards.alone(&[parent]);
            let (above, found) = self.search(cred, parent, name)?;
            if found.is_some() && !breaks(Breach::NamesTwice) {
                return Err(Error::Exists);
            }
            self.may_add(cred, &above)?;
            if matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice) && !cred.is_root() {
                return Err(Error::NotPermitted);
            }
            let (plan, need) = self.media.plan(cred, node, &above)?;
            Ok(((locked, plan), need + self.media.need_to_add(&above, name)?))
        };
        let now = now();
        let birth = Birth { above: parent, name, now, generation: self.next_generation() };
        self.change(Need::NONE, look, |change, (_, plan)| {
            let nid = change.make(cred, node, plan, &birth)?;
            self.enter(change, parent, name, (nid, node.kind), now)?;
            self.media.inode(nid).map(|inode| then(&inode))
        })
    }

    /// Makes an open file without a name.
    pub(crate) fn make_nameless(
        &self,
        cred: &Cred,
        dir: Ino,
        perm: u16,
        may_get_name: bool,
    ) -> Result<Inode> {
        let dir = nid_of(dir)?;
        let node = NewNode { kind: FileKind::Regular, perm, rdev: 0, target: &[] };
        let look = || {
            let locked = self.guards.alone(&[dir]);
            let above = self.media.inode(dir)?;
            if above.kind != FileKind::Directory {
                return Err(Error::NotDirectory);
            }
            self.may_add(cred, &above)?;
            self.check_room_for_orphan()?;
            let (plan, need) = self.media.plan(cred, &node, &above)?;
            Ok(((locked, plan), need))
        };
        let birth = Birth { above: dir, name: &[], now: now(), generation: self.next_generation() };
        self.change(Need::NONE, look, |change, (_, plan)| {
            let nid = change.make(cred, &node, plan, &birth)?;
            self.media.change_inode(nid, |block| block.links.set(0))?;
            self.opened.add(nid, may_get_name);
            self.checkpoint_state().orphans.insert(nid);
            self.media.inode(nid)
        })
    }

    /// Adds a name, and updates its directory. The caller updates the inode's link count.
    pub(crate) fn enter(
        &self,
        change: &Change<'_>,
        dir: Nid,
        name: &[u8],
        child: (Nid, FileKind),
        now: Time,
    ) -> Result<()> {
        change.add_entry(dir, name, child.0, child.1)?;
        self.touch_dir(dir, i32::from(is_dir(child)), now)
    }

    /// Removes a name.
    fn leave(
        &self,
        change: &Change<'_>,
        dir: Nid,
        name: &[u8],
        child: (Nid, FileKind),
        now: Time,
    ) -> Result<()> {
        self.media.space()?.since.left(dir, name);
        change.remove_entry(dir, name)?;
        self.touch_dir(dir, -i32::from(is_dir(child)), now)
    }

    /// Changes the number of subdirectories, and the times, of a directory.
    pub(crate) fn touch_dir(&self, dir: Nid, links: i32, now: Time) -> Result<()> {
        self.media.change_inode(dir, |block| {
            block.links.set(block.links.get().saturating_add_signed(links));
            set_time(&mut block.mtime, &mut block.mtime_ns, now);
            set_time(&mut block.ctime, &mut block.ctime_ns, now);
        })
    }

    /// Updates the links of an inode that has lost a name; a directory has lost its only one.
    pub(crate) fn lose_link(&self, change: &Change<'_>, child: (Nid, FileKind), now: Time) -> Result<()> {
        self.media.space()?.since.beyond(child.0);
        let links = self.media.change_inode(child.0, |block| {
            let gone = if breaks(Breach::LinksKept) && block.links.get() > 1 { 0 } else { 1 };
            let left = if is_dir(child) { 0 } else { block.links.get().saturating_sub(gone) };
            block.links.set(left);
            set_time(&mut block.ctime, &mut block.ctime_ns, now);
            left
        })?;
        if links > 0 { Ok(()) } else { self.end_unless_open(change, child.0) }
    }

    /// Adds a name to an inode that is not a directory.
    pub(crate) fn link_named(&self, cred: &Cred, ino: Ino, parent: Ino, name: &[u8]) -> Result<Inode> {
        let (nid, parent) = (nid_of(ino)?, nid_of(parent)?);
        let look = || {
            let locked = self.guards.alone(&[nid, parent]);
            let (above, found) = self.search(cred, parent, name)?;
            if found.is_some() {
                return Err(Error::Exists);
            }
            self.may_add(cred, &above)?;
            let inode = self.media.inode(nid)?;
            if inode.kind == FileKind::Directory {
                return Err(Error::NotPermitted);
            }
            inode.check_allowed(Alteration::Attributes)?;
            if inode.block().links.get() == 0 && !self.opened.may_get_name(nid) {
                return Err(Error::NotFound);
            }
            if inode.block().links.get() == u32::MAX && !breaks(Breach::LinksUnbounded) {
                return Err(Error::TooManyLinks);
            }
            Ok(((locked, inode.kind), self.media.need_to_add(&above, name)?))
        };
        let now = now();
        self.change(Need::NONE, look, |change, (_, kind)| {
            self.enter(change, parent, name, (nid, *kind), now)?;
            self.got_name(nid);
            self.media.space()?.since.beyond(nid);
            self.media.change_inode(nid, |block| {
                // The name stored in the inode is its newest, and not its only one.
                if block.links.get() > 0 {
                    block.advise |= advise_flag::LOST_PARENT;
                }
                block.links.set(block.links.get().saturating_add(1));
                named(block, parent, name);
                set_time(&mut block.ctime, &mut block.ctime_ns, now);
            })?;
            self.media.inode(nid)
        })
    }

    /// Removes a name, and frees its inode if it was the last name.
    pub(crate) fn unlink_named(&self, cred: &Cred, parent: Ino, name: &[u8], dir_wanted: bool) -> Result<()> {
        let parent = nid_of(parent)?;
        let look = || {
            let (locked, above, found) = self.locked(cred, parent, name)?;
            let found = found.ok_or(Error::NotFound)?;
            let child = self.child_of(&above, found)?;
            self.may_remove(cred, &above, &child)?;
            match (dir_wanted, is_dir(found)) {
                (false, true) => return Err(Error::IsDirectory),
                (true, false) => return Err(Error::NotDirectory),
                (true, true) if !self.media.is_empty_dir(&child)? => return Err(Error::NotEmpty),
                _ => {}
            }
            self.check_room_for_orphan()?;
            let loss = self.loss_of(&above, name, &child)?;
            let need = if breaks(Breach::RemovalNeedsSpace) { Need::NODE } else { Need::NONE };
            Ok(((locked, found, loss), need))
        };
        let now = now();
        self.change(Need::NONE, look, |change, (_, found, loss)| {
            self.leave(change, parent, name, *found, now)?;
            match loss {
                Loss::Link => self.lose_link(change, *found, now),
                Loss::Entry => Ok(()),
            }
        })
    }

    /// A checkpoint lists the open inodes without a name; its pack has room for a limited number.
    fn check_room_for_orphan(&self) -> Result<()> {
        let most = crate::checkpoint::write::orphans_max(&self.media.geometry);
        if self.checkpoint_state().orphans.len() < most { Ok(()) } else { Err(Error::NoSpace) }
    }

    /// Renames.
    pub(crate) fn rename_named(
        &self,
        cred: &Cred,
        (parent, name): (Ino, Name<'_>),
        (new_parent, new_name): (Ino, Name<'_>),
        mode: RenameMode,
    ) -> Result<()> {
        let (from, to) = (nid_of(parent)?, nid_of(new_parent)?);
        let look = || {
            // The latch keeps the ancestors unchanged during the check. A rename within a directory neither
            // checks nor changes them.
            let latch = || self.guards.renames.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            let renames = (from != to).then(latch);
            loop {
                let before = {
                    let _locked = self.guards.alone(&[from, to]);
                    let old = self.search(cred, from, name.bytes());
                    let target = self.search(cred, to, new_name.bytes());
                    (old?.1, target?.1)
                };
                let (old, target) = (before.0.ok_or(Error::NotFound)?, before.1);
                let m =
                    Move { from, old_name: name.bytes(), to, new_name: new_name.bytes(), old, target, mode };
                // Called while no inode is locked: the check locks the ancestors one by one.
                let loops = if from == to { Ok(()) } else { self.check_loops(&m) };
                let lies_in = target.and_then(|found| self.lies_in(found));
                let others = [target.map(|target| target.0), lies_in].into_iter().flatten();
                let nids: Vec<Nid> = [from, to, old.0].into_iter().chain(others).collect();
                let locked = self.guards.alone(&nids);
                let old = self.search(cred, from, name.bytes());
                let target = self.search(cred, to, new_name.bytes());
                let ((from_dir, old), (to_dir, target)) = (old?, target?);
                let is_same = (old, target) == before;
                if is_same && target.and_then(|found| self.lies_in(found)) == lies_in {
                    let moves = self.may_be_moved(cred, &m, (&from_dir, &to_dir), loops)?;
                    let adds = moves.is_some() && m.target.is_none();
                    let need = if adds { self.media.need_to_add(&to_dir, m.new_name)? } else { Need::NONE };
                    return Ok(((renames, locked, m, moves), need));
                }
            }
        };
        self.change(Need::NONE, look, |change, (_, _, m, moves)| {
            moves.map_or(Ok(()), |loss| self.move_name(change, m, loss))
        })
    }

    /// `loops`: the result of `check_loops`. `None`: both names lead to one file, and stay. Otherwise: what
    /// is removed with the replaced name.
    fn may_be_moved(
        &self,
        cred: &Cred,
        m: &Move<'_>,
        dirs: (&Inode, &Inode),
        loops: Result<()>,
    ) -> Result<Option<Loss>> {
        match (m.mode, m.target) {
            (RenameMode::NoReplace, Some(_)) if !breaks(Breach::NoReplaceReplaces) => {
                return Err(Error::Exists);
            }
            (RenameMode::Exchange, None) => return Err(Error::NotFound),
            _ => {}
        }
        loops?;
        if m.target.is_some_and(|target| target.0 == m.old.0) {
            return Ok(None);
        }
        let loss = self.may_move(cred, m, dirs)?;
        self.check_room_for_orphan()?;
        Ok(Some(loss))
    }

    fn move_name(&self, change: &Change<'_>, m: &Move<'_>, loss: Loss) -> Result<()> {
        let since = &self.media.space()?.since;
        [(m.from, m.old_name), (m.to, m.new_name)].into_iter().for_each(|(dir, name)| since.left(dir, name));
        let now = now();
        match m.target {
            Some(target) => {
                change.point_entry(m.to, m.new_name, m.old.0, m.old.1)?;
                if m.mode == RenameMode::Exchange {
                    change.point_entry(m.from, m.old_name, target.0, target.1)?;
                    self.moved(change, target, (m.to, m.from), m.old_name, now)?;
                } else {
                    change.remove_entry(m.from, m.old_name)?;
                    if loss == Loss::Link {
                        self.lose_link(change, target, now)?;
                    }
                }
            }
            None => {
                change.add_entry(m.to, m.new_name, m.old.0, m.old.1)?;
                change.remove_entry(m.from, m.old_name)?;
            }
        }
        self.moved(change, m.old, (m.from, m.to), m.new_name, now)?;
        let (left, came) = (i32::from(is_dir(m.old)), m.target.map_or(0, |target| i32::from(is_dir(target))));
        let back = if m.mode == RenameMode::Exchange { came } else { 0 };
        self.touch_dir(m.from, back - left, now)?;
        self.touch_dir(m.to, left - came, now)
    }

    /// Updates an inode for its new name, perhaps in another directory.
    fn moved(
        &self,
        change: &Change<'_>,
        child: (Nid, FileKind),
        (from, to): (Nid, Nid),
        name: &[u8],
        now: Time,
    ) -> Result<()> {
        if is_dir(child) && from != to {
            change.point_entry(child.0, b"..", to, FileKind::Directory)?;
        }
        self.media.space()?.since.beyond(child.0);
        self.media.change_inode(child.0, |block| {
            named(block, to, name);
            set_time(&mut block.ctime, &mut block.ctime_ns, now);
        })
    }

    /// Refuses to move a directory below itself, and to replace a directory by one of its descendants. Called
    /// with the latch of renames, which keeps the order of directories, and with no inode locked.
    fn check_loops(&self, m: &Move<'_>) -> Result<()> {
        let below = Error::InvalidArgument("a directory cannot be moved below itself");
        if breaks(Breach::LoopsAllowed) {
            return Ok(());
        }
        if self.is_at_or_above(m.old, m.to)? {
            return Err(below);
        }
        match m.target {
            Some(target) if self.is_at_or_above(target, m.from)? => {
                Err(if m.mode == RenameMode::Exchange { below } else { Error::NotEmpty })
            }
            _ => Ok(()),
        }
    }

    fn is_at_or_above(&self, above: (Nid, FileKind), mut dir: Nid) -> Result<bool> {
        if !is_dir(above) {
            return Ok(false);
        }
        // A directory that is its own ancestor is damage, and must not loop for ever.
        for _ in 0..=self.media.geometry.nids() {
            if dir == above.0 {
                return Ok(true);
            }
            if dir == crate::inode::ROOT {
                return Ok(false);
            }
            let _shared = self.guards.shared(dir);
            let inode = self.media.inode(dir)?;
            dir = self.media.look_up(&inode, b"..")?.ok_or(Error::Stale)?.0;
        }
        Err(Error::Corrupt(format!("directory {} is below itself", dir.0)))
    }

    /// Checks the permissions. Returns what is removed with a replaced name.
    fn may_move(&self, cred: &Cred, m: &Move<'_>, (from, to): (&Inode, &Inode)) -> Result<Loss> {
        let old = self.child_of(from, m.old)?;
        self.may_remove(cred, from, &old)?;
        let target = m.target.map(|found| self.child_of(to, found)).transpose()?;
        match &target {
            None => self.may_add(cred, to)?,
            Some(target) => {
                self.may_remove(cred, to, target)?;
                let target_is_dir = target.kind == FileKind::Directory;
                match (m.mode, is_dir(m.old), target_is_dir) {
                    (RenameMode::Exchange, ..) => {}
                    (_, true, false) => return Err(Error::NotDirectory),
                    (_, false, true) => return Err(Error::IsDirectory),
                    _ => {}
                }
            }
        }
        if m.from != m.to {
            self.media.check_move(&old)?;
            if is_dir(m.old) {
                self.check(&old, cred, Permission::WRITE)?;
            }
            let exchanged =
                target.as_ref().filter(|t| m.mode == RenameMode::Exchange && t.kind == FileKind::Directory);
            if let Some(target) = exchanged {
                self.media.check_move(target)?;
                self.check(target, cred, Permission::WRITE)?;
            }
        }
        let Some(target) = target.filter(|_| m.mode != RenameMode::Exchange) else { return Ok(Loss::Link) };
        if target.kind == FileKind::Directory && !self.media.is_empty_dir(&target)? {
            return Err(Error::NotEmpty);
        }
        self.loss_of(to, m.new_name, &target)
    }
}

#[cfg(test)]
mod tests;
