//! Which superblock counts where several file systems have been, and identities.

use crate::common::{each_variant, options};
use crate::{IMAGE_BYTES, LINE, PAGE, SUPERBLOCK_BYTES, bytes_of, image, mounted};
use heddle_nvmfs::format::layout::REGION_BYTES_MIN;
use heddle_nvmfs::fsck::{examine, undo};
use heddle_nvmfs::{Variant, VolumeError, format_region, inspect, mount, set_uuid};
use heddle_pmem::{CrashPoint, Pos, Region};
use heddle_vfs::testkit::Tree;
use std::sync::{Arc, Mutex};

/// The media of a larger image that was mounted often, on whose beginning a smaller one lies.
fn over_a_larger_one(small: &[u8]) -> Vec<u8> {
    let region = Region::anonymous(2 * IMAGE_BYTES).unwrap();
    format_region(&region, heddle_nvmfs::Variant::Nova).unwrap();
    for _ in 0..3 {
        mount(region.map_again().unwrap(), &options()).unwrap().close().unwrap();
    }
    let mut media = bytes_of(&region);
    media[..small.len()].copy_from_slice(small);
    media
}

fn uuid_of(image: &[u8]) -> Result<[u8; 16], VolumeError> {
    let region = Region::simulated_from(image).0;
    inspect("image".as_ref(), region.len_bytes(), &|at, into| region.read(at, into)).map(|info| info.uuid)
}

#[test]
fn the_superblock_of_an_older_larger_image_never_counts() {
    each_variant(|variant| {
        let (small, tree) = image(variant);
        let media = over_a_larger_one(&small);
        let uuid = uuid_of(&small).unwrap();
        assert_eq!(uuid_of(&media).unwrap(), uuid, "{variant:?}");
        let volume = mounted(&media).unwrap();
        assert_eq!(Tree::of(&volume.fs()).unwrap().difference(&tree), None, "{variant:?}");
        // Two bytes of the first copy are damaged, wherever: the other copy of the same image serves, in fsck too.
        for at in (0..SUPERBLOCK_BYTES - 1).step_by(5) {
            let mut damaged = media.clone();
            damaged[at] ^= 0x55;
            damaged[at + 1] ^= 0xaa;
            assert_eq!(uuid_of(&damaged).ok(), Some(uuid), "{variant:?}: byte {at}");
            let region = Region::simulated_from(&damaged).0;
            let verdict = examine("damaged", &region).unwrap();
            assert_eq!(verdict.left(), 0, "{variant:?}: byte {at}: {:?}", verdict.issues);
            let dir = tempfile::tempdir().unwrap();
            verdict.apply(&region, &dir.path().join("undo")).unwrap();
            assert_eq!(uuid_of(&bytes_of(&region)).unwrap(), uuid, "{variant:?}: byte {at}");
        }
        // With both copies damaged there is none.
        let mut lost = media.clone();
        for at in [30, 31, small.len() - PAGE + 30, small.len() - PAGE + 31] {
            lost[at] ^= 0x55;
        }
        assert!(matches!(uuid_of(&lost), Err(VolumeError::SuperblockDamaged { .. })), "{variant:?}");
        assert!(examine("lost", &Region::simulated_from(&lost).0).unwrap().left() > 0, "{variant:?}");
    });
}

/// What power cuts within `work` leave of an image, at each fence: all of what was not fenced yet, none, and each half of its words.
fn power_cuts(image: &[u8], work: impl FnOnce(Region)) -> Vec<Vec<u8>> {
    let (region, simulator) = Region::simulated_from(image);
    let left = Arc::new(Mutex::new(Vec::new()));
    let cuts = left.clone();
    simulator.on_fence(Box::new(move |point: &CrashPoint<'_>| {
        let halves = [0, 1].map(|half| point.image(|word| word % 2 == half));
        cuts.lock().unwrap().extend([point.full_image(), point.durable_image()].into_iter().chain(halves));
    }));
    work(region);
    simulator.stop_watching();
    let mut cuts = std::mem::take(&mut *left.lock().unwrap());
    cuts.sort();
    cuts.dedup();
    cuts
}

#[test]
fn two_power_cuts_leave_a_whole_superblock() {
    let (region, _) = Region::simulated(REGION_BYTES_MIN);
    format_region(&region, Variant::Heddle).unwrap();
    mount(region.map_again().unwrap(), &options()).unwrap().close().unwrap();
    let mounts = |region| drop(mount(region, &options()).unwrap().close());
    let mut seen = 0;
    for once in power_cuts(&bytes_of(&region), mounts) {
        for twice in power_cuts(&once, mounts) {
            uuid_of(&twice).unwrap();
            seen += 1;
        }
    }
    println!("{seen} images");
    assert!(seen > 20, "{seen} images");
}

#[test]
fn mkfs_clears_the_superblocks_of_an_image_that_was_smaller() {
    let region = Region::anonymous(2 * IMAGE_BYTES).unwrap();
    let (small, _) = image(heddle_nvmfs::Variant::Heddle);
    region.nt_write(Pos(0), &small);
    format_region(&region, heddle_nvmfs::Variant::Heddle).unwrap();
    let mut left = [1; SUPERBLOCK_BYTES];
    region.read(Pos((small.len() - PAGE) as u64), &mut left);
    assert_eq!(left, [0; SUPERBLOCK_BYTES]);
}

/// A file that grew has its second superblock where the image ends; a repair writes it after all else there too.
#[test]
fn a_repair_of_a_grown_image_can_be_undone() {
    each_variant(|variant| {
        let (small, tree) = image(variant);
        let mut grown = small.clone();
        grown.resize(3 * small.len(), 0);
        grown[SUPERBLOCK_BYTES + 8] = 1;
        let region = Region::anonymous(grown.len() as u64).unwrap();
        region.nt_write(Pos(0), &grown);
        let file = tempfile::tempdir().unwrap().keep().join("undo");
        let verdict = examine("grown", &region).unwrap();
        verdict.apply(&region, &file).unwrap();
        assert_eq!(examine("grown", &region).unwrap().found(), 0, "{variant:?}");
        assert!(
            bytes_of(&region)[small.len()..].iter().all(|byte| *byte == 0),
            "{variant:?}: behind the image"
        );
        let volume = mount(region.map_again().unwrap(), &options()).unwrap();
        assert_eq!(Tree::of(&volume.fs()).unwrap().difference(&tree), None, "{variant:?}");
        volume.abandon();
        std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
    });
}

/// The count of mounts goes up by more than one where records are of a mount that the superblocks lost.
#[test]
fn a_repair_that_counts_several_mounts_can_be_undone() {
    each_variant(|variant| {
        let (image, _) = image(variant);
        let region = Region::anonymous(image.len() as u64).unwrap();
        region.nt_write(Pos(0), &image);
        // Both superblocks say that it was never mounted.
        let mut bytes = [0; SUPERBLOCK_BYTES];
        bytes.copy_from_slice(&image[..SUPERBLOCK_BYTES]);
        bytes[48..56].fill(0);
        bytes[12..16].fill(0);
        let sum = crc32c::crc32c(&bytes);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
        for at in [0, image.len() - PAGE] {
            region.nt_write(Pos(at as u64), &bytes);
        }
        let before = bytes_of(&region);
        let verdict = examine("behind", &region).unwrap();
        assert!(verdict.changes().count() > 0, "{variant:?}");
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("undo");
        verdict.apply(&region, &file).unwrap();
        undo::restore(&file, &region).unwrap_or_else(|why| panic!("{variant:?}: {why}"));
        assert!(bytes_of(&region) == before, "{variant:?}");
    });
}

/// A part of it was mounted, and the mount made the undo file useless.
#[test]
fn a_repair_that_was_cut_is_not_mounted_and_can_be_undone() {
    let (mut before, _) = image(Variant::Heddle);
    before[SUPERBLOCK_BYTES + 8] = 1;
    cut_repairs_can_be_undone(before);
}

/// No superblock could say that it is half repaired.
#[test]
fn a_cut_repair_of_both_superblocks_can_be_undone() {
    let [mut before, _] = damaged_twice();
    let last = before.len() - PAGE;
    [0, last].into_iter().for_each(|at| before[at + 20] ^= 4);
    cut_repairs_can_be_undone(before);
}

fn cut_repairs_can_be_undone(before: Vec<u8>) {
    let last = before.len() - PAGE;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("undo");
    let mut after = Vec::new();
    let repair = |region: Region| {
        examine("cut", &region).unwrap().apply(&region, &file).unwrap();
        after = bytes_of(&region);
    };
    let mut cuts = power_cuts(&before, repair);
    cuts.extend(power_cuts(&after, |region| _ = undo::restore(&file, &region).unwrap()));
    let mut seen = 0;
    for cut in cuts {
        let is = |whole: &[u8]| cut[SUPERBLOCK_BYTES..last] == whole[SUPERBLOCK_BYTES..last];
        match mounted(&cut) {
            Err(VolumeError::HalfRepaired { .. }) => {
                seen += 1;
                let region = Region::simulated_from(&cut).0;
                let info = inspect("cut".as_ref(), region.len_bytes(), &|at, into| region.read(at, into));
                assert!(info.is_ok_and(|info| info.is_half_repaired && !info.clean));
            }
            Err(VolumeError::SuperblockDamaged { .. }) => assert!(is(&before), "changed without a mark"),
            Err(why) => panic!("{why}"),
            Ok(volume) => {
                volume.abandon();
                assert!(is(&before) || is(&after), "a part of it was mounted");
            }
        }
        let region = Region::simulated_from(&cut).0;
        undo::restore(&file, &region).unwrap();
        assert!(bytes_of(&region) == before);
    }
    assert!(seen > 4, "{seen} images");
}

/// Images with one damage, and with a second one, of which each is repaired outside of the superblocks.
fn damaged_twice() -> [Vec<u8>; 2] {
    let (sound, _) = image(Variant::Heddle);
    let last = (sound.len() / PAGE - 1) as u64;
    let flipped = |image: &[u8], at: usize| {
        let mut image = image.to_vec();
        image[at] ^= 4;
        image
    };
    let is_repaired = |at: &usize| {
        let region = Region::simulated_from(&flipped(&sound, *at)).0;
        let verdict = examine("flipped", &region).unwrap();
        let is_behind = verdict.changes().any(|(block, _)| ![0, last].contains(&block.0));
        verdict.found() > 0 && verdict.left() == 0 && is_behind
    };
    let mut places = (2 * PAGE..sound.len()).step_by(20).filter(is_repaired);
    let once = flipped(&sound, places.next().unwrap());
    let twice = flipped(&once, places.find(|at| at % PAGE != 20).unwrap());
    [once, twice]
}

fn repaired(image: &[u8], undo: &std::path::Path) -> Vec<u8> {
    let region = Region::simulated_from(image).0;
    examine("damaged", &region).unwrap().apply(&region, undo).unwrap();
    assert_eq!(examine("repaired", &region).unwrap().found(), 0);
    bytes_of(&region)
}

/// The count of mounts does not tell repairs apart: the undo file of an earlier one made a mixture.
#[test]
fn an_undo_file_counts_for_its_own_repair_alone() {
    let [once, twice] = damaged_twice();
    let dir = tempfile::tempdir().unwrap();
    let [first, second, third] = ["1", "2", "3"].map(|name| dir.path().join(name));
    let restored = |image: &[u8], file: &std::path::Path| {
        let region = Region::simulated_from(image).0;
        undo::restore(file, &region).map(|_| bytes_of(&region)).map_err(|why| why.to_string())
    };
    let whole = repaired(&once, &first);
    assert!(restored(&whole, &first).unwrap() == once);
    let later = repaired(&twice, &second);
    assert!(restored(&later, &first).map(drop).unwrap_err().contains("repaired since"));
    assert!(restored(&later, &second).unwrap() == twice);
    // Another damage of the repaired image, whose repair is cut.
    let mut again = whole.clone();
    again.iter_mut().zip(once.iter().zip(&twice)).for_each(|(byte, (one, two))| *byte ^= one ^ two);
    let cuts = power_cuts(&again, |region| {
        _ = examine("again", &region).unwrap().apply(&region, &third).unwrap();
    });
    let mut seen = 0;
    for cut in cuts {
        if let Err(VolumeError::HalfRepaired { .. }) = mounted(&cut) {
            seen += 1;
            let refused = restored(&cut, &first).map(drop).unwrap_err();
            assert!(refused.contains("another repair"), "{refused}");
        }
        assert!(restored(&cut, &third).unwrap() == again);
    }
    assert!(seen > 0);
    // A repair that was killed when its undo file was whole, and a mount.
    let region = Region::anonymous(once.len() as u64).unwrap();
    region.nt_write(Pos(0), &image(Variant::Heddle).0);
    region.nt_write(Pos(SUPERBLOCK_BYTES as u64), &[1; LINE]);
    let fourth = dir.path().join("4");
    repaired(&bytes_of(&region), &fourth);
    mount(region.map_again().unwrap(), &options()).unwrap().close().unwrap();
    let refused = undo::restore(&fourth, &region).unwrap_err().to_string();
    assert!(refused.contains("mounted"), "{refused}");
}

#[test]
fn another_identity_changes_nothing_else() {
    each_variant(|variant| {
        let (image, tree) = image(variant);
        let region = Region::anonymous(image.len() as u64).unwrap();
        region.nt_write(Pos(0), &image);
        set_uuid(&region, [7; 16]).unwrap();
        assert_eq!(uuid_of(&bytes_of(&region)).unwrap(), [7; 16]);
        assert_eq!(examine("renamed", &region).unwrap().found(), 0, "{variant:?}");
        let volume = mount(region.map_again().unwrap(), &options()).unwrap();
        assert_eq!(Tree::of(&volume.fs()).unwrap().difference(&tree), None, "{variant:?}");
        volume.close().unwrap();
        assert_eq!(uuid_of(&bytes_of(&region)).unwrap(), [7; 16]);
    });
}
