//! When a directory's table grows.

mod buckets;

use super::{CROWD, SLOTS, Table, key, list};
use crate::fs::NvmFs;
use crate::names::bucket::HASH_BITS;
use crate::state::inode::InodeRef;
use crate::variant::Variant;
use crate::volume::{MountOptions, Volume, format, mount};
use heddle_pmem::Region;
use heddle_vfs::{Cred, FileSystem, Ino, Listing, Name, OpenFlags};

fn make(fs: &NvmFs, name: &str) {
    let name = Name::new(name.as_bytes()).unwrap();
    let (_, file) = fs.create(&Cred::root(), Ino::ROOT, name, 0o644, OpenFlags::READ_WRITE).unwrap();
    fs.release(file);
}

fn remove(fs: &NvmFs, name: &str) {
    fs.unlink(&Cred::root(), Ino::ROOT, Name::new(name.as_bytes()).unwrap()).unwrap();
}

fn bits_of(fs: &NvmFs) -> u32 {
    Table::of(&fs.core, fs.core.inode(Ino::ROOT).unwrap()).unwrap().bits()
}

/// An empty image whose root has a table of 2^`bits` buckets, and no names.
fn emptied(bits: u32) -> Volume {
    let region = Region::anonymous(64 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let volume = mount(region, &MountOptions::default()).unwrap();
    let fs = volume.fs();
    let mut names = Vec::new();
    while bits_of(&fs) < bits {
        names.push(format!("first {}", names.len()));
        make(&fs, names.last().unwrap());
    }
    names.iter().for_each(|name| remove(&fs, name));
    assert_eq!(bits_of(&fs), bits, "a table keeps its size");
    volume
}

/// Names whose buckets, of 2^`bits`, are wanted.
fn names_in(fs: &NvmFs, bits: u32, wanted: impl Fn(u64) -> bool) -> impl Iterator<Item = String> {
    (0..)
        .map(|i| format!("name {i}"))
        .filter(move |name| wanted(key(&fs.core, name.as_bytes()).hash >> (HASH_BITS - bits)))
}

/// One bucket in five of a large directory drew a name too many, and the table grew to four times what listing can read fast.
#[test]
fn a_table_grows_for_full_buckets_not_for_one_crowded_bucket() {
    for crowded in [0, 5, 15] {
        let volume = emptied(4);
        let fs = volume.fs();
        // Two names a bucket are less than the three of a full table.
        for bucket in (0..16).filter(|bucket| *bucket != crowded) {
            names_in(&fs, 4, |index| index == bucket).take(2).for_each(|name| make(&fs, &name));
        }
        names_in(&fs, 4, |index| index == crowded).take(SLOTS + 2 * CROWD).for_each(|name| make(&fs, &name));
        assert_eq!(bits_of(&fs), 4, "one bucket was crowded");

        (0..200).for_each(|i| make(&fs, &format!("even {i}")));
        assert!(bits_of(&fs) > 4, "all buckets were full");
        drop(fs);
        volume.unmount();
    }
}

/// The same 32 buckets decided for every crowded one: one table in 200 had four names a bucket, and was no larger.
#[test]
fn a_table_that_is_full_but_for_every_other_bucket_grows() {
    for full in 0..2 {
        let volume = emptied(6);
        let fs = volume.fs();
        // Twice what their lines hold: with just as many it is chance whether one of them is crowded.
        names_in(&fs, 6, |index| index % 2 == full).take(2 * 32 * SLOTS).for_each(|name| make(&fs, &name));
        assert!(bits_of(&fs) > 6, "those of {full} and every other were full");
        drop(fs);
        volume.unmount();
    }
}

/// `HEDDLE_TABLES` directories. Below 1,024 buckets chance weighs more, and an overfull table less.
#[test]
fn no_table_of_many_buckets_holds_four_names_each() {
    let tables = std::env::var("HEDDLE_TABLES").map_or(4, |text| text.parse().unwrap());
    let full = 4 << 10;
    let mut grown_at: Vec<usize> = (0..tables)
        .map(|_| {
            let volume = emptied(0);
            let fs = volume.fs();
            let bits_with = |names| {
                make(&fs, &format!("name {names}"));
                bits_of(&fs)
            };
            let names = (1..=full).find(|names| bits_with(*names) > 10);
            drop(fs);
            volume.unmount();
            names.expect("no growth with four names a bucket")
        })
        .collect();
    grown_at.sort_unstable();
    let [least, most] = [grown_at[0], grown_at[tables - 1]];
    println!("{tables} tables of 1,024 buckets grew with {least} to {most} names");
    assert!(least > full / 2, "a table of {least} names is not full");
}

/// What one call lists: cookies and names.
fn listed(fs: &NvmFs, dir: InodeRef<'_>, from: u64, room: usize) -> Vec<(u64, Vec<u8>)> {
    let mut listing = Listing::with_room(room);
    list(&fs.core, dir, from, &mut listing).unwrap();
    listing.entries().map(|entry| (entry.next.0, entry.name.bytes().to_vec())).collect()
}

/// From every place on, also one within a bucket, and with names of all lengths side by side.
#[test]
fn a_listing_resumes_anywhere_in_hash_order() {
    let region = Region::anonymous(64 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let volume = mount(region, &MountOptions::default()).unwrap();
    let fs = volume.fs();
    let names: Vec<String> = (0..600).map(|i| format!("{i:0>width$}", width = 1 + i % 255)).collect();
    names.iter().for_each(|name| make(&fs, name));
    let mut expected: Vec<(u64, &[u8])> =
        names.iter().map(|name| (key(&fs.core, name.as_bytes()).hash, name.as_bytes())).collect();
    expected.sort_unstable();

    let dir = fs.core.inode(Ino::ROOT).unwrap();
    let mut places: Vec<u64> =
        expected.iter().flat_map(|(hash, _)| [*hash, hash + 1]).chain([0, (1 << HASH_BITS) - 1]).collect();
    places.dedup();
    for from in places {
        let listed = listed(&fs, dir, from, 1 << 20);
        let listed = listed.iter().map(|(next, name)| (next - 1, &name[..]));
        let rest = expected.iter().filter(|(hash, _)| *hash >= from).copied();
        assert!(listed.eq(rest), "from {from:#x}");
    }
    for room in [0, 300, 1000] {
        let (mut at, mut all) = (0, Vec::new());
        while let pieces = listed(&fs, dir, at, room)
            && let Some((next, _)) = pieces.last()
        {
            at = *next;
            all.extend(pieces);
        }
        let all = all.iter().map(|(next, name)| (next - 1, &name[..]));
        assert!(all.eq(expected.iter().copied()), "with room for {room} bytes");
    }
    drop(fs);
    volume.unmount();
}

/// A thread looked at a bucket of one directory, whose table grew then; the bucket became another's, of the same version; the thread locked
/// it, and was killed before it looked again.
#[test]
fn a_bucket_that_a_late_locker_died_with_is_unlocked() {
    let volume = emptied(2);
    let fs = volume.fs();
    let name = Name::new(b"other").unwrap();
    let node =
        heddle_vfs::NewNode { kind: heddle_vfs::FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    let other = fs.make(&Cred::root(), Ino::ROOT, name, node).unwrap().ino;
    // SAFETY: the child locks a bucket and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        let guard = crate::state::lease::enter(&fs.core).unwrap();
        let late = Table::of(&fs.core, fs.core.inode(other).unwrap()).unwrap();
        super::announce(&Table { dir: fs.core.inode(Ino::ROOT).unwrap(), ..late });
        let locked = late.buckets[0].lock(&fs.core, || true).is_ok();
        std::mem::forget(guard);
        // SAFETY: ends this process.
        unsafe { libc::_exit(i32::from(!locked)) };
    }
    let mut status = 0;
    // SAFETY: room for the answer.
    assert_eq!(unsafe { libc::waitpid(pid, &mut status, 0) }, pid);
    assert_eq!(status, 0);
    crate::upkeep::settle::sweep(&fs.core);
    let bucket = &Table::of(&fs.core, fs.core.inode(other).unwrap()).unwrap().buckets[0];
    assert_eq!(bucket.word().holder(), 0, "nobody can ever change that directory");
    drop(fs);
    volume.unmount();
}
