//! Handing a mounted file system to other processes.
//!
//! State       one thread: it listens, answers, and watches those who came in. A connection lives for one question and one answer.
//! Invariants  I1  only the user who mounted, root, and members of one named group are let in; the kernel says who asks.
//!             I2  whoever says nothing, or rubbish, is let go after a moment and costs nobody else anything.
//!             I3  the socket's name is bound by one daemon at a time: a lock beside it says so.

use super::place::{hex, runtime_dir, sign_of, socket_name};
use super::wire::{self, Answer, Hello, PACKET_BYTES, Want};
use crate::core::Core;
use crate::counters::Counters;
use crate::settle;
use crate::volume::Volume;
use heddle_arena::LaneId;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fs::{FlockOperation, MemfdFlags, flock};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{
    AddressFamily, RecvFlags, SocketAddrUnix, SocketFlags, SocketType, accept_with, bind, listen, socket_with,
};
use std::fs::{DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Relaxed, SeqCst};
use std::sync::mpsc::Sender;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use zerocopy::IntoBytes;

/// How long a client may take to say what it wants.
const GREETING_MAX: Duration = Duration::from_secs(2);
/// Clients that are being listened to at once; further ones wait in the kernel's queue.
const TALKS_MAX: usize = 64;
/// How often the daemon looks for the dead when nobody tells it.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// Why nobody can be let in.
#[derive(thiserror::Error, Debug)]
pub enum ServerError {
    /// Another daemon has the name.
    #[error("cannot listen at {}: another daemon does, for an image of the same identity. Is a copy of this image mounted?", socket.display())]
    Taken {
        /// The socket.
        socket: PathBuf,
    },
    /// The system.
    #[error("cannot listen at {}: {source}. Choose another directory with HEDDLE_RUNTIME_DIR", socket.display())]
    System {
        /// The socket.
        socket: PathBuf,
        /// What it said.
        source: io::Error,
    },
}

/// Why a file system cannot be handed out, though it can be looked at.
pub(super) fn refusal(core: &Core, options: &ServerOptions) -> Option<String> {
    if options.no_attach {
        return Some("it is mounted with -o no_attach. Use the mount".to_owned());
    }
    if core.locks.is_some() {
        // Nobody could say whose their readers' counts are.
        return Some(format!(
            "{} works in one process only: its locks cannot be taken from the dead. Other processes use the mount; \
             many processes need an image of variant heddle",
            core.variant.name()
        ));
    }
    let shared = core.region.fd().is_some() && core.arena.fd().is_some();
    (!shared).then(|| "this region cannot be handed to other processes: it is a simulated one".to_owned())
}

/// How to hand out.
#[derive(Clone, Debug, Default)]
pub struct ServerOptions {
    /// Let nobody attach, only look on.
    pub no_attach: bool,
    /// Members of this group may attach too.
    pub group: Option<u32>,
    /// Where to listen, if not at the usual place (see [`super::place`]).
    pub socket: Option<PathBuf>,
    /// How long a stopped process may hold up others before it is killed; `None`: 30 s; zero: for ever.
    pub patience: Option<Duration>,
}

/// Listens until it is dropped.
pub struct Server {
    socket: PathBuf,
    stop: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
    _lock: File,
}

impl Server {
    /// Starts to listen.
    ///
    /// # Errors
    /// One variant of [`ServerError`] a cause.
    pub fn start(volume: &Volume, options: &ServerOptions) -> Result<Server, ServerError> {
        let core = volume.fs().core;
        let no_attach = refusal(&core, options);
        if let Some(patience) = options.patience {
            let ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
            // ORDERING: Relaxed, a setting.
            core.root().patience_ms.store(ms, Relaxed);
        }
        let uuid = core.identity().uuid;
        let socket = options.socket.clone().unwrap_or_else(|| runtime_dir().join(socket_name(uuid)));
        let fail = |source: io::Error| ServerError::System { socket: socket.clone(), source };
        let lock = lock_beside(&socket, &hex(uuid), options.group)?;
        let listener = open(&socket, options.group).map_err(fail)?;
        sign(&socket, core.region.path()).map_err(fail)?;
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| fail(e.into()))?);
        let (ready, is_ready) = std::sync::mpsc::channel();
        let door = Door {
            core,
            no_attach,
            listener,
            stop: Arc::clone(&stop),
            group: options.group,
            talks: Vec::new(),
        };
        let thread = std::thread::Builder::new()
            .name("heddle-door".into())
            .spawn(move || door.serve(&ready))
            .map_err(fail)?;
        // The lane that says that this daemon lives is its thread's.
        if is_ready.recv() != Ok(true) {
            return Err(ServerError::Taken { socket });
        }
        Ok(Server { socket, stop, thread: Some(thread), _lock: lock })
    }

    /// Where it listens.
    pub fn socket(&self) -> &Path {
        &self.socket
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Ours, by I3.
        let _ = std::fs::remove_file(sign_of(&self.socket));
        let _ = std::fs::remove_file(&self.socket);
    }
}

/// The lock that says whose the name is (I3).
fn lock_beside(socket: &Path, name: &str, group: Option<u32>) -> Result<File, ServerError> {
    let fail = |source: io::Error| ServerError::System { socket: socket.to_path_buf(), source };
    let dir = socket.parent().unwrap_or(Path::new("."));
    let mode = if group.is_some() || rustix::process::geteuid().is_root() { 0o755 } else { 0o700 };
    DirBuilder::new().recursive(true).mode(mode).create(dir).map_err(fail)?;
    let path = dir.join(format!("{name}.lock"));
    let lock = File::options().create(true).truncate(false).write(true).open(path).map_err(fail)?;
    match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(lock),
        Err(Errno::WOULDBLOCK) => Err(ServerError::Taken { socket: socket.to_path_buf() }),
        Err(e) => Err(fail(e.into())),
    }
}

/// Says whose socket it is, in the place of what a dead daemon has said.
fn sign(socket: &Path, image: Option<&Path>) -> io::Result<()> {
    let Some(image) = image else { return Ok(()) };
    let sign = sign_of(socket);
    match std::fs::remove_file(&sign) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    symlink(image.canonicalize().unwrap_or_else(|_| image.to_path_buf()), sign)
}

/// Binds the name, in the place of one that a dead daemon left.
fn open(path: &Path, group: Option<u32>) -> io::Result<OwnedFd> {
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::SEQPACKET,
        SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
        None,
    )?;
    let address = SocketAddrUnix::new(path)?;
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    bind(&socket, &address)?;
    // Who may connect is asked of the kernel at each connection; the mode is a courtesy to those who may not.
    let mode = if group.is_some() { 0o660 } else { 0o600 };
    if let Some(group) = group {
        std::os::unix::fs::chown(path, None, Some(group))?;
    }
    std::fs::set_permissions(path, Permissions::from_mode(mode))?;
    listen(&socket, 128)?;
    Ok(socket)
}

/// A client that has connected and said nothing yet.
struct Talk {
    socket: OwnedFd,
    pid: u32,
    /// It may not attach.
    refusal: Option<String>,
    until: Instant,
}

struct Door {
    core: Arc<Core>,
    /// Why nobody may attach, if so.
    no_attach: Option<String>,
    listener: OwnedFd,
    stop: Arc<OwnedFd>,
    group: Option<u32>,
    talks: Vec<Talk>,
}

impl Door {
    fn serve(mut self, ready: &Sender<bool>) {
        let keeper = self.core.keeper().lease_lane(&self.core.arena, LaneId(1));
        // Whoever started this thread waits for it.
        let _heard = ready.send(keeper.is_some());
        if keeper.is_none() {
            return;
        }
        self.listen();
        let _ours = self.core.keeper().release(&self.core.arena, LaneId(1));
    }

    fn listen(&mut self) {
        let mut locked = false;
        let mut looked = Instant::now();
        loop {
            let (stopped, called, spoken) = self.wait();
            if looked.elapsed() >= LOOK_EVERY && self.no_attach.is_none() {
                settle::sweep(&self.core);
                // One that took over from a dead daemon has no lock of its own until the last client of that one has gone.
                locked = locked || self.core.region.lock_again();
                looked = Instant::now();
            }
            if stopped {
                return;
            }
            for at in spoken.into_iter().rev() {
                let talk = self.talks.swap_remove(at);
                self.answer(&talk);
            }
            let now = Instant::now();
            self.talks.retain(|talk| talk.until > now);
            if called && self.talks.len() < TALKS_MAX {
                self.let_in();
            }
        }
    }

    /// Waits for something to do: stopped, somebody at the door, which talks have spoken.
    fn wait(&self) -> (bool, bool, Vec<usize>) {
        let timeout = Timespec::try_from(LOOK_EVERY).ok();
        let mut fds = vec![PollFd::new(&*self.stop, PollFlags::IN)];
        fds.extend(self.talks.iter().map(|talk| PollFd::new(&talk.socket, PollFlags::IN)));
        if self.talks.len() < TALKS_MAX {
            fds.push(PollFd::new(&self.listener, PollFlags::IN));
        }
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return (false, false, Vec::new());
        }
        let ready = |at: usize| fds.get(at).is_some_and(|fd| !fd.revents().is_empty());
        let spoken = (0..self.talks.len()).filter(|at| ready(at + 1)).collect();
        (ready(0), ready(self.talks.len() + 1), spoken)
    }

    fn let_in(&mut self) {
        // A failure (the caller has gone, no descriptors left) is the caller's; the next one is tried again.
        let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else {
            return;
        };
        let Ok(who) = socket_peercred(&socket) else { return };
        let mine = who.uid == rustix::process::geteuid() || who.uid.is_root();
        let invited =
            || self.group.is_some_and(|group| who.gid.as_raw() == group || groups(&socket).contains(&group));
        if !(mine || invited()) {
            let why = format!(
                "user {} may not attach: only the user who mounted the image (or the group named with -o attach-group=). Use the mount",
                who.uid.as_raw()
            );
            // Said when it has greeted: what it has sent and nobody has read would take the answer away.
            self.talks.push(Talk {
                socket,
                pid: 0,
                refusal: Some(why),
                until: Instant::now() + GREETING_MAX,
            });
            return;
        }
        let pid = who.pid.as_raw_nonzero().get() as u32;
        self.talks.push(Talk { socket, pid, refusal: None, until: Instant::now() + GREETING_MAX });
    }

    fn answer(&self, talk: &Talk) {
        let mut packet = [0; PACKET_BYTES];
        // Descriptors that a client sends are closed at once.
        let Ok((len, _sent)) = wire::receive(&talk.socket, &mut packet, RecvFlags::empty()) else { return };
        if let Some(why) = &talk.refusal {
            return refuse(&talk.socket, why);
        }
        let hello = match Hello::parse(&packet[..len]) {
            Ok(hello) => hello,
            Err(why) => return refuse(&talk.socket, why),
        };
        if hello.pid != talk.pid {
            return refuse(
                &talk.socket,
                "this process and the daemon number processes differently (another PID namespace): it could not be told dead",
            );
        }
        match hello.want() {
            Some(Want::Attach) => {}
            Some(Want::Counters) => return self.tell_counters(&talk.socket),
            None => return refuse(&talk.socket, "it asks for something that this build does not have"),
        }
        let core = &self.core;
        if let Some(why) = &self.no_attach {
            return refuse(&talk.socket, why);
        }
        let (Some(region), Some(arena)) = (core.region.fd(), core.arena.fd()) else { return };
        let path = core.region.path().map(|path| path.canonicalize().unwrap_or_else(|_| path.to_path_buf()));
        let mut answer = Answer::welcome(path.as_deref().map_or(&[], |path| path.as_os_str().as_bytes()));
        let identity = core.identity();
        (answer.uuid, answer.boot, answer.epoch) = (identity.uuid, identity.boot, identity.epoch);
        (answer.region_bytes, answer.arena_bytes) = (core.region.len_bytes(), core.arena.capacity_bytes());
        (answer.variant, answer.read_only) = (core.variant.raw(), u32::from(core.read_only));
        answer.durability = core.region.durability().raw();
        core.root().attached.fetch_add(1, SeqCst);
        // A client that has gone meanwhile misses nothing.
        let _gone = wire::send(&talk.socket, answer.as_bytes(), &[region, arena]);
    }

    fn tell_counters(&self, socket: &OwnedFd) {
        match write_down(&Counters::read(&self.core)) {
            Ok(file) => {
                // A client that has gone meanwhile misses nothing.
                let _gone = wire::send(socket, Answer::welcome(&[]).as_bytes(), &[file.as_fd()]);
            }
            Err(error) => refuse(socket, &format!("the reading cannot be handed over: {error}")),
        }
    }
}

/// A reading, in a file of memory that the reader gets.
fn write_down(counters: &Counters) -> io::Result<OwnedFd> {
    let mut file = File::from(rustix::fs::memfd_create("heddle-counters", MemfdFlags::CLOEXEC)?);
    file.write_all(counters.to_words().as_bytes())?;
    Ok(file.into())
}

fn refuse(socket: &OwnedFd, why: &str) {
    let _gone = wire::send(socket, Answer::refusal(why).as_bytes(), &[]);
}

/// The further groups of who is at the other end.
fn groups(socket: &OwnedFd) -> Vec<u32> {
    let mut groups = vec![0u32; 256];
    loop {
        let mut len = (groups.len() * size_of::<u32>()) as libc::socklen_t;
        // SAFETY: `len` bytes of room, as said.
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
