//! Look-ups in a directory's table, which take no lock, against the holder of its latch.
//!
//! Entries are not taken out here: their memory may be reused at once, and a late reader's load of it, which the sequence makes
//! harmless, is a race to loom as it is to the language.

use super::rig::{Rig, Seat, model, spawn};
use crate::core::Core;
use crate::ids::{InodeId, Version};
use crate::inode::{Birth, InodeRef};
use crate::names::table::{self, Named};
use heddle_vfs::{FileKind, Ino, Time};

const DIR: Ino = Ino(1);

fn dir(core: &Core) -> InodeRef<'_> {
    core.slot(DIR).unwrap()
}

/// A directory without names.
fn ready() -> (Rig, Seat, Seat) {
    let rig = Rig::new();
    let mut changer = rig.seat(1);
    changer.with(|core, guard, _| {
        let kind = FileKind::Directory;
        dir(core).vi.be_born(&Birth {
            generation: 1,
            kind,
            perm: 0o755,
            uid: 0,
            gid: 0,
            rdev: 0,
            now: Time(1),
        });
        table::make(core, guard.own, dir(core)).unwrap();
    });
    let reader = rig.seat(2);
    (rig, changer, reader)
}

/// Makes all names mean number `n`, in one change.
fn put(seat: &mut Seat, names: &[&str], n: u64) {
    seat.with(|core, guard, _| {
        let _latched = dir(core).vi.eof.lock();
        let child = InodeId { ino: Ino(n), generation: n };
        let to = Named { child, kind: FileKind::Regular, version: Version(n) };
        let mut take = |name: &&str| table::prepare(core, guard.own, dir(core), name.as_bytes()).unwrap();
        let prepared: Vec<_> = names.iter().map(&mut take).collect();
        let changing = table::change(core, dir(core)).unwrap();
        for (name, prepared) in names.iter().zip(prepared) {
            changing.put(core, guard.own, name.as_bytes(), &to, prepared);
        }
    });
}

/// What a name means; its words agree.
fn find(seat: &mut Seat, name: &str) -> Option<u64> {
    seat.with(|core, _, _| {
        let entry = table::find(core, dir(core), name.as_bytes()).unwrap()?;
        let seen = (entry.child.ino.0, entry.child.generation, entry.version.0);
        assert!(seen.0 == seen.1 && seen.1 == seen.2, "half of an entry: {seen:?}");
        Some(seen.0)
    })
}

#[test]
fn an_entry_is_read_whole_while_its_meaning_changes() {
    model(2, || {
        let (_rig, mut changer, mut reader) = ready();
        put(&mut changer, &["a"], 5);
        let thread = spawn(move || put(&mut changer, &["a"], 6));
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
        let thread = spawn(move || put(&mut changer, &["a"], 5));
        let seen = find(&mut reader, "a");
        assert!(seen.is_none() || seen == Some(5), "{seen:?}");
        thread.join().unwrap();
        assert_eq!(find(&mut reader, "a"), Some(5));
    });
}

#[test]
fn names_that_change_at_once_are_listed_so() {
    model(2, || {
        let (_rig, mut changer, mut reader) = ready();
        put(&mut changer, &["a", "b"], 5);
        let thread = spawn(move || put(&mut changer, &["a", "b"], 6));
        let seen = reader.with(|core, _, _| table::list(core, dir(core), 0, 9).unwrap());
        let seen: Vec<u64> = seen.iter().map(|entry| entry.version.0).collect();
        assert!(seen == [5, 5] || seen == [6, 6], "{seen:?}");
        thread.join().unwrap();
    });
}
