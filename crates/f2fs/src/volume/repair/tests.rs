use super::*;
use crate::checksum::{SEED, checksum};
use crate::device::Faults;
use crate::format::CheckpointHead;
use crate::mounted::F2fs;
use zerocopy::FromBytes;

fn image(place: &tempfile::TempDir) -> PathBuf {
    let path = place.path().join("image");
    File::create(&path).unwrap().set_len(crate::IMAGE_BYTES_MIN).unwrap();
    crate::make_image(&path, "", &|_, _| ()).unwrap();
    path
}

/// It was told as "nothing was changed", and the image said that it is half repaired.
#[test]
fn a_repair_whose_begin_fails_says_whether_the_image_is_changed() {
    let place = tempfile::tempdir().unwrap();
    let (path, undo) = (image(&place), place.path().join("undo"));
    let before = std::fs::read(&path).unwrap();
    let mut seen = [0, 0];
    for served in 0.. {
        assert!(served < 200, "no repair begins");
        let device = Device::open(&path, Access::Repair).unwrap();
        let Ok(repair) = Repair::unmarked(device, &undo, Earlier::Counts) else { panic!("no undo file") };
        *repair.device.faults.lock().unwrap() = Faults { served, failing: u64::MAX, ..Faults::default() };
        match repair.begun() {
            Ok(Ok(_)) => break,
            Ok(Err(_)) => assert!(!undo.exists(), "{served}"),
            Err(why) => {
                assert!(why.contains("heddle fsck --undo"), "{served}: {why}");
                undo::undo(&path, &undo)
                    .map(drop)
                    .unwrap_or_else(|why| assert!(why.contains("nothing to restore")));
                std::fs::remove_file(&undo).unwrap();
                seen[1] += 1;
                assert!(std::fs::read(&path).unwrap() == before, "{served}");
                continue;
            }
        }
        seen[0] += 1;
        assert!(std::fs::read(&path).unwrap() == before, "{served}");
    }
    assert!(seen.iter().all(|seen| *seen > 0), "{seen:?}");
}

fn begun(path: &Path, undo: &Path) -> Result<Repair, String> {
    Repair::begin(path, undo, Identity::of(&path.metadata().unwrap()), Earlier::Counts).unwrap()
}

#[test]
fn a_repair_that_cannot_begin_says_what_to_do() {
    let place = tempfile::tempdir().unwrap();
    let (path, undo) = (image(&place), place.path().join("undo"));
    let before = std::fs::read(&path).unwrap();
    std::fs::write(&undo, "mine").unwrap();
    let why = begun(&path, &undo).err().unwrap();
    assert!(why.contains("name another one with --undo"), "{why}");
    assert_eq!(std::fs::read(&undo).unwrap(), b"mine");
    let why = begun(&path, &place.path().join("none/undo")).err().unwrap();
    assert!(why.contains("choose a place for it with --undo"), "{why}");
    let other = Repair::begin(&path, &place.path().join("new"), Identity::File(0, 0), Earlier::Counts);
    assert!(other.unwrap().err().unwrap().contains("somebody has replaced the image"));
    assert!(std::fs::read(&path).unwrap() == before && !place.path().join("new").exists());
}

#[test]
fn blocks_are_kept_where_bytes_change_and_not_behind_the_end() {
    let place = tempfile::tempdir().unwrap();
    let (path, undo) = (image(&place), place.path().join("undo"));
    let mut repair = begun(&path, &undo).unwrap();
    let end = crate::IMAGE_BYTES_MIN;
    let kept = |repair: &Repair| {
        let mut blocks: Vec<u64> = repair.undo.old().blocks().collect();
        blocks.sort_unstable();
        blocks
    };
    assert_eq!((kept(&repair), repair.is_changed()), (vec![0, 1], false));
    for (at, len_bytes) in [(end, 1), (end - 1, 2), (end - 4096, 4097), (u64::MAX, 1), (0, end + 1)] {
        let why = repair.keep(at, len_bytes).unwrap_err();
        assert!(why.contains("behind the end of the image"), "{at}: {why}");
    }
    assert_eq!((kept(&repair), repair.is_changed()), (vec![0, 1], false));
    repair.keep(2 * 4096, 3 * 4096).unwrap();
    assert_eq!((kept(&repair), repair.is_changed()), ((0..5).collect(), true));
    assert!(!repair.is_mark_at_risk, "no superblock changes");
    repair.keep(7 * 4096 - 1, 2).unwrap();
    repair.keep(end - 1, 1).unwrap();
    repair.keep(end - 4096, 4096).unwrap();
    assert_eq!(kept(&repair), [0, 1, 2, 3, 4, 6, 7, end / 4096 - 1]);
    assert!(!repair.is_mark_at_risk);
    repair.keep(2 * 4096 - 1, 1).unwrap();
    assert!(repair.is_mark_at_risk);
    repair.keep(5 * 4096, 1).unwrap();
    assert!(repair.is_mark_at_risk, "until it is seen to");
    repair.see_to_mark().unwrap();
    assert!(!repair.is_mark_at_risk);
    repair.go_back().unwrap();
    assert!(!undo.exists());
}

/// The head of the undo file says how many are.
#[test]
fn old_blocks_become_durable_some_seconds_after_the_last() {
    let place = tempfile::tempdir().unwrap();
    let (path, undo) = (image(&place), place.path().join("undo"));
    let mut repair = begun(&path, &undo).unwrap();
    let durable = || u64::from_le_bytes(std::fs::read(&undo).unwrap()[72..80].try_into().unwrap());
    assert_eq!(durable(), 2, "the superblocks");
    repair.synced = Instant::now() + Duration::from_secs(3600);
    repair.keep(5 * 4096, 4096).unwrap();
    assert_eq!(durable(), 2);
    repair.synced = Instant::now().checked_sub(SYNC_AFTER).unwrap();
    repair.keep(6 * 4096, 4096).unwrap();
    assert_eq!(durable(), 4);
    repair.go_back().unwrap();
}

#[test]
fn a_note_that_a_check_is_needed_is_taken_away_and_restored() {
    let place = tempfile::tempdir().unwrap();
    let path = image(&place);
    let whole = std::fs::read(&path).unwrap();
    for (n, flag) in [0, checkpoint_flag::FSCK, checkpoint_flag::ERROR].into_iter().enumerate() {
        let mut noted = whole.clone();
        let blocks = {
            let device = Device::open(&path, Access::Read).unwrap();
            let (_, geometry) = superblock::read(&device).unwrap();
            Checkpoint::read(&device, &geometry).unwrap().blocks_with_flags()
        };
        for addr in blocks {
            let block = &mut noted[addr.0 as usize * BLOCK_BYTES..][..BLOCK_BYTES];
            let head = CheckpointHead::mut_from_prefix(block).unwrap().0;
            head.flags.set(head.flags.get() | flag);
            let at = head.checksum_offset.get() as usize;
            let crc = checksum(SEED, &block[..at]);
            block[at..at + 4].copy_from_slice(&crc.to_le_bytes());
        }
        std::fs::write(&path, &noted).unwrap();
        let is_noted = |path: &Path| F2fs::open(path).unwrap().info().needs_fsck;
        assert_eq!(is_noted(&path), flag != 0);
        let undo = place.path().join(format!("undo {n}"));
        let mut repair = begun(&path, &undo).unwrap();
        assert_eq!(repair.asks_for_check(), flag != 0);
        repair.note_checked().unwrap();
        assert!(!repair.asks_for_check());
        let kept = repair.finish().unwrap();
        repair.note_end().unwrap();
        drop(repair);
        assert!(!is_noted(&path) && kept == 4, "{kept} blocks");
        assert_eq!(undo::undo(&path, &undo).map(|restored| restored.blocks), Ok(4));
        assert!(std::fs::read(&path).unwrap() == noted);
        std::fs::write(&path, &whole).unwrap();
    }
}

#[test]
fn an_undo_file_is_known_by_a_superblock_in_its_place() {
    let place = tempfile::tempdir().unwrap();
    let (path, undo) = (image(&place), place.path().join("undo"));
    let superblock: Block = std::fs::read(&path).unwrap()[..BLOCK_BYTES].try_into().unwrap();
    let of = Image { uuid: [7; 16], epochs: [1; 2], blocks: 100, repair: 9 };
    assert!(!is_undo_file(&undo) && !is_undo_file(&path));
    let mut writer = Writer::create(&undo, of).unwrap();
    for (block, bytes, is) in [(0, [0; BLOCK_BYTES], false), (7, superblock, false), (1, superblock, true)] {
        writer.keep(block, &bytes).unwrap();
        assert_eq!(is_undo_file(&undo), is, "{block}");
    }
}
