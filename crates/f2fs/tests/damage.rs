//! Whatever stands on the device: errors, never a panic, and an end.

mod common;

use common::{Image, Source};
use heddle_f2fs::format::{BLOCK_BYTES, Block};
use heddle_f2fs::{F2fs, Geometry};
use heddle_vfs::{Cred, FileKind, FileSystem, Ino, OpenFlags};
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Damages tried.
const ROUNDS: u64 = 300;
/// Names looked at: a damaged directory may name itself for ever.
const NAMES_MAX: usize = 3000;

/// Numbers that depend on a seed alone.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }
}

#[test]
fn no_damage_makes_it_panic_or_go_on_for_ever() {
    let source = Source::of_small_files();
    let options = ["-O", "extra_attr,inode_crtime,flexible_inline_xattr"];
    let Some(image) = Image::of(&source, &options) else { return };
    let file = File::options().read(true).write(true).open(&image.path).unwrap();
    let geometry = F2fs::open(&image.path).unwrap().info().geometry;
    let places = places(&file, &geometry);
    let mut random = Random(0x5eed);
    let (mut opened, mut refused) = (0, 0);
    for _ in 0..ROUNDS {
        let hits: Vec<_> =
            (0..1 + random.below(3)).flat_map(|_| hit(&file, &geometry, &places, &mut random)).collect();
        match F2fs::open(&image.path) {
            Ok(fs) => {
                opened += 1;
                walk(&fs);
            }
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
        }
        // The last first: one may have hit what another had changed.
        for (at, before) in hits.iter().rev() {
            file.write_all_at(&before[..], *at).unwrap();
        }
    }
    assert!(opened > ROUNDS / 4 && refused > ROUNDS / 50, "{opened} opened, {refused} refused");
    println!("{opened} damaged images opened, {refused} refused");
}

/// Blocks that hold something: superblocks and checkpoints, the node table, nodes and data.
fn places(file: &File, geometry: &Geometry) -> [Vec<u64>; 3] {
    let used = |from: u32, to: u32| {
        (from..to).filter(|block| {
            let mut bytes = [0; BLOCK_BYTES];
            file.read_exact_at(&mut bytes, u64::from(*block) * BLOCK_BYTES as u64).unwrap();
            bytes.iter().any(|byte| *byte != 0)
        })
    };
    let main_end = geometry.main.0 + geometry.main_segments * 512;
    let areas = [(0, geometry.sit.0), (geometry.nat.0, geometry.ssa.0), (geometry.main.0, main_end)];
    areas.map(|(from, to)| used(from, to).map(|block| u64::from(block) * BLOCK_BYTES as u64).collect())
}

/// Changes a few bytes of a block, to values that mean something, and of its other copy if it has one; what was there before.
fn hit(
    file: &File,
    geometry: &Geometry,
    places: &[Vec<u64>; 3],
    random: &mut Random,
) -> Vec<(u64, Box<Block>)> {
    // The most about what most depends on.
    let area = &places[random.below(3) as usize];
    let at = area[random.below(area.len() as u64) as usize];
    let mut after = Box::new([0; BLOCK_BYTES]);
    file.read_exact_at(&mut after[..], at).unwrap();
    for _ in 0..1 + random.below(8) {
        // What blocks begin with means the most; superblocks begin a quarter into theirs.
        let start = if at < 2 * BLOCK_BYTES as u64 { 1024 } else { 0 };
        let reach = if random.below(2) == 0 { 200 } else { BLOCK_BYTES as u64 - start };
        let word = (start + random.below(reach) / 4 * 4) as usize;
        let value = match random.below(6) {
            0 => 0,
            1 => u32::MAX,
            2 => u32::MAX - 1,
            3 => random.below(8192) as u32,
            4 => random.next() as u32,
            _ => {
                let near = after[word..].first_chunk().map_or(0, |word| u32::from_le_bytes(*word));
                near ^ 1 << random.below(32)
            }
        };
        after[word..word + 4].copy_from_slice(&value.to_le_bytes());
    }
    put_right(&mut after);
    let replace = |at| {
        let mut before = Box::new([0; BLOCK_BYTES]);
        file.read_exact_at(&mut before[..], at).unwrap();
        file.write_all_at(&after[..], at).unwrap();
        (at, before)
    };
    [Some(at), other_copy(geometry, at)].into_iter().flatten().map(replace).collect()
}

/// Superblocks stand side by side, packs a segment apart.
fn other_copy(geometry: &Geometry, at: u64) -> Option<u64> {
    let (block, first) = (at / BLOCK_BYTES as u64, u64::from(geometry.checkpoint.0));
    let other = match block {
        0 | 1 => 1 - block,
        block if (first..first + 512).contains(&block) => block + 512,
        block if (first + 512..first + 1024).contains(&block) => block - 512,
        _ => return None,
    };
    Some(other * BLOCK_BYTES as u64)
}

/// A block that could be a checkpoint's gets a right checksum: what it says must be judged, not only that it was hit.
fn put_right(block: &mut Block) {
    const CRC: usize = BLOCK_BYTES - 4;
    let says = u32::from_le_bytes([block[164], block[165], block[166], block[167]]);
    if says as usize == CRC {
        let mut crc = !0xf2f5_2010_u32;
        let mut hasher = crc32fast::Hasher::new_with_initial(crc);
        hasher.update(&block[..CRC]);
        crc = !hasher.finalize();
        block[CRC..].copy_from_slice(&crc.to_le_bytes());
    }
}

/// Looks at all there is.
fn walk(fs: &F2fs) {
    let root = Cred::root();
    let _ = (fs.statfs(), fs.info(), fs.parent(Ino::ROOT));
    let (mut dirs, mut names) = (vec![Ino::ROOT], 0);
    while let Some(dir) = dirs.pop() {
        let Ok(handle) = fs.open(&root, dir, OpenFlags::READ) else { continue };
        let mut children = Vec::new();
        let _ = fs.readdir(&handle, Default::default(), &mut |entry| {
            names += 1;
            children.push((entry.ino, entry.kind));
            let _ = fs.lookup(&root, dir, entry.name);
            names < NAMES_MAX
        });
        fs.release(handle);
        for (ino, kind) in children {
            let _ = (fs.getattr(ino), fs.listxattr(&root, ino), fs.readlink(ino));
            if kind == FileKind::Directory {
                dirs.push(ino);
            } else if let Ok(handle) = fs.open(&root, ino, OpenFlags::READ) {
                let mut bytes = [0; 10_000];
                let _ = (fs.read(&handle, 0, &mut bytes), fs.read(&handle, 1 << 32, &mut bytes));
                let _ = fs.seek(&handle, heddle_vfs::SeekTarget::Hole, 0);
                fs.release(handle);
            }
        }
        if names >= NAMES_MAX {
            return;
        }
    }
}
