//! A mount whose process is killed, at whatever instant, leaves nothing that hangs: the process ends, and the image can be mounted again.

mod common;

use common::{Mounted, Place, alone, command};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A loaded machine may take as long.
const LONG: Duration = Duration::from_secs(60);
const ROUNDS: u32 = 60;
/// Apart: so the kills come in 6 ms.
const STEP: Duration = Duration::from_micros(100);

/// A mount in the foreground.
struct Daemon<'a> {
    child: Child,
    place: &'a Place,
}

impl Daemon<'_> {
    /// Returns as soon as the kernel has it mounted.
    #[track_caller]
    fn just_mounted(place: &Place) -> Daemon<'_> {
        let talk = File::create(place.path("log")).unwrap();
        let mut mount = command(&["mount", "--foreground", &place.image(), &place.mnt()]);
        let mut daemon = Daemon { child: mount.stderr(talk).stdout(Stdio::null()).spawn().unwrap(), place };
        let began = Instant::now();
        while connection(place).is_none() {
            assert!(daemon.child.try_wait().unwrap().is_none(), "{}", daemon.said());
            assert!(began.elapsed() < LONG, "it does not mount: {}", daemon.said());
        }
        daemon
    }

    fn said(&self) -> String {
        fs::read_to_string(self.place.path("log")).unwrap()
    }

    fn gets(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Kills it; it ends. What is left of its mount is taken away.
    #[track_caller]
    fn kill_and_wait(mut self) {
        self.gets(Signal::KILL);
        let began = Instant::now();
        while self.child.try_wait().unwrap().is_none() {
            assert!(began.elapsed() < LONG, "it never ends");
            std::thread::sleep(Duration::from_millis(1));
        }
        // The next one is to be seen as its own mount, not by what is left of this one.
        while connection(self.place).is_some() {
            unmount(self.place.mnt(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW).unwrap();
        }
    }
}

impl Drop for Daemon<'_> {
    /// One that hangs is ended by the kernel's own means, for the test to fail and not to hang.
    fn drop(&mut self) {
        let _ = self.child.kill();
        if let Some(number) = connection(self.place) {
            let control = "/sys/fs/fuse/connections";
            let _ = mount(c"none", control, c"fusectl", MountFlags::empty(), None);
            let _ = fs::write(format!("{control}/{number}/abort"), "1");
            let _ = unmount(self.place.mnt(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        let _ = self.child.wait();
    }
}

/// The kernel's number of the connection behind the mount.
fn connection(place: &Place) -> Option<String> {
    let (table, mnt) = (fs::read_to_string("/proc/thread-self/mountinfo").unwrap(), place.mnt());
    let line = table.lines().find(|line| line.split(' ').nth(4) == Some(&mnt))?;
    Some(line.split(' ').nth(2)?.split_once(':')?.1.to_owned())
}

/// The image is mounted again, and used.
fn is_mounted_again(place: &Place, round: u32) {
    let mounted = Mounted::new(place, &["-o", "log=/dev/null"]);
    fs::write(mounted.path("file"), round.to_string()).unwrap();
}

/// It asked its own mount something at its start. A call that the process has not answered when it is killed could not end, nor could it.
#[test]
fn a_mount_killed_as_it_begins_leaves_nothing_hanging() {
    let Some(_alone) = alone() else { return };
    for variant in ["heddle", "f2fs"] {
        let place = Place::with_image_of(variant, "64M");
        for round in 0..ROUNDS / 2 {
            let daemon = Daemon::just_mounted(&place);
            std::thread::sleep(STEP * 2 * round);
            daemon.kill_and_wait();
        }
        is_mounted_again(&place, 0);
    }
}

#[test]
fn a_mount_killed_as_it_ends_leaves_nothing_hanging() {
    let Some(_alone) = alone() else { return };
    for variant in ["heddle", "f2fs"] {
        let place = Place::with_image_of(variant, "64M");
        for round in 0..ROUNDS / 2 {
            let daemon = Daemon::just_mounted(&place);
            // Of a file that is mapped the kernel may still have to write pages back.
            let store = "import mmap,sys\nf=open(sys.argv[1],'w+b')\nf.truncate(1<<20)\nmmap.mmap(f.fileno(),0)[:]=b'x'*(1<<20)";
            let file = place.path("mnt/mapped");
            assert!(Command::new("python3").args(["-c", store]).arg(file).status().unwrap().success());
            daemon.gets(Signal::TERM);
            std::thread::sleep(STEP * 2 * round);
            daemon.kill_and_wait();
        }
        is_mounted_again(&place, 1);
    }
}
