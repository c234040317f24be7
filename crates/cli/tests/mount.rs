//! The way of an image through the command line: made, mounted, used, unmounted, told about.

mod common;

use common::{Mounted, Place, alone, build_preload, command, heddle};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

fn info(place: &Place) -> serde_json::Value {
    serde_json::from_str(&heddle(&["info", "--json", &place.image()]).ok().out).unwrap()
}

#[track_caller]
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_programs_write_through_a_mount_is_there_after_the_next() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    {
        let mounted = Mounted::new(&place, &["-o", "noatime"]);
        fs::create_dir(mounted.path("dir")).unwrap();
        fs::write(mounted.path("dir/file"), "of many threads").unwrap();
        assert_eq!(info(&place)["in_use"], true);
        assert!(info(&place)["in_use_by_pid"].is_u64());
    }
    let after = info(&place);
    assert_eq!(
        (&after["clean"], &after["in_use"], &after["mounts"]),
        (&true.into(), &false.into(), &1.into())
    );
    let mounted = Mounted::new(&place, &["-o", "ro"]);
    assert_eq!(fs::read(mounted.path("dir/file")).unwrap(), b"of many threads");
    assert_eq!(fs::write(mounted.path("new"), "").unwrap_err().kind(), ErrorKind::ReadOnlyFilesystem);
}

#[test]
fn an_image_is_mounted_once_and_the_error_names_holder_and_remedy() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("nova-tree");
    let _mounted = Mounted::new(&place, &["-o", "lock-mode=paper,segment=64K"]);
    let pid = info(&place)["in_use_by_pid"].to_string();
    let remedy = format!("heddle umount {}", place.mnt());
    fs::create_dir(place.path("other")).unwrap();
    heddle(&["mount", &place.image(), &place.text("other")]).failed(1, &[&pid, &remedy]);
    heddle(&["mkfs", "--size", "8M", "--force", &place.image()]).failed(1, &[&pid, &remedy]);
    heddle(&["umount", &place.text("other")]).failed(1, &["not a mount point"]);
}

/// The process that a refusal names, if it has the image open.
#[track_caller]
fn named_holder(refusal: &str, image: &str) -> u32 {
    let digits = refusal.split("process ").nth(1).unwrap_or_else(|| panic!("no process is named: {refusal}"));
    let pid = digits.split(|c: char| !c.is_ascii_digit()).next().unwrap().parse().unwrap();
    let open = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
    let has_it = open.filter_map(|fd| fs::read_link(fd.path()).ok()).any(|file| file == Path::new(image));
    assert!(has_it, "process {pid} has it not: {refusal}");
    pid
}

#[test]
fn a_second_mount_is_refused_in_every_system() {
    let Some(_alone) = alone() else { return };
    let nvm = ["heddle", "nova", "nova-interval", "nova-array", "nova-tree"];
    for variant in nvm.into_iter().chain(["f2fs", "f2fs-rl", "f2fs-nl", "f2fs-integrated"]) {
        let (image_of, size) = if nvm.contains(&variant) { (variant, "8M") } else { ("f2fs", "64M") };
        let place = Place::with_image_of(image_of, size);
        let log = place.text("nvm");
        let (nvm, nvm_size) = (format!("nvm={log}"), "nvm-size=2M");
        let mut options = vec!["-o", "log=/dev/null", "--variant", variant];
        if matches!(variant, "f2fs-nl" | "f2fs-integrated") {
            options.extend(["-o", &nvm, "-o", nvm_size]);
        }
        let _mounted = Mounted::new(&place, &options);
        fs::create_dir(place.path("other")).unwrap();
        for how in ["wait=0", "wait=0,ro"] {
            let refused = heddle(&["mount", "-o", how, &place.image(), &place.text("other")]);
            named_holder(&refused.err, &place.image());
            refused.failed(1, &["nmount it"]);
        }
    }
}

#[test]
fn a_full_file_system_says_so_and_loses_nothing() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mounted = Mounted::new(&place, &[]);
    fs::write(mounted.path("kept"), "kept").unwrap();
    let big = fs::write(mounted.path("big"), vec![7; 16 << 20]).unwrap_err();
    assert_eq!(big.kind(), ErrorKind::StorageFull);
    assert_eq!(fs::read(mounted.path("kept")).unwrap(), b"kept");
    fs::remove_file(mounted.path("big")).unwrap();
    // The kernel closes the file behind our back: until then its blocks are not free.
    eventually("space never comes back", || fs::write(mounted.path("next"), vec![8; 1 << 20]).is_ok());
    drop(mounted);
    let mounted = Mounted::new(&place, &[]);
    assert_eq!(fs::read(mounted.path("kept")).unwrap(), b"kept");
    assert_eq!(fs::read(mounted.path("next")).unwrap(), vec![8; 1 << 20]);
}

#[test]
fn a_killed_mount_is_recovered_by_the_next() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mounted = Mounted::new(&place, &[]);
    fs::write(mounted.path("file"), "returned").unwrap();
    let pid = info(&place)["in_use_by_pid"].as_u64().unwrap();
    kill_process(Pid::from_raw(pid as i32).unwrap(), Signal::KILL).unwrap();
    eventually("the image is still in use", || info(&place)["in_use"] == false);
    assert_eq!(info(&place)["clean"], false);
    std::mem::forget(mounted);
    heddle(&["umount", &place.mnt()]).failed(1, &["next mount recovers"]);
    let again = Mounted::new(&place, &[]);
    assert!(fs::read_to_string(place.path("log")).unwrap().contains("recovered"));
    assert_eq!(fs::read(again.path("file")).unwrap(), b"returned");
}

#[test]
fn a_signal_unmounts_cleanly_and_serves_open_files_to_the_end() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mut served = command(&["mount", "--foreground", &place.image(), &place.mnt()]).spawn().unwrap();
    let file = place.path("mnt").join("file");
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    eventually("never mounted", || device(&place.path("mnt")) != device(&place.path("")));
    fs::write(&file, "open").unwrap();
    let open = fs::File::open(&file).unwrap();
    kill_process(Pid::from_child(&served), Signal::TERM).unwrap();
    eventually("still in the tree", || !file.exists());
    assert_eq!(std::io::read_to_string(&open).unwrap(), "open");
    assert!(served.try_wait().unwrap().is_none(), "it must serve what is open");
    drop(open);
    assert!(served.wait().unwrap().success());
    assert_eq!(info(&place)["clean"], true);
}

#[test]
fn each_signal_to_end_unmounts_and_a_second_ends_at_once() {
    let Some(_alone) = alone() else { return };
    for (variant, size) in [("heddle", "8M"), ("f2fs", "64M")] {
        let place = Place::with_image_of(variant, size);
        let (image, mnt) = (place.image(), place.mnt());
        let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
        let is_mounted = || device(&place.path("mnt")) != device(&place.path(""));
        let file = place.path("mnt/file");
        for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
            let mut served = command(&["mount", "--foreground", &image, &mnt]).spawn().unwrap();
            eventually("never mounted", is_mounted);
            fs::write(&file, format!("{signal:?}")).unwrap();
            kill_process(Pid::from_child(&served), signal).unwrap();
            assert!(served.wait().unwrap().success() && !is_mounted(), "{variant}, {signal:?}");
            let _mounted = Mounted::new(&place, &["-o", "ro,log=/dev/null"]);
            assert_eq!(fs::read_to_string(&file).unwrap(), format!("{signal:?}"), "{variant}");
        }
        // With a file open the first one does not suffice.
        let mut served = command(&["mount", "--foreground", &image, &mnt]).spawn().unwrap();
        eventually("never mounted", is_mounted);
        let open = File::create(&file).unwrap();
        open.write_all_at(b"synced", 0).unwrap();
        open.sync_all().unwrap();
        for _ in 0..2 {
            kill_process(Pid::from_child(&served), Signal::INT).unwrap();
            eventually("still in the tree", || !is_mounted());
        }
        assert_eq!(served.wait().unwrap().code(), Some(1), "{variant}");
        let _mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        assert_eq!(fs::read_to_string(&file).unwrap(), "synced", "{variant}");
    }
}

#[test]
fn mkfs_tells_what_it_made() {
    let place = Place::new();
    let said = heddle(&["mkfs", "--size", "8MiB", "--variant", "nova", "--json", &place.image()]).ok();
    let made: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!((&made["size_bytes"], &made["variant"]), (&(8 << 20).into(), &"nova".into()));
    assert!(said.err.is_empty(), "no progress bar where there is no terminal: {}", said.err);
    let told = info(&place);
    assert_eq!((&told["size_bytes"], &told["variant"]), (&made["size_bytes"], &made["variant"]));
    assert_eq!(told["mounted_last_ns"], serde_json::Value::Null);
}

const NAMELESS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/c/nameless.py");

fn nameless(mut python: Command, dir: &Path, rounds: u32) -> Vec<String> {
    let out = python.arg(NAMELESS).arg(dir).arg(rounds.to_string()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8_lossy(&out.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn files_held_without_being_open_live_as_on_tmpfs() {
    let Some(_alone) = alone() else { return };
    let wanted = {
        let place = Place::new();
        let small = place.path("mnt");
        let said = Command::new("mount").args(["-t", "tmpfs", "-o", "size=8M", "none"]).arg(&small).status();
        assert!(said.unwrap().success());
        let wanted = nameless(Command::new("python3"), &small, 1);
        assert!(Command::new("umount").arg(&small).status().unwrap().success());
        wanted
    };
    assert!(wanted.len() > 30 && wanted.iter().any(|line| line == "file read text"), "{wanted:#?}");
    build_preload();
    let nvm = ["heddle", "nova", "nova-interval", "nova-array", "nova-tree"].map(|variant| (variant, false));
    let flash = ["f2fs", "f2fs-rl", "f2fs-nl", "f2fs-integrated"].map(|variant| (variant, false));
    for (variant, bypass) in [("heddle", true)].into_iter().chain(nvm).chain(flash) {
        let size = if variant.starts_with("f2fs") { "64M" } else { "16M" };
        let place = Place::with_image_of(variant, size);
        let has_log = matches!(variant, "f2fs-nl" | "f2fs-integrated");
        let log = if has_log { format!(",nvm={},nvm-size=2M", place.text("nvm")) } else { String::new() };
        let mounted = Mounted::new(&place, &["-o", &format!("log=/dev/null,variant={variant}{log}")]);
        let python = if bypass { command(&["run", "--", "python3"]) } else { Command::new("python3") };
        let found = nameless(python, &mounted.path(""), if variant == "heddle" { 8 } else { 2 });
        let unlike: Vec<_> = wanted.iter().zip(&found).filter(|(wanted, found)| wanted != found).collect();
        assert!(unlike.is_empty() && wanted.len() == found.len(), "{variant}: wanted, found: {unlike:#?}");
    }
}

/// As `truncate -s 2G my.img` leaves it.
#[test]
fn a_file_that_grew_keeps_its_holes_in_mounts_and_repairs() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    build_preload();
    let image = File::options().write(true).open(place.image()).unwrap();
    let blocks = || image.metadata().unwrap().blocks();
    let before = blocks();
    image.set_len(2 << 30).unwrap();
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    let writes = format!("head -c 1000000 /dev/zero > {}", mounted.path("file").display());
    heddle(&["run", "--prefault", "--", "sh", "-c", &writes]).ok();
    assert_eq!(blocks(), before, "mounted");
    drop(mounted);
    drop(Mounted::new(&place, &["-o", "ro,log=/dev/null"]));
    assert_eq!(blocks(), before, "mounted read-only");
    image.write_all_at(b"rubbish", 200).unwrap();
    heddle(&["fsck", "-y", &place.image()]).failed(1, &[]);
    heddle(&["tune", "--uuid", "random", &place.image()]).ok();
    assert_eq!(blocks(), before, "repaired");
}

#[test]
fn a_mount_of_an_image_on_a_disk_says_what_is_faster() {
    let Some(_alone) = alone() else { return };
    let (place, disk) = (Place::new(), tempfile::tempdir().unwrap());
    let on_disk = disk.path().join("image").to_str().unwrap().to_owned();
    let made = heddle(&["mkfs", "--size", "8M", &on_disk]).ok();
    if !made.out.contains("msync") {
        eprintln!("SKIPPED, NOT TESTED: an image on a disk needs a temporary folder on one");
        return;
    }
    heddle(&["mkfs", "--size", "8M", &place.image()]).ok();
    let said = [on_disk, place.image()].map(|image| {
        let said = heddle(&["mount", "-o", "log=/dev/null", &image, &place.mnt()]).ok().err;
        heddle(&["umount", &place.mnt()]).ok();
        said
    });
    let tells = |said: &String| said.contains("msync") && said.contains("F2FS");
    assert_eq!((tells(&said[0]), tells(&said[1])), (true, false), "{said:?}");
}
