//! Files out of which ranges were cut, and into which they were inserted: fsck reads their maps as a mount does.
//!
//! `HEDDLE_FSCK_SHIFTS`: so many files a variant.

use super::craft::Craft;
use super::sample::{Sample, repaired};
use crate::common::{Disk, Short, each_variant, env, options, sound};
use heddle_nvmfs::format::record::{Blocks, Record};
use heddle_nvmfs::fsck::{Code, examine, survey};
use heddle_nvmfs::ids::BlockNo;
use heddle_nvmfs::{NvmFs, Variant, mount};
use heddle_pmem::Region;
use heddle_vfs::testkit::Tree;
use heddle_vfs::{Error, FileSystem, Handle, Ino, RangeOp};

const PAGE: u64 = 4096;

struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % end
    }
}

/// Few enough changes that the file's log stays in its first page.
fn changes(fs: &NvmFs, file: &Handle, random: &mut Random) {
    fs.write(file, 0, &[0xee; PAGE as usize]).unwrap();
    fs.resize(file, 0).unwrap();
    fs.write(file, random.below(9 * PAGE), &[0xdd; 5 * PAGE as usize]).unwrap();
    for n in 0..12 {
        let (at, len) = (random.below(12) * PAGE, (1 + random.below(4)) * PAGE);
        let keep_size = random.below(2) == 0;
        let done = match random.below(8) {
            0 | 1 => fs.fallocate(file, RangeOp::Insert, at, len),
            2 | 3 => fs.fallocate(file, RangeOp::Collapse, at, len),
            4 => fs.fallocate(file, RangeOp::Punch, at, len),
            5 => fs.fallocate(file, RangeOp::Allocate { keep_size }, at, len),
            6 => fs.resize(file, at + random.below(PAGE)),
            _ => fs.write(file, at + random.below(PAGE), &vec![n + 1; len as usize]).map(|_| ()),
        };
        assert!(matches!(done, Ok(()) | Err(Error::InvalidArgument(_))), "{done:?}");
    }
}

/// Destroys the record of the first write, which says nothing any more: the log must be written anew, and say the same.
fn destroy_first_write(region: &Region, page: BlockNo) {
    let slot = (1..=63).find(|slot| region.load_u64(page.pos().plus(slot * 64)) >> 32 & 0x3f == 1);
    let at = page.pos().plus(slot.expect("a write record") * 64 + 8);
    region.store_u64(at, region.load_u64(at) ^ 0b1001_0001);
}

fn a_log_of_shifts_is_written_anew(variant: Variant, seed: u64) {
    let disk = Disk::new(variant, 4 << 20);
    let volume = disk.mount();
    let fs = volume.fs();
    let file = fs.new_file(Ino::ROOT, "file");
    changes(&fs, &file, &mut Random(seed));
    let ino = file.ino;
    fs.release(file);
    let mut tree = Tree::of(&fs).unwrap();
    // A lost record may have taken the other permissions away.
    tree.nodes.get_mut(&b"/file"[..]).unwrap().perm &= 0o700;
    let blocks = fs.getattr(ino).unwrap().blocks_512;
    volume.unmount();
    sound(disk.region()).unwrap();
    let survey = survey("shifted", disk.region()).unwrap().unwrap();
    let of_file = |data: bool| survey.owners.iter().filter(move |o| o.ino == Some(ino) && o.data == data);
    let seen: u64 = of_file(true).map(|o| o.count).sum();
    assert_eq!(seen * PAGE / 512, blocks, "fsck sees other pages than the file system");
    let log = of_file(false).find(|o| o.what.starts_with("the log")).unwrap().block;
    destroy_first_write(disk.region(), log);
    let verdict = examine("damaged", disk.region()).unwrap();
    assert!(
        verdict.issues.iter().any(|(i, mended)| i.code == Code::RECORD && *mended),
        "{:#?}",
        verdict.issues
    );
    let volume = mount(repaired(disk.region(), &verdict), &options()).unwrap();
    assert_eq!(Tree::of(&volume.fs()).unwrap().difference(&tree), None);
    volume.unmount();
}

#[test]
fn fsck_reads_and_repairs_collapsed_files_as_a_mount_does() {
    each_variant(|variant| {
        for seed in 0..env("HEDDLE_FSCK_SHIFTS", 40) {
            println!("seed {seed}");
            a_log_of_shifts_is_written_anew(variant, seed);
        }
    });
}

/// The first block of a map of a file of the sample.
fn map_of(sample: &Sample, path: &str) -> BlockNo {
    let what = format!("a map of inode {}", sample.ino(path).0);
    sample.survey().owners.iter().find(|o| o.what == what).unwrap().block
}

#[test]
fn a_map_that_is_damaged_costs_its_own_file_alone() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        let at = map_of(&sample, "/shifted").pos().plus(80);
        sample.region.store_u64(at, sample.region.load_u64(at) ^ 0xff00);
        mount(sample.region.map_again().unwrap(), &options()).map(|_| ()).expect_err("it mounts");
        let verdict = examine("damaged", &sample.region).unwrap();
        assert!(
            verdict.issues.iter().any(|(i, mended)| i.code == Code::MAP && *mended),
            "{:#?}",
            verdict.issues
        );
        let volume = mount(repaired(&sample.region, &verdict), &options()).unwrap();
        let mut tree = Tree::of(&volume.fs()).unwrap();
        volume.unmount();
        let mut before = sample.tree.clone();
        let (is, was) = (tree.nodes.remove(&b"/shifted"[..]), before.nodes.remove(&b"/shifted"[..]));
        assert_eq!(is.unwrap().size_bytes, was.unwrap().size_bytes);
        assert_eq!(tree.difference(&before), None);
    });
}

#[test]
fn a_block_of_a_map_and_of_another_file_becomes_two_blocks() {
    each_variant(|variant| {
        let sample = Sample::new(variant);
        // The last of its pages, of which the map alone tells.
        let shifted = sample.ino("/shifted");
        let owners = sample.survey().owners;
        let moved = owners.iter().rfind(|o| o.data && o.ino == Some(shifted)).unwrap();
        let craft = Craft::new(&sample);
        craft.change(sample.log_page("dir/below/crowd"), |record| match record {
            Record::Write { blocks, pages: 1, .. } => {
                *blocks = Blocks::At(moved.block);
                true
            }
            _ => false,
        });
        let verdict = examine("shared", &sample.region).unwrap();
        let found = verdict.issues.iter().any(|(i, mended)| i.code == Code::CLAIMED_TWICE && *mended);
        assert!(found, "{:#?}", verdict.issues);
        let volume = mount(repaired(&sample.region, &verdict), &options()).unwrap();
        let tree = Tree::of(&volume.fs()).unwrap();
        volume.unmount();
        assert!(tree.nodes[&b"/shifted"[..]].pieces == sample.tree.nodes[&b"/shifted"[..]].pieces);
    });
}

/// Beside the record of the size: how much a log would shrink is told by their number.
#[test]
fn of_several_collapses_the_record_of_the_last_one_counts() {
    each_variant(|variant| {
        let count = |collapses: u64| {
            let disk = Disk::new(variant, 4 << 20);
            let volume = disk.mount();
            let fs = volume.fs();
            let file = fs.new_file(Ino::ROOT, "file");
            fs.write(&file, 0, &[1; 4 * PAGE as usize]).unwrap();
            (0..collapses).for_each(|_| fs.fallocate(&file, RangeOp::Collapse, 0, PAGE).unwrap());
            let ino = file.ino;
            fs.release(file);
            volume.unmount();
            let survey = survey("shifted", disk.region()).unwrap().unwrap();
            survey.inodes.iter().find(|inode| inode.ino == ino).unwrap().figures.living
        };
        assert_eq!([0, 1, 2].map(count), [1, 2, 2], "{variant:?}");
    });
}
