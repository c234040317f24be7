//! Images that are full to the last block: unlinks always work, and a sequence of them leaves an empty file system.

mod common;
#[path = "full/programs.rs"]
mod programs;

use common::{Disk, Short, each_variant, name, remove_everything, root};
use heddle_nvmfs::{NvmFs, Variant, Volume};
use heddle_pmem::{Pos, Region};
use heddle_vfs::{Error, FileSystem, Handle, Ino, OpenFlags, RangeOp, SetAttr};

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Blocks that stay taken when all is deleted: the root's log and inode chunk.
const KEPT_BLOCKS_MAX: u64 = 32;

fn free(fs: &NvmFs) -> u64 {
    fs.statfs().unwrap().blocks_free
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::NoSpace | Error::NoInodes)
}

/// Goes on until there is no space; how often it went.
fn until_full(variant: Variant, mut work: impl FnMut(u64) -> Result<(), Error>) -> u64 {
    for n in 0.. {
        match work(n) {
            Ok(()) => {}
            Err(error) if is_full(&error) => return n,
            Err(error) => panic!("{variant:?}: {error:?}"),
        }
    }
    unreachable!()
}

/// Fills what is left, page by page.
fn fill(fs: &NvmFs, variant: Variant, text: &str) {
    let handle = match fs.find(Ino::ROOT, text) {
        Ok(_) => fs.open_file(Ino::ROOT, text),
        Err(_) => match fs.try_file(Ino::ROOT, text) {
            Ok(handle) => handle,
            Err(_) => return,
        },
    };
    until_full(variant, |_| fs.append(&handle, &[7; PAGE as usize]).map(|_| ()));
    until_full(variant, |_| fs.append(&handle, &[8]).map(|_| ()));
    fs.release(handle);
}

/// Names of one file, until the last log page of the directory is full.
fn fill_log(fs: &NvmFs, variant: Variant, dir: Ino) {
    let ino = fs.find(Ino::ROOT, "tiny").unwrap().ino;
    until_full(variant, |n| fs.link(&root(), ino, dir, name(&format!("l{n}"))).map(|_| ()));
}

fn stop(volume: Volume, cut: bool) {
    if cut { volume.abandon() } else { volume.unmount() }
}

/// What is missing when all is removed, and after one more mount.
fn emptied(disk: &Disk, volume: Volume, before: u64, what: &str) {
    let fs = volume.fs();
    remove_everything(&fs).unwrap_or_else(|e| panic!("{what}: {e:?}"));
    let live = before.saturating_sub(free(&fs));
    drop(fs);
    volume.unmount();
    common::sound(disk.region()).unwrap_or_else(|e| panic!("{what}: {e}"));
    let volume = disk.mount();
    let recovered = before.saturating_sub(free(&volume.fs()));
    volume.unmount();
    assert!(
        live <= KEPT_BLOCKS_MAX && recovered <= KEPT_BLOCKS_MAX,
        "{what}: {live} blocks are missing, {recovered} after a remount"
    );
}

#[test]
fn a_full_image_is_emptied_name_by_name_whatever_mounts_come_between() {
    each_variant(|variant| {
        for (every, cut) in [(u64::MAX, false), (101, true)] {
            let disk = Disk::new(variant, 4 * MIB);
            let volume = disk.mount();
            let fs = volume.fs();
            let before = free(&fs);
            let dirs = until_full(variant, |n| {
                let dir = fs.try_dir(Ino::ROOT, &format!("d{n}"))?;
                for text in ["f", "g"] {
                    fs.release(fs.try_file(dir, text)?);
                }
                Ok(())
            });
            fill(&fs, variant, "rest");
            drop(fs);
            stop(volume, cut);
            let mut volume = disk.mount();
            for n in 0..dirs {
                if n % every == every - 1 {
                    fill(&volume.fs(), variant, "rest");
                    stop(volume, cut);
                    volume = disk.mount();
                }
                let fs = volume.fs();
                let dir = fs.find(Ino::ROOT, &format!("d{n}")).unwrap().ino;
                fs.remove(dir, "f").unwrap_or_else(|e| panic!("{variant:?}: d{n}/f of {dirs}: {e:?}"));
            }
            emptied(&disk, volume, before, &format!("{variant:?}, {every}"));
        }
    });
}

#[test]
fn a_nameless_file_can_be_named_once_a_full_image_has_space() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 4 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let nameless = fs.tmpfile(&root(), Ino::ROOT, 0o600, OpenFlags::READ_WRITE, true).unwrap().1;
        fs.release(fs.new_file(Ino::ROOT, "tiny"));
        fill(&fs, variant, "rest");
        fill_log(&fs, variant, Ino::ROOT);
        let link = || fs.link(&root(), nameless.ino, Ino::ROOT, name("named")).map(|attr| attr.nlink);
        for _ in 0..2 {
            let refused = link().unwrap_err();
            assert!(is_full(&refused), "{variant:?}: {refused:?}");
        }
        fs.remove(Ino::ROOT, "rest").unwrap();
        assert_eq!(link(), Ok(1), "{variant:?}");
        assert_eq!(fs.find(Ino::ROOT, "named").unwrap().ino, nameless.ino, "{variant:?}");
        fs.release(nameless);
        drop(fs);
        volume.unmount();
        common::sound(disk.region()).unwrap();
    });
}

#[test]
fn cuts_within_the_last_page_of_many_files_take_nothing_from_unlinks() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 4 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let before = free(&fs);
        fs.release(fs.new_file(Ino::ROOT, "tiny"));
        let files = until_full(variant, |n| {
            let handle = fs.try_file(Ino::ROOT, &format!("f{n}"))?;
            let put = fs.write(&handle, 0, &[1; 2 * PAGE as usize]);
            fs.release(handle);
            put.map(|_| ())
        });
        fill(&fs, variant, "rest");
        fill_log(&fs, variant, Ino::ROOT);
        // By other threads than those that wrote them, in turn.
        for n in 0..files.min(200) {
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let ino = fs.find(Ino::ROOT, &format!("f{n}")).unwrap().ino;
                    let size_bytes = Some(8000 - n % 2);
                    let set = SetAttr { size_bytes, ..SetAttr::default() };
                    match fs.setattr(&root(), ino, None, &set) {
                        Ok(_) => {}
                        Err(error) => assert!(is_full(&error), "{variant:?}: {error:?}"),
                    }
                });
            });
        }
        drop(fs);
        emptied(&disk, volume, before, &format!("{variant:?}"));
    });
}

/// Records of truncations take log pages, and give none back: until a removal gets no block for its record.
fn drain(fs: &NvmFs, variant: Variant, files: u64) {
    for n in 0..files * 3000 {
        let handle = fs.open_file(Ino::ROOT, &format!("f{}", n % files));
        let cut = fs.resize(&handle, 8000 - n / files);
        fs.release(handle);
        match cut {
            Ok(()) => {}
            Err(error) if is_full(&error) => return,
            Err(error) => panic!("{variant:?}: {error:?}"),
        }
    }
    panic!("{variant:?}: {} blocks stay free", free(fs));
}

/// Of a copy of this image; each removal returned before the power went.
fn removals_outlive_power_cuts(disk: &Disk, variant: Variant) {
    let mut bytes = vec![0; disk.region().len_bytes() as usize];
    disk.region().read(Pos(0), &mut bytes);
    let (region, power) = Region::simulated_from(&bytes);
    let volume = heddle_nvmfs::mount(region, &common::options()).unwrap();
    for link in ["link1", "link201"] {
        volume.fs().remove(Ino::ROOT, link).unwrap();
        let after = Region::simulated_from(&power.crash_point().durable_image()).0;
        let after = heddle_nvmfs::mount(after, &common::options()).unwrap();
        let found = after.fs().find(Ino::ROOT, link).map(|_| ());
        assert_eq!(found, Err(Error::NotFound), "{variant:?}: {link} after a power cut");
    }
}

/// Hard links of one file, of which a removal gives nothing back.
const LINKS: u64 = 400;

#[test]
fn names_go_where_no_log_has_room_and_no_block_is_free() {
    each_variant(|variant| {
        for cut in [false, true] {
            let disk = Disk::new(variant, 4 * MIB);
            let mut volume = disk.mount();
            let mut fs = volume.fs();
            let before = free(&fs);
            fs.release(fs.new_file(Ino::ROOT, "tiny"));
            for n in 0..80 {
                let handle = fs.new_file(Ino::ROOT, &format!("f{n}"));
                fs.write(&handle, 0, &[1; 2 * PAGE as usize]).unwrap();
                fs.release(handle);
            }
            let tiny = fs.find(Ino::ROOT, "tiny").unwrap().ino;
            for n in 0..LINKS {
                fs.link(&root(), tiny, Ino::ROOT, name(&format!("link{n}"))).unwrap();
            }
            fill(&fs, variant, "rest");
            fill_log(&fs, variant, Ino::ROOT);
            drain(&fs, variant, 80);
            // Some of each log page, so that none is given back: more than one page more could tell of.
            let gone: Vec<_> = (0..LINKS).filter(|n| n % 4 == 0).map(|n| format!("link{n}")).collect();
            for (n, link) in gone.iter().enumerate() {
                if n == gone.len() / 2 {
                    drop(fs);
                    stop(volume, cut);
                    common::sound(disk.region()).unwrap_or_else(|e| panic!("{variant:?}: {e}"));
                    volume = disk.mount();
                    fs = volume.fs();
                }
                fs.remove(Ino::ROOT, link).unwrap_or_else(|e| panic!("{variant:?}: {link}: {e:?}"));
                assert_eq!(fs.find(Ino::ROOT, link).map(|_| ()), Err(Error::NotFound), "{variant:?}: {link}");
            }
            assert!(free(&fs) <= 9, "{variant:?}: {} blocks are free", free(&fs));
            drop(fs);
            stop(volume, cut);
            volume = disk.mount();
            fs = volume.fs();
            for n in 0..LINKS {
                let there = fs.find(Ino::ROOT, &format!("link{n}")).is_ok();
                assert_eq!(there, n % 4 != 0, "{variant:?}, {cut}: link{n} after a mount");
            }
            drop(fs);
            removals_outlive_power_cuts(&disk, variant);
            emptied(&disk, volume, before, &format!("{variant:?}, {cut}"));
        }
    });
}

/// A call on a full image, named so that a sequence can be told.
type Call = (&'static str, fn(&NvmFs) -> Result<(), Error>);

fn on(fs: &NvmFs, dir: &str, work: impl FnOnce(&Handle) -> Result<(), Error>) -> Result<(), Error> {
    let dir = fs.find(Ino::ROOT, dir)?.ino;
    let ino = fs.find(dir, "f")?.ino;
    let handle = fs.open(&root(), ino, OpenFlags::READ_WRITE)?;
    let done = work(&handle);
    fs.release(handle);
    done
}

fn dir_of(fs: &NvmFs, text: &str) -> Result<Ino, Error> {
    fs.find(Ino::ROOT, text).map(|attr| attr.ino)
}

const CALLS: [Call; 12] = [
    ("makes", |fs| fs.try_file(dir_of(fs, "a")?, "new").map(|handle| fs.release(handle))),
    ("makes a directory", |fs| fs.try_dir(dir_of(fs, "b")?, "sub").map(|_| ())),
    ("makes a link", |fs| {
        let ino = fs.find(dir_of(fs, "a")?, "f")?.ino;
        fs.link(&root(), ino, dir_of(fs, "b")?, name("hard")).map(|_| ())
    }),
    ("removes", |fs| fs.remove(dir_of(fs, "a")?, "g")),
    ("moves", |fs| fs.replace((dir_of(fs, "b")?, "g"), (dir_of(fs, "a")?, "moved"))),
    ("moves over", |fs| fs.replace((dir_of(fs, "b")?, "f"), (dir_of(fs, "b")?, "g"))),
    ("writes a page", |fs| on(fs, "a", |f| fs.write(f, 0, &[3; PAGE as usize]).map(|_| ()))),
    ("appends", |fs| on(fs, "b", |f| fs.append(f, &[4; 5000]).map(|_| ()))),
    ("cuts", |fs| on(fs, "a", |f| fs.resize(f, 8000))),
    ("punches", |fs| on(fs, "b", |f| fs.fallocate(f, RangeOp::Punch, 100, PAGE))),
    ("changes a mode", |fs| {
        let set = SetAttr { perm: Some(0o600), ..SetAttr::default() };
        fs.setattr(&root(), dir_of(fs, "b")?, None, &set).map(|_| ())
    }),
    ("fills", |fs| {
        let handle = fs.try_file(Ino::ROOT, "more")?;
        let filled = (0..).find_map(|_| fs.append(&handle, &[7; PAGE as usize]).err());
        fs.release(handle);
        filled.map_or(Ok(()), Err)
    }),
];

/// Two directories of two files, and one file that takes the rest.
fn full_image(variant: Variant) -> (Disk, u64) {
    let disk = Disk::new(variant, 4 * MIB);
    let volume = disk.mount();
    let fs = volume.fs();
    let before = free(&fs);
    fs.release(fs.new_file(Ino::ROOT, "tiny"));
    for dir in ["a", "b"] {
        let dir = fs.new_dir(Ino::ROOT, dir);
        for text in ["f", "g"] {
            let handle = fs.new_file(dir, text);
            fs.write(&handle, 0, &[1; 3 * PAGE as usize]).unwrap();
            fs.release(handle);
        }
    }
    fill(&fs, variant, "rest");
    for dir in [Ino::ROOT, dir_of(&fs, "a").unwrap(), dir_of(&fs, "b").unwrap()] {
        fill_log(&fs, variant, dir);
    }
    drop(fs);
    volume.unmount();
    (disk, before)
}

fn copy(from: &Region, to: &Region) {
    let mut bytes = vec![0; from.len_bytes() as usize];
    from.read(Pos(0), &mut bytes);
    to.nt_write(Pos(0), &bytes);
    to.fence();
}

#[test]
fn every_sequence_on_a_full_image_can_be_emptied_by_unlinks() {
    each_variant(|variant| {
        let (full, before) = full_image(variant);
        let disk = Disk::new(variant, 4 * MIB);
        // The same call again and again, too: that is how a reserve goes.
        let again: usize = if variant == Variant::Heddle { 12 } else { 4 };
        for (first, one) in CALLS.iter().enumerate() {
            for (second, other) in CALLS.iter().enumerate().skip(first) {
                let remounts = (first + second) % 3;
                copy(full.region(), disk.region());
                let what = format!("{variant:?}: {}, {}, {remounts}", one.0, other.0);
                let mut volume = disk.mount();
                for round in 0..again {
                    for call in [one, other] {
                        match call.1(&volume.fs()) {
                            Ok(()) | Err(Error::Exists | Error::NotFound) => {}
                            Err(error) => assert!(is_full(&error), "{what}: {error:?}"),
                        }
                    }
                    if remounts > 0 && round % (again / 2) == again / 2 - 1 {
                        stop(volume, remounts == 1);
                        volume = disk.mount();
                    }
                }
                emptied(&disk, volume, before, &what);
            }
        }
    });
}

/// Has threads `work`, and sleep while the caller does what it does `then`.
fn sleepers(count: usize, work: impl Fn(usize) + Sync, then: impl FnOnce()) {
    let (worked, end) = (std::sync::Barrier::new(count + 1), std::sync::Barrier::new(count + 1));
    std::thread::scope(|scope| {
        for n in 0..count {
            let (worked, end, work) = (&worked, &end, &work);
            std::thread::Builder::new()
                .stack_size(512 << 10)
                .spawn_scoped(scope, move || {
                    work(n);
                    worked.wait();
                    end.wait();
                })
                .unwrap();
        }
        worked.wait();
        // Who waits is let go also where the test fails.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(then));
        end.wait();
        done.unwrap_or_else(|why| std::panic::resume_unwind(why));
    });
}

#[test]
fn what_idle_threads_hold_is_there_for_who_needs_it() {
    each_variant(|variant| idle_threads_give_back(variant, 80, 16));
}

/// Nearly as many as a mount takes.
#[test]
fn what_900_idle_threads_hold_is_there_for_who_needs_it() {
    idle_threads_give_back(Variant::Heddle, 900, 128);
}

fn idle_threads_give_back(variant: Variant, threads: usize, mib: u64) {
    let disk = Disk::new(variant, mib * MIB);
    let volume = disk.mount();
    let fs = volume.fs();
    let write = |n: usize| {
        let handle = fs.new_file(Ino::ROOT, &format!("f{n}"));
        fs.write(&handle, 0, &[1; PAGE as usize]).unwrap();
        fs.write(&handle, 0, &[2; PAGE as usize]).unwrap();
        fs.release(handle);
    };
    sleepers(threads, write, || {
        let available = fs.statfs().unwrap().blocks_available;
        let handle = fs.new_file(Ino::ROOT, "all");
        let pages = until_full(variant, |_| fs.append(&handle, &[7; PAGE as usize]).map(|_| ()));
        fs.release(handle);
        // A log page for 63 pages.
        let taken = pages + pages / 60 + 20;
        assert!(taken >= available, "{variant:?}: of {available} blocks {pages} could be had");
    });
}

#[test]
fn more_threads_than_there_are_log_chains_write_one_file() {
    let disk = Disk::new(Variant::Heddle, 64 * MIB);
    let volume = disk.mount();
    let fs = volume.fs();
    let shared = fs.new_file(Ino::ROOT, "shared");
    let write = |n: usize| {
        let handle = fs.open_file(Ino::ROOT, "shared");
        let put = fs.write(&handle, n as u64 * PAGE, &[n as u8 | 1; PAGE as usize]);
        assert_eq!(put.map_err(|e| format!("thread {n}: {e}")), Ok(PAGE as usize));
        // Its handle stays open, and the chain with it.
    };
    sleepers(560, write, || {
        fs.write(&shared, 0, &[9; PAGE as usize]).unwrap();
    });
    for n in 1..560u64 {
        assert_eq!(fs.read_vec(&shared, n * PAGE, 1), [n as u8 | 1], "page {n}");
    }
}

#[test]
fn free_inodes_of_idle_threads_are_available_to_others() {
    let disk = Disk::new(Variant::Heddle, 4 * MIB);
    let volume = disk.mount();
    let fs = volume.fs();
    // The thread has all inodes of the one chunk that there is, but for those in use.
    let make = |_: usize| fs.release(fs.new_file(Ino::ROOT, "all"));
    sleepers(1, make, || {
        let all = fs.open_file(Ino::ROOT, "all");
        let pages = until_full(Variant::Heddle, |_| fs.append(&all, &[7; PAGE as usize]).map(|_| ()));
        // Room for records, and none for a further chunk.
        fs.resize(&all, (pages - 2) * PAGE).unwrap();
        for n in 0..20 {
            let made = fs.try_file(Ino::ROOT, &format!("made-{n}"));
            fs.release(made.unwrap_or_else(|error| panic!("file {n}: {error}")));
        }
        fs.release(all);
    });
}
