//! fsck finds what is wrong, finds nothing where nothing is, and repairs so that what was good stays good.
//!
//! `HEDDLE_FLIP_STRIDE`: every so many bits of the metadata is flipped (1: all). `HEDDLE_FSCK_ROUNDS`: so many images with several
//! damages a variant.

mod common;
mod fsck {
    pub mod craft;
    pub mod crafted;
    pub mod cuts;
    pub mod damage;
    pub mod dumps;
    pub mod fields;
    pub mod flips;
    pub mod garbage;
    pub mod lies;
    pub mod pairs;
    pub mod rare;
    pub mod reports;
    pub mod sample;
    pub mod shifts;
    pub mod sites;
    pub mod verdicts;
}

use common::{Disk, Short, each_variant};
use fsck::sample::{Sample, image_bytes, region_of};
use heddle_nvmfs::format::superblock::{FoundSuperblock, SUPERBLOCK_BYTES, Superblock};
use heddle_nvmfs::fsck::{CATALOGUE, Code, FsckError, Severity, examine, survey, undo};
use heddle_nvmfs::{Variant, mount};
use heddle_pmem::Pos;
use heddle_vfs::testkit::Tree;
use heddle_vfs::{FileSystem, Ino};
use zerocopy::IntoBytes;

#[test]
fn a_sound_image_is_clean_and_repairing_it_changes_nothing() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let verdict = examine("sample", &sample.region).unwrap();
        assert_eq!(verdict.issues, vec![], "{variant:?}");
        assert_eq!(verdict.changes().count(), 0);
        let empty = Disk::new(variant, 4 << 20);
        assert_eq!(examine("empty", empty.region()).unwrap().issues, vec![]);
    });
}

#[test]
fn a_survey_counts_each_block_once_and_each_orphan() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let survey = sample.survey();
        let known = survey.blocks_fixed + survey.blocks_inodes + survey.blocks_logs + survey.blocks_data;
        assert_eq!((survey.blocks, survey.blocks - known), (1024, survey.blocks_free), "{variant:?}");
        let sum = |data| survey.owners.iter().filter(|o| o.data == data).map(|o| o.count).sum::<u64>();
        assert_eq!(sum(true), survey.blocks_data);
        // Chunks without inodes are the image's, and count as free.
        assert!(sum(false) >= survey.blocks_inodes + survey.blocks_logs);
        let in_files: u64 = survey.inodes.iter().map(|inode| inode.figures.blocks).sum();
        assert_eq!(in_files, survey.blocks_data);
        assert_eq!((survey.orphans, survey.issues, survey.variant), (0, 0, variant));
        assert_eq!(
            survey.inodes.len(),
            sample.inos.values().collect::<std::collections::BTreeSet<_>>().len()
        );
        let disk = Disk::new(variant, 4 << 20);
        let volume = disk.mount();
        let _open = volume.fs().new_file(Ino::ROOT, "open and deleted");
        volume.fs().remove(Ino::ROOT, "open and deleted").unwrap();
        volume.abandon();
        let survey = heddle_nvmfs::fsck::survey("cut", disk.region()).unwrap().unwrap();
        assert_eq!((survey.orphans, survey.issues, survey.inodes.len()), (1, 0, 1), "{variant:?}");
    });
}

/// It is no foreign image, and no damaged one: the way out is the program that made it.
#[test]
fn an_image_of_another_version_is_told_from_a_foreign_one() {
    let disk = Disk::new(Variant::Heddle, 4 << 20);
    let mut image = image_bytes(disk.region());
    let FoundSuperblock::Whole(mut superblock) = Superblock::decode(image.first_chunk().unwrap()) else {
        panic!("no superblock")
    };
    superblock.version.set(99);
    for copy in [0, image.len() - 4096] {
        image[copy..copy + SUPERBLOCK_BYTES].copy_from_slice(superblock.sealed().as_bytes());
    }
    let other = region_of(&image);
    let error = examine("other", &other).err().unwrap();
    assert!(matches!(error, FsckError::OtherVersion { found: 99, .. }), "{error}");
    assert!(matches!(survey("other", &other), Err(FsckError::OtherVersion { found: 99, .. })));
}

#[test]
fn fsck_notes_what_a_power_cut_leaves_and_changes_nothing() {
    each_variant(|variant| {
        let disk = Disk::new(variant, 4 << 20);
        let volume = disk.mount();
        let fs = volume.fs();
        let open = fs.new_file(Ino::ROOT, "open and deleted");
        fs.write(&open, 0, b"text").unwrap();
        fs.remove(Ino::ROOT, "open and deleted").unwrap();
        volume.abandon();
        let verdict = examine("cut", disk.region()).unwrap();
        assert_eq!(verdict.worst(), Some(Severity::Note), "{variant:?}: {:?}", verdict.issues);
        assert_eq!((verdict.found(), verdict.left(), verdict.changes().count()), (0, 0, 0));
        let orphan = verdict.issues.iter().any(|(issue, _)| issue.code == Code::ORPHAN);
        assert!(orphan, "{:?}", verdict.issues);
        fs.release(open);
    });
}

#[test]
fn undo_restores_every_byte_until_somebody_mounts() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("undo");
        let at = Pos(sample.log_page("victim").0 * 4096 + 64 + 16);
        sample.region.store_u64(at, 0x1234_5678_9abc_def0);
        let damaged = image_bytes(&sample.region);
        let verdict = examine("sample", &sample.region).unwrap();
        assert!(verdict.found() > 0);
        verdict.apply(&sample.region, &file).unwrap();
        assert_ne!(image_bytes(&sample.region), damaged);
        assert_eq!(examine("repaired", &sample.region).unwrap().found(), 0);
        // Another repair does not overwrite it.
        assert!(verdict.apply(&sample.region, &file).unwrap_err().to_string().contains("--undo"));
        undo::restore(&file, &sample.region).unwrap();
        assert!(image_bytes(&sample.region) == damaged, "{variant:?}: not the same bytes");
        // Twice is as good as once.
        undo::restore(&file, &sample.region).unwrap();
        let second = dir.path().join("second");
        examine("sample", &sample.region).unwrap().apply(&sample.region, &second).unwrap();
        mount(sample.region.map_again().unwrap(), &common::options()).unwrap().unmount();
        let refused = undo::restore(&second, &sample.region).unwrap_err().to_string();
        assert!(refused.contains("mounted"), "{refused}");
        let mut bytes = std::fs::read(&second).unwrap();
        for (cut, what) in [(0, "no undo file"), (60, "cut short or damaged"), (bytes.len() - 1, "cut short")]
        {
            std::fs::write(&second, &bytes[..cut]).unwrap();
            let refused = undo::restore(&second, &sample.region).unwrap_err().to_string();
            assert!(refused.contains(what), "{cut}: {refused}");
        }
        bytes[100] ^= 1;
        std::fs::write(&second, &bytes).unwrap();
        assert!(undo::restore(&second, &sample.region).unwrap_err().to_string().contains("damaged"));
    });
}

#[test]
fn an_undo_file_of_another_image_is_refused() {
    let (one, other) =
        (Sample::new(heddle_nvmfs::Variant::Heddle), Sample::new(heddle_nvmfs::Variant::Heddle));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("undo");
    one.region.store_u64(Pos(8), 0);
    examine("one", &one.region).unwrap().apply(&one.region, &file).unwrap();
    assert!(undo::restore(&file, &other.region).unwrap_err().to_string().contains("another image"));
}

#[test]
fn numbers_of_issues_are_unique_and_each_tells_what_it_means() {
    let mut before = 0;
    for entry in CATALOGUE {
        assert!(entry.code.0 > before, "{} is out of order", entry.code);
        before = entry.code.0;
        for text in [entry.structure, entry.title, entry.meaning, entry.repair] {
            assert!(!text.is_empty(), "{}", entry.code);
        }
        assert_eq!(Code::parse(&entry.code.to_string()), Some(entry.code));
        assert_eq!(entry.code.entry().code, entry.code);
    }
    for text in ["nv-42", "NV-0042", "42", "0042", "042"] {
        assert_eq!(Code::parse(text), Some(Code(42)), "{text}");
    }
    assert_eq!(Code::parse("NV-9999"), None);
    assert_eq!(Code::parse("xy"), None);
}

#[test]
fn an_image_that_was_repaired_can_be_used() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let at = sample.log_page("victim");
        sample.region.nt_zero(Pos(at.0 * 4096), 64);
        let mut copy = image_bytes(&sample.region);
        let verdict = examine("sample", &sample.region).unwrap();
        assert_eq!(verdict.left(), 0, "{variant:?}: {:?}", verdict.issues);
        for (block, words) in verdict.changes() {
            for (i, word) in words.iter().enumerate() {
                let at = block.0 as usize * 4096 + i * 8;
                copy[at..at + 8].copy_from_slice(&word.to_le_bytes());
            }
        }
        let region = region_of(&copy);
        let volume = mount(region.map_again().unwrap(), &common::options()).unwrap();
        let fs = volume.fs();
        let file = fs.open_file(Ino::ROOT, "victim");
        fs.write(&file, 3 * 4096, &[9; 9000]).unwrap();
        fs.release(file);
        let tree = Tree::of(&fs).unwrap();
        volume.unmount();
        assert_eq!(examine("used", &region).unwrap().found(), 0);
        let volume = mount(region, &common::options()).unwrap();
        assert_eq!(Tree::of(&volume.fs()).unwrap().difference(&tree), None);
        common::remove_everything(&volume.fs()).unwrap();
        volume.unmount();
    });
}
