//! The notes that a daemon leaves, what it refuses, and a daemon that offers counters alone.

use super::*;
use crate::shared::client;
use crate::shared::wire::{Hello, Want};
use crate::state::lease;
use crate::variant::Variant;
use crate::volume::{MountOptions, format, mount};
use heddle_pmem::{OpenOptions, Region};
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::mpsc::channel;
use std::time::Instant;
use zerocopy::IntoBytes;

fn mounted(region: Region, read_only: bool) -> Volume {
    let options = MountOptions { arena_bytes: 64 << 20, read_only, ..MountOptions::default() };
    mount(region, &options).unwrap()
}

fn unmount(volume: Volume) {
    lease::leave(&volume.fs().core);
    volume.unmount();
}

#[test]
fn a_note_is_left_only_where_a_successor_could_take_over() {
    let dir = tempfile::tempdir().unwrap();
    let link = dir.path().join("link");
    symlink(dir.path(), &link).unwrap();
    let path = link.join("image");
    let region = Region::create(&path, 8 << 20, &OpenOptions::default()).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let meta = path.metadata().unwrap();
    let note = || notes::read([meta.dev(), meta.ino()]).unwrap();
    let start = |volume: &Volume, options| Server::start(volume, &options).unwrap();
    let volume = mounted(region, false);
    let server = start(&volume, ServerOptions::default());
    assert!(server.no_note().is_none());
    let (noted, author) = note().unwrap();
    assert_eq!(author, notes::Author::Lives);
    assert_eq!(noted.path, dir.path().canonicalize().unwrap().join("image"));
    let (notes_dir, name) =
        (notes::runtime_directory(false).unwrap(), format!("{:x}-{:x}.mount", meta.dev(), meta.ino()));
    let its = rustix::fs::statat(&notes_dir, name, rustix::fs::AtFlags::SYMLINK_NOFOLLOW).unwrap();
    assert_eq!(its.st_mode & 0o7777, 0o600, "it is for the daemon's user alone");
    drop(server);
    assert!(note().is_none(), "it is left behind");
    let server = start(&volume, ServerOptions { no_attach: true, ..ServerOptions::default() });
    assert!(note().is_none(), "nobody can attach");
    drop(server);
    start(&volume, ServerOptions::default()).abandon();
    assert!(note().is_some(), "a successor needs it");
    // Another daemon's note of that name is not removed by one that ends later.
    let earlier = start(&volume, ServerOptions::default());
    let later = start(&volume, ServerOptions::default());
    drop(earlier);
    assert!(note().is_some());
    drop(later);
    assert!(note().is_none());
    unmount(volume);
    let volume = mounted(
        Region::open(&path, &OpenOptions { read_only: true, ..OpenOptions::default() }).unwrap(),
        true,
    );
    let server = start(&volume, ServerOptions::default());
    assert!(note().is_none(), "nothing can be taken over that changes nothing");
    drop(server);
    unmount(volume);
}

#[test]
fn a_simulated_region_is_refused_to_other_processes() {
    let (region, _simulator) = Region::simulated(8 << 20);
    format(&region, Variant::Heddle).unwrap();
    let volume = mounted(region, false);
    let why = refusal(&volume.fs().core, &ServerOptions::default());
    assert!(why.is_some_and(|why| why.contains("simulated")));
    unmount(volume);
}

#[test]
fn an_engine_without_attachment_offers_counters_and_says_why() {
    let dir = tempfile::tempdir().unwrap();
    // The image is not opened: what that does is a matter of devices, and of this socket.
    let image = dir.path().join("image");
    let _there = UnixListener::bind(&image).unwrap();
    let options = ServerOptions { socket: Some(dir.path().join("attach")), ..ServerOptions::default() };
    let volume = {
        let region = Region::anonymous(8 << 20).unwrap();
        format(&region, Variant::Heddle).unwrap();
        mounted(region, false)
    };
    let reading = Counters::read(&volume.fs().core);
    let offered = reading.clone();
    let mut server =
        Server::start_for_counters(move || offered.clone(), &image, "it is of flash", &options).unwrap();
    assert_eq!(server.socket(), dir.path().join("attach"));
    let (seen, id) = client::counters_and_image(server.socket()).unwrap();
    assert_eq!(seen, reading);
    let meta = image.symlink_metadata().unwrap();
    assert_eq!(id, [meta.dev(), meta.ino()]);
    let refused = client::attach(server.socket()).err().unwrap().to_string();
    assert_eq!(refused, format!("cannot attach through {}: it is of flash", server.socket().display()));
    assert!(server.no_note().is_none());
    server.note = Some(Err(NoteError::NotSafe { dir: "/dir".into(), why: "it is another's".into() }));
    assert!(server.no_note().is_some_and(|error| error.to_string().contains("it is another's")));
    drop(server);
    unmount(volume);
}

#[test]
fn each_token_is_another_one() {
    let [one, two] = [fresh_token(), fresh_token()];
    assert!(one != two && one != AttachToken::default());
}

/// The bytes of memory of what the other end has not read.
fn unread(socket: &OwnedFd) -> libc::c_int {
    let mut len = 0;
    // SAFETY: the call writes one number.
    assert_eq!(unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut len) }, 0);
    len
}

/// A server whose thread of the attach socket is held up, as by a stranger before Linux 6.16.
struct Parked {
    server: Server,
    /// The last client, whom the thread answers once it goes on.
    _client: OwnedFd,
    /// Dropped, it lets the thread go on.
    far: TcpStream,
}

/// A peer sends a TCP socket that lingers: the thread that closes it waits for the other end.
fn parked(mount: SharedMount) -> Parked {
    let (listener, name) = abstract_socket().unwrap();
    // As before Linux 6.16.
    wire::pass_descriptors(&listener, true);
    let attach_socket = AttachSocket {
        mount,
        listener,
        stop: Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap()),
        gate: Arc::default(),
        group: None,
        tokens: None,
        connections: Vec::new(),
    };
    let far = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut lingers = TcpStream::connect(far.local_addr().unwrap()).unwrap();
    let (far, _) = far.accept().unwrap();
    lingers.set_nonblocking(true).unwrap();
    while lingers.write(&[0; 1 << 16]).is_ok() {}
    rustix::net::sockopt::set_socket_linger(&lingers, Some(Duration::from_secs(100))).unwrap();
    let client = seqpacket().unwrap();
    connect(&client, &SocketAddrUnix::new_abstract_name(&name).unwrap()).unwrap();
    // Sent before there is a thread, so that its descriptor of the TCP socket is the last one.
    let hello = Hello::new(Want::Counters, AttachToken::default());
    wire::send(&client, hello.as_bytes(), &[lingers.as_fd()]).unwrap();
    drop(lingers);
    let server = Server::listening(attach_socket, Arc::new(AttachTokens::of(&name)), None).unwrap();
    while unread(&client) > 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    Parked { server, _client: client, far }
}

#[test]
fn the_end_waits_for_no_thread_that_a_peer_holds_up() {
    let readings = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&readings);
    let reading = Box::new(move || -> Counters {
        counted.fetch_add(1, SeqCst);
        panic!("the mount has ended")
    });
    let mount = SharedMount { core: None, reading, no_attach: None, image: [0; 2], path: None };
    let Parked { server, _client, far } = parked(mount);
    let (gate, began) = (Arc::clone(&server.gate), Instant::now());
    assert_eq!(server.close(), Ended::HeldUp, "nothing held it up: this tests nothing");
    assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
    // The thread goes on, and finds that all has ended: it reads nothing of the mount.
    drop(far);
    let began = Instant::now();
    while Arc::strong_count(&gate) > 1 {
        assert!(began.elapsed() < Duration::from_secs(30), "the thread never ends");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(readings.load(SeqCst), 0);
}

#[test]
fn rounds_go_on_while_a_peer_holds_up_the_socket() {
    let region = Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let volume = mounted(region, false);
    let core = volume.fs().core;
    let reading = Box::new(|| -> Counters { panic!("nobody asks") });
    let mount =
        SharedMount { core: Some(Arc::clone(&core)), reading, no_attach: None, image: [0; 2], path: None };
    let Parked { server, _client, far } = parked(mount);
    // Each round counts the leased lanes anew.
    const NOT_COUNTED: u64 = 1 << 20;
    for _ in 0..2 {
        core.root().lanes_leased.store(NOT_COUNTED, SeqCst);
        let began = Instant::now();
        while core.root().lanes_leased.load(SeqCst) == NOT_COUNTED {
            assert!(began.elapsed() < Duration::from_secs(30), "the daemon looks at nothing");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(server.close(), Ended::HeldUp, "nothing held it up: this tests nothing");
    drop(far);
    drop(core);
    unmount(volume);
}

/// A round that is under way may store to the image: it is not closed then, and a successor finds the note.
#[test]
fn a_server_still_at_work_says_so_and_leaves_its_note() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("image");
    let region = Region::create(&path, 8 << 20, &OpenOptions::default()).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let volume = mounted(region, false);
    let meta = path.metadata().unwrap();
    let note = || notes::read([meta.dev(), meta.ino()]).unwrap();
    let mut server = Server::start(&volume, &ServerOptions::default()).unwrap();
    let ((go_on, held), (tell, told), gate) = (channel::<()>(), channel(), Arc::clone(&server.gate));
    let works = move || {
        let _inside = gate.enter().unwrap();
        tell.send(()).unwrap();
        let _ = held.recv();
    };
    server.threads.push(Worker::start("at-work", works).unwrap());
    told.recv().unwrap();
    assert_eq!(server.close(), Ended::AtWork);
    assert!(note().is_some(), "a successor needs it");
    drop(go_on);
    let notes_dir = notes::runtime_directory(false).unwrap();
    let name = format!("{:x}-{:x}.mount", meta.dev(), meta.ino());
    rustix::fs::unlinkat(&notes_dir, name, rustix::fs::AtFlags::empty()).unwrap();
    unmount(volume);
}
