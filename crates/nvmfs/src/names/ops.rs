//! Making, linking and removing names.
//!
//! A name is changed under the lock of its bucket, which orders the records of its names. Each change is one
//! transaction in one chain of the directory. The change has happened when the transaction is durable. In the
//! papers' variants a directory has one chain, and one caller at a time changes it, under its latch (the
//! inode's EOF latch).
//!
//! Lock order  the latches of directories (papers' variants) by inode number; then buckets (`locks`). A `rename` of a directory across
//!             directories takes the mount's rename latch first. No chain is cleaned and no table grows while a bucket is held.
//! Alive       a caller that holds a bucket keeps the directory alive. It releases the directory's chain before the bucket. A caller
//!             that works on the directory afterwards counts as one that has it open (`grow_if_crowded`; cleaning).
//! Crash order C1  the records are durable, then the bucket changes, then inodes are freed.

use crate::alloc::{Purpose, itable};
use crate::file::write_at;
use crate::file::write_heddle::At;
use crate::format::layout::TARGET_BYTES;
use crate::format::record::{NameBuf, Record};
use crate::ids::InodeId;
use crate::log::{chain, commit};
use crate::names::locks::{Locks, NamePlace};
use crate::names::table::{self, Crowded, Key, Meaning, Named};
use crate::names::{in_place_removal, life};
use crate::planted::{Breach, Bug, breaks, planted};
use crate::state::core::Core;
use crate::state::inode::{InodeRef, List};
use crate::state::latch::Latched;
use crate::state::lease::LaneGuard;
use crate::state::operation::Durable;
use crate::state::papers::one_chain;
use crate::state::{opens, wait};
use crate::steps::{Step, step};
use crate::xattr::{check, check_mode};
use heddle_arena::sync::yield_now;
use heddle_vfs::{Cred, Error, FileKind, Name, NewNode, Permission, Result, Time};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::time::Instant;

/// Most names of an inode.
const LINKS_MAX: u32 = 65_000;

/// The directory of this number, if the caller has the permission `want` on it.
pub fn directory<'c>(
    core: &'c Core,
    cred: &Cred,
    ino: heddle_vfs::Ino,
    want: Permission,
) -> Result<InodeRef<'c>> {
    let dir = core.inode(ino)?;
    let mode = dir.volatile.mode();
    if !mode.is_directory() {
        return Err(if mode.kind_perm().is_some() { Error::NotDirectory } else { Error::Stale });
    }
    check_mode(core, dir, mode, cred, want)?;
    Ok(dir)
}

/// Returns the meaning of a name, if the caller may search the directory. The name's inode was alive when the
/// directory was read. It may have died since; a check here could not rule that out either.
pub fn look(core: &Core, cred: &Cred, parent: heddle_vfs::Ino, name: Name<'_>) -> Result<Named> {
    let dir = directory(core, cred, parent, Permission::EXECUTE)?;
    table::find(core, dir, table::key(core, name.bytes()))?.ok_or(Error::NotFound)
}

/// As [`look`], if the answer is available at once: no access list to read, no change under way, no
/// permission denied.
#[inline(always)]
pub fn glance(core: &Core, cred: &Cred, parent: heddle_vfs::Ino, name: Name<'_>) -> Option<Meaning> {
    let dir = core.slot(parent)?;
    let mode = dir.volatile.mode();
    if mode.has_list(List::Access) {
        return None;
    }
    let (uid, gid) = dir.volatile.owner();
    cred.check_mode(FileKind::Directory, mode.perm(), uid, gid, Permission::EXECUTE).ok()?;
    // It finds nothing if this is no directory, or a dead one.
    table::glance(core, dir, table::key(core, name.bytes()))
}

/// Locks a directory that has one chain, for a caller that changes its names.
pub fn latch<'c>(core: &Core, dir: InodeRef<'c>) -> Option<Latched<'c>> {
    one_chain(core).then(|| dir.volatile.eof.lock())
}

/// Checks that the caller may remove this name. In a directory with the sticky bit only root and the owners
/// of the directory and of the file may.
pub fn check_removal(core: &Core, dir: InodeRef<'_>, child: InodeRef<'_>, cred: &Cred) -> Result<()> {
    check(core, dir, cred, Permission::WRITE_EXECUTE)?;
    let sticky = dir.volatile.kind_perm().is_some_and(|(_, perm)| perm & 0o1000 != 0);
    let owner = |inode: InodeRef<'_>| inode.volatile.owner().0 == cred.uid;
    if !sticky || cred.is_root() || owner(dir) || owner(child) { Ok(()) } else { Err(Error::NotPermitted) }
}

/// The living inode that a name leads to.
pub fn child_of<'c>(core: &'c Core, named: &Named) -> Result<InodeRef<'c>> {
    let child = core.inode(named.child.ino)?;
    if child.volatile.generation() == named.child.generation { Ok(child) } else { Err(Error::Stale) }
}

/// The directory whose name an operation is about to remove.
pub fn victim_of<'c>(core: &'c Core, named: Option<&Named>) -> Option<InodeRef<'c>> {
    let dir = named.filter(|named| named.kind == FileKind::Directory);
    dir.and_then(|named| core.slot(named.child.ino)).filter(|dir| table::is_empty(core, *dir))
}

/// A record of a name of `dir`: the name means `to`, or, if `removed`, is gone.
pub fn record(dir: InodeRef<'_>, name: &[u8], to: &Named, removed: bool, now: Time) -> Record {
    Record::Name {
        dir: dir.id(),
        removed,
        child: to.child,
        kind: to.kind,
        name: NameBuf::new(name),
        version: to.version,
        mtime: now,
        change_count: dir.volatile.change_count(),
    }
}

/// Makes room for `slots` in the log of a directory, and fences. A bucket of the directory is held.
pub fn prepare(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    dir: InodeRef<'_>,
    slots: u32,
    purpose: Purpose,
) -> Result<()> {
    if commit::prepare(core, guard, dir, slots, purpose)? {
        // PERSIST: a fresh log page is empty before it is linked. Earlier stores (a new inode) become durable
        // too.
        core.region.fence();
    }
    Ok(())
}

/// Grows the table of a directory if it is crowded, when the call has released its locks. `latched`: the
/// caller holds the directory's latch. The directory is held open, because it may be removed meanwhile.
pub fn grow_if_crowded(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    dir: InodeRef<'_>,
    crowded: Option<Crowded>,
    latched: bool,
) {
    let Some(crowded) = crowded else { return };
    let generation = dir.volatile.generation();
    if life::open(core, guard, dir, generation).is_err() {
        return;
    }
    table::grow(core, guard.own, dir, crowded, latched);
    life::drop_open(core, guard, dir, generation);
}

/// Makes an inode with a name. `open`: the caller gets a handle of it.
pub fn make<'c>(
    core: &'c Core,
    guard: &mut LaneGuard<'_>,
    cred: &Cred,
    dir: InodeRef<'c>,
    name: Name<'_>,
    node: &NewNode<'_>,
    open: bool,
) -> Result<InodeRef<'c>> {
    if node.target.len() as u64 >= TARGET_BYTES.end {
        return Err(Error::NameTooLong);
    }
    let latched = latch(core, dir);
    let key = table::key(core, name.bytes());
    if table::find(core, dir, key)?.is_some() && !breaks(Breach::NamesTwice) {
        return Err(Error::Exists);
    }
    check(core, dir, cred, Permission::WRITE_EXECUTE)?;
    if matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice) && !cred.is_root() {
        return Err(Error::NotPermitted);
    }
    let inode = life::make(core, guard, cred, dir, node)?;
    if open {
        // Before it has a name: until then no other call can remove the last handle.
        if let Err(error) = opens::raise(core, guard.id, inode, inode.volatile.generation()) {
            life::unmake(core, guard, inode);
            return Err(error);
        }
    }
    match named_in(core, guard, dir, key, node, inode) {
        Ok(crowded) => grow_if_crowded(core, guard, dir, crowded, latched.is_some()),
        Err(error) => {
            if open {
                opens::lower(core, guard.id, inode, inode.volatile.generation());
            }
            life::unmake(core, guard, inode);
            return Err(error);
        }
    }
    Ok(inode)
}

/// Adds the name of a new inode.
fn named_in(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    dir: InodeRef<'_>,
    key: Key<'_>,
    node: &NewNode<'_>,
    inode: InodeRef<'_>,
) -> Result<Option<Crowded>> {
    if node.kind == FileKind::Symlink {
        write_at(core, guard, inode, At::Offset(0), node.target)?;
    }
    if node.kind == FileKind::Directory {
        inode.volatile.nlink.store(2, SeqCst);
        inode.volatile.parent.store(dir.ino.0, SeqCst);
    }
    let what = New { child: inode.id(), kind: node.kind };
    add_name(core, guard, dir, key, what).map(|(crowded, _)| crowded)
}

/// The meaning of a new name.
#[derive(Clone, Copy)]
struct New {
    child: InodeId,
    kind: FileKind,
}

/// Adds a name. Returns the table if it is crowded now, and the time of the change.
fn add_name(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    dir: InodeRef<'_>,
    key: Key<'_>,
    what: New,
) -> Result<(Option<Crowded>, Time)> {
    let entry = table::alloc_entry(core, guard.own, key.name)?;
    let done = (|| {
        let bucket = table::lock(core, dir, key.hash)?;
        if bucket.find(key)?.is_some() && !breaks(Breach::NamesTwice) {
            return Err(Error::Exists);
        }
        let now = dir.volatile.write_time();
        let named = Named { child: what.child, kind: what.kind, version: bucket.version().next() };
        let durable = commit_name(core, guard, dir, key, &named, now)?;
        Ok((bucket, durable, named, now))
    })();
    match done {
        Ok((mut bucket, durable, named, now)) => {
            // While the bucket keeps the name: without it the inode may be another one.
            if let Some((id, true)) = guard.lane.intent.creating()
                && let Some(inode) = core.slot(id.ino).filter(|inode| inode.volatile.linkable())
            {
                inode.volatile.set_linkable(false);
            }
            // Not after the unlock: a settler learns from the record that the inode got its name, and cleaning may move the record then.
            guard.lane.intent.created();
            dir.volatile.touch(now);
            bucket.begin_change(&durable, named.version);
            step(Step::Changing);
            Ok((bucket.put(guard.own, key, &named, entry)?, now))
        }
        Err(error) => {
            table::free_entry(core, guard.own, entry);
            Err(error)
        }
    }
}

/// Makes a record durable. The bucket is held. The lane releases the directory's chain before the caller
/// releases the bucket.
fn log_name(core: &Core, guard: &mut LaneGuard<'_>, dir: InodeRef<'_>, record: &Record) -> Result<Durable> {
    let removes = matches!(record, Record::Name { removed: true, .. });
    let purpose = if removes { Purpose::Free } else { Purpose::Data };
    let done = prepare(core, guard, dir, record.slots_max(), purpose)
        .and_then(|()| commit::commit(core, guard, dir, std::slice::from_ref(record)));
    guard.own.rest_chains(&core.arena, guard.id);
    if done.is_ok() {
        step(Step::Durable);
        // `commit` has fenced.
        itable::settle(core, guard.own);
    }
    done
}

/// Makes a new name durable. A new directory counts as a link of its parent. The bucket is held, so no
/// attribute record can store that count before the name is durable.
fn commit_name(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    dir: InodeRef<'_>,
    key: Key<'_>,
    named: &Named,
    now: Time,
) -> Result<Durable> {
    let is_dir = named.kind == FileKind::Directory;
    if is_dir {
        add_link(dir)?;
    }
    let done = log_name(core, guard, dir, &record(dir, key.name, named, false, now));
    if done.is_err() && is_dir {
        dir.volatile.nlink.fetch_sub(1, SeqCst);
    }
    done
}

/// Adds a name to an inode.
pub fn link(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    cred: &Cred,
    inode: InodeRef<'_>,
    dir: InodeRef<'_>,
    name: Name<'_>,
) -> Result<()> {
    let (kind, _) = inode.volatile.kind_perm().ok_or(Error::Stale)?;
    let latched = latch(core, dir);
    let key = table::key(core, name.bytes());
    if table::find(core, dir, key)?.is_some() {
        return Err(Error::Exists);
    }
    check(core, dir, cred, Permission::WRITE_EXECUTE)?;
    if kind == FileKind::Directory {
        return Err(Error::NotPermitted);
    }
    add_link(inode)?;
    guard.lane.intent.note_naming(inode.id());
    match add_name(core, guard, dir, key, New { child: inode.id(), kind }) {
        Ok((crowded, now)) => {
            inode.volatile.touch_state(now);
            grow_if_crowded(core, guard, dir, crowded, latched.is_some());
            Ok(())
        }
        Err(error) => {
            // In this order a settler counts the name down once.
            guard.lane.intent.note_unlinking(inode.id());
            guard.lane.intent.created();
            life::drop_name(core, guard, inode);
            Err(error)
        }
    }
}

/// Counts one more name of an inode, or one more subdirectory, unless the last name is gone already. A file
/// made without a name gets its first.
pub(super) fn add_link(inode: InodeRef<'_>) -> Result<()> {
    // ORDERING: Relaxed throughout, guesses that the CAS checks.
    let mut now = inode.volatile.nlink.load(Relaxed);
    loop {
        match now {
            0 if !inode.volatile.linkable() => return Err(Error::NotFound),
            LINKS_MAX.. if !breaks(Breach::LinksUnbounded) => return Err(Error::TooManyLinks),
            _ => {}
        }
        match inode.volatile.nlink.compare_exchange(now, now + 1, SeqCst, Relaxed) {
            Ok(_) => return Ok(()),
            Err(other) => now = other,
        }
    }
}

/// The kinds of names that [`remove`] removes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remove {
    /// Names of all kinds but directories.
    File,
    /// Names of empty directories.
    Directory,
}

/// Removes a name.
pub fn remove(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    cred: &Cred,
    dir: InodeRef<'_>,
    name: Name<'_>,
    what: Remove,
) -> Result<()> {
    let latched = latch(core, dir);
    let key = table::key(core, name.bytes());
    let mut seen = table::find(core, dir, key)?.ok_or(Error::NotFound)?;
    let place = NamePlace { dir, hash: key.hash };
    let (mut since, mut turns) = (None, wait::Retries::default());
    loop {
        let victim = victim_of(core, Some(&seen)).filter(|_| what == Remove::Directory);
        if let Some(mut locks) = Locks::take(core, place, None, victim)? {
            let named = locks.at(place)?.find(key)?.ok_or(Error::NotFound)?;
            if named.child == seen.child {
                if let Some(child) = remove_locked(core, guard, cred, (place, key), what, &named, locks)? {
                    drop(latched);
                    life::drop_name(core, guard, child);
                    return Ok(());
                }
                // Another call uses the log that this call must change in place.
                let since = *since.get_or_insert_with(Instant::now);
                yield_now();
                if chain::users_held_up(core, dir, since.elapsed()) {
                    turns = wait::Retries::default();
                }
            }
        }
        // Another call changed this name first.
        turns.again(core, || format!("a name in directory {}", dir.ino.0))?;
        seen = table::find(core, dir, key)?.ok_or(Error::NotFound)?;
    }
}

/// Returns the inode that lost its name. `None`: the caller tries again.
fn remove_locked<'c>(
    core: &'c Core,
    guard: &mut LaneGuard<'_>,
    cred: &Cred,
    (place, key): (NamePlace<'c>, Key<'_>),
    what: Remove,
    named: &Named,
    mut locks: Locks<'c>,
) -> Result<Option<InodeRef<'c>>> {
    let dir = place.dir;
    let child = child_of(core, named)?;
    check_removal(core, dir, child, cred)?;
    match (what, named.kind == FileKind::Directory) {
        (Remove::File, true) => return Err(Error::IsDirectory),
        (Remove::Directory, false) => return Err(Error::NotDirectory),
        _ => {}
    }
    // A call that makes a name in the directory holds one of its buckets. All are held here, so the directory
    // is still empty when it dies (D21).
    if what == Remove::Directory && locks.victim.as_ref().is_none_or(|victim| !victim.is_empty()) {
        return Err(Error::NotEmpty);
    }
    if breaks(Breach::RemovalNeedsSpace) && core.free_map().count_for_data() == 0 {
        return Err(Error::NoSpace);
    }
    let now = dir.volatile.write_time();
    let bucket = locks.at(place)?;
    let gone = Named { version: bucket.version().next(), ..*named };
    match log_name(core, guard, dir, &record(dir, key.name, &gone, true, now)) {
        Err(Error::NoSpace) => {
            let Some(records) = in_place_removal::find(core, guard.id, dir, key.name, named.version)? else {
                return Ok(None);
            };
            if records.is_empty() {
                return Err(Error::NoSpace);
            }
            if planted(Bug::RemovalBeforeMark) {
                // The second time it does nothing.
                records.remove();
            }
            bucket.begin_removal_in_place(gone.version);
            records.remove();
            guard.lane.intent.note_unlinking(child.id());
            drop(records);
            // All records of the page may be dead now.
            guard.scratch.to_clean.push(dir.id());
        }
        logged => {
            let durable = logged?;
            guard.lane.intent.note_unlinking(child.id());
            bucket.begin_change(&durable, gone.version);
        }
    }
    dir.volatile.touch(now);
    bucket.take(guard.own, key)?;
    if let Some(victim) = locks.victim.take() {
        dir.volatile.nlink.fetch_sub(1, SeqCst);
        child.volatile.nlink.store(1, SeqCst);
        victim.kill();
    } else {
        child.volatile.touch_state(now);
    }
    Ok(Some(child))
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;
    use crate::state::lease::enter;
    use crate::variant::Variant;
    use crate::volume::{MountOptions, format, mount};
    use heddle_vfs::Ino;
    use heddle_vfs::short::Short;

    /// Between the look without a lock and the lock.
    #[test]
    fn a_name_that_another_call_has_made_meanwhile_stays() {
        let region = heddle_pmem::Region::anonymous(8 << 20).unwrap();
        format(&region, Variant::Heddle).unwrap();
        let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        let volume = mount(region, &options).unwrap();
        let fs = volume.fs();
        let (made, late) = (fs.new_file(Ino::ROOT, "f"), fs.new_file(Ino::ROOT, "late"));
        let core = &fs.core;
        let (dir, key) = (core.inode(Ino::ROOT).unwrap(), table::key(core, b"f"));
        let what = New { child: core.inode(late.ino).unwrap().id(), kind: FileKind::Regular };
        let mut guard = enter(core).unwrap();
        let said = add_name(core, &mut guard, dir, key, what).map(|_| ());
        assert_eq!(said, Err(Error::Exists));
        drop(guard);
        assert_eq!(fs.find(Ino::ROOT, "f").map(|attr| attr.ino), Ok(made.ino));
        volume.abandon();
    }
}
