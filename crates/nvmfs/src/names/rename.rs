//! Renaming.
//!
//! Within a directory both records are one transaction in one chain. Across directories the transaction lies in a chain of the
//! new directory and carries the old directory's records too, marked foreign: it commits the rename alone. Then the old
//! directory gets its own copy of them, durable before any lock is dropped, so that its log can be read without the other's again.
//! No journal is needed (design 4.7 has one; its hazards, protocol review D20, are gone with it).
//!
//! Loops are excluded by one latch for renames of directories across directories (D22).

use crate::core::Core;
use crate::format::record::Record;
use crate::ids::{InodeId, Version};
use crate::inode::InodeRef;
use crate::lease::LaneGuard;
use crate::log::{clean, commit};
use crate::names::life;
use crate::names::ops::{check, check_removal, child_of, latch, note_change, prepare, record};
use crate::names::table::{self, Entry, Named, Prepared};
use crate::planted::{Bug, planted};
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

/// Moves a name.
pub fn rename(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    cred: &Cred,
    from: End<'_>,
    to: End<'_>,
    mode: RenameMode,
) -> Result<()> {
    let across = from.dir.ino != to.dir.ino;
    // Taken whenever it may be needed: what is moved is known only under the directories' latches.
    let _renames = across.then(|| core.root().renames.lock());
    let (first, second) = latch_order(core, from.dir, to.dir)?;
    let _first = latch(first)?;
    let _second = if across { Some(latch(second)?) } else { None };
    let moved = table::find(core, from.dir, from.name.bytes())?.ok_or(Error::NotFound)?;
    let target = table::find(core, to.dir, to.name.bytes())?;
    match (mode, &target) {
        (RenameMode::NoReplace, Some(_)) => return Err(Error::Exists),
        (RenameMode::Exchange, None) => return Err(Error::NotFound),
        _ => {}
    }
    refuse_loops(core, &moved, target.as_ref(), from, to, mode)?;
    if target.as_ref().is_some_and(|target| target.child == moved.child) {
        // Two names of one file: rename does nothing and succeeds.
        return Ok(());
    }
    may_move(core, cred, &moved, target.as_ref(), from, to, mode)?;
    let plan =
        Plan { from, to, moved, target, exchange: mode == RenameMode::Exchange, now: crate::clock::exact() };
    let replaced = match (&plan.target, plan.exchange) {
        (Some(target), false) => Some(child_of(core, target)?),
        _ => None,
    };
    let replaced_dir = replaced.filter(|r| matches!(r.vi.kind_perm(), Some((FileKind::Directory, _))));
    let victim = replaced_dir.map(|dir| dir.vi.eof.lock());
    if replaced_dir.is_some_and(|dir| table::count(core, dir) > 0) {
        return Err(Error::NotEmpty);
    }
    commit_plan(core, guard, &plan)?;
    if let Some(dir) = replaced_dir {
        to.dir.vi.nlink.fetch_sub(1, SeqCst);
        dir.vi.nlink.store(1, SeqCst);
    }
    drop(victim);
    if let Some(replaced) = replaced {
        replaced.vi.set_times(replaced.vi.times()[0], plan.now);
        life::drop_name(core, guard, replaced, 1);
    }
    Ok(())
}

/// Ancestors first, as who removes a directory takes its parent's latch and then its own; strangers by number. The tree cannot
/// change meanwhile: the rename latch is held.
fn latch_order<'a>(core: &Core, a: InodeRef<'a>, b: InodeRef<'a>) -> Result<(InodeRef<'a>, InodeRef<'a>)> {
    if above(core, a.ino, b.ino)? || (!above(core, b.ino, a.ino)? && a.ino < b.ino) {
        Ok((a, b))
    } else {
        Ok((b, a))
    }
}

/// Is directory `a` an ancestor of `b`, or `b` itself?
fn above(core: &Core, a: Ino, b: Ino) -> Result<bool> {
    let mut at = b;
    while at != a {
        if at == Ino::ROOT {
            return Ok(false);
        }
        at = Ino(core.inode(at)?.vi.parent.load(SeqCst));
    }
    Ok(true)
}

struct Plan<'a> {
    from: End<'a>,
    to: End<'a>,
    moved: Entry,
    target: Option<Entry>,
    exchange: bool,
    now: Time,
}

impl Plan<'_> {
    fn across(&self) -> bool {
        self.from.dir.ino != self.to.dir.ino
    }

    /// What the new directory's log says of its name.
    fn record_to(&self) -> Record {
        record(self.to.dir, self.to.name.bytes(), self.moved.child, self.moved.kind, false, self.now)
    }

    /// What the old directory's log says of its name.
    fn record_from(&self) -> Record {
        match (&self.target, self.exchange) {
            (Some(t), true) => {
                record(self.from.dir, self.from.name.bytes(), t.child, t.kind, false, self.now)
            }
            _ => record(
                self.from.dir,
                self.from.name.bytes(),
                self.moved.child,
                self.moved.kind,
                true,
                self.now,
            ),
        }
    }
}

/// No directory goes below itself, and none is replaced by what is below it.
fn refuse_loops(
    core: &Core,
    moved: &Entry,
    target: Option<&Entry>,
    from: End<'_>,
    to: End<'_>,
    mode: RenameMode,
) -> Result<()> {
    let below_itself = Error::InvalidArgument("a directory cannot be moved below itself");
    let is_dir = |e: &Entry| e.kind == FileKind::Directory;
    if is_dir(moved) && above(core, moved.child.ino, to.dir.ino)? {
        return Err(below_itself);
    }
    match target {
        Some(target) if is_dir(target) && above(core, target.child.ino, from.dir.ino)? => {
            Err(if mode == RenameMode::Exchange { below_itself } else { Error::NotEmpty })
        }
        _ => Ok(()),
    }
}

/// May the caller take both names away and put them in their new places?
fn may_move(
    core: &Core,
    cred: &Cred,
    moved: &Entry,
    target: Option<&Entry>,
    from: End<'_>,
    to: End<'_>,
    mode: RenameMode,
) -> Result<()> {
    let is_dir = |e: &Entry| e.kind == FileKind::Directory;
    check_removal(from.dir, child_of(core, moved)?, cred)?;
    match target {
        None => check(to.dir, cred, Permission::WRITE_EXECUTE)?,
        Some(target) => {
            check_removal(to.dir, child_of(core, target)?, cred)?;
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
            check(child_of(core, dir)?, cred, Permission::WRITE)?;
        }
    }
    Ok(())
}

/// Makes the plan durable, then visible.
fn commit_plan(core: &Core, guard: &mut LaneGuard<'_>, plan: &Plan<'_>) -> Result<()> {
    let (to, from) = (plan.record_to(), plan.record_from());
    // Two words more if it is foreign: at most one slot.
    prepare(core, guard, plan.to.dir, to.slots_max() + from.slots_max())?;
    if plan.across() {
        prepare(core, guard, plan.from.dir, from.slots_max())?;
    }
    let entry_to = table::prepare(core, guard.own, plan.to.dir, plan.to.name.bytes())?;
    let entry_from = match table::prepare(core, guard.own, plan.from.dir, plan.from.name.bytes()) {
        Ok(entry) => entry,
        Err(error) => {
            table::unprepare(core, guard.own, entry_to);
            return Err(error);
        }
    };
    let both = [to, from.clone()];
    let told = if planted(Bug::RenameTellsOneDirectory) && plan.across() { &both[..1] } else { &both[..] };
    if planted(Bug::OldNameGoesFirst) {
        commit::commit(core, guard, plan.from.dir, &both[1..])?;
    }
    let done = match commit::commit(core, guard, plan.to.dir, told) {
        Ok(done) => done,
        Err(error) => {
            table::unprepare(core, guard.own, entry_to);
            table::unprepare(core, guard.own, entry_from);
            return Err(error);
        }
    };
    // Room was made: this cannot fail for want of space; and the rename has happened whatever becomes of the copy.
    let copied = if plan.across() && !planted(Bug::OldDirectoryNotTold) {
        Some(commit::commit(core, guard, plan.from.dir, &[from])?)
    } else {
        None
    };
    show(core, guard, plan, entry_to, entry_from);
    if done.clean {
        clean::step(core, guard, plan.to.dir);
    }
    if copied.is_some_and(|c| c.clean) {
        clean::step(core, guard, plan.from.dir);
    }
    Ok(())
}

/// Changes tables, counts and parents to what the log says.
fn show(core: &Core, guard: &mut LaneGuard<'_>, plan: &Plan<'_>, entry_to: Prepared, entry_from: Prepared) {
    note_change(plan.to.dir, plan.now);
    if plan.across() {
        note_change(plan.from.dir, plan.now);
    }
    let named = |entry: &Entry, dir: InodeRef<'_>| Named {
        child: entry.child,
        kind: entry.kind,
        version: Version(dir.vi.change()),
    };
    let change_to = table::change(core, plan.to.dir);
    let change_from = if plan.across() { table::change(core, plan.from.dir) } else { None };
    let from_table = if plan.across() { change_from.as_ref() } else { change_to.as_ref() };
    if let (Some(to), Some(from)) = (&change_to, from_table) {
        to.put(core, guard.own, plan.to.name.bytes(), &named(&plan.moved, plan.to.dir), entry_to);
        match (&plan.target, plan.exchange) {
            (Some(target), true) => {
                from.put(core, guard.own, plan.from.name.bytes(), &named(target, plan.from.dir), entry_from);
            }
            _ => {
                from.take(core, guard.own, plan.from.name.bytes());
                table::unprepare(core, guard.own, entry_from);
            }
        }
    }
    drop((change_to, change_from));
    moved_to(core, &plan.moved, plan.from.dir, plan.to.dir, plan.now);
    if let (Some(target), true) = (&plan.target, plan.exchange) {
        moved_to(core, target, plan.to.dir, plan.from.dir, plan.now);
    }
}

fn moved_to(core: &Core, entry: &Entry, from: InodeRef<'_>, to: InodeRef<'_>, now: Time) {
    let InodeId { ino, .. } = entry.child;
    let Some(child) = core.slot(ino) else { return };
    child.vi.set_times(child.vi.times()[0], now);
    if entry.kind == FileKind::Directory && from.ino != to.ino {
        child.vi.parent.store(to.ino.0, SeqCst);
        from.vi.nlink.fetch_sub(1, SeqCst);
        to.vi.nlink.fetch_add(1, SeqCst);
    }
}
