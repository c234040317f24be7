//! The door: accepts or refuses processes, and hands them the mount's memory or counters.
//!
//! State       one thread: it listens, answers, and watches the attached processes. A connection is for one question and one answer.
//! Invariants  I1  only the user who mounted, root (with `CAP_SYS_ADMIN`), and members of one named group are accepted; the kernel
//!                 tells the peer's identity.
//!             I2  only processes that have asked the mount itself for the door are accepted ([`super::bell`]). A door at a path,
//!                 which belongs to no mount, does not check that.
//!             I3  a peer that sends nothing, or rubbish, is dropped after a short time and costs other users nothing. Connections are
//!                 accepted at once. Each user, and all strangers together, have their own number of places at the door, so a
//!                 peer takes a place only from its like.

use super::bell::{Bell, Knock};
use super::wire::{self, Answer, Hello, PACKET_BYTES, Want};
use crate::counters::Counters;
use crate::state::core::Core;
use crate::upkeep::settle;
use heddle_vfs::admin::is_administrator;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SocketFlags, accept_with};
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
const TALKS_MAX: usize = 64;
/// The same for each other user who may attach.
const TALKS_OF_A_MEMBER_MAX: usize = 8;
/// The same for all users who may not.
const TALKS_OF_STRANGERS_MAX: usize = 16;
/// The same for all group members together.
const TALKS_OF_MEMBERS_MAX: usize = 256;
/// Interval at which the daemon looks for dead lanes by itself.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// What a door gives access to.
pub(super) struct House {
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
pub(super) struct Talk {
    socket: OwnedFd,
    pid: u32,
    uid: u32,
    standing: Standing,
    until: Instant,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Standing {
    /// Root, or the user who mounted.
    Own,
    /// Of the group.
    Member,
    /// A user who may not attach.
    Stranger,
}

pub(super) struct Door {
    pub(super) house: House,
    pub(super) listener: OwnedFd,
    pub(super) stop: Arc<OwnedFd>,
    pub(super) group: Option<u32>,
    /// The knocks of the mount; `None`: this door belongs to no mount.
    pub(super) bell: Option<Arc<Bell>>,
    pub(super) talks: Vec<Talk>,
}

impl Door {
    pub(super) fn listen(mut self) {
        let mut locked = false;
        let mut rounds = settle::Rounds::default();
        let mut looked = Instant::now();
        loop {
            let (stopped, called, spoken) = self.wait();
            if looked.elapsed() >= LOOK_EVERY {
                if let Some(core) = self.house.core.as_ref().filter(|_| self.house.no_attach.is_none()) {
                    rounds.go(core);
                    // A daemon that took over has no lock of its own until the last client of the dead daemon
                    // has gone.
                    locked = locked || core.region.lock_again();
                }
                looked = Instant::now();
            }
            if stopped {
                return;
            }
            for at in spoken.into_iter().rev() {
                let talk = self.talks.remove(at);
                self.answer(&talk);
            }
            let now = Instant::now();
            self.talks.retain(|talk| talk.until > now);
            if called {
                // Accepts at most so many at a time, so that connected clients are served meanwhile.
                for _ in 0..TALKS_MAX {
                    if !self.let_in() {
                        break;
                    }
                }
            }
        }
    }

    /// Waits for work. Returns: stop requested, a connection is waiting, the clients that have sent
    /// something.
    fn wait(&self) -> (bool, bool, Vec<usize>) {
        let timeout = Timespec::try_from(LOOK_EVERY).ok();
        let mut fds =
            vec![PollFd::new(&*self.stop, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        fds.extend(self.talks.iter().map(|talk| PollFd::new(&talk.socket, PollFlags::IN)));
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return (false, false, Vec::new());
        }
        let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let spoken = (0..self.talks.len()).filter(|at| ready(at + 2)).collect();
        (ready(0), ready(1), spoken)
    }

    /// Accepts a connection, if one is waiting.
    fn let_in(&mut self) -> bool {
        let socket = match accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            Ok(socket) => socket,
            // The caller has gone: accept the next one.
            Err(Errno::CONNABORTED | Errno::INTR) => return true,
            // No connection is waiting; or there are no free descriptors, and it is retried later.
            Err(_) => return false,
        };
        let Ok(wire::Peer { pid, uid, gid }) = wire::peer(&socket) else { return true };
        let invited = || self.group.is_some_and(|group| gid == group || groups(&socket).contains(&group));
        let standing = match () {
            () if uid == rustix::process::geteuid().as_raw() => Standing::Own,
            // Both checks are needed: the process number may have been reused; the user is the one who
            // connected.
            () if uid == 0 && is_administrator(pid) => Standing::Own,
            () if invited() => Standing::Member,
            () => Standing::Stranger,
        };
        self.make_room(standing, uid);
        let time = if standing == Standing::Stranger { REFUSED_GREETING_MAX } else { GREETING_MAX };
        self.talks.push(Talk { socket, pid, uid, standing, until: Instant::now() + time });
        true
    }

    /// I3: a new peer takes the place of the oldest peer of its kind.
    fn make_room(&mut self, standing: Standing, uid: u32) {
        let of_members = self.talks.iter().filter(|talk| talk.standing == Standing::Member).count();
        let like = |talk: &&Talk| match standing {
            Standing::Member if of_members < TALKS_OF_MEMBERS_MAX => {
                talk.standing == standing && talk.uid == uid
            }
            _ => talk.standing == standing,
        };
        let limit = match standing {
            Standing::Own => TALKS_MAX,
            Standing::Member if of_members < TALKS_OF_MEMBERS_MAX => TALKS_OF_A_MEMBER_MAX,
            Standing::Member => TALKS_OF_MEMBERS_MAX,
            Standing::Stranger => TALKS_OF_STRANGERS_MAX,
        };
        if self.talks.iter().filter(like).count() >= limit {
            // They are ordered by arrival.
            let oldest = self.talks.iter().position(|talk| like(&talk));
            oldest.map(|at| self.talks.remove(at));
        }
    }

    fn answer(&self, talk: &Talk) {
        let mut packet = [0; PACKET_BYTES];
        // Descriptors that a client sends are closed at once.
        let Ok((len, _sent)) = wire::receive(&talk.socket, &mut packet, RecvFlags::empty()) else { return };
        // Answered only after its question: unread data in the socket would destroy the answer.
        if talk.standing == Standing::Stranger {
            let (uid, mounted) =
                (talk.uid, "only the user who mounted the image (or the group named with -o attach-group=)");
            return refuse(&talk.socket, &format!("user {uid} may not attach: {mounted}. Use the mount"));
        }
        let hello = match Hello::parse(&packet[..len]) {
            Ok(hello) => hello,
            Err(why) => return refuse(&talk.socket, why),
        };
        // I2.
        if self.bell.as_ref().is_some_and(|bell| !bell.heard(&hello.knock, talk.pid)) {
            return refuse(
                &talk.socket,
                "this process has not asked this mount for its socket (by an ioctl on a file of the mount)",
            );
        }
        match hello.want() {
            Some(Want::Attach) => self.hand_over(talk, &hello),
            Some(Want::Counters) => self.tell_counters(talk, &hello),
            None => refuse(&talk.socket, "it asks for something that this build does not have"),
        }
    }

    fn welcome(&self, hello: &Hello) -> Answer {
        let path = self.house.path.as_deref().map_or(&[][..], |path| path.as_os_str().as_bytes());
        let mut answer = Answer::welcome(path);
        answer.image = self.house.image;
        answer.knock = if self.bell.is_some() { hello.knock } else { Knock::default() };
        answer
    }

    fn hand_over(&self, talk: &Talk, hello: &Hello) {
        if let Some(why) = &self.house.no_attach {
            return refuse(&talk.socket, why);
        }
        let Some(core) = &self.house.core else { return };
        let (Some(region), Some(arena)) = (core.region.fd(), core.arena.fd()) else { return };
        let mut answer = self.welcome(hello);
        let identity = core.identity();
        (answer.uuid, answer.boot, answer.epoch) = (identity.uuid, identity.boot, identity.epoch);
        (answer.region_bytes, answer.arena_bytes) = (core.layout.bytes(), core.arena.capacity_bytes());
        (answer.variant, answer.read_only) = (core.variant.raw(), u32::from(core.read_only));
        answer.durability = core.region.durability().raw();
        core.root().attached.fetch_add(1, SeqCst);
        // A client that has gone needs no answer.
        let _gone = wire::send(&talk.socket, answer.as_bytes(), &[region, arena]);
    }

    fn tell_counters(&self, talk: &Talk, hello: &Hello) {
        match write_down(&(self.house.reading)()) {
            Ok(file) => {
                // A client that has gone needs no answer.
                let _gone = wire::send(&talk.socket, self.welcome(hello).as_bytes(), &[file.as_fd()]);
            }
            Err(error) => refuse(&talk.socket, &format!("the reading cannot be handed over: {error}")),
        }
    }
}

/// A reading is immutable.
pub(super) const READING_SEALS: SealFlags =
    SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::WRITE).union(SealFlags::SEAL);

/// Writes a reading to a memory file, which the reader receives.
fn write_down(counters: &Counters) -> io::Result<OwnedFd> {
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
