//! Several damages at once, large and small: what nobody touched stays as it was, and the repaired image is sound.

use super::sample::{IMAGE_BYTES, Sample, image_bytes, region_of};
use crate::common::{each_variant, env, options};
use heddle_nvmfs::format::inode::CHUNK_INODES;
use heddle_nvmfs::fsck::{Survey, examine};
use heddle_nvmfs::{Variant, mount};
use heddle_vfs::testkit::{Node, Tree};
use heddle_vfs::{FileKind, Ino};
use std::collections::BTreeSet;

const PAGE: usize = 4096;

struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % end
    }
}

/// Damages bytes somewhere in the metadata; the inodes whose structures they were of.
fn damage(image: &mut [u8], survey: &Survey, random: &mut Random) -> BTreeSet<Ino> {
    let owners: Vec<_> = survey.owners.iter().filter(|o| !o.data).collect();
    let mut hit = BTreeSet::new();
    for _ in 0..=random.below(3) {
        let owner = owners[random.below(owners.len())];
        let block = owner.block.0 as usize + random.below(owner.count as usize);
        let line = block * PAGE + random.below(64) * 64;
        let how = random.below(6);
        let range = match how {
            0 => block * PAGE..(block + 1) * PAGE,
            1 | 2 => line..line + 64,
            _ => line + random.below(8) * 8..line + 64,
        };
        match owner.ino {
            Some(ino) => {
                hit.insert(ino);
            }
            // A chunk: slots of 128 bytes.
            None => {
                let number: u64 = owner.what.rsplit(' ').next().unwrap().parse().unwrap();
                let first = owner.block.0 as usize * PAGE;
                let slots = (range.start - first) / 128..=(range.end - 1 - first) / 128;
                hit.extend(slots.map(|slot| Ino(number * CHUNK_INODES + slot as u64)));
            }
        }
        for at in range {
            image[at] = match how {
                0 | 1 => random.below(256) as u8,
                2 | 3 => 0,
                _ => image[at] ^ ((1 << random.below(8)) * u8::from(random.below(20) == 0)),
            };
        }
    }
    hit
}

/// Without what another's loss may change.
fn own(node: &Node) -> Node {
    let mut node = node.clone();
    (node.nlink, node.first_name) = (0, Vec::new());
    node
}

/// The directories that a path leads through.
pub fn dirs_above(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let cuts = path.iter().enumerate().filter(|(_, b)| **b == b'/').map(|(at, _)| at);
    cuts.map(|at| if at == 0 { &b"/"[..] } else { &path[..at] })
}

/// Everything that was not hit is where it was; below a directory that was hit, files may have moved to lost+found.
pub fn undamaged_is_whole(sample: &Sample, hit: &BTreeSet<Ino>, after: &Tree) -> Result<(), String> {
    for (path, node) in &sample.tree.nodes {
        if hit.contains(&sample.inos[path]) {
            continue;
        }
        let shown = String::from_utf8_lossy(path);
        let moved = dirs_above(path).any(|dir| hit.contains(&sample.inos[dir]));
        let node = own(node);
        let there = after.nodes.get(path).map(own);
        match there {
            Some(now) if now == node => {}
            Some(_) if !moved => return Err(format!("{shown} has changed")),
            None if !moved => return Err(format!("{shown} is gone")),
            // An empty file or directory looks like any other.
            _ if node.kind == FileKind::Directory => {}
            _ if after.nodes.values().any(|n| own(n) == node) => {}
            _ => return Err(format!("{shown} was below a damaged directory and is not found anywhere")),
        }
    }
    Ok(())
}

fn one_round(sample: &Sample, survey: &Survey, whole: &[u8], seed: u64) -> Result<bool, String> {
    let mut random = Random(seed);
    let mut image = whole.to_vec();
    let hit = damage(&mut image, survey, &mut random);
    let region = region_of(&image);
    let verdict = examine("damaged", &region).map_err(|e| e.to_string())?;
    let issues = || format!("{:#?}", verdict.issues);
    if verdict.left() > 0 {
        return Err(format!("not all of it is repaired: {}", issues()));
    }
    for (block, words) in verdict.changes() {
        let bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
        region.nt_write(block.pos(), &bytes);
    }
    region.fence();
    let again = examine("repaired", &region).map_err(|e| e.to_string())?;
    if again.found() > 0 || again.changes().count() > 0 {
        return Err(format!("a second fsck finds {:#?} after {}", again.issues, issues()));
    }
    let volume = mount(region, &options()).map_err(|e| format!("{e} after {}", issues()))?;
    let tree = Tree::of(&volume.fs()).map_err(|e| format!("{e} after {}", issues()))?;
    volume.unmount();
    undamaged_is_whole(sample, &hit, &tree).map_err(|why| format!("{why}; hit {hit:?}: {}", issues()))?;
    Ok(verdict.found() > 0)
}

fn damage_is_contained(variant: Variant, rounds: u64) {
    let sample = Sample::new(variant);
    let whole = image_bytes(&sample.region);
    assert_eq!(whole.len() as u64, IMAGE_BYTES);
    let survey = sample.survey();
    let (mut found, mut wrong) = (0, Vec::new());
    for seed in 0..rounds {
        match one_round(&sample, &survey, &whole, seed) {
            Ok(something) => found += u64::from(something),
            Err(why) => wrong.push(format!("round {seed}: {why}")),
        }
    }
    println!("{}: {rounds} rounds, {found} with findings", variant.name());
    assert!(wrong.is_empty(), "{} of {rounds}:\n{}", wrong.len(), wrong[..wrong.len().min(5)].join("\n"));
    assert!(found * 2 > rounds, "hardly anything was damaged");
}

#[test]
fn damage_hurts_no_other_file_and_repair_makes_the_image_sound() {
    each_variant(|variant| damage_is_contained(variant, env("HEDDLE_FSCK_ROUNDS", 60)));
}
