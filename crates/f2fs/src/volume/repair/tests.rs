use super::*;
use crate::device::Faults;
use std::path::PathBuf;

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
