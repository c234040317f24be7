//! Bytes that are somebody's are not written over, nor is anybody told to.

mod common;

use common::loop_device::Loop;
use common::{Place, command, heddle, own_namespace};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
const RAID: [u8; 8] = [0xfc, 0x4e, 0x2b, 0xa9, 0, 0, 0, 0];

/// Bytes, and where.
type Marks<'a> = &'a [(u64, &'a [u8])];

/// A file of so many bytes with these marks.
fn planted(path: &Path, len: u64, marks: Marks<'_>) {
    let file = File::create(path).unwrap();
    file.set_len(len).unwrap();
    marks.iter().for_each(|(at, mark)| file.write_all_at(mark, *at).unwrap());
}

#[test]
fn mkfs_of_every_variant_names_what_it_would_lose() {
    let place = Place::new();
    let image = place.path("image");
    let last = (64 * MIB) - 0x10000;
    let foreign: [(Marks<'_>, &str); 4] = [
        (&[(0, b"XFSB"), (108, b"mine")], "xfs (label \"mine\")"),
        (&[(0x8001, b"CD001")], "ISO 9660"),
        (&[(last, &RAID)], "a member of a Linux RAID (0.90)"),
        (&[(64 * MIB - 512, b"EFI PART")], "a partition table (GPT)"),
    ];
    for variant in ["nova", "nova-array", "nova-tree", "nova-interval", "heddle", "f2fs"] {
        for (marks, name) in foreign {
            planted(&image, 64 * MIB, marks);
            let before = fs::read(&image).unwrap();
            heddle(&["mkfs", "--variant", variant, "--size", "64M", &place.image()])
                .failed(1, &[name, "--force"]);
            assert!(fs::read(&image).unwrap() == before, "{variant}: {name} was changed");
            heddle(&["mount", &place.image(), &place.mnt()]).failed(1, &[name]);
        }
    }
    heddle(&["fsck", "-n", &place.image()]).failed(8, &["partition table (GPT)"]);
    for told in [heddle(&["info", &place.image()]), heddle(&["mount", &place.image(), &place.mnt()])] {
        assert!(told.err.contains("partition table (GPT)") && !told.err.contains("mkfs"), "{}", told.err);
    }
    // What is not known is somebody's too.
    planted(&image, 64 * MIB, &[(5000, b"a thesis")]);
    let told = heddle(&["mount", &place.image(), &place.mnt()]);
    assert!(told.err.contains("does not know") && !told.err.contains("mkfs"), "{}", told.err);
    let forced = heddle(&["mkfs", "--force", "--size", "8M", &place.image()]).ok();
    assert!(forced.err.contains("bytes that heddle does not know: overwriting it"), "{}", forced.err);
}

#[test]
fn files_of_others_world_writable_or_linked_are_not_taken() {
    let place = Place::new();
    let image = place.path("image");
    let make = || heddle(&["mkfs", "--size", "8M", &place.image()]);
    File::create(&image).unwrap();
    fs::set_permissions(&image, fs::Permissions::from_mode(0o666)).unwrap();
    make().failed(1, &["is writable by every user (mode 666)", "--force"]);
    fs::set_permissions(&image, fs::Permissions::from_mode(0o600)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&image, Some(65534), None).unwrap();
        make().failed(1, &["belongs to user 65534", "--force"]);
        assert_eq!(fs::metadata(&image).unwrap().len(), 0);
    }
    fs::remove_file(&image).unwrap();
    fs::write(place.path("other"), "precious").unwrap();
    symlink(place.path("other"), &image).unwrap();
    for force in [&["mkfs", "--size", "64M"][..], &["mkfs", "--force", "--size", "64M"]] {
        for variant in [&[][..], &["--variant", "f2fs"]] {
            let image = place.image();
            let args = [force, variant, &[image.as_str()]].concat();
            heddle(&args).failed(1, &["symbolic link"]);
        }
    }
    assert_eq!(fs::read(place.path("other")).unwrap(), b"precious");
}

#[test]
fn a_node_log_is_made_in_new_files_and_zeros_alone() {
    if !own_namespace() {
        return;
    }
    let place = Place::new();
    let [image, nvm] = ["flash.img", "nvm"].map(|name| place.text(name));
    heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", &image]).ok();
    // The same F2FS image would pass for empty by its first bytes; so would many others.
    heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", &nvm]).ok();
    let before = fs::read(&nvm).unwrap();
    let mount = |options: &str| {
        let options = format!("log=/dev/null,{options}");
        heddle(&["mount", "--variant", "f2fs-nl", "--nvm", &nvm, "-o", &options, &image, &place.mnt()])
    };
    let mounts = |options: &str| {
        mount(options).ok();
        heddle(&["umount", &place.mnt()]).ok();
    };
    mount("rw").failed(1, &["holds f2fs", "no node log", "-o force-nvm"]);
    assert!(fs::read(&nvm).unwrap() == before, "it was changed");
    planted(&place.path("nvm"), 64 * MIB, &[(32 * MIB, b"between the ends")]);
    mount("rw").failed(1, &["does not know", "-o force-nvm"]);
    assert_eq!(fs::metadata(&nvm).unwrap().len(), 64 * MIB);
    mounts("force-nvm");
    // Its own by now.
    mounts("rw");
    assert_eq!(&fs::read(&nvm).unwrap()[..8], b"HEDDLENL");
    heddle(&["fold", "--nvm", &place.text("image"), &image]).failed(2, &["no such file"]);
    fs::remove_file(&nvm).unwrap();
    planted(&place.path("nvm"), 64 * MIB, &[]);
    mounts("rw");
    assert_eq!(&fs::read(&nvm).unwrap()[..8], b"HEDDLENL", "zeros are free");
    // An empty file becomes a log, and is empty again when the mount fails.
    let empty = || fs::write(&nvm, "").and_then(|()| fs::metadata(&nvm)).unwrap().len() == 0;
    assert!(empty());
    heddle(&["fold", "--nvm", &nvm, &image]).failed(1, &["holds no node log"]);
    let said = heddle(&["fold", "--nvm", &image, &image]);
    assert!(!said.err.contains("force-nvm"), "fold takes no such option: {}", said.err);
    said.failed(1, &["holds no node log, but", "give the node log of the last mount"]);
    mount("nvm-size=64K").failed(2, &["at least"]);
    assert_eq!(fs::metadata(&nvm).unwrap().len(), 0);
    fs::set_permissions(&nvm, fs::Permissions::from_mode(0o666)).unwrap();
    mount("rw").failed(1, &["is writable by every user", "-o force-nvm"]);
    fs::set_permissions(&nvm, fs::Permissions::from_mode(0o600)).unwrap();
    mounts("nvm-size=8M");
    assert_eq!(fs::metadata(&nvm).unwrap().len(), 8 * MIB);
    fs::remove_file(&nvm).unwrap();
    planted(&place.path("nvm"), 64 * MIB, &[]);
    mounts("rw");
    // A log that was there already stays when a mount fails.
    let log = ["mount", "--variant", "f2fs-nl", "--nvm", &nvm, &place.text("image"), &place.mnt()]
        .map(str::to_owned);
    heddle(&log.each_ref().map(String::as_str)).failed(2, &["not an F2FS image"]);
    assert_eq!(fs::metadata(&nvm).unwrap().len(), 64 * MIB);
}

/// Each saw no file and made one: the loser took away the log that the winner had begun to write.
#[test]
fn crash_of_two_mounts_that_made_a_log_the_loser_removed_it() {
    if !own_namespace() {
        return;
    }
    let place = Place::new();
    let nvm = place.text("nvm");
    let ends = ["one", "two"].map(|name| (place.text(name), place.text(&format!("mnt-{name}"))));
    for (image, dir) in &ends {
        heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", image]).ok();
        fs::create_dir(dir).unwrap();
    }
    for _ in 0..6 {
        let mounts = ends.each_ref().map(|(image, dir)| {
            let args =
                ["mount", "--variant", "f2fs-nl", "-o", "log=/dev/null,wait=0", "--nvm", &nvm, image, dir];
            command(&args).stderr(Stdio::null()).spawn().unwrap()
        });
        let mounted = mounts.map(|mut mount| mount.wait().unwrap().success());
        let is_there = Path::new(&nvm).exists();
        for ((_, dir), mounted) in ends.iter().zip(mounted) {
            let unmounted = mounted.then(|| heddle(&["umount", dir]));
            unmounted.into_iter().for_each(|said| _ = said.ok());
        }
        assert!(mounted[0] != mounted[1], "{mounted:?}");
        assert!(is_there, "the log of a mount is gone");
        fs::remove_file(&nvm).unwrap();
    }
}

#[test]
fn a_node_log_beyond_the_limit_of_the_process_names_that_limit() {
    if !own_namespace() {
        return;
    }
    let place = Place::new();
    let [image, nvm] = ["flash.img", "nvm"].map(|name| place.text(name));
    heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", &image]).ok();
    // In units of 512 bytes: the image may be as long, the log not.
    let script =
        "ulimit -f 131072; exec \"$0\" mount -o nvm-size=65M --variant f2fs-nl --nvm \"$1\" \"$2\" \"$3\"";
    let mut sh = Command::new("sh");
    let limited = sh.args(["-c", script, env!("CARGO_BIN_EXE_heddle"), &nvm, &image, &place.mnt()]);
    let said = common::Said::of(limited.stdin(Stdio::null()).output().unwrap());
    said.failed(1, &["ulimit -f", &nvm]);
    assert!(!Path::new(&nvm).exists());
}

#[test]
fn a_node_log_is_not_made_where_the_mount_would_hide_it() {
    if !own_namespace() {
        return;
    }
    let place = Place::with_image_of("f2fs", "64M");
    let options = |nvm: &str| {
        let args = [
            "mount",
            "--variant",
            "f2fs-nl",
            "-o",
            "log=/dev/null",
            "--nvm",
            nvm,
            &place.image(),
            &place.mnt(),
        ];
        heddle(&args.map(str::to_owned).each_ref().map(String::as_str))
    };
    options(&place.text("mnt/nvm")).failed(2, &["under the mount point", "another place"]);
    symlink("mnt", place.path("link")).unwrap();
    options(&place.text("link/nvm")).failed(2, &["under the mount point"]);
    assert!(fs::read_dir(place.mnt()).unwrap().next().is_none());
}

/// A size that nobody has room for: said before a page is touched, and nothing stays.
#[test]
fn a_node_log_larger_than_memory_is_refused_and_leaves_nothing() {
    let place = Place::new();
    let [image, nvm] = ["flash.img", "nvm"].map(|name| place.text(name));
    heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", &image]).ok();
    let options = ["-o", "nvm-size=256G", "--nvm", &nvm, "--variant", "f2fs-nl"];
    let started = std::time::Instant::now();
    heddle(&[&["mount"], &options[..], &[&image, &place.mnt()]].concat())
        .failed(1, &["does not fit", "memory"]);
    assert!(started.elapsed().as_secs() < 20 && !Path::new(&nvm).exists());
    let names: Vec<_> =
        fs::read_dir(place.path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names.len(), 2, "{names:?}");
}

#[test]
fn mkfs_wipes_old_signatures_at_both_ends_only_when_forced() {
    let place = Place::new();
    let disk = place.path("disk");
    let last = (64 * MIB) - 0x10000;
    planted(&disk, 64 * MIB, &[(0x10040, b"_BHRfS_M"), (last, &RAID)]);
    let Some(device) = Loop::over(&disk) else { return };
    assert!(own_namespace() || device.0.starts_with("/dev/"));
    for variant in ["heddle", "f2fs"] {
        planted(&disk, 64 * MIB, &[(0x10040, b"_BHRfS_M"), (last, &RAID)]);
        let make = |how: &[&str]| heddle(&[&["mkfs", "--variant", variant], how, &[&device.0]].concat());
        make(&[]).failed(1, &["btrfs", "RAID (0.90)", "--force"]);
        let said = make(&["--force"]).ok();
        assert!(said.err.contains("btrfs"), "{}", said.err);
        let bytes = fs::read(&disk).unwrap();
        assert!(bytes[0x10040..0x10048] == [0; 8] && bytes[last as usize..][..8] == [0; 8], "{variant}");
        heddle(&["info", &device.0]).ok();
    }
    assert_eq!(fs::metadata(&disk).unwrap().size(), 64 * MIB);
}
