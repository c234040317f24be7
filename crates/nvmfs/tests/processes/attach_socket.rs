//! The attach socket: who is let in, what is said at it, and what a daemon does that has none to offer. Whatever comes through it, the
//! daemon stays up.

use super::children::{ROLE_PATIENCE, SharedMount, start, start_with};
use super::rubbish;
use crate::common::Short;
use heddle_nvmfs::client::{self, AttachError};
use heddle_nvmfs::server::{Server, ServerError, ServerOptions};
use heddle_vfs::{FileSystem, Ino};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn who_may_attach_is_decided_by_the_kernels_word() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become others");
        return;
    }
    let shared =
        SharedMount::with(16 << 20, ServerOptions { group: Some(54321), ..ServerOptions::default() });
    std::fs::set_permissions(shared.place(), PermissionsExt::from_mode(0o755)).unwrap();
    // Everybody gets as far as the socket.
    std::fs::set_permissions(shared.socket(), PermissionsExt::from_mode(0o777)).unwrap();
    start(&shared, "is-nobody 54321 1").succeeds();
    start(&shared, "is-nobody 54322 0").succeeds();
}

#[test]
fn memory_is_not_taken_from_a_strangers_daemon() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become others");
        return;
    }
    let nobody = 65534;
    let shared = SharedMount::unmounted(16 << 20);
    for path in [shared.place().to_path_buf(), shared.place().join("image")] {
        std::os::unix::fs::chown(path, Some(nobody), None).unwrap();
    }
    let mut daemon = start(&shared, "serves-as-nobody");
    daemon.is_ready(shared.place());
    let error = client::attach(shared.socket()).err().unwrap();
    assert!(matches!(error, AttachError::Stranger { uid: 65534, .. }), "{error}");
    assert!(error.to_string().contains("HEDDLE_TRUST=65534"), "{error}");
    client::counters(shared.socket()).expect("a reading is a copy: it can be had from anybody");
    let trusting =
        |users: &str| start_with(shared.socket(), "attaches", &[("HEDDLE_TRUST", Path::new(users))]);
    trusting("4242,65534").succeeds();
    assert!(!trusting("4242").ends(ROLE_PATIENCE).success(), "another user is trusted");
    // The daemon's own user is let in without a group.
    start(&shared, "is-nobody 54321 1").succeeds();
}

#[test]
fn a_missing_daemon_is_said_so() {
    let dir = tempfile::tempdir().unwrap();
    let missing = client::attach(&dir.path().join("none")).err().unwrap();
    assert!(
        matches!(missing, AttachError::NoDaemon { .. }) && missing.to_string().contains("heddle mount"),
        "{missing}"
    );
    drop(std::os::unix::net::UnixListener::bind(dir.path().join("stale")).unwrap());
    let stale = client::attach(&dir.path().join("stale")).err().unwrap();
    assert!(matches!(stale, AttachError::NoDaemon { .. }), "{stale}");
    let long = client::attach(&dir.path().join("x".repeat(200))).err().unwrap();
    assert!(matches!(long, AttachError::NoDaemon { .. }), "{long}");
}

#[test]
fn rubbish_on_the_socket_harms_nobody() {
    let shared = SharedMount::new(16 << 20);
    let silent = rubbish::connections(shared.socket(), 200);
    for packet in rubbish::packets() {
        rubbish::say(shared.socket(), &packet);
    }
    let began = Instant::now();
    let fs = client::attach(shared.socket()).unwrap();
    assert!(
        began.elapsed() < Duration::from_secs(10),
        "silent clients hold others up: {:?}",
        began.elapsed()
    );
    let file = fs.new_file(Ino::ROOT, "f");
    fs.release(file);
    drop(silent);
    shared.fs().find(Ino::ROOT, "f").unwrap();
}

/// Somebody else comes in and works.
fn lets_in(shared: &SharedMount) {
    let fs = client::attach(shared.socket()).unwrap();
    let file = fs.open_file(Ino::ROOT, "f");
    fs.write(&file, 0, b"still here").unwrap();
    fs.release(file);
}

#[test]
fn what_a_client_sends_besides_costs_the_daemon_nothing() {
    let shared = SharedMount::new(16 << 20);
    shared.fs().release(shared.fs().new_file(Ino::ROOT, "f"));
    let open = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    lets_in(&shared);
    let before = open();
    for round in 0..50 {
        // As many descriptors as one packet may carry, with and without a greeting.
        let packet = if round % 2 == 0 { rubbish::greeting() } else { vec![0; 24] };
        let answer = rubbish::ask(shared.socket(), &packet, 253);
        // From Linux 6.16 on the kernel refuses to send it.
        assert!(answer.is_none_or(|answer| !rubbish::is_welcome(&answer)), "rubbish was let in");
    }
    lets_in(&shared);
    // Other tests of this process open and close files meanwhile.
    assert!(open() < before + 200, "{before} descriptors were open, now {}", open());
}

#[test]
fn a_client_of_another_build_is_told_so() {
    let shared = SharedMount::new(16 << 20);
    let answer = rubbish::ask(shared.socket(), &rubbish::greeting(), 0).unwrap();
    assert!(!rubbish::is_welcome(&answer));
    let text = String::from_utf8_lossy(&answer);
    assert!(text.contains("different builds"), "{text}");
    // The first half of a greeting is none; the second does not make it one.
    for half in rubbish::greeting().chunks(12) {
        let answer = rubbish::ask(shared.socket(), half, 0).unwrap();
        assert!(String::from_utf8_lossy(&answer).contains("no greeting"));
    }
}

#[test]
fn what_is_no_daemon_is_no_daemon_to_a_client() {
    let dir = tempfile::tempdir().unwrap();
    let answers: [&[u8]; 4] = [b"", b"hello", &[0; 1160], &[0xff; 1160]];
    for (n, answer) in answers.into_iter().enumerate() {
        let socket = dir.path().join(n.to_string());
        let daemon = rubbish::answers_once(&socket, answer);
        let error = client::attach(&socket).err().unwrap();
        assert!(matches!(error, AttachError::Rubbish { .. }), "{error}");
        assert!(error.to_string().contains("heddle daemon"), "{error}");
        daemon.join().unwrap();
    }
}

#[test]
fn a_daemon_that_cannot_make_its_door_says_where_and_why() {
    let volume = crate::common::fresh(heddle_nvmfs::Variant::Heddle, 16 << 20);
    let dir = tempfile::tempdir().unwrap();
    let start = |socket: &Path| {
        let options = ServerOptions { socket: Some(socket.to_path_buf()), ..ServerOptions::default() };
        let error = Server::start(&volume, &options).err().unwrap();
        assert!(matches!(error, ServerError::System { .. }), "{error}");
        error.to_string()
    };
    std::fs::write(dir.path().join("file"), "").unwrap();
    for path in
        [&dir.path().join("file/attach"), &dir.path().join("x".repeat(120)), Path::new("/proc/attach")]
    {
        assert!(start(path).contains(path.to_str().unwrap()));
    }
    if rustix::process::geteuid().is_root() {
        // A directory with no room for another name.
        let full = dir.path().join("full");
        std::fs::create_dir(&full).unwrap();
        let said = in_own_mounts(|| {
            use rustix::mount::{MountFlags, mount};
            mount("full", &full, "tmpfs", MountFlags::empty(), Some(c"nr_inodes=2")).unwrap();
            std::fs::write(full.join("other"), "").unwrap();
            start(&full.join("attach"))
        });
        assert!(said.contains("No space left"), "{said}");
    }
    volume.unmount();
}

/// Does it in a thread with mounts of its own.
fn in_own_mounts<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    use rustix::mount::{MountPropagationFlags, mount_change};
    std::thread::scope(|scope| {
        let own = scope.spawn(|| {
            // SAFETY: unshare takes no pointers; the new namespaces concern this thread alone.
            assert_eq!(unsafe { libc::unshare(libc::CLONE_NEWNS | libc::CLONE_FS) }, 0);
            mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC).unwrap();
            work()
        });
        own.join().unwrap()
    })
}

#[test]
fn a_daemon_that_ends_removes_its_socket_and_no_other_ones() {
    let mut shared = SharedMount::new(16 << 20);
    let socket = shared.socket().to_path_buf();
    assert!(socket.exists());
    shared.unmount();
    assert!(!socket.exists(), "it is left, and nobody listens");
    shared.mount();
    // Made while the first is there, so that it has another number.
    let other = shared.place().join("other");
    let _listens = std::os::unix::net::UnixListener::bind(&other).unwrap();
    std::fs::rename(&other, &socket).unwrap();
    shared.unmount();
    assert!(socket.exists(), "it is another daemon's by now");
}

#[test]
fn a_user_who_may_not_write_there_is_told_so() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED: only root can become others");
        return;
    }
    let shared = SharedMount::new(16 << 20);
    start(&shared, "listens-where-it-may-not").succeeds();
}
