//! Ways to mount: mount(8), fstab, options, the log; and what a mount offers beyond reading and writing.

mod common;

use common::{Mounted, Place, alone, build_preload, command, heddle};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Puts mount(8)'s helpers where it looks for them, for this thread alone: those that the page tells users to put there, and beside them
/// what the package of FUSE brings.
fn install_helpers() {
    rustix::mount::mount("helpers", "/usr/sbin", "tmpfs", rustix::mount::MountFlags::empty(), None).unwrap();
    let page = include_str!("../../../docs/mounting.md");
    let links = page.lines().filter_map(|line| line.strip_prefix("ln -s \"$(command -v heddle)\" /sbin/"));
    for name in links.filter_map(|line| line.split_whitespace().next()) {
        symlink(env!("CARGO_BIN_EXE_heddle"), Path::new("/usr/sbin").join(name)).unwrap();
    }
    symlink("/bin/false", "/usr/sbin/mount.fuse").unwrap();
}

#[track_caller]
fn run(command: &str, args: &[&str]) -> String {
    let out = Command::new(command).args(args).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    assert!(out.status.success(), "{command} {args:?}: {said}");
    said
}

fn is_clean(place: &Place) -> bool {
    let said = heddle(&["info", "--json", &place.image()]).ok().out;
    serde_json::from_str::<serde_json::Value>(&said).unwrap()["clean"] == true
}

#[test]
fn mount_and_umount_of_the_system_work_by_type_and_from_fstab() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    install_helpers();
    let log = format!("noatime,nofail,log={}", place.text("log"));
    // Without an option of mount(8)'s own table umount(8) asks for the type by statfs alone, which is `fuse`: it does not find our helper.
    let waits = format!("{log},x-heddle.wait");
    run("mount", &["-t", "heddle", "-o", &waits, &place.image(), &place.mnt()]);
    fs::write(place.path("mnt/file"), "by mount(8)").unwrap();
    run("umount", &[&place.mnt()]);
    assert!(is_clean(&place), "umount returns when the image is clean");
    let row = format!("{} {} heddle ro,{log},x-systemd.automount 0 0\n", place.image(), place.mnt());
    fs::write(place.path("fstab"), row).unwrap();
    run("mount", &["--fstab", &place.text("fstab"), &place.mnt()]);
    assert_eq!(fs::read(place.path("mnt/file")).unwrap(), b"by mount(8)");
    assert!(fs::write(place.path("mnt/new"), "").is_err(), "read-only by fstab");
    run("umount", &[&place.mnt()]);
    let log = fs::read_to_string(place.path("log")).unwrap();
    assert_eq!(log.matches("mounted at").count(), 2, "{log}");
    assert_eq!(log.matches("unmounted").count(), 2, "{log}");
}

fn flags_of(place: &Place) -> String {
    run("findmnt", &["-n", "-o", "OPTIONS", &place.mnt()])
}

#[test]
fn set_ids_and_devices_work_unless_mount_or_fstab_forbid_them() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    install_helpers();
    let log = format!("log={}", place.text("log"));
    for (said, shown) in [("suid,dev", [false, false]), ("nosuid", [true, false]), ("user", [true, true])] {
        let said = format!("{said},{log},x-heddle.wait");
        run("mount", &["-t", "heddle", "-o", &said, &place.image(), &place.mnt()]);
        let flags = flags_of(&place);
        assert_eq!(["nosuid", "nodev"].map(|flag| flags.contains(flag)), shown, "{said}: {flags}");
        run("umount", &[&place.mnt()]);
    }
}

/// Opens a file for writing, waits for a line, writes.
const WRITER: &str = "import os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(fd, b'one')
print('open', flush=True), sys.stdin.readline()
os.write(fd, b'two')";

#[test]
fn remount_makes_a_mount_read_only_and_writable_again() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    install_helpers();
    let preload = build_preload();
    let mounted = Mounted::new(&place, &["-o", &format!("log={}", place.text("log"))]);
    let (mnt, file) = (place.mnt(), mounted.path("file"));
    let remount =
        |how: &str| Command::new("mount").args(["-o", &format!("remount,{how}"), &mnt]).output().unwrap();
    let refused = |how: &str, why: &str| {
        let out = remount(how);
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        assert!(!out.status.success() && said.contains(why), "{how}: {said}");
    };
    let mut writer = command(&["run", "--", "python3", "-c", WRITER]);
    let writer = writer.arg(&file).env("HEDDLE_PRELOAD", preload.join("libheddle_preload.so"));
    let mut writer = writer.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = [0; 5];
    std::io::Read::read_exact(writer.stdout.as_mut().unwrap(), &mut line).unwrap();
    refused("ro", "busy");
    drop(writer.stdin.take());
    assert!(writer.wait().unwrap().success());
    // Whoever looks at all processes' descriptors just then has the file for an instant.
    let began = std::time::Instant::now();
    while !remount("ro").status.success() {
        assert!(began.elapsed() < std::time::Duration::from_secs(20), "it stays busy");
    }
    assert!(flags_of(&place).starts_with("ro,nosuid,nodev"), "{}", flags_of(&place));
    let bypassed = command(&["run", "--", "python3", "-c", WRITER]).arg(&file).output().unwrap();
    assert!(String::from_utf8_lossy(&bypassed.stderr).contains("Read-only file system"));
    assert_eq!(fs::write(&file, "no").unwrap_err().raw_os_error(), Some(libc::EROFS));
    assert_eq!(fs::read(&file).unwrap(), b"onetwo");
    fs::rename(place.image(), place.path("moved")).unwrap();
    assert!(remount("rw").status.success(), "an image that was moved is open as it was");
    fs::rename(place.path("moved"), place.image()).unwrap();
    fs::write(&file, "again").unwrap();
    drop(mounted);
    let _read_only = Mounted::new(&place, &["-o", &format!("ro,log={}", place.text("log"))]);
    refused("rw", "opened only for reading");
    assert_eq!(fs::read(&file).unwrap(), b"again");
}

/// sd_notify(3): a unit of `Type=notify` is up from then on.
#[test]
fn a_service_manager_is_told_when_the_mount_is_there() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let name = format!("heddle-test-{}", std::process::id());
    let named = SocketAddr::from_abstract_name(&name).unwrap();
    let at_path = UnixDatagram::bind(place.path("notify")).unwrap();
    for (manager, told) in
        [(at_path, place.text("notify")), (UnixDatagram::bind_addr(&named).unwrap(), format!("@{name}"))]
    {
        manager.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        let mut mount = command(&["mount", "--foreground", &place.image(), &place.mnt()]);
        let mut served = mount.env("NOTIFY_SOCKET", &told).stderr(Stdio::null()).spawn().unwrap();
        let mut said = [0; 64];
        let len = manager.recv(&mut said).unwrap();
        assert_eq!(&said[..len], b"READY=1", "{told}");
        // What waits for the unit finds it.
        let device = |path: &Path| fs::metadata(path).unwrap().dev();
        assert_ne!(device(Path::new(&place.mnt())), device(&place.path("")), "{told}");
        fs::write(place.path("mnt/file"), &told).unwrap();
        heddle(&["umount", &place.mnt()]).ok();
        assert!(served.wait().unwrap().success());
    }
}

#[test]
fn a_wrong_option_reaches_the_user_of_mount_in_our_words() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    install_helpers();
    let out = Command::new("mount")
        .args(["-t", "heddle", "-o", "journal=yes", &place.image(), &place.mnt()])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(!out.status.success() && said.contains("journal") && said.contains("lock-mode"), "{said}");
}

#[test]
fn files_show_and_get_the_owner_that_was_asked_for() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    // The user must reach the place.
    fs::set_permissions(place.path(""), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    {
        let mounted = Mounted::new(&place, &["-o", "uid=1000,gid=1000"]);
        fs::write(mounted.path("roots"), "x").unwrap();
        let script = "echo mine > his; chmod 600 his; cat his; mkdir d; echo x >> roots; ! chown 7 his 2>&1";
        let out = Command::new("setpriv")
            .args(["--reuid=1000", "--regid=1000", "--clear-groups", "sh", "-euc", script])
            .current_dir(mounted.path(""))
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        assert_eq!(fs::metadata(mounted.path("roots")).unwrap().uid(), 1000);
    }
    let mounted = Mounted::new(&place, &[]);
    for name in ["his", "roots", "d"] {
        let meta = fs::metadata(mounted.path(name)).unwrap();
        assert_eq!((meta.uid(), meta.gid()), (1000, 1000), "{name} was stored with another owner");
    }
    assert_eq!(fs::metadata(mounted.path("")).unwrap().uid(), 0, "what was there keeps its owner");
}

fn shut_down(root: &File) {
    let going_down: u32 = 2;
    // SAFETY: the argument points to a live word, which is what FS_IOC_SHUTDOWN takes.
    let done = unsafe { libc::ioctl(root.as_raw_fd(), heddle_vfs::ioctl::SHUTDOWN.into(), &going_down) };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn shutting_down_ends_all_calls_and_the_next_mount_recovers() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    {
        let mounted = Mounted::new(&place, &[]);
        fs::write(mounted.path("file"), "returned").unwrap();
        let root = File::open(mounted.path("")).unwrap();
        shut_down(&root);
        let after = fs::write(mounted.path("file"), "later").unwrap_err();
        assert_eq!(after.raw_os_error(), Some(libc::EIO));
        drop(root);
        std::mem::forget(mounted);
        heddle(&["umount", &place.mnt()]).failed(1, &["not clean"]);
    }
    assert!(!is_clean(&place));
    let again = Mounted::new(&place, &[]);
    assert_eq!(fs::read(again.path("file")).unwrap(), b"returned");
}

#[test]
fn shutting_down_an_f2fs_mount_leaves_what_was_synced_alone() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("f2fs", "64M");
    {
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        fs::write(mounted.path("synced"), "synced").unwrap();
        File::open(mounted.path("synced")).unwrap().sync_all().unwrap();
        fs::write(mounted.path("not"), "not synced").unwrap();
        let root = File::open(mounted.path("")).unwrap();
        shut_down(&root);
        let after = fs::read(mounted.path("synced")).unwrap_err();
        assert_eq!(after.raw_os_error(), Some(libc::EIO));
        drop(root);
        std::mem::forget(mounted);
        heddle(&["umount", &place.mnt()]).failed(1, &["shut down", "not synced is lost"]);
    }
    let again = Mounted::new(&place, &["-o", "log=/dev/null"]);
    assert_eq!(fs::read(again.path("synced")).unwrap(), b"synced");
    assert!(!again.path("not").exists());
}

#[test]
fn an_f2fs_mount_made_read_only_has_all_changes_durable() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image_of("f2fs", "64M");
    {
        let mounted = Mounted::new(&place, &["-o", "log=/dev/null"]);
        fs::create_dir(mounted.path("dir")).unwrap();
        fs::write(mounted.path("dir/file"), "not synced").unwrap();
        let said = heddle(&["mount", "-o", "remount,ro,sync", &place.image(), &place.mnt()]).ok();
        assert!(said.err.contains("As they were at the mount: sync."), "{}", said.err);
        let root = File::open(mounted.path("")).unwrap();
        shut_down(&root);
        drop(root);
        std::mem::forget(mounted);
        heddle(&["umount", &place.mnt()]).failed(1, &["shut down"]);
    }
    let again = Mounted::new(&place, &["-o", "log=/dev/null"]);
    assert_eq!(fs::read(again.path("dir/file")).unwrap(), b"not synced");
}

/// A program that asks the mount at its argument to shut down.
const SHUT_DOWN: &str = "import fcntl, os, sys
fcntl.ioctl(os.open(sys.argv[1], os.O_RDONLY), 0x8004587d, (2).to_bytes(4, 'little'))";

/// Root of a container could stop the host's mount.
#[test]
fn shutting_down_takes_the_capability_and_not_the_number_of_root() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    let mounted = Mounted::new(&place, &[]);
    let ask = |before: &[&str]| {
        let mut program = Command::new(before[0]);
        program.args(&before[1..]).args(["/usr/bin/python3", "-c", SHUT_DOWN, &place.mnt()]);
        let said = program.output().unwrap();
        (said.status.success(), String::from_utf8_lossy(&said.stderr).into_owned())
    };
    for root_of_little in
        [&["setpriv", "--bounding-set=-sys_admin"][..], &["unshare", "--user", "--map-root-user"]]
    {
        let (done, said) = ask(root_of_little);
        assert!(!done && said.contains("PermissionError"), "{root_of_little:?}: {said}");
    }
    fs::write(mounted.path("file"), "served on").unwrap();
    let user = "setpriv --reuid=65534 --clear-groups --inh-caps=+sys_admin --ambient-caps=+sys_admin";
    let (done, said) = ask(&user.split(' ').collect::<Vec<_>>());
    assert!(done, "{said}");
    assert_eq!(fs::write(mounted.path("file"), "later").unwrap_err().raw_os_error(), Some(libc::EIO));
    std::mem::forget(mounted);
    heddle(&["umount", &place.mnt()]).failed(1, &["not clean"]);
}

#[repr(C)]
struct FileHandle {
    bytes: u32,
    kind: i32,
    data: [u8; 128],
}

fn handle_of(path: &Path) -> FileHandle {
    let path = std::ffi::CString::new(path.to_str().unwrap()).unwrap();
    let mut handle = FileHandle { bytes: 128, kind: 0, data: [0; 128] };
    let mut mount_id = 0;
    // SAFETY: the path ends in NUL, the handle has the room it says, the number is a live word.
    let done = unsafe {
        libc::syscall(
            libc::SYS_name_to_handle_at,
            libc::AT_FDCWD,
            path.as_ptr(),
            &raw mut handle,
            &raw mut mount_id,
            0,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
    handle
}

fn open_handle(mount: &File, handle: &FileHandle) -> std::io::Result<File> {
    // SAFETY: the handle is one that the kernel filled.
    let fd = unsafe { libc::syscall(libc::SYS_open_by_handle_at, mount.as_raw_fd(), handle, libc::O_RDONLY) };
    if fd < 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: a fresh descriptor that nobody else has.
    Ok(unsafe { std::os::fd::FromRawFd::from_raw_fd(fd as i32) })
}

#[test]
fn a_file_handle_survives_renames_and_mounts_and_is_stale_after_deletion() {
    let Some(_alone) = alone() else { return };
    let place = Place::with_image("heddle");
    let (kept, deleted);
    {
        let mounted = Mounted::new(&place, &[]);
        fs::create_dir(mounted.path("dir")).unwrap();
        fs::write(mounted.path("dir/kept"), "kept").unwrap();
        fs::write(mounted.path("deleted"), "deleted").unwrap();
        (kept, deleted) = (handle_of(&mounted.path("dir/kept")), handle_of(&mounted.path("deleted")));
        fs::rename(mounted.path("dir/kept"), mounted.path("moved")).unwrap();
    }
    let mounted = Mounted::new(&place, &[]);
    let root = File::open(mounted.path("")).unwrap();
    assert_eq!(std::io::read_to_string(open_handle(&root, &kept).unwrap()).unwrap(), "kept");
    fs::remove_file(mounted.path("deleted")).unwrap();
    fs::write(mounted.path("its-number-again"), "another").unwrap();
    let error = open_handle(&root, &deleted).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ESTALE));
}

#[test]
fn mount_refuses_options_that_an_image_cannot_keep() {
    let Some(_alone) = alone() else { return };
    let place = Place::new();
    for variant in ["heddle", "nova", "nova-array"] {
        heddle(&["mkfs", "--force", "--variant", variant, "--size", "16M", &place.image()]).ok();
        let lock_free = ["lock-mode=paper", "segment=64K"].into_iter().filter(|_| variant == "heddle");
        for option in ["discard", "nvm-size=1M", "discard-nvm", "force-nvm"].into_iter().chain(lock_free) {
            let name = format!("-o {}", option.split('=').next().unwrap());
            let said = heddle(&["mount", "-o", option, &place.image(), &place.mnt()]);
            let _mounted = (said.code == 0).then(|| Mounted(&place));
            said.failed(2, &[&name, variant, "no effect"]);
        }
    }
}
