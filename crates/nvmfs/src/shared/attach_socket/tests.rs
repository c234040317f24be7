//! Who is let in, how long a peer may be silent, and what a daemon does beside.

use super::*;
use crate::lane_counters::{KINDS, SPANS, Totals};
use crate::shared::attach_ioctl::question;
use crate::shared::rounds::ROUND_EVERY;
use crate::shared::server::{Server, ServerOptions, abstract_socket};
use crate::variant::Variant;
use crate::volume::{MountOptions, format, mount};
use heddle_pmem::Region;
use heddle_vfs::ioctl::AttachIoctl;
use rustix::event::{EventfdFlags, eventfd};
use rustix::net::{AddressFamily, RecvFlags, SocketAddrUnix, SocketType, connect, socket_with, socketpair};
use std::sync::Mutex;

/// An attach socket that lets nobody attach, and its address.
fn closed(group: Option<u32>) -> (AttachSocket, SocketAddrUnix) {
    let (listener, name) = abstract_socket().unwrap();
    let mount = SharedMount {
        core: None,
        reading: Box::new(reading),
        no_attach: Some("closed".into()),
        image: [5, 6],
        path: Some("/some/image".into()),
    };
    let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).unwrap());
    let gate = Arc::default();
    let socket = AttachSocket { mount, listener, stop, gate, group, tokens: None, connections: Vec::new() };
    (socket, SocketAddrUnix::new_abstract_name(&name).unwrap())
}

fn reading() -> Counters {
    let gauges = crate::counters::Gauges {
        now_ns: 1,
        daemon_pid: 2,
        blocks_total: 3,
        blocks_free: 4,
        inodes_total: 5,
        inodes_free: 6,
        attached: 7,
        settled: 8,
        damaged: 0,
        durability: 1,
        huge_bytes: 0,
    };
    let spans = Box::new([[0; SPANS]; KINDS]);
    Counters { totals: Totals::default(), spans, clients: Vec::new(), gauges }
}

fn connected(address: &SocketAddrUnix) -> OwnedFd {
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    connect(&socket, address).unwrap();
    socket
}

/// Does this in a thread of another user: the kernel notes who connects.
fn as_user<T: Send>(uid: u32, gid: u32, groups: &[u32], work: impl FnOnce() -> T + Send) -> T {
    let become_user = || {
        // SAFETY: the list has as many numbers as the call says. Raw calls concern this thread alone; what they do to the process, the
        // last one undoes.
        unsafe {
            assert_eq!(libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()), 0);
            assert_eq!(libc::syscall(libc::SYS_setresgid, gid, gid, gid), 0);
            assert_eq!(libc::syscall(libc::SYS_setresuid, uid, uid, uid), 0);
            assert_eq!(libc::prctl(libc::PR_SET_DUMPABLE, 1), 0);
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| {
            become_user();
            work()
        });
        other.join().unwrap()
    })
}

fn is_root() -> bool {
    let is = rustix::process::geteuid().is_root();
    if !is {
        eprintln!("SKIPPED: only root can become others");
    }
    is
}

/// What the daemon says to this question.
fn asks(client: &OwnedFd, want: Want, token: AttachToken) -> Option<Result<Box<Answer>, String>> {
    wire::send(client, Hello::new(want, token).as_bytes(), &[]).ok()?;
    let mut packet = wire::Packet::default();
    let (len, _fds) = wire::receive(client, packet.bytes(), RecvFlags::empty()).ok()?;
    Answer::parse(&packet.bytes()[..len])
}

#[test]
fn a_peer_is_owner_member_or_stranger_by_its_user_and_groups() {
    if !is_root() {
        return;
    }
    let comes = |group: Option<u32>, (uid, gid, groups): (u32, u32, &[u32])| {
        let (mut socket, address) = closed(group);
        let _client = as_user(uid, gid, groups, || connected(&address));
        assert!(socket.accept());
        let peer = socket.connections.pop().unwrap();
        assert_eq!(peer.uid, uid);
        let left = peer.until.saturating_duration_since(Instant::now());
        assert_eq!(left > REFUSED_GREETING_MAX, peer.caller != Caller::Stranger, "{left:?}");
        assert!(left <= GREETING_MAX);
        peer.caller
    };
    let group = Some(54321);
    assert!(comes(group, (0, 0, &[])) == Caller::Owner);
    assert!(comes(group, (1000, 54321, &[])) == Caller::Member);
    assert!(comes(group, (1000, 1000, &[7, 54321])) == Caller::Member);
    // This process is an administrator's, but the user who has connected is not root.
    assert!(comes(group, (1000, 1000, &[54322])) == Caller::Stranger);
    assert!(comes(None, (1000, 54321, &[54321])) == Caller::Stranger);
}

#[test]
fn all_groups_of_a_peer_are_known_however_many() {
    let pair = || socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
    if is_root() {
        for count in [0, 1, 3, 256, 257, 1000] {
            let all: Vec<u32> = (70_000..70_000 + count).collect();
            let (here, _there) = as_user(0, 0, &all, pair);
            assert_eq!(groups(&here), all, "{count}");
        }
    }
    assert!(groups(&File::open("/dev/null").unwrap().into()).is_empty(), "it has no peer");
}

#[test]
fn of_too_many_silent_peers_the_oldest_is_hung_up_on() {
    let (mut socket, address) = closed(None);
    let come = |_| {
        let client = connected(&address);
        assert!(socket.accept());
        client
    };
    let clients: Vec<OwnedFd> = (0..=CONNECTIONS_MAX).map(come).collect();
    assert!(!socket.accept(), "nobody waits any more");
    assert_eq!(socket.connections.len(), CONNECTIONS_MAX);
    let hears = |client| wire::receive(client, &mut [0; 8], RecvFlags::DONTWAIT).map(|(len, _)| len);
    assert_eq!(hears(&clients[0]), Ok(0));
    assert_eq!(hears(&clients[1]), Err(Errno::AGAIN));
    let accepted = &socket.connections[0].socket;
    assert!(rustix::io::fcntl_getfd(accepted).unwrap().contains(rustix::io::FdFlags::CLOEXEC));
    assert!(rustix::fs::fcntl_getfl(accepted).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
}

#[test]
fn a_slow_peer_is_heard_after_a_quick_one() {
    let (socket, address) = closed(None);
    let stop = Arc::clone(&socket.stop);
    let daemon = std::thread::spawn(move || socket.listen());
    let [slow, quick] = [(), ()].map(|()| connected(&address));
    for client in [quick, slow] {
        let said = asks(&client, Want::Attach, AttachToken::default());
        assert!(matches!(said, Some(Err(why)) if why == "closed"));
    }
    rustix::io::write(&*stop, &1u64.to_ne_bytes()).unwrap();
    daemon.join().unwrap();
}

#[test]
fn only_who_has_asked_the_mount_is_answered_at_its_socket() {
    let (mut socket, address) = closed(None);
    let tokens = Arc::new(AttachTokens::of(b"here"));
    socket.tokens = Some(Arc::clone(&tokens));
    let stop = Arc::clone(&socket.stop);
    let daemon = std::thread::spawn(move || socket.listen());
    let token = [7; 16];
    let said = asks(&connected(&address), Want::Counters, token);
    assert!(matches!(said, Some(Err(why)) if why.contains("has not asked this mount")));
    tokens.answer(&question(&token), rustix::thread::gettid().as_raw_nonzero().get() as u32);
    let answer = asks(&connected(&address), Want::Counters, token).unwrap().unwrap();
    assert_eq!((answer.token, answer.image, answer.text()), (token, [5, 6], &b"/some/image"[..]));
    rustix::io::write(&*stop, &1u64.to_ne_bytes()).unwrap();
    daemon.join().unwrap();
}

/// Whoever sends a file whose close never returns would hold up the thread for ever.
#[test]
fn descriptors_that_a_peer_sends_are_not_installed() {
    for caller in [Caller::Owner, Caller::Stranger] {
        let (mut socket, _address) = closed(None);
        let (here, there) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None).unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        let hello = Hello::new(Want::Counters, AttachToken::default());
        wire::send(&there, hello.as_bytes(), &[writer.as_fd()]).unwrap();
        drop(writer);
        // Taken while the daemon makes up its answer.
        let is_closed = Arc::new(Mutex::new(None));
        let seen = Arc::clone(&is_closed);
        socket.mount.reading = Box::new(move || {
            let mut pipe = [PollFd::new(&reader, PollFlags::IN)];
            poll(&mut pipe, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap();
            *seen.lock().unwrap() = Some(pipe[0].revents().contains(PollFlags::HUP));
            reading()
        });
        let until = Instant::now() + GREETING_MAX;
        socket.answer(&Connection { socket: here, pid: 1, uid: 1, caller, until });
        let wanted = (caller == Caller::Owner).then_some(true);
        assert_eq!(*is_closed.lock().unwrap(), wanted, "the daemon has the pipe");
        let mut packet = wire::Packet::default();
        let (len, _fds) = wire::receive(&there, packet.bytes(), RecvFlags::empty()).unwrap();
        let said = Answer::parse(&packet.bytes()[..len]).unwrap();
        assert_eq!(said.is_ok(), caller == Caller::Owner);
    }
}

#[test]
fn a_kernel_that_can_refuses_descriptors_at_the_attach_socket() {
    let (mut socket, address) = closed(None);
    let client = connected(&address);
    assert!(socket.accept());
    let accepted = &socket.connections[0].socket;
    let is_known = socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)
        .is_ok_and(|(here, _there)| wire::pass_descriptors(here, true));
    if !is_known {
        eprintln!("SKIPPED: Linux before 6.16 lets descriptors through");
        return;
    }
    let sent = wire::send(&client, b"x", &[client.as_fd()]);
    assert_eq!(sent, Err(Errno::PERM));
    let mut packet = [0; 8];
    assert_eq!(wire::receive_bytes(accepted, &mut packet), Err(Errno::AGAIN), "it has come all the same");
}

/// A peer that came shortly before a round was due put it off by another half second.
#[test]
fn crash_peers_put_off_the_daemons_rounds() {
    let region = Region::anonymous(8 << 20).unwrap();
    format(&region, Variant::Heddle).unwrap();
    let volume = mount(region, &MountOptions { arena_bytes: 64 << 20, ..MountOptions::default() }).unwrap();
    let fs = volume.fs();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("attach");
    let how = ServerOptions { socket: Some(socket.clone()), ..ServerOptions::default() };
    let server = Server::start(&volume, &how).unwrap();
    // Each round counts the leased lanes anew.
    const NOT_COUNTED: u64 = 1 << 20;
    let leased = &fs.core.root().lanes_leased;
    let next_round = || {
        let mut peer_at = Instant::now() + ROUND_EVERY * 24 / 25;
        leased.store(NOT_COUNTED, SeqCst);
        let began = Instant::now();
        while leased.load(SeqCst) == NOT_COUNTED {
            if Instant::now() >= peer_at {
                // It has come and gone.
                drop(crate::shared::client::counters(&socket));
                peer_at = Instant::now() + ROUND_EVERY * 24 / 25;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        began.elapsed()
    };
    // One comes though no peer does.
    leased.store(NOT_COUNTED, SeqCst);
    let began = Instant::now();
    while leased.load(SeqCst) == NOT_COUNTED {
        assert!(began.elapsed() < Duration::from_secs(60), "the daemon never looks by itself");
        std::thread::sleep(Duration::from_millis(1));
    }
    let fastest = (0..4).map(|_| next_round()).min().unwrap();
    assert!(fastest < ROUND_EVERY * 8 / 5, "{fastest:?} from round to round");
    drop(server);
    crate::state::lease::leave(&fs.core);
    volume.unmount();
}

#[test]
fn a_new_peer_takes_the_place_of_the_oldest_of_its_kind() {
    let goes = |peers: &[(Caller, u32)], caller, uid| goes(peers.iter().copied(), caller, uid);
    let strangers: Vec<_> = (0..16).map(|uid| (Caller::Stranger, uid)).collect();
    assert_eq!(goes(&strangers[1..], Caller::Stranger, 7), None);
    assert_eq!(goes(&strangers, Caller::Stranger, 7), Some(0), "whatever user it is");
    assert_eq!(goes(&strangers, Caller::Owner, 0), None);
    let owners = [&strangers[..1], &[(Caller::Owner, 0); 64]].concat();
    assert_eq!(goes(&owners, Caller::Owner, 0), Some(1));
    // A member has a few, and all of them together have many.
    let of_one = [&[(Caller::Member, 1)][..], &[(Caller::Member, 2); 8]].concat();
    assert_eq!(goes(&of_one, Caller::Member, 2), Some(1));
    assert_eq!(goes(&of_one, Caller::Member, 1), None);
    let members: Vec<_> = (0..256).map(|uid| (Caller::Member, uid)).collect();
    assert_eq!(goes(&members[1..], Caller::Member, 300), None);
    assert_eq!(goes(&members, Caller::Member, 300), Some(0));
}
