//! Calls that are played on an image whose device notes what it is given, the images that a cut leaves, and what may be on them.

use crate::common::{Image, fsck_is_clean, read};
use heddle_f2fs::{F2fs, Traffic};
use heddle_vfs::acl::{Acl, Entry, Tag};
use heddle_vfs::path::resolve_parent;
use heddle_vfs::testkit::Tree;
use heddle_vfs::{
    Cred, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RangeOp, RenameMode, SetAttr, SetTime,
    SetXattr, Time, XattrName,
};
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub const BLOCK: usize = 4096;

pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// After a call.
pub struct Moment {
    /// What the device had been given then.
    pub traffic: usize,
    pub tree: Tree,
    /// Paths of directories.
    pub dirs: HashMap<Ino, Vec<u8>>,
    pub durable: Durable,
    /// What was to be durable is: the call has not failed.
    pub returned: bool,
}

/// What a call has made durable.
#[derive(Clone, PartialEq)]
pub enum Durable {
    Nothing,
    Everything,
    /// The file of this name in a directory. That the directory has another name now is not durable by it.
    File(Ino, Vec<u8>),
}

/// The path of a directory.
pub fn path_of(fs: &F2fs, dir: Ino) -> Vec<u8> {
    if dir == Ino::ROOT {
        return Vec::new();
    }
    let above = fs.parent(dir).unwrap();
    let handle = fs.open(&Cred::root(), above, OpenFlags::READ).unwrap();
    let mut path = path_of(fs, above);
    let mut found = false;
    fs.each_entry(&handle, Default::default(), &mut |entry| {
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

/// One that changes the mode of what it is set on: to 0o640.
fn access_list() -> Vec<u8> {
    let entry = |tag, perm, id| Entry { tag, perm, id };
    let entries = [
        (Tag::Owner, 6, 0),
        (Tag::User, 6, 7),
        (Tag::OwningGroup, 0, 0),
        (Tag::Mask, 4, 0),
        (Tag::Others, 0, 0),
    ];
    Acl::new(entries.into_iter().map(|(tag, perm, id)| entry(tag, perm, id)).collect()).unwrap().to_xattr()
}

/// A list of calls on a few names; errors are as good as anything. It ends early when a device that is to fail has failed half-way through
/// one, and the state of half a call is no moment.
pub fn play(fs: &F2fs, random: &mut Random, calls: usize) -> Vec<Moment> {
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
        fs.set_faults(|faults| faults.paused = false);
        let dir = dirs[random.below(dirs.len() as u64) as usize];
        let (one, other) = (text(random), text(random));
        let (one, other) = (Name::new(one.as_bytes()).unwrap(), Name::new(other.as_bytes()).unwrap());
        let (mut durable, mut returned) = (Durable::Nothing, true);
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
            6 => {
                let to = dirs[random.below(dirs.len() as u64) as usize];
                let mode = if random.below(3) == 0 { RenameMode::Exchange } else { RenameMode::Replace };
                drop(fs.rename(&root, dir, one, to, other, mode));
            }
            7 => drop(fs.lookup(&root, dir, one).and_then(|attr| fs.link(&root, attr.ino, dir, other))),
            8..=11 => {
                if let Some(file) = open(dir, one) {
                    // Now and then behind what the inode leads to by itself.
                    let room = [20, 20, 20, 23][random.below(4) as usize];
                    let (at, len) = (random.below(1 << room), 1 + random.below(20_000));
                    let most = [5, 5, 5, 5, 5, 5, 5, 700][random.below(8) as usize];
                    let whole = vec![random.below(255) as u8 + 1; BLOCK * (1 + random.below(most) as usize)];
                    let older = Some(SetTime::At(Time::from_parts(random.below(80_000) as i64, 0)));
                    let (page, pages) = (at / BLOCK as u64 * BLOCK as u64, BLOCK as u64 * (1 + len % 3));
                    let _ = match random.below(9) {
                        0 => fs
                            .setattr(
                                &root,
                                file.ino,
                                Some(&file),
                                &SetAttr { size_bytes: Some(at), ..SetAttr::default() },
                            )
                            .map(drop),
                        1 => fs.fallocate(&file, RangeOp::Punch, at, len),
                        2 | 3 => fs.write(&file, page, &whole).map(drop),
                        // What lies behind moves.
                        6 => fs.fallocate(&file, RangeOp::Collapse, page, pages),
                        7 => fs.fallocate(&file, RangeOp::Insert, page, pages),
                        8 => {
                            let set = SetAttr { mtime: older, ..SetAttr::default() };
                            fs.setattr(&root, file.ino, Some(&file), &set).map(drop)
                        }
                        4 => fs.append(&file, &vec![random.below(255) as u8 + 1; len as usize]).map(drop),
                        _ => fs.write(&file, at, &vec![random.below(255) as u8 + 1; len as usize]).map(drop),
                    };
                    if random.below(2) == 0 && !fs.has_failed() {
                        returned = fs.fsync(&file, false).is_ok();
                        // Of a file with several names that is a checkpoint, or a log checkpoint.
                        let is_one = fs.getattr(file.ino).is_ok_and(|attr| attr.nlink == 1);
                        let of_it = || Durable::File(dir, one.bytes().to_vec());
                        durable = if is_one { of_it() } else { Durable::Everything };
                    }
                    fs.release(file);
                }
            }
            12 => {
                let value = vec![3; random.below(600) as usize];
                let (name, what) = (XattrName::new(b"user.x").unwrap(), random.below(5));
                let _ = fs.lookup(&root, dir, one).and_then(|attr| match what {
                    0 => fs.removexattr(&root, attr.ino, name),
                    // With the mode.
                    1 => fs.setxattr(&root, attr.ino, XattrName::ACL_ACCESS, &access_list(), SetXattr::Any),
                    _ => fs.setxattr(&root, attr.ino, name, &value, SetXattr::Any),
                });
            }
            _ => {
                returned = fs.sync().is_ok();
                durable = Durable::Everything;
            }
        }
        fs.set_faults(|faults| faults.paused = true);
        if fs.has_failed() && durable == Durable::Nothing {
            break;
        }
        let traffic = fs.traffic();
        if durable != Durable::Nothing && has_checkpoint(&traffic[before..]) {
            durable = Durable::Everything;
        }
        let lives = dirs.iter().filter(|dir| fs.getattr(**dir).is_ok());
        let paths = lives.map(|dir| (*dir, path_of(fs, *dir))).collect();
        let tree = Tree::of(fs).unwrap();
        moments.push(Moment { traffic: traffic.len(), tree, dirs: paths, durable, returned });
        if fs.has_failed() {
            break;
        }
    }
    moments
}

/// The blocks of an image that hold something.
pub fn blocks_of(path: &Path) -> BTreeMap<u32, Vec<u8>> {
    let bytes = std::fs::read(path).unwrap();
    let all = bytes.chunks(BLOCK).enumerate();
    all.filter(|(_, block)| block.iter().any(|b| *b != 0))
        .map(|(n, block)| (n as u32, block.to_vec()))
        .collect()
}

/// Puts a block onto an image, or only its first bytes.
fn put(image: &mut BTreeMap<u32, Vec<u8>>, addr: u32, block: &[u8], len: usize) {
    image.entry(addr).or_insert_with(|| vec![0; BLOCK])[..len].copy_from_slice(&block[..len]);
}

/// How much had happened at a cut: anything, or all but a flush, when most is pending, or a flush too, when nothing is.
pub fn instant(traffic: &[Traffic], random: &mut Random) -> usize {
    let is_flush = |at: &usize| matches!(traffic[*at], Traffic::Flush);
    let flushes: Vec<usize> = (0..traffic.len()).filter(is_flush).collect();
    if flushes.is_empty() || random.below(2) == 0 {
        return random.below(traffic.len() as u64 + 1) as usize;
    }
    flushes[random.below(flushes.len() as u64) as usize] + random.below(2) as usize
}

/// The image that a cut leaves after so much traffic.
pub fn cut(
    base: &BTreeMap<u32, Vec<u8>>,
    traffic: &[Traffic],
    random: &mut Random,
) -> BTreeMap<u32, Vec<u8>> {
    let mut image = base.clone();
    // None of the rest, all of it, or some.
    let mode = random.below(4);
    for (n, one) in traffic.iter().enumerate() {
        if let Traffic::Discard(addr, blocks) = one {
            // At once, later or never; a cut before it has happened looks like one where it never does.
            if random.below(2) == 0 {
                (addr.0..addr.0 + blocks).for_each(|block| drop(image.insert(block, vec![0xdd; BLOCK])));
            }
            continue;
        }
        let (Traffic::Write(addr, bytes) | Traffic::FailedWrite(addr, bytes)) = one else { continue };
        // A flush that fails leaves what it was to flush to chance, also if a later one does not.
        let mut flushes = traffic[n..].iter().filter(|t| matches!(t, Traffic::Flush | Traffic::FailedFlush));
        let is_flushed = matches!((one, flushes.next()), (Traffic::Write(..), Some(Traffic::Flush)));
        // Blocks of one write arrive each for itself.
        for (n, block) in bytes.chunks(BLOCK).enumerate() {
            let len = match mode {
                _ if is_flushed => BLOCK,
                0 => 0,
                1 => BLOCK,
                _ => [0, BLOCK, 512 * random.below(8) as usize][random.below(3) as usize],
            };
            put(&mut image, addr.0 + n as u32, block, len);
        }
    }
    image
}

/// An image of these blocks.
pub fn put_down(blocks: &BTreeMap<u32, Vec<u8>>) -> Image {
    let left = Image::empty(64, &[]).unwrap();
    let file = File::options().write(true).open(&left.path).unwrap();
    file.set_len(0).unwrap();
    file.set_len(64 << 20).unwrap();
    for (n, block) in blocks {
        file.write_all_at(block, u64::from(*n) * BLOCK as u64).unwrap();
    }
    left
}

/// Makes a file of twenty pages, durably, and cuts three of them out, durably: how much had happened in between, and both states.
pub fn shifted(fs: &F2fs) -> (usize, [Tree; 2]) {
    let (root, name) = (Cred::root(), Name::new(b"shifted").unwrap());
    let (_, file) = fs.create(&root, Ino::ROOT, name, 0o600, OpenFlags::READ_WRITE).unwrap();
    let pages: Vec<u8> = (0..20 * BLOCK).map(|byte| (byte / BLOCK) as u8 + 1).collect();
    fs.write(&file, 0, &pages).unwrap();
    fs.sync().unwrap();
    let (begin, before) = (fs.traffic().len(), Tree::of(fs).unwrap());
    fs.fallocate(&file, RangeOp::Collapse, 4 * BLOCK as u64, 3 * BLOCK as u64).unwrap();
    fs.sync().unwrap();
    fs.release(file);
    (begin, [before, Tree::of(fs).unwrap()])
}

/// Renames a file over one of another directory: what had been written before, and the states before and after.
pub fn replaced(fs: &F2fs) -> (usize, [Tree; 2]) {
    let (root, [moved, target]) =
        (Cred::root(), [&b"moved"[..], b"target"].map(|name| Name::new(name).unwrap()));
    let node = NewNode { kind: FileKind::Directory, perm: 0o755, rdev: 0, target: &[] };
    let dir = fs.make(&root, Ino::ROOT, Name::new(b"dir").unwrap(), node).unwrap().ino;
    for (parent, name) in [(Ino::ROOT, moved), (dir, target)] {
        let (_, file) = fs.create(&root, parent, name, 0o600, OpenFlags::READ_WRITE).unwrap();
        fs.write(&file, 0, name.bytes()).unwrap();
        fs.release(file);
    }
    fs.sync().unwrap();
    let (begin, before) = (fs.traffic().len(), Tree::of(fs).unwrap());
    fs.rename(&root, Ino::ROOT, moved, dir, target, RenameMode::Replace).unwrap();
    fs.sync().unwrap();
    (begin, [before, Tree::of(fs).unwrap()])
}

/// What a cut left can be used, emptied, and mounted again.
pub fn can_be_used_emptied_and_mounted(fs: F2fs, path: &Path, mount_again: impl FnOnce() -> F2fs) {
    let (root, after) = (Cred::root(), Name::new(b"after").unwrap());
    let (_, file) = fs.create(&root, Ino::ROOT, after, 0o600, OpenFlags::WRITE).unwrap();
    fs.append(&file, &[5; 10_000]).unwrap();
    fs.fsync(&file, false).unwrap();
    fs.release(file);
    assert!(read(&fs, Path::new("/after")) == [5; 10_000]);
    // What is in a directory has a longer path than it, and comes behind.
    for (path, node) in Tree::of(&fs).unwrap().nodes.iter().rev().filter(|(path, _)| path.len() > 1) {
        let (dir, name) = resolve_parent(&fs, &root, std::str::from_utf8(path).unwrap()).unwrap();
        match node.kind {
            FileKind::Directory => fs.rmdir(&root, dir, name).unwrap(),
            _ => fs.unlink(&root, dir, name).unwrap(),
        }
    }
    fs.unmount().unwrap();
    drop(fs);
    fsck_is_clean(path);
    let fs = mount_again();
    assert_eq!(Tree::of(&fs).unwrap().nodes.len(), 1, "all was removed");
    fs.unmount().unwrap();
}

/// What may be there after a cut: what a checkpoint had at an instant not before the last sync, and of files that were fsynced since what
/// they had then; the fsync that was cut off counts or does not.
pub fn may_be(start: &Tree, moments: &[Moment], at: usize) -> Vec<Tree> {
    let is_acknowledged = |m: &Moment| m.durable == Durable::Everything && m.returned && m.traffic <= at;
    let acknowledged = moments.iter().rposition(is_acknowledged);
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
                if moment.traffic > at || !moment.returned {
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

/// What threads have appended and fsynced: of each thread what had happened when that had returned, of which file, and its length then.
pub struct Appended(Vec<Vec<(usize, u64, u64)>>);

impl Appended {
    /// Some threads append to files of their own, each to four of them, which they make, and fsync each time.
    pub fn side_by_side(fs: &F2fs) -> Appended {
        const APPENDS: u64 = 40;
        let appended = Appended::until_a_failure(fs, APPENDS);
        assert!(appended.0.iter().all(|of_one| of_one.len() as u64 == APPENDS));
        appended
    }

    /// The same, as long as no call of the thread fails.
    pub fn until_a_failure(fs: &F2fs, appends: u64) -> Appended {
        const THREADS: usize = 4;
        const RECORD: u64 = 700;
        let work = |me: usize| {
            let append = move |n: u64| {
                let (root, text) = (Cred::root(), Appended::name(me, n / 10));
                let name = Name::new(text.as_bytes()).unwrap();
                let file = match fs.lookup(&root, Ino::ROOT, name) {
                    Ok(attr) => fs.open(&root, attr.ino, OpenFlags::READ_WRITE).ok()?,
                    Err(_) => fs.create(&root, Ino::ROOT, name, 0o600, OpenFlags::READ_WRITE).ok()?.1,
                };
                let at = fs.append(&file, &[me as u8 + 1; RECORD as usize]);
                let done = at.and_then(|at| fs.fsync(&file, n.is_multiple_of(2)).map(|()| at));
                fs.release(file);
                Some((fs.traffic().len(), n / 10, done.ok()? + RECORD))
            };
            move || (0..appends).map_while(append).collect()
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..THREADS).map(|me| scope.spawn(work(me))).collect();
            Appended(threads.into_iter().map(|thread| thread.join().unwrap()).collect())
        })
    }

    fn name(thread: usize, file: u64) -> String {
        format!("{thread} {file}")
    }

    /// All that had returned then is there.
    #[track_caller]
    pub fn is_there(&self, fs: &F2fs, then: usize) {
        for (me, all) in self.0.iter().enumerate() {
            for (_, file, len) in all.iter().filter(|(when, ..)| *when <= then) {
                let content = read(fs, Path::new(&format!("/{}", Appended::name(me, *file))));
                let found = content.len() as u64;
                assert!(found >= *len, "cut {then}: thread {me}, file {file}: {found} bytes");
                assert!(content.iter().all(|byte| *byte == me as u8 + 1));
            }
        }
    }
}
