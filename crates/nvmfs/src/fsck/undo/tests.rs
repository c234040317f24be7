use super::*;
use crate::format::superblock::HALF_REPAIRED;
use crate::fsck::examine;
use crate::variant::Variant;
use heddle_pmem::{OpenOptions, Pos};
use std::path::PathBuf;
use zerocopy::little_endian::{U32, U64};

const IMAGE_BYTES: u64 = 4 << 20;

fn empty() -> Region {
    let region = Region::anonymous(IMAGE_BYTES).unwrap();
    crate::format_region(&region, Variant::Heddle).unwrap();
    region
}

fn of(region: &Region, repair: u64) -> Image {
    let sb = image::superblocks(&Media::new(region)).newest().unwrap();
    Image { uuid: sb.uuid, epochs: [sb.epoch.get(), sb.epoch.get() + 1], blocks: IMAGE_BYTES / 4096, repair }
}

/// An undo file with one block, whose repair has ended or was killed.
fn undo_file(place: &tempfile::TempDir, of: Image, is_finished: bool) -> PathBuf {
    let path = place.path().join(format!("undo-{}", of.repair));
    let mut undo = Writer::create(&path, of).unwrap();
    undo.keep(500, &[5; BLOCK_BYTES]).unwrap();
    if is_finished {
        undo.finish(of.epochs, 0).unwrap();
    }
    path
}

/// Another test's child may hold the writer's lock until it executes its program.
fn is_needless_at_last(path: &Path, region: &Region) -> bool {
    (0..2000).any(|_| {
        is_needless(path, region) || {
            std::thread::sleep(std::time::Duration::from_millis(1));
            false
        }
    })
}

#[test]
fn only_an_unfinished_undo_file_of_the_image_is_needless() {
    let place = tempfile::tempdir().unwrap();
    let (region, other) = (empty(), empty());
    let unfinished = undo_file(&place, of(&region, 1), false);
    assert!(is_needless_at_last(&unfinished, &region));
    assert!(!is_needless(&unfinished, &other), "it is another image's");
    assert!(!is_needless(&undo_file(&place, of(&region, 2), true), &region), "its repair has ended");
    assert!(!is_needless(&undo_file(&place, of(&other, 3), true), &region));
    assert!(!is_needless(&place.path().join("none"), &region));
    let text = place.path().join("text");
    std::fs::write(&text, "no undo file").unwrap();
    assert!(!is_needless(&text, &region));
    // Its writer is still at work.
    let path = place.path().join("at-work");
    let mut writer = Writer::create(&path, of(&region, 4)).unwrap();
    writer.keep(500, &[5; BLOCK_BYTES]).unwrap();
    assert!(!is_needless(&path, &region));
    drop(writer);
    assert!(is_needless_at_last(&path, &region));
}

#[test]
fn an_undo_file_of_a_repair_that_changed_nothing_is_not_used() {
    let place = tempfile::tempdir().unwrap();
    let region = empty();
    let before = region.line(BlockNo(500).pos());
    let error = restore(&undo_file(&place, of(&region, 1), false), &region).unwrap_err().to_string();
    assert!(error.contains("nothing to restore"), "{error}");
    let larger = Image { blocks: IMAGE_BYTES / 4096 + 1, ..of(&region, 2) };
    let error = restore(&undo_file(&place, larger, true), &region).unwrap_err().to_string();
    assert!(error.contains("1025 blocks, this one has 1024"), "{error}");
    assert_eq!(region.line(BlockNo(500).pos()), before);
}

#[test]
fn a_place_that_is_taken_or_missing_is_told_apart() {
    let place = tempfile::tempdir().unwrap();
    let region = empty();
    let taken = undo_file(&place, of(&region, 1), true);
    let saved = |path: &Path| {
        let blocks = [BlockNo(500)].into_iter();
        save(path, &region, of(&region, 2), blocks).map_err(|error| error.to_string())
    };
    let error = saved(&taken).unwrap_err();
    assert!(error.contains("nothing was repaired: name another one with --undo"), "{error}");
    let error = saved(&place.path().join("no/such/place")).unwrap_err();
    assert!(error.contains("nothing was repaired: choose a place for it with --undo"), "{error}");
    let path = place.path().join("new");
    saved(&path).unwrap();
    let undo = Undo::open(&path).unwrap();
    assert_eq!((undo.is_finished, undo.blocks()), (true, &[500][..]));
}

#[test]
fn a_half_repaired_image_in_a_file_names_its_undo_file() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("image");
    let region = Region::create(&path, IMAGE_BYTES, &OpenOptions::default()).unwrap();
    crate::format_region(&region, Variant::Heddle).unwrap();
    let undo = undo_file(&place, of(&region, 9), true);
    let sb = image::superblocks(&Media::new(&region)).newest().unwrap();
    let marked = Superblock { clean: U32::new(HALF_REPAIRED), repair: U64::new(9), ..sb };
    region.nt_write(Pos(0), marked.sealed().as_bytes());
    let error = examine("image", &region).err().unwrap().to_string();
    let way = format!("Go back with: heddle fsck --undo {} {}", undo.display(), path.display());
    assert!(error.contains("half repaired") && error.contains(&way), "{error}");
    assert_eq!(way_back(&empty(), 9), "", "an image without a name");
}
