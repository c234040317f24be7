//! What an administrator does to a mount: start, stop, kill, restart under load, low limits, mounts over it and beside it, other
//! namespaces. Whatever happens is said, with the way out, and processes that work on the image are not hurt.

mod common;
#[path = "daemon/takeover.rs"]
mod takeover;

use common::{Mounted, Place, alone, build_preload, command, heddle};
use rustix::fs::{FlockOperation, flock};
use rustix::mount::{MountFlags, MountPropagationFlags, mount, mount_bind, mount_change, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, symlink};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

fn info(place: &Place) -> serde_json::Value {
    serde_json::from_str(&heddle(&["info", "--json", &place.image()]).ok().out).unwrap()
}

fn is_clean(place: &Place) -> bool {
    info(place)["clean"] == true
}

fn daemon(place: &Place) -> Pid {
    Pid::from_raw(info(place)["in_use_by_pid"].as_u64().unwrap() as i32).unwrap()
}

#[track_caller]
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn state_of(process: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{}/stat", process.as_raw_nonzero())).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}

fn is_in_state(process: Pid, state: char) -> bool {
    state_of(process) == Some(state)
}

/// A zombie has ended.
fn is_gone(process: Pid) -> bool {
    state_of(process).is_none_or(|state| state == 'Z')
}

/// A program with the bypass that writes until it is killed, or a call fails.
struct Writer(Child);

const WRITE_AT: &str = "HEDDLE_TEST_WRITE_AT";

impl Writer {
    fn start(place: &Place) -> Writer {
        build_preload();
        let mut run = command(&["run", "--"]);
        run.arg(std::env::current_exe().unwrap()).args(["--exact", "writes_until_killed", "--nocapture"]);
        let child = run.env(WRITE_AT, place.path("mnt/written")).stdout(Stdio::null()).spawn().unwrap();
        let writer = Writer(child);
        let before = writer.count(place);
        eventually("it never writes", || writer.count(place) > before);
        writer
    }

    /// Writes so far, from the image itself: the mount may be dead.
    fn count(&self, place: &Place) -> u64 {
        fs::read_to_string(place.path("mnt/written.count"))
            .ok()
            .and_then(|text| text.parse().ok())
            .unwrap_or(0)
    }

    #[track_caller]
    fn lives(&mut self) {
        assert!(self.0.try_wait().unwrap().is_none(), "a call of the program with the bypass failed");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Not a test of its own: the program that the tests below run with the bypass.
#[test]
fn writes_until_killed() {
    let Some(path) = std::env::var_os(WRITE_AT) else { return };
    let file = File::options().create(true).truncate(false).write(true).read(true).open(&path).unwrap();
    let counter = File::create(std::path::Path::new(&path).with_extension("count")).unwrap();
    for n in 1u64.. {
        file.write_all_at(&n.to_le_bytes().repeat(512), n % 16 * 4096).unwrap();
        counter.write_all_at(n.to_string().as_bytes(), 0).unwrap();
        if n.is_multiple_of(64) {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

#[test]
fn mount_replaces_a_killed_daemon_without_hurting_its_clients() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let log = format!("log={}", place.text("daemon-log"));
    let mounted = Mounted::new(&place, &["-o", &log]);
    let mut writer = Writer::start(&place);
    // An upgrade: what takes over is another file, and the one that the clients came from is as good as gone.
    let upgraded = place.path("heddle-new");
    fs::copy(env!("CARGO_BIN_EXE_heddle"), &upgraded).unwrap();
    for round in 0..3 {
        // The lock of the image names the first daemon, for as long as one lives who came through its attach socket.
        let said = fs::read_to_string(place.path("daemon-log")).unwrap();
        let last = said.rsplit_once("heddle[").unwrap().1.split_once(']').unwrap().0.parse().unwrap();
        kill_process(Pid::from_raw(last).unwrap(), Signal::KILL).unwrap();
        eventually("it does not die", || fs::metadata(place.mnt()).is_err());
        // What fails changes nothing: before the state is looked at, and after.
        heddle(&["mount", &place.image(), &place.text("nowhere")])
            .failed(1, &["nowhere", "existing directory"]);
        let metrics = format!("metrics={}", place.text("log"));
        heddle(&["mount", "-o", &metrics, &place.image(), &place.mnt()]).failed(1, &["no socket"]);
        heddle(&["mount", "-o", "wait=0", "--variant", "nova", &place.image(), &place.mnt()]).failed(1, &[]);
        writer.lives();
        let talk = File::create(place.path("log")).unwrap();
        let mut takes_over = match round {
            1 => Command::new(&upgraded),
            _ => command(&[]),
        };
        let takes_over = takes_over.args(["mount", "-o", &log, &place.image(), &place.mnt()]);
        let status = takes_over.stdin(Stdio::null()).stderr(talk).status().unwrap();
        let said = fs::read_to_string(place.path("log")).unwrap();
        assert!(status.success() && said.contains("taken over"), "round {round}: {said}");
        let before = writer.count(&place);
        assert!(before > 0);
        eventually("it does not write any more", || writer.count(&place) > before);
        writer.lives();
    }
    drop(writer);
    drop(mounted);
    heddle(&["fsck", "-n", &place.image()]).ok();
}

/// Opens files, uses some of them, and removes them all; after a line at its input it writes to them.
const KEEPS_REMOVED: &str = r"
import os, sys
open_ = lambda name: os.open(sys.argv[1] + name, os.O_RDWR | os.O_CREAT)
kept = open_('/kept'); os.write(kept, b'attached')
files = [open_('/removed%d' % n) for n in range(16)]
for f in files[8:]: os.pwrite(f, b'mine', 0)
for n in range(16): os.unlink(sys.argv[1] + '/removed%d' % n)
if sys.argv[2] == 'forks' and os.fork(): os._exit(0)
print('ready', flush=True)
sys.stdin.readline()
for f in files:
    try: os.pwrite(f, b'EVIL', 0)
    except OSError as e: print(e.errno)
    try: print(os.pread(f, 9, 0).decode())
    except OSError as e: print(e.errno)
";

/// The number of a removed file means another one by then, which was read and overwritten.
#[test]
fn a_descriptor_of_a_killed_mount_reaches_no_other_file() {
    let Some(_alone) = alone() else { return };
    build_preload();
    for how in ["stays", "forks"] {
        let place = Place::with_image("heddle");
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        let mut run = command(&["run", "--", "python3", "-c", KEEPS_REMOVED, &place.mnt(), how]);
        let mut program = run.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (tell, mut told) = (program.stdin.take().unwrap(), program.stdout.take().unwrap());
        told.read_exact(&mut [0; 6]).unwrap();
        kill_process(daemon(&place), Signal::KILL).unwrap();
        eventually("it does not die", || fs::metadata(place.mnt()).is_err());
        let talk = File::create(place.path("log")).unwrap();
        let mut again = command(&["mount", "-o", "log=/dev/null", &place.image(), &place.mnt()]);
        assert!(again.stdin(Stdio::null()).stderr(talk).status().unwrap().success());
        let others: Vec<_> = (0..60).map(|n| mounted.path(&format!("other{n}"))).collect();
        others.iter().for_each(|other| fs::write(other, "other").unwrap());
        drop(tell);
        let mut said = String::new();
        told.read_to_string(&mut said).unwrap();
        program.wait().unwrap();
        for other in others {
            assert_eq!(fs::read_to_string(&other).unwrap(), "other", "{how}: {other:?}: {said}");
        }
        assert!(!said.contains("other"), "{how}: {said}");
        // A file that was not used yet is nobody's but the dead mount's.
        assert_eq!(said.lines().take(16).collect::<Vec<_>>(), ["107"; 16], "{how}: {said}");
    }
}

#[test]
fn mount_replaces_a_dead_mount_but_not_one_of_another_image() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    std::mem::forget(Mounted::new(&place, &[]));
    fs::write(place.path("mnt/file"), "returned").unwrap();
    kill_process(daemon(&place), Signal::KILL).unwrap();
    let other = place.text("other");
    heddle(&["mkfs", "--size", "8M", &other]).ok();
    eventually("it does not die", || fs::metadata(place.mnt()).is_err());
    heddle(&["mount", &other, &place.mnt()]).failed(1, &["has died", "heddle umount"]);
    let mounted = Mounted::new(&place, &[]);
    assert_eq!(fs::read(mounted.path("file")).unwrap(), b"returned");
}

#[test]
fn unmounting_a_dead_mount_says_that_the_image_is_not_clean() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    std::mem::forget(Mounted::new(&place, &[]));
    let open = File::create(place.path("mnt/file")).unwrap();
    kill_process(daemon(&place), Signal::KILL).unwrap();
    eventually("it does not die", || fs::metadata(place.mnt()).is_err());
    heddle(&["umount", &place.mnt()]).failed(1, &["not clean", "had died", "next mount recovers"]);
    drop(open);
    heddle(&["umount", &place.mnt()]).failed(1, &["not a mount point"]);
}

#[test]
fn an_unmount_that_returned_has_let_go_of_image_and_node_log() {
    let Some(_alone) = alone() else { return };
    let place = Place::new();
    heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", &place.image()]).ok();
    let nvm = place.text("nvm");
    for _ in 0..4 {
        let options = format!("nvm-size=16M,log={}", place.text("daemon-log"));
        let mounted = Mounted::new(&place, &["--variant", "f2fs-nl", "--nvm", &nvm, "-o", &options]);
        fs::write(mounted.path("file"), vec![7; 1 << 20]).unwrap();
        File::open(mounted.path("file")).unwrap().sync_all().unwrap();
        drop(mounted);
        let said = fs::read_to_string(place.path("daemon-log")).unwrap();
        assert!(said.lines().last().is_some_and(|line| line.ends_with("unmounted")), "{said}");
        heddle(&["fold", "--nvm", &nvm, &place.image()]).ok();
    }
}

#[test]
fn a_mount_waits_for_a_process_that_is_about_to_let_go() {
    let Some(_alone) = alone() else { return };
    for variant in ["heddle", "f2fs"] {
        let place = Place::new();
        heddle(&["mkfs", "--variant", variant, "--size", "64M", &place.image()]).ok();
        let held = File::options().read(true).write(true).open(place.image()).unwrap();
        flock(&held, FlockOperation::LockExclusive).unwrap();
        let began = Instant::now();
        heddle(&["mount", "-o", "wait=0", &place.image(), &place.mnt()]).failed(1, &["in use"]);
        assert!(began.elapsed() < Duration::from_secs(5), "{variant}: it waited");
        let mounted = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(300));
                drop(held);
            });
            Mounted::new(&place, &[])
        });
        fs::write(mounted.path("file"), "x").unwrap();
    }
}

#[test]
fn umount_waits_so_long_and_names_who_holds_the_file_system() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let beside = place.text("beside");
    fs::create_dir(&beside).unwrap();
    std::mem::forget(Mounted::new(&place, &[]));
    mount_bind(place.mnt(), &beside).unwrap();
    heddle(&["umount", "--wait", "0", &place.mnt()]).failed(1, &["still mounted at", &beside]);
    heddle(&["umount", &beside]).ok();
    assert!(is_clean(&place));

    std::mem::forget(Mounted::new(&place, &[]));
    let stopped = daemon(&place);
    kill_process(stopped, Signal::STOP).unwrap();
    eventually("it does not stop", || is_in_state(stopped, 'T'));
    let way_out = format!("kill -CONT {}", stopped.as_raw_nonzero());
    heddle(&["umount", "--wait", "0", &place.mnt()]).failed(1, &["stopped", &way_out]);
    kill_process(stopped, Signal::CONT).unwrap();
    eventually("it is never clean", || is_clean(&place) && is_gone(stopped));

    std::mem::forget(Mounted::new(&place, &[]));
    let mut elsewhere = in_another_namespace();
    let holder = format!("{} (sleep)", elsewhere.id());
    heddle(&["umount", "--wait", "0", &place.mnt()]).failed(1, &["mount namespace", &holder]);
    elsewhere.kill().unwrap();
    elsewhere.wait().unwrap();
    eventually("it is never clean", || is_clean(&place));
}

/// A process that has all mounts of now for itself.
fn in_another_namespace() -> Child {
    let mut sleep =
        Command::new("unshare").args(["--mount", "sleep", "60"]).stdout(Stdio::null()).spawn().unwrap();
    let name = format!("/proc/{}/comm", sleep.id());
    eventually("it never sleeps", || fs::read_to_string(&name).is_ok_and(|name| name.trim() == "sleep"));
    assert!(sleep.try_wait().unwrap().is_none());
    sleep
}

#[test]
fn a_signal_ends_a_covered_moved_or_shared_mount() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let moved = place.text("moved");
    fs::create_dir(&moved).unwrap();
    let start = || {
        std::mem::forget(Mounted::new(&place, &[]));
        daemon(&place)
    };
    let ends = |how: &str, serving: Pid| {
        kill_process(serving, Signal::TERM).unwrap();
        eventually(how, || is_gone(serving));
        assert!(is_clean(&place), "{how}");
    };

    let serving = start();
    mount("over", place.mnt(), "tmpfs", MountFlags::empty(), None).unwrap();
    fs::write(place.path("mnt/stays"), "").unwrap();
    ends("covered", serving);
    assert!(place.path("mnt/stays").exists(), "what covers it is not ours to take away");
    unmount(place.mnt(), rustix::mount::UnmountFlags::empty()).unwrap();
    heddle(&["umount", &place.mnt()]).ok();

    let serving = start();
    rustix::mount::mount_move(place.mnt(), &moved).unwrap();
    ends("moved", serving);
    assert!(
        !fs::read_to_string("/proc/thread-self/mountinfo").unwrap().contains(&moved),
        "nothing is left of it"
    );

    let serving = start();
    let mut elsewhere = in_another_namespace();
    ends("held by another namespace", serving);
    elsewhere.kill().unwrap();
    elsewhere.wait().unwrap();
}

#[test]
fn mount_returns_when_mounted_or_fails_with_the_cause() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let limited = |limit: &str, place: &Place| {
        let script = format!("ulimit {limit}; exec \"$0\" mount -o log={} \"$1\" \"$2\"", place.text("log"));
        let mut sh = Command::new("sh");
        sh.args(["-c", &script, env!("CARGO_BIN_EXE_heddle"), &place.image(), &place.mnt()]);
        let said = File::create(place.path("said")).unwrap();
        let status = sh.stdin(Stdio::null()).stderr(said).status().unwrap();
        (status.code(), fs::read_to_string(place.path("said")).unwrap())
    };
    for files in 8..24 {
        let (code, said) = limited(&format!("-n {files}"), &place);
        if code == Some(0) {
            fs::write(place.path("mnt/file"), "x").unwrap();
            heddle(&["umount", &place.mnt()]).ok();
        } else {
            assert_eq!(code, Some(1), "{files} files: {said}");
            assert!(said.contains("Too many open files"), "{files} files: {said}");
        }
        assert!(is_clean(&place), "{files} files");
    }
    for (kib, enough) in [(20_000, false), (100_000, false), (1_000_000, true)] {
        let (code, said) = limited(&format!("-v {kib}"), &place);
        assert_eq!(code, Some(i32::from(!enough)), "{kib} KiB: {said}");
        if enough {
            heddle(&["umount", &place.mnt()]).ok();
        } else {
            assert!(said.contains("ulimit -v"), "{kib} KiB: {said}");
        }
        assert!(is_clean(&place), "{kib} KiB");
    }
    // Files are what an F2FS image, and the memory that processes share, are for the system; the log of the mount too.
    let flash = Place::new();
    heddle(&["mkfs", "--variant", "f2fs", "--size", "64M", &flash.image()]).ok();
    for place in [&flash, &place] {
        let (code, said) = limited("-f 8", place);
        assert!(code == Some(1) && said.contains("ulimit -f"), "{code:?} {said}");
        let (code, said) = limited("-S -f 8", place);
        assert_eq!(code, Some(0), "a limit that may be raised is: {said}");
        fs::write(place.path("mnt/file"), "x").unwrap();
        heddle(&["umount", &place.mnt()]).ok();
    }
}

#[test]
fn a_mount_keeps_nothing_of_its_callers_descriptors() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let (mut reader, writer) = std::io::pipe().unwrap();
    let lock = File::create(place.path("lock")).unwrap();
    flock(&lock, FlockOperation::LockExclusive).unwrap();
    let given = [(writer.as_raw_fd(), 7), (lock.as_raw_fd(), 9)];
    let mut mount =
        command(&["mount", "-o", &format!("log={}", place.text("log")), &place.image(), &place.mnt()]);
    // SAFETY: dup2 may be called between fork and exec; the numbers are descriptors of this process.
    unsafe {
        std::os::unix::process::CommandExt::pre_exec(&mut mount, move || {
            given.iter().for_each(|(from, to)| assert!(libc::dup2(*from, *to) == *to));
            Ok(())
        })
    };
    assert!(mount.stderr(Stdio::null()).status().unwrap().success());
    drop((writer, lock));
    let taken = File::open(place.path("lock")).unwrap();
    flock(&taken, FlockOperation::NonBlockingLockExclusive).expect("the mount keeps its caller's lock");
    assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the mount keeps its caller's pipe");
    heddle(&["umount", &place.mnt()]).ok();
}

#[test]
fn an_interrupted_mount_command_leaves_a_clean_image_or_a_mount() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    for ms in [0, 2, 5, 10, 20, 40] {
        let mut starting =
            command(&["mount", &place.image(), &place.mnt()]).stderr(Stdio::null()).spawn().unwrap();
        std::thread::sleep(Duration::from_millis(ms));
        kill_process(Pid::from_child(&starting), if ms < 10 { Signal::INT } else { Signal::KILL }).unwrap();
        let _ = starting.wait().unwrap();
        // The process that serves may be ready, or may notice that nobody waits for it, and unmounts then; or it has not begun: the image
        // may be free at one look and taken at the next.
        eventually(&format!("after {ms} ms it serves, or has left the image unclean"), || {
            let _gone_already = heddle(&["umount", &place.mnt()]);
            let told = info(&place);
            told["in_use"] == false && told["clean"] == true
        });
    }
}

#[test]
fn a_signal_during_a_recovery_leaves_a_clean_image() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("heddle", "64M");
    std::mem::forget(Mounted::new(&place, &[]));
    (0..1500).for_each(|n| fs::write(place.path(&format!("mnt/{n}")), [7; 5000]).unwrap());
    let killed = daemon(&place);
    kill_process(killed, Signal::KILL).unwrap();
    eventually("it does not die", || is_gone(killed) && fs::metadata(place.mnt()).is_err());
    heddle(&["umount", &place.mnt()]).failed(1, &["had died"]);
    fs::copy(place.image(), place.path("unclean")).unwrap();
    for round in 0..6 {
        fs::copy(place.path("unclean"), place.image()).unwrap();
        assert!(!is_clean(&place));
        let mut recovers = command(&["mount", "--foreground", &place.image(), &place.mnt()]);
        let mut recovers = recovers.stderr(Stdio::null()).spawn().unwrap();
        let image = place.path("image");
        eventually("it never begins", || heddle_pmem::lock_holder(&image) == Some(recovers.id()));
        std::thread::sleep(Duration::from_millis(3 * round));
        let signal = if round % 2 == 0 { Signal::INT } else { Signal::TERM };
        kill_process(Pid::from_child(&recovers), signal).unwrap();
        recovers.wait().unwrap();
        assert!(is_clean(&place), "round {round}");
    }
}

#[test]
fn a_mount_point_may_be_named_by_a_link() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    symlink("mnt", place.path("link")).unwrap();
    symlink("link", place.path("link-to-link")).unwrap();
    symlink("circle", place.path("circle")).unwrap();
    heddle(&["umount", &place.text("circle")]).failed(1, &["not a mount point"]);
    std::mem::forget(Mounted::new(&place, &[]));
    heddle(&["umount", &place.text("link-to-link")]).ok();
    assert_eq!(fs::read_dir(place.path("mnt/x")).unwrap_err().kind(), ErrorKind::NotFound);
    assert!(is_clean(&place));
    // Seen from a private namespace alone, as everything here.
    mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
}

/// A user who holds a mount, or has made one, chose the names that root's terminal showed.
#[test]
fn names_that_others_chose_stay_one_line_that_no_terminal_obeys() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let (name, bad) = ("a\u{1b}[2J\nfine\u{9b}\u{202e}", ['\u{1b}', '\u{9b}', '\u{202e}']);
    fs::copy("/bin/sleep", place.path(name)).unwrap();
    let mounted = Mounted::new(&place, &[]);
    let mut holder = Command::new(place.path(name)).arg("60").current_dir(mounted.path("")).spawn().unwrap();
    let busy = heddle(&["umount", &place.mnt()]);
    holder.kill().unwrap();
    holder.wait().unwrap();
    let others = place.path("others");
    fs::create_dir(&others).unwrap();
    rustix::mount::mount(name, &others, "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    let foreign = heddle(&["umount", others.to_str().unwrap()]);
    rustix::mount::unmount(&others, rustix::mount::UnmountFlags::empty()).unwrap();
    for said in [busy, foreign] {
        assert!(!said.err.contains(bad) && said.err.lines().count() == 1, "{:?}", said.err);
        said.failed(1, &["a\\u{1b}[2J\\n"]);
    }
}

#[test]
fn wrong_commands_exit_2_also_in_the_background_lost_output_fails() {
    let full = || Stdio::from(File::options().write(true).open("/dev/full").unwrap());
    heddle(&["mount", "-o", "uid=4294967295", "image", "mnt"]).failed(2, &["no user or group"]);
    heddle(&["mount", "--nvm", "x", "/etc/hostname", "/"]).failed(2, &["--nvm"]);
    for words in [&["--help"][..], &["--version"], &["mount", "--help"], &["explain", "NV-0008"]] {
        let said = command(words).stdout(full()).output().unwrap();
        let text = String::from_utf8_lossy(&said.stderr).into_owned();
        assert_eq!(said.status.code(), Some(1), "{words:?}: {text}");
        assert!(text.contains("cannot write to stdout"), "{words:?}: {text}");
    }
    let said = heddle(&["fsck", "/nowhere/image"]);
    assert!(said.code == 8 && !said.err.contains("exit code"), "{}", said.err);
    heddle(&["mkfs", "--size", "8M", "/nowhere/\u{1b}[2J/image"]).failed(1, &["\\u{1b}[2J"]);
}
