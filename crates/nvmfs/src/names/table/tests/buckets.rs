//! Single buckets of a table, and all of them: read while they change, listed, locked, killed, used again.

use super::{bits_of, emptied, key, listed, make, remove};
use crate::fs::NvmFs;
use crate::ids::{InodeId, Version};
use crate::names::bucket::{Bucket, HASH_BITS};
use crate::names::table::{self, Logged, Table};
use crate::state::core::Core;
use crate::state::inode::InodeRef;
use crate::state::lane::LaneLocal;
use crate::state::lease::enter;
use crate::variant::Variant;
use crate::volume::{MountOptions, Volume, format, mount};
use heddle_pmem::Region;
use heddle_vfs::short::Short;
use heddle_vfs::{Cred, Error, FileKind, FileSystem, Ino};
use std::collections::{BTreeSet, HashMap};
use std::sync::Barrier;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

fn root_of(core: &Core) -> InodeRef<'_> {
    core.inode(Ino::ROOT).unwrap()
}

fn buckets_of<'c>(core: &'c Core, dir: InodeRef<'c>) -> &'c [Bucket] {
    Table::of(core, dir).unwrap().buckets
}

#[test]
fn a_table_grows_with_the_third_entry_outside_a_line() {
    let volume = emptied(0);
    let fs = volume.fs();
    for n in 1..=9 {
        assert_eq!(bits_of(&fs), 0, "six entries in the line, and {n} names");
        make(&fs, &format!("{n}"));
    }
    assert_eq!(bits_of(&fs), 2);
    let (core, file) = (&fs.core, fs.find(Ino::ROOT, "5").unwrap().ino);
    assert_eq!(table::count(core, root_of(core)), 8, "two names for each of four buckets");
    assert_eq!(table::count(core, core.inode(file).unwrap()), 0, "no directory");
    for n in 1..=9 {
        assert!(fs.find(Ino::ROOT, &format!("{n}")).is_ok(), "{n}");
    }
    drop(fs);
    volume.unmount();
}

#[test]
fn a_mount_makes_tables_of_three_names_a_bucket() {
    let region = Region::anonymous(64 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let volume = mount(region.map_again().unwrap(), &MountOptions::default()).unwrap();
    let file = volume.fs().new_file(Ino::ROOT, "f");
    // A line has room for six; from then on as many buckets as names / 3, rounded up to a power of two.
    let tables = [(1, 0), (6, 0), (7, 2), (12, 2), (13, 3), (96, 5), (97, 6)];
    for (names, _) in tables {
        let dir = volume.fs().new_dir(Ino::ROOT, &format!("d{names}"));
        for n in 0..names {
            volume.fs().link(&Cred::root(), file.ino, dir, heddle_vfs::short::name(&format!("{n}"))).unwrap();
        }
    }
    volume.fs().release(file);
    volume.unmount();
    let volume = mount(region, &MountOptions::default()).unwrap();
    let fs = volume.fs();
    for (names, bits) in tables {
        let dir = fs.core.inode(fs.find(Ino::ROOT, &format!("d{names}")).unwrap().ino).unwrap();
        assert_eq!(Table::of(&fs.core, dir).unwrap().bits(), bits, "{names} names");
    }
    drop(fs);
    volume.unmount();
}

#[test]
fn the_buckets_of_a_removed_directory_serve_the_next() {
    let volume = emptied(0);
    let fs = volume.fs();
    let grown = |text: &str| {
        let dir = fs.new_dir(Ino::ROOT, text);
        (0..9).for_each(|n| fs.release(fs.new_file(dir, &format!("{n}"))));
        (dir, buckets_of(&fs.core, fs.core.inode(dir).unwrap()).as_ptr())
    };
    let ((first, place), (_, other)) = (grown("first"), grown("other"));
    (0..9).for_each(|n| fs.remove(first, &format!("{n}")).unwrap());
    fs.rmdir(&Cred::root(), Ino::ROOT, heddle_vfs::short::name("first")).unwrap();
    let (_, again) = grown("next");
    assert!(again == place && other != place, "four buckets, in the arena for ever");
    let (_, fresh) = grown("last");
    assert!(fresh != place && fresh != other, "there was one array to use again");
    let small = fs.core.root().buckets.heads[0].load(SeqCst);
    assert_eq!(small, 0, "the one bucket of a small directory stays in its inode");
    drop(fs);
    volume.unmount();
}

#[test]
fn the_memory_of_removed_entries_serves_new_ones() {
    let volume = emptied(0);
    let core = volume.fs().core;
    let guard = enter(&core).unwrap();
    let take = |own: &mut LaneLocal| -> Vec<_> {
        (0..50).map(|_| table::alloc_entry(&core, own, b"of eight words").unwrap()).collect()
    };
    let places = |entries: &[table::EntryMemory]| -> BTreeSet<u64> {
        entries.iter().map(|memory| memory.0.raw()).collect()
    };
    let first = take(guard.own);
    let used = places(&first);
    first.into_iter().for_each(|memory| table::free_entry(&core, guard.own, memory));
    let again = take(guard.own);
    assert_eq!((used.len(), &places(&again)), (50, &used));
    drop(guard);
    volume.abandon();
}

#[test]
fn a_directory_locked_whole_is_let_go_or_killed_whole() {
    let volume = emptied(2);
    let fs = volume.fs();
    make(&fs, "f");
    let core = &fs.core;
    let (dir, guard) = (root_of(core), enter(core).unwrap());
    let buckets = buckets_of(core, dir);
    let versions = || buckets.iter().map(|bucket| bucket.word().version().0).collect::<Vec<_>>();
    let holders = || buckets.iter().map(|bucket| bucket.word().holder()).collect::<Vec<_>>();
    let before = versions();
    let whole = table::lock_whole(core, dir).unwrap();
    assert!(!whole.is_empty());
    assert_eq!(holders(), [guard.id; 4]);
    drop(whole);
    assert_eq!((holders(), versions()), (vec![0; 4], before));
    let key = key(core, b"f");
    assert!(table::find(core, dir, key).unwrap().is_some());
    buckets.iter().for_each(Bucket::clear);
    let whole = table::lock_whole(core, dir).unwrap();
    assert!(whole.is_empty());
    whole.kill();
    assert!(buckets.iter().all(|bucket| bucket.word().dead()));
    assert_eq!(table::find(core, dir, key), Ok(None), "a dead directory has no names");
    assert!(table::glance(core, dir, key).is_none());
    assert_eq!(table::lock(core, dir, key.hash).err(), Some(Error::NotFound));
    assert_eq!(table::lock_whole(core, dir).err(), Some(Error::NotFound));
    drop(guard);
    volume.abandon();
}

/// A file of the papers' variants keeps its locks where a directory has its table.
#[test]
fn what_is_no_directory_has_no_table() {
    for variant in Variant::ALL {
        let region = Region::anonymous(8 << 20).unwrap();
        format(&region, variant).unwrap();
        let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
        let volume = mount(region, &options).unwrap();
        let fs = volume.fs();
        let (file, dir) = (fs.new_file(Ino::ROOT, "f"), fs.new_dir(Ino::ROOT, "d"));
        let core = &fs.core;
        let [file_inode, dir_inode] = [file.ino, dir].map(|ino| core.inode(ino).unwrap());
        let wanted = key(core, b"x");
        let find = |inode| table::find(core, inode, wanted).map(drop);
        assert_eq!((find(file_inode), find(dir_inode)), (Err(Error::Stale), Ok(())), "{variant:?}");
        fs.rmdir(&Cred::root(), Ino::ROOT, heddle_vfs::short::name("d")).unwrap();
        assert_eq!(find(dir_inode), Err(Error::Stale), "{variant:?}: it is dead");
        fs.release(file);
        volume.unmount();
    }
}

/// A client can scribble over the word.
#[test]
fn no_word_leads_to_a_table_larger_than_the_image_needs() {
    let region = Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
    let volume = mount(region, &options).unwrap();
    let core = volume.fs().core;
    let home = core.arena.offset_of(&root_of(&core).volatile.home).raw();
    let len = |bits| table::buckets_at(&core, home | bits).map(<[Bucket]>::len);
    // 131,072 lines for as many names: a third of that, times four, in whole powers of two.
    let lens = [0, 2, 17, 18, 19, 40].map(len);
    assert_eq!(lens, [Some(1), Some(4), Some(1 << 17), None, None, None]);
    volume.unmount();
}

/// An entry without a record, of inode 77.
fn add_to(core: &Core, own: &mut LaneLocal, bucket: &Bucket, name: &[u8]) {
    let child = InodeId { ino: Ino(77), generation: 7 };
    let to = table::Named { child, kind: FileKind::Regular, version: Version(1) };
    let memory = table::alloc_entry(core, own, name).unwrap();
    bucket.add(core, key(core, name), &to, memory);
}

#[test]
fn a_dead_lane_kills_a_directory_that_it_holds_whole_and_empty() {
    let volume = emptied(2);
    let core = volume.fs().core;
    let (dir, guard) = (root_of(&core), enter(&core).unwrap());
    let buckets = buckets_of(&core, dir);
    let dead = || [0, 1, 2, 3].map(|n: usize| buckets[n].word().dead());
    let lock = |n: usize| _ = buckets[n].lock(&core, || true).unwrap();
    [0, 1].into_iter().for_each(lock);
    buckets[2].kill(&core);
    assert!(!table::kill_dead(&core, guard.id, dir), "one is free");
    assert_eq!(dead(), [false, false, true, false]);
    lock(3);
    assert!(!table::kill_dead(&core, guard.id + 1, dir), "another lane's");
    add_to(&core, guard.own, &buckets[1], b"f");
    assert!(!table::kill_dead(&core, guard.id, dir), "it has a name");
    assert_eq!(dead(), [false, false, true, false]);
    buckets[1].clear();
    assert!(table::kill_dead(&core, guard.id, dir));
    assert_eq!(dead(), [true; 4]);
    drop(guard);
    volume.abandon();
}

fn with_one_name() -> (Volume, NvmFs, Ino) {
    let volume = emptied(0);
    let fs = volume.fs();
    make(&fs, "f");
    let ino = fs.find(Ino::ROOT, "f").unwrap().ino;
    (volume, fs, ino)
}

#[test]
fn a_reader_of_a_changing_bucket_gets_the_name_in_the_end() {
    let (volume, fs, ino) = with_one_name();
    let core = &fs.core;
    let (dir, guard) = (root_of(core), enter(core).unwrap());
    let (bucket, wanted) = (&dir.volatile.home, key(core, b"f"));
    let found = || table::find(core, dir, wanted).map(|named| named.map(|named| named.child.ino));
    let version = bucket.word().version();
    bucket.begin_change();
    assert!(table::glance(core, dir, wanted).is_none(), "it is changing");
    // It takes the lock, which nobody holds.
    assert_eq!(found(), Ok(Some(ino)));
    bucket.lock(core, || true).unwrap();
    bucket.begin_change();
    let start = Barrier::new(2);
    std::thread::scope(|scope| {
        // A thread without a lane reads without a lock, for as long as it takes.
        let reader = scope.spawn(|| {
            start.wait();
            found()
        });
        start.wait();
        std::thread::sleep(Duration::from_millis(5));
        bucket.unlock(core, version);
        assert_eq!(reader.join().unwrap(), Ok(Some(ino)));
    });
    drop(guard);
    volume.abandon();
}

/// The slot leads beyond the arena.
#[test]
fn a_bucket_that_stays_torn_is_damage() {
    let (volume, fs, _) = with_one_name();
    let core = &fs.core;
    let (dir, guard) = (root_of(core), enter(core).unwrap());
    let wanted = key(core, b"none");
    let slot = wanted.hash >> (HASH_BITS - 26) << 38 | ((1 << 38) - 1);
    dir.volatile.home.slots[0].store(slot, SeqCst);
    let found = || table::find(core, dir, wanted).map(drop);
    assert!(matches!(found(), Err(Error::Corrupt(_))), "under the lock");
    let without_a_lane = std::thread::scope(|scope| scope.spawn(found).join().unwrap());
    assert!(matches!(without_a_lane, Err(Error::Corrupt(_))), "{without_a_lane:?}");
    drop(guard);
    volume.abandon();
}

#[test]
fn buckets_read_at_once_are_unchanged_if_each_of_them_is() {
    let volume = emptied(4);
    let core = volume.fs().core;
    let table = Table::of(&core, root_of(&core)).unwrap();
    let words: Vec<_> = table.buckets[2..9].iter().map(Bucket::word).collect();
    assert!(table::list::unchanged(&table, 2, &words));
    for (changed, is_same) in [(1, true), (2, false), (5, false), (8, false), (9, true)] {
        let bucket = &table.buckets[changed];
        let before = bucket.word();
        bucket.begin_change();
        assert_eq!(table::list::unchanged(&table, 2, &words), is_same, "bucket {changed}");
        bucket.revive(before.version());
    }
    assert!(table::list::unchanged(&table, 2, &words));
    let grown = Table { word: table.word ^ 1, ..table };
    assert!(!table::list::unchanged(&grown, 2, &words), "the directory has another table");
    let reborn = Table { generation: table.generation + 1, ..table };
    assert!(!table::list::unchanged(&reborn, 2, &words), "it is another directory");
    volume.abandon();
}

/// In a slot their links are ordered by where the entries lie.
#[test]
fn a_listing_orders_names_whose_links_agree_by_hash() {
    let volume = emptied(0);
    let fs = volume.fs();
    let hash = |name: &str| key(&fs.core, name.as_bytes()).hash;
    let mut seen = HashMap::new();
    let [one, other] = (0..)
        .map(|n| format!("like {n}"))
        .find_map(|name| Some([seen.insert(hash(&name) >> (HASH_BITS - 26), name.clone())?, name]))
        .unwrap();
    let [low, high] = if hash(&one) < hash(&other) { [one, other] } else { [other, one] };
    for order in [[&low, &high], [&high, &low]] {
        order.into_iter().for_each(|name| make(&fs, name));
        let wanted = [&low, &high].map(|name| (hash(name) + 1, name.as_bytes().to_vec()));
        let dir = root_of(&fs.core);
        assert_eq!(listed(&fs, dir, 0, 1 << 20), wanted);
        assert_eq!(listed(&fs, dir, hash(&low) + 1, 1 << 20), wanted[1..]);
        order.into_iter().for_each(|name| remove(&fs, name));
    }
    drop(fs);
    volume.unmount();
}

#[test]
fn a_change_is_pending_while_its_held_bucket_is_older() {
    let (volume, fs, _) = with_one_name();
    let core = &fs.core;
    let (dir, guard) = (root_of(core), enter(core).unwrap());
    let bucket = &dir.volatile.home;
    let now = table::find(core, dir, key(core, b"f")).unwrap().unwrap().version;
    assert_eq!(bucket.word().version(), now);
    let (before, later) = (Version(now.0 - 1), now.next());
    let is_pending = |lane, version| table::is_pending(core, lane, dir, b"f", version);
    assert!(!is_pending(guard.id, later), "nobody holds it");
    bucket.lock(core, || true).unwrap();
    let said = [before, now, later].map(|version| is_pending(guard.id, version));
    assert_eq!((said, is_pending(guard.id + 1, later)), ([false, false, true], false));
    bucket.unlock(core, now);
    let may_count =
        |name: &[u8]| [before, now, later].map(|version| table::may_count(core, dir, name, version));
    assert_eq!((may_count(b"f"), may_count(b"gone")), ([false, true, true], [false, false, true]));
    bucket.kill(core);
    assert_eq!(may_count(b"f"), [false; 3], "the directory is dead");
    drop(guard);
    volume.abandon();
}

#[test]
fn a_held_bucket_loses_a_name_to_newer_records_of_others() {
    let (volume, fs, ino) = with_one_name();
    let core = &fs.core;
    let (dir, guard) = (root_of(core), enter(core).unwrap());
    let bucket = &dir.volatile.home;
    let named = table::find(core, dir, key(core, b"f")).unwrap().unwrap();
    let (now, later) = (named.version, named.version.next());
    let same = Some((named.child, FileKind::Regular));
    let other = Some((InodeId { generation: named.child.generation + 1, ..named.child }, FileKind::Regular));
    let lost = |lane, logged: Logged| {
        let losers = table::losers(core, lane, dir, &[(b"f".to_vec(), logged)]).unwrap();
        losers.into_iter().map(|id| id.ino).collect::<Vec<_>>()
    };
    assert!(lost(guard.id, (later, None)).is_empty(), "nobody holds it");
    let removed = |log: Logged| {
        let log = || Ok(HashMap::from([(b"f".to_vec(), log)]));
        table::removed_in_place(core, guard.id, dir, log).unwrap()
    };
    bucket.lock(core, || true).unwrap();
    assert_eq!((lost(guard.id, (later, None)), lost(guard.id, (later, other))), (vec![ino], vec![ino]));
    for kept in [(later, same), (now, None), (now, other), (Version(now.0 - 1), None)] {
        assert!(lost(guard.id, kept).is_empty(), "{kept:?}");
    }
    assert!(lost(guard.id + 1, (later, None)).is_empty(), "another lane's");
    assert_eq!(removed((now, None)), None, "no change has begun");
    bucket.begin_change();
    assert!(lost(guard.id, (later, None)).is_empty(), "the intent names the inode");
    assert_eq!(removed((now, None)), Some(named.child), "the record itself says so");
    assert_eq!((removed((later, None)), removed((now, same))), (None, None));
    let of_another = table::removed_in_place(core, guard.id + 1, dir, || panic!("it holds nothing"));
    assert_eq!(of_another.unwrap(), None);
    drop(guard);
    volume.abandon();
}
