//! What a mount reads before it writes, and what it tells meanwhile.

use crate::common::{Short, each_variant, options};
use crate::{DATA, Fate, IMAGE_BYTES, PAGE, SUPERBLOCK_BYTES, bytes_of, fate, image, refused};
use heddle_nvmfs::format::page::{SLOTS, slot_pos};
use heddle_nvmfs::format::superblock::MOUNTS_MAX;
use heddle_nvmfs::fsck::{Code, Verdict, examine, survey};
use heddle_nvmfs::{LogKind, MountOptions, VolumeError, format_region, mount};
use heddle_pmem::Region;
use heddle_vfs::testkit::Tree;
use heddle_vfs::{FileSystem, Handle, Ino};
use std::collections::BTreeMap;
use std::sync::Mutex;

/// A power cut left an inode without a name and half a record, which a mount zeroes; then a file is damaged.
#[test]
fn a_mount_that_is_refused_because_of_damage_has_written_nothing() {
    each_variant(|variant| {
        let region = Region::anonymous(IMAGE_BYTES).unwrap();
        format_region(&region, variant).unwrap();
        let volume = mount(region.map_again().unwrap(), &options()).unwrap();
        let fs = volume.fs();
        let make = |name| {
            let file = fs.new_file(Ino::ROOT, name);
            fs.write(&file, 0, &[DATA; PAGE]).unwrap();
            file
        };
        let [cut, damaged, nameless] = ["cut", "damaged", "nameless"].map(make);
        fs.remove(Ino::ROOT, "nameless").unwrap();
        let survey = survey("image", &region).unwrap().unwrap();
        let record = |file: &Handle| {
            let what = format!("the log of inode {}", file.ino.0);
            let page = survey.owners.iter().find(|owner| owner.what == what).unwrap().block;
            (1..=SLOTS).rev().map(|slot| slot_pos(page, slot)).find(|at| region.line(*at) != [0; 8]).unwrap()
        };
        let (torn, garbage) = (record(&cut), record(&damaged));
        [cut, damaged, nameless].into_iter().for_each(|file| fs.release(file));
        volume.abandon();
        region.store_u64(torn.plus(16), 0);
        region.store_u64(torn.plus(56), 0);
        let sound = bytes_of(&region);
        region.store_u64(garbage.plus(8), region.load_u64(garbage.plus(8)) ^ 0b101);
        assert!(matches!(refused(&bytes_of(&region)), VolumeError::Recovery { .. }));
        // Without the damage there is something to write.
        let (simulated, simulator) = Region::simulated_from(&sound);
        match mount(simulated, &options()) {
            Ok(volume) => {
                assert!(simulator.stores() > 0 && volume.report.torn_slots > 0, "{:?}", volume.report);
                volume.abandon();
            }
            // What lies before the tail is whole, or it is damage.
            Err(error) => assert!(variant.log() == LogKind::Tail, "{error}"),
        }
    });
}

#[test]
fn recovery_runs_in_parallel_and_reports_progress() {
    each_variant(|variant| {
        let region = Region::anonymous(48 << 20).unwrap();
        format_region(&region, variant).unwrap();
        let volume = mount(region.map_again().unwrap(), &options()).unwrap();
        let fs = volume.fs();
        for d in 0..150 {
            let dir = fs.new_dir(Ino::ROOT, &format!("d{d}"));
            let below = fs.new_dir(dir, "below");
            for f in 0..3u8 {
                let file = fs.new_file(below, &format!("f{f}"));
                fs.write(&file, u64::from(f) * 5000, &[f + 1; 3000]).unwrap();
                fs.release(file);
            }
            fs.replace((below, "f0"), (dir, "moved")).unwrap();
        }
        let tree = Tree::of(&fs).unwrap();
        volume.abandon();
        let told = Mutex::new(BTreeMap::new());
        let progress = |what: &'static str, done: u64, total: u64| {
            assert!(done <= total, "{done} {what} of {total}");
            if done == total {
                *told.lock().unwrap().entry(what).or_insert(0) += total;
            }
        };
        let volume = mount(region, &MountOptions { progress: Some(&progress), ..options() }).unwrap();
        assert_eq!(Tree::of(&volume.fs()).unwrap().difference(&tree), None);
        volume.unmount();
        let told = told.lock().unwrap();
        assert_eq!((told["directories"], told["files"]), (301, 450), "{told:?}");
    });
}

/// Both superblocks say that it was mounted so often; sealed.
fn worn(image: &[u8], mounts: u64) -> Vec<u8> {
    let mut image = image.to_vec();
    for copy in [0, image.len() - PAGE] {
        let bytes = &mut image[copy..copy + SUPERBLOCK_BYTES];
        bytes[48..56].copy_from_slice(&mounts.to_le_bytes());
        bytes[12..16].fill(0);
        let sum = crc32c::crc32c(bytes);
        bytes[12..16].copy_from_slice(&sum.to_le_bytes());
    }
    image
}

#[test]
fn an_image_without_mount_numbers_is_read_only_beyond_is_damaged() {
    each_variant(|variant| {
        let (image, tree) = image(variant);
        assert_eq!(
            fate(&worn(&image, MOUNTS_MAX - 1), &tree),
            Ok(Fate::Right),
            "{variant:?}: the last mount"
        );
        let last = worn(&image, MOUNTS_MAX);
        assert!(matches!(refused(&last), VolumeError::WornOut { .. }), "{variant:?}");
        let (region, simulator) = Region::simulated_from(&last);
        let volume = mount(region, &MountOptions { read_only: true, ..options() }).unwrap();
        assert_eq!(Tree::of(&volume.fs()).unwrap().difference(&tree), None, "{variant:?}");
        volume.unmount();
        assert_eq!(simulator.stores(), 0, "{variant:?}");
        let beyond = worn(&image, MOUNTS_MAX + 1);
        assert!(matches!(refused(&beyond), VolumeError::SuperblockDamaged { .. }), "{variant:?}");
    });
}

/// Found by the fuzzer's target `repair`: a repair took the last mount of an image, and a second look found nothing wrong.
#[test]
fn fsck_says_when_an_image_or_its_repair_leaves_no_mount() {
    each_variant(|variant| {
        let (image, _) = image(variant);
        let mut damaged = worn(&image, MOUNTS_MAX - 1);
        damaged[SUPERBLOCK_BYTES + 100] = 1;
        let mut left = damaged.clone();
        let verdict = examined(&damaged);
        for (block, words) in verdict.changes() {
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            left[block.0 as usize * PAGE..][..PAGE].copy_from_slice(&bytes);
        }
        let says =
            |verdict: &Verdict| verdict.issues.iter().map(|(issue, mended)| (issue.code, *mended)).collect();
        let wanted: Vec<_> = vec![(Code::WORN_OUT, false), (Code::UNUSED_SPACE, true)];
        let first: Vec<_> = says(&verdict);
        assert_eq!(first, wanted, "{variant:?}");
        for last in [left, worn(&image, MOUNTS_MAX)] {
            assert!(matches!(refused(&last), VolumeError::WornOut { .. }), "{variant:?}");
            let verdict = examined(&last);
            let again: Vec<_> = says(&verdict);
            assert_eq!((again, verdict.changes().count()), (vec![(Code::WORN_OUT, false)], 0), "{variant:?}");
        }
        assert_eq!(examined(&worn(&image, MOUNTS_MAX - 1)).found(), 0, "{variant:?}");
    });
}

fn examined(image: &[u8]) -> Verdict {
    examine("worn", &Region::simulated_from(image).0).unwrap()
}
