//! Image and log know each other: no copy of either from before, and no other log of the same image, is taken for the pair.

use crate::common::{self, Image};
use crate::machine::{append_durably, fresh, log_in, made, name, open};
use crate::rig::{Random, blocks_of};
use heddle_f2fs::{F2fs, OpenError, Variant, make_image};
use heddle_pmem::{CrashPoint, Region, Simulator};
use heddle_vfs::{Cred, FileSystem, Ino};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Before what is said of an image that was replaced.
const REPLACED: &str = "replaced: ";
const SYSTEM: Variant = Variant::NodeLog;
/// Of an image, those that are not zeros.
type Blocks = BTreeMap<u32, Vec<u8>>;
/// Image and log.
type State = (Blocks, Vec<u8>);

/// A copy of an image as it is now.
fn copy(image: &Image) -> Image {
    laid(&blocks_of(&image.path))
}

fn laid(blocks: &Blocks) -> Image {
    let image = Image::made(64);
    let file = File::options().write(true).open(&image.path).unwrap();
    file.set_len(0).unwrap();
    file.set_len(64 << 20).unwrap();
    for (n, block) in blocks {
        file.write_all_at(block, u64::from(*n) * 4096).unwrap();
    }
    image
}

/// What the image's file has with this log, or why it is refused; neither is changed then.
fn content(image: &Image, nvm: &[u8]) -> Result<Vec<u8>, String> {
    let before = std::fs::read(&image.path).unwrap();
    let (fs, simulator) = open(&image.path, SYSTEM, nvm);
    match fs {
        Ok(fs) => match fs.lookup(&Cred::root(), Ino::ROOT, name("file")) {
            Ok(_) => Ok(common::read(&fs, Path::new("/file"))),
            Err(_) => Ok(Vec::new()),
        },
        Err(error) => {
            assert!(before == std::fs::read(&image.path).unwrap(), "the image was changed: {error}");
            assert!(simulator.crash_point().durable_image() == nvm, "the log was changed: {error}");
            let is_replaced = matches!(error, OpenError::Replaced { .. });
            Err(format!("{}{error}", if is_replaced { REPLACED } else { "" }))
        }
    }
}

fn discard(image: &Image, nvm: &[u8]) -> (F2fs, Simulator) {
    let (region, simulator) = Region::simulated_from(nvm);
    let log = log_in(region, nvm, true);
    (F2fs::open_with_log(&image.path, SYSTEM, log).unwrap(), simulator)
}

fn durable(nvm: &Simulator) -> Vec<u8> {
    nvm.crash_point().durable_image()
}

/// What the log has after these bytes were fsynced, and the mount was killed.
fn fsynced(image: &Image, nvm: &[u8], bytes: &[u8]) -> Vec<u8> {
    let (fs, nvm) = open(&image.path, SYSTEM, nvm);
    append_durably(&fs.unwrap(), "file", bytes);
    durable(&nvm)
}

/// What the log has after a mount that was ended by an unmount.
fn unmounted(image: &Image, nvm: &[u8]) -> Vec<u8> {
    let (fs, nvm) = open(&image.path, SYSTEM, nvm);
    fs.unwrap().unmount().unwrap();
    durable(&nvm)
}

fn is_another(said: Result<Vec<u8>, String>) {
    let said = said.expect_err("it was taken");
    assert!(said.contains("another log") && said.contains("-o discard-nvm"), "{said}");
}

fn is_replaced(said: Result<Vec<u8>, String>, way: &str) {
    let said = said.expect_err("it was taken");
    assert!(said.starts_with(REPLACED) && said.contains(way), "{said}");
}

/// By mkfs, by a copy of before, or it went on without the log.
#[test]
fn an_image_that_was_replaced_takes_nothing_of_the_log() {
    let image = Image::made(64);
    let log = unmounted(&image, &fresh());
    let old = std::fs::read(&image.path).unwrap();
    let log = fsynced(&image, &log, b"one");
    let put_back = std::fs::read(&image.path).unwrap();
    std::fs::write(&image.path, &old).unwrap();
    is_replaced(
        content(&image, &log),
        "To lose the fsyncs that only the log has: heddle mount -o discard-nvm",
    );
    make_image(&image.path, "", &|_, _| ()).unwrap();
    is_replaced(content(&image, &log), "-o force-nvm");
    // What the log has is another image's to this one, which has another identity.
    let (region, _nvm) = Region::simulated_from(&log);
    let discarding = F2fs::open_with_log(&image.path, SYSTEM, log_in(region, &log, true));
    assert!(matches!(discarding, Err(OpenError::Replaced { .. })));
    std::fs::write(&image.path, &put_back).unwrap();
    let copy = copy(&image);
    F2fs::open_without_log(&copy.path, Variant::F2fs).unwrap().unmount().unwrap();
    is_replaced(content(&copy, &log), "Put back the image");
    assert_eq!(content(&image, &log).unwrap(), b"one");
}

#[test]
fn another_log_of_the_same_image_is_not_its_log() {
    let image = Image::made(64);
    let first = unmounted(&image, &fresh());
    let second = fsynced(&image, &fresh(), b"one");
    is_another(content(&image, &first));
    assert_eq!(content(&image, &second).unwrap(), b"one");
}

#[test]
fn a_copy_of_the_log_from_before_is_not_the_log() {
    let image = Image::made(64);
    let first = unmounted(&image, &fresh());
    let second = fsynced(&image, &first, b"one");
    is_another(content(&copy(&image), &first));
    // The log had records, which are in the image, and has others now.
    let third = fsynced(&image, &second, b"two");
    for old in [&first, &second] {
        content(&copy(&image), old).expect_err("it was taken");
    }
    assert_eq!(content(&image, &third).unwrap(), b"onetwo");
}

#[test]
fn a_copy_of_the_image_from_before_takes_nothing_of_the_log() {
    let image = Image::made(64);
    let first = unmounted(&image, &fresh());
    let before = copy(&image);
    let second = fsynced(&image, &first, b"one");
    is_replaced(content(&before, &second), "-o discard-nvm");
    // One that needed the log, which has been folded since.
    let marked = copy(&image);
    let third = unmounted(&image, &second);
    is_replaced(content(&marked, &third), "a copy from before");
    assert_eq!(content(&image, &third).unwrap(), b"one");
}

#[test]
fn a_discarded_log_is_not_taken_by_a_copy_of_its_image() {
    let image = Image::made(64);
    let nvm = fsynced(&image, &fresh(), b"one");
    let before = copy(&image);
    let (fs, simulator) = discard(&image, &nvm);
    // A kill right after it.
    drop(fs);
    let discarded = durable(&simulator);
    is_another(content(&before, &discarded));
    assert_eq!(content(&image, &discarded).unwrap(), b"");
    assert_eq!(content(&before, &nvm).unwrap(), b"one");
}

/// Every state of image and log that a cut leaves while the first record comes, or a fold, or the end.
#[test]
fn a_cut_between_mark_and_head_costs_nothing() {
    let image = Image::made(64);
    let (fs, nvm) = open(&image.path, SYSTEM, &fresh());
    let (fs, states) = (fs.unwrap(), States::of(&image, &nvm));
    append_durably(&fs, "file", b"one");
    fs.fold_now().unwrap();
    // A checkpoint while the log has no records.
    fs.release(made(&fs, "other"));
    fs.fold_now().unwrap();
    append_durably(&fs, "file", b"two");
    fs.unmount().unwrap();
    append_durably(&fs, "file", b"three");
    let states = states.taken(&nvm);
    assert!(states.len() > 20, "{}", states.len());
    let (mut least, wanted) = (0, [&b""[..], b"one", b"onetwo", b"onetwothree"]);
    for (n, (blocks, nvm)) in states.into_iter().enumerate() {
        let found = content(&laid(&blocks), &nvm).unwrap_or_else(|error| panic!("state {n}: {error}"));
        let at = wanted.iter().position(|wanted| *wanted == found).expect("a state of before");
        assert!(at >= least, "state {n}: {found:?}");
        least = at;
    }
    drop(fs);
}

#[test]
fn records_given_up_in_part_by_a_cut_are_given_up_again() {
    let image = Image::made(64);
    let nvm = fsynced(&image, &fresh(), b"one");
    let before = copy(&image);
    let (region, simulator) = Region::simulated_from(&nvm);
    let states = States::of(&image, &simulator);
    F2fs::open_with_log(&image.path, SYSTEM, log_in(region, &nvm, true)).unwrap();
    let (mut refused, mut kept) = (0, 0);
    for (blocks, nvm) in states.taken(&simulator) {
        let (image, again) = (laid(&blocks), laid(&blocks));
        match content(&image, &nvm) {
            Ok(found) if found == b"one" => kept += 1,
            Ok(found) => assert_eq!(found, b""),
            said => {
                is_another(said);
                refused += 1;
                let (fs, nvm) = discard(&again, &nvm);
                drop(fs);
                assert_eq!(content(&again, &durable(&nvm)).unwrap(), b"");
            }
        }
        // Whatever the head says by then, the copy has all, or is refused.
        match content(&copy(&before), &nvm) {
            Ok(found) => assert_eq!(found, b"one"),
            said => is_another(said),
        }
    }
    assert!(refused > 0 && kept > 0, "{refused} refused, {kept} not yet given up");
}

/// What image and log have at each fence of the log: some of what it is for, or all.
struct States(Arc<Mutex<Vec<State>>>, PathBuf);

impl States {
    fn of(image: &Image, nvm: &Simulator) -> States {
        let states = States(Arc::default(), image.path.clone());
        let (seen, path, mut random) = (Arc::clone(&states.0), image.path.clone(), Random(3));
        nvm.on_fence(Box::new(move |point: &CrashPoint<'_>| {
            let blocks = blocks_of(&path);
            for nvm in [point.image(|_| random.below(2) == 0), point.full_image()] {
                seen.lock().unwrap().push((blocks.clone(), nvm));
            }
        }));
        states
    }

    /// And what they have now.
    fn taken(self, nvm: &Simulator) -> Vec<State> {
        nvm.stop_watching();
        let mut states = std::mem::take(&mut *self.0.lock().unwrap());
        states.push((blocks_of(&self.1), durable(nvm)));
        states
    }
}
