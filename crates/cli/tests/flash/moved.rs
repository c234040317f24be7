//! What is moved or replaced while an image is repaired: no other file is changed, and the repair ends as a whole or not at all.

use super::lost::lose_name;
use super::transaction::{checker, with_file};
use crate::common::loop_device::Loop;
use crate::common::{Place, Said, command, heddle};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::Command;

/// Runs `fsck -y` with this checker, which calls the real one.
fn repair(place: &Place, script: &str) -> Said {
    let path = checker(place, &format!("{script}\nexec fsck.f2fs \"$@\""));
    Said::of(command(&["fsck", "-y", &place.image()]).env("PATH", path).output().unwrap())
}

fn undo_files(place: &Place) -> usize {
    let names = fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.as_bytes().starts_with(b"image.undo-")).count()
}

/// The second run of the checker repaired the file that had taken the image's place, and nothing kept its old bytes.
#[test]
fn an_image_that_replaces_another_during_a_repair_is_left_alone() {
    let by_name = "mv $T/../other $T/../image";
    let by_link = "ln -sfn $T/../other $T/../image";
    for (when, how) in
        [("*-y*", by_name), ("*-y*", by_link), ("*--dry-run*", by_name), ("*--dry-run*", by_link)]
    {
        let Some((_alone, place, number)) = with_file(b"x") else { return };
        place.edit(|image| lose_name(image, 3, number));
        let before = fs::read(place.image()).unwrap();
        fs::write(place.path("other"), &before).unwrap();
        fs::hard_link(place.image(), place.path("kept")).unwrap();
        let script = format!(
            "case \"$*\" in {when}) fsck.f2fs \"$@\"; R=$?; [ -e $T/moved ] || {{ touch $T/moved; {how}; }}; exit $R;; esac"
        );
        let said = repair(&place, &script);
        let told = said.out.contains("moved or replaced") || said.out.contains("replaced the image");
        assert!(said.code == 4 && told, "{when} {how}: {}: {}{}", said.code, said.out, said.err);
        assert!(fs::read(place.image()).unwrap() == before, "{when} {how}: the other image was changed");
        assert!(fs::read(place.path("kept")).unwrap() == before, "{when} {how}: the image was changed");
        assert_eq!(undo_files(&place), 0, "{when} {how}");
    }
}

/// fsck.f2fs finds by a device's path that it is mounted for reading alone, and looks at it then.
#[test]
fn a_device_that_is_mounted_read_only_is_checked() {
    let Some((_alone, place, _)) = with_file(b"x") else { return };
    let Some(device) = Loop::over(Path::new(&place.image())) else { return };
    // As the kernel's driver holds it.
    let alone = rustix::fs::OFlags::EXCL.bits() as i32;
    let _held = fs::File::options().read(true).custom_flags(alone).open(&device.0).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "ro", &device.0, &place.mnt()]).status();
    assert!(mounted.unwrap().success());
    let said = heddle(&["fsck", "-n", &device.0]);
    assert!(Command::new("umount").arg(place.mnt()).status().unwrap().success());
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
}

/// It ended well, and no word said that a file had lost its name.
#[test]
fn a_repair_whose_lost_files_are_moved_away_goes_back() {
    let mine = "mkdir -p $T/../image.lost/lost_found && echo mine > $T/../image.lost/lost_found/mine";
    let replaced = format!("mv $T/../image.lost $T/../gone; {mine}");
    for how in ["mv $T/../image.lost $T/../gone", "rm -r $T/../image.lost", &replaced] {
        let Some((_alone, place, number)) = with_file(b"x") else { return };
        place.edit(|image| lose_name(image, 3, number));
        let before = fs::read(place.image()).unwrap();
        let said =
            repair(&place, &format!("case \"$*\" in *-y*) fsck.f2fs \"$@\"; R=$?; {how}; exit $R;; esac"));
        assert!(
            said.code == 4 && said.out.contains("nothing was changed"),
            "{how}: {}{}",
            said.out,
            said.err
        );
        assert!(fs::read(place.image()).unwrap() == before, "{how}");
        assert_eq!(undo_files(&place), 0, "{how}");
        assert!(
            how != replaced || place.path("image.lost/lost_found/mine").exists(),
            "a stranger's file is gone"
        );
        // The directory that was made is empty, wherever it is.
        assert!(
            !place.path("gone").exists() || fs::read_dir(place.path("gone")).unwrap().count() == 0,
            "{how}"
        );
    }
}

/// `discard` took all in the directory for its own.
#[test]
fn what_somebody_puts_beside_lost_files_stays() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    let mine = "mkdir -p $T/../image.lost/lost_found && echo mine > $T/../image.lost/lost_found/mine";
    // A repair that goes back: the name that it wants is taken.
    place.edit(|image| lose_name(image, 3, number));
    let before = fs::read(place.image()).unwrap();
    let said = repair(&place, &format!("case \"$*\" in *-y*) {mine};; esac"));
    assert!(said.code == 4 && said.out.contains("nothing was changed"), "{}{}", said.out, said.err);
    assert!(fs::read(place.image()).unwrap() == before);
    assert_eq!(fs::read(place.path("image.lost/lost_found/mine")).unwrap(), b"mine\n");
    assert_eq!(fs::read_dir(place.path("image.lost")).unwrap().count(), 1, "and nothing else");
}

/// "clean", with 0, of an image that nobody had looked at.
#[test]
fn a_check_of_an_image_that_is_replaced_fails() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    fs::copy(place.image(), place.path("other")).unwrap();
    let mut damaged = fs::read(place.path("other")).unwrap();
    lose_name(&mut damaged, 3, number);
    fs::write(place.path("other"), damaged).unwrap();
    let said = repair(
        &place,
        "case \"$*\" in *--dry-run*) fsck.f2fs \"$@\"; R=$?; mv $T/../other $T/../image; exit $R;; esac",
    );
    said.failed(8, &["moved or replaced"]);
}

/// The report in JSON was refused, and the exit code said that stdout had not taken it.
#[test]
fn a_repair_of_an_image_with_any_name_reports_in_json() {
    let Some((_alone, place, number)) = with_file(b"x") else { return };
    place.edit(|image| lose_name(image, 3, number));
    let image = place.path("").join(std::ffi::OsStr::from_bytes(b"a\xff"));
    fs::rename(place.image(), &image).unwrap();
    let said = Said::of(command(&["fsck", "-y", "--json"]).arg(&image).output().unwrap());
    assert_eq!(said.code, 1, "{}{}", said.out, said.err);
    let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    for field in ["undo_file", "lost_files"] {
        assert!(report[field].as_str().unwrap().contains("a\u{fffd}."), "{report}");
    }
}
