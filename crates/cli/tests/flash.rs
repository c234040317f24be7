//! An F2FS image at the command line: told, read, written, and refused where another program's format is meant.

#[path = "flash/behind.rs"]
mod behind;
mod common;
#[path = "flash/damaged.rs"]
mod damaged;
#[path = "flash/half_repaired.rs"]
mod half_repaired;
#[path = "flash/lost.rs"]
mod lost;
#[path = "flash/moved.rs"]
mod moved;
#[path = "flash/told.rs"]
mod told;
#[path = "flash/transaction.rs"]
mod transaction;

use common::{Mounted, Place, alone, command, heddle, own_namespace};
use rustix::fs::OFlags;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
    assert_eq!(said["content"], serde_json::Value::Null, "all files are read only if asked for");
    let said: serde_json::Value =
        serde_json::from_str(&heddle(&["info", "--files", "--json", &image]).ok().out).unwrap();
    let file = said["content"]["files"].as_array().unwrap().iter().find(|file| file["kind"] == "regular");
    assert_eq!((&file.unwrap()["size_bytes"], &file.unwrap()["names"]), (&8.into(), &1.into()));
    assert!(heddle(&["info", "--files", &image]).ok().out.contains("extents "));
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
    heddle(&["mount", "--variant", "nova", "-o", "ro", &image, &mnt])
        .failed(2, &["nova", "f2fs, f2fs-rl, f2fs-nl, f2fs-integrated"]);
    heddle(&["mount", "-o", "ro,log=/dev/null", &image, &mnt]).ok();
    let file = Path::new(&mnt).join("dir/file");
    assert_eq!(fs::read_to_string(&file).unwrap(), "on flash");
    assert!(fs::write(&file, "changed").is_err());
    assert!(fs::write(Path::new(&mnt).join("new"), "").is_err());
    heddle(&["umount", &mnt]).ok();
    assert!(fs::read(&image).unwrap() == before, "the image was changed");
}

#[test]
fn an_f2fs_image_is_mounted_and_written_and_fsck_finds_nothing() {
    if !own_namespace() {
        return;
    }
    let place = Place::new();
    let Some(image) = image(&place) else { return };
    let mnt = place.text("mnt");
    fs::create_dir_all(&mnt).unwrap();
    heddle(&["mount", "-o", "log=/dev/null", &image, &mnt]).ok();
    let at = |name: &str| Path::new(&mnt).join(name);
    fs::write(at("dir/file"), "changed").unwrap();
    fs::create_dir_all(at("new/below")).unwrap();
    let bytes: Vec<u8> = (0..5_000_000_u32).map(|n| (n % 251) as u8).collect();
    fs::write(at("new/below/large"), &bytes).unwrap();
    std::os::unix::fs::symlink("below/large", at("new/link")).unwrap();
    fs::hard_link(at("new/below/large"), at("again")).unwrap();
    fs::rename(at("new/below"), at("moved")).unwrap();
    fs::File::open(at("moved/large")).unwrap().sync_all().unwrap();
    heddle(&["umount", &mnt]).ok();
    let found = Command::new("fsck.f2fs").args(["--dry-run", &image]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&found.stdout);
    let bad = ["[ASSERT]", "[FIX]", "[Fail]"].iter().any(|mark| said.contains(mark));
    assert!(found.status.success() && !bad, "{said}");
    heddle(&["mount", "-o", "ro,log=/dev/null", &image, &mnt]).ok();
    assert_eq!(fs::read_to_string(at("dir/file")).unwrap(), "changed");
    assert!(fs::read(at("again")).unwrap() == bytes && fs::read(at("moved/large")).unwrap() == bytes);
    assert_eq!(fs::read_link(at("new/link")).unwrap(), Path::new("below/large"));
    heddle(&["umount", &mnt]).ok();
}

#[test]
fn an_image_of_our_own_is_mounted_as_either_system() {
    let place = Place::new();
    let image = place.text("own.img");
    heddle(&["mkfs", "--label", "x", &image]).failed(2, &["--label", "F2FS"]);
    heddle(&["mkfs", "--variant", "f2fs", "--size", "1M", &image]).failed(2, &["64 MiB"]);
    let made =
        ["mkfs", "--variant", "f2fs-rl", "--size", "128M", "--label", "ours", "--force", "--json", &image];
    let said: serde_json::Value = serde_json::from_str(&heddle(&made).ok().out).unwrap();
    assert_eq!((&said["variant"], &said["size_bytes"]), (&"f2fs-rl".into(), &(128 << 20).into()));
    heddle(&["mkfs", "--variant", "f2fs", &image]).failed(1, &["--force"]);
    // A size that cannot be costs nothing of what is there.
    heddle(&["mkfs", "--variant", "f2fs", "--size", "1M", "--force", &image]).failed(2, &["64 MiB"]);
    let said: serde_json::Value =
        serde_json::from_str(&heddle(&["info", "--json", &image]).ok().out).unwrap();
    assert_eq!((&said["label"], &said["inodes"]), (&"ours".into(), &1.into()));
    if !own_namespace() {
        return;
    }
    let mnt = place.text("mnt");
    fs::create_dir_all(&mnt).unwrap();
    let file = Path::new(&mnt).join("file");
    for (variant, text) in [("f2fs-rl", "one"), ("f2fs", "two")] {
        heddle(&["mount", "--variant", variant, "-o", "log=/dev/null", &image, &mnt]).ok();
        fs::write(&file, text.repeat(5000)).unwrap();
        fs::File::options().write(true).open(&file).unwrap().write_all_at(text.as_bytes(), 3000).unwrap();
        heddle(&["umount", &mnt]).ok();
    }
    heddle(&["mount", "-o", "ro,log=/dev/null", &image, &mnt]).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "two".repeat(5000));
    heddle(&["umount", &mnt]).ok();
    let nvm = place.text("nvm.img");
    heddle(&["mkfs", "--size", "64M", &nvm]).ok();
    heddle(&["mount", "--variant", "f2fs-rl", &nvm, &mnt])
        .failed(2, &["not an F2FS image", "heddle mkfs --variant f2fs"]);
}

/// Units of UTF-16: some characters are two.
#[test]
fn mkfs_refuses_a_label_that_an_image_has_no_room_for() {
    let place = Place::new();
    let image = place.text("own.img");
    let mkfs =
        |label: &str| heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", "--label", label, &image]);
    let faces = "😀".repeat(255);
    for (fits, beyond) in [
        ("x".repeat(511), "x".repeat(512)),
        (format!("{faces}x"), format!("{faces}xx")),
        (faces.clone(), "😀".repeat(256)),
    ] {
        mkfs(&beyond).failed(2, &["--label", "512 UTF-16 units", "511"]);
        assert!(!Path::new(&image).exists(), "nothing is made");
        mkfs(&fits).ok();
        let said: serde_json::Value =
            serde_json::from_str(&heddle(&["info", "--json", &image]).ok().out).unwrap();
        assert_eq!(said["label"], fits.as_str());
        fs::remove_file(&image).unwrap();
    }
}

/// Files of which each write is durable when it returns.
const SYNCED: [(&str, OFlags); 2] = [("dsync", OFlags::DSYNC), ("sync", OFlags::SYNC)];

/// With a node log: a killed mount loses nothing that was fsynced, and who goes on without the log has to say so.
#[test]
fn an_image_with_a_node_log_is_mounted_killed_and_mounted_again() {
    if !own_namespace() {
        return;
    }
    let place = Place::new();
    let [image, nvm, mnt] = ["flash.img", "nvm", "mnt"].map(|name| place.text(name));
    fs::create_dir_all(&mnt).unwrap();
    let made = heddle(&["mkfs", "--variant", "f2fs-integrated", "--size", "128M", &image]).ok();
    assert!(made.out.contains("--variant f2fs-integrated --nvm FILE"), "{}", made.out);
    heddle(&["mount", "--variant", "f2fs-nl", &image, &mnt]).failed(2, &["--nvm FILE"]);
    heddle(&["mount", "--nvm", &nvm, &image, &mnt]).failed(2, &["f2fs-nl"]);
    heddle(&["mount", "--variant", "f2fs-nl", "--nvm", &nvm, "-o", "nvm-size=64K", &image, &mnt])
        .failed(2, &["at least"]);
    assert!(!Path::new(&nvm).exists(), "what was made for nothing is gone again");
    let file = Path::new(&mnt).join("file");
    let fsynced_and_killed = |variant: &str, options: &str, text: &str| {
        let how = ["mount", "--foreground", "--variant", variant, "--nvm", &nvm, "-o", options, &image, &mnt];
        let mut served = command(&how).spawn().unwrap();
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        let start = Instant::now();
        while device(Path::new(&mnt)) == device(&place.path("")) {
            assert!(start.elapsed() < Duration::from_secs(30), "never mounted");
            std::thread::sleep(Duration::from_millis(10));
        }
        fs::write(&file, text).unwrap();
        File::open(&file).unwrap().sync_all().unwrap();
        for (name, how) in SYNCED {
            let at = Path::new(&mnt).join(name);
            let file = File::options().create(true).write(true).custom_flags(how.bits() as i32).open(at);
            file.unwrap().write_all_at(text.as_bytes(), 0).unwrap();
        }
        let changed = Path::new(&mnt).join("changed through O_SYNC");
        fs::write(&changed, "old").unwrap();
        let to = File::options().write(true).custom_flags(OFlags::SYNC.bits() as i32).open(&changed).unwrap();
        let from = File::open(&file).unwrap();
        rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut 0), 3).unwrap();
        rustix::fs::fallocate(&to, rustix::fs::FallocateFlags::empty(), 0, 20_000).unwrap();
        fs::write(Path::new(&mnt).join("not fsynced"), "x").unwrap();
        served.kill().unwrap();
        served.wait().unwrap();
        heddle(&["umount", &mnt]).failed(1, &["had died", "not synced is lost"]);
    };
    fsynced_and_killed("f2fs-integrated", "nvm-size=8M", "fsynced");
    let said: serde_json::Value =
        serde_json::from_str(&heddle(&["info", "--json", &image]).ok().out).unwrap();
    assert_eq!(said["node_log"], true);
    let before = fs::read(&image).unwrap();
    heddle(&["fsck", "-y", &image]).failed(8, &["heddle fold", "--discard-nvm"]);
    assert!(before == fs::read(&image).unwrap(), "a repair would part image and log");
    assert!(heddle(&["fsck", "-n", &image]).ok().out.contains("not its node log"));
    let said = heddle(&["mount", &image, &mnt]);
    assert!(!said.err.contains("this node log"), "none was named: {}", said.err);
    said.failed(1, &["needs its node log", "--nvm", "-o discard-nvm"]);
    let (other, strange) = (place.text("other.img"), place.text("strange"));
    heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", &other]).ok();
    heddle(&["mount", "--variant", "f2fs-nl", "-o", "log=/dev/null", "--nvm", &strange, &other, &mnt]).ok();
    heddle(&["umount", &mnt]).ok();
    let said = heddle(&["fold", "--nvm", &strange, &image]);
    assert!(!said.err.contains("mounted with this"), "{}", said.err);
    said.failed(1, &["with this node log", "give that log", "heddle mount -o discard-nvm"]);
    fold_under_a_limit(&nvm, &image);
    heddle(&["mount", "--variant", "f2fs-nl", "-o", "log=/dev/null", "--nvm", &nvm, &image, &mnt]).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "fsynced");
    for (name, _) in SYNCED {
        assert_eq!(fs::read_to_string(Path::new(&mnt).join(name)).unwrap(), "fsynced", "{name}");
    }
    let changed = fs::read(Path::new(&mnt).join("changed through O_SYNC")).unwrap();
    assert_eq!((changed.len(), &changed[..3]), (20_000, &b"fsy"[..]));
    heddle(&["umount", &mnt]).ok();
    // The image is whole without it, after an unmount.
    heddle(&["mount", "-o", "log=/dev/null", &image, &mnt]).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "fsynced");
    heddle(&["umount", &mnt]).ok();
    fsynced_and_killed("f2fs-nl", "ro,rw", "folded");
    heddle(&["fold", "--nvm", &place.text("none"), &image]).failed(2, &["no such file"]);
    let said: serde_json::Value =
        serde_json::from_str(&heddle(&["fold", "--json", "--nvm", &nvm, &image]).ok().out).unwrap();
    assert_eq!((&said["had_log"], &said["fsynced_inodes"]), (&true.into(), &4.into()));
    assert!(heddle(&["fold", "--nvm", &nvm, &image]).ok().out.contains("was complete without its log"));
    heddle(&["mount", "-o", "ro,log=/dev/null", &image, &mnt]).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "folded");
    heddle(&["umount", &mnt]).ok();
    fsynced_and_killed("f2fs-nl", "ro,rw", "lost");
    heddle(&["mount", "-o", "log=/dev/null,discard-nvm", &image, &mnt]).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "folded");
    heddle(&["umount", &mnt]).ok();
}

/// It says so before it changes anything of either.
fn fold_under_a_limit(nvm: &str, image: &str) {
    let before = [image, nvm].map(|path| fs::read(path).unwrap());
    let script = "ulimit -f 8; exec \"$0\" fold --nvm \"$1\" \"$2\"";
    let mut sh = Command::new("sh");
    let limited = sh.args(["-c", script, env!("CARGO_BIN_EXE_heddle"), nvm, image]).stdin(Stdio::null());
    common::Said::of(limited.output().unwrap()).failed(1, &["ulimit -f", image]);
    assert!(before == [image, nvm].map(|path| fs::read(path).unwrap()));
}

#[test]
fn sync_and_dirsync_hold_when_the_mount_is_killed() {
    if !own_namespace() {
        return;
    }
    for (option, content) in [("sync", Some("hello")), ("dirsync", Some("")), ("async", None)] {
        let place = Place::with_image_of("f2fs", "64M");
        let (image, mnt) = (place.image(), place.mnt());
        let mut served = command(&["mount", "--foreground", "-o", option, &image, &mnt]).spawn().unwrap();
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        while device(Path::new(&mnt)) == device(&place.path("")) {
            assert!(served.try_wait().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(10));
        }
        let file = place.path("mnt/file");
        File::create(&file).unwrap().write_all_at(b"hello", 0).unwrap();
        served.kill().unwrap();
        served.wait().unwrap();
        heddle(&["umount", &mnt]).failed(1, &["had died", "not synced is lost"]);
        let _mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        assert_eq!(fs::read_to_string(&file).ok().as_deref(), content, "{option}");
    }
}

#[test]
fn a_write_protected_device_is_mounted_read_only_with_a_note() {
    if !own_namespace() {
        return;
    }
    let place = Place::with_image_of("f2fs", "64M");
    fs::write(Mounted::new(&place, &["-o", "log=/dev/null"]).path("file"), "kept").unwrap();
    let Some(device) = Command::new("losetup").args(["-r", "-f", "--show", &place.image()]).output().ok()
    else {
        return eprintln!("SKIPPED, NOT TESTED: no losetup");
    };
    let device = String::from_utf8(device.stdout).unwrap().trim().to_owned();
    let log = place.text("log");
    let said = heddle(&["mount", "-o", &format!("log={log}"), &device, &place.mnt()]);
    let read = fs::read_to_string(place.path("mnt/file"));
    let written = fs::write(place.path("mnt/file"), "changed");
    let unmounted = heddle(&["umount", &place.mnt()]);
    // Nor does a node log change that, which is not touched then.
    let nvm = place.text("nvm");
    let options = format!("log={log}");
    let logged = ["mount", "--variant", "f2fs-nl", "--nvm", &nvm, "-o", &options, &device, &place.mnt()];
    let logged = heddle(&logged.map(str::to_owned).each_ref().map(String::as_str));
    let unmounted_again = heddle(&["umount", &place.mnt()]);
    Command::new("losetup").args(["-d", &device]).status().unwrap();
    let said = said.ok();
    assert!(said.err.contains("write-protected, and mounted read-only"), "{}", said.err);
    let said = logged.ok();
    assert!(said.err.contains("read-only, without its node log"), "{}", said.err);
    unmounted_again.ok();
    assert!(!Path::new(&nvm).exists());
    assert_eq!(read.unwrap(), "kept");
    assert_eq!(written.unwrap_err().raw_os_error(), Some(libc::EROFS));
    unmounted.ok();
}

#[test]
fn commands_for_our_own_format_name_those_for_this_one() {
    let place = Place::new();
    let Some(image) = image(&place) else { return };
    heddle(&["dump", &image, "superblock"]).failed(1, &["F2FS", "dump.f2fs"]);
}

/// `image` has something to repair, which nobody may do.
fn hindered_repairs_say_why(image: &str) {
    let before = fs::read(image).unwrap();
    let script = "ulimit -f 8; exec \"$0\" fsck -y \"$1\"";
    let limited =
        Command::new("sh").args(["-c", script, env!("CARGO_BIN_EXE_heddle"), image]).output().unwrap();
    let said = common::Said::of(limited);
    assert!(said.code == 4 && said.out.contains("ulimit -f"), "{}", said.out);
    if let Ok(device) = Command::new("losetup").args(["-r", "-f", "--show", image]).output() {
        let device = String::from_utf8(device.stdout).unwrap().trim().to_owned();
        let [text, json] = [&["fsck", "-y", &device][..], &["fsck", "-y", "--json", &device]].map(heddle);
        Command::new("losetup").args(["-d", &device]).status().unwrap();
        assert!(text.code == 4 && text.out.contains("write-protected"), "{}", text.out);
        let report: serde_json::Value = serde_json::from_str(&json.out).unwrap();
        assert_eq!(report["not_repaired"], "it is write-protected");
    }
    assert!(before == fs::read(image).unwrap());
}

/// With fsck.f2fs, and where it is not installed.
#[test]
fn an_f2fs_image_is_checked_and_repaired_by_what_is_installed() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("f2fs", "64M");
    let image = place.image();
    {
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        fs::create_dir(mounted.path("dir")).unwrap();
        fs::write(mounted.path("dir/file"), vec![7; 100_000]).unwrap();
        heddle(&["fsck", "-n", &image]).failed(8, &["in use"]);
    }
    let installed = Command::new("fsck.f2fs").arg("-V").output().is_ok();
    let whole = fs::read(&image).unwrap();
    // Two files' nodes: the superblocks and the checkpoint are as they were.
    let damage = || {
        let mut bytes = whole.clone();
        let node_of = |bytes: &[u8], at: usize| bytes[at..at + 4] == bytes[at + 4..at + 8] && bytes[at] > 3;
        let footers = (4096 * 512..bytes.len()).step_by(4096).map(|block| block + 4096 - 24);
        let found: Vec<usize> = footers.filter(|at| node_of(&bytes, *at)).collect();
        assert!(!found.is_empty());
        found.iter().for_each(|at| bytes[*at - 4072..*at + 24].fill(0));
        fs::write(&image, bytes).unwrap();
    };
    let look = |code: i32, by: &str| {
        let said = heddle(&["fsck", "-n", "--json", &image]);
        let report: serde_json::Value = serde_json::from_str(&said.out).unwrap();
        assert_eq!((said.code, report["checked_by"].as_str()), (code, Some(by)), "{}", said.out);
        assert_eq!(report["issues"].as_array().unwrap().is_empty(), code == 0, "{}", said.out);
    };
    if installed {
        let both = "fsck.f2fs and heddle";
        look(0, both);
        damage();
        look(4, both);
        heddle(&["fsck", "-n", &image]).failed(4, &[]);
        let mended = heddle(&["fsck", "-y", &image]).code;
        assert!([1, 4].contains(&mended), "{mended}");
        look(if mended == 1 { 0 } else { 4 }, both);
        damage();
        hindered_repairs_say_why(&image);
        fs::write(&image, &whole[..whole.len() / 4 * 3]).unwrap();
        look(4, "fsck.f2fs");
        heddle(&["fsck", "-y", &image]).failed(4, &[]);
        assert!(heddle(&["fsck", "-n", &image]).out.contains("it was cut short"));
        fs::write(&image, &whole).unwrap();
    } else {
        eprintln!("SKIPPED, NOT TESTED: there is no fsck.f2fs");
    }
    rustix::mount::mount("none", "/usr/sbin", "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    look(0, "heddle");
    damage();
    look(4, "heddle");
    let said = heddle(&["fsck", "-y", &image]);
    assert!(said.code == 4 && said.out.contains("f2fs-tools") && said.out.contains("NAT"), "{}", said.out);
    rustix::mount::unmount("/usr/sbin", rustix::mount::UnmountFlags::DETACH).unwrap();
}
