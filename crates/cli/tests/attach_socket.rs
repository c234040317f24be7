//! Which mount a program attaches to, and who may: the mount itself says where its attach socket is, and no path does.

mod common;

use common::{Place, alone, build_preload, command, heddle};
use heddle_nvmfs::server::{Server, ServerOptions};
use heddle_pmem::{OpenOptions, Region};
use heddle_vfs::ioctl::{ATTACH, ATTACH_BYTES, AttachIoctl};
use heddle_vfs::{Cred, FileSystem, Ino, Name};
use std::ffi::OsStr;
use std::fs;
use std::io::BufRead;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};

const NOBODY: u32 = 65534;

/// An image that is mounted, of whatever names.
struct Mount {
    dir: PathBuf,
}

impl Mount {
    fn new(image: &Path, options: &str) -> Mount {
        let mut dir = image.as_os_str().to_owned();
        dir.push(".mnt");
        let dir = PathBuf::from(dir);
        fs::create_dir(&dir).unwrap();
        let mut mount = command(&["mount", "-o", &format!("log=/dev/null{options}")]);
        let said = mount.arg(image).arg(&dir).stderr(Stdio::null()).status().unwrap();
        assert!(said.success(), "{}", image.display());
        Mount { dir }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = command(&["umount"]).arg(&self.dir).status();
    }
}

/// Writes a word into a file under the bypass; what the report says.
fn writes(place: &Place, word: &str, file: &Path) -> String {
    fs::write(place.path("word"), word).unwrap();
    bypassed(place, &["cp", &place.text("word")], file, "")
}

/// Runs a program with a file under the bypass. `trust`: whom it names.
fn bypassed(place: &Place, program: &[&str], file: &Path, trust: &str) -> String {
    build_preload();
    let report = place.path("report");
    let _ = fs::remove_file(&report);
    let mut run = command(&[&["run", "--"][..], program].concat());
    let done = run.arg(file).env("HEDDLE_REPORT", &report).env("HEDDLE_TRUST", trust).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    fs::read_to_string(report).unwrap_or_default()
}

fn served(report: &str, call: &str) -> u64 {
    let lines = report.lines().map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    lines.map(|line| line[call].as_u64().unwrap()).sum()
}

#[test]
fn programs_attach_to_the_mount_they_use_whatever_its_image_is_called() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let names: [&[u8]; 6] = [b"a,b", b"a_b", b"a b\tc", br"a\054b", b"x\xffy", "\u{fffd}".as_bytes()];
    // Copies, whose inodes have the same numbers; of one identity they would not be mounted side by side.
    let images = names.map(|name| place.path("x").with_file_name(OsStr::from_bytes(name)));
    for image in &images {
        fs::copy(place.image(), image).unwrap();
        assert!(
            command(&["tune", "--uuid", "random"])
                .arg(image)
                .stdout(Stdio::null())
                .status()
                .unwrap()
                .success()
        );
    }
    let mounts: Vec<Mount> = images.iter().map(|image| Mount::new(image, "")).collect();
    for (n, mount) in mounts.iter().enumerate() {
        let report = writes(&place, &format!("word{n}"), &mount.dir.join("file"));
        assert_eq!(served(&report, "write"), 1, "{}: {report}", mount.dir.display());
    }
    for (n, (mount, image)) in mounts.iter().zip(&images).enumerate() {
        assert_eq!(fs::read_to_string(mount.dir.join("file")).unwrap(), format!("word{n}"));
        // By the image too, and of no other that is shown by the same name.
        for path in [image, &mount.dir] {
            let said = command(&["stat", "--json"]).arg(path).output().unwrap();
            let told: serde_json::Value = serde_json::from_slice(&said.stdout).unwrap();
            assert_eq!(told["calls"]["write"]["bytes"], 5, "{}", path.display());
        }
    }
    // Another image takes the path of one that is mounted.
    let (first, moved) = (&images[0], place.path("moved"));
    fs::rename(first, &moved).unwrap();
    heddle(&["mkfs", "--size", "8M", first.to_str().unwrap()]).ok();
    let report = writes(&place, "again", &mounts[0].dir.join("file"));
    assert_eq!(served(&report, "write"), 1, "{report}");
    assert_eq!(fs::read_to_string(mounts[0].dir.join("file")).unwrap(), "again");
    assert!(
        !command(&["stat"]).arg(first).stderr(Stdio::null()).status().unwrap().success(),
        "it is not mounted"
    );
}

/// A stranger's mount that passes what it is asked on to another one.
struct Relay {
    to: fs::File,
    passed_on: Mutex<u32>,
}

impl AttachIoctl for Relay {
    fn answer(&self, question: &[u8; ATTACH_BYTES], _: u32) -> [u8; ATTACH_BYTES] {
        let mut said = *question;
        // SAFETY: the number says that so many bytes go there and come back.
        let asked = unsafe { libc::ioctl(self.to.as_raw_fd(), ATTACH as _, said.as_mut_ptr()) };
        assert_eq!(asked, 0);
        *self.passed_on.lock().unwrap() += 1;
        said
    }
}

fn file_of(fs: &dyn FileSystem, name: &str, bytes: &[u8]) {
    let flags = heddle_vfs::OpenFlags::from_posix(libc::O_RDWR);
    let (_, handle) =
        fs.create(&Cred::root(), Ino::ROOT, Name::new(name.as_bytes()).unwrap(), 0o666, flags).unwrap();
    fs.write(&handle, 0, bytes).unwrap();
    fs.release(handle);
}

#[test]
fn a_strangers_mount_cannot_pass_for_another() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let roots = Mount::new(Path::new(&place.image()), "");
    fs::write(roots.dir.join("file"), "roots").unwrap();
    let strange = Arc::new(heddle_vfs::model::ModelFs::new());
    file_of(&*strange, "file", b"his");
    let relay = Arc::new(Relay { to: fs::File::open(&roots.dir).unwrap(), passed_on: Mutex::new(0) });
    let how = heddle_fuse::MountOptions {
        source: place.image().into(),
        attach_ioctl: Some(Arc::clone(&relay) as _),
        ..heddle_fuse::MountOptions::default()
    };
    let mounted = heddle_fuse::mount(strange, Path::new(&place.mnt()), &how).unwrap();
    let copy = format!("dd status=none if=\"$0\" of={}", place.text("out"));
    let report = bypassed(&place, &["sh", "-c", &copy], &place.path("mnt/file"), "");
    assert_eq!(*relay.passed_on.lock().unwrap(), 1, "it was asked");
    assert_eq!(served(&report, "read"), 0, "{report}");
    assert!(report.contains("has not asked this mount"), "{report}");
    assert_eq!(fs::read_to_string(place.path("out")).unwrap(), "his");
    drop(relay);
    mounted.unmount().unwrap();
}

/// A mount whose process is another user's: its attach socket is opened by a thread that has become him.
fn mounted_by_nobody(place: &Place) -> (heddle_nvmfs::Volume, Server, heddle_fuse::Mounted) {
    let region = Region::open(place.image(), &OpenOptions::default()).unwrap();
    let volume = heddle_nvmfs::mount(region, &heddle_nvmfs::MountOptions::default()).unwrap();
    let server = std::thread::scope(|scope| {
        let open = || {
            // SAFETY: a plain system call, past the C library: this thread alone becomes that user.
            assert_eq!(unsafe { libc::syscall(libc::SYS_setresuid, -1, NOBODY, -1) }, 0);
            Server::start(&volume, &ServerOptions::default()).unwrap()
        };
        scope.spawn(open).join().unwrap()
    });
    let how = heddle_fuse::MountOptions {
        attach_ioctl: Some(server.attach_ioctl()),
        ..heddle_fuse::MountOptions::default()
    };
    let mounted = heddle_fuse::mount(Arc::new(volume.fs()), Path::new(&place.mnt()), &how).unwrap();
    (volume, server, mounted)
}

#[test]
fn root_inspects_a_users_mount_and_attaches_only_by_name() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let (volume, server, mounted) = mounted_by_nobody(&place);
    let file = place.path("mnt/file");
    let report = writes(&place, "first", &file);
    assert_eq!(served(&report, "write"), 0, "{report}");
    assert!(report.contains("HEDDLE_TRUST=65534"), "{report}");
    let told: serde_json::Value =
        serde_json::from_str(&heddle(&["stat", "--json", &place.mnt()]).ok().out).unwrap();
    assert_eq!(told["calls"]["write"]["bytes"], 5);
    let report =
        bypassed(&place, &["sh", "-c", "echo more >> \"$0\"; echo more >> \"$0\""], &file, "1234,65534");
    assert_eq!(served(&report, "opened"), 2, "{report}");
    mounted.unmount().unwrap();
    drop(server);
    volume.unmount();
}

/// There every user that is not mapped has one number, the program's own among them.
#[test]
fn in_a_user_namespace_without_the_daemons_user_nobody_trusts_it() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let _mount = Mount::new(Path::new(&place.image()), "");
    let file = PathBuf::from(place.image() + ".mnt/file");
    fs::write(&file, "text").unwrap();
    if !Command::new("unshare").args(["--user", "true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED, NOT TESTED: no user namespaces here");
        return;
    }
    assert_eq!(served(&bypassed(&place, &["cat"], &file, ""), "opened"), 1);
    for trust in ["", "65534"] {
        let report = bypassed(&place, &["unshare", "--user", "cat"], &file, trust);
        assert_eq!(served(&report, "opened"), 0, "{report}");
        assert!(report.contains("65534"), "it does not say why: {report}");
    }
}

const GROUP: u32 = 54321;

/// Programs that user 65534 reaches, and the image, mounted for members of a group under a umask that lets nobody else in.
fn for_a_group(place: &Place) -> Mount {
    fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let programs = build_preload();
    for file in ["heddle", "libheddle_preload.so"] {
        fs::copy(programs.join(file), place.path(file)).unwrap();
        fs::set_permissions(place.path(file), PermissionsExt::from_mode(0o755)).unwrap();
    }
    let mut mount = Command::new("sh");
    let script = "umask 077; exec \"$0\" mount -o log=/dev/null,attach-group=54321 \"$1\" \"$2\"";
    let mount = mount.args(["-c", script, env!("CARGO_BIN_EXE_heddle"), &place.image(), &place.mnt()]);
    assert!(mount.stdin(Stdio::null()).stderr(Stdio::null()).status().unwrap().success());
    let guard = Mount { dir: place.path("mnt") };
    fs::set_permissions(&guard.dir, PermissionsExt::from_mode(0o777)).unwrap();
    guard
}

/// `heddle ARGS…` by user 65534.
fn as_nobody(place: &Place, group: u32, args: &[&str]) -> Command {
    let mut program = Command::new(place.path("heddle"));
    program.args(args).env_remove("HEDDLE_PRELOAD").stdin(Stdio::null()).gid(group).uid(NOBODY);
    program
}

#[test]
fn group_members_attach_under_any_umask_others_are_told_why_not() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let _mount = for_a_group(&place);
    let as_nobody = |group, args: &[&str]| as_nobody(&place, group, args).output().unwrap();
    let run = ["run", "--image", &place.image(), "--", "true"];
    let member = as_nobody(GROUP, &run);
    assert!(member.status.success(), "{}", String::from_utf8_lossy(&member.stderr));
    assert!(as_nobody(GROUP, &["stat", &place.mnt()]).status.success());
    for refused in [as_nobody(GROUP + 1, &run), as_nobody(GROUP + 1, &["stat", &place.mnt()])] {
        let said = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert!(!refused.status.success() && said.contains("attach-group"), "{said}");
    }
}

/// It has no descriptor left for a socket when it first opens a file, and later has.
const FEW_DESCRIPTORS: &str = r"
import os, resource, sys, time
def write():
    f = os.open(sys.argv[1], os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(f, b'word')
    os.close(f)
free = os.open('/dev/null', os.O_RDONLY)
os.close(free)
soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, hard))
write(); write()
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
time.sleep(1.5)
write()
";

#[test]
fn a_program_that_was_refused_attaches_once_it_can() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let mount = Mount::new(Path::new(&place.image()), "");
    let report = bypassed(&place, &["python3", "-c", FEW_DESCRIPTORS], &mount.dir.join("file"), "");
    assert_eq!(["not_taken", "opened", "write"].map(|what| served(&report, what)), [2, 1, 1], "{report}");
}

/// Locks all that it can open, says what that is, and keeps it.
const LOCKS: &str = r"
import fcntl, os, sys
held = []
for path in sys.argv[1:]:
    for flags in (os.O_RDONLY, os.O_WRONLY):
        try: held.append(os.open(path, flags | os.O_NONBLOCK))
        except OSError: continue
        print(path, flush=True)
        try: fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError: pass
print('.', flush=True)
sys.stdin.read()
";

#[test]
fn no_other_user_can_lock_what_a_mount_needs() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    fs::set_permissions(place.path(""), PermissionsExt::from_mode(0o755)).unwrap();
    let runtime = place.path("run");
    let mount = || {
        let mut mount = command(&["mount", "-o", "log=/dev/null", &place.image(), &place.mnt()]);
        let mount = mount.env("HEDDLE_RUNTIME_DIR", &runtime).stderr(Stdio::null());
        assert!(mount.status().unwrap().success());
        Mount { dir: place.path("mnt") }
    };
    let mounted = mount();
    // What the mount has noted, and all that its process has open.
    let mut files: Vec<PathBuf> =
        fs::read_dir(&runtime).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert_eq!(files.len(), 1, "the note of the mount");
    files.push(runtime.clone());
    let daemon = heddle_pmem::lock_holder(Path::new(&place.image())).unwrap();
    let open = fs::read_dir(format!("/proc/{daemon}/fd")).unwrap();
    files.extend(open.filter_map(|entry| fs::read_link(entry.unwrap().path()).ok()).filter(|to| to.exists()));
    assert!(files.contains(&place.path("image")));
    let mut locker = Command::new("python3");
    let locker = locker.args(["-c", LOCKS]).args(&files).uid(NOBODY).gid(NOBODY);
    let mut locker = locker.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let said = std::io::BufReader::new(locker.stdout.take().unwrap()).lines().map(Result::unwrap);
    let locked: Vec<String> = said.take_while(|line| line != ".").collect();
    assert!(locked.iter().any(|path| path == "/dev/null"), "it has tried them");
    assert!(
        locked.iter().all(|path| path.starts_with("/dev/") && !path.starts_with("/dev/shm")),
        "{locked:?}"
    );
    let works = |mount: &Mount, word: &str| {
        let report = writes(&place, word, &mount.dir.join("file"));
        assert_eq!(served(&report, "write"), 1, "{report}");
        heddle(&["stat", &place.mnt()]).ok();
        heddle(&["stat", &place.image()]).ok();
    };
    works(&mounted, "first");
    drop(mounted);
    works(&mount(), "second");
    drop(locker.stdin.take());
    locker.wait().unwrap();
}
