//! An F2FS image at the command line: told, read, and refused where it is to be changed.

mod common;

use common::{Place, heddle, own_namespace};
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

/// An image with one file in it; `None`, said loudly, where f2fs-tools are missing.
fn image(place: &Place) -> Option<String> {
    let (image, tree) = (place.text("flash.img"), place.path("tree"));
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    fs::create_dir_all(tree.join("dir")).unwrap();
    fs::write(tree.join("dir/file"), "on flash").unwrap();
    let made = Command::new("mkfs.f2fs").args(["-q", "-l", "a name", &image]).output();
    if made.is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound) {
        eprintln!("SKIPPED, NOT TESTED: f2fs-tools are not installed; as root: cargo xtask setup");
        return None;
    }
    let loaded = Command::new("sload.f2fs").arg("-f").arg(&tree).arg(&image).output().unwrap();
    assert!(loaded.status.success(), "{}", String::from_utf8_lossy(&loaded.stdout));
    Some(image)
}

#[test]
fn an_f2fs_image_says_what_it_is() {
    let place = Place::new();
    let Some(image) = image(&place) else { return };
    let said: serde_json::Value =
        serde_json::from_str(&heddle(&["info", "--json", &image]).ok().out).unwrap();
    assert_eq!((&said["variant"], &said["label"]), (&"f2fs".into(), &"a name".into()));
    assert_eq!((&said["clean"], &said["inodes"]), (&true.into(), &3.into()));
    assert!(heddle(&["info", &image]).ok().out.contains("features    none"));
}

#[test]
fn an_f2fs_image_is_mounted_for_reading_and_nothing_changes_it() {
    if !own_namespace() {
        return;
    }
    let place = Place::new();
    let Some(image) = image(&place) else { return };
    let before = fs::read(&image).unwrap();
    let mnt = place.text("mnt");
    fs::create_dir_all(&mnt).unwrap();
    heddle(&["mount", &image, &mnt]).failed(1, &["F2FS", "-o ro"]);
    heddle(&["mount", "--variant", "nova", "-o", "ro", &image, &mnt]).failed(1, &["--variant"]);
    heddle(&["mount", "-o", "ro,log=/dev/null", &image, &mnt]).ok();
    let file = Path::new(&mnt).join("dir/file");
    assert_eq!(fs::read_to_string(&file).unwrap(), "on flash");
    assert!(fs::write(&file, "changed").is_err());
    assert!(fs::write(Path::new(&mnt).join("new"), "").is_err());
    heddle(&["umount", &mnt]).ok();
    assert!(fs::read(&image).unwrap() == before, "the image was changed");
}

#[test]
fn commands_for_our_own_format_name_those_for_this_one() {
    let place = Place::new();
    let Some(image) = image(&place) else { return };
    heddle(&["fsck", "-n", &image]).failed(8, &["F2FS", "fsck.f2fs --dry-run"]);
    heddle(&["dump", &image, "superblock"]).failed(1, &["F2FS", "dump.f2fs"]);
}
