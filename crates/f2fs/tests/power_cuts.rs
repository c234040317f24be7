//! The device is cut off at any instant: what was acknowledged is there, what is there is one instant of what happened, and the image is
//! one that fsck.f2fs and this engine take as it is.
//!
//! Of the writes since the last flush each may have reached the media or not, or in part. `HEDDLE_F2FS_CUTS`: cuts of each of the lists.

mod common;

use common::{Image, fsck_is_clean};
use heddle_f2fs::{BlockAddr, F2fs, Traffic};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{
    Cred, FileKind, FileSystem, Handle, Ino, Name, NewNode, OpenFlags, RangeOp, RenameMode, SetAttr,
    SetXattr, XattrName,
};
use std::collections::BTreeMap;
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
    /// It was a sync.
    durable: bool,
}

/// A list of calls on a few names; errors are as good as anything.
fn play(fs: &F2fs, random: &mut Random, calls: usize) -> Vec<Moment> {
    let root = Cred::root();
    let text = |random: &mut Random| format!("name {}", random.below(5));
    let mut dirs = vec![Ino::ROOT];
    let mut moments = Vec::new();
    let open = |dir: Ino, name: Name<'_>| -> Option<Handle> {
        let attr = fs.lookup(&root, dir, name).ok()?;
        fs.open(&root, attr.ino, OpenFlags::READ_WRITE).ok()
    };
    for _ in 0..calls {
        let dir = dirs[random.below(dirs.len() as u64) as usize];
        let (one, other) = (text(random), text(random));
        let (one, other) = (Name::new(one.as_bytes()).unwrap(), Name::new(other.as_bytes()).unwrap());
        let mut durable = false;
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
                    let _ = match random.below(4) {
                        0 => fs
                            .setattr(
                                &root,
                                file.ino,
                                Some(&file),
                                &SetAttr { size_bytes: Some(at), ..SetAttr::default() },
                            )
                            .map(drop),
                        1 => fs.fallocate(&file, RangeOp::Punch, at, len),
                        2 => fs.append(&file, &vec![random.below(255) as u8 + 1; len as usize]).map(drop),
                        _ => fs.write(&file, at, &vec![random.below(255) as u8 + 1; len as usize]).map(drop),
                    };
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
                durable = true;
            }
        }
        moments.push(Moment { traffic: fs.traffic().len(), tree: Tree::of(fs).unwrap(), durable });
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

fn cuts_are_survived(kind: &[&str], seed: u64, cuts: u64) {
    let Some(image) = Image::empty(64, kind) else { return };
    let base = blocks_of(&image.path);
    let mut random = Random(seed);
    let fs = F2fs::open_for_writing(&image.path).unwrap();
    let start = Tree::of(&fs).unwrap();
    let moments = play(&fs, &mut random, 120);
    let traffic = fs.traffic();
    assert!(traffic.iter().filter(|t| matches!(t, Traffic::Flush)).count() > 4, "nothing was flushed");
    drop(fs);
    for _ in 0..cuts {
        let at = random.below(traffic.len() as u64 + 1) as usize;
        let left = Image::empty(64, &[]).unwrap();
        let file = File::options().write(true).open(&left.path).unwrap();
        file.set_len(0).unwrap();
        file.set_len(64 << 20).unwrap();
        for (n, block) in cut(&base, &traffic[..at], &mut random) {
            file.write_all_at(&block, u64::from(n) * BLOCK as u64).unwrap();
        }
        fsck_is_clean(&left.path);
        let fs = F2fs::open_for_writing(&left.path).unwrap_or_else(|e| panic!("seed {seed}, cut {at}: {e}"));
        let tree = Tree::of(&fs).unwrap();
        let acknowledged = moments.iter().rposition(|m| m.durable && m.traffic <= at);
        let running = moments.iter().position(|m| m.traffic > at).unwrap_or(moments.len() - 1);
        let mut may_be: Vec<&Tree> =
            moments[acknowledged.unwrap_or(0)..=running].iter().map(|m| &m.tree).collect();
        if acknowledged.is_none() {
            may_be.push(&start);
        }
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
}

#[test]
fn what_a_cut_leaves_is_one_instant_and_has_all_that_was_synced() {
    let cuts = std::env::var("HEDDLE_F2FS_CUTS").map_or(6, |text| text.parse().unwrap());
    let phone = ["-O", "extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr,sb_checksum"];
    for seed in 1..=3 {
        cuts_are_survived(&[], seed, cuts);
        cuts_are_survived(&phone, 100 + seed, cuts);
    }
}
