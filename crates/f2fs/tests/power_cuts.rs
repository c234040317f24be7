//! The device is cut off at any instant: what was acknowledged is there, what is there is one instant of what happened, and the image is
//! one that fsck.f2fs and this engine take as it is.
//!
//! Of the writes since the last flush each may have reached the media or not, or in part. `HEDDLE_F2FS_CUTS`: cuts of each of the lists.

mod common;

use common::{Image, fsck_is_clean};
use heddle_f2fs::{BlockAddr, F2fs, Traffic, Variant};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{
    Cred, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RangeOp, RenameMode, SetAttr,
    SetXattr, XattrName,
};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

const BLOCK: usize = 4096;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// After a call.
struct Moment {
    /// What the device had been given then.
    traffic: usize,
    tree: Tree,
    /// Paths of directories.
    dirs: HashMap<Ino, Vec<u8>>,
    durable: Durable,
}

/// What a call has made durable.
#[derive(Clone, PartialEq)]
enum Durable {
    Nothing,
    Everything,
    /// The file of this name in a directory. That the directory has another name now is not durable by it.
    File(Ino, Vec<u8>),
}

/// The path of a directory.
fn path_of(fs: &F2fs, dir: Ino) -> Vec<u8> {
    if dir == Ino::ROOT {
        return Vec::new();
    }
    let above = fs.parent(dir).unwrap();
    let handle = fs.open(&Cred::root(), above, OpenFlags::READ).unwrap();
    let mut path = path_of(fs, above);
    let mut found = false;
    fs.readdir(&handle, Default::default(), &mut |entry| {
        if entry.ino == dir {
            path.extend([b"/", entry.name.bytes()].concat());
            found = true;
        }
        !found
    })
    .unwrap();
    fs.release(handle);
    assert!(found);
    path
}

/// A list of calls on a few names; errors are as good as anything.
fn play(fs: &F2fs, random: &mut Random, calls: usize) -> Vec<Moment> {
    let root = Cred::root();
    let text = |random: &mut Random| format!("name {}", random.below(5));
    let mut dirs = vec![Ino::ROOT];
    let mut moments = Vec::new();
    let open = |dir: Ino, name: Name<'_>| -> Option<Handle> {
        let attr = fs.lookup(&root, dir, name).ok()?;
        // Only whole pages go past memory.
        fs.open(&root, attr.ino, OpenFlags { direct: true, ..OpenFlags::READ_WRITE }).ok()
    };
    let pack = fs.info().geometry.checkpoint.0;
    let has_checkpoint = |traffic: &[Traffic]| {
        let is = |t: &Traffic| matches!(t, Traffic::Write(addr, _) if (pack..pack + 1024).contains(&addr.0));
        traffic.iter().any(is)
    };
    for _ in 0..calls {
        let before = fs.traffic().len();
        let dir = dirs[random.below(dirs.len() as u64) as usize];
        let (one, other) = (text(random), text(random));
        let (one, other) = (Name::new(one.as_bytes()).unwrap(), Name::new(other.as_bytes()).unwrap());
        let mut durable = Durable::Nothing;
        match random.below(14) {
            0 | 1 => {
                if let Ok((_, file)) = fs.create(&root, dir, one, 0o644, OpenFlags::READ_WRITE) {
                    fs.release(file);
                }
            }
            2 => {
                let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
                dirs.extend(fs.make(&root, dir, one, node).map(|attr| attr.ino));
            }
            3 => {
                let node = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: b"there" };
                let _ = fs.make(&root, dir, one, node);
            }
            4 => drop(fs.unlink(&root, dir, one)),
            5 => drop(fs.rmdir(&root, dir, one)),
            6 => drop(fs.rename(
                &root,
                dir,
                one,
                dirs[random.below(dirs.len() as u64) as usize],
                other,
                RenameMode::Replace,
            )),
            7 => drop(fs.lookup(&root, dir, one).and_then(|attr| fs.link(&root, attr.ino, dir, other))),
            8..=11 => {
                if let Some(file) = open(dir, one) {
                    let (at, len) = (random.below(1 << 20), 1 + random.below(20_000));
                    let whole = vec![random.below(255) as u8 + 1; BLOCK * (1 + random.below(5) as usize)];
                    let _ = match random.below(6) {
                        0 => fs
                            .setattr(
                                &root,
                                file.ino,
                                Some(&file),
                                &SetAttr { size_bytes: Some(at), ..SetAttr::default() },
                            )
                            .map(drop),
                        1 => fs.fallocate(&file, RangeOp::Punch, at, len),
                        2 | 3 => fs.write(&file, at / BLOCK as u64 * BLOCK as u64, &whole).map(drop),
                        4 => fs.append(&file, &vec![random.below(255) as u8 + 1; len as usize]).map(drop),
                        _ => fs.write(&file, at, &vec![random.below(255) as u8 + 1; len as usize]).map(drop),
                    };
                    if random.below(2) == 0 {
                        fs.fsync(&file, false).unwrap();
                        // A name of several is as good as any, and then it was a checkpoint.
                        durable = Durable::File(dir, one.bytes().to_vec());
                    }
                    fs.release(file);
                }
            }
            12 => {
                let value = vec![3; random.below(600) as usize];
                let name = XattrName::new(b"user.x").unwrap();
                let _ = fs
                    .lookup(&root, dir, one)
                    .and_then(|attr| fs.setxattr(&root, attr.ino, name, &value, SetXattr::Any));
            }
            _ => {
                fs.sync().unwrap();
                durable = Durable::Everything;
            }
        }
        let traffic = fs.traffic();
        if durable != Durable::Nothing && has_checkpoint(&traffic[before..]) {
            durable = Durable::Everything;
        }
        let lives = dirs.iter().filter(|dir| fs.getattr(**dir).is_ok());
        let paths = lives.map(|dir| (*dir, path_of(fs, *dir))).collect();
        moments.push(Moment { traffic: traffic.len(), tree: Tree::of(fs).unwrap(), dirs: paths, durable });
    }
    moments
}

/// The blocks of an image that hold something.
fn blocks_of(path: &Path) -> BTreeMap<u32, Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let all = bytes.chunks(BLOCK).enumerate();
    all.filter(|(_, block)| block.iter().any(|b| *b != 0))
        .map(|(n, block)| (n as u32, block.to_vec()))
        .collect()
}

/// Puts a write onto an image, or only its first bytes.
fn put(image: &mut BTreeMap<u32, Vec<u8>>, (addr, bytes): (BlockAddr, &[u8]), len: usize) {
    for (n, block) in bytes.chunks(BLOCK).enumerate() {
        let slot = image.entry(addr.0 + n as u32).or_insert_with(|| vec![0; BLOCK]);
        let part = len.saturating_sub(n * BLOCK).min(BLOCK);
        slot[..part].copy_from_slice(&block[..part]);
    }
}

/// The image that a cut leaves after so much traffic.
fn cut(base: &BTreeMap<u32, Vec<u8>>, traffic: &[Traffic], random: &mut Random) -> BTreeMap<u32, Vec<u8>> {
    let mut image = base.clone();
    let flushed = traffic.iter().rposition(|t| matches!(t, Traffic::Flush)).unwrap_or(0);
    // None of the rest, all of it, or some.
    let mode = random.below(4);
    for (n, one) in traffic.iter().enumerate() {
        let Traffic::Write(addr, bytes) = one else { continue };
        let len = match mode {
            _ if n < flushed => bytes.len(),
            0 => 0,
            1 => bytes.len(),
            _ => [0, bytes.len(), 512 * random.below(bytes.len() as u64 / 512) as usize]
                [random.below(3) as usize],
        };
        put(&mut image, (*addr, bytes), len);
    }
    image
}

/// An image of these blocks.
fn put_down(blocks: &BTreeMap<u32, Vec<u8>>) -> Image {
    let left = Image::empty(64, &[]).unwrap();
    let file = File::options().write(true).open(&left.path).unwrap();
    file.set_len(0).unwrap();
    file.set_len(64 << 20).unwrap();
    for (n, block) in blocks {
        file.write_all_at(block, u64::from(*n) * BLOCK as u64).unwrap();
    }
    left
}

/// What may be there after a cut: what a checkpoint had at an instant not before the last sync, and of files that were fsynced since what
/// they had then; the fsync that was cut off counts or does not.
fn may_be(start: &Tree, moments: &[Moment], at: usize) -> Vec<Tree> {
    let acknowledged = moments.iter().rposition(|m| m.durable == Durable::Everything && m.traffic <= at);
    let running = moments.iter().position(|m| m.traffic > at).unwrap_or(moments.len() - 1);
    let mut trees = Vec::new();
    let first = acknowledged.map_or(0, |n| n + 1);
    for next in first..=running + 1 {
        let base = next.checked_sub(1).map(|n| &moments[n]);
        let mut tree = base.map_or(start, |moment| &moment.tree).clone();
        let path = |dirs: Option<&HashMap<Ino, Vec<u8>>>, dir: Ino, name: &[u8]| {
            let above = dirs.and_then(|dirs| dirs.get(&dir)).map_or(&[][..], |path| path);
            [above, b"/", name].concat()
        };
        for moment in &moments[next.min(running)..=running] {
            if let Durable::File(dir, name) = &moment.durable {
                if moment.traffic > at {
                    trees.push(tree.clone());
                }
                let at = path(base.map(|moment| &moment.dirs), *dir, name);
                let mut file = moment.tree.nodes[&path(Some(&moment.dirs), *dir, name)].clone();
                file.first_name.clone_from(&at);
                tree.nodes.insert(at, file);
            }
        }
        trees.push(tree);
    }
    trees
}

/// The number of files that were found again behind a checkpoint.
fn cuts_are_survived(kind: &[&str], seed: u64, cuts: u64) -> u64 {
    let Some(image) = Image::empty(64, kind) else { return 1 };
    let mut rolled = 0;
    let base = blocks_of(&image.path);
    let mut random = Random(seed);
    let fs = F2fs::open_as(&image.path, Variant::ALL[seed as usize % 2]).unwrap();
    let start = Tree::of(&fs).unwrap();
    let moments = play(&fs, &mut random, 120);
    let traffic = fs.traffic();
    assert!(traffic.iter().filter(|t| matches!(t, Traffic::Flush)).count() > 4, "nothing was flushed");
    drop(fs);
    for _ in 0..cuts {
        let at = random.below(traffic.len() as u64 + 1) as usize;
        let left = put_down(&cut(&base, &traffic[..at], &mut random));
        fsck_is_clean(&left.path);
        let fs = F2fs::open_for_writing(&left.path).unwrap_or_else(|e| panic!("seed {seed}, cut {at}: {e}"));
        let tree = Tree::of(&fs).unwrap();
        rolled += fs.info().fsynced_inodes;
        let may_be = may_be(&start, &moments, at);
        let differs: Vec<String> = may_be.iter().filter_map(|wanted| tree.difference(wanted)).collect();
        assert!(differs.len() < may_be.len(), "seed {seed}, cut {at} of {}: {}", traffic.len(), differs[0]);
        // It can be used, and unmounted.
        let (_, file) = fs
            .create(&Cred::root(), Ino::ROOT, Name::new(b"after").unwrap(), 0o600, OpenFlags::WRITE)
            .unwrap();
        fs.append(&file, &[5; 10_000]).unwrap();
        fs.release(file);
        fs.unmount().unwrap();
        fsck_is_clean(&left.path);
    }
    rolled
}

#[test]
fn what_a_cut_leaves_is_one_instant_and_has_all_that_was_synced() {
    let cuts = std::env::var("HEDDLE_F2FS_CUTS").map_or(6, |text| text.parse().unwrap());
    let phone = ["-O", "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum"];
    let seeds = 1..=3;
    let rolled: u64 = seeds
        .map(|seed| cuts_are_survived(&[], seed, cuts) + cuts_are_survived(&phone, 100 + seed, cuts))
        .sum();
    assert!(rolled > 0, "no file was found again behind a checkpoint");
}

/// Two fsyncs, of which a cut keeps only the second one's node: neither counts, and the second does not come to count when a later one of
/// another file fills the gap before it.
#[test]
fn what_lies_behind_a_lost_node_stays_lost() {
    let Some(image) = Image::empty(64, &[]) else { return };
    let root = Cred::root();
    let open = || F2fs::open_for_writing(&image.path).unwrap();
    let append = |fs: &F2fs, text: &str, fsync: bool| {
        let name = Name::new(text.as_bytes()).unwrap();
        let file = match fs.lookup(&root, Ino::ROOT, name) {
            Ok(attr) => fs.open(&root, attr.ino, OpenFlags::READ_WRITE).unwrap(),
            Err(_) => fs.create(&root, Ino::ROOT, name, 0o600, OpenFlags::READ_WRITE).unwrap().1,
        };
        fs.append(&file, text.as_bytes()).unwrap();
        if fsync {
            fs.fsync(&file, false).unwrap();
        }
        fs.release(file);
    };
    let fs = open();
    ["one", "two", "three"].into_iter().for_each(|text| append(&fs, text, false));
    fs.sync().unwrap();
    append(&fs, "one", true);
    let traffic = fs.traffic();
    let is_write = |t: &Traffic| matches!(t, Traffic::Write(..));
    let Some(Traffic::Write(lost, _)) = traffic.iter().rfind(|t| is_write(t)) else { panic!() };
    append(&fs, "two", true);
    drop(fs);
    let disk = File::options().write(true).open(&image.path).unwrap();
    disk.write_all_at(&[0; BLOCK], u64::from(lost.0) * BLOCK as u64).unwrap();
    let fs = open();
    assert_eq!(fs.info().fsynced_inodes, 0);
    append(&fs, "three", true);
    drop(fs);
    let fs = open();
    for (path, content) in [("/one", "one"), ("/two", "two"), ("/three", "threethree")] {
        assert_eq!(common::read(&fs, Path::new(path)), content.as_bytes());
    }
    fs.unmount().unwrap();
    fsck_is_clean(&image.path);
}

/// Threads append to files of their own and fsync, some new ones among them; whatever returned before a cut is there after it.
#[test]
fn what_threads_fsync_side_by_side_is_there_after_a_cut() {
    const THREADS: usize = 4;
    const APPENDS: u64 = 40;
    const RECORD: u64 = 700;
    let Some(image) = Image::empty(64, &[]) else { return };
    let root = Cred::root();
    let text = |me: usize, file: u64| format!("{me} {file}");
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    fs.sync().unwrap();
    fs.unmount().unwrap();
    let base = blocks_of(&image.path);
    let before = fs.traffic().len();
    // Of each thread what the device had been given when an append to a file had become durable, and the file's length then.
    let acknowledged: Vec<Vec<(usize, u64, u64)>> = std::thread::scope(|scope| {
        let work = |me: usize| {
            let (fs, root) = (&fs, &root);
            move || {
                let mut all = Vec::new();
                for n in 0..APPENDS {
                    let of = n / 10;
                    let text = text(me, of);
                    let name = Name::new(text.as_bytes()).unwrap();
                    let file = match fs.lookup(root, Ino::ROOT, name) {
                        Ok(attr) => fs.open(root, attr.ino, OpenFlags::READ_WRITE).unwrap(),
                        Err(_) => fs.create(root, Ino::ROOT, name, 0o600, OpenFlags::READ_WRITE).unwrap().1,
                    };
                    let at = fs.append(&file, &[me as u8 + 1; RECORD as usize]).unwrap();
                    fs.fsync(&file, n % 2 == 0).unwrap();
                    all.push((fs.traffic().len(), of, at + RECORD));
                    fs.release(file);
                }
                all
            }
        };
        let threads: Vec<_> = (0..THREADS).map(|me| scope.spawn(work(me))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let traffic = fs.traffic().split_off(before);
    drop(fs);
    let mut random = Random(17);
    let cuts: u64 = std::env::var("HEDDLE_F2FS_CUTS").map_or(20, |text| text.parse().unwrap());
    let mut rolled = 0;
    for _ in 0..cuts {
        let at = random.below(traffic.len() as u64 + 1) as usize;
        let left = put_down(&cut(&base, &traffic[..at], &mut random));
        fsck_is_clean(&left.path);
        let fs = F2fs::open_for_writing(&left.path).unwrap();
        rolled += fs.info().fsynced_inodes;
        for (me, all) in acknowledged.iter().enumerate() {
            for (_, file, len) in all.iter().filter(|(when, ..)| when - before <= at) {
                let content = common::read(&fs, Path::new(&format!("/{}", text(me, *file))));
                assert!(
                    content.len() as u64 >= *len,
                    "cut {at}: thread {me}, file {file}: {}",
                    content.len()
                );
                assert!(content.iter().all(|byte| *byte == me as u8 + 1));
            }
        }
        fs.unmount().unwrap();
        fsck_is_clean(&left.path);
    }
    assert!(rolled > cuts, "{rolled} files were found again behind a checkpoint");
}
