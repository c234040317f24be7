//! Buckets that a lane of a dead thread or process still holds.

use super::{Table, alloc_entry, buckets_at, free_entry, key};
use crate::ids::{InodeId, Version};
use crate::names::bucket::{Bucket, Key, Named, Torn};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lane::LaneLocal;
use heddle_vfs::{FileKind, Result};
use std::collections::HashMap;

/// What the log says of a name: its version, and its meaning; `None`: it was removed.
pub type Logged = (Version, Option<(InodeId, FileKind)>);

/// Returns the inodes that are about to lose a name by changes whose buckets the dead lane holds unchanged. If a bucket was changing, the
/// lane's intent (`unlinking`) already names the inode that it loses.
pub fn losers(
    core: &Core,
    lane: u16,
    dir: InodeRef<'_>,
    changes: &[(Vec<u8>, Logged)],
) -> Result<Vec<InodeId>> {
    let Some(table) = Table::of(core, dir) else { return Ok(Vec::new()) };
    let mut out = Vec::new();
    for (name, (version, meaning)) in changes {
        let key = key(core, name);
        let bucket = &table.buckets[table.index(key.hash)];
        if bucket.word().holder() == lane && !bucket.word().changing() {
            out.extend(replaced(core, bucket, key, *version, *meaning)?);
        }
    }
    Ok(out)
}

/// Repairs and unlocks the buckets of a directory that a dead lane holds (`settle`). `changes`: the names
/// that the lane's transaction changes. `log`: reads all names from the directory's log; called only if a
/// bucket was in the middle of a change.
pub fn settle_dead(
    core: &Core,
    own: &mut LaneLocal,
    lane: u16,
    dir: InodeRef<'_>,
    changes: &[(Vec<u8>, Logged)],
    log: impl FnOnce() -> Result<HashMap<Vec<u8>, Logged>>,
) -> Result<()> {
    let Some(table) = Table::of(core, dir) else { return Ok(()) };
    let held: Vec<&Bucket> = table.buckets.iter().filter(|bucket| bucket.word().holder() == lane).collect();
    let mut logged = HashMap::new();
    if held.iter().any(|bucket| bucket.word().changing()) {
        logged = log()?;
    }
    let mut settled = Ok(());
    for bucket in held {
        let here = |name: &[u8]| std::ptr::eq(bucket, &table.buckets[table.index(key(core, name).hash)]);
        let broken = bucket.word().changing();
        let mut newest = bucket.word().version();
        bucket.begin_change();
        if broken {
            bucket.clear();
            // Readers that began before the change must notice that there was one.
            newest = newest.next();
        }
        let old = logged.iter().filter(|_| broken);
        let old =
            old.map(|(name, (version, meaning))| (name, *version, meaning.filter(|to| exists(core, *to))));
        let changes = changes.iter().map(|(name, (version, meaning))| (name, *version, *meaning));
        for (name, version, meaning) in old.chain(changes).filter(|(name, ..)| here(name)) {
            match settle_name(core, own, bucket, key(core, name), version, meaning) {
                Ok(()) => newest = newest.max(version),
                // Noted before others see the bucket without it: nobody changes anything from here on.
                Err(error) => settled = Err(core.damage(error.to_string())),
            }
        }
        // Whatever failed: others would wait for whoever leases this lane next.
        bucket.unlock(core, newest);
    }
    settled
}

/// Returns false if the log has a name without its inode: a power cut left only the name of a creation. Recovery left it out, too.
fn exists(core: &Core, (child, kind): (InodeId, FileKind)) -> bool {
    core.slot(child.ino).is_some_and(|inode| {
        inode.id() == child && inode.volatile.kind_perm().is_some_and(|(is, _)| is == kind)
    })
}

/// Returns the inode that has lost a name in the log itself (`in_place_removal`), while the name was in a bucket that the dead lane still
/// holds. `log`: as for [`settle_dead`].
pub fn removed_in_place(
    core: &Core,
    lane: u16,
    dir: InodeRef<'_>,
    log: impl FnOnce() -> Result<HashMap<Vec<u8>, Logged>>,
) -> Result<Option<InodeId>> {
    let Some(table) = Table::of(core, dir) else { return Ok(None) };
    let is_broken = |bucket: &Bucket| bucket.word().holder() == lane && bucket.word().changing();
    if !table.buckets.iter().any(is_broken) {
        return Ok(None);
    }
    for (name, (version, _)) in log()?.iter().filter(|(_, (_, meaning))| meaning.is_none()) {
        let key = key(core, name);
        let bucket = &table.buckets[table.index(key.hash)];
        let torn = |Torn| core.damage("the volatile table of a directory".to_owned());
        if is_broken(bucket)
            && let Some(entry) = bucket.find(core, key).map_err(torn)?
        {
            let named = entry.named().map_err(torn)?;
            // A record of its own that removes a name has the next version.
            if named.version == *version {
                return Ok(Some(named.child));
            }
        }
    }
    Ok(None)
}

/// Returns the inode that a name leads to, if the record is newer and replaces it by another one.
fn replaced(
    core: &Core,
    bucket: &Bucket,
    key: Key<'_>,
    version: Version,
    meaning: Option<(InodeId, FileKind)>,
) -> Result<Option<InodeId>> {
    let torn = |Torn| core.damage("the volatile table of a directory".to_owned());
    let entry = bucket.find(core, key).map_err(torn)?;
    let was = entry.map(|entry| entry.named()).transpose().map_err(torn)?;
    let was = was.filter(|was| was.version < version).map(|was| was.child);
    Ok(was.filter(|was| meaning.map(|(child, _)| child) != Some(*was)))
}

/// Makes a name mean what a record says, unless the name is newer.
fn settle_name(
    core: &Core,
    own: &mut LaneLocal,
    bucket: &Bucket,
    key: Key<'_>,
    version: Version,
    meaning: Option<(InodeId, FileKind)>,
) -> Result<()> {
    let torn = |Torn| core.damage("the volatile table of a directory".to_owned());
    let entry = bucket.find(core, key).map_err(torn)?;
    let was = entry.map(|entry| entry.named()).transpose().map_err(torn)?;
    if was.is_some_and(|was| was.version >= version) {
        return Ok(());
    }
    match (meaning, entry) {
        (Some((child, kind)), Some(entry)) => entry.set_meaning(&Named { child, kind, version }),
        (Some((child, kind)), None) => {
            let memory = alloc_entry(core, own, key.name)?;
            bucket.add(core, key, &Named { child, kind, version }, memory);
        }
        (None, Some(entry)) => free_entry(core, own, bucket.take(core, entry)),
        (None, None) => {}
    }
    Ok(())
}

/// Unlocks the buckets that the dead lane still holds of the table that it noted last (`Intent::table`). Buckets
/// of its own directories are repaired by now. If any are left, that memory has become another directory's, and
/// the lane died before it noticed.
pub fn unlock_reused_table(core: &Core, lane: u16, table_word: u64) {
    let buckets = buckets_at(core, table_word);
    buckets.into_iter().flatten().for_each(|bucket| bucket.unlock_dead(core, lane));
}

/// Locks as a caller whose table became another directory's between its look and its lock.
#[cfg(test)]
pub fn lock_reused_table(core: &Core, dir: InodeRef<'_>, word: u64) {
    super::announce(&Table {
        dir,
        generation: dir.volatile.generation(),
        word,
        buckets: buckets_at(core, word).unwrap(),
    });
    for bucket in buckets_at(core, word).unwrap() {
        bucket.lock(core, || true).ok().unwrap();
    }
}
