//! A mount, or an image to be made, that is refused has changed nothing, whatever was to be given up.

mod common;

use common::loop_device::Loop;
use common::{Place, command, heddle, own_namespace};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// The mark of a RAID, at the end of a disk.
const RAID: [u8; 8] = [0xfc, 0x4e, 0x2b, 0xa9, 0, 0, 0, 0];

/// A file of zeros, with these bytes somewhere.
fn disk(path: &Path, len: u64, at: u64, bytes: &[u8]) {
    let file = File::create(path).unwrap();
    file.set_len(len).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

/// A mount's process, ended whatever the test does.
struct Served(Child);

impl Served {
    fn end(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        let _ended = (self.0.kill(), self.0.wait());
    }
}

/// What a failed test leaves mounted there is unmounted. Made after the devices that mounts hold.
struct Left(Vec<String>);

impl Drop for Left {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.iter().for_each(|dir| drop(heddle(&["umount", dir])));
        }
    }
}

/// A new image whose mount was killed: one file of it is in its node log alone.
fn killed(place: &Place, image: &str, nvm: &str) {
    heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", image]).ok();
    let dir = place.mnt();
    let how = ["mount", "--foreground", "--variant", "f2fs-nl", "--nvm", nvm, image, &dir];
    let mut served = Served(command(&how).spawn().unwrap());
    let device = |path: &Path| fs::metadata(path).unwrap().dev();
    let start = Instant::now();
    while device(Path::new(&dir)) == device(&place.path("")) {
        assert!(start.elapsed() < Duration::from_secs(30), "never mounted");
        std::thread::sleep(Duration::from_millis(10));
    }
    let file = File::create(place.path("mnt/file")).unwrap();
    file.write_all_at(b"fsynced", 0).unwrap();
    file.sync_all().unwrap();
    served.end();
    drop(file);
    heddle(&["umount", &dir]).failed(1, &["had died"]);
}

/// Runs a command that may have so many descriptors. Its code, and what it said; it may leave a process.
fn with_descriptors(place: &Place, most: u64, args: &[&str]) -> (Option<i32>, String) {
    let said = place.path("said");
    let mut command = command(args);
    command.env("HEDDLE_RUNTIME_DIR", place.path("run")).stdout(File::create(place.path("out")).unwrap());
    command.stderr(File::create(&said).unwrap());
    // SAFETY: setrlimit takes a pointer to a value on the stack, and may be called between fork and exec.
    unsafe {
        command.pre_exec(move || {
            match libc::setrlimit(libc::RLIMIT_NOFILE, &libc::rlimit { rlim_cur: most, rlim_max: most }) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
    };
    let code = command.status().unwrap().code();
    (code, fs::read_to_string(said).unwrap())
}

/// The last descriptor went into the mount, which could not be found in the kernel's table then: it stayed, and answered nothing.
#[test]
fn a_mount_that_lacks_descriptors_leaves_nothing_behind() {
    if !own_namespace() {
        return;
    }
    for (variant, size) in [("heddle", "8M"), ("f2fs", "64M")] {
        let place = Place::with_image_of(variant, size);
        let (image, dir, run) = (place.image(), place.mnt(), place.path("run"));
        fs::create_dir(&run).unwrap();
        fs::set_permissions(&run, fs::Permissions::from_mode(0o700)).unwrap();
        let (mut refused, mut mounted) = (0, 0);
        // Beyond the first few that suffice nothing is scarce any more.
        for most in 3..64 {
            let how = ["mount", "-o", "log=/dev/null", &image, &dir];
            let (code, said) = with_descriptors(&place, most, &how);
            if code == Some(0) {
                heddle(&["umount", &dir]).ok();
                mounted += 1;
            } else {
                let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
                assert!(!table.contains(&dir), "{variant}, {most}: it is mounted: {said}");
                // With three not even the libraries can be opened.
                assert!(
                    most == 3 || said.contains("Too many open files") && said.contains("ulimit -n"),
                    "{most}: {said}"
                );
                assert!(code == Some(1) || most == 3, "{variant}, {most}: {code:?}: {said}");
                refused += 1;
            }
            assert!(heddle_pmem::lock_holder(Path::new(&image)).is_none(), "{variant}, {most}: {said}");
            assert!(!said.contains("panicked"), "{variant}, {most}: {said}");
            assert_eq!(fs::read_dir(&run).unwrap().count(), 0, "{variant}, {most}: {said}");
            if mounted == 4 {
                break;
            }
        }
        assert!(refused >= 4 && mounted == 4, "{variant}: {refused} refused, {mounted} mounted");
    }
}

#[test]
fn metrics_that_nobody_could_ask_are_refused_before_anything_is_done() {
    let place = Place::with_image("nova-tree");
    let (image, dir) = (place.image(), place.mnt());
    let before = fs::read(&image).unwrap();
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let refused = |option: String, code, says: &[&str]| {
        heddle(&["mount", "--foreground", "-o", &option, &image, &dir]).failed(code, says);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 0, "{option}");
    };
    refused(format!("metrics={dir}/socket"), 2, &["would cover", &dir]);
    refused(format!("metrics={dir}/../mnt/socket"), 2, &["would cover", &dir]);
    refused("metrics=[::1]:0".into(), 2, &["no client could know"]);
    refused("segment=16T".into(), 2, &["nova-tree", "8T"]);
    assert_eq!(fs::read(&image).unwrap(), before);
    refused(format!("metrics={port}"), 1, &["Address already in use", &port.to_string()]);
}

/// The mount's process would open it through its own mount, and keep that in use for ever.
#[test]
fn a_log_that_the_mount_would_cover_is_refused() {
    let place = Place::with_image("heddle");
    let (image, dir) = (place.image(), place.mnt());
    for log in [format!("{dir}/log"), format!("{dir}/../mnt/log")] {
        heddle(&["mount", "-o", &format!("log={log}"), &image, &dir]).failed(2, &["would cover", &log]);
    }
    assert_eq!(fs::read_dir(&dir).unwrap().count(), 0);
}

/// The mount went to the background, and its messages nowhere.
#[test]
fn a_mount_whose_named_log_cannot_be_written_is_refused() {
    if !own_namespace() {
        return;
    }
    for variant in ["heddle", "f2fs"] {
        let place = Place::new();
        let (image, dir) = (place.image(), place.mnt());
        heddle(&["mkfs", "--variant", variant, "--size", "64M", &image]).ok();
        let before = fs::read(&image).unwrap();
        for log in [place.text("none/log"), place.mnt()] {
            let said = heddle(&["mount", "-o", &format!("log={log}"), &image, &dir]);
            said.failed(1, &["-o log", &log, "Choose another file"]);
        }
        assert!(fs::read(&image).unwrap() == before, "{variant}: the image is not touched");
    }
}

/// It was accepted, and had no effect.
#[test]
fn a_read_only_mount_of_an_f2fs_image_takes_no_durability() {
    if !own_namespace() {
        return;
    }
    let place = Place::new();
    let _left = Left(vec![place.mnt()]);
    heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", &place.image()]).ok();
    for durability in ["process", "power"] {
        let options = format!("log=/dev/null,ro,durability={durability}");
        heddle(&["mount", "--variant", "f2fs-nl", "-o", &options, &place.image(), &place.mnt()])
            .failed(2, &["-o durability", "Leave out ro"]);
    }
}

#[test]
fn a_refused_mount_leaves_the_device_of_the_log_as_it_was() {
    if !own_namespace() {
        return;
    }
    let place = Place::new();
    let [one, other, third] = ["one.img", "other.img", "third.img"].map(|name| place.text(name));
    disk(&place.path("disk"), 32 * MIB, 0, &[]);
    let Some(device) = Loop::over(&place.path("disk")) else { return };
    let _left = Left(vec![place.mnt(), place.text("elsewhere")]);
    killed(&place, &one, &device.0);
    killed(&place, &other, &place.text("nvm"));
    heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", &third]).ok();
    let before = fs::read(&device.0).unwrap();
    let mount = |options: &str, nvm: &str, image: &str| {
        let options = format!("log=/dev/null,wait=0,{options}");
        heddle(&["mount", "--variant", "f2fs-nl", "--nvm", nvm, "-o", &options, image, &place.mnt()])
    };
    let unchanged = |what: &str| assert!(fs::read(&device.0).unwrap() == before, "{what}");
    mount("force-nvm", &device.0, &other).failed(1, &["another log", "-o force-nvm,discard-nvm"]);
    unchanged("the image needs its own log");
    mount("force-nvm,durability=process", &device.0, &third).failed(1, &["durability"]);
    unchanged("its stores are not durable so");
    let no_socket = format!("force-nvm,metrics={}", place.text("disk"));
    mount(&no_socket, &device.0, &third).failed(1, &["no socket"]);
    unchanged("nobody could ask the mount");
    let dir = place.text("elsewhere");
    fs::create_dir(&dir).unwrap();
    heddle(&["mount", "-o", "log=/dev/null", &third, &dir]).ok();
    mount("force-nvm", &device.0, &third).failed(1, &["in use"]);
    heddle(&["umount", &dir]).ok();
    unchanged("the image is in use");
    // An image whose checkpoints are gone.
    let whole = fs::read(&third).unwrap();
    File::options().write(true).open(&third).unwrap().write_all_at(&vec![0; 4 << 20], 2 << 20).unwrap();
    mount("force-nvm", &device.0, &third).failed(1, &["damaged"]);
    unchanged("the image is damaged");
    fs::write(&third, &whole).unwrap();
    // The device is the image.
    let itself = Loop::over(Path::new(&third)).unwrap();
    for (nvm, image) in [(&itself.0, &third), (&third, &itself.0), (&third, &third)] {
        mount("force-nvm", nvm, image).failed(2, &["is the image", "itself", "another file or device"]);
    }
    drop(itself);
    assert!(fs::read(&third).unwrap() == whole, "the image was its own log");
    // What was fsynced is there, and what is not refused has a log.
    mount("rw", &device.0, &one).ok();
    assert_eq!(fs::read(place.path("mnt/file")).unwrap(), b"fsynced");
    heddle(&["umount", &place.mnt()]).ok();
    for options in ["force-nvm", "rw"] {
        mount(options, &device.0, &third).ok();
        heddle(&["umount", &place.mnt()]).ok();
    }
}

#[test]
fn an_image_that_is_refused_still_needs_its_log() {
    if !own_namespace() {
        return;
    }
    let place = Place::new();
    let image = place.text("one.img");
    killed(&place, &image, &place.text("nvm"));
    File::options().write(true).open(&image).unwrap().write_all_at(&vec![0; 4 << 20], 2 << 20).unwrap();
    let before = fs::read(&image).unwrap();
    heddle(&["mount", "-o", "discard-nvm,log=/dev/null", &image, &place.mnt()]).failed(1, &["damaged"]);
    assert!(fs::read(&image).unwrap() == before);
}

#[test]
fn a_log_is_not_made_over_bytes_between_zeros_of_a_device() {
    if !own_namespace() {
        return;
    }
    let place = Place::new();
    let image = place.text("flash.img");
    heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", &image]).ok();
    disk(&place.path("disk"), 32 * MIB, 16 * MIB + 5, b"a thesis");
    let Some(device) = Loop::over(&place.path("disk")) else { return };
    let _left = Left(vec![place.mnt()]);
    let mount = |options: &str| {
        heddle(&["mount", "--variant", "f2fs-nl", "--nvm", &device.0, "-o", options, &image, &place.mnt()])
    };
    mount("log=/dev/null").failed(1, &["does not know", "-o force-nvm"]);
    for options in ["log=/dev/null,force-nvm", "log=/dev/null"] {
        mount(options).ok();
        heddle(&["umount", &place.mnt()]).ok();
    }
    drop(device);
    disk(&place.path("disk"), 32 * MIB, 0, &[]);
    let device = Loop::over(&place.path("disk")).unwrap();
    let zeros =
        ["mount", "--variant", "f2fs-nl", "--nvm", &device.0, "-o", "log=/dev/null", &image, &place.mnt()]
            .map(str::to_owned);
    heddle(&zeros.each_ref().map(String::as_str)).ok();
    heddle(&["umount", &place.mnt()]).ok();
}

#[test]
fn a_device_of_the_wrong_size_keeps_what_mkfs_was_to_overwrite() {
    let place = Place::new();
    for (variant, len, size) in [
        ("f2fs", 16 * MIB, None),
        ("f2fs", 128 * MIB, Some("64M")),
        ("heddle", 16 * MIB, Some("64M")),
        ("nova", 16 * MIB, Some("64M")),
        ("heddle", 128 << 10, None),
    ] {
        disk(&place.path("disk"), len, len - 0x10000, &RAID);
        let Some(device) = Loop::over(&place.path("disk")) else { return };
        let sized = size.map_or(vec![], |size| vec!["--size", size]);
        let said = heddle(&[&["mkfs", "--force", "--variant", variant], &sized[..], &[&device.0]].concat());
        assert!(said.code != 0, "{variant} of {len} bytes: {}", said.out);
        let kept = fs::read(&device.0).unwrap()[(len - 0x10000) as usize..][..8] == RAID;
        assert!(kept, "{variant} of {len} bytes: {}", said.err);
    }
}

/// The second superblock survives, or both do: the image was mounted, and the first superblock written over the other format.
#[test]
fn what_was_made_over_an_nvm_image_later_is_not_overwritten() {
    if !own_namespace() {
        return;
    }
    let place = Place::with_image("heddle");
    let ours = fs::read(place.image()).unwrap();
    type Marks<'a> = &'a [(usize, &'a [u8])];
    let formats: [(&str, Marks<'_>); 3] = [
        ("swap", &[(4086, b"SWAPSPACE2")]),
        ("LUKS", &[(0, b"LUKS\xba\xbe\x00\x01")]),
        ("MBR", &[(450, &[0x83]), (458, &[8]), (510, &[0x55, 0xaa])]),
    ];
    for (name, marks) in formats {
        fs::write(place.image(), &ours).unwrap();
        let image = File::options().write(true).open(place.image()).unwrap();
        marks.iter().for_each(|(at, bytes)| image.write_all_at(bytes, *at as u64).unwrap());
        let before = fs::read(place.image()).unwrap();
        heddle(&["mount", "-o", "log=/dev/null", &place.image(), &place.mnt()]).failed(1, &[name, "-o ro"]);
        heddle(&["tune", "--uuid", "random", &place.image()]).failed(1, &[name]);
        for how in ["-n", "-y"] {
            heddle(&["fsck", how, &place.image()]).failed(8, &[name]);
        }
        heddle(&["mount", "-o", "ro,log=/dev/null", &place.image(), &place.mnt()]).ok();
        heddle(&["umount", &place.mnt()]).ok();
        assert!(fs::read(place.image()).unwrap() == before, "{name}");
    }
}
