//! When a directory's table grows.

use super::{CROWD, SLOTS, Table, key, list};
use crate::fs::NvmFs;
use crate::inode::InodeRef;
use crate::names::bucket::HASH_BITS;
use crate::variant::Variant;
use crate::volume::{MountOptions, format, mount};
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

fn bits(fs: &NvmFs) -> u32 {
    Table::of(&fs.core, fs.core.inode(Ino::ROOT).unwrap()).unwrap().bits()
}

/// One bucket in five of a large directory drew a name too many, and the table grew to four times what listing can read fast.
#[test]
fn a_crowded_bucket_among_empty_ones_makes_no_table_grow_and_full_ones_do() {
    let region = Region::anonymous(64 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let volume = mount(region, &MountOptions::default()).unwrap();
    let fs = volume.fs();
    let first: Vec<String> = (0..)
        .map(|i| format!("first {i}"))
        .take_while(|name| {
            let small = bits(&fs) < 4;
            if small {
                make(&fs, name);
            }
            small
        })
        .collect();
    first.iter().for_each(|name| remove(&fs, name));
    assert_eq!(bits(&fs), 4, "a table keeps its size");

    let index = |name: &str| key(&fs.core, name.as_bytes()).hash >> (HASH_BITS - 4);
    let crowd: Vec<String> =
        (0..).map(|i| format!("crowd {i}")).filter(|name| index(name) == 5).take(SLOTS + 2 * CROWD).collect();
    crowd.iter().for_each(|name| make(&fs, name));
    assert_eq!(bits(&fs), 4, "one bucket was crowded");

    (0..200).for_each(|i| make(&fs, &format!("even {i}")));
    assert!(bits(&fs) > 4, "all buckets were full");
    drop(fs);
    volume.unmount();
}

/// From every place on, also one within a bucket, and with names of all lengths side by side.
/// What one call lists: cookies and names.
fn listed(fs: &NvmFs, dir: InodeRef<'_>, from: u64, room: usize) -> Vec<(u64, Vec<u8>)> {
    let mut listing = Listing::with_room(room);
    list(&fs.core, dir, from, &mut listing).unwrap();
    listing.entries().map(|entry| (entry.next.0, entry.name.bytes().to_vec())).collect()
}

#[test]
fn a_directory_is_listed_from_any_place_on_in_the_order_of_the_hash() {
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
