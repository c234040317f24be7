//! Renaming.
//!
//! Within a directory both records are one transaction in one chain, at one version.
//!
//! Across directories the transaction lies in a chain of the new directory. It also carries the old
//! directory's records, marked foreign, and it alone commits the rename. Then the old directory gets its own
//! copy of its records, durable before any lock is released. So its log can be read without the other
//! directory's again. No journal is needed: without one the hazards of its replay do not arise (docs/protocol.md
//! D20).
//!
//! The foreign records stay readable for as long as their page exists. So they carry the change count of the
//! old directory's attributes, which do not change meanwhile, and count only while the old directory's log
//! holds no later attribute record. Cleaning ensures that before it drops a tombstone (`garbage`, I2).
//!
//! Lock order  the rename latch, the old directory's EOF latch (the papers' variants: both directories'), buckets.
//!
//! One latch for renames of directories across directories excludes loops (D22). Only such a rename changes
//! the ancestors of a directory. So under the latch the ancestor walk sees a tree that does not change,
//! except that directories die. `locks` detects that: the moved inode, its target directory and the replaced
//! inode are looked up again under the buckets' locks. Both buckets change at once: a reader that sees one of
//! the names after the rename sees the other after it too.

use crate::alloc::Purpose;
use crate::format::inode::CHUNK_INODES;
use crate::format::record::Record;
use crate::ids::InodeId;
use crate::log::commit;
use crate::names::life;
use crate::names::locks::{Locks, NamePlace};
use crate::names::ops::{
    add_link, check_removal, child_of, grow_if_crowded, latch, prepare, record, victim_of,
};
use crate::names::table::{self, Crowded, EntryMemory, Key, Named};
use crate::planted::{Breach, Bug, breaks, planted};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lease::LaneGuard;
use crate::state::operation::Durable;
use crate::state::wait;
use crate::xattr::check;
use heddle_vfs::{Cred, Error, FileKind, Ino, Name, Permission, RenameMode, Result, Time};
use std::sync::atomic::Ordering::SeqCst;

/// One end of a rename.
#[derive(Clone, Copy)]
pub struct End<'a> {
    /// The directory.
    pub dir: InodeRef<'a>,
    /// The name in it.
    pub name: Name<'a>,
}

/// The names that a rename finds at its two ends.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Found {
    moved: Named,
    target: Option<Named>,
}

impl Found {
    fn is_like(&self, other: &Found) -> bool {
        let child = |named: Option<Named>| named.map(|named| (named.child, named.kind));
        child(Some(self.moved)) == child(Some(other.moved)) && child(self.target) == child(other.target)
    }

    fn moves_a_directory(&self) -> bool {
        [Some(self.moved), self.target].into_iter().flatten().any(|named| named.kind == FileKind::Directory)
    }
}

/// Renames.
pub fn rename(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    cred: &Cred,
    from: End<'_>,
    to: End<'_>,
    mode: RenameMode,
) -> Result<()> {
    let across = from.dir.ino != to.dir.ino;
    let keys = [table::key(core, from.name.bytes()), table::key(core, to.name.bytes())];
    let places =
        [NamePlace { dir: from.dir, hash: keys[0].hash }, NamePlace { dir: to.dir, hash: keys[1].hash }];
    let look = || -> Result<Found> {
        let moved = table::find(core, from.dir, keys[0])?.ok_or(Error::NotFound)?;
        Ok(Found { moved, target: table::find(core, to.dir, keys[1])? })
    };
    let mut turns = wait::Retries::default();
    loop {
        let guess = look()?;
        let _renames = (across && guess.moves_a_directory()).then(|| core.root().renames.lock());
        let (low, high) = in_lock_order(from.dir, to.dir);
        let first = latch(core, low);
        let second = if across { latch(core, high) } else { None };
        // The old directory's attributes must not change meanwhile: see `VolatileInode::note_foreign_record`.
        let leaving = (across && first.is_none()).then(|| from.dir.volatile.eof.lock());
        // Exchanged inodes do not die.
        let victim = victim_of(core, guess.target.as_ref()).filter(|_| mode != RenameMode::Exchange);
        // A victim that is one of the two directories themselves is refused later.
        let victim = victim.filter(|victim| victim.ino != from.dir.ino && victim.ino != to.dir.ino);
        let again = || format!("a name in directory {} or {}", from.dir.ino.0, to.dir.ino.0);
        let Some(mut locks) = Locks::take(core, places[0], Some(places[1]), victim)? else {
            turns.again(core, again)?;
            continue;
        };
        let moved = locks.at(places[0])?.find(keys[0])?.ok_or(Error::NotFound)?;
        let found = Found { moved, target: locks.at(places[1])?.find(keys[1])? };
        if !found.is_like(&guess) {
            drop(locks);
            turns.again(core, again)?;
            continue;
        }
        let Some(done) =
            rename_locked(core, guard, cred, (from, keys[0]), (to, keys[1]), mode, found, locks)?
        else {
            return Ok(());
        };
        drop(leaving);
        let latched = first.is_some();
        grow_if_crowded(core, guard, to.dir, done.crowded, latched);
        drop((first, second));
        if let Some(replaced) = done.replaced {
            life::drop_name(core, guard, replaced);
        }
        return Ok(());
    }
}

/// Two directories, in the order in which their latches are taken.
fn in_lock_order<'c>(one: InodeRef<'c>, other: InodeRef<'c>) -> (InodeRef<'c>, InodeRef<'c>) {
    if one.ino <= other.ino { (one, other) } else { (other, one) }
}

/// Work that a rename leaves to its caller.
struct Done<'c> {
    replaced: Option<InodeRef<'c>>,
    /// The new directory's table, if it should grow.
    crowded: Option<Crowded>,
}

/// Returns `None` if there is nothing to do.
#[allow(clippy::too_many_arguments)]
fn rename_locked<'c>(
    core: &'c Core,
    guard: &mut LaneGuard<'_>,
    cred: &Cred,
    (from, from_key): (End<'c>, Key<'_>),
    (to, to_key): (End<'c>, Key<'_>),
    mode: RenameMode,
    Found { moved, target }: Found,
    mut locks: Locks<'c>,
) -> Result<Option<Done<'c>>> {
    match (mode, &target) {
        (RenameMode::NoReplace, Some(_)) if !breaks(Breach::NoReplaceReplaces) => return Err(Error::Exists),
        (RenameMode::Exchange, None) => return Err(Error::NotFound),
        _ => {}
    }
    if from.dir.ino != to.dir.ino {
        refuse_loops(core, &moved, target.as_ref(), from, to, mode)?;
    }
    if target.is_some_and(|target| target.child == moved.child) {
        // Two names of one file: POSIX says that rename does nothing and succeeds.
        return Ok(None);
    }
    may_move(core, cred, &moved, target.as_ref(), from, to, mode)?;
    let replaces_directory =
        mode == RenameMode::Replace && target.is_some_and(|target| target.kind == FileKind::Directory);
    // The victim is locked as a whole, so it is still empty when it dies (D21).
    if replaces_directory && locks.victim.as_ref().is_none_or(|victim| !victim.is_empty()) {
        return Err(Error::NotEmpty);
    }
    let replaced = match (&target, mode) {
        (Some(target), RenameMode::Replace) => Some(child_of(core, target)?),
        _ => None,
    };
    let (place_to, place_from) =
        (NamePlace { dir: to.dir, hash: to_key.hash }, NamePlace { dir: from.dir, hash: from_key.hash });
    let versions = [locks.at(place_to)?.version().next(), locks.at(place_from)?.version().next()];
    // Within a directory both records have one version, larger than both buckets'.
    let across = from.dir.ino != to.dir.ino;
    let [version_to, version_from] = if across { versions } else { [versions[0].max(versions[1]); 2] };
    let gains = if across { count_gain(&moved, target.as_ref(), from.dir, to.dir)? } else { None };
    let plan = Plan {
        from: (from, from_key),
        to: (to, to_key),
        moved: Named { version: version_to, ..moved },
        exchanged: target
            .filter(|_| mode == RenameMode::Exchange)
            .map(|target| Named { version: version_from, ..target }),
        gone: Named { version: version_from, ..moved },
        replaced,
        gains,
        now: to.dir.volatile.write_time().max(from.dir.volatile.write_time()),
    };
    let done = commit_plan(core, guard, &plan, &mut locks, [place_to, place_from]);
    if let (Some(dir), Err(_)) = (gains, &done) {
        dir.volatile.nlink.fetch_sub(1, SeqCst);
    }
    // Before the buckets are released: the directories may die then.
    guard.own.rest_chains(&core.arena, guard.id);
    let crowded = done?;
    if let Some(victim) = locks.victim.take()
        && let Some(dir) = replaced
    {
        if !planted(Bug::ReplacedDirectoryCounted) {
            to.dir.volatile.nlink.fetch_sub(1, SeqCst);
        }
        dir.volatile.nlink.store(1, SeqCst);
        victim.kill();
    }
    if let Some(replaced) = replaced {
        replaced.volatile.touch_state(plan.now);
    }
    Ok(Some(Done { replaced, crowded }))
}

/// Returns true if directory `a` is `b` or an ancestor of `b`.
fn above(core: &Core, a: Ino, b: Ino) -> Result<bool> {
    let mut at = b;
    // A chain of more parents than the image can have directories is a circle.
    for _ in 0..core.layout.chunks_max * CHUNK_INODES {
        if at == a {
            return Ok(true);
        }
        if at == Ino::ROOT {
            return Ok(false);
        }
        at = Ino(core.inode(at)?.volatile.parent.load(SeqCst));
    }
    Err(core.damage(format!("directories above directory {}", b.0)))
}

/// Adds one to the link count of the directory that gains a subdirectory, before anything changes. So its
/// links never exceed the limit. `may_move` has refused to replace a directory by a file, so these exchange.
fn count_gain<'a>(
    moved: &Named,
    target: Option<&Named>,
    from: InodeRef<'a>,
    to: InodeRef<'a>,
) -> Result<Option<InodeRef<'a>>> {
    let is_dir = |named: &Named| named.kind == FileKind::Directory;
    let gains = match (is_dir(moved), target.is_some_and(is_dir)) {
        (true, false) => Some(to),
        (false, true) => Some(from),
        _ => None,
    };
    gains.map(|dir| add_link(dir).map(|()| dir)).transpose()
}

struct Plan<'a> {
    from: (End<'a>, Key<'a>),
    to: (End<'a>, Key<'a>),
    /// The new meaning of the new name.
    moved: Named,
    /// The new meaning of the old name; `None`: it is removed.
    exchanged: Option<Named>,
    /// The contents of the record that removes the old name.
    gone: Named,
    /// The inode that had the new name.
    replaced: Option<InodeRef<'a>>,
    /// The directory that gains a subdirectory; its links count that already.
    gains: Option<InodeRef<'a>>,
    now: Time,
}

impl Plan<'_> {
    fn across(&self) -> bool {
        self.from.0.dir.ino != self.to.0.dir.ino
    }

    /// The record of the new name, for the new directory's log.
    fn record_to(&self) -> Record {
        record(self.to.0.dir, self.to.1.name, &self.moved, false, self.now)
    }

    /// The record of the old name, for the old directory's log.
    fn record_from(&self) -> Record {
        let to = self.exchanged.as_ref().unwrap_or(&self.gone);
        record(self.from.0.dir, self.from.1.name, to, self.exchanged.is_none(), self.now)
    }
}

/// Refuses to move a directory below itself, and to replace a directory by one of its descendants.
fn refuse_loops(
    core: &Core,
    moved: &Named,
    target: Option<&Named>,
    from: End<'_>,
    to: End<'_>,
    mode: RenameMode,
) -> Result<()> {
    let below_itself = Error::InvalidArgument("a directory cannot be moved below itself");
    let is_dir = |e: &Named| e.kind == FileKind::Directory;
    if !breaks(Breach::LoopsAllowed) && is_dir(moved) && above(core, moved.child.ino, to.dir.ino)? {
        return Err(below_itself);
    }
    match target {
        Some(target) if is_dir(target) && above(core, target.child.ino, from.dir.ino)? => {
            Err(if mode == RenameMode::Exchange { below_itself } else { Error::NotEmpty })
        }
        _ => Ok(()),
    }
}

/// Checks that the caller may remove both names and add them at their new places.
fn may_move(
    core: &Core,
    cred: &Cred,
    moved: &Named,
    target: Option<&Named>,
    from: End<'_>,
    to: End<'_>,
    mode: RenameMode,
) -> Result<()> {
    let is_dir = |e: &Named| e.kind == FileKind::Directory;
    check_removal(core, from.dir, child_of(core, moved)?, cred)?;
    match target {
        None => check(core, to.dir, cred, Permission::WRITE_EXECUTE)?,
        Some(target) => {
            check_removal(core, to.dir, child_of(core, target)?, cred)?;
            match (mode, is_dir(moved), is_dir(target)) {
                (RenameMode::Exchange, ..) => {}
                (_, true, false) => return Err(Error::NotDirectory),
                (_, false, true) => return Err(Error::IsDirectory),
                _ => {}
            }
        }
    }
    if from.dir.ino != to.dir.ino {
        // Its `..` changes.
        let exchanged = target.filter(|_| mode == RenameMode::Exchange);
        for dir in [Some(moved), exchanged].into_iter().flatten().filter(|e| is_dir(e)) {
            check(core, child_of(core, dir)?, cred, Permission::WRITE)?;
        }
    }
    Ok(())
}

/// Makes the plan durable, then visible. Returns the work that is left on the new directory and on the old
/// one.
fn commit_plan(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    plan: &Plan<'_>,
    locks: &mut Locks<'_>,
    places: [NamePlace<'_>; 2],
) -> Result<Option<Crowded>> {
    let (to, from) = (plan.record_to(), plan.record_from());
    // A foreign record has two words more, which takes at most one slot.
    prepare(core, guard, plan.to.0.dir, to.slots_max() + from.slots_max(), Purpose::Replace)?;
    if plan.across() {
        prepare(core, guard, plan.from.0.dir, from.slots_max(), Purpose::Replace)?;
    }
    let entry_to = table::alloc_entry(core, guard.own, plan.to.1.name)?;
    if plan.across() && !planted(Bug::ForeignRecordNotNoted) {
        plan.from.0.dir.volatile.note_foreign_record(plan.from.0.dir.volatile.change_count());
    }
    let both = [to, from.clone()];
    let told = if planted(Bug::RenameTellsOneDirectory) && plan.across() { &both[..1] } else { &both[..] };
    if planted(Bug::OldNameGoesFirst) {
        commit::commit(core, guard, plan.from.0.dir, &both[1..])?;
    }
    let durable = match commit::commit(core, guard, plan.to.0.dir, told) {
        Ok(durable) => durable,
        Err(error) => {
            table::free_entry(core, guard.own, entry_to);
            return Err(error);
        }
    };
    // Room was made, so this cannot fail for lack of space. The rename has happened even if the copy fails.
    let untold =
        planted(Bug::OldDirectoryNotTold) || planted(Bug::ExchangeNotTold) && plan.exchanged.is_some();
    if plan.across() && !untold {
        commit::commit(core, guard, plan.from.0.dir, &[from])?;
    }
    show(core, guard, plan, locks, places, (entry_to, durable))
}

/// Updates buckets, counts and parents to match the log. Returns the table of the new directory, if it should
/// grow.
fn show(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    plan: &Plan<'_>,
    locks: &mut Locks<'_>,
    [place_to, place_from]: [NamePlace<'_>; 2],
    (entry_to, durable): (EntryMemory, Durable),
) -> Result<Option<Crowded>> {
    plan.to.0.dir.volatile.touch(plan.now);
    if plan.across() {
        plan.from.0.dir.volatile.touch(plan.now);
    }
    if let Some(replaced) = plan.replaced {
        guard.lane.intent.note_unlinking(replaced.id());
    }
    // Both buckets are marked `changing` before either changes, and neither is unlocked before both are done.
    locks.at(place_to)?.begin_change(&durable, plan.moved.version);
    locks.at(place_from)?.begin_change(&durable, plan.gone.version);
    let crowded = locks.at(place_to)?.put(guard.own, plan.to.1, &plan.moved, entry_to)?;
    match &plan.exchanged {
        Some(target) => locks.at(place_from)?.set_meaning(plan.from.1, target)?,
        None => locks.at(place_from)?.take(guard.own, plan.from.1)?,
    }
    let (from, to) = (plan.from.0.dir, plan.to.0.dir);
    let moment = (plan.now, plan.gains.is_some());
    moved_to(core, &plan.moved, from, to, moment);
    if let Some(target) = &plan.exchanged {
        moved_to(core, target, to, from, moment);
        if planted(Bug::ExchangeKeepsParent)
            && target.kind == FileKind::Directory
            && let Some(child) = core.slot(target.child.ino)
        {
            child.volatile.parent.store(to.ino.0, SeqCst);
        }
    }
    Ok(crowded)
}

/// `counted`: the new directory's links count the moved directory.
fn moved_to(core: &Core, named: &Named, from: InodeRef<'_>, to: InodeRef<'_>, (now, counted): (Time, bool)) {
    let InodeId { ino, .. } = named.child;
    let Some(child) = core.slot(ino) else { return };
    child.volatile.touch_state(now);
    if named.kind == FileKind::Directory && from.ino != to.ino {
        child.volatile.parent.store(to.ino.0, SeqCst);
        from.volatile.nlink.fetch_sub(1, SeqCst);
        if !counted {
            to.volatile.nlink.fetch_add(1, SeqCst);
        }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests;
