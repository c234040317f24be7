//! Mounting, unmounting, and what happens when things go wrong.

mod common;

use std::fs::{self, File};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

use common::{model, mount, own_namespace};
use heddle_fuse::{Error, MountOptions, umount};
use heddle_vfs::Time;
use heddle_vfs::model::ModelFs;
use heddle_vfs::testkit::{Headless, LockedMemory};

fn is_mounted(dir: &Path) -> bool {
    fs::read_to_string("/proc/thread-self/mountinfo").unwrap().contains(dir.to_str().unwrap())
}

#[test]
fn waiting_ends_when_someone_unmounts() {
    let Some(mount) = model() else { return };
    let dir = mount.mounted.dir().to_owned();
    let common::Mount { mounted, .. } = mount;
    let unmounter = mounted.unmounter();
    assert!(is_mounted(&dir));
    umount(&dir).unwrap();
    mounted.wait().unwrap();
    assert!(!is_mounted(&dir));
    unmounter.unmount().unwrap();
    assert!(matches!(umount(&dir), Err(Error::NotMounted { .. })));
}

#[test]
fn the_engine_is_free_after_an_unmount_and_keeps_its_files() {
    let engine = Arc::new(ModelFs::new());
    let Some(first) = mount(engine.clone(), &MountOptions::default()) else { return };
    fs::write(first.path("kept"), "kept").unwrap();
    let common::Mount { mounted, .. } = first;
    mounted.unmount().unwrap();
    assert_eq!(Arc::strong_count(&engine), 1);
    let second = mount(engine, &MountOptions::default()).unwrap();
    assert_eq!(fs::read(second.path("kept")).unwrap(), b"kept");
}

#[test]
fn unmounting_a_busy_mount_names_its_users_and_force_unmounts_it() {
    let Some(mount) = model() else { return };
    let dir = mount.mounted.dir().to_owned();
    let mut file = File::create(mount.path("open")).unwrap();
    let mut child = std::process::Command::new("sleep").arg("60").current_dir(&dir).spawn().unwrap();
    let Err(error) = umount(&dir) else { panic!("a busy mount was unmounted") };
    let text = error.to_string();
    assert!(matches!(error, Error::Busy { .. }), "{text}");
    assert!(text.contains(&format!("{} (sleep)", child.id())), "{text}");
    assert!(text.contains(&format!("{} (", std::process::id())), "{text}");
    child.kill().unwrap();
    child.wait().unwrap();
    drop(mount);
    assert!(!is_mounted(&dir));
    std::io::Write::write_all(&mut file, b"still served").unwrap();
}

/// A page of a file, mapped to read.
struct Mapped(*mut std::ffi::c_void);

impl Mapped {
    fn of(file: &File) -> Mapped {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let at = unsafe { mmap(std::ptr::null_mut(), 4096, ProtFlags::READ, MapFlags::SHARED, file, 0) };
        Mapped(at.unwrap())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: this value's own mapping, to which no reference exists.
        unsafe { rustix::mm::munmap(self.0, 4096) }.unwrap();
    }
}

/// The text of a refused unmount, if there is one in time.
fn refusal_of_umount(dir: &Path) -> String {
    let began = std::time::Instant::now();
    let Err(error) = umount(dir) else { panic!("a busy mount was unmounted") };
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    error.to_string()
}

#[test]
fn a_busy_mount_names_users_whose_first_thread_has_ended() {
    let Some(mount) = model() else { return };
    let (dir, path) = (mount.mounted.dir().to_owned(), mount.path("file"));
    fs::write(&path, [0; 4096]).unwrap();
    let file = File::open(&path).unwrap();
    let opens = Headless::new();
    let mapped = Mapped::of(&file);
    drop(file);
    let maps = Headless::new();
    assert!(heddle_fuse::mappers(&path).iter().any(|holder| holder.pid == maps.pid()));
    drop(mapped);
    let text = refusal_of_umount(&dir);
    for pid in [opens.pid(), maps.pid()] {
        assert!(text.contains(&format!("{pid} (")), "{pid}: {text}");
    }
    assert!(!text.contains(&format!("{} (", std::process::id())), "{text}");
}

#[test]
fn a_stranger_who_locks_his_mappings_delays_no_unmount() {
    let (Some(mount), Some(_locked)) = (model(), LockedMemory::new()) else { return };
    let (dir, path) = (mount.mounted.dir().to_owned(), mount.path("file"));
    fs::write(&path, [0; 4096]).unwrap();
    let mapped = Mapped::of(&File::open(&path).unwrap());
    let maps = Headless::new();
    drop(mapped);
    let text = refusal_of_umount(&dir);
    assert!(text.contains(&format!("{} (", maps.pid())), "{text}");
    assert!(heddle_fuse::mappers(&path).iter().any(|holder| holder.pid == maps.pid()));
}

#[test]
fn mounting_twice_or_on_nothing_is_refused_with_words() {
    let Some(mount) = model() else { return };
    let again = heddle_fuse::mount(Arc::new(ModelFs::new()), mount.mounted.dir(), &MountOptions::default());
    assert!(again.unwrap_err().to_string().contains("Unmount it with: heddle umount"));
    let mount_at = |path: &Path| heddle_fuse::mount(Arc::new(ModelFs::new()), path, &MountOptions::default());
    assert!(matches!(mount_at(Path::new("/nowhere/at/all")), Err(Error::MountPoint { .. })));
    assert!(matches!(mount_at(Path::new("/proc/self/comm")), Err(Error::MountPoint { .. })));
}

#[test]
fn a_panicking_engine_ends_in_errors_not_in_silence() {
    let broken = Arc::new(AtomicBool::new(false));
    let armed = broken.clone();
    let clock = move || if armed.load(SeqCst) { panic!("the engine's clock is broken") } else { Time(1) };
    let Some(mount) = mount(Arc::new(ModelFs::with_clock(clock)), &common::uncached()) else { return };
    fs::write(mount.path("before"), "x").unwrap();
    broken.store(true, SeqCst);
    // Several: each serving thread must survive.
    for _ in 0..8 {
        assert_eq!(fs::write(mount.path("after"), "x").unwrap_err().raw_os_error(), Some(libc::EIO));
    }
    broken.store(false, SeqCst);
    assert_eq!(
        fs::read(mount.path("before")).unwrap_err().raw_os_error(),
        Some(libc::EIO),
        "out of service for good"
    );
}

#[test]
fn a_failing_test_leaves_no_mount() {
    if !own_namespace() {
        return;
    }
    let before = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    let failing = std::panic::catch_unwind(|| {
        let mount = model().unwrap();
        let _open = File::create(mount.path("open")).unwrap();
        panic!("a test fails");
    });
    assert!(failing.is_err());
    let now = fs::read_to_string("/proc/thread-self/mountinfo").unwrap();
    assert_eq!(before.matches("fuse.heddle").count(), now.matches("fuse.heddle").count());
}

const SERVE_AT: &str = "HEDDLE_TEST_SERVE_AT";

#[test]
fn a_dead_servers_mount_can_be_taken_away() {
    if !own_namespace() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let mut server = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "serves_until_killed", "--nocapture"])
        .env(SERVE_AT, dir.path())
        .stdout(std::process::Stdio::null())
        .spawn()
        .unwrap();
    while !is_mounted(dir.path()) {
        assert!(server.try_wait().unwrap().is_none(), "the server ended early");
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::write(dir.path().join("file"), "x").unwrap();
    server.kill().unwrap();
    server.wait().unwrap();
    assert_eq!(fs::read_dir(dir.path()).unwrap_err().raw_os_error(), Some(libc::ENOTCONN));
    umount(dir.path()).unwrap();
    assert!(!is_mounted(dir.path()));
}

/// Not a test of its own: the server that the test above kills, in a process and in the mount namespace of that test.
#[test]
fn serves_until_killed() {
    let Some(dir) = std::env::var_os(SERVE_AT) else { return };
    let fs = Arc::new(ModelFs::new());
    heddle_fuse::mount(fs, Path::new(&dir), &MountOptions::default()).unwrap().wait().unwrap();
}

/// As name_to_handle_at(2) takes it: room in bytes, kind, data.
fn handle_of(path: &Path) -> [u32; 34] {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let (mut handle, mut mount) = ([0; 34], 0i32);
    handle[0] = 128;
    // SAFETY: the path ends in NUL, the handle has the room it says, the number is a live word.
    let done = unsafe {
        let (at, into, number) = (path.as_ptr(), handle.as_mut_ptr(), &raw mut mount);
        libc::syscall(libc::SYS_name_to_handle_at, libc::AT_FDCWD, at, into, number, 0)
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    handle
}

/// The kernel forgets an inode later than it says so: until then, and while a program has it past the mount, its handle was opened.
#[test]
fn a_file_handle_is_stale_at_once_when_the_file_is_removed() {
    use heddle_vfs::{Cred, FileSystem, Ino, Name, OpenFlags};
    use std::os::fd::AsRawFd;
    let engine = Arc::new(ModelFs::new());
    let Some(mount) = mount(engine.clone(), &MountOptions::default()) else { return };
    fs::write(mount.path("file"), "content").unwrap();
    let handle = handle_of(&mount.path("file"));
    let ino = engine.lookup(&Cred::root(), Ino::ROOT, Name::new(b"file").unwrap()).unwrap().ino;
    let held = engine.open(&Cred::root(), ino, OpenFlags::READ).unwrap();
    let root = File::open(mount.mounted.dir()).unwrap();
    fs::remove_file(mount.path("file")).unwrap();
    // SAFETY: the handle is one that the kernel filled.
    let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, root.as_raw_fd(), &handle, libc::O_RDONLY) };
    let error = std::io::Error::last_os_error();
    engine.release(held);
    assert_eq!((fd, error.raw_os_error()), (-1, Some(libc::ESTALE)));
}
