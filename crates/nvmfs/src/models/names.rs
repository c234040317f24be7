//! A directory's table: look-ups without a lock, against the holder of a bucket.
//!
//! No entry is removed here: its memory may be reused at once. A late reader's load of it is harmless because
//! of the bucket's word, but a data race for loom and for the language.

use super::fixture::{Fixture, Worker, model, spawn};
use crate::ids::{InodeId, Version};
use crate::names::bucket::Named;
use crate::names::table::{self, Crowded};
use crate::state::inode::Birth;
use crate::state::operation::Durable;
use heddle_vfs::{FileKind, Ino, Time};

pub const DIR: Ino = Ino(1);

/// Makes a directory with room for so many names.
pub fn make_dir(worker: &mut Worker, ino: Ino, names: usize) {
    worker.with(|core, guard, _| {
        let dir = core.slot(ino).unwrap();
        let kind = FileKind::Directory;
        dir.volatile.be_born(&Birth {
            generation: 1,
            kind,
            perm: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            now: Time(1),
        });
        table::make(core, guard.own, dir, names, Version(0)).unwrap();
    });
}

/// A directory without names, of one bucket.
fn ready() -> (Fixture, Worker, Worker) {
    let fixture = Fixture::new();
    let mut changer = fixture.worker(1);
    make_dir(&mut changer, DIR, 1);
    let other = fixture.worker(2);
    (fixture, changer, other)
}

/// Changes the meaning of a name to number `n`, with the bucket's next version.
fn put(worker: &mut Worker, name: &str, n: u64) -> Version {
    put_in(worker, DIR, name, n).unwrap().0
}

/// As `put`, in any directory; `None`: it is dead. Also returns the table if it is crowded.
pub fn put_in(worker: &mut Worker, dir: Ino, name: &str, n: u64) -> Option<(Version, Option<Crowded>)> {
    worker.with(|core, guard, _| {
        let key = table::key(core, name.as_bytes());
        let memory = table::alloc_entry(core, guard.own, name.as_bytes()).unwrap();
        let mut locked = match table::lock(core, core.slot(dir).unwrap(), key.hash) {
            Ok(locked) => locked,
            Err(_) => {
                table::free_entry(core, guard.own, memory);
                return None;
            }
        };
        let version = locked.version().next();
        locked.begin_change(&Durable::fenced(&core.region, || ()).unwrap(), version);
        // The version is `n` here, so that a reader can check whether an entry's words belong together.
        let to = Named {
            child: InodeId { ino: Ino(n), generation: n },
            kind: FileKind::Regular,
            version: Version(n),
        };
        let crowded = locked.put(guard.own, key, &to, memory).unwrap();
        Some((version, crowded))
    })
}

/// The number that a name means; asserts that its words belong together.
fn find(worker: &mut Worker, name: &str) -> Option<u64> {
    find_in(worker, DIR, name)
}

/// As `find`, in any directory.
pub fn find_in(worker: &mut Worker, dir: Ino, name: &str) -> Option<u64> {
    worker.with(|core, _, _| {
        let dir = core.slot(dir).unwrap();
        let named = table::find(core, dir, table::key(core, name.as_bytes())).unwrap()?;
        let seen = (named.child.ino.0, named.child.generation, named.version.0);
        assert!(seen.0 == seen.1 && seen.1 == seen.2, "half of an entry: {seen:?}");
        Some(seen.0)
    })
}

#[test]
fn an_entry_is_read_whole_while_its_meaning_changes() {
    model(2, || {
        let (_rig, mut changer, mut reader) = ready();
        put(&mut changer, "a", 5);
        let thread = spawn(move || {
            put(&mut changer, "a", 6);
        });
        let seen = find(&mut reader, "a");
        assert!(seen == Some(5) || seen == Some(6), "{seen:?}");
        thread.join().unwrap();
        assert_eq!(find(&mut reader, "a"), Some(6));
    });
}

#[test]
fn a_new_name_is_found_whole_or_not_at_all() {
    model(2, || {
        let (_rig, mut changer, mut reader) = ready();
        let thread = spawn(move || {
            put(&mut changer, "a", 5);
        });
        let seen = find(&mut reader, "a");
        assert!(seen.is_none() || seen == Some(5), "{seen:?}");
        thread.join().unwrap();
        assert_eq!(find(&mut reader, "a"), Some(5));
    });
}

#[test]
fn two_changers_of_one_bucket_both_leave_their_names() {
    model(2, || {
        let (_rig, mut first, mut second) = ready();
        let thread = spawn(move || put(&mut second, "b", 6));
        let mine = put(&mut first, "a", 5);
        assert_ne!(mine, thread.join().unwrap());
        assert_eq!((find(&mut first, "a"), find(&mut first, "b")), (Some(5), Some(6)));
    });
}
