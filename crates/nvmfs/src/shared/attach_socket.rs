//! The attach socket: accepts or refuses processes, and hands them the mount's memory or counters.
//!
//! State       one thread: it listens and answers. A connection is for one question and one answer.
//! Invariants  I1  only the user who mounted, root (with `CAP_SYS_ADMIN`), and members of one named group are accepted; the kernel
//!                 tells the peer's identity.
//!             I2  only processes that have asked the mount itself for the attach socket are accepted ([`super::attach_ioctl`]). An attach
//!                 socket at a path, which belongs to no mount, does not check that.
//!             I3  a peer that sends nothing, or rubbish, is dropped after a short time and costs other users nothing. Connections are
//!                 accepted at once. Each user, and all strangers together, have their own number of connections, so a
//!                 peer takes a place only from its like.
//!             I4  descriptors that a peer sends are not installed here. Linux before 6.16 nevertheless closes them on this thread: a
//!                 lingering TCP socket may hold it up. So nothing that a mount needs depends on this thread: the rounds have one of their
//!                 own ([`super::rounds`]), and the server ends without it. The thread works on the mount only inside the gate.

use super::attach_ioctl::{AttachToken, AttachTokens};
use super::wire::{self, Answer, Hello, PACKET_BYTES, Want};
use crate::counters::Counters;
use crate::state::core::Core;
use heddle_vfs::admin::is_administrator;
use heddle_vfs::unmapped::{is_one_group, is_own_user};
use heddle_vfs::workers::Gate;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals};
use rustix::io::Errno;
use rustix::net::{SocketFlags, accept_with};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// Longest time that a client may take to send its question.
const GREETING_MAX: Duration = Duration::from_secs(2);
/// The same for a peer that is refused in any case.
const REFUSED_GREETING_MAX: Duration = Duration::from_millis(200);
/// Most open connections of root and of the user who mounted.
const CONNECTIONS_MAX: usize = 64;
/// The same for each other user who may attach.
const CONNECTIONS_OF_A_MEMBER_MAX: usize = 8;
/// The same for all users who may not.
const CONNECTIONS_OF_STRANGERS_MAX: usize = 16;
/// The same for all group members together.
const CONNECTIONS_OF_MEMBERS_MAX: usize = 256;
/// How often connections are looked through for those whose time is over.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What an attach socket gives access to.
pub(super) struct SharedMount {
    /// The mount that a client maps; `None`: only counters are offered.
    pub(super) core: Option<Arc<Core>>,
    /// Takes a reading.
    pub(super) reading: Box<dyn Fn() -> Counters + Send>,
    /// The reason for refusing all clients, if there is one.
    pub(super) no_attach: Option<String>,
    pub(super) image: [u64; 2],
    pub(super) path: Option<PathBuf>,
}

/// A client that has connected and has sent nothing yet.
pub(super) struct Connection {
    socket: OwnedFd,
    pid: u32,
    uid: u32,
    caller: Caller,
    until: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// Root, or the user who mounted.
    Owner,
    /// Of the group.
    Member,
    /// A user who may not attach.
    Stranger,
}

pub(super) struct AttachSocket {
    pub(super) mount: SharedMount,
    pub(super) listener: OwnedFd,
    pub(super) stop: Arc<OwnedFd>,
    /// The way to the mount (I4).
    pub(super) gate: Arc<Gate>,
    pub(super) group: Option<u32>,
    /// The tokens of the mount; `None`: this attach socket belongs to no mount.
    pub(super) tokens: Option<Arc<AttachTokens>>,
    pub(super) connections: Vec<Connection>,
}

impl AttachSocket {
    pub(super) fn listen(mut self) {
        loop {
            let (stopped, called, spoken) = self.wait(LOOK_EVERY);
            if stopped {
                return;
            }
            for at in spoken.into_iter().rev() {
                let connection = self.connections.remove(at);
                self.answer(&connection);
            }
            let now = Instant::now();
            self.connections.retain(|connection| connection.until > now);
            if called {
                // Accepts at most so many at a time, so that connected clients are served meanwhile.
                for _ in 0..CONNECTIONS_MAX {
                    if !self.accept() {
                        break;
                    }
                }
            }
        }
    }

    /// Waits for work, at most so long. Returns: stop requested, a connection is waiting, the clients that have sent
    /// something.
    fn wait(&self, longest: Duration) -> (bool, bool, Vec<usize>) {
        let timeout = Timespec::try_from(longest).ok();
        let mut fds =
            vec![PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        fds.extend(self.connections.iter().map(|connection| PollFd::new(&connection.socket, PollFlags::IN)));
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return (false, false, Vec::new());
        }
        let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let spoken = (0..self.connections.len()).filter(|at| ready(at + 2)).collect();
        (ready(0), ready(1), spoken)
    }

    /// Accepts a connection, if one is waiting.
    fn accept(&mut self) -> bool {
        let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            // The caller has gone: accept the next one.
            Err(Errno::CONNABORTED | Errno::INTR) => return true,
            // No connection is waiting; or there are no free descriptors, and it is retried later.
            Err(_) => return false,
        };
        let Ok(wire::Peer { pid, uid, gid }) = wire::peer(&socket) else { return true };
        let is_member = |group| is_one_group(group) && (gid == group || groups(&socket).contains(&group));
        let invited = || self.group.is_some_and(is_member);
        let caller = match () {
            () if is_own_user(uid) => Caller::Owner,
            // Both checks are needed: the process number may have been reused; the user is the one who
            // connected.
            () if uid == 0 && is_administrator(pid) => Caller::Owner,
            () if invited() => Caller::Member,
            () => Caller::Stranger,
        };
        self.make_room(caller, uid);
        let time = if caller == Caller::Stranger { REFUSED_GREETING_MAX } else { GREETING_MAX };
        self.connections.push(Connection { socket, pid, uid, caller, until: Instant::now() + time });
        true
    }

    /// I3: a new peer takes the place of the oldest peer of its kind.
    fn make_room(&mut self, caller: Caller, uid: u32) {
        let peers = self.connections.iter().map(|connection| (connection.caller, connection.uid));
        if let Some(at) = goes(peers, caller, uid) {
            self.connections.remove(at);
        }
    }

    fn answer(&self, connection: &Connection) {
        let mut packet = [0; PACKET_BYTES];
        let Ok(len) = wire::receive_bytes(&connection.socket, &mut packet) else { return };
        let Some(_inside) = self.gate.enter() else { return };
        // Answered only after its question: unread data in the socket would destroy the answer.
        if connection.caller == Caller::Stranger {
            let (uid, mounted) = (
                connection.uid,
                "only the user who mounted the image (or the group named with -o attach-group=)",
            );
            return refuse(
                &connection.socket,
                &format!("user {uid} may not attach: {mounted}. Use the mount"),
            );
        }
        let hello = match Hello::parse(&packet[..len]) {
            Ok(hello) => hello,
            Err(why) => return refuse(&connection.socket, why),
        };
        // I2.
        if self.tokens.as_ref().is_some_and(|tokens| !tokens.redeem(&hello.token, connection.pid)) {
            return refuse(
                &connection.socket,
                "this process has not asked this mount for its socket (by an ioctl on a file of the mount)",
            );
        }
        match hello.want() {
            Some(Want::Attach) => self.send_memory(connection, &hello),
            Some(Want::Counters) => self.send_counters(connection, &hello),
            None => refuse(&connection.socket, "it asks for something that this build does not have"),
        }
    }

    fn welcome(&self, hello: &Hello) -> Answer {
        let path = self.mount.path.as_deref().map_or(&[][..], |path| path.as_os_str().as_bytes());
        let mut answer = Answer::welcome(path);
        answer.image = self.mount.image;
        answer.token = if self.tokens.is_some() { hello.token } else { AttachToken::default() };
        answer
    }

    fn send_memory(&self, connection: &Connection, hello: &Hello) {
        if let Some(why) = &self.mount.no_attach {
            return refuse(&connection.socket, why);
        }
        let Some(core) = &self.mount.core else { return };
        let (Some(region), Some(arena)) = (core.region.fd(), core.arena.fd()) else { return };
        let mut answer = self.welcome(hello);
        let identity = core.identity();
        (answer.uuid, answer.boot, answer.epoch) = (identity.uuid, identity.boot, identity.epoch);
        (answer.region_bytes, answer.arena_bytes) = (core.layout.bytes(), core.arena.capacity_bytes());
        (answer.variant, answer.read_only) = (core.variant.raw(), u32::from(core.read_only));
        answer.durability = core.region.durability().raw();
        core.root().attached.fetch_add(1, SeqCst);
        // A client that has gone needs no answer.
        let _gone = wire::send(&connection.socket, answer.as_bytes(), &[region, arena]);
    }

    fn send_counters(&self, connection: &Connection, hello: &Hello) {
        match counters_file(&(self.mount.reading)()) {
            Ok(file) => {
                // A client that has gone needs no answer.
                let _gone = wire::send(&connection.socket, self.welcome(hello).as_bytes(), &[file.as_fd()]);
            }
            Err(error) => {
                refuse(&connection.socket, &format!("the statistics cannot be handed over: {error}"))
            }
        }
    }
}

/// A reading is immutable.
pub(super) const READING_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// Writes a reading to a memory file, which the reader receives.
fn counters_file(counters: &Counters) -> io::Result<OwnedFd> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let mut file = File::from(rustix::fs::memfd_create("heddle-counters", flags)?);
    file.write_all(counters.to_words().as_bytes())?;
    fcntl_add_seals(&file, READING_SEALS)?;
    Ok(file.into())
}

fn refuse(socket: &OwnedFd, why: &str) {
    let _gone = wire::send(socket, Answer::refusal(why).as_bytes(), &[]);
}

/// The supplementary groups of the peer.
fn groups(socket: &OwnedFd) -> Vec<u32> {
    let mut groups = vec![0u32; 256];
    loop {
        let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: the buffer has room for `len` bytes.
        let done = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_PEERGROUPS,
                groups.as_mut_ptr().cast(),
                &mut len,
            )
        };
        let count = len as usize / size_of::<u32>();
        match done {
            0 => {
                groups.truncate(count);
                return groups;
            }
            _ if io::Error::last_os_error().raw_os_error() == Some(libc::ERANGE) && count > groups.len() => {
                groups.resize(count, 0);
            }
            _ => return Vec::new(),
        }
    }
}

/// Which of the peers, ordered by arrival, makes room for a new one, if one must.
fn goes(peers: impl Iterator<Item = (Caller, u32)> + Clone, caller: Caller, uid: u32) -> Option<usize> {
    let of_members = peers.clone().filter(|(caller, _)| *caller == Caller::Member).count();
    let (limit, of_one) = match caller {
        Caller::Owner => (CONNECTIONS_MAX, false),
        Caller::Member if of_members < CONNECTIONS_OF_MEMBERS_MAX => (CONNECTIONS_OF_A_MEMBER_MAX, true),
        Caller::Member => (CONNECTIONS_OF_MEMBERS_MAX, false),
        Caller::Stranger => (CONNECTIONS_OF_STRANGERS_MAX, false),
    };
    let mut like = peers
        .enumerate()
        .filter(|(_, peer)| peer.0 == caller && (!of_one || peer.1 == uid))
        .map(|(at, _)| at);
    let oldest = like.next()?;
    (1 + like.count() >= limit).then_some(oldest)
}

#[cfg(all(test, not(shuttle)))]
mod tests;
