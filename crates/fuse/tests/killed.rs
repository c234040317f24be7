//! A daemon that is killed ends, whatever its threads wait for, and who waits for it gets an error.

mod common;

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::own_namespace;
use heddle_fuse::MountOptions;
use heddle_vfs::Time;
use heddle_vfs::model::ModelFs;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const PLACE: &str = "HEDDLE_TEST_PLACE";
const PAGE: usize = 4096;
/// A loaded machine may take as long.
const LONG: Duration = Duration::from_secs(60);

#[track_caller]
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < LONG, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Where the daemon is, and what it is told by.
#[derive(Clone)]
struct Place(PathBuf);

impl Place {
    fn mnt(&self) -> PathBuf {
        self.0.join("mnt")
    }

    /// While it is there, calls that change something are not answered.
    fn halt(&self) -> PathBuf {
        self.0.join("halt")
    }

    /// It is there while such a call waits.
    fn halted(&self) -> PathBuf {
        self.0.join("halted")
    }

    /// The number of the connection behind the mount.
    fn connection(&self) -> Option<String> {
        let table = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
        let mnt = self.mnt();
        let line = table.lines().find(|line| line.split(' ').nth(4) == mnt.to_str())?;
        Some(line.split(' ').nth(2)?.split_once(':')?.1.to_owned())
    }
}

/// Not a test: the daemon of the test below. One thread serves.
#[test]
#[ignore = "a test starts it"]
fn the_daemon() {
    let Some(place) = std::env::var_os(PLACE) else { return };
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL)).unwrap();
    let place = Place(place.into());
    let of_clock = place.clone();
    let clock = move || {
        if of_clock.halt().exists() {
            File::create(of_clock.halted()).unwrap();
            while of_clock.halt().exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
            fs::remove_file(of_clock.halted()).unwrap();
        }
        Time(1)
    };
    let options = MountOptions { threads: std::num::NonZero::new(1), ..MountOptions::default() };
    heddle_fuse::mount(Arc::new(ModelFs::with_clock(clock)), &place.mnt(), &options).unwrap().wait().unwrap();
}

struct Daemon {
    child: Child,
    place: Place,
}

impl Daemon {
    fn start(place: &Place) -> Daemon {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "the_daemon", "--ignored", "--nocapture"]).env(PLACE, &place.0);
        let child = command.stdout(Stdio::null()).spawn().unwrap();
        let daemon = Daemon { child, place: place.clone() };
        eventually("it does not mount", || place.connection().is_some());
        daemon
    }

    /// Does the thread of this name wait, so that no signal ends that?
    fn waits_uninterruptibly(&self, name: &str) -> bool {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap().flatten();
        let stats = tasks.filter_map(|task| fs::read_to_string(task.path().join("stat")).ok());
        let waits = format!("({name}) D ");
        stats.into_iter().any(|stat| stat.contains(&waits))
    }

    /// Kills it; how it ends, if it does.
    fn killed(&mut self) -> Option<ExitStatus> {
        self.child.kill().unwrap();
        let began = Instant::now();
        while began.elapsed() < LONG {
            if let Some(status) = self.child.try_wait().unwrap() {
                return Some(status);
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        None
    }
}

impl Drop for Daemon {
    /// A daemon that hangs is ended by the kernel's own means, for the test to fail and not to hang.
    fn drop(&mut self) {
        let _ = self.child.kill();
        if let Some(connection) = self.place.connection() {
            let control = "/sys/fs/fuse/connections";
            let _ = mount(c"none", control, c"fusectl", MountFlags::empty(), None);
            let _ = fs::write(format!("{control}/{connection}/abort"), "1");
            let _ = unmount(self.place.mnt(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
        let _ = self.child.wait();
    }
}

/// A file, mapped shared.
struct Mapping(usize);

impl Mapping {
    fn of(file: &File) -> Mapping {
        let (prot, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping where the kernel likes.
        let at = unsafe { mmap(std::ptr::null_mut(), 2 * PAGE, prot, flags, file, 0) }.unwrap();
        Mapping(at.expose_provenance())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference to it.
        unsafe { munmap(std::ptr::with_exposed_provenance_mut(self.0), 2 * PAGE) }.unwrap();
    }
}

/// A file of two pages, mapped. In this order they go: nothing that is closed waits for a daemon that hangs.
struct Scene {
    daemon: Daemon,
    mapping: Mapping,
    file: File,
}

impl Scene {
    fn of(daemon: Daemon) -> Scene {
        let mut options = File::options();
        let file = options.read(true).write(true).create(true).truncate(true);
        let file = file.open(daemon.place.mnt().join("file")).unwrap();
        file.write_all_at(&[1; 2 * PAGE], 0).unwrap();
        let mapping = Mapping::of(&file);
        // SAFETY: mapped, and as large as the file.
        assert_eq!(unsafe { std::ptr::with_exposed_provenance::<u8>(mapping.0).read_volatile() }, 1);
        Scene { daemon, mapping, file }
    }

    /// The kernel reads the second page for the mapping, nobody answers, and the thread that makes it drop pages waits for that one.
    fn makes_it_wait(&self) {
        let (place, second) = (&self.daemon.place, self.mapping.0 + PAGE);
        let began = Instant::now();
        for round in 0.. {
            assert!(began.elapsed() < LONG, "no thread of it ever waits for the kernel");
            // Around the kernel's pages: it is remembered what they held.
            self.file.write_all_at(b"called", PAGE as u64).unwrap();
            File::create(place.halt()).unwrap();
            let new = place.mnt().join(format!("directory {round}"));
            let made = std::thread::spawn(move || fs::create_dir(new));
            eventually("the call is not begun", || place.halted().exists());
            let read = std::thread::spawn(move || {
                // SAFETY: advice changes nothing.
                let _ =
                    unsafe { madvise(std::ptr::with_exposed_provenance_mut(second), PAGE, Advice::WillNeed) };
            });
            let asked = Instant::now();
            while asked.elapsed() < Duration::from_secs(1) {
                if self.daemon.waits_uninterruptibly("heddle-pages") {
                    return;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
            // The pages were dropped before the kernel read one.
            fs::remove_file(place.halt()).unwrap();
            made.join().unwrap().unwrap();
            read.join().unwrap();
        }
    }
}

#[test]
fn a_daemon_killed_while_it_waits_for_the_kernel_ends() {
    if !own_namespace() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let place = Place(dir.path().to_owned());
    fs::create_dir(place.mnt()).unwrap();
    let mut scene = Scene::of(Daemon::start(&place));
    scene.makes_it_wait();
    assert!(scene.daemon.killed().is_some(), "it never ends");
    assert!(scene.file.read_at(&mut [0], 0).is_err(), "who has answered?");
}
