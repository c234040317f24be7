//! One file system through two mappings: nothing of it lives outside the arena and the region.

#[cfg(not(shuttle))]
mod images;

use super::{MountOptions, Volume, arena, boot_id, format, mount, read_superblock};
use crate::alloc::{Purpose, take_blocks};
use crate::format::page::SLOTS;
use crate::fs::NvmFs;
use crate::log::chain;
use crate::region::Region;
use crate::state::core::{Core, Identity, Parts};
use crate::state::lease::{enter, lanes};
use crate::upkeep::recovery;
use crate::upkeep::settle::HOOKS;
use crate::variant::Variant;
use heddle_arena::LaneId;
use heddle_pmem::CrashPoint;
use heddle_range_lock::{Geometry, Mode};
use heddle_vfs::{Cookie, Cred, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RenameMode};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};

fn parts(region: Region, arena: heddle_arena::Arena, variant: Variant) -> Parts {
    let locks = variant.lock().map(|kind| {
        let geometry = Geometry { file_bytes_max: region.len_bytes(), ..Geometry::default() };
        heddle_range_lock::make(kind, Mode::Fair, &geometry).unwrap()
    });
    Parts { region, arena: Arc::new(arena), variant, locks, on_lock: None, hooks: HOOKS, read_only: false }
}

/// The same arena and region at other addresses, as another process would map them.
fn second_view(first: &Core) -> NvmFs {
    let parts = parts(first.region.map_again().unwrap(), first.arena.map_again().unwrap(), first.variant);
    NvmFs { core: Arc::new(Core::join(parts, &first.identity()).unwrap()) }
}

#[test]
fn two_mappings_of_one_arena_are_one_file_system() {
    for variant in [Variant::Heddle, Variant::NovaArray] {
        let region = Region::anonymous(64 << 20).unwrap();
        format(&region, variant).unwrap();
        let volume = mount(region, &MountOptions::default()).unwrap();
        let views = [volume.fs(), second_view(&volume.fs.core)];
        let cred = Cred::root();
        let name = |n: &str| n.as_bytes().to_vec();
        let (attr, first) = views[0]
            .create(&cred, Ino::ROOT, Name::new(&name("f")).unwrap(), 0o644, OpenFlags::READ_WRITE)
            .unwrap();
        let second = views[1].open(&cred, attr.ino, OpenFlags::READ_WRITE).unwrap();
        std::thread::scope(|scope| {
            for (worker, (fs, handle)) in views.iter().zip([&first, &second]).enumerate() {
                scope.spawn(move || {
                    for round in 0..2000u64 {
                        let page = [worker as u8 + 1; 4096];
                        fs.write(handle, (round % 16 * 2 + worker as u64) * 4096, &page).unwrap();
                        fs.append(handle, &[worker as u8 + 1; 8]).unwrap();
                        let file = format!("w{worker}-{round}");
                        let file = Name::new(file.as_bytes()).unwrap();
                        let (_, made) =
                            fs.create(&Cred::root(), Ino::ROOT, file, 0o600, OpenFlags::WRITE).unwrap();
                        fs.release(made);
                        if round % 2 == 0 {
                            fs.unlink(&Cred::root(), Ino::ROOT, file).unwrap();
                        }
                    }
                });
            }
        });
        for (fs, handle) in views.iter().zip([&first, &second]) {
            for page in 0..32u64 {
                let mut seen = [0; 4096];
                assert_eq!(fs.read(handle, page * 4096, &mut seen).unwrap(), 4096);
                assert!(seen.iter().all(|b| *b == (page % 2) as u8 + 1), "{} page {page}", variant.name());
            }
            let root = fs.open(&cred, Ino::ROOT, OpenFlags::READ).unwrap();
            let mut names = 0;
            fs.each_entry(&root, Cookie(0), &mut |_| {
                names += 1;
                true
            })
            .unwrap();
            assert_eq!(names, 1 + 2 * 1000);
            fs.release(root);
        }
        views[0].release(first);
        views[1].release(second);
        crate::state::lease::leave(&views[1].core);
        drop(views);
        volume.unmount();
    }
}

/// Before, an unmount left such a file, and the image was not clean, if any process had attached.
#[test]
fn an_unmount_frees_nameless_files_that_attached_processes_have_open() {
    let region = Region::anonymous(64 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let media = region.map_again().unwrap();
    let volume = mount(region, &MountOptions::default()).unwrap();
    let attached = second_view(&volume.fs.core);
    let cred = Cred::root();
    let (_, handle) = attached.create(&cred, Ino::ROOT, name("f"), 0o644, OpenFlags::READ_WRITE).unwrap();
    attached.write(&handle, 0, &[1; 4096]).unwrap();
    attached.unlink(&cred, Ino::ROOT, name("f")).unwrap();
    volume.fs.core.root().attached.store(1, SeqCst);
    volume.close().unwrap();
    assert_eq!(read_superblock(&media).unwrap().mounted().unwrap().clean.get(), 1, "it is marked clean");
    assert!(attached.write(&handle, 0, &[2; 4096]).is_err(), "the file system has ended");
    crate::state::lease::leave(&attached.core);
}

/// The thread lives on, so no settler would ever free its lane.
#[test]
fn a_volume_that_is_left_gives_the_threads_lane_back() {
    let ways: [fn(Volume); 2] = [Volume::abandon, Volume::relinquish];
    for leave in ways {
        let region = Region::anonymous(8 << 20).unwrap();
        format(&region, Variant::Heddle).unwrap();
        let volume =
            mount(region, &MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }).unwrap();
        let other = second_view(&volume.fs.core);
        let created = volume.fs().create(&Cred::root(), Ino::ROOT, name("f"), 0o644, OpenFlags::WRITE);
        volume.fs().release(created.unwrap().1);
        let leased = || {
            let core = &other.core;
            let is_held = |lane: &u16| core.lane_table().holder(&core.arena, LaneId(*lane)).is_some();
            lanes(core).filter(is_held).count()
        };
        assert_eq!(leased(), 1);
        leave(volume);
        assert_eq!(leased(), 0);
    }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

/// What a power cut at each fence of a rename to another directory leaves. The log page of the old one has one slot, a name may take two.
fn cuts_of_a_rename(variant: Variant) -> Vec<Vec<u8>> {
    let (region, power) = Region::simulated(4 << 20);
    format(&region, variant).unwrap();
    let volume = mount(region, &MountOptions::default()).unwrap();
    let (fs, cred) = (volume.fs(), Cred::root());
    let directory = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    let [old, new] = ["old", "new"].map(|dir| fs.make(&cred, Ino::ROOT, name(dir), directory).unwrap().ino);
    let (attr, handle) = fs.create(&cred, old, name("moved"), 0o644, OpenFlags::WRITE).unwrap();
    fs.release(handle);
    for n in 0.. {
        let log = chain::existing(&fs.core, fs.core.inode(old).unwrap()).next().unwrap();
        if log.tail().1 == SLOTS {
            break;
        }
        fs.link(&cred, attr.ino, old, name(&format!("l{n}"))).unwrap();
    }
    let images = Arc::new(Mutex::new(Vec::new()));
    let cut = images.clone();
    power.on_fence(Box::new(move |point: &CrashPoint<'_>| cut.lock().unwrap().push(point.durable_image())));
    fs.rename(&cred, old, name("moved"), new, name("moved"), RenameMode::Replace).unwrap();
    power.stop_watching();
    drop(fs);
    volume.abandon();
    Arc::try_unwrap(images).unwrap().into_inner().unwrap()
}

/// Recovers an image on which one block is free; how many are then.
fn recovered_with_one_block(region: &Region, variant: Variant) -> u64 {
    let superblock = read_superblock(region).unwrap().mounted().unwrap();
    let parts = parts(region.map_again().unwrap(), arena(256 << 20).unwrap(), variant);
    let identity = Identity::of(&superblock, boot_id());
    let core = Arc::new(Core::new(parts, identity, superblock.blocks_total.get()).unwrap());
    let judged = recovery::judge(&core, &|_, _, _| {}).unwrap();
    let (map, mut taken) = (core.free_map(), Vec::new());
    let guard = enter(&core).unwrap();
    assert!(take_blocks(map, &core.region, guard.own, map.count() - 1, Purpose::Regain, &mut taken));
    drop(guard);
    judged.settle(&core).unwrap_or_else(|error| panic!("{}: {error}", variant.name()));
    map.count()
}

#[test]
fn recovery_of_a_rename_has_the_last_block() {
    for variant in Variant::ALL {
        let mut paid = 0;
        for image in cuts_of_a_rename(variant) {
            let region = Region::simulated_from(&image).0;
            paid += 1 - recovered_with_one_block(&region, variant);
            let volume = mount(region, &MountOptions::default()).unwrap();
            let (fs, cred) = (volume.fs(), Cred::root());
            let names = ["old", "new"].map(|dir| {
                let dir = fs.lookup(&cred, Ino::ROOT, name(dir)).unwrap().ino;
                fs.lookup(&cred, dir, name("moved")).is_ok()
            });
            assert_ne!(names[0], names[1], "{}: it has one name", variant.name());
        }
        assert!(paid > 0, "{}: no cut left anything to pay", variant.name());
    }
}

#[test]
fn an_arena_that_cannot_be_mapped_is_halved_until_it_can() {
    // More than any processor addresses.
    let arena = arena(1 << 60).unwrap();
    assert!(arena.capacity_bytes() >= 256 << 20, "{} bytes", arena.capacity_bytes());
}

/// A fence of one process failed. Its records were lost, and another process appended to the log page behind them.
#[test]
fn after_a_failed_fence_no_process_changes_the_image() {
    type Call = fn(&NvmFs, &Handle) -> heddle_vfs::Result<()>;
    let make: Call =
        |fs, _| fs.create(&Cred::root(), Ino::ROOT, short_name(b"g"), 0o644, OpenFlags::WRITE).map(drop);
    let write: Call = |fs, file| fs.write(file, 0, b"x").map(drop);
    for call in [make, write] {
        let (region, disk) = Region::on_failing_disk(4 << 20);
        format(&region, Variant::Heddle).unwrap();
        let volume =
            mount(region, &MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }).unwrap();
        let (fs, core) = (volume.fs(), &volume.fs.core);
        let file = fs.create(&Cred::root(), Ino::ROOT, short_name(b"f"), 0o644, OpenFlags::WRITE).unwrap().1;
        let parts = parts(Region::on_failing_disk(4 << 20).0, core.arena.map_again().unwrap(), core.variant);
        let other = NvmFs { core: Arc::new(Core::join(parts, &core.identity()).unwrap()) };
        assert!(other.core.writable().is_ok());
        disk.on_write_back(|_| heddle_pmem::WriteBackResult::Failed);
        assert!(matches!(call(&fs, &file), Err(heddle_vfs::Error::Io(_))));
        assert!(matches!(make(&other, &file), Err(heddle_vfs::Error::Corrupt(_))));
        volume.abandon();
    }
}

fn short_name(text: &[u8]) -> Name<'_> {
    Name::new(text).unwrap()
}
