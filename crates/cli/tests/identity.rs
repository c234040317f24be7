//! One image, one writer, under whatever name; one identity, one mount; and what a mount could not keep is heard by who unmounts.

mod common;

use common::loop_device::Loop;
use common::{Mounted, Place, Said, command, heddle, own_namespace};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn tool(words: &[&str]) -> bool {
    Command::new(words[0]).args(&words[1..]).output().is_ok_and(|said| said.status.success())
}

#[test]
fn an_nvm_image_on_a_write_protected_device_is_called_that() {
    if !own_namespace() {
        return;
    }
    let place = Place::with_image("heddle");
    let Some(device) = Loop::protected_over(Path::new(&place.image())) else { return };
    let words = ["write-protected", "-o ro", "fsck -n"];
    heddle(&["mount", "-o", "log=/dev/null", &device.0, &place.mnt()]).failed(1, &words);
    heddle(&["fsck", "-y", &device.0]).failed(8, &words);
    heddle(&["mkfs", "--force", &device.0]).failed(1, &["write-protected"]);
    heddle(&["mount", "-o", "ro,log=/dev/null", &device.0, &place.mnt()]).ok();
    heddle(&["umount", &place.mnt()]).ok();
    heddle(&["fsck", "-n", &device.0]).ok();
}

/// The kernel counts discards apart from requests to zero a range, which many devices refuse.
#[test]
fn f2fs_on_a_device_discards_what_is_free_unless_told_not_to() {
    if !own_namespace() {
        return;
    }
    let place = Place::with_image_of("f2fs", "128M");
    let Some(device) = Loop::over(Path::new(&place.image())) else { return };
    let counts = Path::new("/sys/block").join(Path::new(&device.0).file_name().unwrap()).join("stat");
    let discards = || -> u64 {
        fs::read_to_string(&counts).unwrap().split_whitespace().nth(11).unwrap().parse().unwrap()
    };
    for (option, expected) in [("nodiscard", false), ("rw", true)] {
        let before = discards();
        heddle(&["mount", "-o", &format!("log=/dev/null,{option}"), &device.0, &place.mnt()]).ok();
        let file = place.path("mnt/file");
        fs::write(&file, vec![1; 24 << 20]).unwrap();
        File::open(&file).unwrap().sync_all().unwrap();
        fs::remove_file(&file).unwrap();
        heddle(&["umount", &place.mnt()]).ok();
        assert_eq!(discards() > before, expected, "{option}");
    }
}

#[test]
fn a_copied_image_is_refused_until_it_has_a_new_uuid() {
    if !own_namespace() {
        return;
    }
    let place = Place::with_image("heddle");
    let (copy, other) = (place.text("copy"), place.text("other"));
    fs::create_dir(&other).unwrap();
    fs::copy(place.image(), &copy).unwrap();
    let mounted = Mounted::new(&place, &[]);
    heddle(&["mount", &copy, &other])
        .failed(1, &["is a copy of", &place.image(), "heddle tune --uuid random"]);
    heddle(&["tune", &copy]).failed(2, &["--uuid"]);
    heddle(&["tune", "--uuid", "12", &copy]).failed(2, &["32 hexadecimal digits"]);
    heddle(&["tune", "--uuid", "random", &place.image()]).failed(1, &["mounted at"]);
    heddle(&["tune", "--uuid", "00112233-4455-6677-8899-aabbccddeeff", &copy]).ok();
    assert!(heddle(&["info", &copy]).ok().out.contains("00112233445566778899aabbccddeeff"));
    heddle(&["mount", "-o", "log=/dev/null", &copy, &other]).ok();
    fs::write(mounted.path("a"), "original").unwrap();
    fs::write(place.path("other/a"), "copy").unwrap();
    heddle(&["umount", &other]).ok();
    assert_eq!(fs::read(mounted.path("a")).unwrap(), b"original");
    drop(mounted);
    for image in [&place.image(), &copy] {
        heddle(&["fsck", "-n", image]).ok();
    }
}

#[test]
fn an_image_and_its_loop_device_have_one_writer_together() {
    if !own_namespace() {
        return;
    }
    for (variant, size) in [("heddle", "16M"), ("f2fs", "64M")] {
        let place = Place::with_image_of(variant, size);
        let Some(device) = Loop::over(&place.path("image")) else { return };
        let Some(second) = Loop::over(&place.path("image")) else { return };
        let other = place.text("other");
        fs::create_dir(&other).unwrap();
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        heddle(&["mount", "-o", "wait=0", &device.0, &other]).failed(1, &["in use by process"]);
        heddle(&["mkfs", "--force", "--variant", variant, &device.0]).failed(1, &["in use by process"]);
        drop(mounted);
        heddle(&["mount", "-o", "log=/dev/null", &device.0, &other]).ok();
        place.mount().failed(1, &["in use by process"]);
        heddle(&["mount", "-o", "wait=0", &second.0, &place.mnt()]).failed(1, &["in use by process"]);
        fs::write(place.path("other/file"), "kept").unwrap();
        heddle(&["umount", &other]).ok();
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        assert_eq!(fs::read(mounted.path("file")).unwrap(), b"kept", "{variant}");
    }
}

#[test]
fn an_image_mounted_through_a_loop_device_is_refused() {
    if !own_namespace() {
        return;
    }
    let place = Place::new();
    File::create(place.path("image")).unwrap().set_len(32 << 20).unwrap();
    let image = place.image();
    if !tool(&["mkfs.ext4", "-q", "-F", &image]) || !tool(&["mount", "-o", "loop", &image, &place.mnt()]) {
        return eprintln!("SKIPPED, NOT TESTED: no mkfs.ext4, or no ext4 in this kernel");
    }
    fs::write(place.path("mnt/file"), "the system's").unwrap();
    let refused = ["heddle", "f2fs"]
        .map(|variant| heddle(&["mkfs", "--force", "--variant", variant, "--size", "64M", &image]));
    // Unmounted first: what fails below leaves no mount.
    assert!(tool(&["umount", &place.mnt()]));
    for said in refused {
        said.failed(1, &["mounted at", &place.mnt()]);
    }
    assert!(tool(&["e2fsck", "-fn", &image]));
}

/// Mounts an image by a name that means something in the caller's directory alone.
fn mount_from_there(dir: &Path, name: &str, place: &Place, how: &[&str]) {
    let mut mount = command(&[&["mount", "-o", "log=/dev/null"], how, &[name, &place.mnt()]].concat());
    assert!(mount.current_dir(dir).stderr(Stdio::null()).status().unwrap().success());
}

/// The file below a loop device has no room: writes reach the system, and no media.
#[test]
fn umount_fails_with_what_did_not_reach_the_media() {
    if !own_namespace() {
        return;
    }
    for variant in ["heddle", "nova", "f2fs", "f2fs-rl", "f2fs-nl", "f2fs-integrated"] {
        let place = Place::new();
        let (nvm, socket) = (place.text("nvm"), place.text("metrics.sock"));
        let metrics = format!("metrics={socket}");
        let how = match variant {
            "f2fs-nl" | "f2fs-integrated" => vec!["--variant", variant, "--nvm", &nvm, "-o", "nvm-size=4M"],
            "f2fs-rl" => vec!["--variant", variant],
            "f2fs" => vec!["-o", &metrics],
            _ => vec![],
        };
        let small = place.text("small");
        fs::create_dir(&small).unwrap();
        assert!(tool(&["mount", "-t", "tmpfs", "-o", "size=24M", "tmpfs", &small]));
        let disk = Path::new(&small).join("disk");
        File::create(&disk).unwrap().set_len(64 << 20).unwrap();
        let Some(device) = Loop::over(&disk) else { return };
        let made = if variant.starts_with("f2fs") { "f2fs" } else { variant };
        heddle(&["mkfs", "--variant", made, &device.0]).ok();
        let (dir, name) = device.0.rsplit_once('/').unwrap();
        mount_from_there(Path::new(dir), name, &place, &how);
        let file = File::create(place.path("mnt/file")).unwrap();
        // Errors come when they come, at a write, a sync or the end.
        for mib in 0..40u64 {
            let _ = file.write_all_at(&vec![7; 1 << 20], mib << 20);
        }
        let _ = file.sync_all();
        drop(file);
        // Such an F2FS mount changes nothing any more, which anybody who looks on is told.
        if variant == "f2fs" {
            let told = heddle(&["stat", "--json", &place.mnt()]).ok().out;
            assert!(told.contains("\"damaged\": true"), "{told}");
            let mut page = String::new();
            let mut asker = UnixStream::connect(&socket).unwrap();
            asker.write_all(b"GET /metrics HTTP/1.0\r\n\r\n").unwrap();
            asker.read_to_string(&mut page).unwrap();
            assert!(page.contains("\nheddle_damaged 1\n"), "{page}");
        }
        let said = heddle(&["umount", &place.mnt()]);
        drop(device);
        assert!(tool(&["umount", "-l", &small]));
        said.failed(1, &["unmounted, but some writes have not reached the media"]);
    }
}

#[test]
fn umount_fails_if_the_image_was_cut_short_while_mounted() {
    if !own_namespace() {
        return;
    }
    for (looks, variant, size, remedy) in [
        (true, "heddle", "8M", "heddle fsck"),
        (false, "heddle", "8M", "heddle fsck"),
        (false, "f2fs", "64M", "image"),
    ] {
        let place = Place::with_image_of(variant, size);
        mount_from_there(&place.path(""), "image", &place, &[]);
        fs::write(place.path("mnt/file"), vec![1; 1 << 20]).unwrap();
        File::options().write(true).open(place.image()).unwrap().set_len(1 << 16).unwrap();
        assert!(!looks || fs::read(place.path("mnt/file")).is_err());
        heddle(&["umount", &place.mnt()]).failed(1, &["unmounted, but", "cut short", remedy]);
    }
    // Nothing was changed that could have met the end.
    let place = Place::with_image_of("f2fs", "64M");
    mount_from_there(&place.path(""), "image", &place, &[]);
    File::options().write(true).open(place.image()).unwrap().set_len(1 << 16).unwrap();
    heddle(&["umount", &place.mnt()]).failed(1, &["unmounted, but", "cut short"]);
}

#[test]
fn umount_judges_the_image_that_was_mounted_whatever_its_path_means() {
    if !own_namespace() {
        return;
    }
    let notes = tempfile::tempdir().unwrap();
    let heddle =
        |args: &[&str]| Said::of(command(args).env("HEDDLE_RUNTIME_DIR", notes.path()).output().unwrap());
    for variant in ["heddle", "f2fs"] {
        let place = Place::new();
        let (image, moved, mnt, other) =
            (place.image(), place.text("moved"), place.mnt(), place.text("other"));
        fs::create_dir(&other).unwrap();
        let make = || heddle(&["mkfs", "--variant", variant, "--size", "64M", &image]).ok();
        let mount = |dir: &str| heddle(&["mount", "-o", "log=/dev/null", &image, dir]).ok();
        make();
        mount(&mnt);
        fs::rename(&image, &moved).unwrap();
        make();
        mount(&other);
        // The path is that of an image in use, and the one that was mounted is in order.
        heddle(&["umount", &mnt]).ok();
        heddle(&["umount", &other]).ok();
        if variant == "f2fs" {
            continue;
        }
        // The path is that of an image in order, and the one that was mounted is damaged.
        mount(&mnt);
        fs::write(place.path("mnt/file"), vec![1; 1 << 20]).unwrap();
        File::options().write(true).open(&image).unwrap().set_len(1 << 16).unwrap();
        fs::rename(&moved, &image).unwrap();
        heddle(&["umount", &mnt]).failed(1, &["unmounted, but", "cut short"]);
        let left = fs::read_dir(notes.path()).unwrap().flatten().map(|entry| entry.file_name());
        assert_eq!(left.collect::<Vec<_>>(), [""; 0], "what was told stays behind");
    }
}

/// A mount of user 65534, who shows this as its image.
fn strangers(shown: &Path, dir: &Path) -> File {
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options =
        format!("fd={},rootmode=40000,user_id=65534,group_id=65534,allow_other", device.as_raw_fd());
    let options = std::ffi::CString::new(options).unwrap();
    mount(shown, dir, "fuse.heddle", MountFlags::NOSUID | MountFlags::NODEV, Some(options.as_c_str()))
        .unwrap();
    device
}

#[test]
fn what_a_strangers_mount_shows_as_its_image_is_not_opened() {
    if !own_namespace() {
        return;
    }
    let place = Place::with_image("heddle");
    let (copy, pipe, dir) = (place.path("copy"), place.path("pipe"), place.path("strangers"));
    fs::create_dir(&dir).unwrap();
    fs::copy(place.image(), &copy).unwrap();
    let serves = strangers(&copy, &dir);
    // It keeps nobody's image from being mounted.
    drop(Mounted::new(&place, &["-o", "log=/dev/null"]));
    drop(serves);
    heddle(&["umount", dir.to_str().unwrap()]).failed(1, &["had died"]);
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, 0o600.into()).unwrap();
    drop(strangers(&pipe, &dir));
    // Nobody writes to that.
    heddle(&["umount", dir.to_str().unwrap()]).failed(1, &["had died"]);
}

/// Reads what it is asked, and answers the first question alone, which the kernel asks at the mount.
fn answers_nothing(mut device: File) {
    const INIT: u32 = 26;
    const PROTOCOL: [u32; 2] = [7, 31];
    let mut question = vec![0; 1 << 20];
    while let Ok(len) = device.read(&mut question) {
        let word = |at: usize| u32::from_ne_bytes(*question[at..len].first_chunk().unwrap());
        if word(4) == INIT {
            let mut answer = [0; 80];
            answer[0] = 80;
            answer[8..16].copy_from_slice(&question[8..16]);
            answer[16..20].copy_from_slice(&PROTOCOL[0].to_ne_bytes());
            answer[20..24].copy_from_slice(&PROTOCOL[1].to_ne_bytes());
            // Bytes of a write, at most.
            answer[37] = 0x10;
            device.write_all(&answer).unwrap();
        }
    }
}

/// A command that must end, whatever mounts do.
#[track_caller]
fn ends(args: &[&str]) -> (Option<i32>, String) {
    let mut running = command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let began = Instant::now();
    let status = loop {
        match running.try_wait().unwrap() {
            Some(status) => break status,
            None => assert!(began.elapsed() < Duration::from_secs(40), "it hangs: {args:?}"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let mut said = String::new();
    running.stdout.take().unwrap().read_to_string(&mut said).unwrap();
    running.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (status.code(), said)
}

/// A question that its process has read cannot be taken back: who had asked could not be killed.
#[test]
fn a_strangers_mount_that_never_answers_holds_nobody_up() {
    if !own_namespace() {
        return;
    }
    struct Gone(PathBuf);
    impl Drop for Gone {
        fn drop(&mut self) {
            let _ = unmount(&self.0, UnmountFlags::FORCE | UnmountFlags::DETACH);
        }
    }
    let place = Place::with_image("heddle");
    let (image, dirs) = (place.image(), ["reads", "sleeps"].map(|name| place.path(name)));
    dirs.iter().for_each(|dir| fs::create_dir(dir).unwrap());
    // They are in the table before the image's own mount.
    let reads = strangers(Path::new(&image), &dirs[0]);
    let _gone = Gone(dirs[0].clone());
    std::thread::spawn(|| answers_nothing(reads));
    let _never_reads = strangers(Path::new(&image), &dirs[1]);
    let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
    fs::write(mounted.path("file"), "12345").unwrap();
    let (code, said) = ends(&["stat", "--json", &image]);
    assert_eq!(code, Some(0), "{said}");
    assert_eq!(serde_json::from_str::<serde_json::Value>(&said).unwrap()["calls"]["write"]["bytes"], 5);
    drop(mounted);
    let dirs = dirs.map(|dir| dir.to_str().unwrap().to_owned());
    for words in [&["stat", &image][..], &["stat", &dirs[0]], &["run", "--image", &image, "--", "true"]] {
        let (code, said) = ends(words);
        assert!(code == Some(1) && said.contains("gives no answer"), "{words:?}: {code:?} {said}");
    }
    for dir in &dirs {
        let (code, said) = ends(&["mount", "-o", "log=/dev/null", &image, dir]);
        assert!(code == Some(1) && said.contains("is mounted there"), "{dir}: {code:?} {said}");
    }
}

/// A number of a file system is given out again; a process that still had the connection of the one before was taken for the server.
#[test]
fn umount_waits_for_no_process_of_an_earlier_mount() {
    if !own_namespace() {
        return;
    }
    let place = Place::with_image("heddle");
    let dir = place.path("earlier");
    fs::create_dir(&dir).unwrap();
    let numbered = |at: &Path| {
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let line = table.lines().find(|line| line.split(' ').nth(4) == at.to_str()).unwrap();
        line.split(' ').nth(2).unwrap().to_owned()
    };
    // Others mount at the same time: until a number is the one before's.
    for _ in 0..50 {
        let _stays_open = strangers(Path::new("x"), &dir);
        let before = numbered(&dir);
        unmount(&dir, UnmountFlags::empty()).unwrap();
        std::mem::forget(Mounted::new(&place, &["-o", "log=/dev/null"]));
        let same = numbered(Path::new(&place.mnt())) == before;
        heddle(&["umount", "--wait", "10", &place.mnt()]).ok();
        if same {
            return;
        }
    }
    panic!("no number was given out again");
}
