//! Full images: a call that fails changes nothing, what is deleted is free again, logs do not fill the image.

mod common;

use common::{Disk, Short, each_variant, remove_everything, root};
use heddle_nvmfs::{NvmFs, Variant};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{Error, FileKind, FileSystem, Handle, Ino, NewNode, RangeOp, SetAttr};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

const MIB: u64 = 1 << 20;
const PAGE: u64 = 4096;
/// Blocks that stay taken when all is deleted: the root's log and inode chunk.
const KEPT_BLOCKS_MAX: u64 = 16;

fn free(fs: &NvmFs) -> u64 {
    fs.statfs().unwrap().blocks_free
}

fn is_full(error: &Error) -> bool {
    matches!(error, Error::NoSpace | Error::NoInodes)
}

/// Writes at the end until there is no space; each write that fails leaves the file as it was. The file's size then.
fn fill(fs: &NvmFs, handle: &Handle, piece_bytes: usize) -> u64 {
    let mut written = fs.size(handle);
    loop {
        let piece = vec![(written / 1000 % 251) as u8 + 1; piece_bytes];
        match fs.append(handle, &piece) {
            Ok(at) => {
                assert_eq!(at, written);
                written += piece_bytes as u64;
            }
            Err(error) => {
                assert!(is_full(&error), "{error:?}");
                assert_eq!(fs.size(handle), written, "a write that failed changed the size");
                return written;
            }
        }
    }
}

/// Deletes everything, and says how many blocks are missing then, and after a remount.
fn missing_when_emptied(disk: &Disk, volume: heddle_nvmfs::Volume, before: u64) -> (u64, u64) {
    let fs = volume.fs();
    remove_everything(&fs).unwrap();
    let live = before.saturating_sub(free(&fs));
    drop(fs);
    volume.unmount();
    let volume = disk.mount();
    let recovered = before.saturating_sub(free(&volume.fs()));
    volume.unmount();
    (live, recovered)
}

#[test]
fn an_image_full_of_data_can_be_read_changed_and_emptied() {
    each_variant(|variant| {
        for piece_bytes in [100_000, 4096, 777] {
            let disk = Disk::new(variant, 8 * MIB);
            let volume = disk.mount();
            let fs = volume.fs();
            let before = free(&fs);
            let handle = fs.new_file(Ino::ROOT, "big");
            let written = fill(&fs, &handle, piece_bytes);
            assert!(written > 6 * MIB, "{variant:?}: only {written} bytes fit");
            let tree = Tree::of(&fs).unwrap();
            // What needs space fails and changes nothing.
            let beyond = fs.write(&handle, written + PAGE, &[1; 200_000]);
            // Where a lock has a word for each page of the image, such a file is too large.
            assert!(
                matches!(beyond, Err(Error::NoSpace | Error::FileTooBig)),
                "{variant:?}: {beyond:?} behind {written}"
            );
            assert!(
                fs.fallocate(&handle, RangeOp::Allocate { keep_size: false }, 32 * MIB, 4 * MIB).is_err()
            );
            assert_eq!(
                Tree::of(&fs).unwrap().difference(&tree),
                None,
                "{variant:?}: a failed call changed something"
            );
            // What needs none works: many pages or one anew, a hole, a cut, a name less.
            assert_eq!(fs.write(&handle, 4 * MIB, &[1; 600_000]), Ok(600_000), "{variant:?}");
            let page = written / 2 / PAGE * PAGE;
            for round in 0..300u64 {
                fs.write(&handle, page, &[round as u8; PAGE as usize]).unwrap();
            }
            fs.fallocate(&handle, RangeOp::Punch, PAGE, 10 * PAGE).unwrap();
            fs.write(&handle, PAGE, &[3; 2 * PAGE as usize]).unwrap();
            fs.resize(&handle, written / 3 + 5).unwrap();
            let tree = Tree::of(&fs).unwrap();
            fs.release(handle);
            drop(fs);
            volume.abandon();
            let volume = disk.mount();
            assert_eq!(
                Tree::of(&volume.fs()).unwrap().difference(&tree),
                None,
                "{variant:?}: after a remount"
            );
            let (live, recovered) = missing_when_emptied(&disk, volume, before);
            println!(
                "  {piece_bytes}: {written} bytes fitted; emptied, {live} blocks are missing, {recovered} after a remount"
            );
            assert!(
                live <= KEPT_BLOCKS_MAX && recovered <= KEPT_BLOCKS_MAX,
                "{variant:?}: {live}, {recovered}"
            );
        }
    });
}

/// What a page that replaces another leaves free elsewhere went to new data, until nothing was left for removals (the long soak found it).
#[test]
fn new_data_takes_nothing_from_the_reserve_for_replacing() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 8 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let files: Vec<Handle> = (0..200).map(|i| fs.new_file(Ino::ROOT, &format!("file {i:03}"))).collect();
        for file in &files {
            fs.append(file, &[1; 5 * PAGE as usize]).unwrap();
        }
        let greedy = fs.new_file(Ino::ROOT, "greedy");
        let (mut replaced, mut refused) = (0, 0);
        for round in 0..5u64 {
            for file in &files {
                fill(&fs, &greedy, PAGE as usize);
                match fs.write(file, round * PAGE, &[2; PAGE as usize]) {
                    Ok(_) => replaced += 1,
                    Err(Error::NoSpace) => refused += 1,
                    Err(error) => panic!("{variant:?}: {error:?}"),
                }
            }
        }
        println!("  {replaced} pages replaced, {refused} refused");
        assert!(replaced > 50, "{variant:?}: only {replaced} pages of a full image could be replaced");
        files.into_iter().for_each(|file| fs.release(file));
        for i in 0..200 {
            let name = format!("file {i:03}");
            fs.remove(Ino::ROOT, &name).unwrap_or_else(|e| panic!("{variant:?}: {name}: {e:?}"));
        }
        fs.release(greedy);
        fs.remove(Ino::ROOT, "greedy").unwrap();
    });
}

#[test]
fn a_full_image_survives_a_power_cut_and_the_deletion_after() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 4 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let handle = fs.new_file(Ino::ROOT, "big");
        fill(&fs, &handle, PAGE as usize);
        let tree = Tree::of(&fs).unwrap();
        fs.release(handle);
        drop(fs);
        volume.abandon();
        // Mounting a full image, again and again, needs no space that is not there.
        for _ in 0..5 {
            let volume = disk.mount();
            let fs = volume.fs();
            assert_eq!(Tree::of(&fs).unwrap().difference(&tree), None, "{variant:?}");
            let handle = fs.open_file(Ino::ROOT, "big");
            fs.write(&handle, 0, &fs.read_vec(&handle, 0, PAGE as usize)).unwrap();
            fs.release(handle);
            drop(fs);
            volume.abandon();
        }
        let volume = disk.mount();
        let fs = volume.fs();
        fs.remove(Ino::ROOT, "big").unwrap();
        let handle = fs.new_file(Ino::ROOT, "next");
        let written = fill(&fs, &handle, PAGE as usize);
        assert!(written > 3 * MIB, "{variant:?}: the space did not come back: {written} bytes fit");
        fs.release(handle);
    });
}

#[test]
fn an_image_full_of_small_files_can_be_emptied() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 8 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let before = free(&fs);
        let mut count = 0;
        let why = loop {
            let text = format!("f{count}");
            match fs.try_file(Ino::ROOT, &text) {
                Ok(handle) => {
                    let put = fs.write(&handle, 0, &[count as u8 | 1; 3000]);
                    fs.release(handle);
                    if let Err(error) = put {
                        assert_eq!(fs.find(Ino::ROOT, &text).unwrap().size_bytes, 0, "{variant:?}");
                        break error;
                    }
                }
                Err(error) => {
                    assert_eq!(fs.find(Ino::ROOT, &text).unwrap_err(), Error::NotFound, "{variant:?}");
                    break error;
                }
            }
            count += 1;
        };
        assert!(is_full(&why) && count > 600, "{variant:?}: {why:?} after {count} files");
        let tree = Tree::of(&fs).unwrap();
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        assert_eq!(Tree::of(&volume.fs()).unwrap().difference(&tree), None, "{variant:?}");
        let (live, recovered) = missing_when_emptied(&disk, volume, before);
        println!(
            "  {count} files of 3,000 bytes; emptied, {live} blocks are missing, {recovered} after a remount"
        );
        // The names of all files are tombstones in the root's log until that is cleaned.
        let kept = KEPT_BLOCKS_MAX + count / 60;
        assert!(live <= kept && recovered <= kept, "{variant:?}: {live} and {recovered} blocks are missing");
    });
}

#[test]
fn an_image_full_of_directories_and_names_can_be_emptied() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 4 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let before = free(&fs);
        let mut dirs = vec![Ino::ROOT];
        let why = 'full: loop {
            let dir = match fs.try_dir(dirs[dirs.len() / 2], &format!("d{}", dirs.len())) {
                Ok(dir) => dir,
                Err(error) => break error,
            };
            dirs.push(dir);
            for i in 0..70 {
                let node = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: b"somewhere" };
                let text = format!("{:0>width$}", i, width = 1 + i * 3);
                if let Err(error) = fs.make(&root(), dir, common::name(&text), node) {
                    assert_eq!(fs.find(dir, &text).unwrap_err(), Error::NotFound, "{variant:?}");
                    break 'full error;
                }
            }
        };
        assert!(is_full(&why) && dirs.len() > 5, "{variant:?}: {why:?} after {} directories", dirs.len());
        // Renames and attributes on the full image: they work, or fail and change nothing.
        let tree = Tree::of(&fs).unwrap();
        let moved = fs.replace((Ino::ROOT, "d1"), (Ino::ROOT, "moved"));
        let set = fs.setattr(&root(), dirs[1], None, &SetAttr { perm: Some(0o711), ..SetAttr::default() });
        if moved.is_err() && set.is_err() {
            assert_eq!(Tree::of(&fs).unwrap().difference(&tree), None, "{variant:?}");
        }
        let tree = Tree::of(&fs).unwrap();
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        assert_eq!(Tree::of(&volume.fs()).unwrap().difference(&tree), None, "{variant:?}");
        let (live, recovered) = missing_when_emptied(&disk, volume, before);
        println!(
            "  {} directories; emptied, {live} blocks are missing, {recovered} after a remount",
            dirs.len()
        );
        let kept = KEPT_BLOCKS_MAX;
        assert!(live <= kept && recovered <= kept, "{variant:?}: {live} and {recovered} blocks are missing");
    });
}

#[test]
fn df_and_fsck_count_the_same_free_blocks_after_each_removal() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 8 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let names: Vec<String> = (0..100).map(|n| format!("d{n}")).collect();
        for name in &names {
            let node = NewNode { kind: FileKind::Directory, perm: 0o700, rdev: 0, target: b"" };
            fs.make(&root(), Ino::ROOT, common::name(name), node).unwrap();
        }
        for name in names.iter().rev() {
            fs.rmdir(&root(), Ino::ROOT, common::name(name)).unwrap();
            let counted = heddle_nvmfs::fsck::survey("test", disk.region()).unwrap().unwrap();
            assert_eq!(free(&fs), counted.blocks_free, "{variant:?}: without {name}");
        }
        drop(fs);
        volume.unmount();
    });
}

/// 100 times the region's size, in one file, page by page and in larger pieces: the log is cleaned as fast as it grows.
#[test]
fn overwriting_one_file_for_ever_does_not_fill_the_image() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 4 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let before = free(&fs);
        let handle = fs.new_file(Ino::ROOT, "f");
        const PAGES: u64 = 200;
        fs.write(&handle, 0, &vec![1; (PAGES * PAGE) as usize]).unwrap();
        let mut written = 0;
        let mut least_free = u64::MAX;
        for round in 0u64.. {
            let (page, pages) = (round * 7919 % PAGES, 1 + round % 4);
            let pages = pages.min(PAGES - page);
            fs.write(&handle, page * PAGE, &vec![round as u8; (pages * PAGE) as usize])
                .unwrap_or_else(|e| panic!("{variant:?}: {e} after {written} bytes"));
            written += pages * PAGE;
            if round % 512 == 0 {
                least_free = least_free.min(free(&fs));
            }
            if written > 400 * MIB {
                break;
            }
        }
        println!("  {} blocks at most beside the data", before - least_free - PAGES);
        assert!(
            before - least_free < PAGES + 200,
            "{variant:?}: the log grew to {} blocks",
            before - least_free - PAGES
        );
        let tree = Tree::of(&fs).unwrap();
        fs.release(handle);
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        assert_eq!(Tree::of(&volume.fs()).unwrap().difference(&tree), None, "{variant:?}");
    });
}

/// What is done for ever to a file `f`, a directory `d`, and round `i`.
type Work = fn(&NvmFs, &Handle, Ino, u64) -> Result<(), Error>;

fn mode(fs: &NvmFs, ino: Ino, i: u64) -> Result<(), Error> {
    let set = SetAttr { perm: Some(0o700 + (i % 8) as u16), ..SetAttr::default() };
    fs.setattr(&root(), ino, None, &set).map(|_| ())
}

/// The name that moves about in the works that rename.
fn mover(fs: &NvmFs, dir: Ino, i: u64) -> Result<(), Error> {
    if i == 0 { fs.try_file(dir, "m0").map(|handle| fs.release(handle)) } else { Ok(()) }
}

const WORKS: [(&str, Work); 12] = [
    ("punch and write the last page", |fs, f, _, _| {
        fs.write(f, 5 * PAGE, &[1; PAGE as usize])?;
        fs.fallocate(f, RangeOp::Punch, 5 * PAGE, PAGE)
    }),
    ("punch and write", |fs, f, _, i| {
        fs.write(f, (1 + i % 50) * PAGE, &[1; PAGE as usize])?;
        fs.fallocate(f, RangeOp::Punch, (1 + i % 40) * PAGE, 3 * PAGE)
    }),
    ("punch one page again and again", |fs, f, _, i| {
        fs.fallocate(f, RangeOp::Punch, (1 + i % 3) * PAGE, PAGE)
    }),
    ("append and truncate", |fs, f, _, i| {
        fs.append(f, &[2; 5000])?;
        if i % 10 == 9 { fs.resize(f, PAGE + i % 7 * 1000) } else { Ok(()) }
    }),
    ("allocate and truncate", |fs, f, _, i| {
        fs.fallocate(f, RangeOp::Allocate { keep_size: i % 2 == 0 }, (1 + i % 7) * PAGE, 5 * PAGE)?;
        fs.resize(f, PAGE + i % 5 * 2000)
    }),
    ("mode of a file", |fs, f, _, i| mode(fs, f.ino, i)),
    ("mode of a directory", |fs, _, dir, i| mode(fs, dir, i)),
    ("create and unlink", |fs, _, dir, i| {
        let text = format!("n{}", i % 13);
        fs.release(fs.try_file(dir, &text)?);
        fs.remove(dir, &text)
    }),
    ("mkdir and rmdir, new names", |fs, _, dir, i| {
        let text = format!("n{i}");
        fs.try_dir(dir, &text)?;
        fs.rmdir(&root(), dir, common::name(&text))
    }),
    ("link and unlink", |fs, f, dir, i| {
        let text = format!("n{}", i % 3);
        fs.link(&root(), f.ino, dir, common::name(&text))?;
        fs.remove(dir, &text)
    }),
    ("rename in a directory", |fs, _, dir, i| {
        mover(fs, dir, i)?;
        fs.replace((dir, &format!("m{}", i % 9)), (dir, &format!("m{}", (i + 1) % 9)))
    }),
    ("rename across directories", |fs, _, dir, i| {
        mover(fs, dir, i)?;
        let (from, to) = if i % 2 == 0 { (dir, Ino::ROOT) } else { (Ino::ROOT, dir) };
        fs.replace((from, "m0"), (to, "m0"))
    }),
];

#[test]
fn no_call_made_for_ever_fills_the_image() {
    each_variant(|variant| {
        let mut failed = Vec::new();
        for (what, work) in WORKS {
            for start in [Start::Bare, Start::SecondThread, Start::Sleeper, Start::Cold] {
                if let Err(why) = works_for_ever(variant, work, start) {
                    failed.push(format!("{what}, {start:?}: {why}"));
                }
            }
        }
        assert!(failed.is_empty(), "{variant:?}:\n  {}", failed.join("\n  "));
    });
}

/// What there is when the rounds begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Start {
    /// A file and a directory, both empty.
    Bare,
    /// Another thread has changed both, while this one had its own chains of their logs.
    SecondThread,
    /// The same, and that thread sleeps until the end, with its chains.
    Sleeper,
    /// A page and names that stay as they are.
    Cold,
}

impl Start {
    /// `until`: what the second thread waits for before it ends.
    fn make(self, fs: &NvmFs, handle: &Handle, dir: Ino, until: Receiver<()>) -> Option<JoinHandle<()>> {
        let change = |text: &str| {
            fs.write(handle, 0, &[1; 100]).unwrap();
            fs.resize(handle, 0).unwrap();
            for dir in [dir, Ino::ROOT] {
                fs.release(fs.new_file(dir, text));
                fs.remove(dir, text).unwrap();
            }
        };
        match self {
            Start::Bare => {}
            Start::SecondThread => {
                change("first");
                std::thread::scope(|scope| scope.spawn(|| change("second")).join().unwrap());
            }
            Start::Sleeper => {
                change("first");
                let (done, second) = channel();
                let fs = fs.clone();
                return Some(std::thread::spawn(move || {
                    let handle = fs.open_file(Ino::ROOT, "f");
                    fs.write(&handle, 0, &[1; 100]).unwrap();
                    fs.resize(&handle, 0).unwrap();
                    done.send(()).unwrap();
                    let _end = until.recv();
                    fs.release(handle);
                }))
                .inspect(|_| second.recv().unwrap());
            }
            Start::Cold => {
                fs.write(handle, 0, &[1; 100]).unwrap();
                for text in ["cold", "colder"] {
                    fs.release(fs.new_file(dir, text));
                    fs.release(fs.new_file(Ino::ROOT, text));
                }
            }
        }
        None
    }
}

/// 30,000 rounds leave few blocks taken, and what a remount finds.
fn works_for_ever(variant: Variant, work: Work, start: Start) -> Result<(), String> {
    let disk = Disk::new(variant, 4 * MIB);
    let volume = disk.mount();
    let fs = volume.fs();
    let before = free(&fs);
    let handle = fs.new_file(Ino::ROOT, "f");
    let dir = fs.new_dir(Ino::ROOT, "d");
    let (end, until) = channel();
    let sleeper = start.make(&fs, &handle, dir, until);
    let mut most = 0;
    for i in 0..30_000 {
        work(&fs, &handle, dir, i)
            .map_err(|e| format!("{e} in round {i}, {} blocks are taken", before - free(&fs)))?;
        if i % 1000 == 0 {
            most = most.max(before.saturating_sub(free(&fs)));
        }
    }
    let tree = Tree::of(&fs).unwrap();
    drop(end);
    sleeper.into_iter().for_each(|s| s.join().unwrap());
    fs.release(handle);
    drop(fs);
    volume.abandon();
    let volume = disk.try_mount().map_err(|e| e.to_string())?;
    if let Some(difference) = Tree::of(&volume.fs()).unwrap().difference(&tree) {
        return Err(format!("after a remount, {difference}"));
    }
    let (live, recovered) = missing_when_emptied(&disk, volume, before);
    if most > 150 || live > KEPT_BLOCKS_MAX || recovered > KEPT_BLOCKS_MAX {
        return Err(format!(
            "{most} blocks were taken, {live} are when all is removed, {recovered} after a remount"
        ));
    }
    Ok(())
}

/// Free space in single blocks: writes and allocations of many pieces work, are right, and give all of it back.
#[test]
fn a_write_into_fragmented_space_is_whole_and_gives_its_blocks_back() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let before = free(&fs);
        let ballast = fs.new_file(Ino::ROOT, "ballast");
        let pages = fill(&fs, &ballast, PAGE as usize) / PAGE;
        for page in (0..pages).step_by(2) {
            fs.fallocate(&ballast, RangeOp::Punch, page * PAGE, PAGE).unwrap();
        }
        let handle = fs.new_file(Ino::ROOT, "f");
        for round in 0..20u8 {
            // 700 pages in about as many pieces: an extent list of two blocks.
            let bytes: Vec<u8> = (0..700 * PAGE + 11).map(|i| (i / 1000) as u8 ^ round).collect();
            fs.write(&handle, 5, &bytes).unwrap();
            assert!(fs.read_vec(&handle, 5, bytes.len()) == bytes, "{variant:?}: round {round}");
        }
        // Of as many pieces: several records a transaction, and more pieces than fit one.
        let beyond = (800 * PAGE, 100 * PAGE);
        for _ in 0..20 {
            fs.fallocate(&handle, RangeOp::Allocate { keep_size: true }, beyond.0, beyond.1).unwrap();
            fs.fallocate(&handle, RangeOp::Punch, beyond.0, beyond.1).unwrap();
        }
        fs.fallocate(&handle, RangeOp::Allocate { keep_size: true }, beyond.0, beyond.1).unwrap();
        let tree = Tree::of(&fs).unwrap();
        fs.release(handle);
        fs.release(ballast);
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        assert_eq!(Tree::of(&volume.fs()).unwrap().difference(&tree), None, "{variant:?}");
        let (live, recovered) = missing_when_emptied(&disk, volume, before);
        println!("  emptied, {live} blocks are missing, {recovered} after a remount");
        assert!(live <= KEPT_BLOCKS_MAX && recovered <= KEPT_BLOCKS_MAX, "{variant:?}: {live}, {recovered}");
    });
}

/// Each thread's punches kept the other's log from being cleaned.
#[test]
fn threads_that_write_and_punch_for_ever_do_not_fill_the_image() {
    const ROUNDS: u64 = 10_000;
    // Pages that are soon written again, and pages that long stay holes. Some of both keep data.
    let again = |thread: u64, round: u64| thread * 32 + round % 32;
    let hole = |thread: u64, round: u64| 64 + (2 * round + thread) % 4000;
    each_variant(|variant| {
        let disk = Disk::new(variant, 16 * MIB);
        let volume = disk.mount();
        let fs = volume.fs();
        let file = fs.new_file(Ino::ROOT, "f");
        let before = free(&fs);
        std::thread::scope(|scope| {
            for thread in 0..2 {
                let (fs, file) = (&fs, &file);
                scope.spawn(move || {
                    for round in 0..ROUNDS {
                        for page in [again(thread, round), hole(thread, round)] {
                            fs.write(file, page * PAGE, &[2; PAGE as usize]).unwrap();
                            if round % 100 != 0 {
                                fs.fallocate(file, RangeOp::Punch, page * PAGE, PAGE).unwrap();
                            }
                        }
                    }
                });
            }
        });
        let (after, data) = (free(&fs), 4000 / 100 + 64);
        assert!(after + data + 64 > before, "{variant:?}: {before} blocks were free, now {after}");
        fs.release(file);
        let tree = Tree::of(&fs).unwrap();
        drop(fs);
        volume.abandon();
        let volume = disk.mount();
        assert!(Tree::of(&volume.fs()).unwrap() == tree, "{variant:?}: another tree after a death");
    });
}
