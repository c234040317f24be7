//! Images that are cut short, foreign, blank or damaged give a clear error or the right content, never a panic, never a
//! wrong answer.
//!
//! `HEDDLE_FLIP_STRIDE`: every so many bits of the metadata is flipped (1: all of them; a prime reaches all kinds of fields).

mod common;
mod images {
    mod mounts;
    mod superblocks;
    mod zeroed;
}

use common::{Short, each_variant, env, options, root};
use heddle_nvmfs::{Variant, Volume, VolumeError, format_region, mount};
use heddle_pmem::{Pos, Region};
use heddle_vfs::testkit::Tree;
use heddle_vfs::{Error, FileKind, FileSystem, Ino, NewNode, RangeOp, SetAttr, SetXattr, XattrName};
use std::panic::{AssertUnwindSafe, catch_unwind};

const IMAGE_BYTES: u64 = 4 << 20;
const PAGE: usize = 4096;
const LINE: usize = 64;
const SUPERBLOCK_BYTES: usize = 128;
/// What every byte of file data is: lines of nothing else are data, which has no checksums.
const DATA: u8 = 0xd7;

/// A small file system with every kind of record, unmounted; its bytes and what it holds.
fn image(variant: Variant) -> (Vec<u8>, Tree) {
    let region = Region::anonymous(IMAGE_BYTES).unwrap();
    let reader = region.map_again().unwrap();
    format_region(&region, variant).unwrap();
    let volume = mount(region, &options()).unwrap();
    let fs = volume.fs();
    let dir = fs.new_dir(Ino::ROOT, "dir");
    let handle = fs
        .new_file(dir, "file with a name that takes more than one line of the log, so that records are long");
    fs.write(&handle, 0, &[DATA; 5 * PAGE]).unwrap();
    fs.append(&handle, &[DATA; 3 * PAGE]).unwrap();
    fs.fallocate(&handle, RangeOp::Punch, PAGE as u64, 2 * PAGE as u64).unwrap();
    fs.fallocate(&handle, RangeOp::Allocate { keep_size: true }, 8 * PAGE as u64, PAGE as u64).unwrap();
    fs.resize(&handle, 7 * PAGE as u64).unwrap();
    fs.release(handle);
    let gone = fs.new_file(dir, "gone");
    fs.write(&gone, 0, &[DATA; PAGE]).unwrap();
    fs.release(gone);
    fs.remove(dir, "gone").unwrap();
    let set = SetAttr { perm: Some(0o640), uid: Some(12), gid: Some(34), ..SetAttr::default() };
    let other = fs.new_file(dir, "other");
    fs.setattr(&root(), other.ino, None, &set).unwrap();
    fs.link(&root(), other.ino, Ino::ROOT, common::name("link")).unwrap();
    fs.release(other);
    let node = NewNode { kind: FileKind::Symlink, perm: 0o777, rdev: 0, target: &[DATA; LINE] };
    fs.make(&root(), Ino::ROOT, common::name("symlink"), node).unwrap();
    fs.replace((dir, "other"), (Ino::ROOT, "moved")).unwrap();
    let long: Vec<u8> = (0..9000_u32).map(|i| (i % 250) as u8).collect();
    let attribute = XattrName::new(b"user.attribute").unwrap();
    fs.setxattr(&root(), dir, attribute, &long, SetXattr::Any).unwrap();
    fs.setxattr(&root(), dir, attribute, &long[..5000], SetXattr::Replace).unwrap();
    let shifted = fs.new_file(dir, "shifted");
    fs.write(&shifted, 0, &[DATA; 5 * PAGE]).unwrap();
    fs.fallocate(&shifted, RangeOp::Insert, PAGE as u64, PAGE as u64).unwrap();
    fs.fallocate(&shifted, RangeOp::Collapse, 2 * PAGE as u64, PAGE as u64).unwrap();
    fs.setxattr(&root(), shifted.ino, attribute, b"short", SetXattr::Any).unwrap();
    fs.release(shifted);
    let tree = Tree::of(&fs).unwrap();
    drop(fs);
    volume.unmount();
    (bytes_of(&reader), tree)
}

fn bytes_of(region: &Region) -> Vec<u8> {
    let mut bytes = vec![0; region.len_bytes() as usize];
    region.read(Pos(0), &mut bytes);
    bytes
}

/// Mounts a copy.
///
/// # Panics
/// If the mount is refused, and has written something all the same.
fn mounted(image: &[u8]) -> Result<Volume, VolumeError> {
    let (region, simulator) = Region::simulated_from(image);
    let mounted = mount(region, &options());
    assert!(mounted.is_ok() || simulator.stores() == 0, "a mount that was refused has written");
    mounted
}

fn refused(image: &[u8]) -> VolumeError {
    match mounted(image) {
        Ok(_) => panic!("it was mounted"),
        Err(error) => error,
    }
}

/// What became of a damaged image.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// It does not mount, or says that it is damaged when it is read.
    Refused,
    /// It holds what it held.
    Right,
}

/// A refusal names the structure that is damaged.
fn refusal(error: &dyn std::fmt::Display) -> Result<Fate, String> {
    let (said, structures) = (error.to_string(), ["superblock", "inode ", "directory "]);
    let names_one = structures.iter().any(|structure| said.contains(structure));
    if names_one { Ok(Fate::Refused) } else { Err(format!("it names no structure: {said}")) }
}

/// Mounts and reads it, and writes to it.
fn fate(image: &[u8], wanted: &Tree) -> Result<Fate, String> {
    let look = || match mounted(image) {
        Err(VolumeError::Region(error)) => Err(format!("an error of the region: {error}")),
        Err(error) => refusal(&error),
        Ok(volume) => {
            let fs = volume.fs();
            match Tree::of(&fs) {
                Err(error @ Error::Corrupt(_)) => return refusal(&error),
                Err(error) => return Err(format!("reading it gives {error}")),
                Ok(tree) => match tree.difference(wanted) {
                    None => {}
                    Some(difference) => return Err(format!("a wrong answer in silence: {difference}")),
                },
            }
            match fs.try_file(Ino::ROOT, "new").and_then(|handle| fs.append(&handle, b"text").map(|_| handle))
            {
                Ok(handle) => fs.release(handle),
                Err(Error::Corrupt(_)) => {}
                Err(error) => return Err(format!("writing to it gives {error}")),
            }
            volume.unmount();
            Ok(Fate::Right)
        }
    };
    catch_unwind(AssertUnwindSafe(look)).unwrap_or_else(|_| Err("a panic, see above".into()))
}

#[test]
fn an_image_of_zeros_or_of_something_else_is_called_none() {
    let zeros = vec![0; IMAGE_BYTES as usize];
    assert!(matches!(refused(&zeros), VolumeError::NotAnImage { .. }));
    let text: Vec<u8> =
        b"This is no file system. ".iter().copied().cycle().take(IMAGE_BYTES as usize).collect();
    assert!(matches!(refused(&text), VolumeError::NotAnImage { .. }));
    let mut random = 1u64;
    let noise: Vec<u8> = (0..IMAGE_BYTES)
        .map(|_| {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (random >> 56) as u8
        })
        .collect();
    assert!(matches!(refused(&noise), VolumeError::NotAnImage { .. }));
    for blocks in [1, 2, 3, 100] {
        assert!(matches!(refused(&zeros[..blocks * PAGE]), VolumeError::NotAnImage { .. }));
    }
}

#[test]
fn a_region_too_small_for_a_file_system_is_refused_by_name() {
    for len_bytes in [4096, 8192, 1 << 20, IMAGE_BYTES - 4096] {
        let region = Region::anonymous(len_bytes).unwrap();
        for variant in Variant::ALL {
            let refused = format_region(&region, variant);
            assert!(
                matches!(refused, Err(VolumeError::TooSmall { have, .. }) if have == len_bytes),
                "{refused:?}"
            );
        }
    }
}

#[test]
fn an_image_cut_short_says_what_is_missing_at_every_length() {
    each_variant(|variant| {
        let (image, _) = image(variant);
        // The superblock is the same in all variants but for one word.
        let stride = if variant == Variant::Heddle { 1 } else { 13 };
        for blocks in
            (1..IMAGE_BYTES as usize / PAGE).step_by(stride).chain([2, 3, IMAGE_BYTES as usize / PAGE - 1])
        {
            match refused(&image[..blocks * PAGE]) {
                VolumeError::Truncated { want, have, .. } => {
                    assert_eq!((want, have), (IMAGE_BYTES, (blocks * PAGE) as u64));
                }
                error => panic!("{blocks} blocks: {error}"),
            }
        }
    });
}

#[test]
fn an_image_in_a_file_that_grew_mounts_with_either_superblock() {
    each_variant(|variant| {
        let (mut image, tree) = image(variant);
        image.resize(IMAGE_BYTES as usize + 40 * PAGE, 0);
        assert_eq!(fate(&image, &tree), Ok(Fate::Right));
    });
}

#[test]
fn an_image_of_another_format_version_is_called_that() {
    each_variant(|variant| {
        let (mut image, _) = image(variant);
        for at in [0, image.len() - PAGE] {
            image[at + 8..at + 12].copy_from_slice(&77u32.to_le_bytes());
            image[at + 12..at + 16].fill(0);
            let sum = crc32c::crc32c(&image[at..at + SUPERBLOCK_BYTES]);
            image[at + 12..at + 16].copy_from_slice(&sum.to_le_bytes());
        }
        assert!(matches!(refused(&image), VolumeError::OtherVersion { found: 77, .. }));
    });
}

#[test]
fn an_image_is_mounted_only_as_a_variant_with_its_log() {
    each_variant(|variant| {
        let (image, tree) = image(variant);
        for asked in Variant::ALL {
            let options = heddle_nvmfs::MountOptions { variant: Some(asked), ..options() };
            match mount(Region::simulated_from(&image).0, &options) {
                Ok(volume) => {
                    assert_eq!(asked.log(), variant.log());
                    assert_eq!(Tree::of(&volume.fs()).unwrap().difference(&tree), None);
                }
                Err(VolumeError::WrongVariant { .. }) => assert_ne!(asked.log(), variant.log()),
                Err(error) => panic!("{variant:?} as {asked:?}: {error}"),
            }
        }
    });
}

fn flip_stride() -> usize {
    env("HEDDLE_FLIP_STRIDE", 41) as usize
}

fn flip(image: &mut [u8], bit: usize) {
    image[bit / 8] ^= 1 << (bit % 8);
}

#[test]
fn one_damaged_superblock_is_replaced_by_the_other_and_two_are_reported() {
    each_variant(|variant| {
        let (mut image, tree) = image(variant);
        let second = image.len() - PAGE;
        // The superblock is the same in all variants but for one word.
        let stride = if variant == Variant::Heddle { 1 } else { flip_stride() };
        for bit in (0..SUPERBLOCK_BYTES * 8).step_by(stride) {
            for at in [0, second] {
                flip(&mut image, at * 8 + bit);
                assert_eq!(fate(&image, &tree), Ok(Fate::Right), "{variant:?}: bit {bit} at byte {at}");
                flip(&mut image, at * 8 + bit);
            }
            flip(&mut image, bit);
            flip(&mut image, second * 8 + (bit + 1) % (SUPERBLOCK_BYTES * 8));
            let error = refused(&image);
            let clear =
                matches!(error, VolumeError::SuperblockDamaged { .. } | VolumeError::NotAnImage { .. });
            assert!(clear, "{variant:?}: bit {bit} of both: {error}");
            flip(&mut image, bit);
            flip(&mut image, second * 8 + (bit + 1) % (SUPERBLOCK_BYTES * 8));
        }
    });
}

/// Lines of metadata: all of blocks that hold something else than zeros and data. Blank ones are marked.
fn metadata_lines(image: &[u8]) -> Vec<(usize, bool)> {
    let last = image.len() / PAGE - 1;
    let mut lines = Vec::new();
    for (number, block) in image.chunks(PAGE).enumerate() {
        let foreign = block.iter().all(|b| *b == 0 || *b == DATA);
        if number == 0 || number == last || foreign {
            continue;
        }
        for (line, bytes) in block.chunks(LINE).enumerate() {
            lines.push((number * PAGE + line * LINE, bytes.iter().all(|b| *b == 0)));
        }
    }
    lines
}

fn flips_are_noticed(variant: Variant, stride: usize) {
    let (mut image, tree) = image(variant);
    let lines = metadata_lines(&image);
    let (mut right, mut refused, mut wrong) = (0u64, 0u64, Vec::new());
    let mut bit = 0;
    for (line, blank) in &lines {
        // Blank lines are many and alike.
        let stride = if *blank { stride * 16 } else { stride };
        while bit < LINE * 8 {
            flip(&mut image, line * 8 + bit);
            match fate(&image, &tree) {
                Ok(Fate::Right) => right += 1,
                Ok(Fate::Refused) => refused += 1,
                Err(why) => wrong.push(format!(
                    "bit {bit} of line {} of block {}: {why}",
                    line % PAGE / LINE,
                    line / PAGE
                )),
            }
            flip(&mut image, line * 8 + bit);
            bit += stride;
        }
        bit %= LINE * 8;
    }
    println!("{}: {} lines, {right} flips without effect, {refused} refused", variant.name(), lines.len());
    assert!(
        wrong.is_empty(),
        "{variant:?}: {} flips were not noticed:\n{}",
        wrong.len(),
        wrong[..wrong.len().min(20)].join("\n")
    );
    assert!(refused > 20 && lines.iter().any(|(_, blank)| !blank), "hardly anything was tried");
}

#[test]
fn a_flipped_bit_of_metadata_is_noticed_or_has_no_effect() {
    each_variant(|variant| flips_are_noticed(variant, flip_stride()));
}

#[test]
#[ignore = "takes many minutes"]
fn every_flipped_bit_of_metadata_is_noticed_or_has_no_effect() {
    each_variant(|variant| flips_are_noticed(variant, 1));
}

/// Garbage is noticed; a blank line may look like a power cut, and must only not bring the program down.
#[test]
fn a_garbage_line_is_noticed_and_a_blank_line_makes_no_panic() {
    each_variant(|variant| {
        let (mut image, tree) = image(variant);
        for (number, (line, blank)) in metadata_lines(&image).into_iter().enumerate() {
            if blank {
                continue;
            }
            let old: Vec<u8> = image[line..line + LINE].to_vec();
            let mut random = number as u64 + 1;
            for word in image[line..line + LINE].chunks_mut(8) {
                random = random.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ random >> 29;
                word.copy_from_slice(&(random | 1).to_le_bytes());
            }
            let garbage = fate(&image, &tree);
            assert!(
                garbage.is_ok(),
                "{variant:?}: line {} of block {}: {garbage:?}",
                line % PAGE / LINE,
                line / PAGE
            );
            image[line..line + LINE].fill(0);
            let zeroed = fate(&image, &tree);
            let survived = !matches!(&zeroed, Err(why) if why.contains("panic"));
            assert!(
                survived,
                "{variant:?}: line {} of block {} zeroed: {zeroed:?}",
                line % PAGE / LINE,
                line / PAGE
            );
            image[line..line + LINE].copy_from_slice(&old);
        }
    });
}
