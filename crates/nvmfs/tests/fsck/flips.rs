//! Every field of every structure, flipped once.

use super::sample::{IMAGE_BYTES, Sample, image_bytes};
use crate::common::{each_variant, env, options};
use heddle_nvmfs::fsck::examine;
use heddle_nvmfs::{Variant, mount};
use heddle_pmem::{Pos, Region};
use heddle_vfs::testkit::Tree;
use std::collections::BTreeMap;

const BLOCK_BITS: u64 = 4096 * 8;
const LINE_BITS: u64 = 512;
/// Every so many bits one is flipped, if `HEDDLE_FLIP_STRIDE` does not say otherwise.
const STRIDE: u64 = 2503;

fn flip(region: &Region, bit: u64) {
    let at = Pos(bit / 64 * 8);
    region.store_u64(at, region.load_u64(at) ^ 1 << (bit % 64));
}

/// Bits to flip: of the blocks that hold metadata every `stride`th, of their blank lines fewer.
fn bits(sample: &Sample, stride: u64) -> Vec<u64> {
    let survey = sample.survey();
    let last = IMAGE_BYTES / 4096 - 1;
    let mut blocks = vec![0, 1, last];
    blocks.extend(survey.owners.iter().filter(|o| !o.data).flat_map(|o| o.block.0..o.block.0 + o.count));
    blocks.sort_unstable();
    let mut bits = Vec::new();
    let mut next = 0;
    for line in blocks.iter().flat_map(|b| (0..64).map(move |line| b * BLOCK_BITS + line * LINE_BITS)) {
        let blank = sample.region.line(Pos(line / 8)) == [0; 8];
        let stride = if blank { stride * 16 } else { stride };
        while next < LINE_BITS {
            bits.push(line + next);
            next += stride;
        }
        next -= LINE_BITS;
    }
    bits
}

/// What is wrong with what fsck made of a flipped bit; `Ok(false)`: it has no effect.
fn judge(sample: &Sample, whole: &[u8], bit: u64) -> Result<bool, String> {
    let verdict = examine("flipped", &sample.region).map_err(|e| e.to_string())?;
    let block = bit / BLOCK_BITS;
    if verdict.found() == 0 {
        let mut damaged = whole.to_vec();
        damaged[bit as usize / 8] ^= 1 << (bit % 8);
        let volume =
            mount(Region::simulated_from(&damaged).0, &options()).map_err(|e| format!("not found: {e}"))?;
        let tree = Tree::of(&volume.fs()).map_err(|e| format!("not found: {e}"))?;
        volume.abandon();
        return tree.difference(&sample.tree).map_or(Ok(false), |d| Err(format!("not found: {d}")));
    }
    if verdict.left() > 0 {
        return Err(format!("not repaired: {:?}", verdict.issues));
    }
    let superblock = |block: u64| block == 0 || block == IMAGE_BYTES / 4096 - 1;
    let mut met = superblock(block);
    for (changed, words) in verdict.changes() {
        met |= changed.0 == block;
        let same = |(i, word): (usize, &u64)| {
            let at = changed.0 as usize * 4096 + i * 8;
            whole[at..at + 8] == word.to_le_bytes()
        };
        if !superblock(changed.0) && !words.iter().enumerate().all(same) {
            return Err(format!("block {} was not put back as it was: {:?}", changed.0, verdict.issues));
        }
    }
    if met { Ok(true) } else { Err(format!("the bit was left as it is: {:?}", verdict.issues)) }
}

/// What is not found lies in extent lists and blobs behind their last word, or makes a superblock's count differ by one, as a power cut
/// does.
fn may_be_unread(what: &str) -> bool {
    ["an extent list", "attributes", "a map", "fixed"].contains(&what)
}

fn flips_are_found_and_put_right(variant: Variant, stride: u64) {
    let sample = Sample::new(variant);
    let whole = image_bytes(&sample.region);
    let owners: BTreeMap<u64, String> = sample
        .survey()
        .owners
        .iter()
        .flat_map(|o| (o.block.0..o.block.0 + o.count).map(|b| (b, o.what.clone())))
        .collect();
    let (mut found, mut harmless, mut wrong) = (0, BTreeMap::new(), Vec::new());
    let bits = bits(&sample, stride);
    for bit in &bits {
        let (block, line, of) = (bit / BLOCK_BITS, bit % BLOCK_BITS / LINE_BITS, bit % LINE_BITS);
        let owner = owners.get(&block).map_or("fixed", String::as_str);
        let what = owner.split(" of inode").next().unwrap_or(owner);
        flip(&sample.region, *bit);
        match judge(&sample, &whole, *bit) {
            Ok(true) => found += 1,
            Ok(false) if may_be_unread(what) => *harmless.entry(what).or_insert(0) += 1,
            Ok(false) => wrong.push(format!("block {block} ({owner}), line {line}, bit {of}: not found")),
            Err(why) => wrong.push(format!("block {block} ({owner}), line {line}, bit {of}: {why}")),
        }
        flip(&sample.region, *bit);
    }
    println!("{}: {} bits, {found} found, without effect: {harmless:?}", variant.name(), bits.len());
    assert!(
        wrong.is_empty(),
        "{} of {}:\n{}",
        wrong.len(),
        bits.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    // As many as one in 1,259 bits gives, less a tenth for chance.
    assert!(found * stride > 450 * 1259, "only {found} were found");
    assert!(harmless.get("fixed").is_none_or(|count| *count <= 8), "{harmless:?}");
    assert!(image_bytes(&sample.region) == whole);
}

#[test]
fn a_flipped_bit_of_any_structure_is_found_and_turned_back() {
    each_variant(|variant| flips_are_found_and_put_right(variant, env("HEDDLE_FLIP_STRIDE", STRIDE)));
}

#[test]
#[ignore = "takes an hour"]
fn every_flipped_bit_is_found_and_turned_back() {
    each_variant(|variant| flips_are_found_and_put_right(variant, env("HEDDLE_FLIP_STRIDE", 1)));
}
