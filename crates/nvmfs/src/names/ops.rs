//! Making, linking and removing names.
//!
//! A directory is changed by one caller at a time, under its latch (the inode's EOF latch, which a directory has no other use
//! for). Each change is one transaction in one chain of the directory: it has happened when that is durable.
//!
//! Lock order  latches of directories in the order of their inode numbers, a directory's before that of a child that is removed
//!             or replaced; `rename` of directories takes the mount's rename latch first.
//! Crash order C1  records durable, then the table changes, then inodes end.

use crate::core::Core;
use crate::file::heddle::At;
use crate::format::record::{NameBuf, Record};
use crate::ids::{InodeId, Version};
use crate::inode::InodeRef;
use crate::latch::Latched;
use crate::lease::LaneGuard;
use crate::log::{clean, commit};
use crate::names::life;
use crate::names::table::{self, Entry, Named};
use heddle_vfs::{Cred, Error, FileKind, Name, NewNode, Permission, Result, Time};
use std::sync::atomic::Ordering::{Relaxed, SeqCst};

/// Most names of an inode.
const LINKS_MAX: u32 = 65_000;
/// Longest target of a symbolic link, in bytes.
const TARGET_MAX_BYTES: usize = 4095;

/// Checks that the caller may do `want` in a directory.
pub fn check(inode: InodeRef<'_>, cred: &Cred, want: Permission) -> Result<()> {
    let (kind, perm) = inode.vi.kind_perm().ok_or(Error::Stale)?;
    let (uid, gid) = inode.vi.owner();
    cred.check_mode(kind, perm, uid, gid, want)
}

/// The directory of this number, which the caller may search (or change).
pub fn directory<'c>(
    core: &'c Core,
    cred: &Cred,
    ino: heddle_vfs::Ino,
    want: Permission,
) -> Result<InodeRef<'c>> {
    let dir = core.inode(ino)?;
    match dir.vi.kind_perm() {
        Some((FileKind::Directory, _)) => check(dir, cred, want)?,
        Some(_) => return Err(Error::NotDirectory),
        None => return Err(Error::Stale),
    }
    Ok(dir)
}

/// Takes a directory's latch; it may have been removed meanwhile.
pub fn latch<'c>(dir: InodeRef<'c>) -> Result<Latched<'c>> {
    let latched = dir.vi.eof.lock();
    if dir.vi.lives() && dir.vi.nlink.load(SeqCst) > 0 { Ok(latched) } else { Err(Error::NotFound) }
}

/// May the caller take this name away? In a directory with the sticky bit only owners of the directory or the file, and root, may.
pub fn check_removal(dir: InodeRef<'_>, child: InodeRef<'_>, cred: &Cred) -> Result<()> {
    check(dir, cred, Permission::WRITE_EXECUTE)?;
    let sticky = dir.vi.kind_perm().is_some_and(|(_, perm)| perm & 0o1000 != 0);
    let owner = |inode: InodeRef<'_>| inode.vi.owner().0 == cred.uid;
    if !sticky || cred.is_root() || owner(dir) || owner(child) { Ok(()) } else { Err(Error::NotPermitted) }
}

/// The living inode that an entry means.
pub fn child_of<'c>(core: &'c Core, entry: &Entry) -> Result<InodeRef<'c>> {
    let child = core.inode(entry.child.ino)?;
    if child.vi.generation() == entry.child.generation { Ok(child) } else { Err(Error::Stale) }
}

/// A name record of `dir` at its next version.
pub fn record(
    dir: InodeRef<'_>,
    name: &[u8],
    child: InodeId,
    kind: FileKind,
    removed: bool,
    now: Time,
) -> Record {
    let version = Version(dir.vi.change() + 1);
    Record::Name { dir: dir.id(), removed, child, kind, name: NameBuf::new(name), version, mtime: now }
}

/// Prepares the log of a latched directory for `slots`, fenced.
pub fn prepare(core: &Core, guard: &mut LaneGuard<'_>, dir: InodeRef<'_>, slots: u32) -> Result<()> {
    if commit::prepare(core, guard, dir, slots)? {
        // PERSIST: a fresh log page is empty before it is linked; what was stored before (a new inode) is durable too.
        core.region.fence();
    }
    Ok(())
}

/// After a change of a directory is durable: its version and times.
pub fn note_change(dir: InodeRef<'_>, now: Time) {
    dir.vi.set_change(dir.vi.change() + 1);
    dir.vi.set_times(now, now);
}

/// Makes an inode with a name. `open`: it gets a handle at once.
pub fn make<'c>(
    core: &'c Core,
    guard: &mut LaneGuard<'_>,
    cred: &Cred,
    dir: InodeRef<'c>,
    name: Name<'_>,
    node: &NewNode<'_>,
    open: bool,
) -> Result<InodeRef<'c>> {
    if node.target.len() > TARGET_MAX_BYTES {
        return Err(Error::NameTooLong);
    }
    let latched = latch(dir)?;
    if table::find(core, dir, name.bytes())?.is_some() {
        return Err(Error::Exists);
    }
    check(dir, cred, Permission::WRITE_EXECUTE)?;
    if matches!(node.kind, FileKind::CharDevice | FileKind::BlockDevice) && !cred.is_root() {
        return Err(Error::NotPermitted);
    }
    if node.kind == FileKind::Directory && dir.vi.nlink.load(SeqCst) >= LINKS_MAX {
        return Err(Error::TooManyLinks);
    }
    let inode = life::make(core, guard, cred, dir, node)?;
    let named = match named_in(core, guard, dir, name, node, inode) {
        Ok(clean) => clean,
        Err(error) => {
            life::unmake(core, guard, inode);
            return Err(error);
        }
    };
    if open {
        crate::opens::raise(core, guard.id, inode, inode.vi.generation());
    }
    if named {
        clean::step(core, guard, dir);
    }
    drop(latched);
    Ok(inode)
}

/// Gives a new inode its name; true if a log page was closed.
fn named_in(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    dir: InodeRef<'_>,
    name: Name<'_>,
    node: &NewNode<'_>,
    inode: InodeRef<'_>,
) -> Result<bool> {
    if node.kind == FileKind::Symlink {
        write_target(core, guard, inode, node.target)?;
    }
    let now = crate::clock::exact();
    let record = record(dir, name.bytes(), inode.id(), node.kind, false, now);
    prepare(core, guard, dir, record.slots_max())?;
    let entry = table::prepare(core, guard.own, dir, name.bytes())?;
    let committed = match commit::commit(core, guard, dir, &[record]) {
        Ok(committed) => committed,
        Err(error) => {
            table::unprepare(core, guard.own, entry);
            return Err(error);
        }
    };
    let is_dir = node.kind == FileKind::Directory;
    inode.vi.nlink.store(if is_dir { 2 } else { 1 }, SeqCst);
    if is_dir {
        inode.vi.parent.store(dir.ino.0, SeqCst);
        dir.vi.nlink.fetch_add(1, SeqCst);
    }
    note_change(dir, now);
    let to = Named { child: inode.id(), kind: node.kind, version: Version(dir.vi.change()) };
    if let Some(change) = table::change(core, dir) {
        change.put(core, guard.own, name.bytes(), &to, entry);
    }
    Ok(committed.clean)
}

fn write_target(core: &Core, guard: &mut LaneGuard<'_>, inode: InodeRef<'_>, target: &[u8]) -> Result<()> {
    match core.locks {
        None => crate::file::heddle::write(core, guard, inode, At::Offset(0), target)?,
        Some(_) => crate::file::paper::write(core, guard, inode, At::Offset(0), target)?,
    };
    Ok(())
}

/// Gives an inode one more name.
pub fn link(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    cred: &Cred,
    inode: InodeRef<'_>,
    dir: InodeRef<'_>,
    name: Name<'_>,
) -> Result<()> {
    let (kind, _) = inode.vi.kind_perm().ok_or(Error::Stale)?;
    let _latched = latch(dir)?;
    if table::find(core, dir, name.bytes())?.is_some() {
        return Err(Error::Exists);
    }
    check(dir, cred, Permission::WRITE_EXECUTE)?;
    if kind == FileKind::Directory {
        return Err(Error::NotPermitted);
    }
    add_link(inode)?;
    let done = (|| {
        let now = crate::clock::exact();
        let record = record(dir, name.bytes(), inode.id(), kind, false, now);
        prepare(core, guard, dir, record.slots_max())?;
        let entry = table::prepare(core, guard.own, dir, name.bytes())?;
        match commit::commit(core, guard, dir, &[record]) {
            Ok(committed) => {
                note_change(dir, now);
                let to = Named { child: inode.id(), kind, version: Version(dir.vi.change()) };
                if let Some(change) = table::change(core, dir) {
                    change.put(core, guard.own, name.bytes(), &to, entry);
                }
                if committed.clean {
                    clean::step(core, guard, dir);
                }
                Ok(now)
            }
            Err(error) => {
                table::unprepare(core, guard.own, entry);
                Err(error)
            }
        }
    })();
    match done {
        Ok(now) => {
            inode.vi.set_times(inode.vi.times()[0], now);
            Ok(())
        }
        Err(error) => {
            life::drop_name(core, guard, inode, 1);
            Err(error)
        }
    }
}

/// Counts a name, unless the last one is gone already.
fn add_link(inode: InodeRef<'_>) -> Result<()> {
    // ORDERING: Relaxed throughout, guesses that the CAS checks.
    let mut now = inode.vi.nlink.load(Relaxed);
    loop {
        match now {
            0 => return Err(Error::NotFound),
            LINKS_MAX.. => return Err(Error::TooManyLinks),
            _ => {}
        }
        match inode.vi.nlink.compare_exchange(now, now + 1, SeqCst, Relaxed) {
            Ok(_) => return Ok(()),
            Err(other) => now = other,
        }
    }
}

/// Which names [`remove`] takes away.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Remove {
    /// All but those of directories.
    File,
    /// Those of empty directories.
    Directory,
}

/// Takes a name away.
pub fn remove(
    core: &Core,
    guard: &mut LaneGuard<'_>,
    cred: &Cred,
    dir: InodeRef<'_>,
    name: Name<'_>,
    what: Remove,
) -> Result<()> {
    let latched = latch(dir)?;
    let entry = table::find(core, dir, name.bytes())?.ok_or(Error::NotFound)?;
    let child = child_of(core, &entry)?;
    check_removal(dir, child, cred)?;
    let is_dir = entry.kind == FileKind::Directory;
    match (what, is_dir) {
        (Remove::File, true) => return Err(Error::IsDirectory),
        (Remove::Directory, false) => return Err(Error::NotDirectory),
        _ => {}
    }
    // Whoever makes a name in it holds its latch: empty and dead are one moment (D21).
    let child_latched = is_dir.then(|| child.vi.eof.lock());
    if is_dir && table::count(core, child) > 0 {
        return Err(Error::NotEmpty);
    }
    let now = crate::clock::exact();
    let record = record(dir, name.bytes(), entry.child, entry.kind, true, now);
    prepare(core, guard, dir, record.slots_max())?;
    let committed = commit::commit(core, guard, dir, &[record])?;
    note_change(dir, now);
    if let Some(change) = table::change(core, dir) {
        change.take(core, guard.own, name.bytes());
    }
    if committed.clean {
        clean::step(core, guard, dir);
    }
    if is_dir {
        dir.vi.nlink.fetch_sub(1, SeqCst);
    } else {
        child.vi.set_times(child.vi.times()[0], now);
    }
    // A dead directory's latch is let go before the directory ends: who waits for it finds it dead.
    if is_dir {
        child.vi.nlink.store(1, SeqCst);
    }
    drop(child_latched);
    drop(latched);
    life::drop_name(core, guard, child, 1);
    Ok(())
}
