//! What a mount reports, and what it leaves of slots that nothing names.

use super::*;
use crate::state::lease;
use crate::variant::Variant;
use crate::volume::{MountOptions, Volume, format, mount};
use heddle_pmem::Region;
use heddle_vfs::short::{Short, root};
use heddle_vfs::{FileSystem, OpenFlags};
use std::sync::Mutex;

fn mounted(region: &Region) -> Volume {
    let options = MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() };
    mount(region.map_again().unwrap(), &options).unwrap()
}

fn made(variant: Variant) -> Region {
    let region = Region::anonymous(8 << 20).unwrap();
    format(&region, variant).unwrap();
    region
}

fn unmount(volume: Volume) {
    lease::leave(&volume.fs().core);
    volume.unmount();
}

#[test]
fn a_mount_after_a_clean_one_finds_nothing_torn() {
    for variant in Variant::ALL {
        let region = made(variant);
        let volume = mounted(&region);
        let fs = volume.fs();
        let dir = fs.new_dir(Ino::ROOT, "d");
        let file = fs.new_file(dir, "f");
        fs.write(&file, 0, &[1; 10_000]).unwrap();
        fs.release(file);
        drop(fs);
        unmount(volume);
        let volume = mounted(&region);
        let found = Report { inodes: 3, torn_slots: 0, orphans: 0, names_dropped: 0 };
        assert_eq!(volume.report, found, "{}", variant.name());
        unmount(volume);
    }
}

#[test]
fn a_slot_without_a_name_is_blank_after_the_next_mount() {
    let region = made(Variant::Heddle);
    let volume = mounted(&region);
    let fs = volume.fs();
    let (_, file) = fs.tmpfile(&root(), Ino::ROOT, 0o600, OpenFlags::READ_WRITE, true).unwrap();
    let mut unused = (2..CHUNK_INODES).filter(|ino| *ino != file.ino.0);
    let [torn, pointers] = [unused.next().unwrap(), unused.next().unwrap()];
    let block = fs.core.chunk_block(Ino::ROOT);
    let words = |ino: u64| (0..16).map(move |word| inode_pos(block, ino).plus(word * 8));
    assert!(words(file.ino.0).skip(8).all(|at| region.load_u64(at) == 0), "it has no log");
    lease::leave(&fs.core);
    drop(fs);
    volume.abandon();
    // Of one the first line has arrived in part, of the other the second line alone.
    words(torn).take(8).for_each(|at| region.store_u64(at, 7));
    words(pointers).skip(8).for_each(|at| region.store_u64(at, 7));
    let volume = mounted(&region);
    assert_eq!(volume.report.orphans, 1);
    for ino in [torn, pointers, file.ino.0] {
        assert!(words(ino).all(|at| region.load_u64(at) == 0), "slot {ino}");
    }
    unmount(volume);
    let volume = mounted(&region);
    assert_eq!(volume.report, Report { inodes: 1, ..Report::default() });
    unmount(volume);
}

#[test]
fn items_are_read_once_in_order_and_the_total_is_told_last() {
    let volume = mounted(&made(Variant::Heddle));
    let core = &volume.fs().core;
    for count in [0, 1, 64, 65, 300] {
        let items: Vec<u64> = (0..count).collect();
        let told = Mutex::new(Vec::new());
        let progress = |what, done, total| told.lock().unwrap().push((what, done, total));
        let read = in_parallel(core, "things", &items, &progress, |item| Ok(item * 3)).unwrap();
        assert_eq!(read, (0..count).map(|item| item * 3).collect::<Vec<_>>());
        let told = told.into_inner().unwrap();
        assert_eq!(told.last().copied(), (count > 0).then_some(("things", count, count)));
        assert_eq!(told.len() as u64, count.div_ceil(64) + u64::from(count > 0));
        let fails = |item: &u64| if *item == 0 { Err(Error::NotFound) } else { Ok(()) };
        let read = in_parallel(core, "things", &items, &|_, _, _| (), fails);
        assert_eq!(read.err(), (count > 0).then_some(Error::NotFound));
    }
    unmount(volume);
}
